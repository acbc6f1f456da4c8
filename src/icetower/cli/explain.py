"""`icetower explain`: whether two changes may coexist, at which isolation level, and why not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from icetower.cli.printing import SafeConsole, show
from icetower.cli.registry import Json
from icetower.cli.snapshots import SnapshotComparison, compare_two, place_of_metadata, with_level
from icetower.cli.tables import Properties, pairs, place_of
from icetower.cli.terminal import say
from icetower.cli.timelines import AGAIN, BAD, FAINT, GOOD, draw, explained, hanging, title_of
from icetower.errors import UsageError
from icetower.iceberg.expressions import TRUE, text, to_json
from icetower.iceberg.validation import Level
from icetower_client_model.coexist import DEPENDS
from icetower_client_model.figures import FIGURES, LISTED
from icetower_client_model.interleavings import Listed
from icetower_client_model.timeline import Timeline, timeline

RULE_COLUMNS = 80
REFUSED = 3
"""Exit status if a commit is refused."""
NAME_WIDTH = 2 + max(len(name) for name in (*FIGURES, *LISTED)) + 2


def explain(
    snapshots: Annotated[
        list[int] | None, typer.Argument(metavar="[EARLIER LATER]", help="Two snapshot ids of a real table.")
    ] = None,
    figure: Annotated[str, typer.Option(help="Replay a figure: 7, undelete, ….")] = "",
    interleaving: Annotated[str, typer.Option(help="Replay a known interleaving: K2, K2-with, ….")] = "",
    case: Annotated[Path | None, typer.Option(help="Replay a case of your own (docs/conflicts.md).")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the figures and interleavings by name.")] = False,
    metadata: Annotated[str, typer.Option(help="A table's metadata file: a path or URI.")] = "",
    catalog: Annotated[
        str,
        typer.Option(
            help="With --table: an Iceberg REST catalog, such as a tower, by its URI; or one of PyIceberg's "
            "configuration, by its name."
        ),
    ] = "",
    properties: Properties = None,
    table: Annotated[str, typer.Option(help="The table in the catalog, namespace.table.")] = "",
    level: Annotated[
        Level | None, typer.Option(help="The level that decides the exit status; by default the table's own.")
    ] = None,
    where: Annotated[
        str,
        typer.Option("--filter", help="The later change's filter: Iceberg's JSON, or `partitions`: those it touches."),
    ] = "",
    copied: Annotated[
        bool, typer.Option("--copied", help="The metadata folder is a copy: look for manifests in it, by name.")
    ] = False,
    storage: Annotated[
        list[str] | None, typer.Option(help="Storage property, key=value (s3.endpoint=…); may be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain whether two changes may coexist, and why not.

    Either replay a figure, a known interleaving or a case of your own on the model of Iceberg's rules; or name two
    snapshots of a real table: the later one's change is taken as prepared before the earlier one was committed.

    Exit status: 0 they may coexist, or a figure was shown; 3 a commit is refused; 1 an error; 2 wrong usage.

    \b
    Example:
      icetower explain --figure 7
      icetower explain --catalog http://127.0.0.1:8181 --table shop.sales EARLIER LATER
    """
    asked = [bool(each) for each in (figure, interleaving, case, list_all, metadata, catalog)]
    if sum(asked) != 1:
        raise UsageError(
            "name one thing to explain: --figure 7, --interleaving K2, --case FILE, --metadata FILE EARLIER LATER, or "
            "--catalog URI --table ns.t EARLIER LATER; --list shows all names"
        )
    if list_all:
        _list(as_json)
    elif figure:
        _figure(figure, as_json)
    elif interleaving:
        _interleavings(interleaving, as_json)
    elif case is not None:
        _case(case, as_json)
    else:
        found = asyncio.run(_two(snapshots or [], metadata, catalog, table, where, properties, storage, copied=copied))
        _show(with_level(found, level), as_json)


# ── Figures, interleavings, cases ────────────────────────────────────────────────────────────────────────────────────


def _list(as_json: bool) -> None:
    rows = [("figure", item.name, item.title, item.rule) for item in FIGURES.values()]
    rows += [
        ("interleaving", item.name, item.title, item.rule)
        for item in LISTED.values()
        if not item.name.startswith("Fig") or item.name.removeprefix("Fig") not in FIGURES
    ]
    if as_json:
        say(json.dumps([dict(zip(("kind", "name", "title", "refused_by"), row, strict=True)) for row in rows]))
        return
    console = SafeConsole()
    for wanted in ("figure", "interleaving"):
        console.print(Text(f"icetower explain --{wanted} …", "bold"))
        for kind, name, title, rule in rows:
            if kind == wanted:
                shown = Text.assemble(title, (f"  {rule}" if rule else "", BAD))
                hanging(console, f"  {name}", shown, width=NAME_WIDTH)
        console.print()


def _figure(name: str, as_json: bool) -> None:
    figure = FIGURES.get(name) or FIGURES.get(name.lower().removeprefix("fig"))
    if figure is None:
        raise UsageError(f"there is no figure {name!r}; the figures are {', '.join(FIGURES)}")
    shown = timeline(figure.case, people=figure.people, figure=figure)
    if as_json:
        facts = {"name": figure.name, "title": figure.title, "source": figure.source, "story": figure.story}
        say(_dumped({**facts, "case": figure.case, **_as_json(shown)}))
    else:
        draw(SafeConsole(), title_of(figure), figure.source, figure.story, shown)


def _interleavings(name: str, as_json: bool) -> None:
    wanted = [item for item in LISTED.values() if name.lower() in (item.name.lower(), item.row.lower())]
    if not wanted:
        near = [item.name for item in LISTED.values() if name.lower() in item.name.lower()]
        raise UsageError(f"there is no interleaving {name!r}; {_suggested(near)}")
    shown = [(item, timeline(item.case)) for item in wanted]
    if as_json:
        say(_dumped([{"name": item.name, "title": item.title, "case": item.case, **_as_json(t)} for item, t in shown]))
        return
    console = SafeConsole()
    for at, (item, each) in enumerate(shown):
        if at:
            console.print(Text("─" * RULE_COLUMNS, FAINT))
        draw(console, f"{item.name}: {item.title}", _row(item), (), each)


def _row(item: Listed) -> str:
    return "" if item.row in (item.name, "fact") else f"a variant of {item.row}"


def _suggested(near: list[str]) -> str:
    return f"did you mean {', '.join(near[:6])}?" if near else "`icetower explain --list` shows all"


def _case(path: Path, as_json: bool) -> None:
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{path} is not a case: a case is a JSON object with `files` and `steps`")
    shown = timeline(document)
    if as_json:
        say(_dumped({"case": document, **_as_json(shown)}))
    else:
        draw(SafeConsole(), str(document.get("name") or path.name), "", (), shown)
    if any(lane.verdict in ("refused", "exhausted") for lane in shown.lanes):
        raise typer.Exit(REFUSED)


def _as_json(shown: Timeline) -> dict[str, Any]:
    return asdict(shown)


def _dumped(value: Any) -> str:
    return json.dumps(value, default=_plain)


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Iterable) else str(value)


# ── Two snapshots ────────────────────────────────────────────────────────────────────────────────────────────────────


async def _two(
    snapshots: list[int],
    metadata: str,
    catalog: str,
    table: str,
    where: str,
    properties: list[str] | None,
    storage: list[str] | None,
    *,
    copied: bool,
) -> SnapshotComparison:
    if len(snapshots) != 2:
        raise UsageError(f"name two snapshots, the earlier one first; {len(snapshots)} are given")
    if bool(catalog) != bool(table):
        raise UsageError("--catalog and --table belong together: --catalog http://127.0.0.1:8181 --table shop.sales")
    if catalog:
        place = await place_of(table, catalog, properties, storage, copied=copied)
    else:
        place = await place_of_metadata(metadata, pairs(storage or (), "--storage"), copied=copied)
    earlier, later = snapshots
    return await compare_two(place, earlier, later, where)


def _show(found: SnapshotComparison, as_json: bool) -> None:
    decided = next(verdict for verdict in found.verdicts_by_level if verdict.level is found.set_level)
    if as_json:
        say(
            _dumped(
                {
                    "earlier": found.earlier,
                    "later": found.later,
                    "prepared_on": found.comparison.start,
                    "held_against": found.between,
                    "command": found.guess.command,
                    "because": found.guess.because,
                    "filter": to_json(found.conflict_filter),
                    "level": found.set_level,
                    "coexist": decided.conflict is None,
                    "levels": [asdict(verdict) for verdict in found.verdicts_by_level],
                }
            )
        )
    else:
        _draw(SafeConsole(), found)
    if decided.conflict is not None:
        raise typer.Exit(REFUSED)


def _draw(console: Console, found: SnapshotComparison) -> None:
    on = "the empty table" if found.comparison.start is None else f"snapshot {found.comparison.start}"
    covered = "none is known, so every file counts (--filter says more)" if found.conflict_filter == TRUE else ""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style=FAINT)
    for label, fact in (
        ("earlier", found.earlier),
        ("later", found.later),
        ("taken as", f"{found.guess.command or 'rewriting manifests'}: {found.guess.because}"),
        ("prepared on", on),
        ("held against", "\n".join(found.between)),
        ("filter", covered or text(found.conflict_filter)),
    ):
        facts.add_row(label, Text(fact))
    console.print(facts)
    console.print()
    verdicts = Table("level", "verdict", "rule", "asked", box=None, header_style="bold")
    for verdict in found.verdicts_by_level:
        outcome = Text("may coexist", GOOD) if verdict.conflict is None else Text("conflict", BAD)
        if verdict.conflict is not None and verdict.conflict.rule == DEPENDS:
            outcome = Text("builds on it", AGAIN)
        mark = " ← asked" if verdict.level is found.set_level else ""
        rule = "" if verdict.conflict is None else verdict.conflict.rule
        verdicts.add_row(f"{verdict.level}{mark}", outcome, rule, ", ".join(verdict.asked) or "nothing")
    show(verdicts)
    shown = dict.fromkeys(verdict.explanation for verdict in found.verdicts_by_level if verdict.explanation is not None)
    for explanation in shown:
        console.print()
        console.print(Text(explanation.rule, BAD))
        explained(console, explanation)
