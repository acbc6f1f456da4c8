"""Which rows of a table are copies, and which part of its history is next: as tables, without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.pipelines.dedup_rules import (
    THROUGH_SEQUENCE,
    Copy,
    decide,
    floor_of,
    gave_out,
    landing,
    line_of,
    next_part,
)
from icetower.pipelines.wal_plan import REST_MS, Batch, Counts

TABLE = str(uuid.UUID(int=1))


def copy(position: int, *origins: int, by: int | None = None, member: int = 0) -> Copy:
    known = frozenset((origin, member) for origin in origins)
    return Copy("f", position, known, max(origins) if by is None else by)


@pytest.mark.parametrize(
    ("why", "copies", "removed", "untold"),
    [
        ("one row", [copy(0, 5)], [], 0),
        ("several rows of one commit are one write", [copy(0, 5), copy(1, 5)], [], 0),
        ("the later commit's go", [copy(0, 7), copy(1, 5)], [0], 0),
        ("all rows of each later commit", [copy(0, 5), copy(1, 5), copy(2, 7), copy(3, 7), copy(4, 9)], [2, 3, 4], 0),
        ("two appends of one snapshot", [copy(0, 5, member=2), copy(1, 5, member=1)], [0], 0),
        ("where it landed is not known, alone", [copy(0, by=5)], [], 0),
        ("unknown, and sure to be older", [copy(0, by=5), copy(1, 7)], [1], 0),
        ("unknown, and perhaps younger", [copy(0, by=9), copy(1, 7)], [], 1),
        ("unknown, and perhaps the first's", [copy(0, by=8), copy(1, 7), copy(2, 9)], [2], 1),
        ("unknown, younger than the first of several", [copy(0, by=9), copy(1, 7), copy(2, 8)], [2], 1),
        ("two commits' rows, mixed by a compaction", [copy(0, 5, 7), copy(1, 5, 7)], [], 2),
        ("mixed, and one that came after both", [copy(0, 5, 7), copy(1, 5, 7), copy(2, 9)], [2], 2),
    ],
)
def test_which_rows_are_copies(why: str, copies: Sequence[Copy], removed: Sequence[int], untold: int) -> None:
    found = decide(copies)
    assert ([each.position for each in found.remove], found.untold) == (removed, untold)


COPIES = st.builds(
    lambda position, origins, by: Copy("f", position, frozenset((o, 0) for o in origins), max([by, *origins])),
    st.integers(0, 9),
    st.sets(st.integers(1, 5), max_size=2),
    st.integers(1, 6),
)


@given(st.lists(COPIES, min_size=1, max_size=6, unique_by=lambda each: each.position))
def test_no_key_loses_its_last_row_nor_one_of_unknown_origin(copies: list[Copy]) -> None:
    found = decide(copies)
    assert found.keep
    assert sorted(each.position for each in (*found.keep, *found.remove)) == sorted(each.position for each in copies)
    assert all(each.origin is not None for each in found.remove)
    again = decide(found.keep)
    assert not again.remove  # a second look finds nothing more


def table(*kinds: str, gone: int = 0, rows: int = 1, marks: dict[int, dict[str, str]] | None = None) -> dict[str, Any]:
    """Snapshots 1, 2, …, of these operations; the number of one is its sequence number, and its time in seconds."""
    snapshots = [
        {
            "snapshot-id": number,
            "sequence-number": number,
            "timestamp-ms": number * 1000,
            "first-row-id": (number - 1) * rows,
            "added-rows": rows,
            "summary": {"operation": kind, "added-records": str(rows), **(marks or {}).get(number, {})},
        }
        | ({"parent-snapshot-id": number - 1} if number > 1 else {})
        for number, kind in enumerate(kinds, 1)
    ]
    return {
        "table-uuid": TABLE,
        "snapshots": snapshots[gone:],
        "current-snapshot-id": len(kinds) if kinds else None,
        "snapshot-log": [],
    }


def progress(through: int, sequence: int = 1, start: int | None = None) -> dict[str, str]:
    batch = Batch(TABLE, TABLE, sequence, start, through)
    return {**batch.properties(Counts(1, 1)), THROUGH_SEQUENCE: str(through)}


def part(of: dict[str, Any], *, now_s: int = 100, window_s: int = 1000, **bounds: int) -> Any:
    limits = {"snapshots_max": 100, "rows_max": 100, **bounds}
    return next_part(of, now_ms=now_s * 1000, window_ms=window_s * 1000, **limits)


@pytest.mark.parametrize(
    ("why", "of", "options", "expected"),
    [
        ("an empty table", table(), {}, None),
        ("without progress: all of the window", table("append", "append", "overwrite"), {}, (None, 3, [1, 2, 3])),
        ("and nothing before it", table(*["append"] * 9), {"now_s": 10, "window_s": 3}, (6, 9, [7, 8, 9])),
        ("since the progress", table("append", "append", "append", marks={2: progress(1)}), {}, (1, 3, [3])),
        ("only what brings rows", table("append", "replace", "append", "delete"), {}, (None, 4, [1, 3])),
        ("nothing but the progress", table("append", "overwrite", marks={2: progress(1)}), {}, None),
        ("only compacted since", table("append", "delete", "replace", marks={2: progress(1)}), {}, None),
        (
            "compacted, and long since",
            table("append", "delete", "replace", marks={2: progress(1)}),
            {"now_s": 10 + REST_MS // 1000},
            (1, 3, []),
        ),
        ("bounded by commits", table(*["append"] * 5), {"snapshots_max": 2}, (None, 2, [1, 2])),
        ("bounded by rows", table(*["append"] * 5, rows=10), {"rows_max": 25}, (None, 2, [1, 2])),
        ("a commit with more rows", table(*["append"] * 3, rows=10), {"rows_max": 5}, (None, 1, [1])),
    ],
)
def test_the_part_that_is_validated_next(why: str, of: dict[str, Any], options: dict[str, int], expected: Any) -> None:
    found = part(of, **options)
    shown = None if found is None else (found.batch.start, found.batch.through, [x.snapshot for x in found.landings])
    assert shown == expected
    assert found is None or found.lost_after is None


def test_what_expired_before_it_was_validated_is_read_from_the_files_that_are_left() -> None:
    of = table("append", "append", "append", "delete", "append", gone=3, marks={4: progress(2)})
    found = part(of)
    assert (found.lost_after, found.batch.through, [each.snapshot for each in found.landings]) == (2, 5, [5])


def test_without_progress_and_without_history_all_files_are_read() -> None:
    found = part(table("append", "append", "append", gone=1))
    assert (found.lost_after, found.batch.start, found.batch.through) == (0, None, 3)
    assert part(table("append", "append", "append", gone=1), now_s=5, window_s=2).lost_after is None


def test_a_batch_has_another_id_after_a_rollback_and_the_same_when_it_is_repeated() -> None:
    of = table("append", "append", "append", marks={2: progress(1)})
    assert part(of).batch.id == part(of).batch.id
    of["snapshot-log"] = [{"snapshot-id": 3, "timestamp-ms": 9_000}]
    assert part(of).batch.id != part(table("append", "append", "append", marks={2: progress(1)})).batch.id


def test_a_row_id_shows_which_commit_gave_it_out() -> None:
    line = line_of(table(*["append"] * 3, gone=1, rows=10), 3)
    assert [getattr(gave_out(line, row), "snapshot", None) for row in (0, 9, 10, 19, 20, 29, 30)] == [
        None,
        None,
        2,
        2,
        3,
        3,
        None,
    ]
    assert landing({"snapshot-id": 1, "timestamp-ms": 0}).brings_rows


def test_files_above_the_floor_have_what_landed_in_the_window() -> None:
    line = line_of(table(*["append"] * 5), 5)
    assert [floor_of(line, since) for since in (0, 1000, 2500, 9000)] == [0, 0, 2, 5]
