"""Rows by whichever way the agent's contract says, with one call.

send(frame, "tower.pricing.product_prices", operation="upsert", key=key)

The contract's `pattern` for the table and the operation decides: a commit of its own, one in the agent's slot, or an
append to the write-ahead log or the delta table. The tower is asked each time, so that a change of the contract is all
that it takes to move an agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StructType, TimestampType

from icetower.agent import Patience, Sent, Slot, Tower, keyed
from icetower.agent.deliveries import (
    AGENT,
    CHANGE,
    COLLECTOR,
    EVENT_TIME,
    GRANTS,
    KEY,
    MEDIATOR,
    WRITTEN,
    Act,
    Delivery,
)
from icetower.agent.slots import in_the_next, in_time, wait_for_slot
from icetower.errors import UsageError
from icetower.pipelines.tables import quoted
from icetower.spark.declarations import declaring, options
from icetower.spark.recovery import carry_out, refusal_of

_VIEW = "icetower_sent_rows"


def send(
    frame: DataFrame,
    table: str,
    *,
    operation: Act = "append",
    key: str,
    keys: Sequence[str] = (),
    tower: Tower | None = None,
    least_s: float = 0.0,
    reason: str = "rows of an agent",
    patience: Patience | None = None,
) -> Sent:
    """Send rows to a table by the way that the agent's contract says; returns when they are in the table, the log or
    the delta table, once, however often they are sent under the key.

    Columns that the table has and the frame does not are filled in: ``_idempotency_key`` of each row, from the key and
    the row, ``_event_time``, ``_agent``, ``_operation``, ``_written_at``, and the column of the slot; others are null.

    Args:
        frame: the rows. For an upsert or a delete at most one of each key; of a delete the key columns are enough.
        table: as Spark names it: ``catalog.namespace.table``.
        operation: ``append`` adds rows, ``upsert`` puts them in place of those with the same keys, ``delete`` removes
            the rows with the same keys.
        key: of these rows; keep it with the work, and send it again with the same rows.
        keys: the columns that identify a row; by default the identifier fields of the table's schema.
        tower: by default that of the session's catalog.
        least_s: in a slot, so many seconds must be left; else the next one is waited for.
        reason: for the person who is asked for partitions.
        patience: limits on time and attempts, as of `carry_out`.

    Raises:
        IcetowerError: a refusal from which there is no way on.
        UsageError: the frame does not fit, or the pattern does not take the operation.
    """
    spark = frame.sparkSession
    catalog, _, name = table.partition(".")
    limits = patience or Patience()
    asked = tower or tower_of(spark, catalog)

    def work(using: Tower, now: str) -> Sent:
        delivery = in_time(using, name, GRANTS[operation], least_s, limits)
        there = f"{catalog}.{delivery.written}"
        # A write that was rolled back is sent again under another key, `now`; its rows keep theirs.
        rows = _prepared(frame, spark.table(quoted(there)).schema, delivery, operation, key)
        sent = Sent(delivery.pattern, delivery.written, now, delivery.slot)
        try:
            _write(rows, there, delivery, operation, tuple(keys) or delivery.key_columns, now)
        except Exception as raised:
            refusal = refusal_of(raised)
            if refusal is not None and refusal.rule == "key.per-write":
                # This application has landed it before: a key is of one set of rows, which these are again.
                return Sent(sent.pattern, sent.table, now, again=True)
            raise
        return sent

    try:
        anew = in_the_next(work, refusal_of)
        done = carry_out(anew, asked, name, operations=[GRANTS[operation]], reason=reason, key=key, patience=limits)
    finally:
        if tower is None:
            asked.close()
    assert done is not None  # `work` itself answers what carry_out would give None for
    return done


def next_slot(
    spark: SparkSession,
    table: str,
    operation: Act = "append",
    *,
    tower: Tower | None = None,
    least_s: float = 0.0,
    patience: Patience | None = None,
) -> Slot:
    """Wait for the agent's slot for a table, ``catalog.namespace.table``. Else as `icetower.agent.wait_for_slot`."""
    catalog, _, name = table.partition(".")
    asked = tower or tower_of(spark, catalog)
    try:
        return wait_for_slot(asked, name, GRANTS[operation], least_s=least_s, patience=patience)
    finally:
        if tower is None:
            asked.close()


def tower_of(spark: SparkSession, catalog: str) -> Tower:
    """The tower that a catalog of the session is. Raises `UsageError` where it is none, or has no token."""
    prefix = f"spark.sql.catalog.{catalog}"
    uri = spark.conf.get(f"{prefix}.uri", None)
    if uri is None:
        raise UsageError(f"the session has no catalog {catalog!r} at an address; see tower_session, or pass tower=")
    return Tower(uri, spark.conf.get(f"{prefix}.token", None))


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _prepared(frame: DataFrame, schema: StructType, delivery: Delivery, operation: Act, key: str) -> DataFrame:
    """The rows with the columns of the table that they are written to, in its order and types."""
    unknown = [name for name in frame.columns if name not in schema.names]
    if unknown:
        raise UsageError(f"{delivery.written} has no column {', '.join(unknown)}; leave it out of the rows")
    given = set(frame.columns)
    filled: dict[str, Column] = {EVENT_TIME: f.current_timestamp()}
    if delivery.through:
        change = "delete" if operation == "delete" else "upsert"
        filled |= {AGENT: f.lit(delivery.agent), CHANGE: f.lit(change), WRITTEN: f.current_timestamp()}
    slot = delivery.slot
    if slot is not None and slot.column in schema.names:
        filled[str(slot.column)] = _beginning(slot, schema[str(slot.column)].dataType)
    missing = [name for name in schema.names if name not in given and name not in filled and name != KEY]
    if missing and operation == "upsert":
        raise UsageError(f"an upsert replaces whole rows, and these lack {', '.join(missing)} of {delivery.table}")
    rows = _with_row_keys(frame, delivery.seed(key)) if KEY in schema.names and KEY not in given else frame
    columns = [
        (f.col(quoted(each.name)) if each.name in rows.columns else filled.get(each.name, f.lit(None)))
        .cast(each.dataType)
        .alias(each.name)
        for each in schema.fields
    ]
    return rows.select(*columns)


def _beginning(slot: Slot, kind: DataType) -> Column:
    """The value of a slot in its column, whatever the session's time zone is."""
    if isinstance(kind, TimestampType):
        return f.timestamp_millis(f.lit(slot.starts_ms))
    return f.lit(slot.value.replace(tzinfo=None).isoformat(" "))


def _with_row_keys(frame: DataFrame, key: str) -> DataFrame:
    """A key of each row, the same whenever these rows are sent under this key: equal rows are numbered."""
    columns = [f.col(quoted(name)) for name in frame.columns]
    # As text, times are in milliseconds: rows that differ by less are numbered, too, in the order of their columns.
    text = f.to_json(f.struct(*columns), {"timeZone": "UTC"})
    number = f.row_number().over(Window.partitionBy(text).orderBy(*columns))
    content = f.concat_ws("\n", f.lit(key), text, number.cast("string"))
    return frame.withColumn(KEY, f.sha2(content, 256))


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _write(rows: DataFrame, there: str, delivery: Delivery, operation: Act, keys: Sequence[str], key: str) -> None:
    appended = operation == "append" or delivery.pattern == COLLECTOR
    if delivery.pattern == MEDIATOR and operation == "delete":
        raise UsageError(
            f"a write-ahead log takes no deletes, and the rows of {delivery.table} come through {delivery.through}; "
            "the patterns direct, scheduler and collector delete"
        )
    if appended or delivery.pattern == MEDIATOR:
        properties = keyed(key, blind=delivery.blind)
        rows.writeTo(quoted(there)).options(**options(properties)).append()
        return
    if not keys:
        raise UsageError(
            f"no columns identify a row of {delivery.table}: ALTER TABLE … SET IDENTIFIER FIELDS, or pass keys="
        )
    _merge(rows, there, keys, keyed(key), delete=operation == "delete", slot=delivery.slot)


def _within(rows: DataFrame, slot: Slot | None) -> tuple[str, ...]:
    """The column of the slot, if all rows have its beginning there: then they replace rows of the slot alone."""
    if slot is None or slot.column is None or slot.column not in rows.columns:
        return ()
    kind = rows.schema[slot.column].dataType
    others = rows.where(~f.col(quoted(slot.column)).eqNullSafe(_beginning(slot, kind).cast(kind)))
    return (slot.column,) if others.isEmpty() else ()


def _merge(
    rows: DataFrame, there: str, keys: Sequence[str], properties: Mapping[str, str], *, delete: bool, slot: Slot | None
) -> None:
    """One MERGE of rows that are computed before: Spark cannot plan one whose rows come from tables behind a view."""
    spark = rows.sparkSession
    columns = ", ".join(quoted(name) for name in rows.columns)
    values = ", ".join(f"s.{quoted(name)}" for name in rows.columns)
    sets = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in rows.columns)
    clauses = (
        "WHEN MATCHED THEN DELETE"
        if delete
        else f"WHEN MATCHED THEN UPDATE SET {sets} WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"  # noqa: S608 - names are quoted
    )
    computed = rows.localCheckpoint()
    on = dict.fromkeys((*_within(computed, slot), *keys))
    condition = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in on)
    with declaring(spark, properties):  # in the block, so that another thread's rows cannot take the place of these
        computed.createOrReplaceTempView(_VIEW)
        try:
            spark.sql(f"MERGE INTO {quoted(there)} t USING {_VIEW} s ON {condition} {clauses}")
        finally:
            spark.catalog.dropTempView(_VIEW)
