"""`audit`: a branch of a table, walked in the order of its commits.

Of each snapshot the manifest list is read, and of its manifests those that its parent's list has not: its own. What
was there before the first snapshot that is checked is opened only where somebody asks for it, so that an audit costs
what changed. Lists and manifests of many snapshots are read side by side; what they mean is worked out one after the
other, by rules that do no I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from icetower.audit import overlaps
from icetower.audit.bypass import bypass
from icetower.audit.commits import BEFORE, Commit, Line, Reads, attempts_of, reads_of
from icetower.audit.content import Contents
from icetower.audit.cycles import Cycles
from icetower.audit.findings import Checked, Edge, Report, Rule, Verdict, Violation
from icetower.audit.integrity import (
    Opened,
    check_altered,
    check_chain,
    check_dropped,
    check_entries,
    check_gap,
    check_rows,
    check_vectors,
    found,
    is_compaction,
)
from icetower.audit.items import Item, key_of
from icetower.audit.keys import Keys, key_columns
from icetower.audit.leases import Leases
from icetower.audit.list_reading import ListReader, ListStep
from icetower.audit.live_files import Delta, LiveFiles
from icetower.audit.manifest_reading import Cursor, ManifestReader
from icetower.audit.overlaps import Case, Missed
from icetower.audit.roots import UNNAMED, rooted
from icetower.audit.shapes import check_shape, readable
from icetower.audit.wording import called, name
from icetower.counting import counted
from icetower.errors import BadRequest, ValidationFailed
from icetower.iceberg.entries import NeedsFile
from icetower.iceberg.expressions import columns_of
from icetower.iceberg.manifests import DataFile, ManifestFile, read_manifest
from icetower.iceberg.metadata import MAIN, ancestors
from icetower.iceberg.partitions import PartitionSpec, spec_of
from icetower.iceberg.validation import Level
from icetower.protocol.snapshots import Snapshot
from icetower.table.head import HeadState
from icetower.table.origins import through_a_tower

JSON = Mapping[str, Any]
T = TypeVar("T")

AT_ONCE = 64
"""Snapshots that are read side by side."""
DETAILS_MAX = 64
"""Manifests whose statistics are at hand."""

_NOTHING_READ = Reads()


class Source(Protocol):
    """Where the files of a table are read."""

    async def read(self, path: str) -> bytes:
        """All bytes of a file. Raises `NotFound`."""
        ...

    async def read_many(self, paths: Sequence[str]) -> list[bytes | None]:
        """All bytes of each file; None for one that isn't there."""
        ...

    async def read_range(self, path: str, offset: int, length_bytes: int) -> bytes:
        """A part of a file. Raises `NotFound`."""
        ...

    async def exists(self, path: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked for.

    Attributes:
        level: what the history is held against.
        after: the id of a snapshot up to which an earlier audit has looked.
        whole: whether all that was there before the first snapshot is opened.
        tower: whether every commit must have come through a tower; None: those after the first that has.
        content: whether delete files and data files are opened, too, where manifests leave something open.
        key: columns by which rows are meant to be unique; none: the table's identifier fields.
    """

    branch: str = MAIN
    level: Level = Level.SERIALIZABLE
    after: int | None = None
    content: bool = False
    tower: bool | None = None
    whole: bool = False
    key: tuple[str, ...] = ()


async def audit(head: HeadState, source: Source, options: Options | None = None) -> Report:
    """What a branch's history shows.

    Raises:
        BadRequest: there is no such branch, or `after` is not on it.
        ValidationFailed: the metadata is none.
        UpstreamFailed: the storage failed.
    """
    return await Walk(head, source, options or Options()).run()


@dataclass(frozen=True, slots=True)
class _Listed:
    """A snapshot with its manifest list against the one before it.

    Attributes:
        step: None where the list cannot be read; `why` then says why.
        begins: all rows of the list, where the table is taken as it stands with this snapshot.
    """

    snapshot: JSON
    step: ListStep | None
    begins: tuple[ManifestFile, ...] | None
    why: str

    @property
    def entered(self) -> tuple[ManifestFile, ...]:
        """The manifests that the snapshot brought, and that are opened for that."""
        return () if self.step is None or self.begins is not None else self.step.entered


class Walk:
    """One audit under way. When it has run, `line` holds its commits, and `live_files` what is live at the head.

    Raises `ValidationFailed` where the metadata is none.
    """

    def __init__(self, head: HeadState, source: Source, options: Options) -> None:
        self.head = head
        self.source = source
        self.options = options
        self.line = Line()
        check_shape(head.metadata)
        self.live_files = LiveFiles(readable("partition specs", lambda: _specs(head)))
        columns = readable("schema", lambda: columns_of(head.schema))
        self._columns = {column.id: column for column in columns.values() if not column.nested}
        self.cycles = Cycles(self.line, self.live_files, self.details, columns, options.level)
        self._contents = Contents(source, self.line, self.live_files) if options.content else None
        by = key_columns(options.key, head.schema, columns)
        self._keys = None if self._contents is None else Keys(self._contents, self.line, self.live_files, by)
        self._leases = Leases(head.metadata.get("properties") or {}, self.live_files.specs)
        self._places: Mapping[int, int] = {}
        self._on_branch = 0
        self._towers: JSON | None = None
        self._reader = ListReader()
        self._begun = False
        self._anew = False
        self._manifests = ManifestReader()
        self._details: dict[str, Mapping[str, DataFile]] = {}
        self._judging = True
        self._unbalanced: list[Missed] = []
        self._violations: dict[Any, Violation] = {}
        self._edges: dict[Edge, None] = {}
        self._notes: dict[str, None] = {}
        self._opened = 0
        self._reads: dict[str, int] = {"declared": 0, "blind": 0, "compaction": 0, "unknown": 0}

    # -- the walk ---------------------------------------------------------------------------------------------------

    async def run(self) -> Report:
        """See `audit`."""
        chain, begin = self._chain()
        self._places = {snapshot["snapshot-id"]: at for at, snapshot in enumerate(chain)}
        for start in range(0, len(chain), AT_ONCE):
            window = chain[start : start + AT_ONCE]
            listed = self._listed(window, await self._lists(window))
            chain[start : start + AT_ONCE] = [each.snapshot for each in listed]
            paths = [*dict.fromkeys(row.path for each in listed for row in each.entered)]
            fetched = dict(zip(paths, await self.source.read_many(paths), strict=True))
            for at, each in enumerate(listed, start):
                self._judging = at >= begin
                await self._take(chain, each, fetched)
        return self._report(chain, begin)

    def _chain(self) -> tuple[list[JSON], int]:
        """The snapshots to walk, oldest first, and the position of the first that is to be judged."""
        branch = self.options.branch
        head_id = self.head.ref(branch)
        if head_id is None and branch == MAIN:
            return [], 0
        if head_id is None:
            known = ", ".join(sorted(self.head.metadata.get("refs") or {})) or "none"
            raise BadRequest(f"the table has no branch or tag {branch!r}; it has {known}", rule="audit.branch")
        chain: list[JSON] = []
        chain.extend(ancestors(self.head.metadata, head_id))
        chain.reverse()
        self._on_branch = len(chain)
        if self.options.after is None:
            return chain, 0
        begin = next((at + 1 for at, s in enumerate(chain) if s["snapshot-id"] == self.options.after), None)
        if begin is None:
            raise BadRequest(
                f"snapshot {self.options.after}, up to which an earlier audit has looked, is not on {branch} any more: "
                "it was rolled back or has expired; audit the whole history again, without the checkpoint",
                rule="audit.checkpoint",
            )
        context = _context(chain, begin)
        self._towers = next((snapshot for snapshot in reversed(chain[:context]) if through_a_tower(snapshot)), None)
        return chain[context:], begin - context

    async def _lists(self, window: Sequence[JSON]) -> list[bytes | str]:
        """Their manifest lists, or why there is none."""
        paths = [path for snapshot in window if (path := snapshot.get("manifest-list")) is not None]
        read = dict(zip(paths, await self.source.read_many(paths), strict=True))
        return [_list(path, read) for path in (snapshot.get("manifest-list") for snapshot in window)]

    def _listed(self, window: Sequence[JSON], lists: Sequence[bytes | str]) -> list[_Listed]:
        """The lists, each against the one before it."""
        found_: list[_Listed] = []
        for snapshot, data in zip(window, lists, strict=True):
            if isinstance(data, str):
                found_.append(_Listed(snapshot, None, None, data))
                self._anew = True
                continue
            try:
                step = self._reader.step(data)
            except ValidationFailed as error:
                found_.append(_Listed(snapshot, None, None, f"Its manifest list cannot be read: {error.message}."))
                self._anew = True
                continue
            if not self._begun and not self._anew:
                snapshot = rooted(snapshot, step, self.head.snapshots)
            # The first of a line whose parent is gone is taken as it stands, and so is what follows a list that is.
            begins = self._anew or (not self._begun and Snapshot(snapshot).parent_id is not None)
            found_.append(_Listed(snapshot, step, tuple(self._reader.rows) if begins else None, ""))
            self._anew, self._begun = False, True
        return found_

    def _open(self, row: ManifestFile, data: bytes | None, older: Sequence[Cursor] = ()) -> Opened:
        """A manifest, read; one that cannot be says why."""
        if data is None:
            return Opened(row, None, "There is no such file.")
        try:
            read = self._manifests.read(data, row, older)
        except ValidationFailed as error:
            return Opened(row, None, f"It cannot be read: {error.message}.")
        self._opened += 1
        return Opened(row, read)

    async def _take(self, chain: Sequence[JSON], listed: _Listed, fetched: Mapping[str, bytes | None]) -> None:
        """The next snapshot of the line."""
        snapshot, position = listed.snapshot, len(self.line.commits)
        parent = chain[position - 1] if position else None
        self._find(check_chain(snapshot, parent, listed.step))
        delta = Delta((), (), (), (), blind=True)
        if listed.step is None:
            said = f"What {called(snapshot)} did cannot be determined. {listed.why}"
            self._find([found(Rule.MISSING_MANIFEST, Verdict.DEFINITE, (snapshot,), said)])
        elif listed.begins is not None:
            await self._begin(snapshot, listed.begins)
        else:
            delta = await self._step(snapshot, listed.step, fetched)
        reads = reads_of(snapshot, self.head.metadata.get("properties") or {}, self._places, chain[0])
        commit = Commit(position, snapshot, reads, delta, attempts_of(snapshot))
        self.line.add(commit)
        self._pass(commit)
        self._find(self._leases.take(commit))
        if listed.step is not None and listed.begins is None:
            await self._judge(commit)
        self._count(commit)

    def _pass(self, commit: Commit) -> None:
        """Has it come through the tower?"""
        if through_a_tower(commit.snapshot):
            self._towers = commit.snapshot
        elif self.options.tower or (self._towers is not None and self.options.tower is None):
            items = (*commit.delta.added, *commit.delta.removed)
            self._find([bypass(commit.snapshot, self._towers, items, self.live_files.specs)])

    async def _begin(self, snapshot: JSON, rows: Sequence[ManifestFile]) -> None:
        """Take the table as it stands with a snapshot."""
        self.live_files.begin(rows)
        if self.options.whole:
            await self._look(list(self.live_files.unread.values()))
        there = await asyncio.gather(*(self.source.exists(row.path) for row in rows)) if self._judging else ()
        for row in (row for row, found_ in zip(rows, there, strict=False) if not found_):
            missing = Opened(row, None, "There is no such file.")
            self._find(check_rows(snapshot, ListStep({}, (), (), (), ()), (missing,)))

    async def _step(self, snapshot: JSON, step: ListStep, fetched: Mapping[str, bytes | None]) -> Delta:
        """Follow a snapshot to what it leaves."""
        await self._look(row for row in step.left if row.path in self.live_files.unread and _has_live(row))
        left = [row.path for row in step.left]
        bodies = [self.live_files.held[path] for path in left if path in self.live_files.held]
        cursors = [Cursor(body) for body in bodies]
        own = [self._open(row, fetched[row.path], cursors) for row in step.entered]
        self._find(check_rows(snapshot, step, own))
        self._find(check_altered(snapshot, step.altered))
        entered = {each.row.path: each.read for each in own}
        delta = self.live_files.delta(snapshot["snapshot-id"], entered, left, cursors)
        if delta.deletes_added() or delta.deletes_removed() or (delta.data_removed() and is_compaction(snapshot)):
            # Is there a vector already; which deletes applied to what goes?
            await self._look(self.live_files.unread_deletes())
        await self._look(self._beside(delta))
        self._find(check_entries(snapshot, delta, self.live_files))
        self._find(check_vectors(snapshot, delta, self.live_files))
        commit = Commit(len(self.line.commits), snapshot, _NOTHING_READ, delta)
        self._unbalanced = await self.ask(lambda: list(overlaps.unbalanced(self._case(commit))))
        self.live_files.take(delta, left, entered)
        for body in bodies:
            self._manifests.forget(body)
        return delta

    def _beside(self, delta: Delta) -> Iterable[ManifestFile]:
        """Data manifests from before that may hold what delete files are about that came or went."""
        deletes = [item for item in (*delta.added, *delta.removed) if not item.is_data]
        if not deletes or not self.live_files.unread:
            return ()
        gone = {item.path for item in delta.removed if item.is_data}
        new = {item.path for item in delta.added if item.is_data}
        if any(item.is_equality for item in deletes if item.key not in new):
            return self.live_files.all_unread_data() if any(i.is_equality for i in delta.removed) else ()
        known = gone | new | self.live_files.files.keys()
        return self.live_files.unread_data(item for item in deletes if item.target is None or item.target not in known)

    async def _judge(self, commit: Commit) -> None:
        """What the commit shows not to have known."""
        known = [*self._unbalanced, *await self.ask(lambda: overlaps.missed(self._case(commit)))]
        if self._contents is not None:
            known = await self._contents.look(commit, known)
        if self._keys is not None and self._judging:
            known = [*known, *await self._keys.look(commit)]
        dropped = list(check_dropped(commit.snapshot, commit.delta, self.live_files))
        self._find(violation for violation, _ in dropped)
        self._find(overlaps.read_skew(self._case(commit), known))
        cycle = None
        if all(each.violation.verdict is not Verdict.DEFINITE for each in known):
            cycle = await self.ask(lambda: self.cycles.through(commit))
        if cycle is not None:  # it says for certain what is only possible by what was written
            known = [each for each in known if not set(each.violation.snapshots) <= set(cycle[0].snapshots)]
            self._find((cycle[0],))
            self._draw(cycle[1])
        for each in known:
            self._find((each.violation,))
            self._draw(() if each.edge is None else (each.edge,))

    def _case(self, commit: Commit) -> Case:
        return Case(commit, self.line, self.live_files, self.details, self._columns)

    # -- what is asked for ------------------------------------------------------------------------------------------

    async def _look(self, rows: Iterable[ManifestFile]) -> None:
        """Open manifests from before the first snapshot."""
        wanted = list(rows)
        for row, data in zip(wanted, await self.source.read_many([row.path for row in wanted]), strict=True):
            opened = self._open(row, data)
            self.live_files.open(row.path, None if opened.read is None else opened.read.body)
            if opened.read is None:
                self._notes[f"{name(row.path)}, from before the first snapshot: {opened.why}"] = None

    async def ask(self, question: Callable[[], T]) -> T:
        """Ask until nothing is missing any more."""
        while True:
            try:
                return question()
            except NeedsFile as need:
                await self._load(need.path)

    async def _load(self, path: str) -> None:
        manifest = read_manifest(await self.source.read(path))
        while len(self._details) >= DETAILS_MAX:
            del self._details[next(iter(self._details))]
        self._details[path] = {key_of(entry.file): entry.file for entry in manifest.entries}

    def details(self, item: Item) -> DataFile:
        """The whole entry of an item. Raises `NeedsFile`."""
        if item.manifest not in self._details:
            raise NeedsFile(item.manifest, is_list=False)
        return self._details[item.manifest][item.key]

    # -- what is found ----------------------------------------------------------------------------------------------

    def _find(self, violations: Iterable[Violation]) -> None:
        for each in violations if self._judging else ():
            self._violations.setdefault((each.rule, each.snapshots, each.files), each)

    def _draw(self, edges: Iterable[Edge]) -> None:
        for edge in edges if self._judging else ():
            self._edges[edge] = None

    def _count(self, commit: Commit) -> None:
        if not self._judging:
            return
        reads = commit.reads
        if reads.blind:
            kind = "blind"
        elif commit.is_compaction:
            kind = "compaction"
        else:
            kind = "unknown" if reads.newest is None else "declared"
        self._reads[kind] += 1
        if reads.lost:
            self._notes[f"{called(commit.snapshot)}: {reads.lost}."] = None

    def _report(self, chain: Sequence[JSON], begin: int) -> Report:
        metadata, judged = self.head.metadata, chain[begin:]
        self._judging = True
        if chain and not self.options.after and Snapshot(chain[0]).parent_id != UNNAMED:
            self._find(check_gap(chain[0], metadata, _stray(self.head, chain[0])))
        expired = bool(chain) and Snapshot(chain[0]).parent_id is not None
        if expired and not self.options.after:
            self._notes[
                f"The history before {called(chain[0])} has expired: what it led to is taken as it stands there."
            ] = None
        if self._reads["unknown"]:
            self._notes[
                f"{self._reads['unknown']} of the commits do not say what they have read: where such a commit missed "
                "what others wrote beside it (write skew), or replaced what nobody had read, it cannot be seen."
            ] = None
        if self.live_files.unread:
            unread = f"{counted(len(self.live_files.unread), 'manifest')} from before the first snapshot"
            self._notes[
                f"{unread} stayed as they were, and were not opened: that a file of theirs was added once more would "
                "not be seen (--whole opens them)."
            ] = None
        if self._contents is not None:
            self._notes.update(self._contents.notes)
        checked = Checked(
            table=self.head.location,
            uuid=str(metadata.get("table-uuid") or ""),
            format_version=self.head.format_version,
            branch=self.options.branch,
            head=chain[-1]["snapshot-id"] if chain else None,
            snapshots=len(judged),
            first=judged[0]["snapshot-id"] if judged else None,
            expired=expired,
            resumed=self.options.after is not None,
            reads=self._reads,
            off_branch=len(self.head.snapshots) - self._on_branch,
            manifests_read=self._opened,
            content=self.options.content,
            undeterminable=tuple(self._notes),
        )
        return Report(tuple(self._violations.values()), checked, tuple(self._edges))


def _list(path: str | None, read: Mapping[str, bytes | None]) -> bytes | str:
    if path is None:
        return "It lists its manifests inside the metadata, as before 2019; that is not read here."
    data = read[path]
    return f"Its manifest list {name(path)} is not there." if data is None else data


def _has_live(row: ManifestFile) -> bool:
    """Whether a manifest names files that are live; one that doesn't say may."""
    return row.added_files != 0 or row.existing_files != 0


def _context(chain: Sequence[JSON], begin: int) -> int:
    """From where on an audit that goes on must look at what was judged before: as far back as anybody new has read."""
    places = {snapshot["snapshot-id"]: at for at, snapshot in enumerate(chain)}
    newest = (reads_of(snapshot, {}, places, chain[0]).newest for snapshot in chain[begin:])
    return max(min((begin - 1, *(at for at in newest if at is not None and at != BEFORE))), 0)


def _stray(head: HeadState, oldest: JSON) -> list[JSON]:
    """Snapshots that are older than another and that no branch or tag leads to, oldest first."""
    reached: set[int] = set()
    for ref in (head.metadata.get("refs") or {}).values():
        for snapshot in ancestors(head.metadata, ref["snapshot-id"]):
            if snapshot["snapshot-id"] in reached:
                break
            reached.add(snapshot["snapshot-id"])
    until = oldest.get("timestamp-ms") or 0
    found_ = [s for s in head.snapshots.values() if s["snapshot-id"] not in reached]
    return sorted((s for s in found_ if (s.get("timestamp-ms") or 0) < until), key=lambda s: s.get("timestamp-ms") or 0)


def _specs(head: HeadState) -> dict[int, PartitionSpec]:
    """The partition specs that can be made out."""
    found_: dict[int, PartitionSpec] = {}
    for spec in head.metadata.get("partition-specs") or ():
        try:
            found_[spec["spec-id"]] = spec_of(head.metadata, spec["spec-id"])
        except ValidationFailed:
            continue
    return found_
