"""`icetower publish`: a branch onto another one; `icetower report-check`: what a check has found of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

from icetower.agent import PublishedBranch, new_key
from icetower.agent.publishing import FORWARDED, NOTHING, REPLAYED
from icetower.cli.completion import complete_table
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect
from icetower.cli.terminal import FOUND, say, warn
from icetower.counting import counted
from icetower.errors import PublishConflict, UsageError
from icetower.texts import escaped

Table = Annotated[str, typer.Argument(help="namespace.table", autocompletion=complete_table)]


def publish(
    table: Table,
    branch: Annotated[str, typer.Argument(help="The branch that is published.")],
    to: Annotated[str, typer.Option(help="The branch that gets its snapshots.")] = "main",
    keep: Annotated[
        Literal["each", "squash"],
        typer.Option(help="Where they cannot keep their ids: each snapshot by itself, or all as one."),
    ] = "each",
    key: Annotated[str | None, typer.Option(help="The idempotency key; by default a new one.")] = None,
    isolation: Annotated[
        str | None, typer.Option(help="What the branch's writes are owed: snapshot or serializable.")
    ] = None,
    read: Annotated[str | None, typer.Option(help="What they have read: a filter, as Iceberg's JSON.")] = None,
    blind: Annotated[
        bool, typer.Option("--blind", help="Snapshots that only add rows depend on nothing that was read.")
    ] = False,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Though checks that its authors' contracts name have not passed.")
    ] = False,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Publish a branch: put all that it has on another branch, in one commit.

    Where nothing came to the other branch since the two parted, it is set forward. Else the branch's snapshots are
    checked against what came, and come with new ids. The exit status is 3 if checks have to pass first, and 1 if the
    branch conflicts, or if you are held to no checks and those of the branch's authors have not passed; nothing was
    published then.

    \b
    Example:
      icetower publish shop.sales agent-7
      icetower publish shop.sales agent-7 --keep squash --isolation snapshot
    """
    key = key or new_key()
    with connect(uri) as tower:
        try:
            done = tower.publish(
                table,
                branch,
                key=key,
                to=to,
                keep=keep,
                isolation=isolation,
                read=_filter(read),
                blind=blind,
                unchecked=unchecked,
            )
        except PublishConflict as error:
            for each in error.conflicts:
                warn(escaped(f"snapshot {each.source}: {each.rule}: {each.message}"))
            raise
    if as_json:
        say(json.dumps(_to_json(done, key)))
    else:
        say(_in_words(done, branch, to))
        for at, source in done.snapshots:
            say(f"  {at}" + ("" if at == source else f" (on {escaped(branch)}: {source})"))
        for verdict in done.checks:
            waits = f"has not reported (reports of {' and '.join(done.checked_by)} count)"
            found = {None: waits, True: "has passed", False: "has failed"}[verdict.passed]
            say(escaped(f"  check {verdict.check} {found}"))
        missing = [verdict.check for verdict in done.checks if verdict.passed is None]
        if done.waits_on is not None and missing:
            said = f"icetower report-check {table} {done.waits_on[1]} {missing[0]} --passed (or --failed)"
            say(escaped(f"when it was checked: {said}; then publish again"))
    if done.unchecked:
        names = ", ".join(done.unchecked)
        warn(escaped(f"published without the checks that the contracts of {branch}'s authors name: {names}"))
    if not done.done:
        raise typer.Exit(FOUND)


def report_check(
    table: Table,
    snapshot: Annotated[int, typer.Argument(min=0, help="The snapshot that was checked.")],
    check: Annotated[str, typer.Argument(help="The check, as the contract names it.")],
    passed: Annotated[bool, typer.Option("--passed/--failed", help="What it has found.")],
    details: Annotated[str, typer.Option(help="For people.")] = "",
    manifest_list: Annotated[
        str | None, typer.Option(help="Of the snapshot that was read: refused if the table has another under its id.")
    ] = None,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Report that a check has passed, or failed, for a snapshot that is to be published.

    \b
    Example:
      icetower report-check shop.sales 3814472253249775124 row-counts --passed --details "1000 rows"
    """
    with connect(uri) as tower:
        tower.report_check(table, snapshot, check, passed=passed, details=details, manifest_list=manifest_list)
    if as_json:
        say(json.dumps({"table": table, "snapshot": snapshot, "check": check, "passed": passed}))
    else:
        say(escaped(f"check {check} has {'passed' if passed else 'failed'} for snapshot {snapshot}"))


def _filter(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--read is no JSON ({error}); write a filter such as {_EXAMPLE}") from error
    if not isinstance(found, dict):
        raise UsageError(f"--read is no filter; write one such as {_EXAMPLE}")
    return found


_EXAMPLE = '\'{"type": "eq", "term": "region", "value": "eu"}\''


def _in_words(done: PublishedBranch, branch: str, to: str) -> str:
    if done.waits_on is not None:
        return escaped(
            f"nothing was published: snapshot {done.waits_on[1]} on {done.waits_on[0]} is to be checked first"
        )
    if done.outcome == NOTHING:
        return escaped(f"{to} has all that {branch} has")
    if done.outcome == REPLAYED:
        return escaped(f"{branch} was published to {to} under this key before")
    how = "set forward to" if done.outcome == FORWARDED else "given"
    return escaped(f"{to} was {how} {counted(len(done.snapshots), 'snapshot')} of {branch}")


def _to_json(done: PublishedBranch, key: str) -> dict[str, Any]:
    return {
        "outcome": done.outcome,
        "snapshot": done.snapshot,
        "snapshots": [{"snapshot": at, "source": source} for at, source in done.snapshots],
        "check": None if done.waits_on is None else {"branch": done.waits_on[0], "snapshot": done.waits_on[1]},
        "checks": [asdict(verdict) for verdict in done.checks],
        "checked_by": list(done.checked_by),
        "unchecked": list(done.unchecked),
        "key": key,
    }
