"""Tables of a team: the rows of its contracts, in a namespace of their own, since no catalog filters rows.

They follow from the tables of all, and are written in the same manner: each copy says in its summary how far it goes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from icetower.contracts.document import load
from icetower.errors import BadRequest
from icetower.iceberg.metadata import current_snapshot_id
from icetower.pipelines.own_tables import names_of
from icetower.pipelines.system_metrics import DAY_MS, export_metrics
from icetower.pipelines.system_tables import COMMITS, CONTRACTS, THROUGH, SystemTables, mark_of
from icetower.pipelines.tables import merge
from icetower.pipelines.wal_logs import DEDUP_COLUMNS
from icetower.protocol.marks import EXPORT

COPIED = EXPORT + "copied"
"""The snapshot of the table of all that was copied last, and the newest time in it."""

_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")
_OURS = ("iceberg_commits", "agent_write_metrics", "agent_dedup_log", "contract_history")


@dataclass(frozen=True, slots=True)
class Team:
    """Attributes:
    name: of its namespace, after the one of all tables and an underscore.
    contracts: those whose rows are the team's.
    principals: that are bound to these.
    """

    name: str
    contracts: frozenset[str]
    principals: frozenset[str]

    @staticmethod
    def of(text: str, contracts: Sequence[Mapping[str, Any]], bindings: Mapping[str, str]) -> Team:
        """The team of an option: ``NAME=WHO,WHO``, or ``NAME`` for ``NAME=NAME``.

        Args:
            contracts: the newest version of each. A team has those whose name or owner is one of ``WHO``.
            bindings: principal → contract.

        Raises:
            BadRequest: not a name, or nobody is meant (`export.team`).
        """
        name, _, listed = text.partition("=")
        wanted = {each.strip() for each in (listed or name).split(",")} - {""}
        if not _NAME.fullmatch(name):
            raise BadRequest(
                f"the team {name!r} needs a name of letters, digits and underscores: its tables are in a namespace "
                "that ends in it. Write --team NAME=OWNER,CONTRACT",
                rule="export.team",
            )
        names = {each["name"]: {each["name"], _owner(each["text"])} for each in contracts}
        unknown = sorted(wanted - {known for two in names.values() for known in two})
        if unknown or not wanted:
            raise BadRequest(
                f"the team {name} is of {', '.join(unknown) or 'nobody'}, and no contract has this name or owner; "
                "`icetower contracts list` shows them",
                rule="export.team",
            )
        own = frozenset(contract for contract, two in names.items() if two & wanted)
        return Team(name, own, frozenset(who for who, contract in bindings.items() if contract in own))


def _owner(text: str | None) -> str | None:
    return None if text is None else load(text, source="contract").owner


def is_of_exports(tables: SystemTables, table: str) -> bool:
    """Whether attempts on a table come from exports: on a system table or a team's, or on a namespace of these."""
    own = tables.system.partition(".")[2]

    def is_ours(namespace: str) -> bool:
        return namespace == own or (namespace.startswith(f"{own}_") and "." not in namespace.removeprefix(own))

    namespace, _, name = table.rpartition(".")
    return namespace == own or is_ours(table) or (name in _OURS and is_ours(namespace))


def tables_for(team: Team, all_tables: SystemTables) -> SystemTables:
    """A team's own tables."""
    return SystemTables(all_tables.spark, f"{all_tables.system}_{team.name}")


def copy_for(team: Team, all_tables: SystemTables) -> Iterator[Callable[[], object]]:
    """The steps that bring a team's tables up to those of all. Each may be repeated."""
    own = tables_for(team, all_tables)
    yield own.create
    yield lambda: _copy_contracts(team, all_tables, own)
    yield lambda: _copy_commits(team, all_tables, own)
    yield lambda: _copy_keys(team, all_tables, own)
    yield lambda: export_metrics(own, all_tables.orphans, team.principals)


def _among(column: str, names: Collection[str]) -> Any:
    return f.col(column).isin(*names) if names else f.lit(False)


def _copy_contracts(team: Team, all_tables: SystemTables, own: SystemTables) -> None:
    head = _head(all_tables, all_tables.contracts)
    if mark_of(own.load(own.contracts), COPIED) == str(head):
        return
    rows = all_tables.rows(all_tables.contracts).where(_among("contract", team.contracts))
    _merge(own, own.contracts, rows, CONTRACTS, ("contract", "version"), {COPIED: str(head)}, update=True)


def _copy_commits(team: Team, all_tables: SystemTables, own: SystemTables) -> None:
    start = own.progress(own.commits, "attempt_id")
    through = all_tables.progress(all_tables.commits, "attempt_id")
    if start >= through:
        return
    rows = all_tables.rows(all_tables.commits).where(f"attempt_id > {start} AND attempt_id <= {through}")
    rows = rows.where(_among("contract", team.contracts))
    marks = {THROUGH: str(through)}
    _merge(own, own.commits, rows, COMMITS, ("attempt_id",), marks, since=f"t.attempt_id > {start}")


def _copy_keys(team: Team, all_tables: SystemTables, own: SystemTables) -> None:
    """Keys have no number where mediators logged them: they are compared, those of the last day and newer ones."""
    head = _head(all_tables, all_tables.keys)
    copied = mark_of(own.load(own.keys), COPIED)
    before, _, newest_ms = (copied or "").partition(",")
    if before == str(head):
        return
    through = all_tables.progress(all_tables.keys, "attempt_id")
    rows = all_tables.rows(all_tables.keys).where(
        _among("contract", team.contracts) | (f.expr("attempt_id IS NULL") & _among("agent_id", team.principals))
    )
    newest = rows.agg(f.unix_millis(f.max("committed_at"))).collect()[0][0] or 0
    numbered = own.progress(own.keys, "attempt_id")
    since = int(newest_ms or 0) - DAY_MS
    fresh = rows.where(f"attempt_id > {numbered} OR (attempt_id IS NULL AND committed_at >= timestamp_millis({since}))")
    name = ("agent_id", "idempotency_key", "table_name", "committed_at")
    there = own.rows(own.keys).select(*name)
    marks = {COPIED: f"{head},{newest}", THROUGH: str(through)}
    fresh = fresh.join(there, [*name], "left_anti").dropDuplicates([*name])
    _merge(own, own.keys, fresh, DEDUP_COLUMNS, name, marks)


def _head(tables: SystemTables, table: str) -> int | None:
    return current_snapshot_id(tables.load(table))


def _merge(
    own: SystemTables,
    table: str,
    rows: DataFrame,
    columns: str,
    on: Sequence[str],
    marks: Mapping[str, str],
    *,
    update: bool = False,
    since: str = "",
) -> None:
    """Write rows, if there are any, and how far the table is written."""
    found = rows.select(*names_of(columns)).localCheckpoint()
    if not found.isEmpty():
        merge(own.spark, table, found, on, update=update, where_target=since, properties=marks)
    else:
        own.note(table, marks)
