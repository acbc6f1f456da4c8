"""Where a write has landed, and what has landed in the table since then.

That a key is known says that its rows were written once. Whether they are still there is another question: what came
later may have replaced or removed them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icetower.iceberg.metadata import MAIN, ancestors
from icetower.mcp.tables import Desk
from icetower.protocol.marks import KEY

JSON = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Since:
    """Where a write has landed.

    Attributes:
        snapshot: as which; None where that is not known.
        at_ms: when; None where its snapshot is no longer in the table.
        commits: that have landed since; None where they can no longer be counted.
    """

    snapshot: int | None
    at_ms: int | None
    commits: int | None

    @property
    def nothing(self) -> bool:
        return self.commits == 0

    def in_words(self) -> str:
        """As the part of a sentence: written …; … have landed in the table since."""
        when = ""
        if self.at_ms is not None:
            when = f" at {dt.datetime.fromtimestamp(self.at_ms / 1000, dt.UTC).isoformat(timespec='seconds')}"
        by = "" if self.snapshot is None else f" by snapshot {self.snapshot}"
        if self.commits is None:
            later = "an unknown number of commits have"
        else:
            later = f"{self.commits} commit{' has' if self.commits == 1 else 's have'}"
        return f"written{when}{by}; {later} landed in the table since"


def since_landed(desk: Desk, table: str, written_to: str, key: str, snapshot: int | None = None) -> Since:
    """What has landed since a write under a key.

    Args:
        table: that the rows are of.
        written_to: that they were written to: itself, or its log or delta table.
        snapshot: as which it has landed, where that is known; else the tower is asked.
    """
    if snapshot is None:
        snapshot = desk.tower.landed(written_to, key).snapshot
    found = since_of(desk.tower.load(written_to)["metadata"], snapshot, key)
    if written_to == table or found.commits is None or found.at_ms is None:
        return found
    later = _after(desk.tower.load(table)["metadata"], found.at_ms)
    return Since(found.snapshot, found.at_ms, found.commits + later)


def since_of(metadata: JSON, snapshot: int | None, key: str) -> Since:
    """What has landed in a table's main branch since a snapshot; the snapshots of one write count once. Pure."""
    later: list[JSON] = []
    head = _main(metadata)
    for each in ancestors(metadata, head) if head is not None else ():
        if each["snapshot-id"] == snapshot:
            return Since(snapshot, each["timestamp-ms"], _commits(later, key))
        later.append(each)
    return Since(snapshot, None, None)


def _after(metadata: JSON, at_ms: int) -> int:
    head = _main(metadata)
    line = ancestors(metadata, head) if head is not None else ()
    return _commits([each for each in line if each["timestamp-ms"] > at_ms], "")


def _main(metadata: JSON) -> int | None:
    found = metadata.get("refs", {}).get(MAIN, {}).get("snapshot-id", metadata.get("current-snapshot-id"))
    return None if found in (None, -1) else found


def _commits(snapshots: list[JSON], own: str) -> int:
    names = {(each.get("summary") or {}).get(KEY) or each["snapshot-id"] for each in snapshots}
    return len(names - {own})
