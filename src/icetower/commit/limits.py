"""What the commit engine takes at once, and for how long: every queue has a bound, and every retry a budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from icetower.admission.properties import snapshots_per_s
from icetower.protocol.marks import SNAPSHOTS_PER_SECOND
from icetower.storage.port import METADATA_MAX_BYTES


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the engine."""

    group_max: int = 256
    """Commits in one metadata write."""
    appends_max: int = 2_048
    """Appends by the fast path in one metadata write, beside the commits: they share one snapshot."""
    pipeline_max: int = 2
    """Groups of one table on their way at once."""
    append_interval_s: float = 0.02
    """A group of nothing but appends by the fast path, or rows, begins so long after the last one with any, where the
    table does not say how many snapshots a second it wants. Each group is a snapshot, and Spark's streaming source
    reads snapshot by snapshot (trap L3)."""
    append_spread_s: float = 0.002
    """So much longer for each append that the last group held, or the one before: the more agents write, the fewer and
    larger the files."""
    append_interval_max_s: float = 0.052
    """But no longer than this because of it."""
    queue_max: int = 2_048
    """Commits that wait for one table; more are held back before they enter."""
    held_max: int = 16_384
    """Commits that are held back before one table's queue; more are refused at once."""
    deadline_s: float = 30.0
    """How long a commit may wait for its turn before it is withdrawn and answered 409 (trap A4)."""
    look_s: float = 5.0
    """How long it may take to look, for the last time, whether a commit is in the table that is refused unplanned."""
    rounds_max: int = 32
    """Swaps lost to outside writers before a commit gives up with 409."""
    settle_s: float = 30.0
    """How long an unknown swap is repeated before its clients are answered that the outcome is unknown."""
    read_rounds_max: int = 16
    """How often the plan of one group may ask for manifests that it lacks."""
    read_files_max: int = 10_000
    """How many manifests and manifest lists it may ask for."""
    lately_ms: int = 24 * 3_600_000
    """Data files that came no longer ago are known before a commit is judged that may add them again: as long as keys
    are kept."""
    metadata_max_bytes: int = METADATA_MAX_BYTES
    """Longer metadata would not be read again, and so none is written."""

    def linger_s(self, appends: int, before: int, properties: Mapping[str, str]) -> float:
        """How long after a group with so many appends the next group of nothing else begins, at the earliest.

        Args:
            before: how many the group before it had. Agents that wait for their answers come back in two cohorts, one
                while the other's group is written: beside a large one a small group makes too many files.
            properties: of the table.
        """
        asked = snapshots_per_s(properties.get(SNAPSHOTS_PER_SECOND, ""))
        least = self.append_interval_s if asked is None else 1 / asked
        if not least:
            return 0.0
        return max(least, min(self.append_spread_s * max(appends, before), self.append_interval_max_s))
