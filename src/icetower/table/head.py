"""`HeadState`: one version of a table, and what is derived from it once. The commit engine plans on it, the conflict
model judges by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from icetower.iceberg.metadata import Metadata
from icetower.iceberg.partitions import PartitionSpec, spec_of
from icetower.protocol.snapshots import Snapshot
from icetower.table.client_properties import Allowed, withheld
from icetower.table.document import Document
from icetower.table.keys import Keys

_MEMORY_FACTOR = 9
"""A version takes about five times its JSON when it is parsed; its JSON in parts and as a whole, and the answer that
carries it, take about as much again each."""

_SNAPSHOT_BYTES = 400
"""A snapshot's places in lists and indexes, and its key."""

_VERSION_BYTES, _SHARED_SNAPSHOT_BYTES = 20_000, 130
"""What a version takes that the next one was made from: its own lists and indexes of snapshots."""


@dataclass(frozen=True)
class HeadState:
    """One version of a table: its metadata file, and what was derived from it once. Never changed, only replaced.

    Attributes:
        indexed: the keys, where they are known already.
        answers: what the gateway has made of this version for its callers; kept here so that it goes with the version.
        own_answers: the same for single callers, in parts; their own parts take no more than the version's JSON.
    """

    location: str
    metadata: Metadata
    indexed: Keys | None = field(default=None, compare=False, repr=False)
    answers: dict[str, tuple[bytes, ...]] = field(
        default_factory=dict[str, tuple[bytes, ...]], compare=False, repr=False
    )
    own_answers: dict[str, tuple[bytes, ...]] = field(
        default_factory=dict[str, tuple[bytes, ...]], compare=False, repr=False
    )
    _index: Mapping[int, Mapping[str, Any]] | None = field(default=None, compare=False, repr=False)
    _written_before: Document | None = field(default=None, compare=False, repr=False)
    _withheld: tuple[Allowed, Mapping[str, None]] | None = field(default=None, compare=False, repr=False)

    def after(
        self,
        location: str,
        metadata: Metadata,
        *,
        snapshots: Mapping[int, Mapping[str, Any]] | None = None,
        indexed: Keys | None = None,
    ) -> HeadState:
        """The version that follows this one; what both have in common is not serialised or packed again.

        Args:
            snapshots: the new version's snapshots by id, where they are known (`Growing.index`).
            indexed: the new version's keys, where they are known.
        """
        return HeadState(
            location,
            metadata,
            indexed,
            _index=snapshots,
            _written_before=self.__dict__.get("document", self._written_before),
        )

    @cached_property
    def snapshots(self) -> Mapping[int, Mapping[str, Any]]:
        """Snapshots by id."""
        if self._index is not None:
            return self._index
        return {snapshot["snapshot-id"]: snapshot for snapshot in self.metadata.get("snapshots", ())}

    def snapshot(self, snapshot_id: int) -> Snapshot | None:
        """A snapshot by id."""
        found = self.snapshots.get(snapshot_id)
        return None if found is None else Snapshot(found)

    @cached_property
    def of_refs(self) -> HeadState:
        """The same version with the snapshots alone that refs name, as some clients load it."""
        named = {ref["snapshot-id"] for ref in self.metadata.get("refs", {}).values()}
        snapshots = [each for each in self.metadata.get("snapshots", ()) if each["snapshot-id"] in named]
        return HeadState(self.location, {**self.metadata, "snapshots": snapshots})

    @property
    def format_version(self) -> int:
        """1, 2 or 3."""
        return self.metadata["format-version"]

    def ref(self, name: str) -> int | None:
        """The snapshot that a branch or tag points at; None if there is no such ref."""
        found = (self.metadata.get("refs") or {}).get(name)
        return None if found is None else found["snapshot-id"]

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        """The current schema (JSON)."""
        current = self.metadata.get("current-schema-id", 0)
        schemas = self.metadata.get("schemas") or [self.metadata["schema"]]
        return next((schema for schema in schemas if schema.get("schema-id", 0) == current), schemas[-1])

    @cached_property
    def specs(self) -> Mapping[int, PartitionSpec]:
        """All partition specs by id."""
        known = self.metadata.get("partition-specs") or [{"spec-id": 0}]
        return {spec["spec-id"]: spec_of(self.metadata, spec["spec-id"]) for spec in known}

    @cached_property
    def keys(self) -> Keys:
        """The idempotency keys and numbered commits in this version; where they are not known, by one scan of it."""
        return Keys.of(self.snapshots.values()) if self.indexed is None else self.indexed

    def withheld(self, allowed: Allowed) -> Mapping[str, None]:
        """`client_properties.withheld`, looked for once a version: a table may have thousands of properties.

        Args:
            allowed: the same ones for as long as a server runs.
        """
        if self._withheld is None or self._withheld[0] is not allowed:
            found = allowed, withheld(self.metadata.get("properties") or {}, allowed)
            object.__setattr__(self, "_withheld", found)  # derived, like what is cached below
            return found[1]
        return self._withheld[1]

    @cached_property
    def document(self) -> Document:
        """The metadata as JSON, of which the version before it has made the most part already."""
        return Document(self.metadata, self._written_before)

    @property
    def size_bytes(self) -> int:
        """Length of the metadata as JSON."""
        return self.document.size_bytes

    @property
    def memory_bytes(self) -> int:
        """What it takes in memory, about: the metadata parsed, its parts and answers as bytes, its keys.

        One snapshot of the fast path stands for thousands of keys, of which the metadata says nothing.
        """
        return self.memory_bytes_without_keys + (0 if self.indexed is None else self.indexed.memory_bytes)

    @property
    def memory_bytes_without_keys(self) -> int:
        """The same without its keys, which the version after it shares."""
        return _MEMORY_FACTOR * self.size_bytes + _SNAPSHOT_BYTES * len(self.metadata.get("snapshots") or ())

    @property
    def own_memory_bytes(self) -> int:
        """What it takes besides what the version after it shares with it, once it has `shed` its answers."""
        return _VERSION_BYTES + _SHARED_SNAPSHOT_BYTES * len(self.metadata.get("snapshots") or ())

    def shed(self) -> None:
        """Let go of what can be made again: the version is not the newest any more."""
        self.answers.clear()
        self.own_answers.clear()
        document: Document | None = self.__dict__.get("document")
        if document is not None:
            document.shed()

    @property
    def json_bytes(self) -> bytes:
        """The metadata as it goes over the wire; serialised once for everybody who waits (trap A5)."""
        return self.document.data

    @property
    def file_bytes(self) -> bytes:
        """The metadata as its file holds it: compressed where its name says so."""
        return self.document.gzipped() if ".gz." in self.location else self.json_bytes
