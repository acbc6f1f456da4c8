"""What every table must keep to, whoever committed to it: one snapshot after the other is recounted from its manifests.

    problems = audit(outcome)

Nothing here knows how the tower rebases, nor what a writer asked for. `outcome` is a driver's (`verify.wire.driver`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

Outcome = Mapping[str, Any]

EXISTING, ADDED, DELETED = 0, 1, 2


class Entry(NamedTuple):
    """A line of a manifest."""

    status: int
    snapshot: int
    sequence: int
    file_sequence: int
    path: str
    first_row_id: int | None
    references: str | None
    deletes: bool
    """Whether the file holds deletes."""
    spec: int
    partition: tuple[Any, ...]
    records: int


def entries(snapshot: Outcome) -> list[Entry]:
    """All entries of a snapshot's manifests, in order."""
    return [
        Entry._make((*entry, bool(manifest["content"]), manifest["spec"], tuple(file[3]), file[1]))
        for manifest in snapshot["manifests"]
        for entry, file in zip(manifest["entries"], manifest["files"], strict=True)
    ]


def chain(outcome: Outcome, head: int | None) -> list[Outcome]:
    """The ancestors of a head that are retained, oldest first, the head included."""
    by_id = {snapshot["id"]: snapshot for snapshot in outcome["snapshots"]}
    found: list[Outcome] = []
    while head in by_id:
        found.append(by_id[head])
        head = by_id[head]["parent"]
    return found[::-1]


def audit(outcome: Outcome) -> list[str]:
    """What is wrong with a table, a line each: contents, sequence numbers, totals, row ids, incremental reads."""
    problems: list[str] = []
    for name, head in outcome["branches"].items():
        before: Outcome | None = None
        for snapshot in chain(outcome, head):
            problems += (f"{name}, snapshot {snapshot['id']}: {each}" for each in _snapshot(snapshot, before, outcome))
            before = snapshot
    highest = max((snapshot["sequence_number"] for snapshot in outcome["snapshots"]), default=0)
    if outcome["last_sequence_number"] < highest:
        problems.append(f"last-sequence-number {outcome['last_sequence_number']} is below a snapshot's {highest}")
    return list(dict.fromkeys(problems))


def _snapshot(snapshot: Outcome, before: Outcome | None, outcome: Outcome) -> Iterator[str]:
    found = entries(snapshot)
    yield from _changes(snapshot, found, before)
    yield from _totals(snapshot, found)
    yield from _incremental(snapshot, found)
    if snapshot["first_row_id"] is not None:
        yield from _row_ids(snapshot, found, before, outcome["next_row_id"])


def _changes(snapshot: Outcome, found: list[Entry], before: Outcome | None) -> Iterator[str]:
    """Live before, less what is DELETED, plus what is ADDED, is live now; and under the numbers that it had."""
    own = [entry for entry in found if entry.snapshot == snapshot["id"]]
    added = Counter(entry.path for entry in own if entry.status == ADDED)
    gone = Counter(entry.path for entry in own if entry.status == DELETED)
    now = _live(found)
    was = _live(entries(before)) if before is not None else {}
    if before is not None or snapshot["parent"] is None:
        expected = Counter({path: len(versions) for path, versions in was.items()})
        for path in gone:
            if path not in was:
                yield f"it removes {path}, which was not live"
        expected.subtract(gone)
        expected.update(added)
        actual = Counter({path: len(versions) for path, versions in now.items()})
        lost, more = expected - actual, actual - expected
        if lost or more:
            yield f"lost without being removed: {sorted(lost)}; live without being added: {sorted(more)}"
    for entry in found:
        if entry.status == EXISTING and entry.path in was and _version(entry) not in was[entry.path]:
            yield f"{entry.path} is carried on as {_version(entry)}, but was {sorted(was[entry.path])}"
        if entry.status != ADDED:
            continue
        if entry.snapshot == snapshot["id"]:
            if not entry.sequence <= snapshot["sequence_number"] == entry.file_sequence:
                yield f"{entry.path} is added under {entry.sequence}, {entry.file_sequence}, not the snapshot's number"
        elif before is not None and _version(entry) not in was.get(entry.path, ()):
            yield f"{entry.path} was added by {entry.snapshot} as {_version(entry)}, and was not there before"
    if before is not None:
        if _numbered(snapshot, before) and snapshot["sequence_number"] <= before["sequence_number"]:
            yield f"its sequence number {snapshot['sequence_number']} does not follow {before['sequence_number']}"
        if snapshot["timestamp_ms"] < before["timestamp_ms"]:
            yield "it is older than its parent"


def _numbered(snapshot: Outcome, before: Outcome) -> bool:
    """Whether sequence numbers count: in format 1 all are 0."""
    return bool(snapshot["sequence_number"] or before["sequence_number"])


def _live(found: list[Entry]) -> dict[str, list[tuple[int, int, int]]]:
    live: dict[str, list[tuple[int, int, int]]] = {}
    for entry in found:
        if entry.status != DELETED:
            live.setdefault(entry.path, []).append(_version(entry))
    return live


def _version(entry: Entry) -> tuple[int, int, int]:
    return entry.snapshot, entry.sequence, entry.file_sequence


def _totals(snapshot: Outcome, found: list[Entry]) -> Iterator[str]:
    """Where a total is told, it is what the manifests add up to."""
    live = [entry for entry in found if entry.status != DELETED]
    data = [entry for entry in live if not entry.deletes]
    counted = {
        "total-data-files": len(data),
        "total-delete-files": len(live) - len(data),
        "total-records": sum(entry.records for entry in data),
    }
    for key, value in counted.items():
        reported = snapshot["summary"].get(key)
        if reported is not None and int(reported) != value:
            yield f"{key} is told as {reported}, and is {value}"


def _incremental(snapshot: Outcome, found: list[Entry]) -> Iterator[str]:
    """What an incremental scan of this snapshot alone finds is what it added: no more, and nothing missing."""
    added = [entry for entry in found if entry.status == ADDED and entry.snapshot == snapshot["id"]]
    data = sorted(entry.path for entry in added if not entry.deletes)
    if "appended" in snapshot and sorted(file[0] for file in snapshot["appended"]) != data:
        yield f"an incremental scan finds {sorted(file[0] for file in snapshot['appended'])}, and it added {data}"
    reported = int(snapshot["summary"].get("added-data-files", 0))
    if reported != len(data):
        yield f"added-data-files is told as {reported}, and is {len(data)}"
    own = {
        manifest["added_snapshot_id"]
        for manifest in snapshot["manifests"]
        for entry in manifest["entries"]
        if entry[0] == ADDED and entry[1] == snapshot["id"]
    }
    if own - {snapshot["id"]}:
        yield f"what it added stands in manifests of {sorted(own - {snapshot['id']})}: readers of changes miss it"


def _row_ids(snapshot: Outcome, found: list[Entry], before: Outcome | None, next_row_id: int) -> Iterator[str]:
    """Every row of every live data file has an id of its own, below the next; a file keeps its first one."""
    ranges: dict[tuple[int, int], str] = {}
    for entry in found:
        if entry.status == DELETED or entry.deletes:
            continue
        if entry.first_row_id is None:
            yield f"{entry.path} has no first row id"
        elif entry.records:
            ranges[entry.first_row_id, entry.first_row_id + entry.records] = entry.path
            if entry.first_row_id + entry.records > next_row_id:
                yield f"{entry.path} has row ids beyond the table's next, {next_row_id}"
    placed = sorted(ranges)
    for (first, end), (start, _) in pairwise(placed):
        if start < end:
            yield f"{ranges[first, end]} and {ranges[start, _]} share row ids from {start}"
    if before is not None and before["first_row_id"] is not None:
        had = {(e.path, *_version(e)): e.first_row_id for e in entries(before) if e.first_row_id is not None}
        for entry in found:
            old = had.get((entry.path, *_version(entry)))
            if entry.status != DELETED and old is not None and old != entry.first_row_id:
                yield f"{entry.path} had the first row id {old}, and has {entry.first_row_id}"
        if snapshot["first_row_id"] < before["first_row_id"] + (before["added_rows"] or 0):
            yield f"its first-row-id {snapshot['first_row_id']} overlaps with its parent's rows"
