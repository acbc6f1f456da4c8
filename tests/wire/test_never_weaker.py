"""Never weaker than Iceberg: random jobs by Iceberg's own Java client, through a tower and without one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest
from tower_process import TowerProcess
from wire.driver import Driver
from wire.judge import EXCUSES

from wire import jobs, run

pytestmark = pytest.mark.java

SAVED = sorted(run.SAVED.glob("*.json"))


@pytest.fixture(scope="module")
def bench(tower: TowerProcess) -> Iterator[run.Bench]:
    with Driver() as driver:
        yield run.bench(tower, driver, "never_weaker")


@pytest.mark.parametrize("path", SAVED, ids=lambda path: path.stem)
def test_a_divergence_of_the_past_is_mended(bench: run.Bench, path: object) -> None:
    job = json.loads(path.read_text())["job"]
    assert [judgement.problems for _, judgement in bench.judged([job] * 3)] == [[]] * 3


def test_random_jobs_are_judged_as_iceberg_judges_them_or_more_strictly(bench: run.Bench) -> None:
    """Verdicts, contents, totals, row ids and incremental reads; and the tower rebased, or it would prove nothing."""
    given = [jobs.job(seed) for seed in range(run.SEED, run.SEED + run.COUNT)]
    notes: Counter[str] = Counter()
    for job, judgement in bench.judged(given):
        assert not judgement.problems, (job["name"], judgement.problems)
        notes += judgement.notes
    rebased = {operation for operation in ("append", "overwrite", "delete", "replace") if notes[f"rebased {operation}"]}
    assert rebased >= {"append", "overwrite"}, run.told(notes)
    assert not [note for note in notes if note.startswith("stricter, not by a known rule")], run.told(notes)


def test_the_places_where_the_tower_knows_better_are_all_argued_for() -> None:
    """Promise 4 names them; each is a function whose text is its argument."""
    named = {"files_instead_of_a_filter", "the_owner_lowered_the_level", "the_owner_says_blind"}
    assert {excuse.__name__ for excuse in EXCUSES} == named
    assert all(len(excuse.__doc__ or "") > 80 for excuse in EXCUSES)
