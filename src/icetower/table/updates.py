"""Applying the updates of a commit to a table's metadata.

The base is never changed; what an update doesn't touch is shared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from icetower.errors import BadRequest
from icetower.table.builder import Builder, Metadata, checked_version
from icetower.table.shapes import JSON, integer, integers, mapping, optional_integer, text, text_map, texts

DEFAULT_FORMAT_VERSION = 2


def apply(
    metadata: Metadata | None,
    updates: Sequence[Mapping[str, Any]],
    *,
    now_ms: int,
    uuid: str | None = None,
) -> Metadata:
    """The metadata after the updates, which are JSON as the REST specification has it.

    Args:
        metadata: the base; None builds a table from nothing, for commits with `assert-create`.
        updates: in order. Snapshots are final: they are added as they are.
        now_ms: wall clock; the result's time is never before the base's.
        uuid: of a table built from nothing whose updates assign none.

    Returns:
        The base itself where the updates change nothing.

    Raises:
        BadRequest: a bad shape, an unknown update.
        ValidationFailed: an update that can never be valid on this base.
        CommitConflict: a snapshot numbered before the table's last one; the client may try again.
    """
    builder = Builder(metadata, now_ms, _first_version(metadata, updates))
    if metadata is None and uuid is not None:
        builder.state["table-uuid"] = uuid
    perform(builder, updates)
    return builder.build()


def perform(builder: Builder, updates: Sequence[Mapping[str, Any]]) -> None:
    """Apply updates to metadata under construction. Raises as `apply` does."""
    for update in updates:
        action = update.get("action")
        handler = _HANDLERS.get(action) if isinstance(action, str) else None
        if handler is None:
            raise BadRequest(f"Unknown or unsupported table update: {action!r}", rule="update.action")
        handler(builder, update)


def _first_version(metadata: Metadata | None, updates: Sequence[Mapping[str, Any]]) -> int:
    if metadata is not None:
        return int(metadata["format-version"])
    for update in updates:
        if update.get("action") == "upgrade-format-version":
            return checked_version(integer(update, "format-version", "upgrade-format-version"))
    return DEFAULT_FORMAT_VERSION


def _ref_of(update: Mapping[str, Any]) -> JSON:
    where = "set-snapshot-ref"
    type_ = text(update, "type", where).lower()
    if type_ not in ("branch", "tag"):
        raise BadRequest(f"Cannot parse {where}: type: Invalid snapshot ref type: {type_}", rule="shape")
    ref: JSON = {"snapshot-id": integer(update, "snapshot-id", where), "type": type_}
    for field, for_tags in (("min-snapshots-to-keep", False), ("max-snapshot-age-ms", False), ("max-ref-age-ms", True)):
        value = optional_integer(update, field, where)
        if value is None:
            continue
        if value <= 0:
            raise BadRequest(f"Cannot parse {where}: {field} must be greater than 0, not {value}", rule="ref.retention")
        if type_ == "tag" and not for_tags:
            raise BadRequest(f"Cannot parse {where}: tags do not support setting {field}", rule="ref.retention")
        ref[field] = value
    return ref


def _either(update: Mapping[str, Any], field: str, early: str) -> str:
    return early if field not in update and early in update else field


_Handler = Callable[[Builder, Mapping[str, Any]], None]

_HANDLERS: Mapping[str, _Handler] = {
    "assign-uuid": lambda b, u: b.assign_uuid(text(u, "uuid", "assign-uuid")),
    "upgrade-format-version": lambda b, u: b.upgrade(integer(u, "format-version", "upgrade-format-version")),
    "add-schema": lambda b, u: b.add_schema(mapping(u, "schema", "add-schema")),
    "set-current-schema": lambda b, u: b.set_current_schema(integer(u, "schema-id", "set-current-schema")),
    "add-spec": lambda b, u: b.add_spec(mapping(u, "spec", "add-spec")),
    "set-default-spec": lambda b, u: b.set_default_spec(integer(u, "spec-id", "set-default-spec")),
    "add-sort-order": lambda b, u: b.add_sort_order(mapping(u, "sort-order", "add-sort-order")),
    "set-default-sort-order": lambda b, u: b.set_default_sort_order(
        integer(u, "sort-order-id", "set-default-sort-order")
    ),
    "add-snapshot": lambda b, u: b.add_snapshot(mapping(u, "snapshot", "add-snapshot")),
    "set-snapshot-ref": lambda b, u: b.set_ref(text(u, "ref-name", "set-snapshot-ref"), _ref_of(u)),
    "remove-snapshot-ref": lambda b, u: b.remove_ref(text(u, "ref-name", "remove-snapshot-ref")),
    "remove-snapshots": lambda b, u: b.remove_snapshots(integers(u, "snapshot-ids", "remove-snapshots")),
    "set-location": lambda b, u: b.set_location(text(u, "location", "set-location")),
    "set-properties": lambda b, u: b.set_properties(text_map(u, _either(u, "updates", "updated"), "set-properties")),
    "remove-properties": lambda b, u: b.remove_properties(
        texts(u, _either(u, "removals", "removed"), "remove-properties")
    ),
    "set-statistics": lambda b, u: b.set_statistics("statistics", mapping(u, "statistics", "set-statistics")),
    "remove-statistics": lambda b, u: b.remove_statistics(
        "statistics", {integer(u, "snapshot-id", "remove-statistics")}
    ),
    "set-partition-statistics": lambda b, u: b.set_statistics(
        "partition-statistics", mapping(u, "partition-statistics", "set-partition-statistics")
    ),
    "remove-partition-statistics": lambda b, u: b.remove_statistics(
        "partition-statistics", {integer(u, "snapshot-id", "remove-partition-statistics")}
    ),
    "remove-partition-specs": lambda b, u: b.remove_by_id(
        "partition-specs",
        "spec-id",
        integers(u, "spec-ids", "remove-partition-specs"),
        b.state["default-spec-id"],
        "default partition spec",
    ),
    "remove-schemas": lambda b, u: b.remove_by_id(
        "schemas",
        "schema-id",
        integers(u, "schema-ids", "remove-schemas"),
        b.state["current-schema-id"],
        "current schema",
    ),
    "enable-row-lineage": lambda b, u: b.check_row_lineage(),
    "add-encryption-key": lambda b, u: b.add_key(mapping(u, "encryption-key", "add-encryption-key")),
    "remove-encryption-key": lambda b, u: b.remove_key(text(u, "key-id", "remove-encryption-key")),
}
