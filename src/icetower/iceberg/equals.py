"""Which schemas, partition specs and sort orders a table has already, found by what they say.

A commit may add a thousand of each to a table that has a thousand. Comparing each with all others took a minute for
everybody (trap A8); here each is looked at once for a builder, and found by a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from icetower.errors import BadRequest
from icetower.iceberg import schemas, specs
from icetower.iceberg.shapes import JSON

Shape = tuple[tuple[Any, Any], ...]


class KnownSchemas:
    """The schemas of a table. Only those with the columns of one that is looked for are brought into canonical form.

    Attributes:
        entries: the list that this index stands for.
        next_id: one more than the highest id.
    """

    def __init__(self, entries: Sequence[JSON]) -> None:
        self.entries = entries
        self.next_id = max((entry["schema-id"] + 1 for entry in entries), default=0)
        self._unread: dict[Shape, list[JSON]] = {}
        self._found: dict[Shape, dict[bytes, int]] = {}
        for entry in entries:
            self._unread.setdefault(_shape(entry), []).append(entry)

    def find(self, schema: JSON) -> int | None:
        """The id of the first schema that equals a canonical one, ids of the schemas apart."""
        shape = _shape(schema)
        found = self._found.setdefault(shape, {})
        for known in self._unread.pop(shape, ()):
            try:
                found.setdefault(_said(schemas.canonical(known)), known["schema-id"])
            except BadRequest:  # an old writer's schema in a form that can't equal a sound one
                continue
        return found.get(_said(schema))

    def add(self, schema: JSON, entries: Sequence[JSON]) -> None:
        """A canonical schema that was not found was added; `entries` is the list with it."""
        self.entries = entries
        self.next_id = max(self.next_id, schema["schema-id"] + 1)
        self._found.setdefault(_shape(schema), {}).setdefault(_said(schema), schema["schema-id"])


class KnownSpecs:
    """The partition specs of a table.

    Attributes:
        entries: the list that this index stands for.
        next_id: one more than the highest id.
        field_ids: by source and transform, the id of the field that had both last.
    """

    def __init__(self, entries: Sequence[JSON]) -> None:
        self.entries: Sequence[JSON] = ()
        self.next_id = 0
        self.field_ids: dict[tuple[Any, Any], int] = {}
        self._ids: dict[bytes, int] = {}
        for entry in entries:
            self.add(entry, entries)

    def find(self, spec: JSON) -> int | None:
        """The id of the first spec with the same names, transforms and sources in the same order (`compatibleWith`)."""
        return self._ids.get(_dumped(specs.without_ids(spec)))

    def add(self, spec: JSON, entries: Sequence[JSON]) -> None:
        """A spec was added; `entries` is the list with it."""
        self.entries = entries
        self.next_id = max(self.next_id, spec["spec-id"] + 1)
        self._ids.setdefault(_dumped(specs.without_ids(spec)), spec["spec-id"])
        self.field_ids.update(specs.lent_ids(spec))


class KnownOrders:
    """The sort orders of a table.

    Attributes:
        entries: the list that this index stands for.
        next_id: one more than the highest id.
    """

    def __init__(self, entries: Sequence[JSON]) -> None:
        self.entries: Sequence[JSON] = ()
        self.next_id = 1
        self._ids: dict[bytes, int] = {}
        for entry in entries:
            try:
                self.add(specs.canonical_order(entry), entries)
            except BadRequest:  # an old writer's order in a form that can't equal a sound one
                self.next_id = max(self.next_id, entry["order-id"] + 1)
        self.entries = entries

    def find(self, order: JSON) -> int | None:
        """The id of the first order that has the same fields as a canonical one."""
        return self._ids.get(_dumped(order["fields"]))

    def add(self, order: JSON, entries: Sequence[JSON]) -> None:
        """A canonical order was added; `entries` is the list with it."""
        self.entries = entries
        self.next_id = max(self.next_id, order["order-id"] + 1)
        self._ids.setdefault(_dumped(order["fields"]), order["order-id"])


def _shape(schema: Mapping[str, Any]) -> Shape:
    fields: Iterable[Any] = schema.get("fields") or ()
    return tuple((field.get("id"), field.get("name")) for field in fields)


def _said(schema: JSON) -> bytes:
    return _dumped([schema["fields"], schema.get("identifier-field-ids")])


def _dumped(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
