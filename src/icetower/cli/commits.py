"""The log of attempts (`icetower commits`, `icetower forget`), and commits that bypassed the tower (`bypasses`)."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from icetower.ambient import SystemAmbient
from icetower.cli.known import named, require_agent, require_table
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect, print_rows
from icetower.cli.terminal import say
from icetower.cli.times import since_ms
from icetower.texts import escaped

LIMIT_MAX = 1_000_000
COLUMNS = ("at_ms", "principal", "table", "operation", "outcome", "rule", "partitions", "snapshots", "ms", "request_id")
BYPASS_COLUMNS = ("noticed_ms", "committed_ms", "table", "snapshot-id", "operation", "written_by", "partitions")

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=LIMIT_MAX, help="The number of newest rows to show.")]


def commits(
    refused: Annotated[
        bool, typer.Option("--refused", help="Only attempts that were refused, in conflict, or of unknown outcome.")
    ] = False,
    agent: Annotated[
        str | None, typer.Option(help="Only attempts of this principal, or of all principals of this contract.")
    ] = None,
    table: Annotated[str | None, typer.Option(help="Only attempts on this table, namespace.table.")] = None,
    since: Annotated[
        str | None, typer.Option(help="The earliest time: 2026-11-21T08:00Z, or how long ago: 90m, 2h, 1d.")
    ] = None,
    request: Annotated[
        str | None, typer.Option(help="The request id in an error or a log line, or its beginning.")
    ] = None,
    limit: Limit = 50,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Show the newest attempts to commit, and refused reads and changes of tables.

    Administrators see all attempts, agents their own. With --request it also shows the answer that the client got.

    \b
    Example:
      icetower commits --refused --table shop.sales --since 2h
      icetower commits --request 8f3a
    """
    at_ms = None if since is None else since_ms(since, SystemAmbient().now_ms())
    with connect(uri) as tower:
        who = None if agent is None else named(tower, agent)
        if agent is not None and who is not None and not who.principals:
            require_agent(agent, who)
        rows = [
            row
            for each in ((None,) if who is None else who.principals)
            for row in tower.commits(
                limit=limit, table=table, principal=each, refused=refused, since_ms=at_ms, request_id=request
            )
        ]
        rows = sorted(rows, key=lambda row: row["at_ms"], reverse=True)[:limit]
        if not rows and agent is not None and who is not None:
            require_agent(agent, who)
        if not rows and table is not None:
            require_table(tower, uri, table)
    if as_json:
        say(json.dumps(rows))
        return
    print_rows([row | {"ms": round(row["latency_ms"])} for row in rows], COLUMNS, as_json=False)
    if request is not None:
        for row in rows:
            if row["message"]:
                say(escaped(f"{row['request_id']}: {row['message']}"))


def forget(
    text: Annotated[str, typer.Argument(help="What is to be removed, such as a person's id.")],
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Remove a text from the log of attempts: the partitions and messages that contain it. For administrators.

    The attempts stay. Run it on every tower that has a log of its own; docs/erasure.md has the other places where the
    rows of a person are.

    \b
    Example:
      icetower forget p-4711
    """
    with connect(uri) as tower:
        number = tower.forget(text)
    say(json.dumps({"attempts": number}) if as_json else f"removed from {number} attempts")


def bypasses(limit: Limit = 50, uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """Show commits to tables that bypassed the tower since it was started. For administrators.

    `icetower audit` finds them in a table's history at any time.

    \b
    Example:
      icetower bypasses --json
    """
    with connect(uri) as tower:
        rows = tower.bypasses(limit=limit)
    if as_json:
        say(json.dumps(rows))
        return
    print_rows([row | {"written_by": _written_by(row)} for row in rows], BYPASS_COLUMNS, as_json=False)


def _written_by(row: dict[str, Any]) -> list[str]:
    return [f"{name} {value}" for name, value in row["origin"].items()] or ["not known"]
