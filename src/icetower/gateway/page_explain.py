"""What stood between a commit's base and its end: the timeline of `icetower explain`, from the table's own history."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icetower.commit.head import Heads
from icetower.errors import IcetowerError
from icetower.ledger.attempts import Attempt
from icetower.protocol.names import Identifier
from icetower.protocol.snapshots import Snapshot
from icetower.table.head import HeadState

BETWEEN_MAX = 40
"""Snapshots that are shown."""
WALKED_MAX = 5_000
"""Snapshots that are walked back in search of the base."""
NAMED_MAX = 4
_SNAPSHOT = re.compile(r"(?<![\w.-])\d{12,19}(?![\w.-])")
_COUNTS = (
    ("added-data-files", "adds {} data files"),
    ("deleted-data-files", "removes {} data files"),
    ("added-delete-files", "adds {} delete files"),
    ("removed-delete-files", "removes {} delete files"),
)


@dataclass(frozen=True, slots=True)
class Between:
    """One snapshot of the table. `part`: ``base``, ``between``, or ``own``; `named`: the refusal names it."""

    snapshot: int
    part: str
    operation: str
    at_ms: int | None
    did: str
    named: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """Snapshots from the base on, oldest first. `missing`: the table no longer has the base; `more` are left out."""

    snapshots: tuple[Between, ...]
    more: int
    missing: bool


class Explainer:
    """One for a tower."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads

    async def timeline(self, attempt: Attempt) -> Timeline | None:
        """What others did between an attempt's base and its end; None where it has no base, or nothing can be read."""
        if attempt.base is None and not attempt.snapshots:
            return None
        try:
            head = await self._heads.load(Identifier.parse(attempt.table))
        except IcetowerError:
            return None
        return timeline_of(head, attempt)


def timeline_of(head: HeadState, attempt: Attempt) -> Timeline:
    """The line of snapshots on which an attempt stood, as far as the table still has it."""
    named = set(named_snapshots(attempt.message))
    own = set(attempt.snapshots)
    line: list[Mapping[str, Any]] = []
    at = _end_of(head, attempt)
    while at is not None and at in head.snapshots and len(line) < WALKED_MAX:
        snapshot = head.snapshots[at]
        line.append(snapshot)
        if at == attempt.base:
            break
        at = Snapshot(snapshot).parent_id
    # Without a base its writer knew of nothing in the table.
    found_base = bool(line) and (attempt.base is None or line[-1]["snapshot-id"] == attempt.base)
    # What came after a refusal had no part in it.
    kept = [
        each
        for each in reversed(line)
        if attempt.snapshots or _time_of(each) is None or (_time_of(each) or 0) <= attempt.at_ms
    ]
    shown = kept if len(kept) <= BETWEEN_MAX else [kept[0], *kept[-BETWEEN_MAX + 1 :]]
    return Timeline(
        tuple(_between(each, attempt, own, named) for each in shown), len(kept) - len(shown), missing=not found_base
    )


def named_snapshots(message: str | None) -> list[int]:
    """Ids of snapshots that a message names, a few."""
    return [int(text) for text in dict.fromkeys(_SNAPSHOT.findall(message or ""))][:NAMED_MAX]


def _end_of(head: HeadState, attempt: Attempt) -> int | None:
    """The last snapshot that matters: its own newest one, or else the table's current one."""
    if attempt.snapshots:
        return attempt.snapshots[-1]
    current = head.metadata.get("current-snapshot-id")
    return None if current is None else int(current)


def _time_of(snapshot: Mapping[str, Any]) -> int | None:
    at_ms = snapshot.get("timestamp-ms")
    return at_ms if isinstance(at_ms, int) else None


def _between(snapshot: Mapping[str, Any], attempt: Attempt, own: set[int], named: set[int]) -> Between:
    id_ = int(snapshot["snapshot-id"])
    summary: Mapping[str, Any] = snapshot.get("summary") or {}
    did = [text.format(summary[key]) for key, text in _COUNTS if str(summary.get(key, "0")) != "0"]
    return Between(
        id_,
        "base" if id_ == attempt.base else "own" if id_ in own else "between",
        Snapshot(snapshot).operation or "",
        _time_of(snapshot),
        re.sub(r"\b1 (\w+) files", r"1 \1 file", ", ".join(did)) or "changes no files",
        id_ in named,
    )
