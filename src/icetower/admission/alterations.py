"""What a commit alters of a table that everybody goes by. Pure.

Who owns some partitions of a table may be granted `alter`. What concerns the others is not theirs to change by it: the
partition spec, by whose fields their own partitions are known; the schema; the format; how all files are laid out and
sorted; what is rebased without being checked, and what is kept. Properties that neither Iceberg nor the tower goes by,
and statistics, concern nobody else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

JSON = Mapping[str, Any]

STRUCTURE = {
    "format-version": "the format version",
    "schemas": "its schemas",
    "current-schema-id": "its schemas",
    "partition-specs": "its partition specs",
    "default-spec-id": "its partition specs",
    "sort-orders": "its sort orders",
    "default-sort-order-id": "its sort orders",
}
"""Fields of the metadata, and what they are called."""

ACTIONS = {
    "remove-schemas": "its schemas",
    "remove-partition-specs": "its partition specs",
    "add-encryption-key": "its encryption keys",
    "remove-encryption-key": "its encryption keys",
}
"""Updates that always count as a change: one that changes nothing makes no sense."""

PROPERTIES = (
    "commit.",
    "compatibility.",
    "encryption.",
    "format-version",
    "gc.",
    "history.",
    "icetower.",
    "read.",
    "schema.",
    "write.",
)
"""How the properties begin that Iceberg, its engines or the tower go by."""


def shared(base: JSON, after: JSON, updates: Sequence[JSON]) -> tuple[str, ...]:
    """What the updates change of what everybody goes by, each by its name, sorted. What stays as it is, is no change.

    Args:
        base, after: the table's metadata before and after the updates.
    """
    found = {name for field, name in STRUCTURE.items() if base.get(field) != after.get(field)}
    found |= {ACTIONS[update["action"]] for update in updates if update["action"] in ACTIONS}
    before: Mapping[str, str] = base.get("properties") or {}
    then: Mapping[str, str] = after.get("properties") or {}
    changed = (name for name in before.keys() | then.keys() if before.get(name) != then.get(name))
    return tuple(sorted({*found, *(name for name in changed if name.startswith(PROPERTIES))}))
