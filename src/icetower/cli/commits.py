"""The log of attempts (`icetower commits`, `icetower forget`), and commits that bypassed the tower (`bypasses`)."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from icetower.agent import Tower
from icetower.ambient import SystemAmbient
from icetower.cli.attempts import folded, followed
from icetower.cli.completion import complete_agent, complete_table
from icetower.cli.known import named, require_agent, require_table
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect, print_rows
from icetower.cli.terminal import say
from icetower.cli.times import duration_s, since_ms, time_text
from icetower.texts import escaped

LIMIT_MAX = 1_000_000
SEARCHED_MAX = 10_000
"""So many attempts are looked at where several become one row, or a rule is searched."""

COLUMNS = (
    "at_ms",
    "principal",
    "table",
    "operation",
    "outcome",
    "times",
    "rule",
    "partitions",
    "snapshots",
    "ms",
    "request_id",
)
BYPASS_COLUMNS = ("noticed_ms", "committed_ms", "table", "snapshot-id", "operation", "written_by", "partitions")

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=LIMIT_MAX, help="The number of newest rows to show.")]


def commits(
    refused: Annotated[
        bool, typer.Option("--refused", help="Only attempts that were refused, in conflict, or of unknown outcome.")
    ] = False,
    agent: Annotated[
        str | None,
        typer.Option(
            help="Only attempts of this principal, or of all principals of this contract.",
            autocompletion=complete_agent,
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(help="Only attempts on this table, namespace.table.", autocompletion=complete_table),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="The earliest time: 2026-11-21T08:00Z, or how long ago: 90m, 2h, 1d.")
    ] = None,
    request: Annotated[
        str | None, typer.Option(help="The request id in an error or a log line, or its beginning.")
    ] = None,
    outcome: Annotated[
        str | None,
        typer.Option(help="Only attempts that ended so: direct, rebased, appended, refused, conflict, unknown, …"),
    ] = None,
    rule: Annotated[
        str | None, typer.Option(help="Only attempts refused by this rule, or one that begins so, such as contract.")
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="A row for each attempt, also for refusals that were repeated.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with new attempts as they come, until Ctrl-C.")
    ] = False,
    every: Annotated[str, typer.Option(help="With --follow: how often it asks, such as 2s.")] = "2s",
    limit: Limit = 50,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Show the newest attempts to commit, and refused reads and changes of tables.

    Administrators and viewers see all attempts, agents their own. Equal refusals of one principal are one row, with the
    number of times and the newest of them; --each and --json show each of them. With --request it also shows the answer
    that the client got.

    \b
    Example:
      icetower commits --refused --table shop.sales --since 2h
      icetower commits --request 8f3a
      icetower commits --follow --agent pricing-1
    """
    now_ms = SystemAmbient().now_ms()
    at_ms = None if since is None else since_ms(since, now_ms)
    pause_s = duration_s(every, "--every")
    with connect(uri) as tower:
        who = None if agent is None else named(tower, agent)
        if agent is not None and who is not None and not who.principals:
            require_agent(agent, who)
        wanted = _Wanted(tower, None if who is None else who.principals, table, refused, request, outcome, rule)
        if follow:
            _follow(wanted, now_ms if at_ms is None else at_ms, pause_s, as_json=as_json)
            return
        folds = not (each or as_json)
        rows, shown = _searched(wanted, at_ms, limit, folds=folds)
        if not rows and agent is not None and who is not None:
            require_agent(agent, who)
        if not rows and table is not None:
            require_table(tower, uri, table)
    if as_json:
        say(json.dumps(rows[:limit]))
        return
    _print(shown, with_times=folds)
    if request is not None:
        for row in shown:
            if row["message"]:
                say(escaped(f"{row['request_id']}: {row['message']}"))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The attempts that are asked for. `principals`: None for all."""

    tower: Tower
    principals: Sequence[str] | None
    table: str | None
    refused: bool
    request: str | None
    outcome: str | None
    rule: str | None

    def since(self, at_ms: int | None, limit: int) -> list[dict[str, Any]]:
        """The newest, newest first."""
        rows = [
            row
            for each in ((None,) if self.principals is None else self.principals)
            for row in self.tower.commits(
                limit=limit,
                table=self.table,
                principal=each,
                refused=self.refused,
                since_ms=at_ms,
                request_id=self.request,
                outcome=self.outcome,
            )
        ]
        return sorted(rows, key=lambda row: row["at_ms"], reverse=True)[:limit]


def _searched(
    wanted: _Wanted, at_ms: int | None, limit: int, *, folds: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The attempts, and the rows to be shown: further attempts are read where folding or a rule leaves too few."""
    asked = limit
    while True:
        found = wanted.since(at_ms, asked)
        rows = found if wanted.rule is None else [row for row in found if (row["rule"] or "").startswith(wanted.rule)]
        shown = folded(rows) if folds else rows
        if len(shown) >= limit or len(found) < asked or asked >= SEARCHED_MAX:
            return rows[:limit], shown[:limit]
        asked = min(asked * 10, SEARCHED_MAX)


def _follow(wanted: _Wanted, since: int, pause_s: float, *, as_json: bool) -> None:
    """Print attempts as they come. Ctrl-C is how it ends, and no failure."""
    ended = threading.Event()
    with suppress(KeyboardInterrupt):
        asked = followed(lambda at_ms: wanted.since(at_ms, SEARCHED_MAX), since, lambda: not ended.wait(pause_s))
        for fresh in asked:
            for row in fresh:
                if wanted.rule is not None and not (row["rule"] or "").startswith(wanted.rule):
                    continue
                say(json.dumps(row) if as_json else escaped(_line(row)))


def _line(row: Mapping[str, Any]) -> str:
    """An attempt on one line."""
    parts = (
        time_text(row["at_ms"]),
        f"{row['outcome']:<8}",
        f"{row['principal']:<16}",
        f"{row['table']:<24}",
        f"{row['operation']:<9}",
        f"{round(row['latency_ms']):>6} ms",
        row["rule"] or "",
        ", ".join(row["partitions"]),
        row["request_id"] or "",
    )
    return "  ".join(parts).rstrip()


def _print(rows: Sequence[dict[str, Any]], *, with_times: bool) -> None:
    columns = (
        COLUMNS
        if with_times and any(row["times"] > 1 for row in rows)
        else tuple(name for name in COLUMNS if name != "times")
    )
    print_rows([row | {"ms": round(row["latency_ms"])} for row in rows], columns, as_json=False)


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
