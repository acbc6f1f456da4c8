"""`Ground`: the table as the planner has it, the head and on top of it what the members before this one did.

A commit of the usual kind, snapshots and the branch that moves to them, costs the same however long the table's history
is: its updates are noted, and the metadata is made of them once for the whole group. Any other update is applied at
once, since what comes after it may depend on it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from icetower.conflicts.history import Files, NeedsFile, parent_of
from icetower.errors import CommitConflict, ValidationFailed
from icetower.table import metadata as table_metadata
from icetower.table.head import HeadState
from icetower.table.listing import Listing
from icetower.table.manifests import Manifest, ManifestFile
from icetower.table.metadata import Metadata
from icetower.table.partitions import PartitionSpec, spec_of

JSON = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Made:
    """What a plan makes: for the storage, and for whoever plans after it.

    Attributes:
        files: bytes to be written, by path.
        listings: manifest lists by path.
        own: by the path of a manifest list, the manifests that its snapshot added itself.
        manifests: manifests that the tower wrote, by path.
    """

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    listings: dict[str, Listing] = field(default_factory=dict[str, Listing])
    own: dict[str, tuple[ManifestFile, ...]] = field(default_factory=dict[str, "tuple[ManifestFile, ...]"])
    manifests: dict[str, Manifest] = field(default_factory=dict[str, Manifest])

    def take(self, other: Made) -> None:
        """Add what another made."""
        self.files.update(other.files)
        self.listings.update(other.listings)
        self.own.update(other.own)
        self.manifests.update(other.manifests)


@dataclass(frozen=True, slots=True)
class _State:
    """What a commit changes of a ground. Never changed in place, so that a commit which fails leaves no trace.

    Attributes:
        base: the metadata that `pending` is to be applied to; None for a table that is being created.
        dirty: whether `pending` holds more than snapshots and the usual moves of branches; then it is one member's own.
        gone: snapshots that were removed.
    """

    base: Metadata | None
    pending: tuple[JSON, ...] = ()
    dirty: bool = False
    refs: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    last_sequence_number: int = 0
    next_row_id: int = 0
    last_log_ms: int = 0
    gone: frozenset[int] = frozenset()


class Ground:
    """A table that commits are planned on.

    Args:
        metadata: the version that the plan begins with; None for a table that is being created.
        snapshots: its snapshots by id.
        files: the manifest lists and manifests that are known.
        listings: those of the manifest lists that are known in runs, by path.
        now_ms: the server's clock.
    """

    def __init__(
        self,
        metadata: Metadata | None,
        snapshots: Mapping[int, JSON],
        files: Files,
        listings: Mapping[str, Listing],
        now_ms: int,
    ) -> None:
        self.now_ms = now_ms
        self.made = Made()
        self._attempted = Made()
        self._snapshots = snapshots
        self._fresh: dict[int, JSON] = {}
        self._given_runs = listings
        self._runs: dict[str, Listing] = {}
        self._given = files
        self._since = 0
        self._applied: tuple[_State, _State] | None = None
        self._specs: tuple[Metadata, Mapping[int, PartitionSpec]] | None = None
        self._state = _state_of(metadata) if metadata is not None else _State(None)

    @staticmethod
    def of(head: HeadState, files: Files, listings: Mapping[str, Listing], now_ms: int) -> Ground:
        """The ground that a head is."""
        return Ground(head.metadata, head.snapshots, files, listings, now_ms)

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def settled(self) -> Metadata:
        """The metadata but for snapshots and branch moves that are only noted: schemas, specs, properties, format."""
        state = self._current()
        assert state.base is not None
        return state.base

    @property
    def metadata(self) -> Metadata:
        """The metadata with everything. Its cost grows with the history: ask once a group."""
        state = self._state
        if not state.pending and state.base is not None:
            return state.base
        return self._applying(state.base, state.pending)

    def _applying(self, base: Metadata | None, updates: tuple[JSON, ...]) -> Metadata:
        """Several members' updates: each member's commit was a version of the table."""
        return table_metadata.apply(base, updates, now_ms=self.now_ms, logs_every_move=True)

    def _current(self) -> _State:
        """The state with every unusual update applied."""
        if not self._state.dirty:
            return self._state
        if self._applied is None or self._applied[0] is not self._state:
            metadata = table_metadata.apply(self._state.base, self._state.pending, now_ms=self.now_ms)
            self._applied = (self._state, replace(_state_of(metadata), gone=self._state.gone))
        return self._applied[1]

    @property
    def format_version(self) -> int:
        return self.settled["format-version"]

    @property
    def last_sequence_number(self) -> int:
        return self._current().last_sequence_number

    @property
    def next_row_id(self) -> int:
        return self._current().next_row_id

    @property
    def last_log_ms(self) -> int:
        """Of the newest entry of the snapshot log."""
        return self._current().last_log_ms

    @property
    def refs(self) -> Mapping[str, JSON]:
        return self._current().refs

    @property
    def specs(self) -> Mapping[int, PartitionSpec]:
        """All partition specs by id."""
        settled = self.settled
        if self._specs is None or self._specs[0] is not settled:
            self._specs = (settled, {s["spec-id"]: spec_of(settled, s["spec-id"]) for s in settled["partition-specs"]})
        return self._specs[1]

    @property
    def schema(self) -> JSON:
        """The current schema (JSON)."""
        settled = self.settled
        return next(s for s in settled["schemas"] if s["schema-id"] == settled["current-schema-id"])

    def ref_head(self, name: str) -> int | None:
        """The snapshot at which a ref stands; None where there is no such ref."""
        ref = self.refs.get(name)
        return None if ref is None else ref["snapshot-id"]

    def snapshot(self, snapshot_id: int) -> JSON | None:
        """A snapshot by id, those of this group included."""
        if snapshot_id in self._state.gone:
            return None
        return self._fresh.get(snapshot_id) or self._snapshots.get(snapshot_id)

    def line(self, snapshot_id: int, *, until: int | None = None) -> Iterator[JSON]:
        """A snapshot and its ancestors as far as the table knows them, newest first, up to and without `until`."""
        wanted: int | None = snapshot_id
        left = len(self._snapshots) + len(self._fresh)  # a loop in forged metadata must not hold us for ever
        while wanted is not None and wanted != until and left:
            snapshot = self.snapshot(wanted)
            if snapshot is None:
                return
            left -= 1
            yield snapshot
            wanted = parent_of(snapshot)

    def is_ancestor(self, snapshot_id: int, of: int) -> bool:
        """Whether `snapshot_id` is `of` or one of its ancestors."""
        return any(snapshot["snapshot-id"] == snapshot_id for snapshot in self.line(of))

    def steps(self, base: int | None, head: int | None) -> tuple[JSON, ...] | None:
        """The snapshots after `base` up to `head`, oldest first; None where `base` is no ancestor of `head`."""
        if head is None:
            return () if base is None else None
        found = list(self.line(head, until=base))
        oldest = parent_of(found[-1]) if found else base
        return tuple(reversed(found)) if oldest == base else None

    @property
    def files(self) -> Files:
        """Everything that may be looked at: what was given, and what this plan made."""
        made, tried = self.made, self._attempted
        return Files(
            self._given.lists,
            _Layers((tried.manifests, made.manifests, self._given.manifests)),
            _Layers((tried.own, made.own, self._given.own)),
        )

    def listing(self, snapshot_id: int | None) -> Listing:
        """The manifest list of a snapshot.

        Raises:
            NeedsFile: it must be read first.
            CommitConflict: the table has no such snapshot.
        """
        if snapshot_id is None:
            return Listing.of(())
        snapshot = self.snapshot(snapshot_id)
        if snapshot is None:
            raise CommitConflict(
                f"the parent snapshot {snapshot_id} is not in the table; refresh and write again",
                rule="commit.parent",
                snapshot=snapshot_id,
            )
        path = snapshot.get("manifest-list")
        if path is None:
            raise ValidationFailed(
                f"snapshot {snapshot_id} lists its manifests inside the metadata, as before 2019; rewrite the table",
                rule="snapshot.manifest-list",
            )
        made = self._attempted.listings.get(path) or self.made.listings.get(path)
        if made is not None:
            return made
        if path not in self._runs:
            given = self._given_runs.get(path)
            if given is None and path not in self._given.lists:
                raise NeedsFile(path, is_list=True)
            # Kept for the whole plan: a cache behind it may let go of it.
            self._runs[path] = given if given is not None else Listing.of(self._given.lists[path])
        return self._runs[path]

    # -- what is done to it ---------------------------------------------------------------------------------------

    @contextmanager
    def attempt(self) -> Generator[Made]:
        """Do something to the ground, all or nothing: what raises leaves it as it was. Gives what is made meanwhile."""
        before, known = self._state, len(self._fresh)
        self._since = len(before.pending)
        try:
            yield self._attempted
            if self._state.dirty:
                self._state = self._current()
        except BaseException:
            self._state = before
            for snapshot_id in list(self._fresh)[known:]:
                del self._fresh[snapshot_id]
            raise
        else:
            self.made.take(self._attempted)
        finally:
            self._attempted = Made()

    def add_snapshot(self, update: JSON) -> None:
        """Note an `add-snapshot` whose snapshot is final."""
        snapshot: JSON = update["snapshot"]
        numbers: dict[str, int] = {}
        if self.format_version > 1:
            numbers["last_sequence_number"] = max(self.last_sequence_number, snapshot["sequence-number"])
        if self.format_version > 2:
            numbers["next_row_id"] = snapshot["first-row-id"] + snapshot["added-rows"]
        self._fresh[snapshot["snapshot-id"]] = snapshot
        self._state = replace(self._state, pending=(*self._state.pending, update), **numbers)

    def update(self, update: JSON) -> None:
        """Any other update. What it breaks shows when the attempt ends, as an error of `table.metadata.apply`."""
        state = self._state
        if not state.dirty and self._is_usual_move(update):
            name = update["ref-name"]
            ref = {**state.refs.get(name, {}), "snapshot-id": update["snapshot-id"], "type": "branch"}
            log_ms = state.last_log_ms
            if name == table_metadata.MAIN:
                log_ms = self._fresh[update["snapshot-id"]]["timestamp-ms"]
            # Within one commit only the last move of a branch is a version that anybody could have read.
            own = [u for u in state.pending[self._since :] if not _moves(u, name)]
            pending = (*state.pending[: self._since], *own, update)
            self._state = replace(state, pending=pending, refs={**state.refs, name: ref}, last_log_ms=log_ms)
            return
        base, pending = state.base, state.pending
        if not state.dirty and self._since:  # what earlier members did is theirs: it goes in first
            base = self._applying(base, pending[: self._since])
            pending, self._since = pending[self._since :], 0
        gone = state.gone
        if update["action"] == "remove-snapshots":
            gone |= frozenset(update["snapshot-ids"])
        self._state = replace(state, base=base, pending=(*pending, update), dirty=True, gone=gone)

    def _is_usual_move(self, update: JSON) -> bool:
        if update["action"] != "set-snapshot-ref" or update["snapshot-id"] not in self._fresh:
            return False
        known = self._state.refs.get(update["ref-name"], {"type": "branch"})
        same = all(update.get(name) == known.get(name) for name in _SETTINGS)
        return update.get("type") == known["type"] == "branch" and same


def _moves(update: JSON, ref: str) -> bool:
    return update["action"] == "set-snapshot-ref" and update["ref-name"] == ref


class _Layers(Mapping[str, T]):
    """Several mappings as one, the first before the others; none is copied."""

    def __init__(self, layers: Sequence[Mapping[str, T]]) -> None:
        self._layers = layers

    def __getitem__(self, key: str) -> T:
        for layer in self._layers:
            found = layer.get(key)
            if found is not None:
                return found
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter({key: None for layer in self._layers for key in layer})

    def __len__(self) -> int:
        return sum(1 for _ in self)


_SETTINGS = ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")
"""What a ref says beside where it stands."""


def _state_of(metadata: Metadata) -> _State:
    log = metadata.get("snapshot-log") or ()
    return _State(
        base=metadata,
        refs=metadata.get("refs") or {},
        last_sequence_number=metadata.get("last-sequence-number") or 0,
        next_row_id=metadata.get("next-row-id") or 0,
        last_log_ms=log[-1]["timestamp-ms"] if log else 0,
    )
