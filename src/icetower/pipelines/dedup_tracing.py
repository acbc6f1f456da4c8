"""Which rows landed in a part of a table's history, and where the live rows under some keys landed.

In format version 3 a row's id shows where it landed, whatever has rewritten it since. In version 2 the commit that
wrote its file does, if it appended. If it removed rows under the same key, it has rewritten them, and their origin
counts; if these have several origins, that of each is not known any more (`dedup_rules`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from icetower.iceberg.metadata import current_snapshot_id
from icetower.pipelines.dedup_files import LISTED_MAX, Files, LiveFile
from icetower.pipelines.dedup_rules import UNKNOWN, Copy, Landing, Origin, Part, floor_of, gave_out, line_of
from icetower.pipelines.tables import read_bytes
from icetower.pipelines.wal_plan import Metadata
from icetower.pipelines.wal_reading import FILE
from icetower.pipelines.wal_rows import KEY_COLUMN
from icetower.table.groups import Group, read_group

LANDED_IN, LANDED_ROWS, SHARED = "__snapshot", "__rows", "__shared"
"""`SHARED`: the file has rows of several appends, so that several rows under a key may be of different ones."""
_FILES = (
    f"{FILE} STRING, __origin BIGINT, __member INT, __snapshot BIGINT, __at BIGINT, __agent STRING, "
    f"__logs_itself BOOLEAN, __first_row BIGINT, {SHARED} BOOLEAN"
)
_LINEAGE = ("_row_id", "_last_updated_sequence_number")


@dataclass(frozen=True, slots=True)
class _Row:
    """A live row. `row_id`, `updated`: its id, and the number of the commit that changed it last; None in version 2."""

    file: str
    position: int
    row_id: int | None
    updated: int | None


@dataclass(frozen=True, slots=True)
class Members:
    """The appends that one snapshot stands for, by their numbers from 1 on. Pure.

    An append by the fast path brought whole files. Rows at the door share files with others' rows, and the rows of one
    request may be in several: whose a row is tells its position.

    Attributes:
        whole: data file → the number of its append.
        spans: data file → of each run of rows the position of the first, how many, and the number of their append.
        agents: data file → whose it is; None where its rows are of several.
        numbers: of all appends.
    """

    whole: Mapping[str, int]
    spans: Mapping[str, Sequence[tuple[int, int, int]]]
    agents: Mapping[str, str | None]
    numbers: frozenset[int]

    @classmethod
    def of(cls, group: Group) -> Members:
        whole: dict[str, int] = {}
        spans: dict[str, list[tuple[int, int, int]]] = {}
        agents: dict[str, str | None] = {}
        for number, append in enumerate(group.appends, 1):
            whole |= dict.fromkeys(append.files, number)
            for path, runs in append.rows.items():
                spans.setdefault(path, []).extend((start, count, number) for start, count in runs)
            for path in append.paths:
                agents[path] = append.principal if agents.get(path, append.principal) == append.principal else None
        return cls(whole, spans, agents, frozenset(range(1, len(group.appends) + 1)))

    def first(self, path: str) -> int | None:
        """The first of the appends that have rows in a file; None: it is none of theirs."""
        return self.whole.get(path) or min((number for _, _, number in self.spans.get(path, ())), default=None)

    def shared(self, path: str) -> bool:
        """Whether several appends have rows in a file."""
        return len({number for _, _, number in self.spans.get(path, ())}) > 1

    def at(self, path: str, position: int) -> frozenset[int]:
        """The append that brought a row; all that it may be of, where the file was written since, by one of them."""
        if path in self.whole:
            return frozenset({self.whole[path]})
        runs = self.spans.get(path, ())
        return frozenset(n for start, count, n in runs if start <= position < start + count) or self.numbers


@dataclass(frozen=True, slots=True)
class _View:
    """The live rows at one snapshot, by key, and the files that have them."""

    files: Mapping[str, LiveFile]
    rows: Mapping[str, Sequence[_Row]]


class Tracing:
    """The origins of rows in one version of a table.

    Args:
        table: the metadata of the version that `files` is.
        since_ms: rows that landed earlier are not looked for.
    """

    def __init__(self, files: Files, table: Metadata, since_ms: int) -> None:
        self.files = files
        self.head = current_snapshot_id(table) or 0
        self.line = line_of(table, self.head)
        self.by_sequence = {each.sequence: each for each in self.line}
        self.floor = floor_of(self.line, since_ms)
        self.lineage = table["format-version"] >= 3
        self._keys: tuple[str, ...] = ()
        self._views: dict[tuple[int, frozenset[str] | None], _View] = {}
        self._members: dict[int, Members | None] = {}
        self._added: dict[int, frozenset[str]] = {}

    def sequence_of(self, snapshot: int) -> int:
        return next((each.sequence for each in self.line if each.snapshot == snapshot), 0)

    # -- what landed

    def landed(self, part: Part) -> DataFrame:
        """The keys that landed, each with its commit and how many rows; a row without one has the key null.

        Rows of an UPDATE or a MERGE are among them, where a row does not show that it was there before.
        """
        places: list[tuple[Any, ...]] = []
        files: list[LiveFile] = []
        for each in part.landings:
            added = self.files.added_by(each.snapshot)
            files += added
            members = self._members_of(each)
            for file in added:
                member, agent, shared = 0, each.agent, False
                if members is not None and (first := members.first(file.path)) is not None:
                    member, agent, shared = first, members.agents[file.path], members.shared(file.path)
                given = each.first_row if self.lineage else None
                places.append(
                    (file.path, each.sequence, member, each.snapshot, each.at_ms, agent, each.mediated, given, shared)
                )
        if part.lost_after is not None:
            seen = {place[0] for place in places}
            for file in self.files.live(self.head, above=part.lost_after):
                if file.path not in seen:
                    files.append(file)
                    # Which commit brought its rows is not known, so their keys are not logged.
                    places.append((file.path, file.sequence, 0, -1, 0, None, True, None, False))
        spark = self.files.spark
        where = f.broadcast(spark.createDataFrame(places, _FILES))
        columns = [KEY_COLUMN, *(_LINEAGE[:1] if self.lineage else ())]
        rows = self.files.rows(files, columns).join(where, FILE)
        if self.lineage:
            rows = rows.where("__first_row IS NULL OR _row_id IS NULL OR _row_id >= __first_row")
        key = f.when(f.trim(KEY_COLUMN) != "", f.col(KEY_COLUMN)).alias(KEY_COLUMN)
        names = ("__origin", "__member", LANDED_IN, "__at", "__agent", "__logs_itself", SHARED)
        return rows.groupBy(key, *names).agg(f.count(f.lit(1)).alias(LANDED_ROWS))

    def _members_of(self, landing: Landing) -> Members | None:
        """The appends that a snapshot stands for; None: it stands for itself."""
        if landing.group_file is None:
            return None
        if landing.snapshot not in self._members:
            group = read_group(read_bytes(self.files.table, landing.group_file))
            self._members[landing.snapshot] = Members.of(group) if group.appends else None
        return self._members[landing.snapshot]

    # -- where live rows landed

    @property
    def files_at_head(self) -> Sequence[LiveFile]:
        return [*self._view(self.head, None).files.values()]

    def copies(self, keys: Sequence[str]) -> dict[str, list[Copy]]:
        """The live rows under each key, with their origins."""
        self._keys = tuple(keys)
        self._views.clear()
        view = self._view(self.head, None)
        return {key: [self._copy(key, row, view) for row in rows] for key, rows in view.rows.items()}

    def _copy(self, key: str, row: _Row, view: _View) -> Copy:
        file = view.files[row.file]
        wrote = self.by_sequence.get(file.sequence)
        if row.row_id is not None:
            given = gave_out(self.line, row.row_id)
            if given is None:
                return Copy(row.file, row.position, UNKNOWN, min(file.sequence, row.updated or file.sequence))
            if row.updated is not None and row.updated > given.sequence and not self._landed_as(key, row.row_id, given):
                return Copy(row.file, row.position, UNKNOWN, row.updated)  # an UPDATE gave it this key
            # A row of a table that was of version 2 got its id later than it landed.
            if row.updated is None or row.updated >= given.sequence:
                wrote = given
        if wrote is None:
            return Copy(row.file, row.position, UNKNOWN, file.sequence)
        origins, by = self._origins(key, row, wrote)
        return Copy(row.file, row.position, origins, by)

    def _landed_as(self, key: str, row_id: int, given: Landing) -> bool:
        """Whether a row had its key already in the commit that gave it its id."""
        added = self._added.get(given.snapshot)
        if added is None:
            added = frozenset(file.path for file in self.files.added_by(given.snapshot))
            self._added[given.snapshot] = added
        return any(row.row_id == row_id for row in self._view(given.snapshot, added).rows.get(key, ()))

    def _origins(self, key: str, row: _Row, wrote: Landing) -> tuple[frozenset[Origin], int]:
        if wrote.operation == "append":
            members = self._members_of(wrote)
            if members is None:
                return frozenset({(wrote.sequence, 0)}), wrote.sequence
            numbers = members.at(row.file, row.position)
            return frozenset((wrote.sequence, number) for number in numbers), wrote.sequence
        carried = self._carried(key, wrote)
        if carried is None:
            return UNKNOWN, wrote.sequence
        if not carried:
            if row.row_id is None and self._touched.get(wrote.snapshot, frozenset()) != frozenset():
                return UNKNOWN, wrote.sequence  # a row without an id may be an older one that an UPDATE gave this key
            return frozenset({(wrote.sequence, 0)}), wrote.sequence
        by = max(copy.by for copy in carried)
        if any(copy.origins == UNKNOWN for copy in carried):
            return UNKNOWN, by
        return frozenset[Origin]().union(*(copy.origins for copy in carried)), by

    def _carried(self, key: str, wrote: Landing) -> list[Copy] | None:
        """The rows under a key that a commit removed, so that those that it wrote are them; None if it is not known."""
        if wrote.parent is None:
            return []
        if wrote.parent not in self._known:
            return None
        touched = self.files.touched_by(wrote.snapshot) if wrote.snapshot not in self._touched else None
        touched = self._touched.setdefault(wrote.snapshot, touched)
        before, after = self._view(wrote.parent, touched), self._view(wrote.snapshot, touched)
        left = {(row.file, row.position) for row in after.rows.get(key, ())}
        gone = [row for row in before.rows.get(key, ()) if (row.file, row.position) not in left]
        return [self._copy(key, row, before) for row in gone]

    @cached_property
    def _known(self) -> frozenset[int]:
        return frozenset(each.snapshot for each in self.line)

    @cached_property
    def _touched(self) -> dict[int, frozenset[str] | None]:
        return {}

    def _view(self, snapshot: int, among: frozenset[str] | None) -> _View:
        """The live rows under the keys at a snapshot: at the head, of the window; else of some files, or of all."""
        found = self._views.get((snapshot, among))
        if found is None:
            above = self.floor if snapshot == self.head and among is None else -1
            files = self.files.live(snapshot, above=above, among=among, keys=self._keys)
            found = _View({file.path: file for file in files}, self._rows(snapshot, files))
            self._views[snapshot, among] = found
        return found

    def _rows(self, snapshot: int, files: Sequence[LiveFile]) -> dict[str, list[_Row]]:
        found: dict[str, list[_Row]] = {}
        columns = [KEY_COLUMN, "_file", "_pos", *(_LINEAGE if self.lineage else ())]
        rows = self.files.rows_at(snapshot, columns) if files else None
        if rows is None:
            return found
        if len(self._keys) <= LISTED_MAX:
            rows = rows.where(f.col(KEY_COLUMN).isin(*self._keys))
        else:
            keys = self.files.spark.createDataFrame([(key,) for key in self._keys], f"{KEY_COLUMN} STRING")
            rows = rows.join(f.broadcast(keys), KEY_COLUMN)
        paths = {file.path for file in files}
        for row in rows.collect():
            if row[1] in paths:
                lineage = row[3:] if self.lineage else (None, None)
                found.setdefault(row[0], []).append(_Row(row[1], row[2], *lineage))
        return found
