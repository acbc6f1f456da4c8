"""How much one request may add to a table's metadata, by kind; pure.

The whole metadata is written with every commit and kept in memory, so that a megabyte in each of sixty commits is two
gigabytes on disk. Measured is the length as JSON. What is removed is not counted: a table that is too large can be made
smaller. The limits lie well above what clients send: Spark and Flink write summaries of about 1 KiB, Kafka Connect 13
bytes for each partition of its topics; a schema of 10,000 documented columns has 2 MiB, its name mapping 1 MiB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from icetower.errors import ValidationFailed
from icetower.protocol.columns import FULL_NAME_CHARACTERS_MAX, check_schemas

JSON = Mapping[str, Any]

KIB, MIB = 1024, 1024 * 1024
LIMITS_BYTES: Mapping[str, int] = {
    "summaries": 128 * KIB,
    "properties": 2 * MIB,
    "schemas": 8 * MIB,
    "refs": MIB,
    "statistics": 4 * MIB,
    "metadata": MIB,
}
"""By kind, for all updates of one commit to one table. `metadata`: whatever has no kind of its own."""

PROPERTIES_MAX = 10_000
"""Properties of a table, or of a namespace, and those that one commit sets: every load walks through them."""

PROPERTY_NAME_CHARACTERS_MAX = FULL_NAME_CHARACTERS_MAX + 1_000
"""Room for the full name of a column after ``write.parquet.bloom-filter-enabled.column.``."""

ADDED_TO_LARGE_MAX_BYTES = 64 * KIB
"""What one commit may add to metadata of more than half of what is read at all."""

NAMESPACE_MAX_BYTES = 256 * KIB
"""Properties that one request sets on a namespace."""

_KINDS = {
    "add-schema": "schemas",
    "set-properties": "properties",
    "set-snapshot-ref": "refs",
    "set-statistics": "statistics",
    "set-partition-statistics": "statistics",
}
_SHOWN_CHARACTERS = 40
_SETS = ("updates", "updated")
"""Early clients' name of the properties that are set counts as well."""

_REMOVING = frozenset(
    {
        "remove-snapshot-ref",
        "remove-snapshots",
        "remove-properties",
        "remove-statistics",
        "remove-partition-statistics",
        "remove-partition-specs",
        "remove-schemas",
        "remove-encryption-key",
    }
)


def check_commit(updates: Sequence[JSON], what: str) -> None:
    """Raises `ValidationFailed` (``limit.summaries``, ``limit.properties``, …) where a commit adds too much."""
    for kind, size_bytes in added_bytes(updates).items():
        if size_bytes > LIMITS_BYTES[kind]:
            raise ValidationFailed(
                f"the {what} adds {size_bytes} bytes of {kind} to the table's metadata; at most {LIMITS_BYTES[kind]} "
                "are taken in one commit. Every commit writes all of it again: keep longer texts elsewhere",
                rule=f"limit.{kind}",
            )
    setting = [update for update in updates if update.get("action") == "set-properties"]
    given: list[Mapping[str, Any]] = [update.get(name) or {} for update in setting for name in _SETS]
    check_properties(sum(map(len, given)), f"the {what} sets")
    _check_names(given, f"the {what} sets")
    check_schemas((update.get("schema") for update in updates if update.get("action") == "add-schema"), what)


def check_properties(count: int, what: str) -> None:
    """Raises `ValidationFailed` (``limit.properties``) for more properties than a table or a namespace takes.

    Args:
        what: who has them, and the verb: ``the commit sets``.
    """
    if count > PROPERTIES_MAX:
        raise ValidationFailed(
            f"{what} {count} properties; at most {PROPERTIES_MAX} are taken. Remove those that are not used",
            rule="limit.properties",
        )


def _check_names(given: Iterable[Mapping[str, Any]], what: str) -> None:
    name = next((name for properties in given for name in properties if len(name) > PROPERTY_NAME_CHARACTERS_MAX), None)
    if name is not None:
        raise ValidationFailed(
            f"{what} a property, {name[:_SHOWN_CHARACTERS]!r}…, whose name has {len(name)} characters; at most "
            f"{PROPERTY_NAME_CHARACTERS_MAX} are taken",
            rule="limit.properties",
        )


def check_room(size_bytes: int, updates: Sequence[JSON], max_bytes: int) -> int:
    """A large table takes small commits, a full one those that make it smaller: it must stay readable.

    Args:
        size_bytes: of the metadata so far.
        max_bytes: longer metadata is not read again. An eighth of it is kept free, for the logs of the metadata, and
            for what it takes to make a full table smaller.

    Returns:
        What the updates add, in bytes.

    Raises:
        ValidationFailed: ``limit.metadata``.
    """
    added = sum(added_bytes(updates).values())
    large, full = max_bytes // 2, max_bytes // 8 * 7
    if added and (size_bytes + added > full or (size_bytes > large and added > ADDED_TO_LARGE_MAX_BYTES)):
        raise ValidationFailed(
            f"the metadata of the table has {size_bytes} bytes, and the commit adds {added}. Over {large} bytes a "
            f"commit may add {ADDED_TO_LARGE_MAX_BYTES}, and nothing may be added beyond {full}, since a table of more "
            f"than {max_bytes} could not be loaded. Expire snapshots and remove what is not used; such commits are "
            "always possible",
            rule="limit.metadata",
        )
    return added


def check_namespace(properties: Mapping[str, str]) -> None:
    """Raises `ValidationFailed` (``limit.properties``) for more than a namespace takes at once."""
    check_properties(len(properties), "the request sets")
    _check_names([properties], "the request sets")
    size_bytes = len(to_json(properties))
    if size_bytes > NAMESPACE_MAX_BYTES:
        raise ValidationFailed(
            f"the request sets {size_bytes} bytes of properties on a namespace; at most {NAMESPACE_MAX_BYTES} are "
            "taken",
            rule="limit.properties",
        )


def added_bytes(updates: Sequence[JSON]) -> Mapping[str, int]:
    """What updates add to the metadata, in bytes of JSON by kind."""
    found = Counter[str]()
    for update in updates:
        action = str(update.get("action"))
        if action == "add-snapshot":
            snapshot: JSON = update["snapshot"]
            found["summaries"] += len(to_json(snapshot.get("summary")))
            rest = {name: value for name, value in snapshot.items() if name not in ("summary", "manifests")}
            found["metadata"] += len(to_json(rest))
        elif action not in _REMOVING:
            found[_KINDS.get(action, "metadata")] += len(to_json(update))
    return found
