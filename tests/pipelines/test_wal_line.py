"""Which batches are in a target's history, from metadata and logs alone."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from icetower.errors import BadRequest
from icetower.pipelines.wal_line import (
    FIRST,
    BatchStates,
    LoggedBatch,
    batch_states,
    legacy_batch_id,
    lineage,
    with_predecessors,
)
from icetower.pipelines.wal_plan import COUNTS, REST_MS, Counts, marked, next_batch, published, removing

TABLE, LOG = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))


def table(
    line: Sequence[int],
    *,
    parents: Mapping[int, int] | None = None,
    gone: Sequence[int] = (),
    unnamed: Sequence[int] = (),
) -> dict[str, Any]:
    """A table whose head is the last of `line`; the number of a snapshot is its id, sequence number and time.

    `unnamed`: those of `gone` that their children do not name any more, as after PyIceberg's expiry.
    """
    before = {after: number for number, after in pairwise(line)} | dict(parents or {})
    numbers = sorted({*line, *before} - {*gone, *unnamed})
    rows = {number: str(at) for at, number in enumerate(line, 1)}
    snapshots = [
        {"snapshot-id": number, "sequence-number": number, "timestamp-ms": number}
        | {"summary": {"operation": "append", **totals(rows.get(number, "1"))}}
        | ({"parent-snapshot-id": before[number]} if number in before and before[number] not in unnamed else {})
        for number in numbers
    ]
    return {"table-uuid": TABLE, "snapshots": snapshots, "current-snapshot-id": line[-1] if line else None}


def totals(count: str) -> dict[str, str]:
    """The totals of an append of a file of one row, of a table that has so many then."""
    return {"added-records": "1", "added-data-files": "1", "total-records": count, "total-data-files": count}


def batches(*chain: tuple[int, int | None], log: str = LOG) -> dict[int, LoggedBatch]:
    return with_predecessors(LoggedBatch(snapshot, log, None, 0, snapshot, previous) for snapshot, previous in chain)


def of(found: BatchStates) -> tuple[set[int], set[int]]:
    return set(found.applied), set(found.unknown)


FOUR = ((1, FIRST), (2, 1), (3, 2), (4, 3))


@pytest.mark.parametrize(
    ("target", "applied"),
    [
        (table([1, 2, 3, 4]), {1, 2, 3, 4}),
        (table([1, 2], parents={3: 2, 4: 3}), {1, 2}),  # rolled back to the middle
        (table([1, 2], gone=[]), {1, 2}),  # and what was rolled back has expired
        (table([1, 2, 9], gone=[1]), {1, 2}),  # what came before has expired
        (table([1, 2, 9], unnamed=[1]), {1, 2}),  # and its name
        (table([2, 9], gone=[2]), {1, 2}),  # so has the head of the batches, whose child is left
        (table([9], parents={2: 1, 3: 2, 4: 3}), set[int]()),  # replaced
        (table([]), set[int]()),  # created anew
    ],
)
def test_a_batch_counts_while_it_is_in_the_line_and_with_it_all_before(
    target: dict[str, Any], applied: set[int]
) -> None:
    assert of(batch_states(target, batches(*FOUR))) == (applied, set())


def test_what_was_applied_anew_has_a_chain_of_its_own() -> None:
    """2 and 3 were rolled back, 5 applied their rows; then all but the last commit expired."""
    chain = batches((1, FIRST), (2, 1), (3, 2), (5, 1), (6, 5))
    assert of(batch_states(table([6, 9], gone=[6]), chain)) == ({1, 5, 6}, set())


def test_without_a_batch_in_the_line_rows_decide_and_the_rest_is_unknown() -> None:
    target = table([8, 9], gone=[8])
    assert of(batch_states(target, batches(*FOUR))) == (set(), {1, 2, 3, 4})
    assert of(batch_states(target, batches(*FOUR), seen=[2])) == ({1, 2}, {3, 4})
    assert of(batch_states(target, batches(*FOUR), seen=[2, 4])) == ({1, 2, 3, 4}, set())
    assert batch_states(target, batches(*FOUR), seen=[2]).tips == {LOG: 2}
    assert batch_states(target, {}).tips == {}
    # A batch beside the one that is seen was rolled back: one line cannot have both.
    assert of(batch_states(target, batches(*FOUR, (5, 2)), seen=[5])) == ({1, 2, 5}, set())


def test_a_chain_with_a_hole_leaves_the_rest_unknown() -> None:
    chain = batches((1, FIRST), (2, 1), (4, 3))
    assert of(batch_states(table([4, 9], gone=[4]), chain)) == ({3, 4}, {1, 2})
    assert lineage(chain, 4) == ({3, 4}, False)


def test_a_snapshot_that_only_a_tag_keeps_is_judged_by_its_number() -> None:
    target = table([7, 8], parents={4: 3}, gone=[3, 7])
    target["snapshots"].append({"snapshot-id": 10, "sequence-number": 10, "timestamp-ms": 10, "summary": {}})
    found = batch_states(target, batches((4, FIRST), (10, 4)))
    assert of(found) == (set(), {4})  # 10 is newer than all that is beyond the cut
    for snapshot in target["snapshots"]:
        snapshot["sequence-number"] = 0  # format version 1 has none
    assert of(batch_states(target, batches((4, FIRST), (10, 4)))) == (set(), {4, 10})


def test_a_batch_that_was_picked_counts_by_itself() -> None:
    target = table([1, 9], parents={3: 2, 2: 1})
    target["snapshots"][-1]["summary"]["source-snapshot-id"] = "3"
    assert of(batch_states(target, batches((1, FIRST), (2, 1), (3, 2)))) == ({1, 3}, set())


def test_each_log_has_a_chain_of_its_own() -> None:
    both = batches(*FOUR) | batches((5, FIRST), (6, 5), log="other")
    found = batch_states(table([4, 5, 6, 9], gone=[4, 5]), both)
    assert of(found) == ({5, 6}, {1, 2, 3, 4})
    assert found.tips == {"other": 6}


def test_batches_of_earlier_versions_are_chained_by_where_they_began() -> None:
    old = [(1, None, 11), (2, 11, 12), (3, 11, 13), (4, 13, 14)]
    chain = with_predecessors(
        LoggedBatch(snapshot, LOG, start, through, snapshot, None) for snapshot, start, through in old
    )
    assert {snapshot: batch.previous for snapshot, batch in chain.items()} == {1: FIRST, 2: 1, 3: 1, 4: 3}
    whole = LoggedBatch(5, LOG, None, 15, 5, None)
    assert with_predecessors([*chain.values(), whole])[5].previous == 4
    assert with_predecessors([replace(whole, start=99)])[5].previous is None


# --------------------------------------------------------------------------------------------------- batches and ids


def log(*numbers: int) -> dict[str, Any]:
    return {**table(numbers), "table-uuid": LOG}


def commit(target: dict[str, Any], wal: dict[str, Any], snapshot: int) -> str:
    """The next batch as a snapshot on the target's head; its id."""
    batch = next_batch(target, wal, snapshots_max=10, rows_max=10, reread=False, now_ms=0)
    assert batch is not None
    entry: dict[str, Any] = {"snapshot-id": snapshot, "sequence-number": snapshot, "timestamp-ms": snapshot}
    entry["summary"] = batch.properties(Counts(applied=1))
    if target["current-snapshot-id"] is not None:
        entry["parent-snapshot-id"] = target["current-snapshot-id"]
    target["snapshots"].append(entry)
    move(target, snapshot, snapshot)
    return batch.id


def move(target: dict[str, Any], snapshot: int, at_ms: int) -> None:
    target["current-snapshot-id"] = snapshot
    target.setdefault("snapshot-log", []).append({"snapshot-id": snapshot, "timestamp-ms": at_ms})


@pytest.mark.parametrize("expired", [False, True])
def test_k2_a_batch_that_was_rolled_back_is_applied_again_under_another_id(expired: bool) -> None:
    target, wal = table([]), log(1)
    commit(target, wal, 101)
    wal = log(1, 2)
    second = commit(target, wal, 102)
    move(target, 101, 103)
    if expired:
        del target["snapshots"][1], target["snapshot-log"][:2]
    again = next_batch(target, wal, snapshots_max=10, rows_max=10, reread=False, now_ms=0)
    assert again is not None
    assert (again.start, again.through, again.previous) == (1, 2, 101)
    assert again.id != second
    # A stranger's commit in between does not make it another batch: it would not be recognised when it is sent again.
    target["snapshots"].append({"snapshot-id": 104, "parent-snapshot-id": 101, "timestamp-ms": 104, "summary": {}})
    move(target, 104, 104)
    assert next_batch(target, wal, snapshots_max=10, rows_max=10, reread=False, now_ms=0) == again


def test_batches_are_found_in_the_metadata_in_line_or_not() -> None:
    target = table([])
    commit(target, log(1), 101)
    commit(target, log(1, 2), 102)
    move(target, 101, 103)
    target["snapshots"].append({"snapshot-id": 104, "parent-snapshot-id": 101, "timestamp-ms": 104})
    target["snapshots"][-1]["summary"] = {"source-snapshot-id": "102"}
    move(target, 104, 104)
    assert [(batch.snapshot, batch.previous) for batch in marked(target)] == [(101, FIRST), (102, 101)]
    assert [done.snapshot for done in published(target, LOG)] == [102]
    # It is no progress: that batch alone was picked, not those before it.
    after = next_batch(target, log(1, 2, 3), snapshots_max=10, rows_max=10, reread=False, now_ms=0)
    assert after is not None
    assert (after.start, after.sequence) == (1, 3)
    del target["snapshots"][1]["summary"]["icetower.wal." + COUNTS[0]]
    assert [batch.snapshot for batch in marked(target)] == [101]


def test_the_id_of_an_earlier_version_proves_the_table() -> None:
    """As they stand in the logs of those who upgrade."""
    assert legacy_batch_id(TABLE, LOG, None, 1) == "2a916c44-5db3-5497-a653-e41b13765fe4"
    assert legacy_batch_id(LOG, LOG, None, 1) != legacy_batch_id(TABLE, LOG, None, 1)


# ------------------------------------------------------------------------------------------------ bounds and prunings


def grown(*added: int, pruned: int | None = None) -> dict[str, Any]:
    """A log whose snapshots 1, 2, … added so many rows; 0: the snapshot number `pruned` only removed some."""
    found = log(*range(1, len(added) + 1))
    for number, (snapshot, rows) in enumerate(zip(found["snapshots"], added, strict=True), 1):
        operation = "delete" if number == pruned else "append"
        snapshot["summary"] = {"operation": operation, "added-records": str(rows)}
    return found


@pytest.mark.parametrize(
    ("added", "through"),
    [((0, 4, 4, 4), 3), ((0, 4, 4, 2, 1), 4), ((0, 40, 1), 2), ((0, 0, 40, 1), 3), ((0, 1, 40), 2), ((0, 1), 2)],
)
def test_a_batch_has_at_most_so_many_rows_or_one_commit(added: tuple[int, ...], through: int) -> None:
    target = table([])
    commit(target, log(1), 101)
    batch = next_batch(target, grown(*added), snapshots_max=10, rows_max=10, reread=False, now_ms=0)
    assert batch is not None
    assert (batch.start, batch.through) == (1, through)


def test_a_pruned_log_is_read_on_if_only_applied_rows_went() -> None:
    """The files of snapshots up to 2 are applied; whatever removed newer ones, or rows within files, is an error."""
    target = table([])
    commit(target, log(1), 101)
    commit(target, log(1, 2), 102)
    wal = grown(1, 1, 1, 0, 1, pruned=4)

    def through(removals: dict[int, int], wal: dict[str, Any] = wal) -> int:
        batch = next_batch(target, wal, snapshots_max=10, rows_max=10, reread=False, now_ms=0, removals=removals)
        assert batch is not None
        return batch.through

    assert through({4: 2}) == through({4: 1}) == 5
    for removals in ({4: 3}, {}):
        with pytest.raises(BadRequest, match="not known to be applied") as refused:
            through(removals)
        assert refused.value.rule == "wal.append-only"
    expired = {**wal, "snapshots": wal["snapshots"][2:]}  # the one where the progress ends, too
    assert through({4: 2}, expired) == 5
    with pytest.raises(BadRequest, match="not known to be applied"):
        through({4: 3}, expired)
    assert removing(wal, 2) == removing(expired, 2) == removing(wal, 3) == [4]
    assert removing(wal, 4) == []


def test_compactions_and_prunings_alone_are_passed_over_after_a_while() -> None:
    """At once, each pruning would be followed by a commit to the target; never, and the progress would expire."""
    target = table([])
    commit(target, log(1), 101)
    wal = grown(1, 0, pruned=2)
    wal["snapshots"][-1]["timestamp-ms"] = 10_000

    def batch(now_ms: int) -> Any:
        return next_batch(target, wal, snapshots_max=9, rows_max=9, reread=False, now_ms=now_ms, removals={2: 1})

    assert batch(10_000 + REST_MS - 1) is None
    assert batch(10_000 + REST_MS).through == 2
