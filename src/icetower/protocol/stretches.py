"""Updates of a commit that are applied together, and how many of the others one commit may have; pure.

Taking a snapshot out of a table's list walks through the list. Java's older clients expire by one update a snapshot,
with the removal of its statistics in between, and a table may have twenty thousand: one by one, that walk alone would
keep everybody waiting (trap A8). What only removes, or only adds, leads to the same table in any order, so a stretch of
such updates is one walk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from icetower.errors import ValidationFailed

JSON = Mapping[str, Any]

STRUCTURAL_MAX = 1_000
"""Schemas, specs, sort orders and other updates that one commit applies one by one. Clients send a handful."""

STRETCHES_MAX = 200

_TOGETHER = {
    "remove-snapshots": "removals",
    "remove-snapshot-ref": "removals",
    "remove-statistics": "removals",
    "remove-partition-statistics": "removals",
    "remove-partition-specs": "removals",
    "remove-schemas": "removals",
    "remove-encryption-key": "removals",
    "set-statistics": "statistics",
    "set-partition-statistics": "statistics",
    "add-encryption-key": "keys",
}
_CHEAP = frozenset({"set-snapshot-ref", "set-properties", "remove-properties", "add-snapshot"})
"""They cost what they say, wherever they stand. For snapshots, and for what is said, there are limits of their own."""


def stretches(updates: Sequence[JSON]) -> Iterator[list[JSON]]:
    """The updates in their order: those that may be applied together, of one action each, and all others alone."""
    for family, run in groupby(updates, key=_family):
        if family is None:
            for update in run:
                yield [update]
            continue
        by_action: dict[str, list[JSON]] = {}
        for update in run:
            by_action.setdefault(update["action"], []).append(update)
        yield from by_action.values()


def check_stretches(updates: Sequence[JSON], what: str) -> None:
    """Raises `ValidationFailed` (``limit.updates``) for a commit whose updates cannot be applied in a few walks."""
    structural = sum(_family(update) is None and update.get("action") not in _CHEAP for update in updates)
    if structural > STRUCTURAL_MAX:
        raise ValidationFailed(
            f"the {what} has {structural} updates of schemas, partition specs, sort orders and the like; at most "
            f"{STRUCTURAL_MAX} are taken in one commit. Send them in several",
            rule="limit.updates",
        )
    walks = sum(family is not None for family, _ in groupby(updates, key=_family))
    if walks > STRETCHES_MAX:
        raise ValidationFailed(
            f"the {what} changes {walks} times between removals and other updates; at most {STRETCHES_MAX} times are "
            "taken in one commit. Put removals beside each other, and statistics and keys as well",
            rule="limit.updates",
        )


def _family(update: JSON) -> str | None:
    action = update.get("action")
    return _TOGETHER.get(action) if isinstance(action, str) else None
