"""The names of a contract's regions: a partition field's, or a transform of a column as Spark writes it.

`day(ts)`, `bucket(16, product_id)`, `truncate(10, sku)`, `identity(region)`. Other spellings that engines take or show
are read, too: `days(ts)` and `date(ts)`, `date_hour(ts)`, `bucket(product_id, 16)`, and `bucket[16](product_id)` as in
table metadata. A region that names columns stays true when the table's partitioning changes; one that names a field
means that field's transform and column, whichever spec has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from icetower.errors import ValidationFailed
from icetower.iceberg.partitions import PartitionField, PartitionSpec, columns_of, resolve_fields, result_of
from icetower.recent import IdentityKey, bounded_cache, weight_of_schemas

SHARED_MAX_BYTES = 16 * 1024 * 1024
"""Of layouts, with their schemas, that are kept for the versions of tables to come."""

_COLUMN = r"[^(),\s](?:[^(),]*[^(),\s])?"
_CALL = re.compile(
    rf"(\w+)(?:\[(?P<inner>\d+)\])?\(\s*(?:(?P<before>\d+)\s*,\s*)?(?P<column>{_COLUMN})\s*(?:,\s*(?P<after>\d+)\s*)?\)"
)
_PLAIN = {
    **{name: name for name in ("identity", "year", "month", "day", "hour")},
    **{f"{name}s": name for name in ("year", "month", "day", "hour")},
    "date": "day",
    "date_hour": "hour",
}


@dataclass(frozen=True, slots=True)
class Term:
    """A transform, as in table metadata (``bucket[16]``), of a column, which may be nested (``a.b``)."""

    transform: str
    column: str


def parse_term(text: str) -> Term | None:
    """The transform of a column that a text is; None for a plain name, which is a partition field's.

    Raises:
        ValueError: it looks like a transform and is none; the text says why.
    """
    if "(" not in text and ")" not in text:
        return None
    found = _CALL.fullmatch(text.strip())
    if found is None:
        raise ValueError("is no transform of one column; write day(ts) or bucket(16, product_id)")
    name, column = found[1].lower(), found["column"]
    widths = [found[place] for place in ("inner", "before", "after") if found[place] is not None]
    if len(widths) > 1:
        raise ValueError(f"has {len(widths)} numbers; write {name}({widths[0]}, {column})")
    width = widths[0] if widths else None
    if name in ("bucket", "truncate"):
        if width is None or int(width) < 1:
            raise ValueError(f"needs a number: {name}(16, {column})")
        return Term(f"{name}[{int(width)}]", column)
    if name not in _PLAIN:
        raise ValueError(f"has the transform {name!r}; known are {', '.join(('bucket', 'truncate', *_PLAIN))}")
    if width is not None:
        raise ValueError(f"takes no number: {name}({column})")
    return Term(_PLAIN[name], column)


class Layout:
    """What names in regions mean for one table: its columns, and the partition fields of all its specs.

    Args:
        metadata: the table's, with the specs and schemas of the commit that is judged.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._schemas: Sequence[Mapping[str, Any]] = metadata.get("schemas") or [metadata["schema"]]
        self._specs: Sequence[Mapping[str, Any]] = metadata.get("partition-specs") or ()
        self._current: int = metadata.get("current-schema-id", 0)
        self.compiled: dict[IdentityKey, Any] = {}
        """What is worked out for this layout (`owning`), to go with it."""

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Layout:
        """The one layout of all versions of a table that share their schemas and specs."""
        own = cls(metadata)
        return _shared((own._current, IdentityKey(*own._schemas), IdentityKey(*own._specs)))

    def field(self, name: str, spec: PartitionSpec) -> PartitionField | None:
        """The field, or the term as if it were one, that a region's `name` means; None where the table has none.

        A field of the judged `spec` itself comes first; where only other specs have the name, they must agree on it.
        """
        own = next((field for field in spec.fields if field.name == name and field.transform != "void"), None)
        if own is not None:
            return own
        try:
            term = parse_term(name)
        except ValueError:
            return None
        if term is None:
            return self._named.get(name)
        if term.column not in self._columns:
            return None
        source_id, kind = self._columns[term.column]
        return PartitionField(-1, name, term.transform, term.column, kind, result_of(term.transform, kind), source_id)

    @cached_property
    def _columns(self) -> dict[str, tuple[int, str]]:
        schema = next(each for each in self._schemas if each.get("schema-id", 0) == self._current)
        return {name: (column_id, kind) for column_id, (name, kind) in columns_of(schema)}

    @cached_property
    def _named(self) -> dict[str, PartitionField]:
        found: dict[str, set[tuple[int, str]]] = {}
        fields: dict[str, PartitionField] = {}
        for spec in self._specs:
            try:
                resolved = resolve_fields(spec["fields"], self._schemas)
            except ValidationFailed:
                continue  # its column is gone altogether
            for field in resolved:
                if field.transform == "void":  # what version 1 leaves of a field that was dropped
                    continue
                found.setdefault(field.name, set()).add((field.source_id, field.transform))
                fields[field.name] = field
        return {name: field for name, field in fields.items() if len(found[name]) == 1}


_Shared = tuple[int, IdentityKey, IdentityKey]
"""The id of the current schema, the schemas, the specs."""


def _weight(key: _Shared) -> int:
    return weight_of_schemas(key[1]) + weight_of_schemas(key[2])


@bounded_cache(SHARED_MAX_BYTES, _weight)
def _shared(key: _Shared) -> Layout:
    current, schemas, specs = key
    return Layout({"current-schema-id": current, "schemas": schemas.parts, "partition-specs": specs.parts})


NO_LAYOUT = Layout({"schemas": [{"schema-id": 0, "fields": []}]})
"""For whoever judges partitions of one spec by the names of its own fields alone."""
