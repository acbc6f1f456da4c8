"""`icetower leases …`: who holds which rows, over a tower's control API."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from icetower.cli.completion import complete_agent
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect, print_rows
from icetower.cli.terminal import say
from icetower.counting import counted
from icetower.errors import UsageError

leases = typer.Typer(help="Leases: the rows that agents hold while they work on them.", no_args_is_help=True)

LISTED_MAX = 20_000


@leases.command("list")
def list_leases(
    table: Annotated[str | None, typer.Option(help="Only of this table, with its namespace.")] = None,
    principal: Annotated[
        str | None, typer.Option(help="Only of this principal.", autocompletion=complete_agent)
    ] = None,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """List who holds which rows from when until when, and who waits for whom since when.

    An agent sees its own.

    \b
    Example:
      icetower leases list --table shop.prices
    """
    with connect(uri) as tower:
        found = tower.intents(table=table, principal=principal, limit=LISTED_MAX)
    if as_json:
        say(json.dumps(found))
        return
    rows = [_row(each, claim) for each in found["intents"] for claim in each["tables"]]
    if not rows:
        say("nobody holds rows, and nobody waits for any")
        return
    columns = (
        *("intent", "state", "since_ms", "principal", "table", "rows", "operations", "exclusive", "fence"),
        *("expires_ms", "waits_for"),
    )
    print_rows(rows, columns, as_json)


@leases.command("break")
def break_lease(
    id_: Annotated[str, typer.Argument(metavar="ID", help="The intent's id from the list, or its beginning.")],
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """End a lease; its holder's commits are refused from now on.

    \b
    Example:
      icetower leases break 01a1fe03
    """
    with connect(uri) as tower:
        done = tower.release_intent(_full_id(id_, tower.intents(limit=LISTED_MAX)["intents"]))
    say(json.dumps(done) if as_json else f"intent {done['intent']} of {done['principal']} has ended ({done['ended']})")


def _row(intent: dict[str, Any], claim: dict[str, Any]) -> dict[str, Any]:
    said = claim.get("partitions", claim.get("filter"))
    return {
        **intent,
        "since_ms": intent["declared_ms"] if intent["granted_ms"] is None else intent["granted_ms"],
        "waits_for": [each["principal"] for each in intent["waits_for"]],
        "table": claim["table"],
        "rows": said if isinstance(said, str) else json.dumps(said),
        "operations": claim["operations"],
        "exclusive": claim["exclusive"],
    }


def _full_id(id_: str, intents: list[dict[str, Any]]) -> str:
    """The id with this beginning. Raises `UsageError` if there are several; the server refuses an unknown one."""
    found = sorted(str(each["intent"]) for each in intents if str(each["intent"]).startswith(id_))
    if len(found) > 1 and id_ not in found:
        raise UsageError(
            f"{id_!r} is the beginning of {counted(len(found), 'intent')}: {', '.join(found[:5])}; write more"
        )
    return found[0] if len(found) == 1 else id_
