"""From a group to a `Step`: planned on a version of the table, which may be one that is not written yet.

`Planner` is the only caller of the pure `plan`: it reads what the plan asks for and plans again. A group may be planned
while the one before it is still on its way, on the version that the other will leave; what that one has not written yet
is known here from its plan.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from icetower.admission.admitted import Admitted, AdmittedAppend
from icetower.ambient import Ambient
from icetower.commit.limits import Limits
from icetower.commit.live_files import LiveFiles
from icetower.commit.needs import Encoding, Needs, encoding_of
from icetower.commit.pieces import with_pauses
from icetower.commit.plan import Member, Plan, Sources, plan
from icetower.commit.queue import Committed, Cost, Waiting
from icetower.commit.resolution import half_known
from icetower.commit.twice import LivePathsOf
from icetower.errors import CommitConflict, IcetowerError, ValidationFailed
from icetower.files.changes import Manifests, memory_of_rows
from icetower.files.deletes import Blobs, PositionDeletes
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.entries import Files
from icetower.iceberg.manifests import Manifest, ManifestFile, read_manifest, read_manifest_list
from icetower.iceberg.metadata import Metadata
from icetower.iceberg.puffin import BlobAt
from icetower.iceberg.records import memory_of_manifest
from icetower.paths import lies_in
from icetower.protocol.names import Identifier
from icetower.rebase.grants import asks_for_snapshot_isolation
from icetower.recent import Budget, Reservation
from icetower.rows.encoding import NewFile, encode
from icetower.storage.port import Storage
from icetower.table.groups import Group
from icetower.table.head import HeadState
from icetower.threads import Threads
from icetower.upstream.port import Swap

CACHE_SHARE = 0.25
"""The part of the caches' budget that tables' workers hold until their queues are empty: each of them, and all."""

ENCODING_THREADS = 4
SHORT_BYTES = 512 * 1024
"""Groups with so many bytes of rows have a thread of their own, and large ones elsewhere hold none of them."""
"""Rows of so many tables are made into files at once; pyarrow works without the interpreter's lock for most of it."""

PLAN_SHARE = 0.5
"""The part of the budget that the files of plans may take. Beyond it, those that read an eighth of it are given up."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a table, and since when it has asked for snapshot isolation.

    Attributes:
        isolation_since: a sequence number. Every snapshot numbered so or higher came in a version whose properties ask
            for snapshot isolation in all commands, and so has every version since. None where this one does not ask.
    """

    head: HeadState
    isolation_since: int | None

    @classmethod
    def found(cls, head: HeadState, known: tuple[str, int | None] | None = None) -> Version:
        """A version that another writer has committed.

        Args:
            known: the location of the version that was seen last, and since when it had asked. Where that is the one
                before this version, there was none between the two.
        """
        if not asks_for_snapshot_isolation(head.metadata.get("properties") or {}):
            return cls(head, None)
        metadata = head.metadata
        snapshots, log = metadata.get("snapshots") or (), metadata.get("metadata-log") or ()
        if known is not None and known[1] is not None and log and log[-1]["metadata-file"] == known[0]:
            return cls(head, known[1])
        newest_ms = max((snapshot["timestamp-ms"] for snapshot in snapshots), default=-1)
        # A newest snapshot that came before this version may have been read under other properties.
        came_before = bool(log) and newest_ms <= log[-1]["timestamp-ms"]
        return cls(head, _last_number(head) + came_before)

    def followed_by(self, head: HeadState) -> Version:
        """The version after this one. Between the two there was none that a reader could have seen."""
        if not asks_for_snapshot_isolation(head.metadata.get("properties") or {}):
            return Version(head, None)
        return Version(head, _last_number(self.head) + 1 if self.isolation_since is None else self.isolation_since)


def is_own_metadata_file(path: str, metadata: Metadata) -> bool:
    """Whether `path` is, by its place and name, a metadata file of this table.

    A table's log is only as honest as the writer of the file that it was registered with: what it names may be another
    table's, or no metadata file at all, and is then nothing to delete.
    """
    folder = table_metadata.metadata_folder(metadata)
    return lies_in(path, folder) and path.endswith((".metadata.json", ".metadata.json.gz"))


def folder_of_next(head: HeadState, metadata: Metadata) -> str:
    """Where the metadata file that follows a head goes.

    The catalog's pointer says where the head lies, and only who may commit moves it. What stands in the head may have
    been written over by who may write to the table's place, and then names another table's. So a head that does not lie
    where it says that metadata goes is followed beside itself, until a commit says where else.

    Args:
        metadata: that follows.
    """
    before, after = table_metadata.metadata_folder(head.metadata), table_metadata.metadata_folder(metadata)
    return after if after != before or lies_in(head.location, before) else head.location.rpartition("/")[0]


def _last_number(head: HeadState) -> int:
    return head.metadata.get("last-sequence-number") or 0


@dataclass(slots=True)
class Took:
    """What a step took: milliseconds, and bytes that were written.

    Attributes:
        plan_s, write_s, swap_s: when these began, monotonic.
        landed: whether its swap did; None until it is known.
        group: by what a trace names the group; None: nobody traces.
    """

    plan_ms: float = 0.0
    write_ms: float = 0.0
    swap_ms: float = 0.0
    written_bytes: int = 0
    plan_s: float = 0.0
    write_s: float = 0.0
    swap_s: float = 0.0
    landed: bool | None = None
    group: object = None


@dataclass(frozen=True, slots=True)
class Step:
    """One table's share of a swap: planned, not written yet.

    Attributes:
        old, new: the version that it was planned on, and the one that it leaves; the same where nothing changes.
        expired_metadata: metadata files that fall out of the table's log, and may be deleted after the swap.
        took: what it took so far.
    """

    identifier: Identifier
    waiting: tuple[Waiting, ...]
    old: Version
    new: Version
    plan: Plan
    expired_metadata: tuple[str, ...]
    took: Took = field(default_factory=Took)

    @property
    def changes(self) -> bool:
        """Whether there is anything to swap."""
        return self.new is not self.old

    @property
    def swap(self) -> Swap:
        return Swap(self.identifier, self.old.head.location, self.new.head.location)

    @property
    def going(self) -> tuple[Waiting, ...]:
        """Whom the plan has accepted."""
        accepted = {id(accepted.member) for accepted in self.plan.accepted}
        return tuple(waiting for waiting in self.waiting if id(waiting.member) in accepted)

    def seal(self) -> None:
        """Its swap begins."""
        for waiting in self.waiting:
            waiting.sealed = True

    def answers(self) -> list[tuple[Member, Committed]]:
        """Once it has landed: what those are answered that were in the table already, and those that are in it now."""
        accepted, took, head = self.plan.accepted, self.took, self.new.head
        size = len(accepted)
        found: list[tuple[Member, Committed]] = []
        for each in self.plan.replayed:
            by_files = each.refusal is not None
            found.append((each.member, Committed("replayed", head, each.snapshots, 0.0, size, by_files=by_files)))
        sharing = Counter(each.snapshots for each in accepted)
        for each in accepted:
            lists = (str((head.snapshots.get(i) or {}).get("manifest-list")) for i in each.snapshots)
            manifests = sum(len(self.plan.own.get(path, ())) for path in lists) / sharing[each.snapshots]
            cost = Cost(
                took.written_bytes // size,
                manifests,
                took.plan_ms,
                took.write_ms,
                took.swap_ms,
                took.plan_s,
                took.write_s,
                took.swap_s,
                took.group,
            )
            found.append((each.member, Committed(each.outcome, head, each.snapshots, 0.0, size, cost)))
        return found

    @property
    def expired(self) -> frozenset[int]:
        """The snapshots that this step removes, by retention or since a client says so."""
        commits = [accepted.member for accepted in self.plan.accepted if isinstance(accepted.member, Admitted)]
        removed = [i for commit in commits for i in commit.updates.removed_snapshots]
        return frozenset(i for i in (*removed, *self.plan.expired) if i in self.old.head.snapshots)


def require_one_answer(steps: Sequence[Step]) -> None:
    """Of a transaction: all of it goes in, or all of it is there already. Raises what refuses it otherwise."""
    for step in steps:
        for refusal in step.plan.refused:
            raise refusal.error
    if len({bool(step.plan.replayed) for step in steps}) > 1:
        by_files = (each.refusal for step in steps for each in step.plan.replayed)
        raise next(filter(None, by_files), None) or half_known()


class PlanCache:
    """What the groups of one run of a table's worker have read, so that each of them is planned in one go.

    Attributes:
        unwritten: bytes of files that a group on its way will have written, by path.
    """

    def __init__(self, budget: Budget | None = None) -> None:
        self.unwritten: dict[str, bytes] = {}
        self._held = Reservation(budget or Budget())
        self._forget_all()

    def sources(
        self,
        manifests: Manifests,
        live: LivePathsOf | None = None,
        groups: Mapping[str, Group | None] | None = None,
        encoded: Mapping[Encoding, Sequence[NewFile]] | None = None,
    ) -> Sources:
        """All of it, and what is at hand elsewhere."""
        files = Files(self._lists, self._manifests, manifests.own)
        return Sources(files, manifests.listings, self._blobs, self._targets, live, groups or {}, encoded or {})

    def add(
        self,
        lists: Mapping[str, tuple[ManifestFile, ...]],
        manifests: Mapping[str, Manifest],
        blobs: Mapping[BlobAt, bytes],
        targets: Mapping[str, frozenset[str] | None],
    ) -> None:
        self._lists |= lists
        self._manifests |= manifests
        self._blobs |= blobs
        self._targets |= targets
        size = sum(memory_of_rows(rows) for rows in lists.values())
        size += sum(map(memory_of_manifest, manifests.values()))
        size += sum(map(len, blobs.values()))
        size += sum(len(path) for paths in targets.values() for path in paths or ())
        self._held.take(size)

    @property
    def overflows(self) -> bool:
        """Whether a plan has read too much: for itself, or for all tables' workers together. Small ones go on."""
        budget, own = self._held.budget, self._held.size_bytes
        most = budget.max_bytes * PLAN_SHARE
        return own > most or (own > most / 8 and budget.held_bytes > most)

    def trim(self) -> None:
        """Between two plans: forget everything, where the tables' workers together hold too much."""
        if self._held.budget.held_bytes > self._held.budget.max_bytes * CACHE_SHARE:
            self._forget_all()

    def clear(self) -> None:
        """The queue is empty: forget everything."""
        self.unwritten = {}
        self._forget_all()

    def landed_or_lost(self, step: Step) -> None:
        """The files of a step are in the storage now, or never will be."""
        for path in step.plan.files:
            self.unwritten.pop(path, None)

    def _forget_all(self) -> None:
        self._lists: dict[str, tuple[ManifestFile, ...]] = {}
        self._manifests: dict[str, Manifest] = {}
        self._blobs: dict[BlobAt, bytes] = {}
        self._targets: dict[str, frozenset[str] | None] = {}
        self._held.release()


class Planner:
    """Plans groups, and reads what that takes.

    Args:
        storage: what plans ask for, beside manifests, is read from here.
        limits: how often a plan may ask for files, and for how many; how long metadata may become.
    """

    def __init__(self, storage: Storage, manifests: Manifests, ambient: Ambient, limits: Limits) -> None:
        self._manifests = manifests
        self.live = LiveFiles(storage, manifests)
        self._blobs = Blobs(storage, budget=manifests.budget)
        self._deletes = PositionDeletes(storage, budget=manifests.budget)
        self._ambient = ambient
        self._limits = limits
        self._encoding = Threads(ENCODING_THREADS, "rows")
        self._short_encoding = Threads(1, "short-rows")

    async def step(
        self,
        identifier: Identifier,
        waiting: tuple[Waiting, ...],
        version: Version,
        cache: PlanCache,
        keep: frozenset[int],
    ) -> Step:
        """Plan a group on a version.

        Raises:
            CommitConflict: the plan kept asking for more files than it may read.
            IcetowerError: a file that it needs cannot be read, or the table's properties make no sense.
        """
        began_s = self._ambient.monotonic_s()
        head = version.head
        members = [w.member for w in waiting]
        planned = await self._planned(version, members, cache, keep)
        if planned.metadata is head.metadata:  # no member was accepted, or nothing changes by it
            return Step(identifier, waiting, version, version, planned, ())
        logged, expired = table_metadata.with_log(
            planned.metadata, previous=head.metadata, previous_location=head.location
        )
        number = table_metadata.version_of(head.location) + 1
        folder = folder_of_next(head, logged)
        location = table_metadata.metadata_path(logged, number, self._ambient.uuid4(), folder)
        new = head.after(location, logged, snapshots=planned.snapshots, indexed=planned.keys)
        # For the groups planned after this one, perhaps before its files are written. Their names are new: if they
        # never land, no plan asks for them.
        cache.unwritten.update(planned.files)
        for path, listing in planned.lists.items():
            self._manifests.remember(path, listing)
        for path, rows in planned.own.items():
            self._manifests.remember_own(path, rows)
        self._note_live(head.metadata.get("table-uuid"), members, planned)
        keep_log = logged["properties"].get("write.metadata.delete-after-commit.enabled", "false").lower() != "true"
        # Nor is anything deleted where the head does not lie where it says.
        keep_log = keep_log or not lies_in(head.location, folder) or folder != table_metadata.metadata_folder(logged)
        gone = () if keep_log else tuple(path for path in expired if is_own_metadata_file(path, logged))
        step = Step(identifier, waiting, version, version.followed_by(new), planned, gone)
        step.took.plan_s, step.took.plan_ms = began_s, (self._ambient.monotonic_s() - began_s) * 1000
        return step

    async def alone(self, version: Version, member: Admitted) -> Plan:
        """The plan for one commit, of which nothing is to be written. Raises as `step`."""
        cache = PlanCache(self._manifests.budget)
        try:
            return await self._planned(version, [member], cache, frozenset(version.head.snapshots), merges=False)
        finally:
            cache.clear()

    def _note_live(self, uuid: Any, members: Sequence[Member], planned: Plan) -> None:
        """What new manifests name needs no reading again. To other branches they do not belong."""
        for ref in {member.ref for member in members if member.ref and planned.live}:
            live = self.live.of(uuid, ref)
            for path, paths in planned.live.items():
                live.add(path, paths)

    async def _planned(
        self,
        version: Version,
        members: Sequence[Member],
        cache: PlanCache,
        keep: frozenset[int],
        *,
        merges: bool = True,
    ) -> Plan:
        """The plan, with everything read that it needs."""
        now_ms = max(self._ambient.now_ms(), version.head.metadata["last-updated-ms"])
        live = partial(self.live.of, version.head.metadata.get("table-uuid"))
        cache.trim()
        groups: dict[str, Group | None] = {}
        encoded: dict[Encoding, Sequence[NewFile]] = {}  # of this plan alone: another one gives its files new names
        left = self._limits.read_files_max
        for _ in range(self._limits.read_rounds_max):
            pieces = plan(
                version.head,
                members,
                cache.sources(self._manifests, live, groups, encoded),
                now_ms=now_ms,
                new_name=self._ambient.uuid4,
                new_id=self._ambient.snapshot_id,
                metadata_max_bytes=self._limits.metadata_max_bytes,
                isolation_since=version.isolation_since,
                keep=keep,
                merges=merges,
                lately_ms=self._limits.lately_ms,
            )
            planned = await with_pauses(pieces)
            if not planned.needs:
                return planned
            left -= len(planned.needs)
            if left < 0:
                break
            for appends in planned.needs.rows:
                encoded[encoding_of(appends)] = await self._encode(appends, version.head.metadata)
            try:
                await self._read(planned.needs, cache, live)
                groups |= await self.live.groups(planned.needs.groups, cache.unwritten)
            except IcetowerError:
                if not merges:
                    raise
                merges = False
            if cache.overflows:
                break
        raise CommitConflict(
            f"to see whether the commit may be rebased, more manifests had to be read than "
            f"{self._limits.read_files_max} files in {self._limits.read_rounds_max} rounds, or more than half of "
            "server.cache_max_bytes; refresh and write again",
            rule="plan.needs",
        )

    async def _encode(self, appends: Sequence[AdmittedAppend], metadata: Metadata) -> tuple[NewFile, ...]:
        """The files for the rows of some appends, made away from the event loop."""
        batches = [append.rows for append in appends if append.rows is not None]
        try:
            size_bytes = sum(batch.size_bytes for batch in batches)
            threads = self._short_encoding if size_bytes <= SHORT_BYTES else self._encoding
            return await threads.run(lambda: encode(batches, metadata, self._ambient.uuid4))
        except IcetowerError:
            raise
        except Exception as error:  # one request's oddity: its group is tried again in halves, and it is refused alone
            raise ValidationFailed(
                f"the rows cannot be written as Parquet ({type(error).__name__}); append them as a file",
                rule="rows.encoding",
            ) from error

    async def _read(self, needs: Needs, cache: PlanCache, live: LivePathsOf) -> None:
        """Everything at once, side by side."""
        for ref in {ref for ref, _ in needs.paths}:
            await self.live.read(live(ref), [row for of, row in needs.paths if of == ref], cache.unwritten)
        for ref in {ref for ref, _ in needs.lately}:
            rows = [row for of, row in needs.lately if of == ref]
            await self.live.read_lately(live(ref), rows, cache.unwritten, within_s=self._limits.look_s)
        lists, manifests = sorted(needs.lists), sorted(needs.manifests)
        read_lists, read_manifests, blobs, targets = await asyncio.gather(
            asyncio.gather(*(self._list(path, cache) for path in lists)),
            asyncio.gather(*(self._manifest(path, cache) for path in manifests)),
            self._blobs_at(needs.blobs, cache),
            asyncio.gather(*(self._deletes.targets(file.path, file) for file in needs.targets)),
        )
        cache.add(
            dict(zip(lists, read_lists, strict=True)),
            dict(zip(manifests, read_manifests, strict=True)),
            blobs,
            dict(zip((file.path for file in needs.targets), targets, strict=True)),
        )

    async def _list(self, path: str, cache: PlanCache) -> tuple[ManifestFile, ...]:
        unwritten = cache.unwritten.get(path)
        return await self._manifests.list_at(path) if unwritten is None else read_manifest_list(unwritten)

    async def _manifest(self, path: str, cache: PlanCache) -> Manifest:
        unwritten = cache.unwritten.get(path)
        return await self._manifests.manifest_at(path) if unwritten is None else read_manifest(unwritten)

    async def _blobs_at(self, blobs: frozenset[BlobAt], cache: PlanCache) -> Mapping[BlobAt, bytes]:
        unwritten = {
            at: data[at.offset : at.offset + at.length_bytes]
            for at in blobs
            if (data := cache.unwritten.get(at.path)) is not None
        }
        return {**unwritten, **await self._blobs.read_all(blobs - unwritten.keys())}
