"""`icetower contracts shadow-report`: what a contract in shadow mode would have refused, and the retries it avoids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect, print_rows
from icetower.cli.terminal import say
from icetower.cli.times import time_text
from icetower.counting import counted

PARTITIONS_SHOWN = 3
COLUMNS = ("principal", "about", "operation", "rule", "count", "first_ms", "last_ms", "partitions")


def shadow_report(
    name: Annotated[str | None, typer.Argument(help="A contract in any mode; by default all in shadow mode.")] = None,
    earlier: Annotated[
        bool, typer.Option("--all", help="Also show what earlier versions of the contract would have refused.")
    ] = False,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Report what contracts in shadow mode would refuse.

    It shows principals, counts and times; and the retries that rebasing has saved the agents, or would save with one
    more clause.

    \b
    Example:
      icetower contracts shadow-report pricing_agent
    """
    with connect(uri) as tower:
        reports = tower.shadow_report(name)
    if as_json:
        say(json.dumps(reports))
        return
    if not reports:
        say("no contract is in shadow mode")
    for position, report in enumerate(reports):
        if position:
            say("")
        _say(report, earlier=earlier)


def _say(report: Mapping[str, Any], *, earlier: bool) -> None:
    refusals: list[dict[str, Any]] = report["refusals"]
    shown = [row for row in refusals if earlier or row["contract_version"] == report["version"]]
    who = ", ".join(each["principal"] for each in report["principals"]) or "nobody"
    since = time_text(report["since_ms"])
    say(f"{report['contract']}: version {report['version']}, {report['mode']} since {since}; binds {who}")
    if shown:
        print_rows([row | {"partitions": _examples(row["partitions"])} for row in shown], COLUMNS, as_json=False)
    elif report["mode"] == "shadow":
        attempts = sum(sum(each["outcomes"].values()) for each in report["principals"])
        said = f"of {counted(attempts, 'attempt')} nothing would have been refused"
        say(f"  {said if attempts else 'nothing was committed under it yet, so there is nothing to report'}")
    hidden = sum(row["count"] for row in refusals) - sum(row["count"] for row in shown)
    if hidden:
        say(f"  earlier versions would have refused {hidden} more (--all)")
    for each in report["principals"]:
        _say_spared(each)


def _examples(partitions: Sequence[str]) -> list[str]:
    more = len(partitions) - PARTITIONS_SHOWN
    return [*partitions[:PARTITIONS_SHOWN], *([f"{more} more"] if more > 0 else [])]


def _say_spared(each: Mapping[str, Any]) -> None:
    if each["retries_spared"]:
        took = " and ".join(
            f"{outcome} ones {latency['p50']:.0f} ms (p95 {latency['p95']:.0f})"
            for outcome, latency in each["latency_ms"].items()
        )
        say(f"  {each['principal']}: {counted(each['retries_spared'], 'commit')} rebased, each a retry spared; {took}")
    for back in each["retries_to_spare"]:
        say(
            f"  {each['principal']}: {back['count']} were sent back to retry ({back['rule']}); {back['clause']} would "
            f"let them be rebased, provided that {back['provided']}"
        )
