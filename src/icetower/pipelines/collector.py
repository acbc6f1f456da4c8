"""The collector: many agents append change rows to a delta table, one job folds them into the table.

A change row has the table's columns, and `_operation`, `upsert` or `delete`. Of all changes of a row the one with the
latest `_event_time` wins; of the same time the one whose commit to the delta table landed last; where the delta table
has lost that order, the one with the greatest `_idempotency_key`. So late changes are right, in whatever batch they
come: the table keeps the time of what it has, and the deletes stay in the delta table, which is read for those that
are newer than an upsert of the batch. No other store of tombstones is needed.

A run is a mediator's (`wal_mediator`): the same progress in the same commit, judging, keys, logs, crashes and races.
The MERGE writes deletion vectors. `merged_view` is the table as a fold of all that is new would leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, TimestampNTZType, TimestampType

from icetower.ambient import Ambient, SystemAmbient
from icetower.contracts.model import Contract, Operation
from icetower.errors import BadRequest
from icetower.iceberg.metadata import current_snapshot_id
from icetower.pipelines.as_of import rows_as_of, spark_schema
from icetower.pipelines.tables import identifier, literal, merge, patiently, quoted, translating_errors
from icetower.pipelines.wal_applied import AppliedKeys
from icetower.pipelines.wal_mediator import Job, Known, Mediation, Run, Tables, mediate, nothing
from icetower.pipelines.wal_plan import Batch, Metadata, latest
from icetower.pipelines.wal_reading import FILE, POSITION, ROW, SEQUENCE, SPEC, read_batch, read_before
from icetower.pipelines.wal_rows import (
    APPLIED,
    KEY_COLUMN,
    OUTCOME,
    OWN,
    REASON,
    REJECTED,
    RULE,
    SUPERSEDED,
    VERSION,
    Rules,
    classify,
    judge,
)

OPERATION, TIME = "_operation", "_event_time"
UPSERT, DELETE = "upsert", "delete"
_MODES = tuple(f"write.{kind}.mode" for kind in ("delete", "update", "merge"))
_THERE, _NTH, _DELETED, _STOOD = (OWN + name for name in ("there", "nth", "deleted", "stood"))
_FOUND = "_found"
_ALL = 2**62


def collect(
    spark: SparkSession, job: Job, *, ambient: Ambient | None = None, after: Callable[[str], None] = nothing
) -> Mediation:
    """Fold the next batch of the delta table, which is the `wal` of `job`; the keys of the rows are its `merge_keys`.

    Arguments, steps and exceptions are those of `mediate`.
    """
    return mediate(spark, job, ambient=ambient, after=after, run=Fold)


def merged_view(
    spark: SparkSession,
    target: str,
    deltas: str,
    keys: tuple[str, ...],
    *,
    contracts: Mapping[str, Contract] | None = None,
    system: str | None = None,
    ambient: Ambient | None = None,
) -> DataFrame:
    """The table as a fold of all that is new would leave it now; of the two tables as they are at this call.

    Args:
        contracts: by agent; None: change rows are taken as if every contract let them by.
        system: the collector's namespace of logs. If the session may not see its tables, or there are none, rows that
            are sent again after they were folded are known by the table's own keys only.
    """
    job = Job(
        target=target,
        wal=deltas,
        contracts=contracts,
        system=system,
        merge_keys=keys,
        reread=True,
        snapshots_max=_ALL,
        rows_max=_ALL,
    )
    return Fold(spark, job, ambient or SystemAmbient(), nothing).view()


def compact(spark: SparkSession, target: str) -> dict[str, int]:
    """Rewrite the table's data files that have deletion vectors or are small, with Iceberg's own procedure.

    A commit of a writer that landed meanwhile is kept: Iceberg refuses the rewrite of what it has changed.
    """
    catalog, _, name = target.partition(".")
    options = "map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true')"
    statement = (
        f"CALL {quoted(catalog)}.system.rewrite_data_files(table => {literal(quoted(name))}, options => {options})"
    )
    row = translating_errors(f"compacting {target}", lambda: spark.sql(statement).collect()[0])
    return {"rewritten_data_files": row[0], "added_data_files": row[1]}


class Fold(Run):
    """The attempts of one collection."""

    change_columns = frozenset({OPERATION})

    # -- checks

    def _rules(self, tables: Tables) -> Rules:
        self._require_columns(tables)
        require_merge_on_read(tables.target, self.job.target)
        rules = super()._rules(tables)
        return replace(rules, required=tuple(sorted({*rules.required, TIME})))

    def _require_columns(self, tables: Tables) -> None:
        job = self.job
        if not job.merge_keys:
            raise BadRequest(
                f"the keys of {job.target} are missing: name the columns that identify a row, --keys a,b",
                rule="wal.merge-keys",
            )
        target, deltas = (spark_schema(self.spark, each) for each in tables)
        for name, schema in ((job.wal, deltas), (job.target, target)):
            kinds = {field.name: field.dataType for field in schema.fields}
            if not isinstance(kinds.get(TIME), TimestampType | TimestampNTZType):
                raise _lacks(name, TIME, "TIMESTAMP")
        if not any(field.name == OPERATION and isinstance(field.dataType, StringType) for field in deltas.fields):
            raise _lacks(job.wal, OPERATION, "STRING")

    # -- outcomes

    def _judged(self, rows: DataFrame, rules: Rules) -> DataFrame:
        """Of a delete, only the keys and the time are needed, and the contract must grant deleting."""
        kind = f.col(OPERATION)
        upserts = judge(rows.where(kind == UPSERT), rules)
        deletes = judge(rows.where(kind == DELETE), self._of_deletes(rules))
        others = rows.where(kind.isNull() | ~kind.isin(UPSERT, DELETE))
        why = f.concat(
            f.lit(f"{OPERATION} is "), f.coalesce(kind, f.lit("null")), f.lit(f"; write {UPSERT} or {DELETE}")
        )
        unknown = others.withColumn(RULE, f.lit("collect.operation")).withColumn(REASON, why)
        return upserts.unionByName(deletes).unionByName(unknown)

    def _of_deletes(self, rules: Rules) -> Rules:
        return replace(rules, operation=Operation.DELETE, required=(*self.job.merge_keys, TIME))

    def _outcomes(
        self,
        batch: Batch,
        judged: DataFrame,
        known: Known,
        tables: Tables,
        rules: Rules,
        order_by: str | None = None,
    ) -> DataFrame:
        """The rows with their outcome; `_icetower_there` says whether the table has a row with these keys."""
        keys = [f.col(quoted(name)) for name in self.job.merge_keys]
        rows = classify(judged, known.keys, (), read_before=known.rows).localCheckpoint()
        newest = f.row_number().over(Window.partitionBy(*keys, VERSION).orderBy(*(each.desc() for each in _order())))
        rows = rows.withColumn(_NTH, newest)
        rows = self._beside(rows, self._deletes(batch, tables.wal, rows, known, rules), _DELETED)
        rows = self._beside(rows, self._target(tables.target), _STOOD).withColumn(
            _THERE, f.col(_STOOD + _FOUND).isNotNull()
        )
        late = (f.col(OPERATION) == UPSERT) & (f.col(_DELETED) > f.col(TIME))
        loses = (
            (f.col(_NTH) > 1) | f.coalesce(late, f.lit(False)) | f.coalesce(f.col(_STOOD) > f.col(TIME), f.lit(False))
        )
        outcome = f.when((f.col(OUTCOME) == APPLIED) & loses, SUPERSEDED).otherwise(f.col(OUTCOME))
        beside = [each + found for each in (_DELETED, _STOOD) for found in ("", _FOUND)]
        return rows.withColumn(OUTCOME, outcome).drop(_NTH, VERSION, *beside)

    def _beside(self, rows: DataFrame, others: DataFrame | None, name: str) -> DataFrame:
        """The rows, with the latest event time among `others` of the same keys, and whether there is one at all."""
        if others is None:
            nothing_found = f.lit(None)
            return rows.withColumn(name, nothing_found.cast("timestamp")).withColumn(
                name + _FOUND, nothing_found.cast("boolean")
            )
        keys = self.job.merge_keys
        latest = others.groupBy(*(f.col(quoted(key)).alias(f"{OWN}key_{i}") for i, key in enumerate(keys))).agg(
            f.max(TIME).alias(name), f.lit(True).alias(name + _FOUND)
        )
        same: Column = f.lit(True)
        for i, key in enumerate(keys):
            same &= f.col(quoted(key)) == f.col(f"{OWN}key_{i}")
        return rows.join(latest, same, "left").drop(*(f"{OWN}key_{i}" for i, _ in enumerate(keys)))

    def _deletes(self, batch: Batch, wal: Metadata, rows: DataFrame, known: Known, rules: Rules) -> DataFrame | None:
        """The deletes that the delta table still has and that were let by, of rows that the batch upserts, if they may
        be newer. What contracts say today is not asked: they may have changed since a delete was folded or rejected."""
        wanted = rows.where((f.col(OPERATION) == UPSERT) & (f.col(OUTCOME) == APPLIED))
        # As text: as numbers, times without a zone would go by that of the session, by which the clock may go back.
        oldest = wanted.agg(f.min(TIME).cast("string")).collect()[0][0]
        if oldest is None:
            return None
        oldest = f.lit(oldest).cast(wanted.schema[TIME].dataType)
        kept = rows_as_of(self.spark, self.job.wal, wal, batch.through, f.col("_spec_id").alias(SPEC))
        kept = kept.where((f.col(OPERATION) == DELETE) & (f.col(TIME) >= oldest))
        kept = kept.join(wanted.select(*self.job.merge_keys).distinct(), list(self.job.merge_keys), "left_semi")
        # A view that asks no contracts takes what was rejected as let by, as PyIceberg's does.
        if rules.contracts is None or not self.spark.catalog.tableExists(quoted(self.logs.rejections)):
            return judge(kept, self._of_deletes(rules)).where(f.col(RULE).isNull())
        kept = judge(kept, replace(self._of_deletes(rules), contracts=None)).where(f.col(RULE).isNull())
        rejected = rows.where(f.col(OUTCOME) == REJECTED).select(KEY_COLUMN)
        rejected = rejected.unionByName(self.logs.rejected_keys(self.job.table_name))
        for let_by in (rows.where(f.col(OUTCOME) != REJECTED), *known.keys):
            rejected = rejected.join(let_by.select(KEY_COLUMN), KEY_COLUMN, "left_anti")
        return kept.join(rejected, KEY_COLUMN, "left_anti")

    def _target(self, target: Metadata) -> DataFrame | None:
        head = current_snapshot_id(target)
        if head is None:
            return None
        return rows_as_of(self.spark, self.job.target, target, head)

    # -- the commit

    def _columns(self, target: Metadata) -> list[str]:
        return [*super()._columns(target), OPERATION, _THERE]

    def _write(self, batch: Batch, target: Metadata, rows: DataFrame, properties: Mapping[str, str]) -> bool:
        effective = rows.where((f.col(OPERATION) == UPSERT) | f.col(_THERE)).drop(_THERE)
        if effective.isEmpty():
            return False
        columns = [name for name in effective.columns if name != OPERATION]
        not_newer = f"(t.{TIME} IS NULL OR t.{TIME} <= s.{TIME})"
        sets = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in columns)
        names, values = (", ".join(prefix + quoted(name) for name in columns) for prefix in ("", "s."))
        merge(
            self.spark,
            self.job.target,
            effective,
            self.job.merge_keys,
            clauses=(
                f"WHEN MATCHED AND s.{OPERATION} = '{DELETE}' AND {not_newer} THEN DELETE "  # noqa: S608 - names are quoted
                f"WHEN MATCHED AND s.{OPERATION} = '{UPSERT}' AND {not_newer} THEN UPDATE SET {sets} "
                f"WHEN NOT MATCHED AND s.{OPERATION} = '{UPSERT}' THEN INSERT ({names}) VALUES ({values})"
            ),
            guard=self._guard(batch, target),
            properties=properties,
        )
        return True

    # -- the view

    def view(self) -> DataFrame:
        """The table as it would be after folding all that is new."""
        return patiently(lambda: self._on_current(self._view))

    def _view(self, tables: Tables) -> DataFrame:
        job, (target, wal) = self.job, tables
        rules = self._rules(tables)
        schema = spark_schema(self.spark, target)
        stands, columns = self._target(target), [quoted(name) for name in schema.names]
        if stands is None:
            stands = self.spark.createDataFrame([], schema)
        batch = self._next(target, wal)
        if batch is None:
            return stands
        judged = self._judged(read_batch(self.spark, job.wal, wal, batch), rules)
        keys = [stands.select(KEY_COLUMN)]
        if all(self.spark.catalog.tableExists(quoted(name)) for name in (self.logs.keys, self.logs.mediations)):
            mediations = self.logs.mediations_of(target["table-uuid"], wal["table-uuid"])
            keys.append(AppliedKeys(self.logs, target, job.table_name, mediations).keys(stands, None)[0])
        last = latest(target, wal["table-uuid"])
        known = Known(keys, read_before(wal, batch, None if last is None else last.through))
        rows = self._outcomes(batch, judged, known, tables, rules).where(f.col(OUTCOME) == APPLIED)
        self._require_unchanged(tables)
        untouched = stands.join(rows.select(*job.merge_keys), list(job.merge_keys), "left_anti").select(*columns)
        return untouched.unionByName(rows.where(f.col(OPERATION) == UPSERT).select(*columns))


def _order() -> list[Column]:
    """The order of changes of a row, first to last."""
    tie = f.when(f.col(SEQUENCE).isNull(), f.col(KEY_COLUMN))
    return [f.col(TIME), f.col(SEQUENCE), f.col(ROW), tie, f.col(FILE), f.col(POSITION)]


def require_merge_on_read(metadata: Metadata, name: str) -> None:
    """Raises `BadRequest`, with the statement that mends it, unless a MERGE into the table writes deletion vectors."""
    properties: Mapping[str, str] = metadata.get("properties", {})
    wanted = {mode: "merge-on-read" for mode in _MODES if properties.get(mode) != "merge-on-read"}
    version = metadata["format-version"]
    if version < 3:
        wanted = {"format-version": "3", **wanted}
    if wanted:
        sets = ", ".join(f"'{key}' = '{value}'" for key, value in wanted.items())
        raise BadRequest(
            f"{name} is no table that changes are folded into merge-on-read: it has format version {version}, and "
            f"{', '.join(f'{mode} = {properties.get(mode)}' for mode in _MODES)}. Run once: "
            f"ALTER TABLE {identifier(name)} SET TBLPROPERTIES ({sets})",
            rule="collect.target",
        )


def _lacks(name: str, column: str, kind: str) -> BadRequest:
    return BadRequest(
        f"{name} has no column {column} of type {kind}; ALTER TABLE {identifier(name)} ADD COLUMN {column} {kind}",
        rule="wal.columns",
    )
