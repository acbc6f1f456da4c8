"""The merged view of a table with a collector, for PyIceberg: the table as a fold of all that is new would leave it.

The rules are those of the collector (docs/collector.md, "Which change wins"). Contracts are not asked: a change counts
as if the contract of its agent let it by. Needs PyIceberg's tables and PyArrow, which the SDK does not bring.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from icetower.errors import BadRequest
from icetower.protocol.marks import MEDIATOR, SOURCE_SNAPSHOT

OPERATION, TIME, KEY_COLUMN = "_operation", "_event_time", "_idempotency_key"
UPSERT, DELETE = "upsert", "delete"
_ORDER, _RANK, _DELETED, _STOOD = "_icetower_order", "_icetower_rank", "_icetower_deleted", "_icetower_stood"


def merged_view(
    target: Any,
    deltas: Any,
    keys: Sequence[str],
    *,
    dedup_log: Any = None,
) -> Any:
    """The rows of `target` with all changes of `deltas` that are not folded in yet, as a `pyarrow.Table`.

    Args:
        target: PyIceberg's table, as loaded: it is not refreshed.
        deltas: its delta table, likewise.
        keys: the columns that identify a row, as the collector has them.
        dedup_log: PyIceberg's table ``system.agent_dedup_log``. Without it a change that is sent again after it was
            folded is known by the table's own rows only.

    Raises `BadRequest` if a table lacks a column that the view needs.
    """
    import pyarrow as pa

    pc: Any = import_module("pyarrow.compute")  # its functions are made when it is imported, so it has no types

    for table, columns in ((target, (*keys, TIME, KEY_COLUMN)), (deltas, (*keys, TIME, KEY_COLUMN, OPERATION))):
        _require_columns(table, columns)
    stands = target.scan().to_arrow()
    changes = _changes(pa, target, deltas)
    if changes is None:
        return stands
    changes = _typed_like(pa, changes, stands)
    # Joins cannot carry nested columns, so what decides is apart from the rows, and names them by their places.
    order = pa.array(range(changes.num_rows), pa.int64())
    deciding = _without_signs(pc, changes.select([*keys, TIME, KEY_COLUMN, OPERATION]), keys)
    deciding = deciding.append_column(_ORDER, order)
    deciding = _once_each(
        pc, deciding.filter(_valid(pc, deciding, keys)), _known_keys(pa, pc, target, stands, dedup_log)
    )
    newest = _newest(pa, pc, deciding, keys)
    if not newest.num_rows:
        return stands
    since = pc.min(newest[TIME]).as_py().isoformat()  # a delete that is older than all of them hides none
    newer = f"{OPERATION} = '{DELETE}' and {TIME} >= '{since}'"
    deletes = deltas.scan(row_filter=newer, selected_fields=(*keys, TIME, KEY_COLUMN, OPERATION)).to_arrow()
    deletes = _without_signs(pc, _typed_like(pa, deletes.filter(_valid(pc, deletes, keys)), stands), keys)
    newest = newest.join(_latest(deletes, keys, _DELETED), list(keys), join_type="left outer")
    placed = _without_signs(pc, stands.select([*keys, TIME]), keys)
    newest = newest.join(_latest(placed, keys, _STOOD), list(keys), join_type="left outer")
    upsert = pc.equal(newest[OPERATION], UPSERT)
    deleted_later = pc.and_(upsert, _later(pc, newest[_DELETED], newest[TIME]))
    effective = newest.filter(pc.invert(pc.or_(deleted_later, _later(pc, newest[_STOOD], newest[TIME]))))
    untouched = stands.take(_places_without(pa, placed, effective, keys))
    places = effective.filter(pc.equal(effective[OPERATION], UPSERT))[_ORDER]
    # Identifier fields are required in the table, and not in its delta table.
    return pa.concat_tables([untouched, changes.take(places).select(stands.column_names)], promote_options="default")


# ------------------------------------------------------------------------------------------------------- what is new


def _changes(pa: Any, target: Any, deltas: Any) -> Any:
    """The rows that are not folded in, in the order in which they landed; None if there are none.

    If the delta table no longer shows which are new, all of them, in the order of their keys. The table's rows, keys
    and event times then show what is new.
    """
    head = deltas.current_snapshot()
    if head is None:
        return None
    fresh = _fresh(deltas, _folded_through(target, str(deltas.metadata.table_uuid)))
    if fresh is None:
        return deltas.scan().to_arrow().sort_by(KEY_COLUMN)
    parts = [
        deltas.incremental_append_scan(
            from_snapshot_id_exclusive=snapshot.parent_snapshot_id, to_snapshot_id_inclusive=snapshot.snapshot_id
        ).to_arrow()
        for snapshot in fresh
    ]
    return pa.concat_tables(parts) if parts else None


def _line(table: Any) -> Iterator[Any]:
    """The snapshots of the table's history, newest first, as far as its metadata has them."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)


def _folded_through(target: Any, deltas_uuid: str) -> int | None:
    """The snapshot of the delta table up to which the table's history has its changes; None if it has none."""
    found = [
        (int(summary[MEDIATOR + "sequence"]), int(summary[MEDIATOR + "through-snapshot"]))
        for snapshot in _line(target)
        if (summary := _properties(snapshot)).get(MEDIATOR + "table-uuid") == deltas_uuid
    ]
    return max(found)[1] if found else None


def _fresh(deltas: Any, through: int | None) -> list[Any] | None:
    """The snapshots that appended rows after `through`, oldest first; None if that cannot be determined."""
    found: list[Any] = []
    for snapshot in _line(deltas):
        if snapshot.snapshot_id == through:
            return found[::-1]
        operation, properties = snapshot.summary.operation.value, _properties(snapshot)
        if operation == "append":
            found.append(snapshot)
        elif operation != "replace" and (operation != "delete" or int(properties.get("added-delete-files", 0))):
            return None
        if snapshot.parent_snapshot_id == through:
            return found[::-1]
    return None


def _properties(snapshot: Any) -> dict[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


# ----------------------------------------------------------------------------------------------------- which one wins


def _valid(pc: Any, changes: Any, keys: Sequence[str]) -> Any:
    """Which changes have all that a change needs."""
    valid = pc.fill_null(pc.or_(pc.equal(changes[OPERATION], UPSERT), pc.equal(changes[OPERATION], DELETE)), False)
    for name in (*keys, TIME, KEY_COLUMN):
        valid = pc.and_(valid, pc.is_valid(changes[name]))
    named = pc.not_equal(pc.utf8_trim(changes[KEY_COLUMN], " "), "")
    return pc.and_(valid, pc.fill_null(named, False))


def _known_keys(pa: Any, pc: Any, target: Any, stands: Any, dedup_log: Any) -> Any:
    """The keys of changes that were folded in."""
    known = stands.select([KEY_COLUMN])
    if dedup_log is None:
        return known
    where = f"table_uuid = '{target.metadata.table_uuid}'"
    # Others are keys of commits, or of rows that agents wrote directly. Earlier versions logged neither.
    there = {field.name for field in dedup_log.schema().fields}
    where += "".join(f" and {name} is null" for name in ("attempt_id", "source") if name in there)
    placed = ("snapshot_id",) if "snapshot_id" in there else ()
    logged = dedup_log.scan(row_filter=where, selected_fields=("idempotency_key", *placed)).to_arrow()
    if placed:
        gone = pc.is_in(logged["snapshot_id"], pa.array(_rolled_back(target), pa.int64()))
        logged = logged.filter(pc.invert(gone)).select(["idempotency_key"])
    return pa.concat_tables([known, logged.rename_columns([KEY_COLUMN]).cast(known.schema)])


def _rolled_back(target: Any) -> list[int]:
    """The snapshots that the metadata has and the table's history has not, directly or by a cherry-pick."""
    line = [*_line(target)]
    picked = {_properties(snapshot).get(SOURCE_SNAPSHOT) for snapshot in line}
    there = {snapshot.snapshot_id for snapshot in line}
    return [
        snapshot.snapshot_id
        for snapshot in target.metadata.snapshots
        if snapshot.snapshot_id not in there and str(snapshot.snapshot_id) not in picked
    ]


def _once_each(pc: Any, changes: Any, known: Any) -> Any:
    """The first change of each key, without those that are known."""
    first = changes.group_by(KEY_COLUMN).aggregate([(_ORDER, "min")])[f"{_ORDER}_min"]
    once = changes.filter(pc.is_in(changes[_ORDER], first.combine_chunks()))
    return once.join(known, KEY_COLUMN, join_type="left anti")


def _newest(pa: Any, pc: Any, changes: Any, keys: Sequence[str]) -> Any:
    """Of the changes of each row the one with the latest event time; of these the last to land."""
    ordered = changes.sort_by([(TIME, "ascending"), (_ORDER, "ascending")])
    ranked = ordered.append_column(_RANK, pa.array(range(ordered.num_rows), pa.int64()))
    last = ranked.group_by(list(keys)).aggregate([(_RANK, "max")])[f"{_RANK}_max"]
    return ranked.filter(pc.is_in(ranked[_RANK], last.combine_chunks()))


def _latest(rows: Any, keys: Sequence[str], name: str) -> Any:
    """The latest event time of each row's versions, as column `name`."""
    return rows.group_by(list(keys)).aggregate([(TIME, "max")]).rename_columns([*keys, name])


def _later(pc: Any, one: Any, other: Any) -> Any:
    return pc.fill_null(pc.greater(one, other), False)


def _without_signs(pc: Any, rows: Any, keys: Sequence[str]) -> Any:
    """The rows with 0.0 for -0.0 in their keys: one key for Spark, and so for the fold, but two for Arrow."""
    for name in keys:
        kind = rows.schema.field(name).type
        if str(kind) in ("float", "double"):
            at = rows.schema.get_field_index(name)
            zero = pc.cast(0.0, kind)
            rows = rows.set_column(at, name, pc.if_else(pc.equal(rows[name], zero), zero, rows[name]))
    return rows


def _places_without(pa: Any, rows: Any, others: Any, keys: Sequence[str]) -> Any:
    """The places of the rows whose keys are not among those of the others."""
    places = rows.select(list(keys)).append_column(_ORDER, pa.array(range(rows.num_rows), pa.int64()))
    kept = places.join(others.select(list(keys)), list(keys), join_type="left anti")
    return kept.sort_by(_ORDER)[_ORDER]


def _typed_like(pa: Any, rows: Any, others: Any) -> Any:
    """The rows with the types of the others' columns: a scan has `large_string` where another has `string`."""
    types = {field.name: field.type for field in others.schema}
    return rows.cast(pa.schema([field.with_type(types.get(field.name, field.type)) for field in rows.schema]))


def _require_columns(table: Any, columns: Sequence[str]) -> None:
    there = {field.name for field in table.schema().fields}
    if missing := [name for name in columns if name not in there]:
        raise BadRequest(
            f"{'.'.join(table.name())} has no column {', '.join(missing)}, which the merged view needs; a table and "
            "its delta table have the columns that docs/collector.md names",
            rule="wal.columns",
        )
