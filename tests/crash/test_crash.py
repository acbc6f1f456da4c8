"""kill -9 before and after every write, deletion and swap of a real tower: nothing is lost, doubled or broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from verify.torture.kill import Broken, Launcher, Story, every_point, jobs_of, judge, play, template
from verify.torture.lifecycles import every_point_of_a_life

CLIENTS = 2
LAUNCHERS = 2


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], list[Story]]]:
    """Gives a moment's stories: a tower killed at every point at that moment. Two launchers share the work."""

    def work(share: int, when: str) -> list[Story]:
        with Launcher(tmp_path_factory.mktemp(f"{when}{share}")) as launcher:
            fast = template(launcher)
            return every_point(launcher, when, clients=CLIENTS, fast=fast, share=share, of=LAUNCHERS)

    with ThreadPoolExecutor(LAUNCHERS) as pool:

        def stories(when: str) -> list[Story]:
            parts = [pool.submit(work, share, when) for share in range(LAUNCHERS)]
            return [story for part in parts for story in part.result()]

        yield stories


@pytest.mark.parametrize(
    "when",
    [
        pytest.param("before", marks=pytest.mark.sharp),
        "after",  # the hardest: it is done, and nobody has heard of it
        pytest.param("torn", marks=pytest.mark.sharp),
    ],
)
def test_a_tower_that_is_killed_loses_nothing_and_doubles_nothing(
    when: str, runs: Callable[[str], list[Story]]
) -> None:
    stories = runs(when)
    killed = [story for story in stories if story.killed]
    assert len(killed) >= {"before": 10, "after": 8, "torn": 6}[when]
    assert all(story.counts["connections lost"] or story.counts["answers None"] == 0 for story in killed)


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.sharp), "after"])
def test_a3_every_other_change_is_answered_as_done_when_it_comes_again(when: str, tmp_path: Path) -> None:
    with Launcher(tmp_path) as launcher:
        template(launcher)
        stories = every_point_of_a_life(launcher, when)
    assert sum(story.killed for story in stories) >= 12
    assert all(story.counts["connections lost"] for story in stories if story.killed)


def test_the_judge_of_crashes_is_sharp(tmp_path: Path) -> None:
    """A row that was acknowledged and is not there, and one that is there twice, are told."""
    with Launcher(tmp_path) as launcher:
        fast = template(launcher)
        story = play(launcher, None, clients=CLIENTS, fast=fast)
        assert not story.killed
        with pytest.raises(Broken, match="are missing"):
            judge(tmp_path / "data", [job for jobs in jobs_of(clients=3, fast=fast) for job in jobs], "a lie")
