"""`icetower branches`: the branches of tables, and the end of those that nobody writes to any more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from icetower.agent import Tower
from icetower.ambient import SystemAmbient
from icetower.cli.completion import complete_table
from icetower.cli.contract_tables import Routes
from icetower.cli.lake import Lake
from icetower.cli.mediate import contracts_in_force
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect, time_text, token_for
from icetower.cli.screens import say_section
from icetower.cli.terminal import say, warn
from icetower.contracts.model import Contract
from icetower.contracts.reading import duration_text
from icetower.contracts.regions import Pattern
from icetower.errors import CommitConflict, NotFound
from icetower.protocol.names import Identifier
from icetower.publish.stale import BranchState, branches_in
from icetower.table.head import HeadState
from icetower.texts import escaped


def branches(
    tables: Annotated[list[str], typer.Argument(help="namespace.table, several.", autocompletion=complete_table)],
    remove: Annotated[bool, typer.Option("--remove", help="Remove those that are stale.")] = False,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """List the branches of tables, with those that are stale, and remove these with --remove.

    A branch is stale if nobody has written to it for longer than the contract of its last writer says
    (`branches: {retain: 7d}`). Only administrators see contracts. A branch that is written to meanwhile stays; its
    snapshots go when they expire.

    \b
    Example:
      icetower branches shop.sales
      icetower branches shop.sales shop.prices --remove
    """
    contracts = _by_principal(uri)
    now_ms = SystemAmbient().now_ms()
    with connect(uri) as tower:
        for table in tables:
            metadata = tower.load(table)
            head = HeadState(str(metadata.get("metadata-location") or ""), metadata["metadata"])
            found = list(branches_in(head, contracts, now_ms))
            gone = [each.name for each in found if remove and each.stale and _removed(tower, table, head, each)]
            if as_json:
                say(json.dumps([{"table": table, **asdict(each), "removed": each.name in gone} for each in found]))
            else:
                _show(table, found, gone)


def remove_stale(uri: str, tables: Sequence[str] | None, contracts: Mapping[str, Contract]) -> list[tuple[str, str]]:
    """Remove the stale branches of some tables, or of all, as an administrator; each by its table and its name.

    Args:
        contracts: by principal.
    """
    if all(each.branches is None or each.branches.retain_s is None for each in contracts.values()):
        return []
    now_ms = SystemAmbient().now_ms()
    found: list[tuple[str, str]] = []
    with Routes(uri, token_for(uri)) as routes, connect(uri) as tower:
        names = Lake(routes).matching(Pattern((), "**")) if tables is None else tables
        for table in map(str, names):
            try:
                metadata = tower.load(table)["metadata"]
            except NotFound:  # it was dropped meanwhile
                continue
            head = HeadState("", metadata)
            stale = [each for each in branches_in(head, contracts, now_ms) if each.stale]
            found += [(table, each.name) for each in stale if _removed(tower, table, head, each)]
    return found


def _by_principal(uri: str) -> dict[str, Contract]:
    """The contracts in force by principal; for anybody but an administrator, none."""
    with connect(uri) as tower:
        if not tower.me()["administrator"]:
            return {}
        bound = {record["name"]: record["contract"] for record in tower.principals()}
    in_force = contracts_in_force(uri)
    return {name: in_force[contract] for name, contract in bound.items() if contract in in_force}


def _removed(tower: Tower, table: str, head: HeadState, branch: BranchState) -> bool:
    requirements = [
        {"type": "assert-table-uuid", "uuid": head.metadata["table-uuid"]},
        {"type": "assert-ref-snapshot-id", "ref": branch.name, "snapshot-id": branch.snapshot},
    ]
    try:
        tower.commit(
            Identifier.parse(table), requirements, [{"action": "remove-snapshot-ref", "ref-name": branch.name}]
        )
    except CommitConflict as error:
        warn(escaped(f"{table}: branch {branch.name} stays: {error.message}"))
        return False
    return True


def _show(table: str, found: list[BranchState], gone: list[str]) -> None:
    rows = [
        (
            each.name,
            each.principal or "",
            time_text(each.written_ms),
            "" if each.lacking is None else each.lacking,
            "" if each.retain_s is None else duration_text(each.retain_s),
            "removed" if each.name in gone else "stale" if each.stale else "",
        )
        for each in found
    ]
    columns = ("branch", "last writer", "written", "not in main", "retained", "")
    say_section(f"branches of {escaped(table)}", rows, columns, "none")
