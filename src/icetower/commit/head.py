"""`HeadState`: what a committer knows of a table between two swaps."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson

from icetower.catalog.ports import Storage, Upstream
from icetower.errors import NotFound
from icetower.protocol.marks import KEY, PRINCIPAL, REF
from icetower.protocol.names import Identifier
from icetower.recent import Recent
from icetower.table import metadata as table_metadata
from icetower.table.metadata import Metadata


@dataclass(frozen=True)
class HeadState:
    """One version of a table: its metadata file, and what was derived from it once. Never changed, only replaced."""

    location: str
    metadata: Metadata
    _answers: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def snapshots(self) -> Mapping[int, Mapping[str, Any]]:
        """Snapshots by id."""
        return {snapshot["snapshot-id"]: snapshot for snapshot in self.metadata.get("snapshots", ())}

    @cached_property
    def keys(self) -> Mapping[tuple[str, str, str], tuple[int, ...]]:
        """(principal, ref, idempotency key) → the snapshots committed under it. One scan of all snapshots a version."""
        found: dict[tuple[str, str, str], tuple[int, ...]] = {}
        for snapshot_id, snapshot in self.snapshots.items():
            summary = snapshot.get("summary") or {}
            if KEY in summary:
                owner = (str(summary.get(PRINCIPAL, "")), str(summary.get(REF, "")), str(summary[KEY]))
                found[owner] = (*found.get(owner, ()), snapshot_id)
        return found

    @cached_property
    def json_bytes(self) -> bytes:
        """The metadata as it goes over the wire; serialised once for everybody who waits (trap A5)."""
        return orjson.dumps(self.metadata)

    @property
    def file_bytes(self) -> bytes:
        """The metadata as its file holds it: compressed where its name says so."""
        return gzip.compress(self.json_bytes, mtime=0) if ".gz." in self.location else self.json_bytes

    def answer(self, config: bytes, *, compressed: bool) -> bytes:
        """A load or commit answer of the specification (`LoadTableResult`), built and compressed once a version."""
        name = f"{compressed}:{config.decode()}"
        if name not in self._answers:
            body = b'{"metadata-location":' + orjson.dumps(self.location)
            body += b',"metadata":' + self.json_bytes + b',"config":' + config + b"}"
            self._answers[name] = gzip.compress(body, compresslevel=1) if compressed else body
        return self._answers[name]

    def etag(self, variant: str) -> str:
        """A strong ETag of this version; `variant` tells apart answers that differ by caller (trap A6)."""
        return '"' + hashlib.sha256(f"{self.location}\n{variant}".encode()).hexdigest()[:32] + '"'


class Heads:
    """The heads of tables, read through the upstream: its pointer is asked each time, the file behind it read once."""

    def __init__(self, upstream: Upstream, storage: Storage, *, bytes_max: int = 256 * 1024 * 1024) -> None:
        self._upstream = upstream
        self._storage = storage
        self._recent: Recent[HeadState] = Recent(bytes_max)
        self._reading: dict[str, asyncio.Task[HeadState]] = {}

    async def load(self, identifier: Identifier, *, verify: bool = False) -> HeadState:
        """The table as it stands now.

        Args:
            verify: look whether the metadata file is still there, though its content is known. Readers want to hear it.

        Raises:
            NoSuchTable: there is no such table.
            NotFound: its metadata file is not there.
        """
        location = await self._upstream.location(identifier)
        if verify and self._recent.get(location) is not None and not await self._storage.exists(location):
            raise _missing(location)
        return await self.at(location)

    async def at(self, location: str) -> HeadState:
        """The table at one metadata file."""
        head = self._recent.get(location)
        if head is not None:
            return head
        task = self._reading.get(location)
        if task is None:
            task = asyncio.create_task(self._read(location))
            self._reading[location] = task
            task.add_done_callback(lambda _: self._reading.pop(location, None))
        return await asyncio.shield(task)

    async def _read(self, location: str) -> HeadState:
        try:
            data = await self._storage.read(location)
        except NotFound as error:
            raise _missing(location) from error
        head = HeadState(location, table_metadata.parse(data))
        self.remember(head, len(data))
        return head

    def remember(self, head: HeadState, size_bytes: int) -> None:
        """Keep a head that was just written, so that nobody reads it back."""
        self._recent.put(head.location, head, size_bytes)


def _missing(location: str) -> NotFound:
    return NotFound(
        f"Failed to open input stream for file: {location}. The catalog points at it, but it is not there; restore it, "
        "or register the table again at an older one",
        rule="upstream.metadata",
        next_step="none",
    )
