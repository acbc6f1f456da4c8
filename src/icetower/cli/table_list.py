"""`icetower tables list`: the tables of the catalog, and what is written to them."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from icetower.agent import Tower
from icetower.ambient import SystemAmbient
from icetower.cli.agents import DAY, READ_MAX, Since, recent_figures
from icetower.cli.contract_tables import Routes
from icetower.cli.lake import Lake
from icetower.cli.progress import waiting
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect, token_for
from icetower.cli.screens import percent, say_section
from icetower.cli.terminal import say
from icetower.cli.times import duration_s
from icetower.contracts.regions import Pattern
from icetower.errors import IcetowerError

TABLES_MAX = 10_000


def list_tables(
    namespace: Annotated[str | None, typer.Argument(help="Only tables in this namespace.")] = None,
    since: Since = DAY,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """List tables, with what was written to them lately and who is stopped on them. The busiest come first.

    An agent sees the tables that its contract names; a viewer those that the log names.

    \b
    Example:
      icetower tables list
      icetower tables list shop --since 2h
    """
    since_ms = SystemAmbient().now_ms() - round(duration_s(since, "--since") * 1000)
    with waiting("reading the catalog"), connect(uri) as tower:
        rows = _tables(tower, uri, namespace, since_ms)
    if as_json:
        say(json.dumps(rows))
        return
    shown = [
        (
            row["name"],
            row["attempts"],
            row["landed"],
            row["refused"],
            row["conflicts"],
            percent(row["first_try_success_rate"]),
            "" if row["latency_p99_ms"] is None else f"{row['latency_p99_ms']:,.0f}",
            ", ".join(row["stopped"]),
        )
        for row in rows
    ]
    columns = ("table", "attempts", "landed", "refused", "conflicts", "first try", "p99 ms", "stopped")
    say_section(f"tables, in the last {since}", shown, columns, "none")


def _tables(tower: Tower, uri: str, namespace: str | None, since_ms: int) -> list[dict[str, Any]]:
    figures = {each.name: each.to_json(1.0) for each in recent_figures(tower, "table", since_ms)}
    stopped: dict[str, list[str]] = {}
    for each in tower.escalations(state="open", limit=READ_MAX):
        stopped.setdefault(each["table"], []).append(each["principal"])
    names = [*figures, *sorted(_listed(uri, namespace) - figures.keys())]
    inside = f"{namespace}." if namespace else ""
    empty = dict.fromkeys(("attempts", "landed", "refused", "conflicts", "unknown"), 0)
    return [
        {"name": name, "first_try_success_rate": None, "latency_p99_ms": None}
        | empty
        | figures.get(name, {})
        | {"stopped": stopped.get(name, [])}
        for name in names
        if name.startswith(inside) and "." in name
    ]


def _listed(uri: str, namespace: str | None) -> set[str]:
    """The names of the catalog that the caller may see; a bounded number of them."""
    found: set[str] = set()
    try:
        with Routes(uri, token_for(uri)) as routes:
            for each in Lake(routes).matching(Pattern(tuple(namespace.split(".")) if namespace else (), "**")):
                found.add(str(each))
                if len(found) >= TABLES_MAX:
                    break
    except IcetowerError:  # such as a namespace that the caller may not list: the log names what it may see
        return found
    return found
