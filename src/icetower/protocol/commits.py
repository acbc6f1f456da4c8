"""Commit requests: the shape of every requirement and update of the REST specification.

Source: rest-catalog-open-api.yaml, `CommitTableRequest`, `CommitTransactionRequest`, `TableRequirement`, `TableUpdate`.
The shapes are checked here; what is passed on is the JSON as it was sent, so that nothing newer than us gets lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from icetower.errors import BadRequest
from icetower.protocol.names import Identifier, checked_identifier, checked_namespace
from icetower.protocol.sizes import check_commit
from icetower.protocol.stretches import check_stretches
from icetower.protocol.updates import Updates
from icetower.protocol.wire import JSON, Int32, Int64, Name, Wire, read, read_object


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A commit to one table. `identifier` is None where the URL alone names the table."""

    identifier: Identifier | None
    requirements: tuple[JSON, ...]
    updates: Updates


class _Id(Wire):
    snapshot_id: Int64


class _AssertUuid(Wire):
    uuid: str


class _AssertRef(Wire):
    ref: str
    # Required by the specification, though null; PyIceberg leaves a null one out.
    snapshot_id: Int64 | None = None


class _AssertFieldId(Wire):
    last_assigned_field_id: Int32


class _AssertSchemaId(Wire):
    current_schema_id: Int32


class _AssertPartitionId(Wire):
    last_assigned_partition_id: Int32


class _AssertSpecId(Wire):
    default_spec_id: Int32


class _AssertSortOrderId(Wire):
    default_sort_order_id: Int32


REQUIREMENTS: Mapping[str, type[Wire]] = {
    "assert-create": Wire,
    "assert-table-uuid": _AssertUuid,
    "assert-ref-snapshot-id": _AssertRef,
    "assert-last-assigned-field-id": _AssertFieldId,
    "assert-current-schema-id": _AssertSchemaId,
    "assert-last-assigned-partition-id": _AssertPartitionId,
    "assert-default-spec-id": _AssertSpecId,
    "assert-default-sort-order-id": _AssertSortOrderId,
}


class _UpgradeFormatVersion(Wire):
    format_version: Int32


class _AddSchema(Wire):
    # `schema` would shadow a method of Pydantic's models.
    schema_: JSON = Field(alias="schema")


class _SetCurrentSchema(Wire):
    schema_id: Int32


class _SpecShape(Wire):
    fields: list[JSON]


class _AddSpec(Wire):
    spec: _SpecShape


class _SetDefaultSpec(Wire):
    spec_id: Int32


class _AddSortOrder(Wire):
    sort_order: _SpecShape


class _SetDefaultSortOrder(Wire):
    sort_order_id: Int32


class _Snapshot(Wire):
    snapshot_id: Int64
    parent_snapshot_id: Int64 | None = None
    sequence_number: Int64 = Field(default=0, ge=0)
    timestamp_ms: Int64
    manifest_list: str | None = None
    manifests: list[str] | None = None
    summary: dict[str, str] | None = None
    schema_id: Int32 | None = None
    first_row_id: Int64 | None = Field(default=None, ge=0)
    added_rows: Int64 | None = Field(default=None, ge=0)
    key_id: str | None = None


class _AddSnapshot(Wire):
    snapshot: _Snapshot


class _SetSnapshotRef(Wire):
    ref_name: str = Field(min_length=1)
    snapshot_id: Int64
    type: Literal["branch", "tag"]
    min_snapshots_to_keep: Int32 | None = None
    max_snapshot_age_ms: Int64 | None = None
    max_ref_age_ms: Int64 | None = None


class _RemoveSnapshotRef(Wire):
    ref_name: str


class _RemoveSnapshots(Wire):
    snapshot_ids: list[Int64]


class _SetLocation(Wire):
    location: str = Field(min_length=1)


class _SetProperties(Wire):
    # Early clients wrote `updated` (and `removed` below); Iceberg reads both for ever.
    updates: dict[str, str] | None = None
    updated: dict[str, str] | None = None


class _RemoveProperties(Wire):
    removals: list[str] | None = None
    removed: list[str] | None = None


class _SetStatistics(Wire):
    statistics: _Id


class _SetPartitionStatistics(Wire):
    partition_statistics: _Id


class _RemoveSpecs(Wire):
    spec_ids: list[Int32]


class _RemoveSchemas(Wire):
    schema_ids: list[Int32]


class _EncryptionKey(Wire):
    key_id: str
    encrypted_key_metadata: str


class _AddEncryptionKey(Wire):
    encryption_key: _EncryptionKey


class _RemoveEncryptionKey(Wire):
    key_id: str


UPDATES: Mapping[str, type[Wire]] = {
    "assign-uuid": _AssertUuid,
    "upgrade-format-version": _UpgradeFormatVersion,
    "add-schema": _AddSchema,
    "set-current-schema": _SetCurrentSchema,
    "add-spec": _AddSpec,
    "set-default-spec": _SetDefaultSpec,
    "add-sort-order": _AddSortOrder,
    "set-default-sort-order": _SetDefaultSortOrder,
    "add-snapshot": _AddSnapshot,
    "set-snapshot-ref": _SetSnapshotRef,
    "remove-snapshot-ref": _RemoveSnapshotRef,
    "remove-snapshots": _RemoveSnapshots,
    "set-location": _SetLocation,
    "set-properties": _SetProperties,
    "remove-properties": _RemoveProperties,
    "set-statistics": _SetStatistics,
    "remove-statistics": _Id,
    "set-partition-statistics": _SetPartitionStatistics,
    "remove-partition-statistics": _Id,
    "remove-partition-specs": _RemoveSpecs,
    "remove-schemas": _RemoveSchemas,
    "enable-row-lineage": Wire,
    "add-encryption-key": _AddEncryptionKey,
    "remove-encryption-key": _RemoveEncryptionKey,
}

PARTS_MAX = 10_000
"""Requirements, or updates, of one commit: reading more would keep everybody else waiting."""

TABLES_MAX = 100
"""Of one transaction: their heads are all held until the last of them is ready, and each is a row in the log."""

VIEW_UPDATES = frozenset({"add-view-version", "set-current-view-version"})


class _Commit(Wire):
    identifier: JSON | None = None
    # Both required by the specification; Iceberg's own server takes a commit without.
    requirements: list[JSON] | None = None
    updates: list[JSON] | None = None


class _Transaction(Wire):
    table_changes: list[JSON] = Field(min_length=1)


class _TableName(Wire):
    namespace: list[str]
    name: Name


def parse_commit(data: bytes) -> CommitRequest:
    """Read a `CommitTableRequest`.

    Raises:
        BadRequest: bad JSON, a bad shape, an unknown requirement or update, `assert-create` beside other requirements.
    """
    return _commit(read_object(data, "commit"), "commit")


def parse_transaction(data: bytes) -> tuple[CommitRequest, ...]:
    """Read a `CommitTransactionRequest`: one commit a table, each with its identifier.

    Raises:
        BadRequest: as `parse_commit`; also for too many tables, without an identifier, or if a table is named twice.
    """
    body = read(_Transaction, read_object(data, "transaction"), "transaction")
    if len(body.table_changes) > TABLES_MAX:
        raise BadRequest(
            f"the transaction names {len(body.table_changes)} tables; at most {TABLES_MAX} are committed together. "
            "Send several transactions",
            rule="limit.tables",
        )
    commits = tuple(_commit(change, f"table-changes[{i}]") for i, change in enumerate(body.table_changes))
    seen: set[Identifier] = set()
    for i, commit in enumerate(commits):
        if commit.identifier is None:
            raise BadRequest(f"Cannot parse table-changes[{i}]: identifier: required in a transaction", rule="shape")
        if commit.identifier in seen:
            raise BadRequest(f"Table {commit.identifier} is changed twice in one transaction: merge the changes")
        seen.add(commit.identifier)
    return commits


def _commit(body: Mapping[str, Any], what: str) -> CommitRequest:
    shape = read(_Commit, body, what)
    requirements, updates = shape.requirements or [], shape.updates or []
    if max(len(requirements), len(updates)) > PARTS_MAX:
        raise BadRequest(
            f"Cannot parse {what}: more than {PARTS_MAX} requirements or updates; send them in several commits",
            rule="limit.updates",
        )
    kinds = [
        _checked(requirement, "type", "requirement", REQUIREMENTS, f"{what}.requirements[{i}]")
        for i, requirement in enumerate(requirements)
    ]
    for i, update in enumerate(updates):
        _checked(update, "action", "update", UPDATES, f"{what}.updates[{i}]")
    check_stretches(updates, what)
    check_commit(updates, what)
    if "assert-create" in kinds and len(set(kinds)) > 1:
        others = sorted(set(kinds) - {"assert-create"})
        raise BadRequest(f"Invalid create requirements: {others} say nothing about a table that must not exist")
    identifier = None if shape.identifier is None else table_identifier(shape.identifier, f"{what}.identifier")
    return CommitRequest(identifier, tuple(requirements), Updates(updates))


def table_identifier(value: Mapping[str, Any], what: str) -> Identifier:
    """A `TableIdentifier` of the specification.

    Raises:
        BadRequest: a bad shape, an empty namespace, or too long a name.
    """
    name = read(_TableName, value, what)
    return checked_identifier(checked_namespace(tuple(name.namespace)), name.name)


def _checked(value: JSON, tag: str, noun: str, known: Mapping[str, type[Wire]], where: str) -> str:
    kind = value.get(tag)
    if not isinstance(kind, str):
        raise BadRequest(f"Cannot parse {where}: {tag}: a string is required", rule="shape")
    if kind in VIEW_UPDATES or kind == "assert-view-uuid":
        raise BadRequest(f"Cannot use {noun} {kind!r} on a table: it is for views ({where})", rule="shape")
    model = known.get(kind)
    if model is None:
        raise BadRequest(f"Unknown {noun} {kind!r} ({where}); known: {', '.join(known)}", rule="shape")
    read(model, value, f"{where} ({kind})")
    return kind
