"""Whose the rows of a rebased snapshot are: a publisher's name stands on it, and others may have made it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from icetower.audit.wording import called
from icetower.errors import BadRequest
from icetower.iceberg.manifests import ADDED, DATA, DELETED, Manifest, ManifestFile
from icetower.protocol.marks import AUTHOR, GROUP_FILE, PRINCIPAL
from icetower.protocol.snapshots import Snapshot
from icetower.publish.comparison import origins_of
from icetower.revert.reverting import Own

JSON = Mapping[str, Any]

WHOLE = "whole"
"""All of a snapshot is the agents'."""


@dataclass(frozen=True, slots=True)
class Published:
    """The rebased snapshots of a table.

    Attributes:
        snapshots: of the table, by id. Those of the branch may have expired.
        of: whether a principal is one of the agents.
        own_of_group: what of a snapshot of appends by the fast path is the agents'.
        rows_of, manifest: read a snapshot's manifest list, and a manifest.
    """

    snapshots: Mapping[int, JSON]
    of: Callable[[object], bool]
    own_of_group: Callable[[JSON], Awaitable[Own]]
    rows_of: Callable[[JSON], Awaitable[tuple[ManifestFile, ...]]]
    manifest: Callable[[str], Awaitable[Manifest]]

    async def own(self, copy: JSON) -> Own | str | None:
        """What of a snapshot the agents have made: `WHOLE`, some files, or None.

        Raises:
            BadRequest: ``revert.blind``, several have made it, and it cannot be determined who made what.
        """
        authors = [name for name in str((copy.get("summary") or {}).get(AUTHOR, "")).split(",") if name]
        mine = [name for name in authors if self.of(name)]
        if authors and len(mine) in (0, len(authors)):
            return WHOLE if mine else None
        made = [self.snapshots.get(each) for each in sorted(origins_of(Snapshot(copy), self.snapshots.get))]
        found: dict[str, Any] = {}
        for part in made:
            if part is None:
                if authors:
                    raise _unknown(copy, "snapshots of its branch have expired")
                continue
            summary: JSON = part.get("summary") or {}
            if GROUP_FILE in summary:
                found |= await self.own_of_group(part)
            elif self.of(summary.get(PRINCIPAL)):
                if len(made) == 1:
                    return WHOLE
                found |= await self._added_by(part, copy)
        return found or None

    async def _added_by(self, part: JSON, copy: JSON) -> Own:
        """The data files that a snapshot of the branch added, where it did nothing else."""
        found: dict[str, None] = {}
        for row in await self.rows_of(part):
            if row.added_snapshot_id != part["snapshot-id"]:
                continue
            for entry in (await self.manifest(row.path)).entries:
                if entry.status == DELETED or (entry.status == ADDED and entry.file.content != DATA):
                    raise _unknown(copy, f"{called(part)} of its branch has removed or deleted")
                if entry.status == ADDED:
                    found[entry.file.path] = None
        return found


def _unknown(copy: JSON, why: str) -> BadRequest:
    return BadRequest(
        f"{called(copy)} was published as one snapshot for several agents, and {why}: it cannot be determined which "
        "of it is the agent's. Take back what its publisher has published, or name a time after it",
        rule="revert.blind",
    )
