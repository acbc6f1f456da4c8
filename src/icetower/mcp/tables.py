"""A caller's clients, and what tables are: their names, columns, partitions and whose they are. All of it blocks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

from icetower.agent import Tower, refusal_of
from icetower.ambient import Ambient
from icetower.contracts.check import Clear, Touch, check
from icetower.contracts.model import FILE_OPERATIONS, Operation
from icetower.contracts.terms import Layout
from icetower.contracts.wording import region_text
from icetower.counting import series
from icetower.errors import BadRequest, IcetowerError, NotFound, UsageError
from icetower.iceberg.partitions import known_specs, partition_name
from icetower.mcp.caller import Caller, Me
from icetower.mcp.results import Column, Described, Partition, clean
from icetower.protocol.names import Identifier

PARTITIONS_MAX = 100
FILES_LOOKED_AT_MAX = 5_000
TOWER_TIMEOUT_S = 30.0
ASKED_FOR = (Operation.APPEND, Operation.OVERWRITE, Operation.DELETE)


class Desk:
    """A caller's clients, for one call."""

    def __init__(self, caller: Caller, ambient: Ambient) -> None:
        self.caller = caller
        self.ambient = ambient
        self.tower = Tower(caller.uri, caller.token, timeout_s=TOWER_TIMEOUT_S)

    def __enter__(self) -> Desk:
        return self

    def __exit__(self, *_: object) -> None:
        self.tower.close()

    @cached_property
    def me(self) -> Me:
        return Me.of(self.tower.me())

    @cached_property
    def catalog(self) -> Any:
        """PyIceberg's, whose tables open files of their own alone."""
        catalog = import_module("icetower.mcp.confined").ConfinedCatalog
        return catalog("tower", **{**self.caller.storage, **self.tower.pyiceberg_properties()})

    def table(self, name: str) -> Any:
        """PyIceberg's table. Raises the `IcetowerError` of the tower's answer."""
        identifier = Identifier.parse(name)
        return self.catalog.load_table((*identifier.namespace, identifier.name))


def error_of(raised: BaseException) -> IcetowerError | None:
    """The refusal behind whatever a call has raised; None where it is none, and its text is not for the caller."""
    found = refusal_of(raised)
    if isinstance(found, UsageError):
        return BadRequest(found.message, rule="mcp.arguments")
    if found is not None:
        return found
    if isinstance(raised, FileNotFoundError):
        return NotFound("a file of the table is gone", rule="file.exists", next_step="none")
    if type(raised).__module__ == "pyiceberg.exceptions":
        return BadRequest(f"{type(raised).__name__}: {clean(str(raised))}")
    return None


# ── Names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def list_tables(desk: Desk, namespace: str | None, limit: int) -> tuple[list[str], bool]:
    """Names of tables, sorted, and whether there are more."""
    catalog, found = desk.catalog, list[str]()
    spaces = [tuple(namespace.split("."))] if namespace else _namespaces(catalog, limit)
    for space in spaces:
        found += [".".join(each) for each in catalog.list_tables(space)]
        if len(found) > limit:
            break
    found.sort()
    return [clean(name) for name in found[:limit]], len(found) > limit


def _namespaces(catalog: Any, limit: int) -> list[tuple[str, ...]]:
    waiting: list[tuple[str, ...]] = [tuple(each) for each in catalog.list_namespaces()]
    found: list[tuple[str, ...]] = []
    while waiting and len(found) < limit:
        space = waiting.pop(0)
        found.append(space)
        waiting += [tuple(each) for each in catalog.list_namespaces(space)]
    return found


# ── Description ──────────────────────────────────────────────────────────────────────────────────────────────────────


def describe(desk: Desk, name: str) -> Described:
    """Columns, partition fields, partitions and whose they are."""
    table, me = desk.table(name), desk.me
    metadata: Mapping[str, Any] = desk.tower.load(name)["metadata"]
    schema, snapshot = table.schema(), table.current_snapshot()
    keys = set(schema.identifier_field_names())
    columns = [
        Column(name=clean(f.name), type=clean(str(f.field_type)), required=f.required, key=f.name in keys)
        for f in schema.fields[:500]
    ]
    fields = [
        f"{field.name} = {field.transform}({schema.find_column_name(field.source_id)})" for field in table.spec().fields
    ]
    partitions, more = _partitions(table, metadata, me, name, desk.ambient.now_ms())
    summary: Any = {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
    return Described(
        summary=f"{clean(name)}: {len(columns)} columns, {len(partitions)} partitions shown"
        + (", and there are more" if more else ""),
        table=clean(name),
        columns=columns,
        partition_fields=[clean(each) for each in fields],
        partitions=partitions,
        snapshot=None if snapshot is None else str(snapshot.snapshot_id),
        total_rows=summary.get("total-records"),
        mine=owned_in_words(me, name),
        delivery=_delivery(desk, name),
    )


def _partitions(
    table: Any, metadata: Mapping[str, Any], me: Me, name: str, now_ms: int
) -> tuple[list[Partition], bool]:
    specs, layout, identifier = known_specs(metadata), Layout.of(metadata), Identifier.parse(name)
    found: dict[tuple[int, tuple[Any, ...]], list[int]] = {}
    more = False
    for position, task in enumerate(table.scan().plan_files()):
        file = task.file
        partition = tuple(file.partition[at] for at in range(len(file.partition)))
        key = (file.spec_id, partition)
        if position >= FILES_LOOKED_AT_MAX or (key not in found and len(found) >= PARTITIONS_MAX):
            more = True
            continue
        counted = found.setdefault(key, [0, 0])
        counted[0] += file.record_count
        counted[1] += 1
    shown = list[Partition]()
    for (spec_id, partition), (rows, files) in found.items():
        spec = specs[spec_id]
        held = [
            operation.value
            for operation in ASKED_FOR
            if isinstance(
                check(
                    me.contract,
                    identifier,
                    [Touch(spec, partition, True, 0)],
                    frozenset({operation}),
                    layout=layout,
                    now_ms=now_ms,
                ),
                Clear,
            )
        ]
        shown.append(Partition(name=clean(partition_name(spec, partition)), rows=rows, files=files, mine_for=held))
    return sorted(shown, key=lambda each: each.name), more


def owned_in_words(me: Me, table: str | None = None) -> list[str]:
    """What a contract grants, one line an entry; of one table, or of all."""
    if me.contract.administrator:
        return ["everything, as an administrator"]
    identifier = None if table is None else Identifier.parse(table)
    lines: list[str] = []
    for rule in me.contract.rules if identifier is None else me.contract.rules_for(identifier):
        where = ""
        if rule.partitions == () and any(map(rule.grants, FILE_OPERATIONS)):
            where = ", on no partition yet"
        elif rule.partitions:
            where = ", on rows where " + "; or where ".join(region_text(each) for each in rule.partitions)
        if rule.excluded:
            where += ", but not where " + "; or where ".join(region_text(each) for each in rule.excluded)
        through = f", through the {rule.orchestration.value}" if rule.orchestration.value != "direct" else ""
        lines.append(
            clean(f"{rule.pattern}: {series([each.value for each in Operation if rule.grants(each)])}{where}{through}")
        )
    if me.contract.shadow:
        lines.append("the contract is in shadow mode: it notes what it would refuse, and lets it by")
    return lines


def _delivery(desk: Desk, name: str) -> str | None:
    for operation in ("append", "overwrite", "delete"):
        try:
            found = desk.tower.delivery(name, operation)
        except IcetowerError:
            continue
        return f"{found.pattern}" + (f", through {found.through}" if found.through else "")
    return None


def ways_into(desk: Desk, name: str) -> list[str]:
    """A table, and the log or delta table through which the caller's rows come into it."""
    found = [name]
    for operation in ("append", "overwrite", "delete"):
        try:
            through = desk.tower.delivery(name, operation).through
        except IcetowerError:
            continue
        if through is not None and through not in found:
            found.append(through)
    return found


def wrong(what: str, why: str) -> BadRequest:
    """An argument that does not fit."""
    return BadRequest(f"{what}: {why}", rule="mcp.arguments")
