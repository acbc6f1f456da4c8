"""Applying the updates of a commit to a table's metadata.

The base is never changed; what an update doesn't touch is shared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from icetower.errors import BadRequest
from icetower.iceberg.builder import Builder, Metadata, checked_version
from icetower.iceberg.shapes import JSON, integer, integers, mapping, optional_integer, text, text_map, texts
from icetower.protocol.stretches import stretches

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
    for together in stretches(updates):
        action = together[0].get("action")
        if not isinstance(action, str) or (action not in _HANDLERS and action not in _TOGETHER):
            raise BadRequest(f"Unknown or unsupported table update: {action!r}", rule="update.action")
        if action in _TOGETHER:
            _TOGETHER[action](builder, together)
        else:
            for update in together:
                _HANDLERS[action](builder, update)


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
    "set-location": lambda b, u: b.set_location(text(u, "location", "set-location")),
    "set-properties": lambda b, u: b.set_properties(text_map(u, _either(u, "updates", "updated"), "set-properties")),
    "remove-properties": lambda b, u: b.remove_properties(
        texts(u, _either(u, "removals", "removed"), "remove-properties")
    ),
    "enable-row-lineage": lambda b, u: b.check_row_lineage(),
}
"""One update at a time."""


def _ids(updates: Sequence[Mapping[str, Any]], field: str) -> list[int]:
    return [each for update in updates for each in integers(update, field, update["action"])]


def _each_id(updates: Sequence[Mapping[str, Any]]) -> set[int]:
    return {integer(update, "snapshot-id", update["action"]) for update in updates}


def _each(updates: Sequence[Mapping[str, Any]], field: str) -> list[Mapping[str, Any]]:
    return [mapping(update, field, update["action"]) for update in updates]


_TOGETHER: Mapping[str, Callable[[Builder, Sequence[Mapping[str, Any]]], None]] = {
    "remove-snapshots": lambda b, us: b.remove_snapshots(_ids(us, "snapshot-ids")),
    "set-statistics": lambda b, us: b.set_statistics("statistics", _each(us, "statistics")),
    "remove-statistics": lambda b, us: b.remove_statistics("statistics", _each_id(us)),
    "set-partition-statistics": lambda b, us: b.set_statistics(
        "partition-statistics", _each(us, "partition-statistics")
    ),
    "remove-partition-statistics": lambda b, us: b.remove_statistics("partition-statistics", _each_id(us)),
    "remove-partition-specs": lambda b, us: b.remove_by_id(
        "partition-specs", "spec-id", _ids(us, "spec-ids"), b.state["default-spec-id"], "default partition spec"
    ),
    "remove-schemas": lambda b, us: b.remove_by_id(
        "schemas", "schema-id", _ids(us, "schema-ids"), b.state["current-schema-id"], "current schema"
    ),
    "add-encryption-key": lambda b, us: b.add_keys(_each(us, "encryption-key")),
    "remove-encryption-key": lambda b, us: b.remove_keys({text(u, "key-id", u["action"]) for u in us}),
}
"""Those of one action that stand beside each other (`stretches`)."""
