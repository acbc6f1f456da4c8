"""`icetower audit`: violations that the history of a table proves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from icetower.audit.attribution import attributed
from icetower.audit.auditor import Options, audit
from icetower.audit.checkpoint import Checkpoint
from icetower.audit.findings import MEANINGS, Report, Verdict
from icetower.audit.page import drawn, page
from icetower.cli.printing import SafeConsole
from icetower.cli.registry import Json
from icetower.cli.snapshots import Place
from icetower.cli.tables import DEFAULT_CATALOG, CatalogName, Copied, PlacedFiles, Properties, StorageOptions, place_of
from icetower.cli.terminal import say, warn, writing
from icetower.cli.timelines import AGAIN, BAD, FAINT, GOOD, hanging
from icetower.counting import counted
from icetower.errors import UsageError
from icetower.iceberg.metadata import MAIN, ancestors
from icetower.iceberg.validation import Level
from icetower.texts import escaped

FOUND = 3
"""Exit status if a violation was found."""

_STYLES = {Verdict.DEFINITE: BAD, Verdict.POSSIBLE: AGAIN, Verdict.UNDETERMINABLE: FAINT}


class FailOn(StrEnum):
    """What makes the exit status 3."""

    DEFINITE = "definite"
    POSSIBLE = "possible"
    NEVER = "never"


def audit_table(
    table: Annotated[str, typer.Argument(help="namespace.table, or a metadata file: its path or URI.")],
    catalog: CatalogName = DEFAULT_CATALOG,
    properties: Properties = None,
    branch: Annotated[str, typer.Option(help="The branch whose history is read.")] = MAIN,
    level: Annotated[
        Level, typer.Option(help="What it is held against: `snapshot` lets write skew pass.")
    ] = Level.SERIALIZABLE,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Continue where the last audit with this file ended, and record this one's end.")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Also open everything that was in the table before the first snapshot.")
    ] = False,
    tower: Annotated[
        bool | None,
        typer.Option(
            "--tower/--no-tower",
            help="Require every commit to come through a tower, or none; by default those after the first that did.",
        ),
    ] = None,
    content: Annotated[
        bool, typer.Option("--content", help="Open delete files, and data files with row ids, for proof.")
    ] = False,
    key: Annotated[
        list[str] | None,
        typer.Option(
            help="With --content: a column by which rows are meant to be unique, by default the table's identifier "
            "fields; may be given several times."
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with a timeline of the commits.")] = None,
    fail_on: Annotated[FailOn, typer.Option(help="What makes the exit status 3.")] = FailOn.DEFINITE,
    storage: StorageOptions = None,
    copied: Copied = False,
    as_json: Json = False,
) -> None:
    """Audit the history of a table.

    It finds lost updates, rows that came back, files that are in the table twice, dropped deletes, and commits that
    no order explains.

    It reads any Iceberg table, of any catalog, and writes nothing to it. Exit status: 0 no violation; 3 a violation
    (--fail-on); 1 an error; 2 wrong usage.

    \b
    Example:
      icetower audit shop.sales --catalog prod --html page.html
      icetower audit s3://bucket/t/metadata/v7.metadata.json --json
    """
    if level is Level.NONE:
        raise UsageError("--level must be snapshot or serializable: without a level there is nothing to check")
    before = None if checkpoint is None else Checkpoint.kept(checkpoint)
    report, chain = asyncio.run(
        _audit(
            table,
            catalog,
            properties,
            storage,
            copied,
            Options(branch, level, content=content, tower=tower, whole=whole, key=tuple(key or ())),
            before,
        )
    )
    if html is not None:
        with writing(html):
            html.write_text(page(report, chain), encoding="utf-8")
    if as_json:
        say(json.dumps(report.to_json()))
    else:
        _show(report, before if report.checked.resumed else None)
    after = Checkpoint.after(report, before)
    if checkpoint is not None and after is not None:
        # At the end: findings are reported twice rather than never.
        with writing(checkpoint):
            after.keep(checkpoint)
    counted = {FailOn.DEFINITE: (Verdict.DEFINITE,), FailOn.POSSIBLE: (Verdict.DEFINITE, Verdict.POSSIBLE)}
    if any(each.verdict in counted.get(fail_on, ()) for each in report.violations):
        raise typer.Exit(FOUND)


async def _audit(
    table: str,
    catalog: str,
    properties: list[str] | None,
    storage: list[str] | None,
    copied: bool,
    options: Options,
    before: Checkpoint | None,
) -> tuple[Report, list[Mapping[str, Any]]]:
    """The findings, and the branch's snapshots with their writers, oldest first."""
    place = await place_of(table, catalog, properties, storage, copied=copied)
    files = PlacedFiles(place)
    try:
        after = None if before is None else _resumable(place, options.branch, before)
        report = await audit(place.head, files, replace(options, after=after))
        head = report.checked.head
        chain = [] if head is None else [*ancestors(place.head.metadata, head)][::-1]
        return report, await attributed(files, chain, drawn(report, chain))
    finally:
        await files.close()


def _resumable(place: Place, branch: str, before: Checkpoint) -> int | None:
    """The snapshot to continue from; None if that is no longer possible."""
    after = before.resume(place.head, branch)
    if after is None:
        warn(before.lost)
    return after


# ── For people ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _show(report: Report, before: Checkpoint | None) -> None:
    console, checked = SafeConsole(), report.checked
    for each in report.violations:
        style = _STYLES[each.verdict]
        console.print(Text.assemble((each.rule.value, style), (f"  {each.verdict}: {MEANINGS[each.rule]}", FAINT)))
        for at, step in enumerate(each.witness, 1):
            hanging(console, f"  {at}.", Text(escaped(step)), width=6)
        for path in each.files:
            console.print(Text(f"      {escaped(path)}", FAINT), soft_wrap=True)  # a path is copied whole
        console.print()
    for note in checked.undeterminable:
        hanging(console, "?", Text(escaped(note), FAINT), width=6)
    counts = _counts(report)
    earlier = "" if before is None else f" ({before.snapshots} before, with {counted(before.violations, 'violation')})"
    looked = f"{counted(checked.snapshots, 'snapshot')} of {checked.branch} checked{earlier}"
    console.print(Text.assemble(looked, ": ", (counts or "nothing is wrong", BAD if counts else GOOD)))


def _counts(report: Report) -> str:
    found: dict[Any, int] = {}
    for each in report.violations:
        found[each.verdict] = found.get(each.verdict, 0) + 1
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in Verdict if verdict in found)
