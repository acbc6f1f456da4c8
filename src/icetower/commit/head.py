"""`Heads`: a committer's way to the versions of its tables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from icetower.ambient import Ambient
from icetower.commit.group_keys import GroupKeys
from icetower.errors import NotFound
from icetower.files.parsing import Parsing
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.metadata import Metadata
from icetower.ledger.ledger import Ledger
from icetower.protocol.names import Identifier
from icetower.recent import Budget, Recent
from icetower.storage.port import METADATA_FILE, METADATA_MAX_BYTES, Storage
from icetower.table.head import HeadState
from icetower.table.origins import through_a_tower
from icetower.upstream.port import Upstream

TABLES_SHARE = 0.0625
"""The part of the caches' budget for each thing that is remembered of tables' names."""

VERSIONS_MAX = 4
"""Versions of one table that are kept beside its newest: a client that has just asked for the pointer may read them."""

ON_LOOP_BYTES = 256 * 1024
"""A metadata file of so many bytes is parsed on the event loop, which takes 5 ms."""

GZIP = b"\x1f\x8b"

_LOCATION_BYTES = 250

OnBypass = Callable[[Identifier, HeadState, Sequence[Mapping[str, Any]]], None]
"""(table, its head, snapshots of it); must not block."""


class Heads:
    """The heads of tables, read through the upstream: its pointer is asked each time, the file behind it read once.

    Args:
        ledger: spares reading group files whose keys it has.
        on_bypass: is called with snapshots that have come to a table since it was loaded last, through no tower.
        parsing: reads long metadata files away from the event loop.
    """

    def __init__(
        self,
        upstream: Upstream,
        storage: Storage,
        *,
        budget: Budget | None = None,
        metadata_max_bytes: int = METADATA_MAX_BYTES,
        ledger: Ledger | None = None,
        ambient: Ambient | None = None,
        on_bypass: OnBypass | None = None,
        parsing: Parsing | None = None,
    ) -> None:
        self._parsing = parsing
        self._on_bypass = on_bypass
        self._bound = METADATA_FILE._replace(most_bytes=metadata_max_bytes)
        budget = budget or Budget()
        self._loaded: Recent[str] = budget.cache("tables", share=TABLES_SHARE)
        self._own: Recent[bool] = budget.cache("tables", share=TABLES_SHARE)
        self._upstream = upstream
        self._storage = storage
        self._recent: Recent[HeadState] = budget.cache("versions of tables")
        self._newest: Recent[tuple[str, ...]] = budget.cache("tables", share=TABLES_SHARE)
        self.group_keys = GroupKeys(storage, ledger, ambient)
        self._reading: dict[str, asyncio.Task[HeadState]] = {}

    async def load(self, identifier: Identifier, *, verify: bool = False, settled: bool = False) -> HeadState:
        """The table as it stands now.

        Args:
            settled: wait for the swaps that are under way, of dead servers too: to look for a commit that is refused.
            verify: look whether the metadata file is still there, though its content is known. Readers want to hear it.

        Raises:
            NoSuchTable: there is no such table.
            NotFound: its metadata file is not there.
            UpstreamFailed: the catalog failed, or a swap stays under way for too long.
        """
        ask = self._upstream.settled_location if settled else self._upstream.location
        location = await ask(identifier)
        while True:
            try:
                if verify and self._recent.get(location) is not None and not await self._storage.exists(location):
                    raise _missing(location)
                return self._noticed(identifier, await self.at(location))
            except NotFound:
                # Old metadata files may be deleted after a commit: then the pointer is asked for again.
                asked_before, location = location, await ask(identifier)
                if location == asked_before:
                    raise

    def _noticed(self, identifier: Identifier, head: HeadState) -> HeadState:
        """Tell of what has come around the towers. Of a table that is loaded for the first time nothing is known."""
        name = str(identifier)
        last = self._loaded.get(name)
        if last != head.location:
            self._loaded.put(name, head.location, _LOCATION_BYTES)
            # Of a version that this tower swapped in, what it was put on was loaded before.
            before = None if last is None or head.location in self._own else self._recent.get(last)
            same = before is not None and before.metadata.get("table-uuid") == head.metadata.get("table-uuid")
            if self._on_bypass is not None and before is not None and same:
                new = [s for id_, s in head.snapshots.items() if id_ not in before.snapshots and not through_a_tower(s)]
                if new:
                    self._on_bypass(identifier, head, new)
        return head

    async def at(self, location: str, *, anew: bool = False) -> HeadState:
        """The table at one metadata file.

        Args:
            anew: read it even where it is known: the ledger may have forgotten keys that it had when it was read.
        """
        head = None if anew else self._recent.get(location)
        if head is not None:
            return head
        task = self._reading.get(location)
        if task is None:
            task = asyncio.create_task(self._read(location))
            self._reading[location] = task

            def ended(read: asyncio.Task[HeadState]) -> None:
                del self._reading[location]
                if not read.cancelled():  # all who asked may have gone by now; its error needs no reader then
                    read.exception()

            task.add_done_callback(ended)
        return await asyncio.shield(task)

    async def _read(self, location: str) -> HeadState:
        try:
            data = await self._storage.read(location, self._bound)
        except NotFound as error:
            raise _missing(location) from error
        metadata = await self._parsed(data)
        keys = await self.group_keys.keys_of(metadata, self._before(metadata))
        head = HeadState(location, metadata, indexed=keys)
        self._put(head)
        return head

    async def _parsed(self, data: bytes) -> Metadata:
        """Compressed files are unpacked, too: what is short here may be long then (trap A8)."""
        parse = partial(table_metadata.parse, data, most_bytes=self._bound.most_bytes)
        if self._parsing is None or (len(data) <= ON_LOOP_BYTES and not data.startswith(GZIP)):
            return parse()
        return await self._parsing.shared(parse)

    def remember(self, head: HeadState, files: Mapping[str, bytes] | None = None) -> None:
        """Keep a head that was just swapped in, so that it is not read back. `files`: what was written for it."""
        self.group_keys.landed(head, self._before(head.metadata), files or {})
        self._own.put(head.location, True, 0)
        self._put(head)

    def _put(self, head: HeadState) -> None:
        self._recent.put(head.location, head, head.memory_bytes)
        uuid = str(head.metadata.get("table-uuid"))
        older = tuple(location for location in self._newest.get(uuid) or () if location != head.location)
        for location in older[:1]:
            before = self._recent.peek(location)
            if before is not None:
                self._recent.reweigh(location, before.memory_bytes_without_keys)
        # Callers may still be answered with the version before. The ones before that hold only what they share.
        for location in older[1:2]:
            before = self._recent.peek(location)
            if before is not None:
                before.shed()
                self._recent.reweigh(location, self._weight_of_older(before))
        for location in older[VERSIONS_MAX:]:
            self._recent.forget(location)
        self._newest.put(uuid, (head.location, *older[:VERSIONS_MAX]), _LOCATION_BYTES * (VERSIONS_MAX + 1))

    def _weight_of_older(self, head: HeadState) -> int:
        # A version that was read from its file shares nothing with others.
        return head.own_memory_bytes if head.location in self._own else head.memory_bytes

    def newer(self, head: HeadState) -> HeadState:
        """The version of a table that was seen last, or the one that the caller has."""
        return self._before(head.metadata) or head

    def _before(self, metadata: Metadata) -> HeadState | None:
        """The version of this table that was seen last, if it is still known."""
        locations = self._newest.get(str(metadata.get("table-uuid")))
        return None if locations is None else self._recent.get(locations[0])


def _missing(location: str) -> NotFound:
    return NotFound(
        f"Failed to open input stream for file: {location}. The catalog points at it, but it is not there; restore it, "
        "or register the table again at an older one",
        rule="upstream.metadata",
        next_step="none",
    )
