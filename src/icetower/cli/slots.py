"""`icetower slots`: whose turn it is, over a tower's control API."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect, print_rows
from icetower.cli.terminal import say
from icetower.contracts.deliveries import moment_text


def slots(
    table: Annotated[str | None, typer.Option(help="Only of this table, with its namespace.")] = None,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """List the slots that go on or come next: whose turn it is, and who holds them until when.

    An agent sees those of its own calendars.

    \b
    Example:
      icetower slots --table shop.bids
    """
    with connect(uri) as tower:
        found = tower.slots(table=table)
    if as_json:
        say(json.dumps(found))
        return
    if not found:
        say("no contract has slots that come round")
        return
    rows = [_row(each, held) for each in found for held in each["held"] or [None]]
    print_rows(rows, ("tables", "slot", "contract", "held by", "until"), as_json)


def _row(each: dict[str, Any], held: dict[str, Any] | None) -> dict[str, Any]:
    of = "" if each["term"] == "now" else f" of {each['term']}"
    return {
        "tables": each["tables"] if held is None else held["table"],
        "slot": f"{moment_text(each['starts_ms'])} to {moment_text(each['ends_ms'])}{of}",
        "contract": each["contract"],
        "held by": "" if held is None else held["principal"],
        "until": "" if held is None else moment_text(held["expires_ms"]),
    }
