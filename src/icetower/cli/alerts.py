"""`icetower alerts …`: what the tower's rules have found, and what a person has silenced."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from icetower.alerts.rules import value_text
from icetower.ambient import SystemAmbient
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect
from icetower.cli.screens import ago, say_section
from icetower.cli.terminal import say
from icetower.cli.times import duration_s, time_text
from icetower.errors import UsageError
from icetower.texts import escaped

alerts = typer.Typer(help="Alerts: what the tower's rules have found.", no_args_is_help=True)

Id = Annotated[str | None, typer.Argument(help="The id of an alert, from the list, or its beginning.")]
Rule = Annotated[str | None, typer.Option(help="All alerts of this rule, also those to come.")]
ORDER = ("firing", "pending", "silenced", "resolved")


@alerts.command("list")
def list_alerts(
    all_: Annotated[bool, typer.Option("--all", help="Also show resolved ones, and the rules.")] = False,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """List alerts, firing ones first, with what they are about and what to do.

    \b
    Example:
      icetower alerts list
      icetower alerts list --all
    """
    now_ms = SystemAmbient().now_ms()
    with connect(uri) as tower:
        found = tower.alerts()
    rows = [row for row in found["alerts"] if all_ or row["state"] != "resolved"]
    rows.sort(key=lambda row: (ORDER.index(row["state"]) if row["state"] in ORDER else len(ORDER), row["since_ms"]))
    if as_json:
        say(json.dumps({"alerts": rows, "rules": found["rules"]}))
        return
    metrics = {rule["name"]: str(rule["metric"]) for rule in found["rules"]}
    shown = [
        (
            row["state"],
            row["rule"],
            about(row),
            value_text(metrics.get(row["rule"], ""), row["value"]),
            ago(row["since_ms"], now_ms),
            row["id"],
        )
        for row in rows
    ]
    columns = ("state", "rule", "about", "value", "since", "id")
    say_section("alerts", shown, columns, "none" if all_ else "none; --all shows resolved ones, and the rules")
    for row in rows:
        if row["state"] in ("firing", "pending"):
            say(escaped(f"  {row['message']}{_hot(row)}. {row['advice']}"))
        elif row["state"] == "silenced":
            until = time_text(row["silenced_until_ms"]) if row["silenced_until_ms"] else "further notice"
            say(escaped(f"  {row['rule']}: silenced by {row['silenced_by']} until {until}"))
    if all_:
        say_section("rules", [_rule(row) for row in found["rules"]], ("rule", "metric", "fires", "clears", "over"))


@alerts.command("silence")
def silence(
    reason: Annotated[str, typer.Option(help="For whoever looks later.")],
    id_: Id = None,
    rule: Rule = None,
    for_: Annotated[str, typer.Option("--for", help="How long, such as 90m or 2h.")] = "1h",
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Silence an alert, or all of a rule, for a time: nobody is notified. For administrators.

    \b
    Example:
      icetower alerts silence --rule retry-rate --for 2h --reason 'backfill of 2016'
    """
    seconds = duration_s(for_, "--for")
    with connect(uri) as tower:
        which = _which(tower, id_, rule)
        done = tower.silence(id_=which.get("id"), rule=which.get("rule"), for_s=seconds, reason=reason)
    say(json.dumps(done) if as_json else f"{_named(which)} is silenced for {for_}")


@alerts.command("unsilence")
def unsilence(id_: Id = None, rule: Rule = None, uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """End a silence. For administrators.

    \b
    Example:
      icetower alerts unsilence --rule retry-rate
    """
    with connect(uri) as tower:
        which = _which(tower, id_, rule)
        tower.end_silence(id_=which.get("id"), rule=which.get("rule"))
    say(json.dumps(which) if as_json else f"{_named(which)} is not silenced any more")


def about(alert: Mapping[str, Any]) -> str:
    """Whom an alert is about, and which table."""
    return " on ".join(str(alert["about"][name]) for name in ("principal", "table") if alert["about"].get(name))


def _hot(alert: Mapping[str, Any]) -> str:
    return f" (hot: {', '.join(map(str, alert['partitions'][:3]))})" if alert["partitions"] else ""


def _rule(rule: Mapping[str, Any]) -> tuple[object, ...]:
    above, metric = rule.get("above") is not None, str(rule["metric"])
    fires = f"above {value_text(metric, rule['above'])}" if above else f"below {value_text(metric, rule['below'])}"
    clears = ""
    if rule.get("clears_at") is not None:
        clears = f"{'at most' if above else 'at least'} {value_text(metric, rule['clears_at'])}"
    return rule["name"], rule["metric"], fires, clears, f"{rule['window_s']:g} s"


def _which(tower: Any, id_: str | None, rule: str | None) -> dict[str, str]:
    """The alert, by the beginning of its id, or the rule. Raises `UsageError` unless it is one of them."""
    if (id_ is None) == (rule is None):
        raise UsageError("name the id of an alert, or a --rule; `icetower alerts list --all` shows both")
    if rule is not None:
        return {"rule": rule}
    full = sorted({str(row["id"]) for row in tower.alerts()["alerts"] if str(row["id"]).startswith(str(id_))})
    if len(full) > 1 and id_ not in full:
        raise UsageError(f"{id_!r} is the beginning of {len(full)} ids: {', '.join(full[:5])}; write more")
    return {"id": full[0] if len(full) == 1 else str(id_)}


def _named(which: Mapping[str, str]) -> str:
    return escaped(f"alert {which['id']}" if "id" in which else f"rule {which['rule']}")
