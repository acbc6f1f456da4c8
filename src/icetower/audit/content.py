"""Proof from content: which rows delete files are about, and which row ids data files carry.

Manifests say how many rows a delete file deletes, not which; the files do. From format version 3 on a row keeps its id
while files are rewritten: an id that is live in two files is an update that was lost, and one that was deleted and is
live again is a delete that was undone.

Sources: specification, "Row-level Deletes", "Row Lineage", "Reserved Field IDs".
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from icetower.audit.commits import BEFORE, Commit, Line
from icetower.audit.findings import Edge, Rule, Verdict
from icetower.audit.integrity import found
from icetower.audit.items import Item
from icetower.audit.live_files import LiveFiles
from icetower.audit.overlaps import Missed
from icetower.audit.wording import called, name, rows
from icetower.errors import BadRequest, NotFound, ValidationFailed
from icetower.iceberg import avro_files
from icetower.iceberg.records import PATH_FIELD_ID
from icetower.iceberg.vectors import BLOB_MAX_BYTES, POSITION_FIELD_ID, decode
from icetower.protocol.snapshots import Snapshot
from icetower.recent import Recent

ROW_ID_FIELD_ID = 2147483540
"""Column `_row_id` of data files (specification: "Reserved Field IDs")."""

FILE_MAX_BYTES = 128 * 1024 * 1024
KEPT_BYTES = 256 * 1024 * 1024
LOOSE_MAX = 16
"""Bounds of what is opened: larger files are left out, and so are more delete files of one partition than this."""

SHOWN = 5
_ROW_BYTES = 8


class Reader(Protocol):
    """What is asked of a table's storage."""

    async def read(self, path: str) -> bytes:
        """Raises `NotFound`."""
        ...

    async def read_range(self, path: str, offset: int, length_bytes: int) -> bytes:
        """Raises `NotFound`."""
        ...


class Unreadable(Exception):
    """A file that is not there, too large, damaged, encrypted, or of a format that is not read."""


@dataclass
class Contents:
    """Opens the files of one commit after the other.

    Attributes:
        notes: what could not be opened, and why.
        carriers: live data files that carry the ids of older rows, by path: an id a row, in order.
    """

    storage: Reader
    line: Line
    live_files: LiveFiles
    notes: dict[str, None] = field(default_factory=dict[str, None])
    carriers: dict[str, Sequence[int]] = field(default_factory=dict[str, "Sequence[int]"])
    _positions: Recent[Mapping[str, BitMap64]] = field(
        default_factory=lambda: Recent[Mapping[str, BitMap64]](KEPT_BYTES)
    )

    async def look(self, commit: Commit, known: Iterable[Missed]) -> list[Missed]:
        """What the commit's files prove, and what is left of what was known by its manifests alone.

        `self.standing`: after the commit.
        """
        proven: list[Missed] = []
        settled: set[str] = set()
        for target, ours in commit.targets().items():
            if ours[0].is_vector:
                proven += await self._superseded(commit, target, ours[0])
            else:
                doubled = await self._doubled(commit, target, ours)
                settled |= set() if doubled is None else {target}
                proven += doubled or ()
        proven += await self._row_ids(commit)
        reported = {each.violation.snapshots for each in proven}
        left = [
            each
            for each in known
            if not (each.target is not None and each.target in settled) and each.violation.snapshots not in reported
        ]
        return [*proven, *left]

    async def rows(self, item: Item, field_ids: Sequence[int]) -> list[tuple[Any, ...]]:
        """The values of some columns in the rows of a data file that are live. Raises `Unreadable`."""
        if any(kept.sequence_number > item.sequence_number for kept in self._equality()):
            raise _unreadable(item.path, "equality deletes may apply to it")
        if item.file_format.lower() != "parquet":
            raise _unreadable(item.path, f"{item.file_format} is not read")
        data = await self._whole(item)
        gone = await self._all_deleted(self.live_files.deletes_of(item.path), item.path)
        try:
            columns = _columns(data, field_ids)
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise _unreadable(item.path, error) from error
        if columns is None:
            raise _unreadable(item.path, "it lacks a column of the key")
        return [row for at, row in enumerate(zip(*columns, strict=True)) if at not in gone]

    def _equality(self) -> Iterator[Item]:
        return (item for kept in self.live_files.equality.values() for item in kept.values())

    # -- rows that are deleted --------------------------------------------------------------------------------------

    async def _doubled(self, commit: Commit, target: str, ours: Sequence[Item]) -> list[Missed] | None:
        """Rows of a data file that two commits have deleted, one of which wrote them anew elsewhere.

        None where that cannot be determined.
        """
        data = self.live_files.live(target)
        if data is None or self.live_files.vectors.get(target) or commit.is_compaction:
            return []
        loose = list(self.live_files.loose.get(data.place, {}).values())[:LOOSE_MAX]
        others = [i for i in (*self.live_files.named.get(target, {}).values(), *loose) if i.snapshot_id != commit.id]
        try:
            mine = await self._all_deleted(ours, target)
            if await self._taken_over(commit, target, mine, await self._all_deleted(others, target)):
                return []
            for other in sorted(others, key=lambda item: -item.sequence_number):
                both = mine & await self._deleted(other, target)
                if both and not (commit.only_deletes and not self.line.adds_rows(other.snapshot_id)):
                    return [self._twice(commit, target, ours, other, both)]
        except Unreadable as error:
            self.notes[str(error)] = None
            return None
        return []

    async def _all_deleted(self, items: Iterable[Item], target: str) -> BitMap64:
        every = BitMap64()
        for item in items:
            every |= await self._deleted(item, target)
        return every

    async def _taken_over(self, commit: Commit, target: str, mine: BitMap64, theirs: BitMap64) -> bool:
        """Whether what a commit deletes again is just what a version of the table had deleted, in files that are gone.

        Engines put one file in the place of a data file's older ones, and what they delete besides. Where two do so
        with the same older file, the second finds it gone, and both files have its rows.
        """
        gone = self.line.merged.get(target, ())
        again = mine & theirs
        for version in sorted({self.line.at(item.snapshot_id) for item, _ in gone}, reverse=True):
            there = [i for i, until in gone if self.line.at(i.snapshot_id) <= version < until]
            live = self.live_files.named.get(target, {}).values()
            kept = any(i.snapshot_id != commit.id and self.line.at(i.snapshot_id) <= version for i in live)
            if there and not kept and await self._all_deleted(there, target) == again:
                return True
        return False

    def _twice(self, commit: Commit, target: str, ours: Sequence[Item], other: Item, both: BitMap64) -> Missed:
        witness = (
            f"{self._writer(other)} deletes {_shown(both)} of {name(target)}, with {name(other.path)}.",
            f"{called(commit.snapshot)} deletes {_them(both)} again, with {name(ours[0].path)}.",
            "Who deletes a row has read it as live: the second had not seen the first, nor what else the first wrote.",
        )
        known = self.line.at(other.snapshot_id) != BEFORE
        verdict = Verdict.DEFINITE if known else Verdict.POSSIBLE
        return self._proof(Rule.LOST_UPDATE, commit, other, witness, (target, other, *ours), verdict)

    def _writer(self, item: Item) -> str:
        """The commit that added a file, in words."""
        at = self.line.at(item.snapshot_id)
        return called(self.line.commits[at].snapshot) if at >= 0 else f"snapshot {item.snapshot_id}"

    def _proof(
        self,
        rule: Rule,
        commit: Commit,
        other: Item,
        witness: Sequence[str],
        files: Iterable[Item | str],
        verdict: Verdict = Verdict.DEFINITE,
    ) -> Missed:
        """What a commit did over that which another had done, of which `other` is a file."""
        at = self.line.at(other.snapshot_id)
        first = self.line.commits[at] if at >= 0 else None
        snapshots = [first.snapshot, commit.snapshot] if first else [commit.snapshot]
        violation = found(rule, verdict, snapshots, *witness, files=files)
        return Missed(violation, at - 1 if first else None, Edge("ww", commit.id, first.id) if first else None)

    async def _superseded(self, commit: Commit, target: str, new: Item) -> list[Missed]:
        """A deletion vector has the rows of all whose place it takes."""
        gone = [i for i in commit.delta.removed if not i.is_data and i.target == target]
        try:
            now = await self._deleted(new, target)
            for old in gone:
                kept = self._kept_by_revert(commit, target, old)
                if kept is not None and (back := await self._deleted(kept, target) - now):
                    return [self._back(commit, target, old, new, back)]
        except Unreadable as error:
            self.notes[str(error)] = None
        return []

    def _kept_by_revert(self, commit: Commit, target: str, vector: Item) -> Item | None:
        """The vector that was there before those that a commit takes back; of most commits, the one it replaces."""
        taken_back = Snapshot(commit.snapshot).reverts
        kept: Item | None = vector
        while kept is not None and str(kept.snapshot_id) in taken_back:
            at = self.line.at(kept.snapshot_id)
            before = () if at == BEFORE else self.line.commits[at].delta.removed
            kept = next((item for item in before if not item.is_data and item.target == target), None)
        return kept

    def _back(self, commit: Commit, target: str, old: Item, new: Item, back: BitMap64) -> Missed:
        instead = f"{called(commit.snapshot)} puts {name(new.path)} in the place of {name(old.path)}"
        witness = (
            f"{self._writer(old)} deletes {_shown(back)} of {name(target)}.",
            f"{instead}, without {_them(back)}: {rows(len(back))} that were deleted are live again.",
        )
        return self._proof(Rule.UNDELETE, commit, old, witness, (target, old, new))

    async def _deleted(self, item: Item, target: str) -> BitMap64:
        """The positions of a data file that a delete file is about. Raises `Unreadable`."""
        positions = self._positions.get(item.key)
        if positions is None:
            positions = await self._read_positions(item)
            weight = sum(len(path) + _ROW_BYTES * len(rows_) for path, rows_ in positions.items())
            self._positions.put(item.key, positions, weight)
        return positions.get(target, BitMap64())

    async def _read_positions(self, item: Item) -> Mapping[str, BitMap64]:
        if item.is_vector:
            length = item.length_bytes or 0
            if not 0 < length <= BLOB_MAX_BYTES:
                raise _unreadable(item.path, "its manifest says no usable length")
            try:
                blob = await self.storage.read_range(item.path, item.offset or 0, length)
                vector = decode(blob, name=name(item.path), cardinality=item.records)
            except (NotFound, BadRequest) as error:
                raise _unreadable(item.path, error) from error
            return {str(item.target): BitMap64(vector.bitmap)}
        data = await self._whole(item)
        try:
            pairs = _avro_positions(data) if item.file_format.lower() == "avro" else _parquet_positions(data)
            found_: dict[str, BitMap64] = {}
            for path, position in pairs:
                found_.setdefault(path, BitMap64()).add(position)
        except (pa.ArrowException, ValidationFailed, ValueError, KeyError, TypeError, OverflowError) as error:
            raise _unreadable(item.path, error) from error
        return found_

    async def _whole(self, item: Item) -> bytes:
        if item.file_format.lower() not in ("parquet", "avro") or item.size_bytes > FILE_MAX_BYTES:
            raise _unreadable(item.path, f"{item.file_format} of {item.size_bytes} bytes is not read")
        try:
            return await self.storage.read(item.path)
        except (NotFound, BadRequest) as error:
            raise _unreadable(item.path, error) from error

    # -- row ids ----------------------------------------------------------------------------------------------------

    async def _row_ids(self, commit: Commit) -> list[Missed]:
        """The ids that a commit carries over are of rows that it takes away itself, and that were live."""
        first = commit.snapshot.get("first-row-id")
        proven: list[Missed] = []
        try:
            if first is not None and commit.operation != "append":
                taken = await self._taken(commit)
                for item in commit.delta.data_added():
                    proven += await self._carried(commit, item, first, taken)
        except Unreadable as error:
            self.notes[str(error)] = None
        for item in commit.delta.data_removed():
            self.carriers.pop(item.path, None)
        return proven

    async def _carried(self, commit: Commit, item: Item, first: int, taken: _Taken) -> list[Missed]:
        ids = await self._ids(item)
        carried = BitMap64(row_id for row_id in ids if row_id < first)
        if carried:
            self.carriers[item.path] = ids
        strange = carried - taken.live
        return await self._strange(commit, item, strange, taken) if strange else []

    async def _taken(self, commit: Commit) -> _Taken:
        """The rows that a commit takes away: those of the files that it removes, and those that it newly deletes."""
        live, dead = BitMap64(), BitMap64()
        removed_deletes = {i.target: i for i in commit.delta.removed if not i.is_data and i.target is not None}
        for item in commit.delta.data_removed():
            ids = await self._ids(item)
            old = removed_deletes.get(item.path)
            gone = await self._deleted(old, item.path) if old is not None else BitMap64()
            for at, row_id in enumerate(ids):
                (dead if at in gone else live).add(row_id)
        for target, ours in commit.targets().items():
            data = self.live_files.live(target)
            if data is None:
                continue
            ids = await self._ids(data)
            old = removed_deletes.get(target)
            before = await self._deleted(old, target) if old is not None else BitMap64()
            live |= BitMap64(ids[at] for at in await self._deleted(ours[0], target) - before if at < len(ids))
        return _Taken(live, dead)

    async def _strange(self, commit: Commit, item: Item, strange: BitMap64, taken: _Taken) -> list[Missed]:
        back, wrote = strange & taken.dead, f"into {name(item.path)}"
        if back:
            again = f"It wrote {_them(back)} {wrote}: {rows(len(back))} that were deleted are live again."
            witness = (f"{called(commit.snapshot)} took files away in which {_ids(back)} had been deleted.", again)
            return [_undeleted(commit, item, witness)]
        adds = f"{called(commit.snapshot)} adds {name(item.path)}"
        async for holder, ids in self._holders(strange):
            both = strange & ids
            if not both or holder.path == item.path:
                continue
            witness = (
                f"{name(holder.path)}, by {self._writer(holder)}, has {_ids(both)}.",
                f"{adds}, which carries the same over from an older file: a version that had been replaced.",
                f"{rows(len(both))} {'is' if len(both) == 1 else 'are'} live twice, with what each commit made of it.",
            )
            return [self._proof(Rule.LOST_UPDATE, commit, holder, witness, (holder, item))]
        gone = "It takes no such rows away, and no live file had them: they were deleted, and are live again."
        return [_undeleted(commit, item, (f"{adds}, which carries {_ids(strange)} over from an older file.", gone))]

    async def _holders(self, strange: BitMap64) -> AsyncIterator[tuple[Item, BitMap64]]:
        """Live data files that may hold some of these ids, each with those of its rows that are live."""
        low, high = strange.min(), strange.max()
        for kept in self.live_files.data.values():
            for item in kept.values():
                first = item.first_row_id
                own = first is not None and first <= high and first + item.records > low
                if item.path not in self.carriers and not own:
                    continue
                ids = await self._ids(item)
                gone = BitMap64()
                for deletes in self.live_files.deletes_of(item.path):
                    gone |= await self._deleted(deletes, item.path)
                yield item, BitMap64(row_id for at, row_id in enumerate(ids) if at not in gone)

    async def _ids(self, item: Item) -> Sequence[int]:
        """The ids of a data file's rows, in order. Raises `Unreadable`."""
        known = self.carriers.get(item.path)
        if known is not None:
            return known
        if item.first_row_id is None:
            raise _unreadable(item.path, "its rows have no ids")
        if item.file_format.lower() != "parquet":
            raise _unreadable(item.path, f"{item.file_format} is not read")
        data = await self._whole(item)
        try:
            written = _row_id_column(data)
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise _unreadable(item.path, error) from error
        if written is None:
            return range(item.first_row_id, item.first_row_id + item.records)
        return [item.first_row_id + at if row_id is None else row_id for at, row_id in enumerate(written)]


@dataclass(frozen=True, slots=True)
class _Taken:
    """Ids of rows that a commit takes away, and of those in files that it takes away that were dead already."""

    live: BitMap64
    dead: BitMap64


def _unreadable(path: str, why: object) -> Unreadable:
    said = why if isinstance(why, str) else type(why).__name__
    return Unreadable(f"The content of {name(path)} is not known ({said}).")


def _column(schema: pa.Schema, field_id: int) -> str | None:
    wanted = str(field_id).encode()
    return next((f.name for f in schema if (f.metadata or {}).get(b"PARQUET:field_id") == wanted), None)


def _parquet_positions(data: bytes) -> Iterator[tuple[str, int]]:
    file = pq.ParquetFile(io.BytesIO(data))
    path = _column(file.schema_arrow, PATH_FIELD_ID) or "file_path"
    position = _column(file.schema_arrow, POSITION_FIELD_ID) or "pos"
    for batch in file.iter_batches(columns=[path, position]):
        yield from zip(batch.column(path).to_pylist(), batch.column(position).to_pylist(), strict=True)


def _avro_positions(data: bytes) -> Iterator[tuple[str, int]]:
    names = {PATH_FIELD_ID: "file_path", POSITION_FIELD_ID: "pos"}
    file = avro_files.read(data, rename=lambda id_, own: names.get(id_, f"_{id_}_{own}"), what="the delete file")
    yield from ((record["file_path"], record["pos"]) for record in file.records)


def _row_id_column(data: bytes) -> list[int | None] | None:
    """The ids that a data file carries; None where it has no such column."""
    file = pq.ParquetFile(io.BytesIO(data))
    column = _column(file.schema_arrow, ROW_ID_FIELD_ID)
    return None if column is None else file.read(columns=[column]).column(column).to_pylist()


def _columns(data: bytes, field_ids: Sequence[int]) -> list[list[Any]] | None:
    """The values of columns, by their ids; None where one is missing."""
    file = pq.ParquetFile(io.BytesIO(data))
    names = [_column(file.schema_arrow, field_id) for field_id in field_ids]
    found_ = [each for each in names if each is not None]
    if len(found_) < len(names):
        return None
    table = file.read(columns=found_)
    return [table.column(each).to_pylist() for each in found_]


def _shown(positions: BitMap64) -> str:
    """``rows 3, 4 and 2 more``."""
    few = ", ".join(str(positions[at]) for at in range(min(SHOWN, len(positions))))
    more = len(positions) - SHOWN
    return f"row{'' if len(positions) == 1 else 's'} {few}{f' and {more} more' if more > 0 else ''}"


def _ids(ids: BitMap64) -> str:
    return _shown(ids).replace("row", "row id", 1)


def _them(positions: BitMap64) -> str:
    return "it" if len(positions) == 1 else "them"


def _undeleted(commit: Commit, item: Item, witness: Sequence[str]) -> Missed:
    return Missed(found(Rule.UNDELETE, Verdict.DEFINITE, (commit.snapshot,), *witness, files=(item,)), None)
