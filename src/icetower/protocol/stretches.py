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

SINGLE_MAX = 1_000
"""Schemas, specs, properties, refs and other updates that one commit applies one by one. Clients send a handful. The
contract is asked about each when the commit comes, and again on the version that it goes on."""

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
    # Snapshots have a limit of their own.
    singles = sum(_family(update) is None and update.get("action") != "add-snapshot" for update in updates)
    if singles > SINGLE_MAX:
        raise ValidationFailed(
            f"the {what} has {singles} updates of schemas, partition specs, properties, branches and the like; at most "
            f"{SINGLE_MAX} are taken in one commit. Set all properties in one update, or send several commits",
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
