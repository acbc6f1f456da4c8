"""Retention: which snapshots leave the table's history with a swap. Pure (trap H1).

It is asked for by table properties and by nothing else:

    icetower.retention.snapshots-max    so many snapshots stay on each branch's line
    icetower.retention.age-max-ms       nothing older than this stays

Where both are set, each of them lets go what it would alone. A line is cut in one place: what goes are its oldest
snapshots, and never one in the middle. Sinks find their progress by walking from parent to parent, and rebase looks at
everything between a commit's base and the head: for both, a hole is as bad as an end. The cut lies before

* the head of the branch;
* every snapshot younger than ten minutes: a client that cannot find its snapshot after an unknown answer writes again;
* what the branch itself says that is kept (`min-snapshots-to-keep`, `max-snapshot-age-ms`);
* the bases of all commits that are queued or under way;
* the newest snapshot that tells the progress of each sink (`table.sinks`).

A snapshot on several lines stays as long as one of them keeps it; one with a tag or a branch at it stays, as in
Iceberg's own expiry, though its ancestors may go. Snapshots on no branch's line (staged, or rolled back) go by age
only.

Looking costs a walk through the history. It is spared unless a sixteenth of the snapshots could go, so that each
commit pays for about sixteen steps, whatever the length; histories may be so much longer than what is asked for. (A
sink that fell silent long ago holds all history since, and then each group walks: `icetower.retention.sinks-max-ms`
says how long a silent sink is waited for.)

Source: Apache Iceberg 1.12, `RemoveSnapshots`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icetower.admission.properties import positive
from icetower.iceberg.lineage import ancestors
from icetower.iceberg.metadata import Metadata
from icetower.protocol.marks import RETENTION_AGE_MAX_MS, RETENTION_SINKS_MAX_MS, RETENTION_SNAPSHOTS_MAX
from icetower.protocol.snapshots import Snapshot
from icetower.table.sinks import sinks_of

JSON = Mapping[str, Any]

_RULES = (RETENTION_SNAPSHOTS_MAX, RETENTION_AGE_MAX_MS, RETENTION_SINKS_MAX_MS)
GC_ENABLED = "gc.enabled"
"""Iceberg's own property: where it is false, the files may belong to another table too, and nothing expires."""

YOUNG_MS = 10 * 60_000
"""No snapshot younger than this goes."""

_SPARED_PART = 16
"""History is looked at when more than one of so many snapshots could go."""


def expirable(
    metadata: Metadata, snapshots: Mapping[int, JSON], *, now_ms: int, keep: frozenset[int]
) -> tuple[int, ...]:
    """The snapshots that the table's properties let go now, in the table's order; for `remove-snapshots`.

    Args:
        metadata: the table as the group leaves it.
        snapshots: all its snapshots, by id.
        now_ms: the server's clock.
        keep: snapshots that must stay, and all between them and the heads: the bases of commits under way.
    """
    rule = _Rule.of(metadata, now_ms)
    if rule is None or not _worthwhile(metadata, rule):
        return ()
    refs = metadata.get("refs") or {}
    kept = {ref["snapshot-id"] for ref in refs.values()} | keep
    on_lines: set[int] = set()
    for ref in refs.values():
        if ref.get("type") == "branch":
            line = list(ancestors(snapshots.get, ref["snapshot-id"]))
            on_lines.update(snapshot.id for snapshot in line)
            kept.update(snapshot.id for snapshot in line[: _cut(line, ref, rule, keep)])
    return tuple(
        snapshot_id
        for snapshot_id, snapshot in snapshots.items()
        if snapshot_id not in kept and (snapshot_id in on_lines or rule.is_overdue(snapshot))
    )


@dataclass(frozen=True, slots=True)
class _Rule:
    """What the table's properties ask for; None where they say nothing."""

    now_ms: int
    snapshots_max: int | None
    age_max_ms: int | None
    sinks_max_ms: int | None

    @classmethod
    def of(cls, metadata: Metadata, now_ms: int) -> _Rule | None:
        properties = metadata.get("properties") or {}
        # One that makes no sense asks for nothing: it must not stop commits or cost history.
        rule = cls(now_ms, *(positive(str(properties.get(name))) for name in _RULES))
        asked = rule.snapshots_max is not None or rule.age_max_ms is not None
        return rule if asked and str(properties.get(GC_ENABLED, "true")).lower() != "false" else None

    def is_overdue(self, snapshot: JSON) -> bool:
        """Whether it is too old by the table's own measure, and not young."""
        return self.age_max_ms is not None and snapshot["timestamp-ms"] < self.now_ms - max(self.age_max_ms, YOUNG_MS)


def _worthwhile(metadata: Metadata, rule: _Rule) -> bool:
    """Whether enough snapshots could go to be worth a walk, as far as that shows without one."""
    snapshots = metadata.get("snapshots") or ()
    spared = len(snapshots) // _SPARED_PART
    if len(snapshots) <= spared + 1:
        return False
    # Listed in the order of their commits: what could go are the first ones.
    return rule.is_overdue(snapshots[spared]) or (
        rule.snapshots_max is not None
        and len(snapshots) - spared > rule.snapshots_max
        and snapshots[spared]["timestamp-ms"] < rule.now_ms - YOUNG_MS
    )


def _cut(line: list[Snapshot], ref: JSON, rule: _Rule, keep: frozenset[int]) -> int:
    """How many snapshots of a branch's line stay, counted from its head."""
    min_count = max(ref.get("min-snapshots-to-keep") or 1, 1)
    # Everything at or after this time stays, and everything before the other goes for its age.
    young_ms = rule.now_ms - max(YOUNG_MS, ref.get("max-snapshot-age-ms") or 0)
    overdue_ms = 0 if rule.age_max_ms is None else rule.now_ms - rule.age_max_ms
    count = len(line) if rule.snapshots_max is None else rule.snapshots_max
    stay = 0
    for at in range(len(line) - 1, -1, -1):
        time_ms = line[at].timestamp_ms
        is_due = at >= count or time_ms < overdue_ms
        if not is_due or at < min_count or time_ms >= young_ms or line[at].id in keep:
            stay = at + 1
            break
    sinks_since_ms = 0 if rule.sinks_max_ms is None else rule.now_ms - rule.sinks_max_ms
    telling = [(at, sinks) for at in range(stay, len(line)) if (sinks := sinks_of(line[at].summary))]
    # Only where something that could go tells the progress of a sink, the rest is searched for newer progress.
    seen = {sink for snapshot in line[:stay] for sink in sinks_of(snapshot.summary)} if telling else set()
    for at, sinks in telling:
        if not seen.issuperset(sinks) and line[at].timestamp_ms >= sinks_since_ms:
            stay = at + 1
        seen.update(sinks)
    return stay
