"""`icetower escalations …` and `icetower requests …`: decisions that people make, over a tower's control API."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect, print_rows
from icetower.cli.terminal import say
from icetower.cli.times import time_text
from icetower.counting import counted
from icetower.errors import UsageError
from icetower.texts import escaped

escalations = typer.Typer(help="Escalations: agents that were stopped until a person looks.", no_args_is_help=True)
requests = typer.Typer(
    help="Requests: agents that ask for partitions, or whose overwrite a guard has refused.", no_args_is_help=True
)

Id = Annotated[str, typer.Argument(help="The id from the list, the mail or the refusal, or its beginning.")]
Closed = Annotated[bool, typer.Option("--all", help="Also show closed ones.")]
Note = Annotated[str, typer.Option("--note", help="The findings and the remedy.")]

LISTED_MAX = 1_000


@escalations.command("list")
def list_escalations(closed: Closed = False, uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """List the agents that are stopped, newest first.

    \b
    Example:
      icetower escalations list --all
    """
    with connect(uri) as tower:
        rows = tower.escalations(state=None if closed else "open")
    rows = (
        rows
        if as_json
        else [row | {"notified": [_delivery_text(delivery) for delivery in row["deliveries"]]} for row in rows]
    )
    columns = ("id", "state", "principal", "table", "opened_ms", "contact", "notified")
    _print_or_none(rows, columns, "no agent is stopped", closed=closed, as_json=as_json)


@escalations.command("show")
def show_escalation(id_: Id, uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """Show which agent is stopped on which table, since when and why.

    It also shows the people notified.

    \b
    Example:
      icetower escalations show 7f3a
    """
    with connect(uri) as tower:
        found = tower.escalation(_full_id(id_, tower.escalations))
    _show(found, as_json)


@escalations.command("close")
def close_escalation(id_: Id, note: Note, uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """Let a stopped agent continue, from its next attempt on.

    \b
    Example:
      icetower escalations close 7f3a --note 'fixed the filter'
    """
    with connect(uri) as tower:
        done = tower.close_escalation(_full_id(id_, tower.escalations), note)
    text = f"{done['principal']} may commit to {done['table']} again"
    say(json.dumps(done) if as_json else text)


def _print_or_none(
    rows: list[dict[str, Any]], columns: tuple[str, ...], none: str, *, closed: bool, as_json: bool
) -> None:
    """Print the rows, or in words that there are none."""
    if rows or as_json:
        print_rows(rows, columns, as_json)
    else:
        say(f"{none}, and none was" if closed else f"{none}; --all shows closed ones")


@requests.command("list")
def list_requests(closed: Closed = False, uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """List requests for partitions, and about overwrites that a guard has refused, newest first.

    An agent sees its own.

    \b
    Example:
      icetower requests list
    """
    with connect(uri) as tower:
        rows = tower.requests(state=None if closed else "open")
    columns = ("id", "state", "principal", "table", "partitions", "operations", "reason")
    _print_or_none(rows, columns, "no request is open", closed=closed, as_json=as_json)


@requests.command("show")
def show_request(id_: Id, uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """Show a request, its reason, and the decision.

    \b
    Example:
      icetower requests show 41c0
    """
    with connect(uri) as tower:
        found = tower.request(_full_id(id_, tower.requests))
    _show(found, as_json)


@requests.command("make")
def make_request(
    table: Annotated[str, typer.Argument(help="The table, with its namespace.")],
    operation: Annotated[list[str], typer.Option(help="Such as append; may be given several times.")],
    reason: Annotated[str, typer.Option(help="For the person who decides.")],
    partition: Annotated[
        list[str] | None, typer.Option(help="As the refusal names it; may be given several times. None: all.")
    ] = None,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Request partitions from the owner of your contract.

    \b
    Example:
      icetower requests make shop.sales --operation append --partition day=2017-01-02 --reason 'late rows'
    """
    with connect(uri) as tower:
        done = tower.request_partitions(table, partition or [], operations=operation, reason=reason)
    decides = f"{done['contact'] or 'any administrator'} decides"
    shown = f"`icetower requests show {done['id']}` says whether they were notified"
    say(json.dumps(done) if as_json else f"request {done['id']} is open; {decides}, and {shown}")


@requests.command("close")
def close_request(
    id_: Id,
    note: Note,
    granted: Annotated[
        bool, typer.Option("--granted", help="The contract was changed; the overwrite was meant.")
    ] = False,
    denied: Annotated[bool, typer.Option("--denied", help="It was not.")] = False,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Decide a request.

    Of one for partitions this does not change the contract: apply the new one first. An overwrite that a guard has
    refused may be sent again when it is granted, once, within 24 hours.

    \b
    Example:
      icetower requests close 41c0 --granted --note 'version 3'
    """
    if granted == denied:
        raise UsageError("write --granted or --denied, one of them")
    with connect(uri) as tower:
        done = tower.close_request(_full_id(id_, tower.requests), "granted" if granted else "denied", note)
    say(json.dumps(done) if as_json else answered(done))


def answered(request: dict[str, Any]) -> str:
    """What was granted or denied, as the person is to know it."""
    guard, table = request.get("guard"), request["table"]
    if guard is None:
        partitions = "; ".join(map(str, request["partitions"])) or "all partitions"
        about = f"{', '.join(request['operations'])} on {partitions} of {table}"
    else:
        rows = f"adds {guard['rows_added']:,} rows and removes {guard['rows_removed']:,}"
        about = f"an overwrite of {table}, branch {guard['ref']}, that {rows}"
    return f"request {request['id']} is {request['state']}: {escaped(request['principal'])}, {escaped(about)}"


def _full_id(id_: str, listing: Callable[..., list[dict[str, Any]]]) -> str:
    """The id with this beginning. Raises `UsageError` if there are several; the server refuses an unknown one."""
    found = sorted({str(row["id"]) for row in listing(limit=LISTED_MAX) if str(row["id"]).startswith(id_)})
    if len(found) > 1 and id_ not in found:
        raise UsageError(f"{id_!r} is the beginning of {counted(len(found), 'id')}: {', '.join(found[:5])}; write more")
    return found[0] if len(found) == 1 else id_


def _show(ticket: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say(json.dumps(ticket))
        return
    for name, value in ticket.items():
        if name == "failures":
            lines = [f"{time_text(failure['at_ms'])}  {failure['rule']}" for failure in value]
        elif name == "deliveries":
            lines = [_delivery_text(delivery) for delivery in value] or ["nobody was notified"]
        elif isinstance(value, list):
            lines = [str(item) for item in value]
        else:
            lines = [] if value is None else [time_text(value) if name.endswith("_ms") else str(value)]
        for position, line in enumerate(lines):
            say(escaped(f"{'' if position else name.removesuffix('_ms'):<15} {line}"))


def _delivery_text(delivery: dict[str, Any]) -> str:
    text = f"{delivery['way']} to {delivery['address']}: {delivery['state']}"
    if delivery["fault"] is not None:
        text += f" ({delivery['fault']}; {counted(delivery['attempts'], 'attempt')})"
    return text
