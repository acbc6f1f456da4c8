"""Schemas, partition specs and sort orders of a table under construction.

Equal ones are reused and new ones numbered as Iceberg's `TableMetadata.Builder` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icetower.errors import BadRequest, ValidationFailed
from icetower.iceberg import schemas, specs
from icetower.iceberg.equals import KnownOrders, KnownSchemas, KnownSpecs
from icetower.iceberg.schemas import Columns
from icetower.iceberg.shapes import JSON

LAST_ADDED = -1
SPECS_MAX = 1_000
"""Partition specs, and sort orders, to which a commit may add: every commit walks through them."""


class Structure:
    """Metadata under construction, as far as its structure goes.

    `state` shares the base's parts; lists and maps in it are replaced, never changed.
    """

    def __init__(self, state: JSON) -> None:
        self.state = state
        self.changed = False
        self._last_added: dict[str, int] = {}
        self._columns: dict[int, Columns] = {}
        self._known_schemas = KnownSchemas(())
        self._known_specs = KnownSpecs(())
        self._known_orders = KnownOrders(())

    @property
    def format_version(self) -> int:
        return int(self.state["format-version"])

    def current_schema(self) -> JSON | None:
        """The current schema; None before one is added to a table built from nothing."""
        return by_id(self.state["schemas"], "schema-id", self.state["current-schema-id"])

    def add_schema(self, sent: Mapping[str, Any]) -> None:
        """Add a schema, or find the one that equals it."""
        schema = schemas.canonical(sent)
        schemas.check_version(schema, self.format_version)
        last_column_id = max(self.state["last-column-id"], schemas.highest_id(schema))
        known = self._known_schemas
        if known.entries is not self.state["schemas"]:
            known = self._known_schemas = KnownSchemas(self.state["schemas"])
        equal = known.find(schema)
        if equal is not None:
            self._note("schema", equal)
            if last_column_id != self.state["last-column-id"]:
                self.put("last-column-id", last_column_id)
            return
        schema["schema-id"] = max(self.state["current-schema-id"], known.next_id)
        self.state["last-column-id"] = last_column_id
        known.add(schema, self.append("schemas", schema))
        self._note("schema", schema["schema-id"])

    def set_current_schema(self, schema_id: int) -> None:
        """Make a schema the current one; every spec must live with its names."""
        if schema_id == LAST_ADDED:
            schema_id = self._last("schema", "Cannot set last added schema: no schema has been added")
        if schema_id == self.state["current-schema-id"]:
            return
        schema = by_id(self.state["schemas"], "schema-id", schema_id)
        if schema is None:
            raise ValidationFailed(f"Cannot set current schema to unknown schema: {schema_id}", rule="schema.known")
        columns = self.columns_of(schema)
        for spec in self.state["partition-specs"]:
            specs.check_spec_names(spec, columns)
        self.put("current-schema-id", schema_id)

    def add_spec(self, sent: Mapping[str, Any]) -> None:
        """Add a partition spec, or find the one that equals it, ids apart."""
        spec = specs.canonical_spec(sent)
        columns = self.columns_of(self.schema_for("partition spec"))
        known = self._known_specs
        if known.entries is not self.state["partition-specs"]:
            known = self._known_specs = KnownSpecs(self.state["partition-specs"])
        equal = known.find(spec)
        if equal is not None:
            self._note("spec", equal)
            return
        _check_number(known.entries, "partition specs")
        specs.check_spec(spec, columns)
        specs.check_spec_names(spec, columns)
        spec = specs.with_ids(spec, known.field_ids, self.state["last-partition-id"])
        if self.format_version == 1 and not specs.has_sequential_ids(spec):
            raise ValidationFailed(
                f"Spec does not use sequential IDs that are required in v1: {spec['fields']}", rule="spec.ids"
            )
        spec["spec-id"] = known.next_id
        self.state["last-partition-id"] = max(self.state["last-partition-id"], specs.highest_field_id([spec]))
        known.add(spec, self.append("partition-specs", spec))
        self._note("spec", spec["spec-id"])

    def set_default_spec(self, spec_id: int) -> None:
        """Make a spec the one that writers use."""
        if spec_id == LAST_ADDED:
            spec_id = self._last("spec", "Cannot set last added spec: no spec has been added")
        if spec_id == self.state["default-spec-id"]:
            return
        if by_id(self.state["partition-specs"], "spec-id", spec_id) is None:
            raise ValidationFailed(f"Cannot set default partition spec to unknown spec: {spec_id}", rule="spec.known")
        self.put("default-spec-id", spec_id)

    def add_sort_order(self, sent: Mapping[str, Any]) -> None:
        """Add a sort order, or find the one that equals it."""
        order = specs.canonical_order(sent)
        columns = self.columns_of(self.schema_for("sort order"))
        known = self._known_orders
        if known.entries is not self.state["sort-orders"]:
            known = self._known_orders = KnownOrders(self.state["sort-orders"])
        equal = known.find(order)
        if equal is not None:
            self._note("order", equal)
            return
        _check_number(known.entries, "sort orders")
        specs.check_order(order, columns)
        order["order-id"] = known.next_id if order["fields"] else 0
        known.add(order, self.append("sort-orders", order))
        self._note("order", order["order-id"])

    def set_default_sort_order(self, order_id: int) -> None:
        """Make a sort order the one that writers use."""
        if order_id == LAST_ADDED:
            order_id = self._last("order", "Cannot set last added sort order: no sort order has been added")
        if order_id == self.state["default-sort-order-id"]:
            return
        if by_id(self.state["sort-orders"], "order-id", order_id) is None:
            raise ValidationFailed(f"Cannot set default sort order to unknown sort order: {order_id}", rule="order")
        self.put("default-sort-order-id", order_id)

    def remove_by_id(self, part: str, field: str, ids: Sequence[int], current: int, noun: str) -> None:
        """Drop specs or schemas, but not the one in use. Unknown ids are nothing to drop."""
        if current in ids:
            raise ValidationFailed(f"Cannot remove the {noun}: {current}", rule="remove.current")
        if ids:
            gone = set(ids)
            self.put(part, [entry for entry in self.state[part] if entry[field] not in gone])

    def schema_for(self, noun: str) -> JSON:
        """The current schema, for something that needs one.

        Raises:
            BadRequest: none has been added.
        """
        schema = self.current_schema()
        if schema is None:
            raise BadRequest(f"Cannot build a {noun} before a schema is added: send add-schema", rule="schema.missing")
        return schema

    def columns_of(self, schema: JSON) -> Columns:
        """The columns of a schema of this table; made out once."""
        found = self._columns.get(id(schema))
        if found is None or found.schema is not schema:
            found = self._columns[id(schema)] = Columns(schema)
        return found

    def put(self, key: str, value: Any) -> None:
        """Replace a part of the metadata."""
        self.state[key] = value
        self.changed = True

    def append(self, key: str, entry: JSON) -> list[JSON]:
        """Replace a list of the metadata by one with another entry, which is returned."""
        entries = [*self.state.get(key, ()), entry]
        self.put(key, entries)
        return entries

    def _note(self, noun: str, found: int) -> None:
        # "Last added" (-1) may name an equal one that was there before: Iceberg's own clients never ask for that, a
        # client that replays its steps on a head that another changed may.
        self._last_added[noun] = found

    def _last(self, noun: str, message: str) -> int:
        last = self._last_added.get(noun)
        if last is None:
            raise ValidationFailed(message, rule=f"{noun}.last-added")
        return last


def by_id(entries: Sequence[JSON], field: str, wanted: int) -> JSON | None:
    """The entry with that id."""
    return next((entry for entry in entries if entry[field] == wanted), None)


def _check_number(entries: Sequence[JSON], what: str) -> None:
    if len(entries) >= SPECS_MAX:
        raise ValidationFailed(
            f"the table has {len(entries)} {what}, and at most {SPECS_MAX} are taken; remove those that are not used",
            rule="limit.structure",
        )
