"""Partition specs and the names that people call partitions by, as Iceberg prints them.

Sources: specification, "Partitioning" and "Partition Transforms"; Iceberg's `Transform.toHumanString`.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from icetower.errors import ValidationFailed
from icetower.iceberg.schemas import source_of
from icetower.recent import IdentityKey, bounded_cache, weight_of_schemas

UNPARTITIONED = "(unpartitioned)"
FIRST_PARTITION_FIELD_ID = 1000
RESOLVED_MAX_BYTES = 16 * 1024 * 1024
"""Of tables' schemas that are kept, with their specs, for the versions of tables to come."""

RESOLVED_MAX = 4096
"""Specs that are kept for one table's schemas."""

_RESULTS = {"bucket": "int", "year": "int", "month": "int", "day": "date", "hour": "int"}


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of a spec. `transform` is as in the metadata (``bucket[16]``); types are Iceberg's names.

    `source_id` tells the source column from another that took its name after it was dropped.
    """

    field_id: int
    name: str
    transform: str
    source_name: str
    source_type: str
    result_type: str
    source_id: int


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    spec_id: int
    fields: tuple[PartitionField, ...]


def spec_of(metadata: Mapping[str, Any], spec_id: int) -> PartitionSpec:
    """The partition spec `spec_id` of a table's metadata.

    A source column that the current schema has dropped is looked up in older schemas.

    Raises:
        ValidationFailed: the table has no such spec, or a source column is in none of its schemas.
    """
    specs: Sequence[Mapping[str, Any]] = metadata.get("partition-specs") or [
        {"spec-id": 0, "fields": metadata.get("partition-spec", [])}  # version 1 as it was first written
    ]
    found = next((spec for spec in specs if spec["spec-id"] == spec_id), None)
    if found is None:
        known = ", ".join(str(spec["spec-id"]) for spec in specs)
        raise ValidationFailed(
            f"partition spec {spec_id} is unknown to the table, which has {known}; refresh and write with one of those",
            rule="manifest.spec",
            next_step="refresh",
        )
    return _sources(IdentityKey(*_schemas(metadata))).spec(spec_id, found["fields"])


class _Sources:
    """The columns of a table's schemas, and the specs that were resolved by them."""

    def __init__(self, schemas: Iterable[Mapping[str, Any]]) -> None:
        self._columns = _first_columns(schemas)
        self._specs: dict[tuple[int, IdentityKey], PartitionSpec] = {}

    def spec(self, spec_id: int, fields: Sequence[Mapping[str, Any]]) -> PartitionSpec:
        """The spec with these fields; the same object for the same ones."""
        key = spec_id, IdentityKey(fields)
        found = self._specs.get(key)
        if found is None:
            resolved = tuple(_field(position, field, self._columns) for position, field in enumerate(fields))
            found = PartitionSpec(spec_id, resolved)
            if len(self._specs) >= RESOLVED_MAX:
                self._specs.clear()
            self._specs[key] = found
        return found


@bounded_cache(RESOLVED_MAX_BYTES, weight_of_schemas)
def _sources(schemas: IdentityKey) -> _Sources:
    return _Sources(schemas.parts)


def resolve_fields(
    fields: Sequence[Mapping[str, Any]], schemas: Iterable[Mapping[str, Any]]
) -> tuple[PartitionField, ...]:
    """Partition fields with the names and types of their sources, found in the first schema that has them.

    Raises:
        ValidationFailed: a source column is in none of the schemas.
    """
    columns = _first_columns(schemas)
    return tuple(_field(position, field, columns) for position, field in enumerate(fields))


def _first_columns(schemas: Iterable[Mapping[str, Any]]) -> dict[int, tuple[str, str]]:
    columns: dict[int, tuple[str, str]] = {}
    for schema in schemas:
        for column_id, column in columns_of(schema):
            columns.setdefault(column_id, column)
    return columns


def _field(position: int, field: Mapping[str, Any], columns: Mapping[int, tuple[str, str]]) -> PartitionField:
    source_id = source_of(field)
    if source_id not in columns:
        raise ValidationFailed(
            f"partition field {field['name']!r} comes from column {source_id}, which is in no schema of the table",
            rule="manifest.spec",
        )
    name, kind = columns[source_id]
    transform = str(field["transform"])
    return PartitionField(
        # Version 1 may leave it out.
        field_id=field.get("field-id", FIRST_PARTITION_FIELD_ID + position),
        name=field["name"],
        transform=transform,
        source_name=name,
        source_type=kind,
        result_type=result_of(transform, kind),
        source_id=source_id,
    )


def result_of(transform: str, source_type: str) -> str:
    """The type of a transform's values."""
    return _RESULTS.get(transform.split("[")[0], source_type)


def _schemas(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The table's schemas: the current one, then the newest first."""
    schemas: list[Mapping[str, Any]] = metadata.get("schemas") or [metadata["schema"]]
    if len(schemas) == 1:
        return schemas
    current = metadata.get("current-schema-id", 0)
    return sorted(schemas, key=lambda s: (s.get("schema-id", 0) != current, -s.get("schema-id", 0)))


def columns_of(struct_type: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[int, tuple[str, str]]]:
    """(id, (name, type)) of every column that a partition field may come from; nested ones are ``a.b``."""
    for field in struct_type["fields"]:
        name, kind = prefix + field["name"], field["type"]
        if isinstance(kind, str):
            yield field["id"], (name, kind)
        elif kind["type"] == "struct":  # elements of lists and maps are no partition sources
            yield from columns_of(kind, name + ".")


def partition_key(partition: Sequence[Any]) -> tuple[Any, ...]:
    """What to compare and hash instead of a partition tuple, so that partitions differ where they do for Iceberg.

    To Python NaN differs from NaN, and -0.0 doesn't from 0.0.
    """
    return tuple(_real_key(value) if isinstance(value, float) else value for value in partition)


def _real_key(value: float) -> bytes | str:
    return "NaN" if math.isnan(value) else struct.pack("<d", value)


def partition_name(spec: PartitionSpec, partition: Sequence[Any]) -> str:
    """``date=2017-01-02/bucket=3``: names and values as people read them, nothing escaped."""
    if not spec.fields:
        return UNPARTITIONED
    return "/".join(
        f"{field.name}={human_value(field, raw)}" for field, raw in zip(spec.fields, partition, strict=True)
    )


def human_value(field: PartitionField, raw: Any) -> str:
    """A partition value as Iceberg prints it: ``2017-03`` for a month, base64 for binary, ``null`` for null."""
    if raw is None:
        return "null"
    match field.transform:
        case "year":
            return f"{1970 + raw:04d}"
        case "month":
            return f"{1970 + raw // 12:04d}-{1 + raw % 12:02d}"
        case "hour":
            return f"{_date(raw // 24)}-{raw % 24:02d}"
        case _:
            return _typed_value(field.result_type, raw)


def _typed_value(kind: str, raw: Any) -> str:
    match kind:
        case "date":
            return _date(raw)
        case "time":
            return _time(raw * 1000, groups=True)
        case "timestamp" | "timestamptz":
            return _timestamp(raw * 1000, zone=kind == "timestamptz")
        case "timestamp_ns" | "timestamptz_ns":
            return _timestamp(raw, zone=kind == "timestamptz_ns")
        case "boolean":
            return "true" if raw else "false"
        case "float" | "double":
            return _real(raw, single=kind == "float")
        case "uuid":
            return str(UUID(bytes=bytes(raw)))
        case _:
            return base64.b64encode(raw).decode() if isinstance(raw, bytes) else str(raw)


def _date(days: int) -> str:
    """The civil date of a day since 1970, in the proleptic Gregorian calendar; `datetime` ends at year 9999."""
    era, day_of_era = divmod(days + 719_468, 146_097)  # eras of 400 years that begin on 1 March
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    year = year_of_era + era * 400 + (month <= 2)
    return f"{year:04d}-{month:02d}-{day:02d}"


def _timestamp(nanos: int, *, zone: bool) -> str:
    days, nanos_of_day = divmod(nanos, 86_400_000_000_000)
    return f"{_date(days)}T{_time(nanos_of_day, groups=False)}{'+00:00' if zone else ''}"


def _time(nanos: int, *, groups: bool) -> str:
    """Time of day. `groups`: decimals in threes and no seconds where zero, as Java prints a time alone."""
    seconds, fraction = divmod(nanos, 1_000_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}"
    if groups and not seconds % 60 and not fraction:
        return text
    digits = f"{fraction:09d}".rstrip("0")
    if groups:
        digits = digits.ljust(-(-len(digits) // 3) * 3, "0")
    return f"{text}:{seconds % 60:02d}{'.' + digits if digits else ''}"


def _real(value: float, *, single: bool) -> str:
    """As Java's `Double.toString` (or `Float.toString`): plain from 1e-3 to 1e7, else ``1.0E10``."""
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    number = Decimal(_shortest_single(value) if single else repr(value))
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        plain = f"{number:f}"
        return plain if "." in plain else f"{plain}.0"
    sign, digits, _ = number.normalize().as_tuple()
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{rest}E{number.adjusted()}"


def _shortest_single(value: float) -> str:
    """The fewest digits that name this 32-bit number."""
    texts = (f"{value:.{digits}g}" for digits in range(1, 10))
    return next(text for text in texts if _single(float(text)) == _single(value))


def _single(value: float) -> bytes | None:
    """Its 32 bits; None where it rounds to none: fewer digits of the largest are more than it is."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return None


def known_specs(metadata: Mapping[str, Any]) -> dict[int, PartitionSpec]:
    """The partition specs that can be made out: one whose column is gone altogether is left out, as unknown."""
    found: dict[int, PartitionSpec] = {}
    for spec in metadata["partition-specs"]:
        try:
            found[spec["spec-id"]] = spec_of(metadata, spec["spec-id"])
        except ValidationFailed:
            continue
    return found
