"""The table after the exactness run, held row by row against the answers that agents got."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from pyiceberg.table import StaticTable, Table

from bench.commits.verify import plain
from icetower.protocol.marks import GROUP_FILE
from icetower.table.groups import GroupedAppend, read_group
from verify.torture.row_batches import BATCHES_MAX, PARTS, ROWS_MAX, Batch, id_of_key

pc: Any = pyarrow.compute
SHOWN_MAX = 5
FILES_MAX = 200
"""Files of which it is looked whether each row belongs to the request that the group file names."""


@dataclass(slots=True)
class Answered:
    """All requests by their answers: the id of each, with how many rows it has.

    Attributes:
        acknowledged: to be there once.
        open: to be there once or not at all, but whole: without an answer.
        refused: not to be there.
    """

    acknowledged: dict[int, int] = field(default_factory=dict[int, int])
    open: dict[int, int] = field(default_factory=dict[int, int])
    refused: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def acknowledged_rows(self) -> int:
        return sum(self.acknowledged.values())


def judge_ids(ids: Any, answered: Answered) -> list[str]:
    """The faults of the rows that are in the table. `ids`: of all of them, with repetitions (numpy, int64)."""
    found, times = np.unique(ids, return_counts=True)
    faults: list[str] = []
    twice = found[times > 1]
    if len(twice):
        faults.append(f"{len(twice)} rows are there more than once: {_shown(twice)}")
    batches, rows = np.unique(found // ROWS_MAX, return_counts=True)
    there = dict(zip(batches.tolist(), rows.tolist(), strict=True))
    highest = {}
    if len(found):  # of each request the last id: sorted, it stands before the next request's first
        ends = np.append(np.flatnonzero(np.diff(found // ROWS_MAX)), len(found) - 1)
        highest = dict(zip((found[ends] // ROWS_MAX).tolist(), (found[ends] % ROWS_MAX).tolist(), strict=True))
    faults += _wrong("acknowledged requests are not there", [i for i in answered.acknowledged if i not in there])
    known = answered.acknowledged | answered.open
    halves = [i for i, count in known.items() if i in there and (there[i] != count or highest[i] != count - 1)]
    faults += _wrong("requests are there in part", halves)
    faults += _wrong("refused requests are there", [i for i in answered.refused if i in there])
    faults += _wrong("requests that were never sent are there", [i for i in there if i not in known | answered.refused])
    return faults


def _wrong(what: str, batches: Sequence[int]) -> list[str]:
    return [f"{len(batches)} {what}: {_shown(batches)}"] if batches else []


def _shown(ids: Any) -> str:
    return ", ".join(str(int(each)) for each in sorted(ids)[:SHOWN_MAX])


def ids_of(table: Table | StaticTable) -> tuple[Any, list[str]]:
    """The ids of all rows of the table's head, and the faults of their other values."""
    found: list[Any] = []
    faults: list[str] = []
    fields = ("id", "agent", "part", "price", "note")
    for rows in table.scan(selected_fields=fields).to_arrow_batch_reader():
        if rows.num_rows:
            found.append(rows["id"].to_numpy(zero_copy_only=False))
            faults += _contents(rows)
    return (np.concatenate(found) if found else np.array([], np.int64)), faults[:SHOWN_MAX]


def _contents(rows: pa.RecordBatch) -> list[str]:
    """Every value of a row follows from its id."""
    ids = rows["id"].to_numpy(zero_copy_only=False)
    cents = pc.multiply(rows["price"].cast(pa.decimal128(20, 2)), pa.scalar(100, pa.decimal128(3, 0)))
    wanted: Mapping[str, Any] = {
        "agent": ids // ROWS_MAX // BATCHES_MAX,
        "part": ids % PARTS,
        "price": ids % 100_000,
    }
    found = {
        "agent": rows["agent"].cast(pa.int64()),
        "part": rows["part"].cast(pa.int64()),
        "price": cents.cast(pa.int64()),
    }
    wrong = [name for name, column in found.items() if not np.array_equal(wanted[name], column.to_numpy())]
    notes = pc.binary_join_element_wise("row ", rows["id"].cast(pa.string()), "")
    wrong += [] if notes.cast(rows["note"].type).equals(rows["note"]) else ["note"]
    return [f"rows have wrong values in {name}, among {_shown(ids)}" for name in wrong]


# ── The owners of rows ────────────────────────────────────────────────────────────────────────────────────────────────


def judge_groups(metadata: Mapping[str, Any], acknowledged: Iterable[Batch]) -> tuple[Counter[str], list[str]]:
    """Whether the group files tell of each acknowledged request once, and of its rows; counts, and faults."""
    by_key = {batch.key: batch for batch in acknowledged}
    seen: Counter[str] = Counter()
    faults: list[str] = []
    files = 0
    for snapshot in metadata["snapshots"]:
        path = (snapshot.get("summary") or {}).get(GROUP_FILE)
        if path is None:
            continue
        group = read_group(Path(plain(path)).read_bytes())
        for append in group.appends:
            seen[append.key or ""] += 1
            batch = by_key.get(append.key or "")
            if batch is not None:
                named = sum(count for spans in append.rows.values() for _, count in spans)
                if named != batch.rows:
                    faults.append(f"the group file names {named} rows of {append.key}, which has {batch.rows}")
        for place in {path for append in group.appends for path in append.rows} if files < FILES_MAX else ():
            files += 1
            faults += _owners(place, group.appends)
    twice = [key for key, times in seen.items() if times > 1 and key]
    faults += [f"{len(twice)} requests are in more than one group: {', '.join(twice[:SHOWN_MAX])}"] if twice else []
    counts = Counter({"requests in group files": len(seen), "files whose rows were looked at": files})
    if not _expired(metadata):
        lacking = [key for key in by_key if key not in seen]
        if lacking:
            faults.append(f"{len(lacking)} acknowledged requests are in no group: {', '.join(lacking[:SHOWN_MAX])}")
    return counts, faults[: 4 * SHOWN_MAX]


def _expired(metadata: Mapping[str, Any]) -> bool:
    return all(snapshot.get("parent-snapshot-id") is not None for snapshot in metadata["snapshots"])


def _owners(path: str, appends: Sequence[GroupedAppend]) -> list[str]:
    """The rows at the positions that are named as a request's have the ids of that request."""
    ids = pq.read_table(plain(path), columns=["id"])["id"].to_numpy()
    named = np.zeros(len(ids), bool)
    for append in appends:
        own = id_of_key(append.key)
        for start, count in append.rows.get(path, ()):
            here = ids[start : start + count]
            if named[start : start + count].any() or len(here) != count or (here // ROWS_MAX != own).any():
                return [f"rows {start} to {start + count} of {path} are not {append.key}'s"]
            named[start : start + count] = True
    return [] if named.all() else [f"{path} has rows that no request owns"]
