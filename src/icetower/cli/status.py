"""`icetower status`: how a tower is, and what waits for a person, on one screen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer

from icetower.agent import Tower
from icetower.ambient import SystemAmbient
from icetower.cli.alerts import about
from icetower.cli.attempts import folded
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect
from icetower.cli.screens import ago, say_section, size_text, why
from icetower.cli.terminal import FAILED, say
from icetower.cli.times import duration_s, time_text
from icetower.counting import counted, number_of
from icetower.errors import Forbidden, NotFound
from icetower.texts import escaped

LATELY = "1h"
READ_MAX = 1_000
SHOWN_MAX = 8
LOUD = ("firing", "pending")


def status(
    since: str = typer.Option(LATELY, help="How far back it looks for refusals and bypasses, such as 15m or 2h."),
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Show whether the tower is ready, who is stopped or refused and why, and what waits for a person.

    Administrators and viewers see all principals, agents themselves. Exit status: 0 ready; 1 not ready, or no answer.

    \b
    Example:
      icetower status
      icetower status --since 15m --json
    """
    now_ms = SystemAmbient().now_ms()
    since_ms = now_ms - round(duration_s(since, "--since") * 1000)
    with connect(uri) as tower:
        found = gathered(tower, now_ms, since_ms)
    if as_json:
        say(json.dumps({"uri": uri} | found))
    else:
        _show(uri, found, since)
    if not found["ready"]:
        raise typer.Exit(FAILED)


def gathered(tower: Tower, now_ms: int, since_ms: int) -> dict[str, Any]:
    """All that the screen shows. What the caller may not see, or the tower does not have, is None.

    Raises the `IcetowerError` of a tower that does not answer, or of a wrong token.
    """
    me = tower.me()
    state = tower.ready()
    details = _allowed(lambda: tower.readiness()["components"])
    attempts = tower.commits(limit=READ_MAX, since_ms=since_ms)
    refused = folded(tower.commits(limit=READ_MAX, since_ms=since_ms, refused=True))
    alerts = _allowed(lambda: tower.alerts()["alerts"])
    bypasses = _allowed(lambda: tower.bypasses(limit=READ_MAX))
    intents = _allowed(lambda: tower.intents(limit=READ_MAX)["intents"])
    return {
        "ready": state["status"] == "ready",
        "components": details or {name: {"state": each} for name, each in state["components"].items()},
        "principal": me["principal"],
        "now_ms": now_ms,
        "since_ms": since_ms,
        "attempts": len(attempts),
        "attempts_are_all": len(attempts) < READ_MAX,
        "outcomes": _counts(attempts),
        "escalations": tower.escalations(state="open", limit=READ_MAX),
        "requests": tower.requests(state="open", limit=READ_MAX),
        "refused": [row for row in refused if row["rule"] != "contract.escalated"],
        "bypasses": None if bypasses is None else [row for row in bypasses if row["noticed_ms"] >= since_ms],
        "waiting": None if intents is None else [row for row in intents if row["state"] == "queued"],
        "holding": None if intents is None else [row for row in intents if row["state"] == "held"],
        "alerts": None if alerts is None else [row for row in alerts if row["state"] in LOUD],
    }


def _allowed(ask: Callable[[], Any]) -> Any:
    """What the tower answers; None where the caller may not ask, or the tower has no such route."""
    try:
        return ask()
    except (Forbidden, NotFound):
        return None


def _counts(attempts: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in attempts:
        counts[row["outcome"]] = counts.get(row["outcome"], 0) + 1
    return dict(sorted(counts.items(), key=lambda each: -each[1]))


def _show(uri: str, found: Mapping[str, Any], since: str) -> None:
    now_ms = found["now_ms"]
    say(f"{escaped(uri)}   {'ready' if found['ready'] else 'NOT READY'}   as {escaped(found['principal'])}")
    say("   ".join(_component(name, each) for name, each in found["components"].items()))
    for name, each in found["components"].items():
        if each["state"] != "ok" and each.get("cause"):
            say(f"{name}: {escaped(str(each['cause']))}; `icetower doctor` on its machine looks closer")
    least = "" if found["attempts_are_all"] else "the newest "
    ended = ", ".join(f"{count:,} {outcome}" for outcome, count in found["outcomes"].items())
    say(f"last {since}: {least}{number_of(found['attempts'], 'attempt')}{f': {ended}' if ended else ''}")
    _show_alerts(found["alerts"], now_ms)
    stopped = [
        (row["principal"], row["table"], ago(row["opened_ms"], now_ms), _failures(row), _close(row["id"]))
        for row in found["escalations"]
    ]
    say_section("stopped", _few(stopped), ("agent", "table", "since", "after", "let it go on"), "nobody")
    refused = [
        (row["principal"], row["table"], row["times"], ago(row["at_ms"], now_ms), row["rule"], row["request_id"])
        for row in found["refused"]
    ]
    columns = ("agent", "table", "times", "last", "rule", "request")
    say_section(f"refused in the last {since}", _few(refused), columns, "nobody")
    for row in found["refused"][:3]:
        say(escaped(f"  {row['request_id']}: {why(row)}"))
    asked = [
        (
            row["principal"],
            row["table"],
            ", ".join(row["partitions"]) or "all",
            ago(row["opened_ms"], now_ms),
            row["id"],
        )
        for row in found["requests"]
    ]
    say_section("requests for partitions", _few(asked), ("agent", "table", "partitions", "since", "id"), "none is open")
    if found["waiting"] is not None:
        _show_waiting(found["waiting"], found["holding"], now_ms)
    _show_bypasses(found["bypasses"], now_ms, since)


def _show_waiting(waiting: Sequence[Mapping[str, Any]], holding: Sequence[Mapping[str, Any]], now_ms: int) -> None:
    """Who stands in line for rows, and whose leases on the same tables come before."""
    rows: list[tuple[str, str, str, str, str]] = []
    for intent in waiting:
        tables = {claim["table"] for claim in intent["tables"]}
        near = [each for each in holding if tables & {claim["table"] for claim in each["tables"]}]
        held = ", ".join(f"{each['principal']} until {time_text(each['expires_ms'])}" for each in near[:2])
        more = f" and {len(near) - 2} more" if len(near) > 2 else ""
        ends = f"icetower leases break {near[0]['intent']}" if near else ""
        since = ago(intent["declared_ms"], now_ms)
        rows.append((intent["principal"], ", ".join(sorted(tables)), since, f"{held}{more}", ends))
    columns = ("agent", "table", "since", "held there by", "break the first")
    say_section(f"waiting for rows ({number_of(len(holding), 'lease')} held)", _few(rows), columns, "nobody")


def _component(name: str, each: Mapping[str, Any]) -> str:
    free = f", {size_text(each['free_bytes'])} free" if "free_bytes" in each else ""
    return f"{name} {each['state']}{free}"


def _show_alerts(alerts: Sequence[Mapping[str, Any]] | None, now_ms: int) -> None:
    if alerts is None:
        return
    rows = [(row["state"], row["rule"], about(row), ago(row["since_ms"], now_ms), row["message"]) for row in alerts]
    say_section("alerts", _few(rows), ("state", "rule", "about", "since", "message"), "none")


def _show_bypasses(bypasses: Sequence[Mapping[str, Any]] | None, now_ms: int, since: str) -> None:
    if bypasses is None:
        return
    rows = [(row["table"], row["operation"], ago(row["noticed_ms"], now_ms)) for row in bypasses]
    say_section(
        f"commits that bypassed the tower in the last {since}", _few(rows), ("table", "operation", "noticed"), "none"
    )


def _failures(escalation: Mapping[str, Any]) -> str:
    rules = sorted({failure["rule"] for failure in escalation["failures"]})
    return f"{counted(len(escalation['failures']), 'failure')}: {', '.join(rules)}"


def _close(id_: str) -> str:
    return f"icetower escalations close {id_} --note …"


def _few(rows: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """The first rows, and how many more there are."""
    more = len(rows) - SHOWN_MAX
    if more <= 0:
        return list(rows)
    return [*rows[:SHOWN_MAX], (f"and {more:,} more", *[""] * (len(rows[0]) - 1))]
