"""Applying the updates of a commit to a table's metadata.

Follows Iceberg's `TableMetadata.Builder`, its reuse of equal schemas, specs and orders and its messages included. The
base is never changed; what an update doesn't touch is shared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from icetower.errors import BadRequest, CommitConflict, ValidationFailed
from icetower.table import schemas, specs
from icetower.table.shapes import (
    JSON,
    integer,
    integers,
    mapping,
    optional_integer,
    text,
    text_map,
    texts,
    without_nulls,
)

Metadata = Mapping[str, Any]

MAIN = "main"
LAST_ADDED = -1
DEFAULT_FORMAT_VERSION = 2
LATEST_FORMAT_VERSION = 3
ONE_MINUTE_MS = 60_000


def apply(
    metadata: Metadata | None, updates: Sequence[Mapping[str, Any]], *, now_ms: int, uuid: str | None = None
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
    for update in updates:
        action = update.get("action")
        handler = _HANDLERS.get(action) if isinstance(action, str) else None
        if handler is None:
            raise BadRequest(f"Unknown or unsupported table update: {action!r}", rule="update.action")
        handler(builder, update)
    return builder.build()


def _first_version(metadata: Metadata | None, updates: Sequence[Mapping[str, Any]]) -> int:
    if metadata is not None:
        return int(metadata["format-version"])
    for update in updates:
        if update.get("action") == "upgrade-format-version":
            return checked_version(integer(update, "format-version", "upgrade-format-version"))
    return DEFAULT_FORMAT_VERSION


def checked_version(version: int) -> int:
    """A format version that is written here.

    Raises:
        BadRequest: it isn't 1, 2 or 3.
    """
    if not 1 <= version <= LATEST_FORMAT_VERSION:
        raise BadRequest(
            f"Unsupported format version: v{version} (supported: v{LATEST_FORMAT_VERSION})", rule="format-version"
        )
    return version


class Builder:
    """Metadata under construction. `state` shares the base's parts; lists and maps are replaced, never changed."""

    def __init__(self, base: Metadata | None, now_ms: int, format_version: int) -> None:
        self.base = base
        self.now_ms = now_ms if base is None else max(now_ms, int(base["last-updated-ms"]))
        self.state: JSON = dict(base) if base is not None else _nothing(format_version)
        self.changed = False
        self._added: dict[str, set[int]] = {"schema": set(), "spec": set(), "order": set()}
        self._last_added: dict[str, int | None] = {}
        self._added_snapshots: set[int] = set()
        self._main_moves: list[int] = []
        self._removed_snapshots = False
        self._snapshots_by_id: dict[int, JSON] | None = None

    # -- what is there -------------------------------------------------------------------------------------------

    @property
    def format_version(self) -> int:
        return int(self.state["format-version"])

    def snapshot(self, snapshot_id: int) -> JSON | None:
        """A snapshot by id. The index is made once: histories hold thousands."""
        if self._snapshots_by_id is None:
            self._snapshots_by_id = {snapshot["snapshot-id"]: snapshot for snapshot in self.state.get("snapshots", ())}
        return self._snapshots_by_id.get(snapshot_id)

    def current_schema(self) -> JSON | None:
        """The current schema; None before one is added to a table built from nothing."""
        return _by_id(self.state["schemas"], "schema-id", self.state["current-schema-id"])

    # -- schemas, specs, orders ----------------------------------------------------------------------------------

    def add_schema(self, sent: Mapping[str, Any]) -> None:
        """Add a schema, or find the one that equals it."""
        schema = schemas.canonical(sent)
        schemas.check_version(schema, self.format_version)
        last_column_id = max(self.state["last-column-id"], schemas.highest_id(schema))
        equal = next((s["schema-id"] for s in self.state["schemas"] if _same_schema(s, schema)), None)
        if equal is not None:
            self._found("schema", equal)
            if last_column_id != self.state["last-column-id"]:
                self._set("last-column-id", last_column_id)
            return
        known = [s["schema-id"] for s in self.state["schemas"]]
        schema["schema-id"] = max([self.state["current-schema-id"], *(i + 1 for i in known)])
        self.state["last-column-id"] = last_column_id
        self._append("schemas", schema)
        self._add("schema", schema["schema-id"])

    def set_current_schema(self, schema_id: int) -> None:
        """Make a schema the current one; every spec must live with its names."""
        if schema_id == LAST_ADDED:
            schema_id = self._last("schema", "Cannot set last added schema: no schema has been added")
        if schema_id == self.state["current-schema-id"]:
            return
        schema = _by_id(self.state["schemas"], "schema-id", schema_id)
        if schema is None:
            raise ValidationFailed(f"Cannot set current schema to unknown schema: {schema_id}", rule="schema.known")
        for spec in self.state["partition-specs"]:
            specs.check_spec_names(spec, schema)
        self._set("current-schema-id", schema_id)

    def add_spec(self, sent: Mapping[str, Any]) -> None:
        """Add a partition spec, or find the one that equals it, ids apart."""
        spec = specs.canonical_spec(sent)
        schema = self._schema_for("partition spec")
        equal = next((s["spec-id"] for s in self.state["partition-specs"] if specs.same_spec(spec, s)), None)
        if equal is not None:
            self._found("spec", equal)
            return
        specs.check_spec(spec, schema)
        specs.check_spec_names(spec, schema)
        known = self.state["partition-specs"]
        spec = specs.with_ids(spec, known, self.state["last-partition-id"])
        if self.format_version == 1 and not specs.has_sequential_ids(spec):
            raise ValidationFailed(
                f"Spec does not use sequential IDs that are required in v1: {spec['fields']}", rule="spec.ids"
            )
        spec["spec-id"] = max([0, *(s["spec-id"] + 1 for s in known)])
        self.state["last-partition-id"] = max(self.state["last-partition-id"], specs.highest_field_id([spec]))
        self._append("partition-specs", spec)
        self._add("spec", spec["spec-id"])

    def set_default_spec(self, spec_id: int) -> None:
        """Make a spec the one that writers use."""
        if spec_id == LAST_ADDED:
            spec_id = self._last("spec", "Cannot set last added spec: no spec has been added")
        if spec_id == self.state["default-spec-id"]:
            return
        if _by_id(self.state["partition-specs"], "spec-id", spec_id) is None:
            raise ValidationFailed(f"Cannot set default partition spec to unknown spec: {spec_id}", rule="spec.known")
        self._set("default-spec-id", spec_id)

    def add_sort_order(self, sent: Mapping[str, Any]) -> None:
        """Add a sort order, or find the one that equals it."""
        order = specs.canonical_order(sent)
        schema = self._schema_for("sort order")
        known = self.state["sort-orders"]
        equal = next((o["order-id"] for o in known if _order_fields(o) == order["fields"]), None)
        if equal is not None:
            self._found("order", equal)
            return
        specs.check_order(order, schema)
        order["order-id"] = max([1, *(o["order-id"] + 1 for o in known)]) if order["fields"] else 0
        self._append("sort-orders", order)
        self._add("order", order["order-id"])

    def set_default_sort_order(self, order_id: int) -> None:
        """Make a sort order the one that writers use."""
        if order_id == LAST_ADDED:
            order_id = self._last("order", "Cannot set last added sort order: no sort order has been added")
        if order_id == self.state["default-sort-order-id"]:
            return
        if _by_id(self.state["sort-orders"], "order-id", order_id) is None:
            raise ValidationFailed(f"Cannot set default sort order to unknown sort order: {order_id}", rule="order")
        self._set("default-sort-order-id", order_id)

    def remove_by_id(self, part: str, field: str, ids: Sequence[int], current: int, noun: str) -> None:
        """Drop specs or schemas, but not the one in use. Unknown ids are nothing to drop."""
        if current in ids:
            raise ValidationFailed(f"Cannot remove the {noun}: {current}", rule="remove.current")
        if ids:
            self._set(part, [entry for entry in self.state[part] if entry[field] not in ids])

    # -- snapshots and refs --------------------------------------------------------------------------------------

    def add_snapshot(self, sent: Mapping[str, Any]) -> None:
        """Add a snapshot; no ref points at it yet."""
        snapshot = without_nulls(sent)
        snapshot_id = integer(snapshot, "snapshot-id", "snapshot")
        integer(snapshot, "timestamp-ms", "snapshot")
        for part, noun in (("schemas", "schema"), ("partition-specs", "partition spec"), ("sort-orders", "sort order")):
            if not self.state[part]:
                raise ValidationFailed(f"Attempting to add a snapshot before a {noun} is added", rule="snapshot.early")
        if "manifest-list" not in snapshot and (self.format_version > 1 or "manifests" not in snapshot):
            raise BadRequest("Cannot parse snapshot: missing field manifest-list (a string)", rule="shape")
        if self.snapshot(snapshot_id) is not None:
            raise ValidationFailed(
                f"Snapshot already exists for id: {snapshot_id}", rule="snapshot.known", snapshot=snapshot_id
            )
        self._take_sequence_number(snapshot)
        if self.format_version >= 3:
            self._take_row_ids(snapshot)
        self._append("snapshots", snapshot)
        assert self._snapshots_by_id is not None
        self._snapshots_by_id[snapshot_id] = snapshot
        self._added_snapshots.add(snapshot_id)

    def _take_sequence_number(self, snapshot: JSON) -> None:
        number = optional_integer(snapshot, "sequence-number", "snapshot") or 0
        if self.format_version == 1:
            if number:
                raise ValidationFailed(f"Sequence number must be 0 in v1: {number}", rule="snapshot.sequence-number")
            snapshot.pop("sequence-number", None)
            return
        last = self.state["last-sequence-number"]
        # A snapshot without parent replaces the table; Iceberg lets concurrent replacements carry one number.
        if number <= last and "parent-snapshot-id" in snapshot:
            raise CommitConflict(
                "Validation failed, please retry: Cannot add snapshot with sequence number"
                f" {number} older than last sequence number {last}",
                rule="snapshot.sequence-number",
            )
        # Iceberg would go back to a lower number and then refuse its own metadata.
        self.state["last-sequence-number"] = max(last, number)

    def _take_row_ids(self, snapshot: JSON) -> None:
        first = optional_integer(snapshot, "first-row-id", "snapshot")
        added = optional_integer(snapshot, "added-rows", "snapshot")
        if first is None:
            raise ValidationFailed("Cannot add a snapshot: first-row-id is null", rule="snapshot.row-ids")
        if added is None or added < 0:
            raise ValidationFailed(
                f"Cannot add a snapshot: added-rows must be set with first-row-id, not {added}", rule="snapshot.row-ids"
            )
        next_row_id = self.state["next-row-id"]
        if first < next_row_id:
            raise CommitConflict(
                "Validation failed, please retry: Cannot add a snapshot, first-row-id is behind table next-row-id:"
                f" {first} < {next_row_id}",
                rule="snapshot.row-ids",
            )
        # Iceberg adds the rows to its own next-row-id, which would hand ids out twice after a gap.
        self.state["next-row-id"] = first + added

    def set_ref(self, name: str, ref: JSON) -> None:
        """Point a branch or tag at a snapshot; `main` is also the current snapshot and is logged."""
        if self.state["refs"].get(name) == ref:
            return
        snapshot_id = ref["snapshot-id"]
        snapshot = self.snapshot(snapshot_id)
        if snapshot is None:
            raise ValidationFailed(f"Cannot set {name} to unknown snapshot: {snapshot_id}", rule="ref.snapshot")
        if name == MAIN:
            if ref["type"] != "branch":
                raise ValidationFailed(f"Cannot set {MAIN} to a tag, it must be a branch", rule="ref.main")
            self.state["current-snapshot-id"] = snapshot_id
            # Going back to an older snapshot happens now, not when that snapshot was made.
            time_ms = snapshot["timestamp-ms"] if snapshot_id in self._added_snapshots else self.now_ms
            self._append("snapshot-log", {"timestamp-ms": time_ms, "snapshot-id": snapshot_id})
            self._main_moves.append(snapshot_id)
        self._set("refs", {**self.state["refs"], name: ref})

    def remove_ref(self, name: str) -> None:
        """Drop a ref, if it is there. Without `main` the table has no current snapshot; its log stays."""
        if name == MAIN:
            self.state["current-snapshot-id"] = no_snapshot(self.format_version)
        if name in self.state["refs"]:
            self._set("refs", {key: ref for key, ref in self.state["refs"].items() if key != name})

    def remove_snapshots(self, ids: Sequence[int]) -> None:
        """Drop snapshots, with their statistics and the refs that point at them."""
        gone = {snapshot_id for snapshot_id in ids if self.snapshot(snapshot_id) is not None}
        if not gone:
            return
        assert self._snapshots_by_id is not None
        for snapshot_id in gone:
            del self._snapshots_by_id[snapshot_id]
        self._removed_snapshots = True
        self._set("snapshots", [s for s in self.state["snapshots"] if s["snapshot-id"] not in gone])
        for part in ("statistics", "partition-statistics"):
            self.remove_statistics(part, gone)
        for name in [name for name, ref in self.state["refs"].items() if self.snapshot(ref["snapshot-id"]) is None]:
            self.remove_ref(name)

    # -- the rest ------------------------------------------------------------------------------------------------

    def set_statistics(self, part: str, file: Mapping[str, Any]) -> None:
        """Put a statistics file in the place of those of its snapshot."""
        snapshot_id = integer(file, "snapshot-id", part)
        text(file, "statistics-path", part)
        integer(file, "file-size-in-bytes", part)
        kept = [entry for entry in self.state.get(part, ()) if entry["snapshot-id"] != snapshot_id]
        self._set(part, [*kept, dict(file)])

    def remove_statistics(self, part: str, snapshot_ids: set[int]) -> None:
        """Drop the statistics files of snapshots."""
        files = self.state.get(part) or []
        kept = [file for file in files if file["snapshot-id"] not in snapshot_ids]
        if len(kept) != len(files):
            self._set(part, kept)

    def assign_uuid(self, uuid: str) -> None:
        """Give a new table its UUID. That of a table that exists never changes: keys and clients count on it."""
        had = self.state.get("table-uuid")
        if had is not None and had.lower() == uuid.lower():
            return
        if had is not None and self.base is not None:
            raise ValidationFailed(f"Cannot assign uuid {uuid}: the table has {had}", rule="uuid")
        self._set("table-uuid", uuid)

    def upgrade(self, version: int) -> None:
        """Go to a later format version."""
        had = self.format_version
        if version > LATEST_FORMAT_VERSION:
            raise BadRequest(
                f"Cannot upgrade table to unsupported format version: v{version} (supported: v{LATEST_FORMAT_VERSION})",
                rule="format-version",
            )
        if version < had:
            raise BadRequest(f"Cannot downgrade v{had} table to v{version}", rule="format-version")
        if version == had:
            return
        if had == 1:
            self.state["last-sequence-number"] = 0
        if version >= 3:
            self.state["next-row-id"] = self.state.get("next-row-id", 0)
        if not _has_current(self.state):
            self.state["current-snapshot-id"] = no_snapshot(version)
        self._set("format-version", version)

    def set_properties(self, updates: Mapping[str, str]) -> None:
        """Set table properties."""
        if updates:
            self._set("properties", {**self.state["properties"], **updates})

    def remove_properties(self, removals: Sequence[str]) -> None:
        """Drop table properties, whether or not they are there."""
        if removals:
            gone = set(removals)
            self._set("properties", {key: v for key, v in self.state["properties"].items() if key not in gone})

    def set_location(self, location: str) -> None:
        """Move the place of new files."""
        location = location.rstrip("/")
        if not location:
            raise BadRequest("Cannot set location: it is empty", rule="location")
        if location != self.state.get("location"):
            self._set("location", location)

    def add_key(self, key: Mapping[str, Any]) -> None:
        """Add an encryption key, unless its id is there."""
        key_id = text(key, "key-id", "encryption-key")
        text(key, "encrypted-key-metadata", "encryption-key")
        if all(known["key-id"] != key_id for known in self.state.get("encryption-keys", ())):
            self._set("encryption-keys", [*self.state.get("encryption-keys", ()), dict(key)])

    def remove_key(self, key_id: str) -> None:
        """Drop an encryption key, if it is there."""
        known = self.state.get("encryption-keys", ())
        kept = [key for key in known if key["key-id"] != key_id]
        if len(kept) != len(known):
            self._set("encryption-keys", kept)

    def check_row_lineage(self) -> None:
        """Early v3 clients switch row lineage on; it always is."""
        if self.format_version < 3:
            raise ValidationFailed(f"Cannot use row lineage with format version {self.format_version}: it came with v3")

    # -- the end -------------------------------------------------------------------------------------------------

    def build(self) -> Metadata:
        """The finished metadata; the base itself where nothing changed."""
        if self.base is not None and not self.changed:
            return self.base
        state = self.state
        self._check_complete()
        state["snapshot-log"] = self._corrected_log()
        last_log_ms = state["snapshot-log"][-1]["timestamp-ms"] if state["snapshot-log"] else 0
        # Iceberg refuses to read a table whose log runs more than a minute ahead of it.
        state["last-updated-ms"] = max(self.now_ms, last_log_ms)
        if self._main_moves:
            _check_log_order(state["snapshot-log"][-len(self._main_moves) - 1 :])
        return with_legacy_fields(state)

    def _check_complete(self) -> None:
        state = self.state
        if state.get("table-uuid") is None and self.format_version > 1:
            raise BadRequest(f"UUID is required in format v{self.format_version}: send assign-uuid", rule="uuid")
        if state.get("location") is None:
            raise BadRequest("Table location is required: send set-location", rule="location")
        schema = self._schema_for("table")
        spec = _by_id(state["partition-specs"], "spec-id", state["default-spec-id"])
        if spec is None:
            raise BadRequest("Partition specs cannot be null or empty: send add-spec", rule="spec.missing")
        order = _by_id(state["sort-orders"], "order-id", state["default-sort-order-id"])
        if order is None:
            raise BadRequest("Sort orders cannot be null or empty: send add-sort-order", rule="order.missing")
        unbroken = self.base is not None and all(
            self.base.get(key) == state[key]
            for key in ("current-schema-id", "default-spec-id", "default-sort-order-id")
        )
        if not unbroken:
            specs.check_spec(spec, schema)
            specs.check_order(order, schema)

    def _corrected_log(self) -> list[JSON]:
        """The snapshot log without snapshots that were `main` only within this commit, cut where history has a hole."""
        log: list[JSON] = self.state["snapshot-log"]
        current = self.state["current-snapshot-id"]
        passing = {i for i in self._main_moves if i in self._added_snapshots and i != current}
        if not passing and not self._removed_snapshots:
            return log
        kept: list[JSON] = []
        for entry in log:
            if self.snapshot(entry["snapshot-id"]) is not None:
                if entry["snapshot-id"] not in passing:
                    kept.append(entry)
            elif self._removed_snapshots:
                # Else the snapshot before the hole would seem to have been current all through it.
                kept = []
        if log and _has_current(self.state) and (not kept or kept[-1]["snapshot-id"] != current):
            raise ValidationFailed(
                "Cannot set invalid snapshot log: latest entry is not the current snapshot", rule="snapshot-log"
            )
        return kept

    def _schema_for(self, noun: str) -> JSON:
        schema = self.current_schema()
        if schema is None:
            raise BadRequest(f"Cannot build a {noun} before a schema is added: send add-schema", rule="schema.missing")
        return schema

    def _set(self, key: str, value: Any) -> None:
        self.state[key] = value
        self.changed = True

    def _append(self, key: str, entry: JSON) -> None:
        self._set(key, [*self.state.get(key, ()), entry])

    def _add(self, noun: str, added: int) -> None:
        self._added[noun].add(added)
        self._last_added[noun] = added

    def _found(self, noun: str, found: int) -> None:
        # "Last added" (-1) may name an equal one that was there before: Java's clients never ask for that, Go's do.
        self._last_added[noun] = found

    def _last(self, noun: str, message: str) -> int:
        last = self._last_added.get(noun)
        if last is None:
            raise ValidationFailed(message, rule=f"{noun}.last-added")
        return last


def with_legacy_fields(metadata: JSON) -> JSON:
    """The metadata with `schema` and `partition-spec` as readers of v1 want them, and without them after v1."""
    if metadata["format-version"] > 1:
        metadata.pop("schema", None)
        metadata.pop("partition-spec", None)
        return metadata
    schema = _by_id(metadata["schemas"], "schema-id", metadata["current-schema-id"])
    spec = _by_id(metadata["partition-specs"], "spec-id", metadata["default-spec-id"])
    assert schema is not None
    assert spec is not None
    return {**metadata, "schema": schema, "partition-spec": spec["fields"]}


def no_snapshot(format_version: int) -> int | None:
    """What `current-snapshot-id` holds for an empty table: null since v3, -1 before."""
    return None if format_version >= 3 else -1


def _nothing(format_version: int) -> JSON:
    return {
        "format-version": format_version,
        "last-column-id": 0,
        "current-schema-id": 0,
        "schemas": [],
        "default-spec-id": 0,
        "partition-specs": [],
        "last-partition-id": 0,
        "default-sort-order-id": 0,
        "sort-orders": [],
        "properties": {},
        "current-snapshot-id": no_snapshot(format_version),
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
        **({"last-sequence-number": 0} if format_version > 1 else {}),
        **({"next-row-id": 0} if format_version > 2 else {}),
    }


def _by_id(entries: Sequence[JSON], field: str, wanted: int) -> JSON | None:
    return next((entry for entry in entries if entry[field] == wanted), None)


def _has_current(state: Mapping[str, Any]) -> bool:
    return state.get("current-snapshot-id") not in (None, -1)


def _same_schema(known: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    try:
        return schemas.same(schemas.canonical(known), schema)
    except BadRequest:  # an old writer's schema in a form that can't equal a sound one
        return False


def _order_fields(order: Mapping[str, Any]) -> list[JSON]:
    return specs.canonical_order(order)["fields"]


def _check_log_order(log: Sequence[JSON]) -> None:
    for before, after in pairwise(log):
        if after["timestamp-ms"] < before["timestamp-ms"] - ONE_MINUTE_MS:
            raise ValidationFailed(
                f"Invalid snapshot timestamp {after['timestamp-ms']}: more than a minute before the snapshot log's entry"
                f" at {before['timestamp-ms']}; check the writer's clock",
                rule="snapshot.timestamp",
            )


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
