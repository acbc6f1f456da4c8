"""`icetower agents …`: who writes through the tower, and how it goes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from icetower.agent import Tower
from icetower.ambient import SystemAmbient
from icetower.cli.attempts import folded
from icetower.cli.completion import complete_agent
from icetower.cli.figures import Figures, by, windows
from icetower.cli.known import named, require_agent
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect
from icetower.cli.screens import ago, percent, say_section, why
from icetower.cli.terminal import say
from icetower.cli.times import duration_s, time_text
from icetower.counting import counted
from icetower.errors import Forbidden, NotFound
from icetower.texts import escaped

READ_MAX = 1_000
SHOWN_MAX = 10
DAY = "1d"

agents = typer.Typer(help="Agents: who writes through the tower, and how it goes.", no_args_is_help=True)

Since = Annotated[str, typer.Option(help="How far back it looks, such as 2h or 7d.")]
Agent = Annotated[
    str, typer.Argument(help="A principal, or a contract that binds some.", autocompletion=complete_agent)
]


@agents.command("list")
def list_agents(since: Since = DAY, uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """List principals, with what they did lately and where they are stopped. An agent sees itself.

    \b
    Example:
      icetower agents list --since 2h
    """
    now_ms = SystemAmbient().now_ms()
    with connect(uri) as tower:
        rows = _agents(tower, since_ms=now_ms - round(duration_s(since, "--since") * 1000))
    if as_json:
        say(json.dumps(rows))
        return
    shown = [
        (
            row["name"],
            row["contract"],
            _state(row),
            row["attempts"],
            row["landed"],
            row["not_landed"],
            "" if row["last_ms"] is None else ago(row["last_ms"], now_ms),
        )
        for row in rows
    ]
    columns = ("agent", "contract", "state", "attempts", "landed", "refused", "last")
    say_section(f"agents, in the last {since}", shown, columns, "none")


@agents.command("show")
def show_agent(name: Agent, since: Since = DAY, uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """Show an agent: its contract, what it did lately, why it was refused, and what waits for a person.

    \b
    Example:
      icetower agents show pricing-1
    """
    now_ms = SystemAmbient().now_ms()
    since_ms = now_ms - round(duration_s(since, "--since") * 1000)
    with connect(uri) as tower:
        who = named(tower, name)
        if who.doubt is not None or not who.principals:
            require_agent(name, who)
            raise NotFound(f"{name}: {who.doubt}", rule="principal.exists")
        found = [_one(tower, each, since_ms) for each in who.principals]
    if as_json:
        say(json.dumps(found))
        return
    for each in found:
        _show(each, now_ms, since)


def _agents(tower: Tower, since_ms: int) -> list[dict[str, Any]]:
    """A row for each principal that the caller may see."""
    try:
        records = tower.principals()
    except Forbidden:
        me = tower.me()
        records = [{"name": me["principal"], "contract": me["contract"], "revoked_ms": None}]
    figures = {each.name: each for each in recent_figures(tower, "principal", since_ms)}
    newest: dict[str, int] = {}
    for row in tower.commits(limit=READ_MAX, since_ms=since_ms):
        newest.setdefault(row["principal"], row["at_ms"])
    stopped: dict[str, list[str]] = {}
    for each in tower.escalations(state="open", limit=READ_MAX):
        stopped.setdefault(each["principal"], []).append(each["table"])
    return [
        {
            "name": record["name"],
            "contract": record["contract"],
            "revoked_ms": record["revoked_ms"],
            "stopped_on": stopped.get(str(record["name"]), []),
            "last_ms": newest.get(str(record["name"])),
            **_counted(figures.get(str(record["name"]))),
        }
        for record in records
    ]


def recent_figures(tower: Tower, key: str, since_ms: int, principal: str | None = None) -> list[Figures]:
    """The figures by agent or table; of a tower without metrics, those of its newest attempts."""
    now_ms = SystemAmbient().now_ms()
    try:
        return by(key, windows(tower, (now_ms - since_ms) / 1000, now_ms, principal).rows)
    except NotFound:
        attempts = tower.commits(limit=READ_MAX, since_ms=since_ms, principal=principal)
        return by(key, [_as_metrics(row) for row in attempts])


def _as_metrics(attempt: Mapping[str, Any]) -> dict[str, Any]:
    outcome = attempt["outcome"]
    ended = {"refused": "refused", "conflict": "conflicts", "unknown": "unknown"}.get(outcome, "landed")
    return {"principal": attempt["principal"], "table": attempt["table"], "attempts": 1, ended: 1}


def _counted(figures: Figures | None) -> dict[str, Any]:
    counts = Figures("").counts if figures is None else figures.counts
    return {
        "attempts": counts["attempts"],
        "landed": counts["landed"],
        "not_landed": counts["refused"] + counts["conflicts"] + counts["unknown"],
        "first_try_success_rate": None if figures is None else figures.first_try_rate,
    }


def _state(row: Mapping[str, Any]) -> str:
    if row["revoked_ms"] is not None:
        return "revoked"
    return f"stopped on {', '.join(row['stopped_on'])}" if row["stopped_on"] else "active"


def _one(tower: Tower, name: str, since_ms: int) -> dict[str, Any]:
    me = tower.me()
    contract = me["contract"] if me["principal"] == name else _bound(tower, name)
    text: str | None = None
    with suppress(NotFound):  # a built-in one, or a revoked one
        text = tower.contract(contract)["text"] if contract else None
    return {
        "name": name,
        "contract": contract,
        "text": text,
        "tables": [each.to_json(1.0) for each in recent_figures(tower, "table", since_ms, principal=name)],
        "refused": folded(tower.commits(limit=READ_MAX, since_ms=since_ms, refused=True, principal=name)),
        "escalations": [each for each in tower.escalations(state="open", limit=READ_MAX) if each["principal"] == name],
        "requests": [each for each in tower.requests(state="open", limit=READ_MAX) if each["principal"] == name],
        "alerts": _alerts(tower, name),
    }


def _alerts(tower: Tower, name: str) -> list[dict[str, Any]]:
    """Those about an agent that are not over; none of a tower without them."""
    try:
        found = tower.alerts()["alerts"]
    except NotFound:
        return []
    return [each for each in found if each["about"].get("principal") == name and each["state"] != "resolved"]


def _bound(tower: Tower, name: str) -> str | None:
    return next((str(each["contract"]) for each in tower.principals() if each["name"] == name), None)


def _show(found: Mapping[str, Any], now_ms: int, since: str) -> None:
    say(escaped(f"{found['name']}   contract {found['contract']}"))
    for each in found["escalations"]:
        close = f"`icetower escalations close {each['id']} --note …`"
        failed = counted(len(each["failures"]), "failure")
        say(escaped(f"STOPPED on {each['table']} since {time_text(each['opened_ms'])}, after {failed}; {close}"))
    for each in found["alerts"]:
        said = "" if each["state"] == "silenced" else f": {each['message']}"
        say(escaped(f"alert {each['rule']} is {each['state']} since {time_text(each['since_ms'])}{said}"))
    say_section(f"tables, in the last {since}", _tables(found["tables"]), _TABLE_COLUMNS, "no attempt")
    refused = [(row["table"], row["times"], ago(row["at_ms"], now_ms), row["rule"]) for row in found["refused"]]
    say_section("refused", refused[:SHOWN_MAX], ("table", "times", "last", "rule"), "nothing")
    for row in found["refused"][:3]:
        say(escaped(f"  {row['request_id']}: {why(row)}"))
    asked = [
        (row["table"], ", ".join(row["partitions"]) or "all", row["reason"], row["id"]) for row in found["requests"]
    ]
    say_section("requests", asked, ("table", "partitions", "reason", "id"))
    if found["text"]:
        say("")
        say("contract in force")
        for line in str(found["text"]).splitlines():
            say(escaped(f"  {line}"))


_TABLE_COLUMNS = ("table", "attempts", "landed", "refused", "conflicts", "first try")


def _tables(rows: Sequence[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    return [
        (
            row["name"],
            row["attempts"],
            row["landed"],
            row["refused"],
            row["conflicts"],
            percent(row["first_try_success_rate"]),
        )
        for row in rows
    ]
