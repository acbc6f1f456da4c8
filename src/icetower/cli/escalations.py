"""`icetower escalations …` and `icetower requests …`: what waits for a person, over a running tower's control API."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect, print_rows
from icetower.cli.terminal import say
from icetower.cli.times import time_text
from icetower.errors import UsageError

escalations = typer.Typer(help="Escalations: agents that were stopped until a person looks.", no_args_is_help=True)
requests = typer.Typer(help="Requests: agents that ask for partitions.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="As the list, the mail or the refusal says it.")]
Closed = Annotated[bool, typer.Option("--all", help="Those that were closed, too.")]
Note = Annotated[str, typer.Option("--note", help="What was found, and what was done.")]


@escalations.command("list")
def list_escalations(closed: Closed = False, uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """Those that are open, newest first."""
    with connect(uri) as tower:
        rows = tower.escalations(state=None if closed else "open")
    rows = rows if as_json else [row | {"told": [_sent(delivery) for delivery in row["deliveries"]]} for row in rows]
    print_rows(rows, ("id", "state", "principal", "table", "opened_ms", "contact", "told"), as_json)


@escalations.command("show")
def show_escalation(id_: Id, uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """Who is stopped, at which table, since when and for what; and who was told."""
    with connect(uri) as tower:
        found = tower.escalation(id_)
    _show(found, as_json)


@escalations.command("close")
def close_escalation(id_: Id, note: Note, uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """Let the agent go on, from its next attempt on."""
    with connect(uri) as tower:
        done = tower.close_escalation(id_, note)
    said = f"{done['principal']} may commit to {done['table']} again"
    say(json.dumps(done) if as_json else said)


@requests.command("list")
def list_requests(closed: Closed = False, uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """Those that are open, newest first; an agent sees its own."""
    with connect(uri) as tower:
        rows = tower.requests(state=None if closed else "open")
    print_rows(rows, ("id", "state", "principal", "table", "partitions", "operations", "reason"), as_json)


@requests.command("show")
def show_request(id_: Id, uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """What is asked for and why, and what became of it."""
    with connect(uri) as tower:
        found = tower.request(id_)
    _show(found, as_json)


@requests.command("make")
def make_request(
    table: Annotated[str, typer.Argument(help="The table, with its namespace.")],
    operation: Annotated[list[str], typer.Option(help="Such as append; may be given several times.")],
    reason: Annotated[str, typer.Option(help="A person will read it.")],
    partition: Annotated[
        list[str] | None, typer.Option(help="As the refusal named it; may be given several times. None: all.")
    ] = None,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Ask the owner of one's contract for partitions."""
    with connect(uri) as tower:
        done = tower.request_partitions(table, partition or [], operations=operation, reason=reason)
    say(json.dumps(done) if as_json else f"request {done['id']} is open, for {done['contact'] or 'any administrator'}")


@requests.command("close")
def close_request(
    id_: Id,
    note: Note,
    granted: Annotated[bool, typer.Option("--granted", help="The contract was changed.")] = False,
    denied: Annotated[bool, typer.Option("--denied", help="It stays as it is.")] = False,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Answer an agent. This changes no contract: apply the new one first."""
    if granted == denied:
        raise UsageError("write --granted or --denied, one of them")
    with connect(uri) as tower:
        done = tower.close_request(id_, "granted" if granted else "denied", note)
    say(json.dumps(done) if as_json else f"request {id_} is {done['state']}")


def _show(matter: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say(json.dumps(matter))
        return
    for name, value in matter.items():
        if name == "failures":
            lines = [f"{time_text(failure['at_ms'])}  {failure['rule']}" for failure in value]
        elif name == "deliveries":
            lines = [_sent(delivery) for delivery in value] or ["nobody was told"]
        elif isinstance(value, list):
            lines = [str(item) for item in value]
        else:
            lines = [] if value is None else [time_text(value) if name.endswith("_ms") else str(value)]
        for position, line in enumerate(lines):
            say(f"{'' if position else name.removesuffix('_ms'):<15} {line}")


def _sent(delivery: dict[str, Any]) -> str:
    said = f"{delivery['way']} to {delivery['address']}: {delivery['state']}"
    if delivery["fault"] is not None:
        said += f" ({delivery['fault']}; {delivery['attempts']} attempts)"
    return said
