"""A table's metadata as plain JSON: reading, writing, making, checking requirements, walking history.

`Metadata` is the JSON of the specification ("Table Metadata Fields"), never changed in place. Everything here is pure.
PyIceberg cannot write format 3, and parses every snapshot with Pydantic (trap L1).
Behaviour and messages follow Iceberg's `TableMetadata`, `TableMetadataParser` and `UpdateRequirement`.
"""

from __future__ import annotations

import gzip as gzip_format
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from icetower.errors import BadRequest, ValidationFailed
from icetower.iceberg import lineage, schemas, specs
from icetower.iceberg.builder import MAIN, Metadata, checked_version, no_snapshot, with_legacy_fields
from icetower.iceberg.partitions import spec_of
from icetower.iceberg.shapes import JSON, integer, mapping, objects, optional_integer, text, text_map
from icetower.iceberg.updates import DEFAULT_FORMAT_VERSION, apply
from icetower.protocol.columns import FULL_NAMES_CHARACTERS_MAX, characters_around

__all__ = [
    "DATA_PATH",
    "DATA_PATHS",
    "MAIN",
    "FailedRequirement",
    "Metadata",
    "ancestors",
    "apply",
    "current_schema",
    "current_snapshot_id",
    "data_location",
    "failed_requirements",
    "metadata_path",
    "new_table",
    "parse",
    "ref_head",
    "serialise",
    "snapshot",
    "version_of",
    "with_log",
]

RESERVED_PROPERTIES = frozenset(
    {
        "format-version",
        "uuid",
        "snapshot-count",
        "current-snapshot-id",
        "current-snapshot-summary",
        "current-snapshot-timestamp-ms",
        "current-schema",
        "default-partition-spec",
        "default-sort-order",
    }
)
"""Properties that steer how a table is made or shown; they are never stored."""

DATA_PATH = "write.data.path"
DATA_PATHS = (DATA_PATH, "write.object-storage.path", "write.folder-storage.path")
"""Properties that say where data files go; the first that is set counts, as in Iceberg's `LocationProviders`."""

_NEW_TABLE_PROPERTIES = {"write.parquet.compression-codec": "zstd"}
_COUNT_PROPERTIES = (
    "commit.retry.num-retries",
    "commit.retry.min-wait-ms",
    "commit.retry.max-wait-ms",
    "commit.retry.total-timeout-ms",
)
_METRICS_COLUMN = "write.metadata.metrics.column."
_PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WBITS = 16 + zlib.MAX_WBITS

UNPACKED_MAX_BYTES = 1024 * 1024 * 1024
"""So long may metadata be for a reader that sets no bound of its own: the command line, an audit."""

OBJECTS_FREE, OBJECT_BYTES = 10_000, 12
"""An empty object takes 64 bytes in memory and two in JSON. Metadata has one in 100 bytes or so."""

_VERSION = re.compile(r"(?:(\d+)-|v(\d+)\.)")


@dataclass(frozen=True, slots=True)
class FailedRequirement:
    """A requirement (JSON) that the table doesn't meet, and Iceberg's words for it."""

    requirement: JSON
    message: str


def parse(data: bytes, *, gzip: bool | None = None, most_bytes: int = UNPACKED_MAX_BYTES) -> Metadata:
    """Read a metadata file.

    Args:
        data: its bytes.
        gzip: whether they are compressed; None looks.
        most_bytes: how long it may be, unpacked.

    Raises:
        BadRequest: no metadata of a version up to 3; the message names the field. It is too long, or has more objects
            than any metadata of that length.
    """
    if gzip or (gzip is None and data.startswith(_GZIP_MAGIC)):
        try:
            data = _unpacked(data, most_bytes)
        except (EOFError, zlib.error) as error:
            raise BadRequest(f"Cannot parse table metadata: not gzip: {error}", rule="metadata") from error
    objects = data.count(b"{") + data.count(b"[")
    if len(data) > most_bytes or objects > OBJECTS_FREE + len(data) // OBJECT_BYTES:
        raise BadRequest(
            f"Cannot parse table metadata: it has more than {most_bytes} bytes, or {objects} lists and objects in "
            f"{len(data)} bytes; expire snapshots, or write it again",
            rule="limit.file",
        )
    try:
        value: object = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"Cannot parse table metadata: not JSON: {error}", rule="metadata") from error
    if not isinstance(value, dict):
        raise BadRequest("Cannot parse table metadata: it must be a JSON object", rule="metadata")
    try:
        orjson.dumps(value)
    except TypeError as error:  # what is nested so deep can be read, and could never be answered
        raise BadRequest(
            f"Cannot parse table metadata: it cannot be written again: {error}", rule="metadata"
        ) from error
    metadata = _complete(value)
    try:
        _check_usable(metadata)
    except (TypeError, KeyError, AttributeError, ValueError, IndexError, RecursionError) as error:
        raise BadRequest(
            f"Cannot parse table metadata: a schema, a partition spec or a snapshot is malformed "
            f"({type(error).__name__}: {error})",
            rule="metadata",
        ) from error
    return metadata


def _check_usable(metadata: Metadata) -> None:
    """Whatever is derived from metadata later must find the shapes that it goes by. Raises what Python raises."""
    around = max(map(characters_around, metadata.get("schemas") or [metadata.get("schema")]))
    if around > FULL_NAMES_CHARACTERS_MAX:
        raise BadRequest(
            f"Cannot parse table metadata: the full names of a schema's nested columns have {around} characters, and "
            f"at most {FULL_NAMES_CHARACTERS_MAX} are read; shorten the names of columns that hold others",
            rule="limit.file",
        )
    for spec in metadata.get("partition-specs") or ():
        try:
            spec_of(metadata, spec["spec-id"])
        except ValidationFailed:  # a transform or a column that is not known: whoever commits to that spec hears of it
            continue
    for entry in metadata.get("snapshots") or ():
        summary: object = entry.get("summary")
        if not isinstance(summary, Mapping | None):
            raise TypeError(f"the summary of snapshot {entry.get('snapshot-id')} is no object")


def _unpacked(data: bytes, most_bytes: int) -> bytes:
    """A gzip file of one member or several, unpacked to one byte beyond the bound at most."""
    parts: list[bytes] = []
    left = most_bytes + 1
    while data and left > 0:
        unpack = zlib.decompressobj(wbits=_GZIP_WBITS)
        parts.append(unpack.decompress(data, left))
        left -= len(parts[-1])
        if left > 0 and not unpack.eof:
            raise EOFError("it ends before its end-of-stream marker")
        data = unpack.unused_data
    return b"".join(parts)


def serialise(metadata: Metadata) -> bytes:
    """The bytes of a metadata file, compressed where the table asks for it (and `metadata_path` says so)."""
    data = orjson.dumps(metadata)
    # Without a time in its header, equal metadata gives equal bytes.
    return gzip_format.compress(data, compresslevel=6, mtime=0) if _is_compressed(metadata) else data


def new_table(
    *,
    uuid: str,
    location: str,
    schema: Mapping[str, Any],
    spec: Mapping[str, Any] | None,
    sort_order: Mapping[str, Any] | None,
    properties: Mapping[str, str],
    now_ms: int,
) -> Metadata:
    """The metadata of a new table, with fresh field, partition and sort order ids (Iceberg: `newTableMetadata`).

    Args:
        uuid: of the table.
        location: its root; without a trailing slash.
        schema: as the client sent it, ids and all; spec and order name its columns by those ids.
        spec: None or without fields: unpartitioned. A `field-id` that is missing or 0 means "assign one" (trap A7).
        sort_order: None or without fields: unsorted.
        properties: `format-version` (default 2) is honoured; reserved ones are not kept.
        now_ms: wall clock.

    Raises:
        BadRequest: a bad shape, or something that the format version doesn't have.
        ValidationFailed: spec, order or properties don't fit the schema.
    """
    sent = schemas.canonical(schema)
    version = checked_version(_count(properties, "format-version", DEFAULT_FORMAT_VERSION))
    schemas.check_version(sent, version)
    fresh, last_column_id = schemas.with_fresh_ids(sent, 0)
    fresh_spec = specs.fresh_spec(specs.canonical_spec(spec or {"fields": []}), sent, fresh)
    columns = schemas.Columns(fresh)
    specs.check_spec_names(fresh_spec, columns)
    specs.check_spec(fresh_spec, columns)
    order = specs.fresh_order(specs.canonical_order(sort_order or {"fields": []}), sent, fresh)
    specs.check_order(order, columns)
    kept = {key: value for key, value in properties.items() if key not in RESERVED_PROPERTIES}
    _check_properties(kept, sent)
    if not location.rstrip("/"):
        raise BadRequest("Cannot create a table: its location is empty", rule="location")
    return with_legacy_fields(
        {
            "format-version": version,
            "table-uuid": uuid,
            "location": location.rstrip("/"),
            **({"last-sequence-number": 0} if version > 1 else {}),
            "last-updated-ms": now_ms,
            "last-column-id": last_column_id,
            "current-schema-id": 0,
            "schemas": [fresh],
            "default-spec-id": 0,
            "partition-specs": [fresh_spec],
            "last-partition-id": specs.highest_field_id([fresh_spec]),
            "default-sort-order-id": order["order-id"],
            "sort-orders": [order],
            "properties": {**_NEW_TABLE_PROPERTIES, **kept},
            "current-snapshot-id": no_snapshot(version),
            **({"next-row-id": 0} if version > 2 else {}),
            "refs": {},
            "snapshots": [],
            "statistics": [],
            "partition-statistics": [],
            "snapshot-log": [],
            "metadata-log": [],
        }
    )


def failed_requirements(
    metadata: Metadata | None, requirements: Sequence[Mapping[str, Any]]
) -> list[FailedRequirement]:
    """The requirements that the table doesn't meet, in order. None stands for a table that doesn't exist.

    Raises:
        BadRequest: an unknown requirement, or a bad shape.
    """
    failed: list[FailedRequirement] = []
    for requirement in requirements:
        message = _failure(metadata, requirement)
        if message is not None:
            failed.append(FailedRequirement(dict(requirement), f"Requirement failed: {message}"))
    return failed


def with_log(
    metadata: Metadata, *, previous: Metadata | None, previous_location: str | None
) -> tuple[Metadata, tuple[str, ...]]:
    """The metadata with the file that it follows in its `metadata-log`, and the locations that fell out of the log.

    As many entries are kept as table property `write.metadata.previous-versions-max` says (default 100, at least 1).
    Whether those files are deleted is the caller's to decide (`write.metadata.delete-after-commit.enabled`).

    Raises:
        BadRequest: the property is no number.
    """
    if previous is None or previous_location is None:
        return metadata, ()
    most = max(1, _count(metadata["properties"], _PREVIOUS_VERSIONS_MAX, 100))
    log: list[JSON] = [
        *metadata.get("metadata-log", ()),
        {"timestamp-ms": previous["last-updated-ms"], "metadata-file": previous_location},
    ]
    expired = tuple(entry["metadata-file"] for entry in log[:-most])
    return {**metadata, "metadata-log": log[-most:]}, expired


def current_schema(metadata: Metadata) -> Mapping[str, Any]:
    """The current schema, as the metadata has it."""
    return next(schema for schema in metadata["schemas"] if schema["schema-id"] == metadata["current-schema-id"])


def current_snapshot_id(metadata: Metadata) -> int | None:
    """The snapshot that `main` points at; None for an empty table."""
    found = metadata.get("current-snapshot-id")
    return None if found in (None, -1) else found


def ref_head(metadata: Metadata, ref: str) -> int | None:
    """The snapshot that a branch or tag points at; None if it doesn't exist."""
    found = metadata["refs"].get(ref)
    return None if found is None else found["snapshot-id"]


def snapshot(metadata: Metadata, snapshot_id: int) -> JSON | None:
    """A snapshot by its id; the youngest are looked at first."""
    return next((entry for entry in reversed(metadata["snapshots"]) if entry["snapshot-id"] == snapshot_id), None)


def ancestors(metadata: Metadata, snapshot_id: int) -> Iterator[Mapping[str, Any]]:
    """The snapshot itself, its parent, and so on, as far as the table still has them."""
    return lineage.ancestors({entry["snapshot-id"]: entry for entry in metadata["snapshots"]}.get, snapshot_id)


def data_location(location: str, properties: Mapping[str, str]) -> str:
    """Where the data files of a table go that lies at `location`, without a slash at its end."""
    chosen = next((properties[name] for name in DATA_PATHS if properties.get(name)), None)
    return chosen.rstrip("/") if chosen else f"{location.rstrip('/')}/data"


def metadata_folder(metadata: Metadata) -> str:
    """Where metadata goes: property `write.metadata.path`, or `metadata` in the table's location."""
    folder: str = metadata["properties"].get("write.metadata.path") or f"{metadata['location']}/metadata"
    return folder.rstrip("/")


def metadata_path(metadata: Metadata, version: int, uuid: str, folder: str | None = None) -> str:
    """Where the metadata file of a version goes. `folder`: instead of the one where metadata goes.

    Raises:
        BadRequest: property `write.metadata.compression-codec` is neither `none` nor `gzip`.
    """
    folder = metadata_folder(metadata) if folder is None else folder
    ending = ".gz.metadata.json" if _is_compressed(metadata) else ".metadata.json"
    return f"{folder}/{version:05d}-{uuid}{ending}"


def version_of(location: str) -> int:
    """The version in a metadata file's name (`00012-<uuid>.metadata.json`, `v12.metadata.json`); 0 for other names."""
    match = _VERSION.match(location.rsplit("/", 1)[-1])
    return 0 if match is None else int(match[1] or match[2])


def _complete(value: JSON) -> JSON:
    """Metadata as a current writer would have written it: early v1 files lack much. Unknown fields stay."""
    where = "table metadata"
    version = integer(value, "format-version", where)
    if not 1 <= version <= 3:
        raise BadRequest(f"Cannot read unsupported version {version}", rule="format-version")
    if version > 1:
        text(value, "table-uuid", where)
        integer(value, "last-sequence-number", where)
    if version > 2:
        integer(value, "next-row-id", where)
    text(value, "location", where)
    integer(value, "last-updated-ms", where)
    integer(value, "last-column-id", where)
    if version == 1:
        value = _complete_v1(value, where)
    _check_choice(value, "schemas", "schema-id", "current-schema-id")
    _check_choice(value, "partition-specs", "spec-id", "default-spec-id")
    _check_choice(value, "sort-orders", "order-id", "default-sort-order-id")
    integer(value, "last-partition-id", where)
    current = optional_integer(value, "current-snapshot-id", where)
    current = None if current == -1 else current
    value["current-snapshot-id"] = no_snapshot(version) if current is None else current
    value["properties"] = text_map(value, "properties", where) if value.get("properties") is not None else {}
    for part in ("snapshots", "statistics", "partition-statistics", "snapshot-log", "metadata-log"):
        value[part] = objects(value, part, where) if value.get(part) is not None else []
    if value.get("refs") is None:
        value["refs"] = {} if current is None else {MAIN: {"snapshot-id": current, "type": "branch"}}
    _check_refs(value, current)
    return value


def _complete_v1(value: JSON, where: str) -> JSON:
    if value.get("schemas") is None:
        schema = {**mapping(value, "schema", where)}
        schema.setdefault("schema-id", 0)
        value["schemas"], value["current-schema-id"] = [schema], schema["schema-id"]
    if value.get("partition-specs") is None:
        spec = specs.canonical_spec({"spec-id": 0, "fields": objects(value, "partition-spec", where)})
        # The first writers left the ids out: they count up from 1000.
        spec["fields"] = [{"field-id": specs.FIRST_FIELD_ID + i, **field} for i, field in enumerate(spec["fields"])]
        value["partition-specs"], value["default-spec-id"] = [spec], 0
    if value.get("last-partition-id") is None:
        value["last-partition-id"] = specs.highest_field_id(value["partition-specs"])
    if value.get("sort-orders") is None:
        value["sort-orders"], value["default-sort-order-id"] = [specs.UNSORTED], 0
    return value


def _check_choice(value: JSON, part: str, id_field: str, chosen: str) -> None:
    wanted = integer(value, chosen, "table metadata")
    if not any(integer(entry, id_field, part) == wanted for entry in objects(value, part, "table metadata")):
        raise BadRequest(f"Cannot find {part} entry with {chosen}={wanted}", rule="metadata")


def _check_refs(value: JSON, current: int | None) -> None:
    known = {integer(entry, "snapshot-id", "snapshots") for entry in value["snapshots"]}
    refs = mapping(value, "refs", "table metadata")
    for name in refs:
        target = integer(mapping(refs, name, "refs"), "snapshot-id", f"ref {name!r}")
        if target not in known:
            raise BadRequest(f"Snapshot for reference {name} does not exist in the existing snapshots list: {target}")
    if current is not None and current not in known:
        raise BadRequest("Invalid table metadata: Cannot find current version", rule="metadata")
    main = refs[MAIN]["snapshot-id"] if MAIN in refs else None
    if main is not None and main != current:
        raise BadRequest(f"Current snapshot ID does not match main branch ({current} != {main})", rule="metadata")


def _failure(metadata: Metadata | None, requirement: Mapping[str, Any]) -> str | None:
    """Why a requirement isn't met, in Iceberg's words; None if it is."""
    kind = requirement.get("type")
    if kind == "assert-create":
        return None if metadata is None else "table already exists"
    if kind == "assert-table-uuid":
        uuid = text(requirement, "uuid", kind)
        if metadata is None:
            return "table does not exist"
        had = metadata.get("table-uuid")
        same = had is not None and uuid.lower() == had.lower()
        return None if same else f"UUID does not match: expected {had} != {uuid}"
    if kind == "assert-ref-snapshot-id":
        return _ref_failure(
            metadata, text(requirement, "ref", kind), optional_integer(requirement, "snapshot-id", kind)
        )
    if not isinstance(kind, str) or kind not in _COUNTERS:
        raise BadRequest(f"Unknown table requirement: {kind!r}", rule="requirement.type")
    field, counter, noun = _COUNTERS[kind]
    expected = integer(requirement, field, kind)
    if metadata is None:
        # Iceberg takes "nothing assigned yet" for granted where there is no table.
        return None if kind.startswith("assert-last-assigned") else "table does not exist"
    return None if metadata[counter] == expected else f"{noun} changed: expected id {expected} != {metadata[counter]}"


_COUNTERS: Mapping[str, tuple[str, str, str]] = {
    "assert-last-assigned-field-id": ("last-assigned-field-id", "last-column-id", "last assigned field id"),
    "assert-current-schema-id": ("current-schema-id", "current-schema-id", "current schema"),
    "assert-last-assigned-partition-id": (
        "last-assigned-partition-id",
        "last-partition-id",
        "last assigned partition id",
    ),
    "assert-default-spec-id": ("default-spec-id", "default-spec-id", "default partition spec"),
    "assert-default-sort-order-id": ("default-sort-order-id", "default-sort-order-id", "default sort order"),
}


def _ref_failure(metadata: Metadata | None, name: str, expected: int | None) -> str | None:
    ref = None if metadata is None else metadata["refs"].get(name)
    if ref is None:
        return None if expected is None else f"branch or tag {name} is missing, expected {expected}"
    kind, found = ref["type"], ref["snapshot-id"]
    if expected is None:
        return f"{kind} {name} was created concurrently"
    return None if found == expected else f"{kind} {name} has changed: expected id {expected} != {found}"


def _is_compressed(metadata: Metadata) -> bool:
    codec = str(metadata["properties"].get("write.metadata.compression-codec", "none")).lower()
    if codec not in ("none", "gzip"):
        raise BadRequest(
            f"Invalid codec name: {codec} in write.metadata.compression-codec; use none or gzip", rule="property"
        )
    return codec == "gzip"


def _count(properties: Mapping[str, str], key: str, default: int) -> int:
    value = properties.get(key)
    if value is None:
        return default
    try:
        return int(value)
    except ValueError as error:
        raise ValidationFailed(
            f"Table property {key} must have integer value, not {value!r}", rule="property"
        ) from error


def _check_properties(properties: Mapping[str, str], schema: Mapping[str, Any]) -> None:
    """What Iceberg checks of a new table's properties, and only then: old tables may break the rules."""
    for key in _COUNT_PROPERTIES:
        if _count(properties, key, 0) < 0:
            raise ValidationFailed(f"Table property {key} must have non negative integer value", rule="property")
    known = schemas.columns_by_name(schema)
    for key in properties:
        column = key.removeprefix(_METRICS_COLUMN)
        if column != key and column not in known:
            raise ValidationFailed(
                f"Invalid metrics config, could not find column {column} from table prop {key} in schema table",
                rule="property",
            )
    _is_compressed({"properties": properties})
