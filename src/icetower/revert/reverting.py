"""What it takes to take back the commits of one agent, and who has built on them. Pure.

The history without the agent is what the others' commits did, one after the other, without what it did: whatever is
live at the head because of the agent goes, and what went because of it comes back. That holds only where no other
commit stands on what the agent wrote: replaced it, deleted rows of it, or has read it. Such commits are named, and
nothing is taken back.

A file that comes back is new to the table: it takes the sequence number of the commit that brings it back. Where that
would change which deletes apply to it, it cannot come back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from icetower.audit.commits import Commit, Line
from icetower.audit.cycles import Cycles
from icetower.audit.items import Item
from icetower.audit.live_files import LiveFiles
from icetower.audit.wording import called, listed, name, names, partition_of, place_name
from icetower.iceberg.deletes import Place, is_unpartitioned
from icetower.protocol.marks import REVERTS, REVERTS_OF
from icetower.revert.unread import Unread
from icetower.table.groups import Span

Own = Mapping[str, tuple[Span, ...] | None]
"""Of a commit that stands for several agents' appends, an agent's own: by file, which rows; None: the whole file."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """Why the agent's commits cannot be taken back.

    Attributes:
        snapshot_id: of the commit that stands on them; None where the table itself is in the way.
        certain: whether it is known; else what that commit has read is not.
    """

    snapshot_id: int | None
    why: str
    certain: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """What one commit would take back.

    Attributes:
        snapshots: those whose work, or part of it, is taken back, in order.
        remove: files that are live at the head and go.
        delete: files of which some rows go, since others' rows lie there, too, with the positions of those that go.
        restore: files that went and come back.
        dependencies: what stands against it.
        reverts: of `snapshots`, the commits that had taken back some of it before; they need not be the agent's.
    """

    snapshots: tuple[int, ...]
    remove: tuple[Item, ...]
    restore: tuple[Item, ...]
    dependencies: tuple[Dependency, ...]
    reverts: tuple[int, ...] = ()
    delete: tuple[tuple[Item, tuple[Span, ...]], ...] = ()

    @property
    def written(self) -> tuple[int, ...]:
        """The agent's own commits."""
        return tuple(each for each in self.snapshots if each not in self.reverts)

    @property
    def rows_deleted(self) -> tuple[tuple[Item, int], ...]:
        """Files of which some rows go, with how many."""
        return tuple((item, sum(count for _, count in spans)) for item, spans in self.delete)

    @property
    def nothing(self) -> bool:
        return not self.remove and not self.restore and not self.delete


@dataclass
class Reverting:
    """Works out a plan.

    Args:
        line: the branch, from before the first of the agent's commits to the head.
        standing: at the head.
        cycles: tells what touches whose filter.
        unread: tells which commits have not read what the agent wrote.
        chosen: the agent's commits by position, each with what is its own; None: all of it.
        format_version: of the table.
    """

    line: Line
    live_files: LiveFiles
    cycles: Cycles
    unread: Unread
    chosen: Mapping[int, Own | None]
    format_version: int
    _extra: dict[str, Item] = field(default_factory=dict[str, Item])
    _rows: dict[str, tuple[Item, tuple[Span, ...]]] = field(default_factory=dict[str, "tuple[Item, tuple[Span, ...]]"])
    _missing: dict[str, Item] = field(default_factory=dict[str, Item])
    _wide: list[Item] = field(default_factory=list[Item])
    _gone: set[str] = field(default_factory=set[str])
    _found: dict[Dependency, None] = field(default_factory=dict[Dependency, None])

    def plan(self) -> Plan:
        """Walk the line. Raises `NeedsFile` where statistics are wanted."""
        first = min(self.chosen, default=len(self.line.commits))
        for commit in self.line.commits[first:]:
            self._wide += (item for item in commit.delta.removed if item.is_equality or item.is_loose)
            if commit.position in self.chosen:
                self._take_back(commit, self.chosen[commit.position])
            else:
                self._follow(commit)
            self._gone.update(item.path for item in commit.delta.data_removed())
            self._gone.difference_update(item.path for item in commit.delta.data_added())
        self._missing = {item.key: item for item in self._worth_restoring()}
        for item in self._missing.values():
            self._check_restored(item)
        snapshots = tuple(self.line.commits[position].id for position in sorted(self.chosen))
        if self.format_version < 2 and self._rows:
            item = next(iter(self._rows.values()))[0]
            why = f"of {name(item.path)} some rows are others', and format version 1 has no deletes of rows"
            self._found[Dependency(None, why)] = None
        return Plan(
            snapshots,
            tuple(self._extra.values()),
            tuple(self._missing.values()),
            tuple(self._found),
            delete=tuple(self._rows.values()),
        )

    def _take_back(self, commit: Commit, own: Own | None) -> None:
        for item in commit.delta.removed if own is None else ():
            if self._extra.pop(item.key, None) is None:
                self._missing[item.key] = item
        for item in commit.delta.added:
            if own is not None and item.path not in own:
                continue
            spans = None if own is None else own[item.path]
            if spans is not None:
                self._rows[item.key] = item, spans
            elif self._deleted_before(item):
                del self._rows[item.target or ""]
            elif self._missing.pop(item.key, None) is None:
                self._extra[item.key] = item

    def _deleted_before(self, item: Item) -> bool:
        """Whether a commit that has taken some of it back has deleted these very rows."""
        of_them = None if item.target is None else self._rows.get(item.target)
        return of_them is not None and item.records == sum(count for _, count in of_them[1])

    # -- the others -------------------------------------------------------------------------------------------------

    def _follow(self, commit: Commit) -> None:
        """A commit of somebody else: does it stand on what is taken back?"""
        removed = [item for item in commit.delta.removed if item.key in self._extra or item.key in self._rows]
        only_drops = not any(item.is_data for item in commit.delta.added)
        gone = {item.path for item in removed if item.is_data} if only_drops else set[str]()
        for item in removed:
            if only_drops and (item.is_data or item.target in gone or self._target_gone(item)):
                # It would have had one file less to drop.
                self._extra.pop(item.key, None)
                self._rows.pop(item.key, None)
            else:
                self._depend(commit, f"{'replaced' if item.is_data else 'took the place of'} {name(item.path)}")
        if not only_drops:
            self._check_replaced(commit)
        for item in commit.delta.deletes_removed():
            if item.target in self._missing and item not in removed:
                self._depend(commit, f"removed {name(item.path)}, which deletes rows of {name(item.target)}")
        for item in commit.delta.added:
            self._check_added(commit, item)
        self._check_reads(commit)

    def _target_gone(self, item: Item) -> bool:
        """Whether deletes are about a file that is not there any more at this point of the line."""
        if item.target is None or item.target in self._extra:
            return False
        never = item.target not in self.line.gone and self.live_files.live(item.target) is None
        return never or item.target in self._gone

    def _check_replaced(self, commit: Commit) -> None:
        """What came instead of a file has not the rows that the agent had deleted of it, whether its deletes went."""
        deletes = [item for item in self._extra.values() if not item.is_data]
        for data in commit.delta.data_removed() if deletes else ():
            if data.key not in self._extra and any(self._deletes_of(item, data) for item in deletes):
                self._depend(commit, f"replaced {name(data.path)}, of which the agent had deleted rows")

    def _check_added(self, commit: Commit, item: Item) -> None:
        if item.is_data:
            return
        if item.target is not None:
            # Another's rows of a shared file, taken back before: beside position deletes there is room for more.
            apart = self.format_version < 3 and {REVERTS, REVERTS_OF} <= commit.summary.keys()
            if item.target in self._extra or (item.target in self._rows and not apart):
                self._depend(commit, f"deleted rows of {name(item.target)}")
            return
        if item.is_equality:
            back = [each for each in self._missing.values() if each.is_data and self._reaches(item, each)]
            if back:
                self._depend(commit, f"deleted by equality where {names(back)} lay: rows of it may be meant")
        elif any(each.is_data and each.place == item.place for each in self._own_data()):
            self._depend(
                commit, f"deleted rows in {partition_of(item, self.live_files.specs)}: some may be the agent's"
            )

    def _own_data(self) -> Iterator[Item]:
        """What the agent wrote and is live, deletes included; of shared files the whole file."""
        yield from self._extra.values()
        yield from (item for item, _ in self._rows.values())

    def _check_reads(self, commit: Commit) -> None:
        """Whether a commit has read what is taken back, or may have: where nothing says that, it may (trap R11)."""
        if commit.is_compaction or self.unread.reads_nothing(commit):
            return
        newest = self.unread.newest_read(commit)
        before = [self.line.commits[at] for at in sorted(self.chosen) if at < commit.position]
        seen = [each for each in before if newest is None or each.position <= newest]
        if commit.reads.filter is not None:
            read = next((each for each in seen if self.cycles.touched(each, commit.reads.filter) is not None), None)
            if read is not None:
                self._depend(commit, f"has read what {called(read.snapshot)} wrote, by its filter")
        elif seen:
            self._check_declared(commit, seen)

    def _check_declared(self, commit: Commit, seen: Sequence[Commit]) -> None:
        """Whether the contract of a commit says that it has read where the agent wrote."""
        owned = self.unread.owned_among(commit, self._places(seen))
        if owned is None:
            why = f"{called(commit.snapshot)} may have read what the agent wrote: nothing says what it has read"
            self._found[Dependency(commit.id, why, certain=False)] = None
        elif owned:
            where = listed([place_name(*place, self.live_files.specs) for place in owned])
            # An append may have read nothing at all; whatever replaces or deletes has read what it owns.
            certain = commit.operation != "append"
            reads = f"{'reads' if certain else 'may have read'} {where} by its contract (read_scope: owned)"
            why = f"{called(commit.snapshot)} {reads}, and the agent wrote there"
            self._found[Dependency(commit.id, why, certain)] = None

    def _places(self, commits: Sequence[Commit]) -> Iterator[Place]:
        """The partitions that the agent's commits touched; of deletes, those of their data files as well."""
        for commit in commits:
            own = self.chosen[commit.position]
            for item in (*commit.delta.added, *commit.delta.removed):
                if own is not None and item.path not in own:
                    continue
                yield item.spec_id, item.partition
                data = None if item.is_data else self.cycles.data_file(item.target)
                if data is not None:
                    yield data.spec_id, data.partition

    def _depend(self, commit: Commit, did: str) -> None:
        self._found[Dependency(commit.id, f"{called(commit.snapshot)} {did}")] = None

    # -- what comes back --------------------------------------------------------------------------------------------

    def _worth_restoring(self) -> Iterator[Item]:
        """Deletes of what will not be there are left out."""
        for item in self._missing.values():
            if not item.is_data and item.target is not None:
                stays = self.live_files.live(item.target) is not None and item.target not in self._extra
                if not stays and item.target not in self._missing:
                    continue
            yield item

    def _check_restored(self, item: Item) -> None:
        if item.is_equality:
            self._refuse(item, "equality deletes that come back would reach rows that came later")
        elif not item.is_data and not item.is_vector and self.format_version >= 3:
            self._refuse(item, "format version 3 takes no position delete files any more")
        elif item.is_data:
            live = [
                i
                for kept in (self.live_files.equality, self.live_files.loose)
                for g in kept.values()
                for i in g.values()
            ]
            left = [each for each in (*live, *self._wide) if self._applied(each, item)]
            left += self.live_files.deletes_of(item.path)
            kept = [each for each in left if each.key not in self._extra]
            if kept:
                self._refuse(item, f"{names(kept)} deletes rows of it, and would not reach it any more")

    def _deletes_of(self, deletes: Item, data: Item) -> bool:
        """Whether deletes of any kind may be about a data file."""
        return deletes.target == data.path if deletes.target is not None else self._applied(deletes, data)

    def _applied(self, deletes: Item, data: Item) -> bool:
        if deletes.is_equality:
            return deletes.sequence_number > data.sequence_number and self._reaches(deletes, data)
        return deletes.sequence_number >= data.sequence_number and deletes.place == data.place

    def _reaches(self, deletes: Item, data: Item) -> bool:
        spec = self.live_files.specs.get(deletes.spec_id)
        return spec is None or is_unpartitioned(spec) or deletes.place == data.place

    def _refuse(self, item: Item, why: str) -> None:
        self._found[Dependency(None, f"{name(item.path)} cannot come back: {why}")] = None
