"""kill -9 before and after every write, deletion and swap of a real tower: nothing is lost, doubled or broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from verify.torture.kill import Broken, Launcher, Story, every_point, jobs_of, judge, play, template

CLIENTS = 2
LAUNCHERS = 2
MOMENTS = ("before", "after", "torn")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], list[Story]]]:
    """All runs, shared by two launchers; each moment's stories when they are asked for."""

    def work(share: int, home: Path) -> dict[str, list[Story] | Broken]:
        found: dict[str, list[Story] | Broken] = {}
        with Launcher(home) as launcher:
            fast = template(launcher)
            for when in MOMENTS:
                try:
                    found[when] = every_point(launcher, when, clients=CLIENTS, fast=fast, share=share, of=LAUNCHERS)
                except Broken as broken:
                    found[when] = broken
        return found

    with ThreadPoolExecutor(LAUNCHERS) as pool:
        futures: list[Future[dict[str, list[Story] | Broken]]] = [
            pool.submit(work, share, tmp_path_factory.mktemp(f"launcher{share}")) for share in range(LAUNCHERS)
        ]

        def stories(when: str) -> list[Story]:
            whole: list[Story] = []
            for future in futures:
                part = future.result()[when]
                if isinstance(part, Broken):
                    raise part
                whole += part
            return whole

        yield stories


@pytest.mark.parametrize("when", MOMENTS)
def test_a_tower_that_is_killed_loses_nothing_and_doubles_nothing(
    when: str, runs: Callable[[str], list[Story]]
) -> None:
    stories = runs(when)
    killed = [story for story in stories if story.killed]
    assert len(killed) >= {"before": 10, "after": 8, "torn": 6}[when]
    assert all(story.counts["connections lost"] or story.counts["answers None"] == 0 for story in killed)


def test_the_judge_of_crashes_is_sharp(tmp_path: Path) -> None:
    """A row that was acknowledged and is not there, and one that is there twice, are told."""
    with Launcher(tmp_path) as launcher:
        fast = template(launcher)
        story = play(launcher, None, clients=CLIENTS, fast=fast)
        assert not story.killed
        with pytest.raises(Broken, match="are missing"):
            judge(tmp_path / "data", [job for jobs in jobs_of(clients=3, fast=fast) for job in jobs], "a lie")
