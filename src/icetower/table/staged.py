"""`StagedTable`: the head of a table, and on top of it the members of a group that were planned already.

What is asked and done here costs the same however long the table's history is (`iceberg.growing`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from icetower.errors import CommitConflict, ValidationFailed
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.entries import Files, NeedsFile
from icetower.iceberg.growing import Growing
from icetower.iceberg.lineage import ancestors
from icetower.iceberg.listing import Listing
from icetower.iceberg.manifests import Manifest, ManifestFile
from icetower.iceberg.metadata import Metadata
from icetower.iceberg.partitions import PartitionSpec, spec_of
from icetower.protocol.snapshots import Snapshot
from icetower.table.head import HeadState

JSON = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NewFiles:
    """The files that a plan makes: for the storage, and for the plans after it.

    Attributes:
        files: bytes to be written, by path.
        listings: manifest lists by path.
        own: by the path of a manifest list, the manifests that its snapshot added itself.
        manifests: manifests that the tower wrote, by path.
        live: by the path of a new data manifest, the live files that it names, where they are known.
    """

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    listings: dict[str, Listing] = field(default_factory=dict[str, Listing])
    own: dict[str, tuple[ManifestFile, ...]] = field(default_factory=dict[str, "tuple[ManifestFile, ...]"])
    manifests: dict[str, Manifest] = field(default_factory=dict[str, Manifest])
    live: dict[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    def take(self, other: NewFiles) -> None:
        """Add those of another."""
        self.files.update(other.files)
        self.listings.update(other.listings)
        self.own.update(other.own)
        self.manifests.update(other.manifests)
        self.live.update(other.live)


class StagedTable:
    """A table on which commits are planned, one after the other. Nothing of it is in the storage yet.

    Args:
        head: the version that the plan begins with; None for a table that is being created.
        files: the manifest lists and manifests that are known.
        listings: those of the manifest lists that are known in runs, by path.
        now_ms: the server's clock.

    Attributes:
        new_files: of all commits so far.
        merges_through: the highest sequence number of manifests that may be merged by the next commit; None: none may.
    """

    def __init__(self, head: HeadState | None, files: Files, listings: Mapping[str, Listing], now_ms: int) -> None:
        self.now_ms = now_ms
        self.new_files = NewFiles()
        self.merges_through: int | None = None
        self._attempted = NewFiles()
        self._given = files
        self._given_runs = listings
        self._runs: dict[str, Listing] = {}
        self._specs: tuple[Any, Mapping[int, PartitionSpec]] | None = None
        self._created: Metadata = {}
        self._growing = None if head is None else Growing(head.metadata, now_ms=now_ms, index=head.snapshots)

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def view(self) -> Metadata:
        """The metadata as it is now, for reading at once: never keep it."""
        return self._created if self._growing is None else self._growing.view

    @property
    def metadata(self) -> Metadata:
        """The metadata as it is now, to keep."""
        return self._created if self._growing is None else self._growing.metadata

    @property
    def index(self) -> Mapping[int, JSON]:
        """All snapshots by id, to keep."""
        if self._growing is None:
            return {snapshot["snapshot-id"]: snapshot for snapshot in self._created.get("snapshots", ())}
        return self._growing.index

    @property
    def format_version(self) -> int:
        """1, 2 or 3."""
        return self.view["format-version"]

    @property
    def last_sequence_number(self) -> int:
        """Of the table; 0 in format 1."""
        return self.view.get("last-sequence-number") or 0

    @property
    def last_log_ms(self) -> int:
        """Of the newest entry of the snapshot log."""
        log = self.view.get("snapshot-log")
        return log[-1]["timestamp-ms"] if log else 0

    @property
    def refs(self) -> Mapping[str, JSON]:
        """Branches and tags."""
        return self.view.get("refs") or {}

    def ref_head(self, name: str) -> int | None:
        """The snapshot at which a ref stands; None where there is no such ref."""
        ref = self.refs.get(name)
        return None if ref is None else ref["snapshot-id"]

    @property
    def specs(self) -> Mapping[int, PartitionSpec]:
        """All partition specs by id."""
        view = self.view
        known = view["partition-specs"]
        if self._specs is None or self._specs[0] is not known:
            self._specs = known, {spec["spec-id"]: spec_of(view, spec["spec-id"]) for spec in known}
        return self._specs[1]

    @property
    def schema(self) -> JSON:
        """The current schema (JSON)."""
        view = self.view
        return next(s for s in view["schemas"] if s["schema-id"] == view["current-schema-id"])

    def snapshot(self, snapshot_id: int) -> Snapshot | None:
        """A snapshot by id, those of this group included."""
        found = self.index.get(snapshot_id) if self._growing is None else self._growing.snapshot(snapshot_id)
        return None if found is None else Snapshot(found)

    def line(self, snapshot_id: int, *, until: int | None = None) -> Iterator[Snapshot]:
        """A snapshot and its ancestors as far as the table knows them, newest first, up to and without `until`."""
        return ancestors(self.snapshot, snapshot_id, until=until)

    def is_ancestor(self, snapshot_id: int, of: int) -> bool:
        """Whether `snapshot_id` is `of` or one of its ancestors."""
        return any(snapshot.id == snapshot_id for snapshot in self.line(of))

    def steps(self, base: int | None, head: int | None) -> tuple[Snapshot, ...] | None:
        """The snapshots after `base` up to `head`, oldest first; None where `base` is no ancestor of `head`."""
        if head is None:
            return () if base is None else None
        found = list(self.line(head, until=base))
        oldest = found[-1].parent_id if found else base
        return tuple(reversed(found)) if oldest == base else None

    @property
    def files(self) -> Files:
        """Everything that may be looked at: what was given, and what this plan has made."""
        before, now = self.new_files, self._attempted
        return Files(
            self._given.lists,
            _Layers((now.manifests, before.manifests, self._given.manifests)),
            _Layers((now.own, before.own, self._given.own)),
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
        path = snapshot.manifest_list
        if path is None:
            raise ValidationFailed(
                f"snapshot {snapshot_id} lists its manifests inside the metadata, as before 2019; rewrite the table",
                rule="snapshot.manifest-list",
            )
        new = self._attempted.listings.get(path) or self.new_files.listings.get(path)
        if new is not None:
            return new
        if path not in self._runs:
            given = self._given_runs.get(path)
            if given is None and path not in self._given.lists:
                raise NeedsFile(path, is_list=True)
            # Kept for the whole plan: a cache behind it may let go of it.
            self._runs[path] = given if given is not None else Listing.of(self._given.lists[path])
        return self._runs[path]

    # -- what is done to it ---------------------------------------------------------------------------------------

    @contextmanager
    def attempt(self) -> Generator[NewFiles]:
        """One commit, all or nothing: what raises leaves the table as it was. Gives the files that the commit makes."""
        before = None if self._growing is None else self._growing.savepoint()
        through = self.merges_through
        try:
            yield self._attempted
        except BaseException:
            self.merges_through = through
            if self._growing is not None and before is not None:
                self._growing.roll_back(before)
            raise
        else:
            self.new_files.take(self._attempted)
        finally:
            self._attempted = NewFiles()

    def apply(self, updates: Sequence[JSON]) -> None:
        """Updates as one commit, whose snapshots are final. Raises as `iceberg.metadata.apply` does."""
        if self._growing is None:
            self._created = table_metadata.apply(None, updates, now_ms=self.now_ms)
        else:
            self._growing.apply(updates)

    @contextmanager
    def trying(self) -> Generator[Callable[[Sequence[JSON]], None]]:
        """To look at the table as it is with the first updates of a commit, and then with more of them.

        What it gives takes the updates from the first on; in the end none is applied.
        """
        growing, done = self._growing, 0
        before = None if growing is None else growing.savepoint()

        def look(updates: Sequence[JSON]) -> None:
            nonlocal done
            more = updates[done:]
            # Snapshots go on top of what is there. Others may mean what came before them in the same commit.
            if growing is not None and before is not None and any(each["action"] != "add-snapshot" for each in more):
                growing.roll_back(before)
                more = updates
            if more:
                self.apply(more if growing is not None else updates)
            done = len(updates)

        yield look
        if growing is not None and before is not None:
            growing.roll_back(before)


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
