"""Commits that came to a table around the tower, noticed when the table is loaded after them.

The newest are kept in memory, for `GET /icetower/v1/bypasses`, and each is a line on the server's log. `icetower audit`
finds them in the table's history at any time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from icetower.ambient import Ambient
from icetower.errors import IcetowerError
from icetower.files.changes import Manifests
from icetower.iceberg.partitions import partition_name
from icetower.observe.events import Event, Events, one_line
from icetower.protocol.names import Identifier
from icetower.table.head import HeadState
from icetower.table.origins import origin_of

KEPT = 1_000
PARTITIONS_MAX = 20
MANIFESTS_MAX = 16
"""Of one snapshot that are opened for its partitions."""
AT_ONCE_MAX = 8
"""Loads of tables whose news are looked into at a time; of what comes beyond that the partitions are left out."""


@dataclass(frozen=True, slots=True)
class Bypass:
    """One commit.

    Attributes:
        noticed_ms: when it was noticed; committed_ms: when it was made, by its own clock.
        origin: `engine`, `application` and `user`, as far as it says.
        partitions: those that it touches, by name, a few; empty where they could not be read.
    """

    table: str
    snapshot_id: int
    operation: str
    committed_ms: int
    noticed_ms: int
    origin: Mapping[str, str]
    partitions: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As the control API shows it."""
        found = asdict(self)
        return {**found, "snapshot-id": found.pop("snapshot_id"), "partitions": list(self.partitions)}


class Bypasses:
    """What went around the tower since it was started.

    Args:
        keep: takes each, to be counted for longer.
    """

    def __init__(
        self,
        manifests: Manifests,
        ambient: Ambient,
        events: Events,
        keep: Callable[[Bypass], None] = lambda _: None,
    ) -> None:
        self._manifests = manifests
        self._keep = keep
        self._ambient = ambient
        self._events = events
        self._kept: deque[Bypass] = deque(maxlen=KEPT)
        self._looking: set[asyncio.Task[None]] = set()

    def newest(self, limit: int) -> list[Bypass]:
        """The newest first."""
        return list(self._kept)[::-1][:limit]

    def noticed(self, identifier: Identifier, head: HeadState, snapshots: Sequence[Mapping[str, Any]]) -> None:
        """A table has snapshots that came through no tower. Returns at once."""
        if len(self._looking) >= AT_ONCE_MAX:
            for snapshot in snapshots:
                self._tell(identifier, snapshot, ())
            return
        task = asyncio.create_task(self._look(identifier, head, snapshots))
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def close(self) -> None:
        """Finish what is being looked into."""
        await asyncio.gather(*self._looking, return_exceptions=True)

    async def _look(self, identifier: Identifier, head: HeadState, snapshots: Sequence[Mapping[str, Any]]) -> None:
        for snapshot in snapshots:
            try:
                partitions = await self._partitions(head, snapshot)
            except (IcetowerError, KeyError, ValueError):  # whoever goes around the tower may write anything
                partitions = ()
            self._tell(identifier, snapshot, partitions)

    async def _partitions(self, head: HeadState, snapshot: Mapping[str, Any]) -> tuple[str, ...]:
        rows = await self._manifests.list_at(str(snapshot["manifest-list"]))
        own = [row for row in rows if row.added_snapshot_id == snapshot["snapshot-id"]][:MANIFESTS_MAX]
        names: dict[str, None] = {}
        for row in own:
            for entry in (await self._manifests.manifest_at(row.path)).entries:
                if entry.snapshot_id in (None, snapshot["snapshot-id"]) and row.spec_id in head.specs:
                    names[one_line(partition_name(head.specs[row.spec_id], entry.file.partition))] = None
        return tuple(names)[:PARTITIONS_MAX]

    def _tell(self, identifier: Identifier, snapshot: Mapping[str, Any], partitions: tuple[str, ...]) -> None:
        summary: Mapping[str, Any] = snapshot.get("summary") or {}
        bypass = Bypass(
            table=str(identifier),
            snapshot_id=int(snapshot["snapshot-id"]),
            operation=one_line(str(summary.get("operation") or "")),
            committed_ms=int(snapshot.get("timestamp-ms") or 0),
            noticed_ms=self._ambient.now_ms(),
            origin={name: one_line(word) for name, word in origin_of(snapshot).items()},
            partitions=partitions,
        )
        self._kept.append(bypass)
        self._keep(bypass)
        self._events.say(
            Event.BYPASS,
            table=bypass.table,
            snapshot=bypass.snapshot_id,
            operation=bypass.operation,
            written_by=[f"{name} {value}" for name, value in bypass.origin.items()] or ["not known"],
            partitions=partitions or ["not known"],
        )
