"""Schemas, partition specs and sort orders of a table under construction.

Equal ones are reused and new ones numbered as Iceberg's `TableMetadata.Builder` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icetower.errors import BadRequest, ValidationFailed
from icetower.table import schemas, specs
from icetower.table.shapes import JSON

LAST_ADDED = -1


class Structure:
    """Metadata under construction, as far as its structure goes.

    `state` shares the base's parts; lists and maps in it are replaced, never changed.
    """

    def __init__(self, state: JSON) -> None:
        self.state = state
        self.changed = False
        self._last_added: dict[str, int] = {}

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
        equal = next((s["schema-id"] for s in self.state["schemas"] if _same_schema(s, schema)), None)
        if equal is not None:
            self._note("schema", equal)
            if last_column_id != self.state["last-column-id"]:
                self.put("last-column-id", last_column_id)
            return
        known = [s["schema-id"] for s in self.state["schemas"]]
        schema["schema-id"] = max([self.state["current-schema-id"], *(i + 1 for i in known)])
        self.state["last-column-id"] = last_column_id
        self.append("schemas", schema)
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
        for spec in self.state["partition-specs"]:
            specs.check_spec_names(spec, schema)
        self.put("current-schema-id", schema_id)

    def add_spec(self, sent: Mapping[str, Any]) -> None:
        """Add a partition spec, or find the one that equals it, ids apart."""
        spec = specs.canonical_spec(sent)
        schema = self.schema_for("partition spec")
        equal = next((s["spec-id"] for s in self.state["partition-specs"] if specs.same_spec(spec, s)), None)
        if equal is not None:
            self._note("spec", equal)
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
        self.append("partition-specs", spec)
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
        schema = self.schema_for("sort order")
        known = self.state["sort-orders"]
        equal = next((o["order-id"] for o in known if _order_fields(o) == order["fields"]), None)
        if equal is not None:
            self._note("order", equal)
            return
        specs.check_order(order, schema)
        order["order-id"] = max([1, *(o["order-id"] + 1 for o in known)]) if order["fields"] else 0
        self.append("sort-orders", order)
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
            self.put(part, [entry for entry in self.state[part] if entry[field] not in ids])

    def schema_for(self, noun: str) -> JSON:
        """The current schema, for something that needs one.

        Raises:
            BadRequest: none has been added.
        """
        schema = self.current_schema()
        if schema is None:
            raise BadRequest(f"Cannot build a {noun} before a schema is added: send add-schema", rule="schema.missing")
        return schema

    def put(self, key: str, value: Any) -> None:
        """Replace a part of the metadata."""
        self.state[key] = value
        self.changed = True

    def append(self, key: str, entry: JSON) -> None:
        """Replace a list of the metadata by one with another entry."""
        self.put(key, [*self.state.get(key, ()), entry])

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


def _same_schema(known: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    try:
        return schemas.same(schemas.canonical(known), schema)
    except BadRequest:  # an old writer's schema in a form that can't equal a sound one
        return False


def _order_fields(order: Mapping[str, Any]) -> list[JSON]:
    return specs.canonical_order(order)["fields"]
