"""`icetower tables …`: a table owner's declarations about its writers, and the declarations that are missing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from icetower.cli.completion import complete_table
from icetower.cli.contract_tables import Routes
from icetower.cli.lake import Lake, part
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect, print_rows, token_for
from icetower.cli.terminal import say
from icetower.counting import counted
from icetower.errors import UsageError
from icetower.protocol.declarations import LEVELS, Declaration, properties_of
from icetower.protocol.marks import BLIND_APPENDS, INTENTS, STRICT
from icetower.protocol.names import Identifier
from icetower.texts import escaped

UNDECLARED_COLUMNS = ("table", "principal", "declaration", "refused", "first_ms", "last_ms")
MERGES = (
    "Declare it only if no writer of the table runs a MERGE or an upsert that may insert: a MERGE or upsert that only "
    "inserts is an append, too, and two of them would then insert the same row twice"
)
MEANINGS: Mapping[str, str] = {
    BLIND_APPENDS: f"stale appends are rebased without a check. {MERGES}",
    LEVELS[0]: (
        "stale row-level changes are rebased unless they touch files that were written meanwhile: snapshot isolation. "
        "Two MERGEs may then insert the same row twice. It covers commits that were written on snapshots from after "
        "this, in format versions 2 and 3"
    ),
    STRICT: "no stale commit is rebased, regardless of other declarations",
    INTENTS: "commits into rows that another's intent holds are refused",
}
"""The meaning of each property once it is set."""

tables = typer.Typer(help="Tables: what their owners declare about their writers.", no_args_is_help=True)

Table = Annotated[str, typer.Argument(help="namespace.table.", autocompletion=complete_table)]


class Isolation(StrEnum):
    """The isolation that a table asks for."""

    SNAPSHOT = "snapshot"
    SERIALIZABLE = "serializable"


class Heeded(StrEnum):
    """What becomes of commits into rows that others hold."""

    ADVISORY = "advisory"
    REQUIRED = "required"


@tables.command("set")
def set_declarations(
    table: Table,
    blind_appends: Annotated[
        bool | None,
        typer.Option(
            "--blind-appends/--no-blind-appends",
            help="No append to the table depends on what its writer has read: stale ones are rebased unchecked.",
        ),
    ] = None,
    isolation: Annotated[
        Isolation | None,
        typer.Option(help="The isolation level of MERGE, UPDATE and DELETE. Iceberg's own default is serializable."),
    ] = None,
    strict: Annotated[
        bool | None, typer.Option("--strict/--no-strict", help="Rebase nothing, regardless of other declarations.")
    ] = None,
    intents: Annotated[
        Heeded | None,
        typer.Option(help="Commits into rows that another's intent holds: advisory lets them in, required does not."),
    ] = None,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Declare what the server may rely on when a commit to a table is stale.

    It sets properties of the table, so the principal must be allowed to alter all of it. A contract makes the same
    declarations for one agent alone: blind_appends, read_scope, isolation.

    An insert-only MERGE or upsert is an append, too: declare blind appends only if no writer runs these.

    \b
    Example:
      icetower tables set shop.sales --blind-appends
      icetower tables set shop.stock --isolation snapshot
    """
    wanted: dict[str, str | None] = {}
    if blind_appends is not None:
        wanted |= {name: value if blind_appends else None for name, value in _of(Declaration.BLIND_APPENDS).items()}
    if isolation is not None:
        snapshot = isolation is Isolation.SNAPSHOT
        wanted |= {name: value if snapshot else None for name, value in _of(Declaration.SNAPSHOT_ISOLATION).items()}
    if strict is not None:
        wanted[STRICT] = "true" if strict else None
    if intents is not None:
        wanted[INTENTS] = intents.value if intents is Heeded.REQUIRED else None
    if not wanted:
        raise UsageError(
            "nothing to set: name --blind-appends, --isolation, --strict or --intents; `icetower tables show` shows "
            "their values"
        )
    identifier = Identifier.parse(table)
    with Routes(uri, token_for(uri)) as routes:
        lake = Lake(routes)
        metadata = part(lake.load(identifier), "metadata")
        now = part(metadata, "properties")
        changed = {name: value for name, value in wanted.items() if now.get(name) != value}
        if changed:
            routes.post(lake.path(identifier), _commit(identifier, metadata, changed))
    if as_json:
        say(json.dumps({"table": table, "changed": changed, "was": {name: now.get(name) for name in changed}}))
        return
    for name, value in changed.items():
        was = "" if now.get(name) is None else f" (it was {now[name]})"
        say(escaped(f"{table}: {name} is removed{was}" if value is None else f"{table}: {name}={value}{was}"))
    for name, meaning in MEANINGS.items():
        if changed.get(name) is not None:
            say(f"From now on {meaning}.")
    if not changed:
        say(escaped(f"{table} has these declarations already"))


@tables.command("show")
def show_declarations(table: Table, uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """Show a table's declarations, and the commits that were refused for lack of others.

    \b
    Example:
      icetower tables show shop.sales
    """
    identifier = Identifier.parse(table)
    with Routes(uri, token_for(uri)) as routes:
        now = part(part(Lake(routes).load(identifier), "metadata"), "properties")
    declared = {name: now[name] for name in (BLIND_APPENDS, *LEVELS, STRICT, INTENTS) if name in now}
    with connect(uri) as tower:
        missed = tower.undeclared(table=str(identifier))
    if as_json:
        say(json.dumps({"table": table, "declared": declared, "undeclared": missed}))
        return
    for name, value in declared.items():
        say(escaped(f"{table}: {name}={value}"))
    if not declared:
        say(escaped(f"{table}: nothing is declared"))
    say("")
    print_undeclared(missed)


def print_undeclared(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the commits that were refused for lack of a declaration, and how it is made."""
    if not rows:
        say("No commit was refused for lack of a declaration since the tower was started")
        return
    print_rows([dict(row) for row in rows], UNDECLARED_COLUMNS, as_json=False)
    for declaration in Declaration:
        of_it = [row for row in rows if row["declaration"] == declaration]
        if not of_it:
            continue
        say("")
        say(f"{declaration.value}: {counted(sum(row['refused'] for row in of_it), 'commit')} {_SPARED[declaration]}")
        for command in dict.fromkeys(row["command"] for row in of_it if row["command"]):
            say(escaped(f"  {command}"))


_SPARED = {
    Declaration.BLIND_APPENDS: (
        f"would have been rebased if the appends were declared blind, by the table (below) or by blind_appends in a "
        f"contract. {MERGES}."
    ),
    Declaration.SNAPSHOT_ISOLATION: (
        "would have been compared with the commits in between, and rebased if none touched the same files, under "
        "snapshot isolation, which the table declares (below), or with read_scope: owned in the contract."
    ),
    Declaration.READ_SCOPE: (
        "would have been compared with the commits in between if their reads were known: by read_scope: owned in the "
        'contract, or the writer\'s own declaration (docs/protocol.md, "Saying what was read").'
    ),
}


def _of(declaration: Declaration) -> dict[str, str | None]:
    return dict(properties_of(declaration))


def _commit(table: Identifier, metadata: Mapping[str, Any], changed: Mapping[str, str | None]) -> dict[str, Any]:
    """The commit that sets and removes properties of this very table, not of a re-created one with its name."""
    kept = {name: value for name, value in changed.items() if value is not None}
    removed = [name for name, value in changed.items() if value is None]
    return {
        "identifier": {"namespace": list(table.namespace), "name": table.name},
        "requirements": [{"type": "assert-table-uuid", "uuid": metadata["table-uuid"]}],
        "updates": [
            *([{"action": "set-properties", "updates": kept}] if kept else []),
            *([{"action": "remove-properties", "removals": removed}] if removed else []),
        ],
    }
