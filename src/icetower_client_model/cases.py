"""The case format: one table's history as JSON, with the writers' steps in order, for replaying their conflicts.

A case lists steps, never outcomes; `replay` runs it through the model, and the differential test runs the same text on
Iceberg itself. `docs/conflicts.md` describes the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from icetower.errors import BadRequest
from icetower.iceberg.manifest_writing import single_value
from icetower.iceberg.partitions import FIRST_PARTITION_FIELD_ID, result_of
from icetower.iceberg.records import DATA, EQUALITY_DELETES, PATH_FIELD_ID, POSITION_DELETES, DataFile
from icetower_client_model.operations import Flag, Kind

LOCATION = "mem://t"
COLUMNS = (
    (1, "id", "long", True),
    (2, "category", "string", False),
    (3, "amount", "int", False),
    (4, "day", "date", False),
    (5, "price", "double", False),
)
SCHEMA: Mapping[str, Any] = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": i, "name": name, "type": kind, "required": required} for i, name, kind, required in COLUMNS],
}
"""The schema of every case."""
_TYPES = {column_id: kind for column_id, _, kind, _ in COLUMNS}
_NAMED = {"identity": "", "bucket": "_bucket", "truncate": "_trunc", "void": "_null"}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PartitionFieldOf(_Strict):
    """One field of a partition spec."""

    column: Literal["id", "category", "amount", "day", "price"]
    transform: Annotated[str, Field(pattern=r"^(identity|year|month|day|void|(bucket|truncate)\[[1-9][0-9]{0,5}\])$")]


class MetricsOf(_Strict):
    """Column statistics of a file, by column id."""

    values: dict[int, int] | None = None
    nulls: dict[int, int] | None = None
    nans: dict[int, int] | None = None
    lower: dict[int, Any] | None = None
    upper: dict[int, Any] | None = None


class FileOf(_Strict):
    """A data or delete file that a step names."""

    content: Literal["data", "position-deletes", "equality-deletes", "dv"] = "data"
    path: str | None = None
    spec: int = 0
    partition: list[Any] = []
    records: int = 10
    size: int = 100
    metrics: MetricsOf | None = None
    references: str | None = None
    path_bounds: list[str] = []
    equality_ids: list[int] = []
    sequence_number: int | None = None


class RemovedOf(_Strict):
    """A file to be removed: as the writer read it from the table, or as the writer describes it itself."""

    file: str
    origin: Annotated[Literal["scan", "built"], Field(alias="from")] = "scan"


class OperationOf(_Strict):
    """An operation by the names of its files; see `operations.Operation`."""

    kind: Kind
    add: list[str] = []
    add_deletes: list[str] = []
    remove: list[RemovedOf | str] = []
    remove_deletes: list[RemovedOf | str] = []
    remove_paths: list[str] = []
    filter: Any = None
    start: int | None = None
    conflict_filter: Any = None
    references: list[str] = []
    validations: Annotated[list[Flag], Field(alias="validate")] = []
    sequence_number: int | None = None
    cluster_by: Literal["partition", "all", "file"] | None = None
    rewrite_if_spec: int | None = None
    merge_manifests: list[int] = []
    branch: str = "main"


class Begin(_Strict):
    """A writer loads the table and prepares its operation."""

    do: Literal["begin"]
    id: int
    op: OperationOf


class Commit(_Strict):
    """A writer commits. `between`: the steps between each of its attempts and their swaps."""

    do: Literal["commit"]
    id: int
    between: list[list[Step]] = []


class Write(_Strict):
    """A writer begins and commits at once."""

    do: Literal["write"]
    id: int
    op: OperationOf
    between: list[list[Step]] = []


class Fail(_Strict):
    """Between an attempt and its swap: the swap is lost."""

    do: Literal["fail"]


class SetSpec(_Strict):
    """Another partition spec becomes the default."""

    do: Literal["spec"]
    spec: int


class Upgrade(_Strict):
    do: Literal["upgrade"]
    format: Literal[1, 2, 3]


class SetProperties(_Strict):
    do: Literal["set"]
    properties: dict[str, str]


class Rollback(_Strict):
    """`main` goes back (or over) to a snapshot."""

    do: Literal["rollback"]
    to: int


class Expire(_Strict):
    """Snapshots leave the table's metadata."""

    do: Literal["expire"]
    ids: list[int]


Step = Annotated[
    Begin | Commit | Write | Fail | SetSpec | Upgrade | SetProperties | Rollback | Expire, Field(discriminator="do")
]


class Case(_Strict):
    """A table's history."""

    name: str | None = None
    format: Literal[1, 2, 3] = 2
    specs: list[list[PartitionFieldOf]] = [[]]
    properties: dict[str, str] = {}
    files: dict[str, FileOf] = {}
    steps: list[Step]


for _model in (Commit, Write, Case):
    _model.model_rebuild()


def parse(document: Mapping[str, Any]) -> Case:
    """A case from JSON.

    Raises:
        BadRequest: it breaks the format; the message names the place, the value and the rule.
    """
    try:
        case = Case.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the case"
        raise BadRequest(
            f"the case breaks the format at {place}: {first['msg']} (it has {str(first['input'])[:80]!r})",
            rule="case.format",
        ) from error
    for name, file in case.files.items():
        _check_file(case, name, file)
    return case


def _check_file(case: Case, name: str, file: FileOf) -> None:
    if not 0 <= file.spec < len(case.specs):
        raise BadRequest(f"file {name!r} is of spec {file.spec}; the case has {len(case.specs)}", rule="case.file")
    kinds = [_result_type(field) for field in case.specs[file.spec]]
    if len(file.partition) != len(kinds):
        raise BadRequest(
            f"file {name!r} has {len(file.partition)} partition values; its spec has {len(kinds)} fields",
            rule="case.file",
        )
    metrics = file.metrics or MetricsOf()
    bounds = [
        (_TYPES.get(key), value) for side in (metrics.lower, metrics.upper) for key, value in (side or {}).items()
    ]
    for kind, value in (*zip(kinds, file.partition, strict=True), *bounds):
        if kind is None:
            raise BadRequest(
                f"file {name!r} has bounds of a column that the case's table doesn't have", rule="case.file"
            )
        if value is not None and not _fits(value, kind):
            raise BadRequest(f"file {name!r}: {value!r} is not a raw value of type {kind}", rule="case.file")
    if len(file.path_bounds) not in (0, 2):
        raise BadRequest(f"file {name!r}: path_bounds must be the names of two files", rule="case.file")


def _result_type(field: PartitionFieldOf) -> str:
    return result_of(field.transform, next(kind for _, name, kind, _ in COLUMNS if name == field.column))


def _fits(value: Any, kind: str) -> bool:
    """Whether a JSON value is a raw value of a type, as Iceberg stores it."""
    match kind:
        case "string":
            return isinstance(value, str)
        case "double":
            return value == "NaN" or (isinstance(value, int | float) and not isinstance(value, bool))
        case _:
            bits = 63 if kind == "long" else 31
            return isinstance(value, int) and not isinstance(value, bool) and -(1 << bits) <= value < 1 << bits


def spec_fields(case: Case, index: int) -> list[dict[str, Any]]:
    """The fields (JSON) of one of the case's partition specs, named as Iceberg's builder names them.

    From format 2 on, the same transform of the same column keeps its field id across specs; format 1 numbers the
    fields of each spec from 1000.
    """
    columns = {name: column_id for column_id, name, _, _ in COLUMNS}
    known = dict.fromkeys(field for spec in case.specs[: index + 1] for field in spec)
    ids = {
        field: FIRST_PARTITION_FIELD_ID + at
        for at, field in enumerate(case.specs[index] if case.format == 1 else known)
    }
    return [
        {
            "source-id": columns[field.column],
            "field-id": ids[field],
            "transform": field.transform,
            "name": field.column + _NAMED.get(field.transform.split("[")[0], f"_{field.transform}"),
        }
        for field in case.specs[index]
    ]


def path_of(case: Case, name: str) -> str:
    """The path of a file of the case.

    Raises:
        BadRequest: the case describes no such file.
    """
    file = described(case, name)
    ending = "puffin" if file.content == "dv" else "parquet"
    return file.path or f"{LOCATION}/data/{name}.{ending}"


def described(case: Case, name: str) -> FileOf:
    """A file of the case by name. Raises `BadRequest` if there is none."""
    if name not in case.files:
        raise BadRequest(f"the case names file {name!r}, which its `files` do not describe", rule="case.file")
    return case.files[name]


def data_file(case: Case, name: str) -> DataFile:
    """A file of the case as a manifest would record it. Raises `BadRequest`."""
    file = described(case, name)
    metrics = file.metrics or MetricsOf()
    lower, upper = _bounds(metrics.lower), _bounds(metrics.upper)
    if file.path_bounds:
        low, high = (path_of(case, bound).encode() for bound in file.path_bounds)
        lower = [*(lower or ()), {"key": PATH_FIELD_ID, "value": low}]
        upper = [*(upper or ()), {"key": PATH_FIELD_ID, "value": high}]
    content = {"data": DATA, "equality-deletes": EQUALITY_DELETES}.get(file.content, POSITION_DELETES)
    is_vector = file.content == "dv"
    references = None if file.references is None else path_of(case, file.references)
    record: dict[str, Any] = {
        "content": content,
        "file_path": path_of(case, name),
        "file_format": "PUFFIN" if is_vector else "PARQUET",
        "record_count": file.records,
        "file_size_in_bytes": file.size,
        "value_counts": _pairs(metrics.values),
        "null_value_counts": _pairs(metrics.nulls),
        "nan_value_counts": _pairs(metrics.nans),
        "lower_bounds": lower,
        "upper_bounds": upper,
        "equality_ids": file.equality_ids or None,
        "referenced_data_file": references,
        "content_offset": 4 if is_vector else None,
        "content_size_in_bytes": 40 if is_vector else None,
    }
    return DataFile(
        content=content,
        path=record["file_path"],
        file_format=record["file_format"],
        partition=tuple(_raw(value) for value in file.partition),
        record_count=file.records,
        size_bytes=file.size,
        first_row_id=None,
        referenced_data_file=references,
        record=record,
    )


def _raw(value: Any) -> Any:
    return float("nan") if value == "NaN" else value


def _pairs(counts: Mapping[int, int] | None) -> list[dict[str, Any]] | None:
    return None if counts is None else [{"key": key, "value": value} for key, value in counts.items()]


def _bounds(bounds: Mapping[int, Any] | None) -> list[dict[str, Any]] | None:
    if bounds is None:
        return None
    return [{"key": key, "value": single_value(_raw(value), _TYPES[key])} for key, value in bounds.items()]
