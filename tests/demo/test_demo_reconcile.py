"""The reconciliation finds every planted fault, and the comparison counts what the journals and tables hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icetower.demo import data, journal
from icetower.demo.processes import Outcome, make_jobs, outcome_of
from icetower.demo.reconcile import COLUMNS, Contents, Verdict, count_rows, reconcile
from icetower.demo.report import Row, count_commits, first_try, percentile


@pytest.fixture(scope="module")
def source() -> pa.Table:
    return data.load_source(1)


def _found(source: pa.Table) -> pa.Table:
    return source.select(list(COLUMNS))


def _take(table: pa.Table, ids: Any) -> pa.Table:
    return table.take(pa.array(ids))


def _with_cent_more(table: pa.Table, row: int) -> pa.Table:
    cents = data.cents_of(table["sales_value"]).copy()
    cents[row] += 1
    return table.set_column(2, "sales_value", data.money(cents))


def _foreign(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table.slice(0, 1).set_column(0, "row_id", pa.array([10_000_000], pa.int64()))])


CASES: tuple[tuple[str, Callable[[pa.Table], pa.Table], dict[str, Any]], ...] = (
    ("nothing", lambda table: table, {}),
    ("order", lambda table: _take(table, np.arange(table.num_rows)[::-1]), {}),
    ("a loss", lambda table: table.filter(pa.array(np.arange(table.num_rows) != 7)), {"lost": 1, "examples": (7,)}),
    ("a double", lambda table: pa.concat_tables([table, table.slice(5, 1)]), {"duplicated": 1, "examples": (5,)}),
    (
        "three of one, none of another",
        lambda table: _take(table, [*range(9), 8, 8, *range(10, table.num_rows)]),
        {"lost": 1, "duplicated": 2, "examples": (8, 9)},
    ),
    ("a cent", lambda table: _with_cent_more(table, 3), {"altered": 1, "examples": (3,)}),
    ("a row from nowhere", _foreign, {"unexpected": 1, "examples": (10_000_000,)}),
)


@pytest.mark.parametrize(("plant", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_every_planted_fault_is_found(
    source: pa.Table, plant: Callable[[pa.Table], pa.Table], expected: dict[str, Any]
) -> None:
    verdict = reconcile("t", plant(_found(source)), source, source["row_id"].to_numpy())
    clean = Verdict("t", data.totals(source), verdict.found, 0, 0, 0, 0)
    assert verdict == replace(clean, **expected)
    assert verdict.exact == (not expected)


def test_a_row_that_was_never_acknowledged_is_unexpected(source: pa.Table) -> None:
    acknowledged = source["row_id"].to_numpy()[1:]
    assert reconcile("t", _found(source), source, acknowledged).unexpected == 1


def test_a_row_acknowledged_and_missing_is_lost_even_if_the_source_does_not_have_it(source: pa.Table) -> None:
    acknowledged = np.append(source["row_id"].to_numpy(), 10_000_000)
    assert reconcile("t", _found(source), source, acknowledged).lost == 1


@pytest.mark.parametrize(
    ("found", "acknowledged", "expected"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], Contents(lost=0, unwritten=0, doubled=0)),
        ([1, 2, 4], [1, 2, 3, 4], Contents(lost=1, unwritten=0, doubled=0)),
        ([1, 2, 4], [1, 2, 4], Contents(lost=0, unwritten=1, doubled=0)),
        ([1, 2, 2, 2, 3, 4, 4], [1, 2, 3], Contents(lost=0, unwritten=0, doubled=3)),
        ([3, 3], [1, 3], Contents(lost=1, unwritten=2, doubled=1)),
        ([], [], Contents(lost=0, unwritten=4, doubled=0)),
    ],
)
def test_rows_of_both_sides_are_counted_alike(found: list[int], acknowledged: list[int], expected: Contents) -> None:
    """A row is lost only if it was acknowledged; a row whose commit failed is not written."""
    counted = count_rows(*(np.array(ids, dtype=np.int64) for ids in (found, [1, 2, 3, 4], acknowledged)))
    assert counted == expected


@pytest.mark.parametrize(
    ("row", "better"),
    [
        (Row("doubled", 0, 0), "even"),
        (Row("doubled", 1, 0), "Icetower"),
        (Row("doubled", 0, 1), "without"),
        (Row("landed", 39, 40, more_is_better=True), "Icetower"),
        (Row("landed", 40, 39, more_is_better=True), "without"),
        (Row("p50", 100.0, 110.0, "ms"), "even"),
        (Row("p50", 100.0, 111.0, "ms"), "without"),
        (Row("wall time", 60.0, 50.0, "s"), "Icetower"),
        (Row("wall time", 0.0, 0.0, "s"), "even"),
    ],
)
def test_the_better_side_follows_from_the_numbers(row: Row, better: str) -> None:
    assert row.better == better


def test_quantities_that_leave_are_compared_with_their_sign_turned(source: pa.Table) -> None:
    moved = data.stock_movements(source).select(list(COLUMNS))
    assert reconcile("t", moved, source, source["row_id"].to_numpy(), sign=-1).exact
    assert not reconcile("t", moved, source, source["row_id"].to_numpy()).exact


def test_a_line_that_its_writer_did_not_finish_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    own = journal.Journal(path)
    own.write(journal.ACKNOWLEDGED, batch=0, rows=[[0, 2], [5, 5]])
    own.close()
    with path.open("a") as stream:
        stream.write('{"event": "acknowledged", "batch": 1, "rows": [[6')
    assert journal.acknowledged_batches(path) == {0}
    assert journal.acknowledged_rows([path]).tolist() == [0, 1, 2, 5]


def test_commits_are_counted_once_and_by_how_they_landed(tmp_path: Path) -> None:
    jobs = make_jobs(
        tmp_path, tmp_path, days=1, seed=1, catalogs={"pricing-grocery": {}, "pricing-household": {}}, agents=_two()
    )
    written: dict[str, list[tuple[str, dict[str, Any]]]] = {
        "pricing-grocery": [
            (journal.ACKNOWLEDGED, {"batch": 0, "landed": "direct", "retries": 0, "at_ms": 2_000}),
            (journal.FAILED, {"batch": 1}),
            (journal.ACKNOWLEDGED, {"batch": 1, "landed": "rebased", "retries": 0, "at_ms": 3_000}),
            (journal.ACKNOWLEDGED, {"batch": 2, "landed": "direct", "retries": 2, "at_ms": 4_000}),
            (journal.FAILED, {"batch": 3, "at_ms": 4_500}),
            (journal.REFUSED, {"batch": 4}),
            (journal.STRAYED, {"batch": 4, "landed": "direct", "retries": 0, "at_ms": 2_000}),
            (journal.REPEATED, {"batch": 0, "landed": "absent", "retries": 0, "at_ms": 5_000}),
        ],
        "pricing-household": [
            (journal.ACKNOWLEDGED, {"batch": at, "landed": "unknown", "retries": at // 2, "at_ms": 2_000})
            for at in range(3)
        ],
    }
    for job in jobs:
        own = journal.Journal(Path(job.journal))
        for event, fields in written[job.agent]:
            own.write(event, **{"rows": [], "latency_ms": 10.0, **fields})
        own.close()
    outcome: Outcome = outcome_of(jobs, 1_000)
    attempts = [{"principal": "pricing-household", "outcome": how} for how in ("direct", "conflict", "rebased")]
    counts = count_commits(outcome, attempts)
    assert (outcome.planned, outcome.commits, outcome.failed, outcome.resent, outcome.unfinished) == (8, 6, 1, 1, 1)
    assert (outcome.errors, outcome.strayed, outcome.repeated) == (2, 1, 1)
    assert (counts.direct, counts.rebased, counts.after_retries, counts.refused) == (2, 2, 2, 1)
    assert counts.landed == outcome.commits
    assert outcome.span_s == 4.0
    assert outcome.commits_per_s == 1.5
    assert first_try(outcome, counts) == 3 / 7


def _two() -> Any:
    from icetower.demo import plan

    return (plan.agent_named("pricing-grocery"), plan.agent_named("pricing-household"))


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [((), 50, 0.0), ((3.0,), 99, 3.0), (tuple(range(1, 101)), 50, 50), (tuple(range(1, 101)), 99, 99)],
)
def test_percentiles_are_nearest_rank(values: tuple[float, ...], percent: int, expected: float) -> None:
    assert percentile(values, percent) == expected
