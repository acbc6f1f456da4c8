"""Rows of an agent with PyIceberg and PyArrow, by whichever way its contract says. `icetower.spark.send` is the same.

send(rows, "shop.prices", tower, catalog, operation="upsert", key=key)

PyIceberg is the caller's: nothing here needs it before a catalog of it is passed.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import importlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from icetower.agent.appends import DataFile
from icetower.agent.client import Tower
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
    Sent,
    Slot,
    require_taken,
)
from icetower.agent.keys import keyed, reads
from icetower.agent.known import Known, snapshots_in, span_of
from icetower.agent.recovery import Patience, carry_out, refusal_of
from icetower.agent.slots import in_the_next, in_time
from icetower.errors import UsageError
from icetower.protocol.marks import KEY as KEY_MARK

FILTERED_MAX = 500
"""Rows that are named one by one in what a write declares to have read; of more, it is the whole table."""


def send(
    rows: Any,
    table: str,
    tower: Tower,
    catalog: Any,
    *,
    operation: Act = "append",
    key: str,
    keys: Sequence[str] = (),
    least_s: float = 0.0,
    reason: str = "rows of an agent",
    patience: Patience | None = None,
    said: Mapping[str, str] | None = None,
    known: Known | None = None,
) -> Sent:
    """Send rows to a table by the way that the agent's contract says; returns when they are in the table, the log or
    the delta table, once, however often they are sent under the key.

    Appends that depend on nothing that was read (`blind_appends`), and those to a log or a delta table, go by the fast
    path where the table is partitioned by columns as they are, or not at all; others are commits of PyIceberg's.

    Args:
        rows: a PyArrow table. What it lacks of the table's columns is filled in, as by `icetower.spark.send`.
        table: ``namespace.table``.
        catalog: PyIceberg's, of the same principal: ``load_catalog("tower", **tower.pyiceberg_properties())``.
        operation: ``append`` adds rows, ``upsert`` puts them in place of those with the same keys, ``delete`` removes
            the rows with the same keys.
        key: of these rows; keep it with the work, and send it again with the same rows.
        keys: the columns that identify a row; by default the identifier fields of the table's schema.
        least_s: in a slot, so many seconds must be left; else the next one is waited for.
        reason: for the person who is asked for partitions.
        patience: limits on time and attempts, as of `carry_out`.
        said: snapshot properties that upserts and deletes have besides, such as those of a lease.
        known: the version that upserts and deletes were computed from; by default what is there when they are made.

    Raises:
        IcetowerError: a refusal from which there is no way on.
        UsageError: the rows do not fit, or the pattern does not take the operation.
    """
    limits = patience or Patience()

    def work(using: Tower, now: str) -> Sent:
        delivery = in_time(using, table, GRANTS[operation], least_s, limits)
        target = catalog.load_table(delivery.written)
        # A write that was rolled back is sent again under another key, `now`; its rows keep theirs.
        prepared = prepared_for(rows, target.schema().as_arrow(), delivery, operation, key, limits)
        columns, more = tuple(keys) or delivery.key_columns, dict(said or {})
        again, snapshot_id = _write(using, target, prepared, delivery, operation, columns, now, more, known)
        return Sent(delivery.pattern, delivery.written, now, delivery.slot, again, snapshot_id)

    granted = [GRANTS[operation]]
    anew = in_the_next(work, refusal_of)
    return carry_out(anew, tower, table, operations=granted, reason=reason, key=key, patience=limits)


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def prepared_for(rows: Any, schema: Any, delivery: Delivery, operation: Act, key: str, limits: Patience) -> Any:
    """The rows with the columns of the table that they are written to, in its order and types."""
    pa = importlib.import_module("pyarrow")
    unknown = [name for name in rows.column_names if name not in schema.names]
    if unknown:
        raise UsageError(f"{delivery.written} has no column {', '.join(unknown)}; leave it out of the rows")
    now = dt.datetime.fromtimestamp(limits.ambient.now_ms() / 1000, dt.UTC)
    filled: dict[str, Any] = {EVENT_TIME: now}
    if delivery.through:
        filled |= {AGENT: delivery.agent, CHANGE: "delete" if operation == "delete" else "upsert", WRITTEN: now}
    if delivery.slot is not None and delivery.slot.column is not None:
        filled[delivery.slot.column] = delivery.slot.value
    missing = [each for each in schema.names if each not in rows.column_names and each not in filled and each != KEY]
    if missing and operation == "upsert":
        raise UsageError(f"an upsert replaces whole rows, and these lack {', '.join(missing)} of {delivery.table}")
    columns: list[Any] = []
    for field in schema:
        if field.name in rows.column_names:
            columns.append(rows[field.name].combine_chunks().cast(field.type))
        elif field.name == KEY:
            columns.append(pa.array(row_keys(rows.to_pylist(), delivery.seed(key)), field.type))
        else:
            columns.append(pa.array([_fitting(filled.get(field.name), field.type)] * rows.num_rows, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _fitting(value: Any, kind: Any) -> Any:
    """A moment as a column of times takes it: one without a zone is in UTC."""
    if isinstance(value, dt.datetime) and getattr(kind, "tz", None) is None:
        return value.date() if str(kind).startswith("date") else value.replace(tzinfo=None)
    return value


def row_keys(rows: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    """A key of each row, the same whenever these rows are sent under this key: equal rows are numbered."""
    seen: Counter[str] = Counter()
    found: list[str] = []
    for row in rows:
        content = json.dumps(row, sort_keys=True, default=str)
        seen[content] += 1
        found.append(hashlib.sha256(f"{key}\n{content}\n{seen[content]}".encode()).hexdigest())
    return found


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _write(
    tower: Tower,
    target: Any,
    rows: Any,
    delivery: Delivery,
    operation: Act,
    keys: Sequence[str],
    key: str,
    more: dict[str, str],
    known: Known | None,
) -> tuple[bool, int | None]:
    """Returns whether the rows were there already, and in which snapshot they are, as far as that is told.

    Args:
        more: snapshot properties.
    """
    require_taken(delivery, operation)
    if operation == "append" or delivery.pattern in (COLLECTOR, MEDIATOR):
        _require_one_partition_each(target, rows)
        if _is_plain(target) and (delivery.blind or delivery.through):
            files = [*_files(tower, target, delivery.written, rows)]
            if not files:
                return False, None
            done = tower.append(delivery.written, files, key=key)
            return done.outcome == "replayed", done.snapshot_id
        before = snapshots_of(target, key)
        target.append(rows, snapshot_properties=keyed(key, blind=delivery.blind) | more)
        return landed_under(target, key, before)
    if not keys:
        raise UsageError(
            f"no columns identify a row of {delivery.table}; create it with identifier fields, or pass keys="
        )
    on = list(dict.fromkeys((*_within(rows, delivery.slot), *keys)))
    matching = importlib.import_module("pyiceberg.table.upsert_util").create_match_filter
    # PyIceberg writes moments of filters without their zone, which the tower cannot read. Without them a filter says
    # that more was read than was.
    named = [name for name in keys if "timestamp" not in str(rows.schema.field(name).type)]
    many = rows.num_rows > FILTERED_MAX
    if known is None:
        declared = reads(target, True if many or not named else matching(rows, named))
    else:  # much may have come since: the whole table would be too much to name
        declared = known.declared(target, span_of(rows, on) if many or len(named) < len(keys) else matching(rows, on))
    said = keyed(key) | declared | more

    def commit() -> None:
        head = target.metadata.current_snapshot_id
        if operation == "delete":
            target.delete(matching(rows, on), snapshot_properties=said)
        else:
            target.upsert(rows, on, snapshot_properties=said)
        if target.metadata.current_snapshot_id == head:
            leave_key(target, said, deletes=operation == "delete")

    return committed(target, key, said, commit, known)


def committed(
    target: Any, key: str, said: Mapping[str, str], commit: Callable[[], None], known: Known | None
) -> tuple[bool, int | None]:
    """Commit rows; returns whether they were there already, and in which snapshot they are.

    Args:
        said: the commit's snapshot properties.

    Raises `CommitConflict` without a way on where something came after the version that the rows were computed from.
    """
    before, seen = snapshots_of(target, key), snapshots_in(target)
    try:
        commit()
    except Exception as raised:
        refusal = None if known is None else known.refusal(raised, seen)
        if refusal is None:
            raise
        raise refusal from raised
    again, snapshot_id = landed_under(target, key, before)
    if known is not None and not again:
        known.landed(said, snapshot_id)
    return again, snapshot_id


def leave_key(target: Any, properties: Mapping[str, str], *, deletes: bool) -> None:
    """Commit an empty snapshot. PyIceberg commits nothing that changes nothing, and without their key these rows would
    replace later ones if they are sent again."""
    with target.transaction() as transaction, transaction.update_snapshot(properties).overwrite() as empty:
        if deletes:
            # It would be an overwrite, or in an empty table an append, and the contract need not grant these.
            empty._operation = importlib.import_module("pyiceberg.table.snapshots").Operation.DELETE


def landed_under(target: Any, key: str, before: Sequence[int]) -> tuple[bool, int | None]:
    found = snapshots_of(target, key)
    return set(found) <= set(before), found[-1] if found else None


def snapshots_of(target: Any, key: str) -> list[int]:
    """The snapshots of a table that were committed under a key, in their order. A write that lands has a new one; one
    that had landed, as the tower then answers, has not."""
    found = sorted(target.metadata.snapshots, key=lambda each: each.sequence_number or 0)
    summaries = ((each.snapshot_id, each.summary) for each in found if each.summary is not None)
    return [id_ for id_, summary in summaries if summary.additional_properties.get(KEY_MARK) == key]


def _within(rows: Any, slot: Slot | None) -> tuple[str, ...]:
    """The column of the slot, if all rows have its beginning there: then they replace rows of the slot alone."""
    if slot is None or slot.column is None or slot.column not in rows.column_names:
        return ()
    column = rows[slot.column]
    return (slot.column,) if column.unique().to_pylist() == [_fitting(slot.value, column.type)] else ()


def _is_plain(target: Any) -> bool:
    """Is the table partitioned by columns as they are, whose values have one form in JSON, or not at all?"""
    kinds = [str(target.schema().find_type(field.source_id)) for field in target.spec().fields]
    return all(str(field.transform) == "identity" for field in target.spec().fields) and not any(
        kind in ("float", "double", "binary", "uuid") or kind.startswith("fixed") for kind in kinds
    )


def _require_one_partition_each(target: Any, rows: Any) -> None:
    """NaN is not equal to itself, and -0.0 is equal to 0.0: rows grouped by such values are lost, or written twice, by
    PyIceberg's append, too (0.12, `_determine_partitions`)."""
    for source in {field.source_id for field in target.spec().fields}:
        name = target.schema().find_column_name(source)
        if str(target.schema().find_type(source)) not in ("float", "double"):
            continue
        for value in rows[name].unique().to_pylist() if name in rows.column_names else ():
            if isinstance(value, float) and (math.isnan(value) or math.copysign(1.0, value) < 0.0 == abs(value)):
                raise UsageError(
                    f"{name} is {value}, and {'.'.join(target.name())} is partitioned by it: no client puts such rows "
                    "into one partition. Write null or 0.0, or partition the table by another column"
                )


def _files(tower: Tower, target: Any, table: str, rows: Any) -> Iterator[DataFile]:
    """Write a file for each partition of the rows."""
    parquet = importlib.import_module("pyarrow.parquet")
    compute = importlib.import_module("pyarrow.compute")
    names = {field.name: target.schema().find_column_name(field.source_id) for field in target.spec().fields}
    groups = rows.select([*dict.fromkeys(names.values())]).to_pylist() if names else [{}] * min(rows.num_rows, 1)
    for values in {json.dumps(group, default=str): group for group in groups}.values():
        part = rows
        for name, value in values.items():
            column = part[name]
            part = part.filter(
                column.is_null() if value is None else compute.equal(column, _scalar(value, column.type))
            )
        place = tower.new_data_file(table)
        with target.io.new_output(place).create() as out:
            parquet.write_table(part, out)
        partition = {field: _json_value(values[name]) for field, name in names.items()}
        yield DataFile(place, part.num_rows, len(target.io.new_input(place)), partition)


def _scalar(value: Any, kind: Any) -> Any:
    return importlib.import_module("pyarrow").scalar(value, kind)


def _json_value(value: Any) -> Any:
    """A value in Iceberg's JSON form."""
    if isinstance(value, dt.datetime):
        return value.isoformat(timespec="microseconds")
    return value if value is None or isinstance(value, bool | int | str) else str(value)
