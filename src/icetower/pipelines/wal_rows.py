"""The rows of a batch: checked against contracts, without duplicates, the newest version of each. DataFrame in and out.

A judged row is a row of the log with `_icetower_rule` and `_icetower_reason` (null if no rule refuses it) and
`_icetower_outcome`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, DecimalType, StringType, StructField, StructType

from icetower.contracts.check import Clear, Touch, check
from icetower.contracts.model import Contract, Operation
from icetower.contracts.terms import Layout
from icetower.errors import BadRequest
from icetower.iceberg.partitions import PartitionField, PartitionSpec, spec_of
from icetower.pipelines.tables import quoted
from icetower.pipelines.wal_plan import Metadata
from icetower.pipelines.wal_reading import LOGGED, ORDER, SEQUENCE, SPEC
from icetower.protocol.names import Identifier

KEY_COLUMN = "_idempotency_key"
AGENT_COLUMN = "_agent"
WRITTEN_COLUMN = "_written_at"
OWN = "_icetower_"
"""What the names of columns begin with that jobs put beside those of a table, while they work."""
RULE, REASON, OUTCOME = "_icetower_rule", "_icetower_reason", "_icetower_outcome"
APPLIED, SUPERSEDED, DUPLICATE, REJECTED = "applied", "superseded", "duplicates", "rejected"
UNORDERED = "unordered"
VERSION = "_icetower_version"
PARTITIONS_MAX = 10_000
_log = logging.getLogger(__name__)
_PART = "_icetower_part_{}"
_WIDENS = {("int", "bigint"), ("float", "double")}
_FUNCTIONS = {"year": "years", "month": "months", "day": "days", "hour": "hours"}


# ---------------------------------------------------------------------------------------------------------- columns


def require_matching_columns(
    wal: str, wal_schema: StructType, target: str, target_schema: StructType, *, more: Collection[str] = ()
) -> None:
    """Raises `BadRequest` unless the log has the target's columns, by name, and `_agent` and `_idempotency_key`.

    `more`: other columns that the log may have.
    """
    actual = {field.name: field.dataType for field in wal_schema.fields}
    required = {field.name: field.dataType for field in target_schema.fields}
    if KEY_COLUMN not in required:
        raise _mismatch(f"{target} has no column {KEY_COLUMN}; add it, a string")
    if taken := sorted(name for name in {*actual, *required} if name.startswith(OWN)):
        raise _mismatch(f"columns that begin with {OWN} are the job's own; rename {', '.join(taken)}")
    missing = sorted({*required, AGENT_COLUMN, KEY_COLUMN} - set(actual))
    if missing:
        raise _mismatch(f"{wal} lacks {', '.join(missing)}, which rows for {target} need; add what is missing")
    extra = sorted(set(actual) - {*required, AGENT_COLUMN, WRITTEN_COLUMN, *more})
    if extra:
        raise _mismatch(f"{wal} has {', '.join(extra)}, which {target} lacks; add it there or drop it here")
    for name, kind in required.items():
        if not _fits(actual[name], kind):
            raise _mismatch(f"{name} is {actual[name].simpleString()} in {wal} and {kind.simpleString()} in {target}")
    for name in (AGENT_COLUMN, KEY_COLUMN):
        if not isinstance(actual[name], StringType):
            raise _mismatch(f"{name} is {actual[name].simpleString()} in {wal}; it must be a string")


def _mismatch(problem: str) -> BadRequest:
    return BadRequest(f"the log and its target don't fit: {problem}", rule="wal.columns")


def _fits(actual: DataType, required: DataType) -> bool:
    """Whether every value of type `actual` is one of type `required`: nothing is rounded, nothing can overflow."""
    if isinstance(actual, DecimalType) and isinstance(required, DecimalType):
        return actual.scale == required.scale and actual.precision <= required.precision
    pair = (actual.simpleString(), required.simpleString())
    return pair[0] == pair[1] or pair in _WIDENS


def proven_specs(wal: Metadata, name: str) -> list[int]:
    """Partition specs of the log under which the partition proves a row's writer.

    The tower checks the partition against the contract; the column is read from the partition. Raises `BadRequest` if
    the log's own spec is not among them.
    """
    specs = [spec_of(wal, entry["spec-id"]) for entry in wal["partition-specs"]]
    proven = [spec.spec_id for spec in specs if _holds_agent(spec)]
    if wal["default-spec-id"] not in proven:
        raise BadRequest(
            f"{name} isn't partitioned by {AGENT_COLUMN}, so nothing proves who wrote a row; "
            f"ALTER TABLE … ADD PARTITION FIELD {AGENT_COLUMN}",
            rule="wal.partitioning",
        )
    return proven


def _holds_agent(spec: PartitionSpec) -> bool:
    return any(field.source_name == AGENT_COLUMN and field.transform == "identity" for field in spec.fields)


def decided_ms(columns: Sequence[str]) -> Column:
    """When a row was decided: what its agent wrote into `_written_at`, or else when it landed in the log."""
    logged = f.col(LOGGED)
    if WRITTEN_COLUMN not in columns:
        return logged
    return f.coalesce(f.unix_millis(f.col(WRITTEN_COLUMN).cast("timestamp")), logged)


# ---------------------------------------------------------------------------------------------------------- judging


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that rows are checked by.

    Attributes:
        contracts: by agent; None: every row is taken as granted.
        operation: the mediator's operation on the target for the agents.
        now_ms: the time of the check, by which partitions that are owned relative to the clock are judged.
    """

    table: Identifier
    catalog: str
    spec: PartitionSpec
    required: tuple[str, ...]
    proven_specs: Sequence[int]
    contracts: Mapping[str, Contract] | None
    operation: Operation
    layout: Layout
    now_ms: int


def judge(rows: DataFrame, rules: Rules) -> DataFrame:
    """The rows with `_icetower_rule` and `_icetower_reason`, both null for rows that no rule refuses."""
    parts = [_PART.format(index) for index, _ in enumerate(rules.spec.fields)]
    expressions = [f.expr(partition_expression(field, rules.catalog)) for field in rules.spec.fields]
    rows = rows.select("*", *(e.alias(name) for e, name in zip(expressions, parts, strict=True)))
    places = rows.select(f.col(AGENT_COLUMN).alias("_icetower_writer"), *parts).distinct()
    refused = _verdicts(places, rules)
    same = f.col(AGENT_COLUMN).eqNullSafe(f.col("_icetower_writer"))
    for name in parts:
        same &= rows[name].eqNullSafe(refused[name])
    rows = rows.join(f.broadcast(refused), same, "left").drop("_icetower_writer", *(refused[name] for name in parts))
    rule, reason = f.col("_icetower_contract_rule"), f.col("_icetower_contract_reason")
    checks: list[tuple[Column, Any, Any]] = [
        (
            ~f.col(SPEC).isin(list(rules.proven_specs)),
            "wal.agent",
            f"written when the log was not partitioned by {AGENT_COLUMN}: nothing proves who wrote it",
        ),
        (
            f.coalesce(f.trim(f.col(KEY_COLUMN)), f.lit("")) == "",
            "wal.key",
            f"{KEY_COLUMN} is null or empty; write a UUID that stays the same when the row is sent again",
        ),
        *(
            (f.col(quoted(name)).isNull(), "wal.null", f"{name} is null; the target requires a value")
            for name in rules.required
        ),
        (rule.isNotNull(), rule, reason),
    ]
    return (
        rows.withColumn(RULE, _first(checks, 1))
        .withColumn(REASON, _first(checks, 2))
        .drop("_icetower_contract_rule", "_icetower_contract_reason", *parts)
    )


def _first(checks: Sequence[tuple[Column, Any, Any]], part: int) -> Column:
    """The given part of the first check that fails."""
    values = ((check[0], check[part]) for check in checks)
    return f.coalesce(*(f.when(fails, v if isinstance(v, Column) else f.lit(v)) for fails, v in values))


def _verdicts(places: DataFrame, rules: Rules) -> DataFrame:
    """For each refused pair of agent and partition: the rule and the reason, as `check` returns them."""
    found = places.limit(PARTITIONS_MAX + 1).collect()
    if len(found) > PARTITIONS_MAX:
        raise BadRequest(
            f"the batch touches more than {PARTITIONS_MAX} partitions of {rules.table}; take fewer snapshots at once",
            rule="wal.partitions",
        )
    refused = [
        (*place, *verdict) for place in found if (verdict := _verdict(place[0], tuple(place)[1:], rules)) is not None
    ]
    schema = StructType([*places.schema.fields, *(_text(f"_icetower_contract_{name}") for name in ("rule", "reason"))])
    return places.sparkSession.createDataFrame(refused, schema)


def _text(name: str) -> StructField:
    return StructField(name, StringType())


def _verdict(agent: str | None, values: Sequence[Any], rules: Rules) -> tuple[str, str] | None:
    if rules.contracts is None:
        return None
    contract = None if agent is None else rules.contracts.get(agent)
    if contract is None:
        return "wal.agent", f"no contract is in force for the agent {agent!r}"
    raw = tuple(raw_value(field, value) for field, value in zip(rules.spec.fields, values, strict=True))
    touch = Touch(rules.spec, raw, adds=True, content=0, files=1)
    operations = frozenset({rules.operation})
    verdict = check(
        contract, rules.table, (touch,), operations, layout=rules.layout, now_ms=rules.now_ms, mediated=True
    )
    if isinstance(verdict, Clear):
        return None
    if contract.shadow:
        _log.warning("in shadow mode, so not rejected: %s: %s", verdict.rule, verdict.message)
        return None
    return verdict.rule, verdict.message


def partition_expression(field: PartitionField, catalog: str) -> str:
    """The SQL that computes a partition field, by Iceberg's own functions; times become counts since 1970."""
    column = quoted(field.source_name)
    name, _, argument = field.transform.partition("[")
    match name:
        case "identity":
            if field.source_type == "date":
                return f"unix_date({column})"
            if field.source_type.startswith("timestamp"):
                return f"unix_micros(cast({column} AS timestamp))"
            return column
        case "bucket" | "truncate":
            return f"{quoted(catalog)}.system.{name}({argument.rstrip(']')}, {column})"
        case "year" | "month" | "hour":
            return f"{quoted(catalog)}.system.{_FUNCTIONS[name]}({column})"
        case "day":
            return f"unix_date({quoted(catalog)}.system.days({column}))"
        case "void":
            return "cast(NULL AS string)"
        case _:
            raise BadRequest(
                f"partition field {field.name} has the transform {field.transform!r}, which Spark can't compute",
                rule="wal.partitioning",
            )


def raw_value(field: PartitionField, value: Any) -> Any:
    """A partition value from Spark, as manifests store it."""
    if isinstance(value, bytearray):
        return bytes(value)
    if field.result_type == "uuid" and isinstance(value, str):
        return uuid.UUID(value).bytes
    return value


# ------------------------------------------------------------------------------------------------------- duplicates


def classify(
    judged: DataFrame,
    known: Sequence[DataFrame],
    merge_keys: Sequence[str],
    order_by: str | None = None,
    *,
    read_before: Column | None = None,
) -> DataFrame:
    """The judged rows with their `_icetower_outcome`, and whether each is a version of its row (`_icetower_version`).

    Of rows with the same key the first in the log's order counts; none does if the key is among `known` (DataFrames of
    one column, the keys applied before). With `merge_keys`, the last of those that would be applied to one row wins; if
    the order of the log does not show which one is last, all of them are `UNORDERED`.

    Args:
        order_by: a column that orders the rows in place of the log.
        read_before: which rows were in batches before, as `wal_reading.read_before` says. Where one of these was
            applied, it keeps its place: an older row that was rejected then, and no longer is, does not replace it.
    """
    order = [*([f.col(quoted(order_by))] if order_by else []), *(f.col(name) for name in ORDER)]
    by_key = Window.partitionBy(KEY_COLUMN, f.col(RULE).isNull()).orderBy(*order)
    rows = judged.withColumn("_icetower_nth", f.row_number().over(by_key))
    keys = judged.where(f.col(RULE).isNull()).select(KEY_COLUMN).distinct()
    seen: DataFrame | None = None
    for frame in known:
        matching = frame.select(KEY_COLUMN).join(keys, KEY_COLUMN, "left_semi")
        seen = matching if seen is None else seen.unionByName(matching)
    if seen is None:
        rows = rows.withColumn("_icetower_seen", f.lit(False))
    else:
        rows = rows.join(seen.distinct().withColumn("_icetower_seen", f.lit(True)), KEY_COLUMN, "left")
    outcome = (
        f.when(f.col(RULE).isNotNull(), REJECTED)
        .when((f.col("_icetower_nth") > 1) | f.coalesce(f.col("_icetower_seen"), f.lit(False)), DUPLICATE)
        .otherwise(APPLIED)
    )
    rows = rows.withColumn(OUTCOME, outcome).drop("_icetower_seen")
    rows = rows.withColumn(VERSION, _is_version(read_before)).drop("_icetower_nth")
    if not merge_keys:
        return rows
    by_row = Window.partitionBy(*(f.col(quoted(name)) for name in merge_keys), VERSION)
    newest = f.row_number().over(by_row.orderBy(*(column.desc() for column in order)))
    rows = rows.withColumn("_icetower_newest", newest).withColumn("_icetower_lost", _order_lost(by_row, order_by))
    outcome = (
        f.when(f.col(OUTCOME) != APPLIED, f.col(OUTCOME))
        .when(f.col("_icetower_lost"), UNORDERED)
        .when(f.col("_icetower_newest") > 1, SUPERSEDED)
        .otherwise(APPLIED)
    )
    return rows.withColumn(OUTCOME, outcome).drop("_icetower_newest", "_icetower_lost")


def _is_version(read_before: Column | None) -> Column:
    """Whether a row is a version of its row of the target: it would be applied, or it was, at this place in the log.

    A row that was sent again is none: it was applied in the place of the first one, which the log may have no longer.
    """
    applied = f.col(OUTCOME) == APPLIED
    if read_before is None:
        return applied
    return applied | ((f.col(OUTCOME) == DUPLICATE) & (f.col("_icetower_nth") == 1) & read_before)


def _order_lost(group: WindowSpec, order_by: str | None) -> Column:
    """Whether a group has several rows, and it is not known which is the last."""
    rows = f.count(f.lit(1)).over(group)
    if order_by is None:
        return (rows > 1) & (f.count(f.col(SEQUENCE)).over(group) < rows)
    return (rows > 1) & (f.size(f.collect_set(f.col(quoted(order_by))).over(group)) < rows)
