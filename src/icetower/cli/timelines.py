"""Draws replayed cases in the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from icetower_client_model.explain import Explanation
from icetower_client_model.operations import Flag
from icetower_client_model.picture import Figure
from icetower_client_model.timeline import Lane, Moment, ReaderView, Timeline

GOOD, BAD, AGAIN, FAINT = "green", "bold red", "yellow", "dim"
_CHECKS: Mapping[str, str] = {
    Flag.ADDED_FILES_MATCH_FILTER: "added files match",
    Flag.NO_CONFLICTING_DATA: "no new data",
    Flag.NO_CONFLICTING_DELETES: "no new deletes",
    Flag.DELETED_FILES: "deleted files too",
    Flag.FILES_EXIST: "files exist",
    Flag.APPEND_ONLY: "append only",
    "data-files-exist": "data files exist",
}
_ENDINGS = {"committed": ("●", GOOD), "refused": ("✗", BAD), "exhausted": ("✗", BAD)}


def draw(console: Console, title: str, source: str, story: tuple[str, ...], shown: Timeline) -> None:
    """Draw a timeline with a lane for each writer, each writer's outcome, and the table at the end.

    Args:
        source: the case's source; may be empty.
        story: the description, step by step; may be empty.
    """
    console.print(Text(title, "bold"))
    if source:
        console.print(Text(source, FAINT))
    console.print()
    for at, step in enumerate(story, 1):
        hanging(console, f"{at}.", Text(step))
    if story:
        console.print()
    console.print(_lanes(shown))
    for failure in shown.failures:
        console.print(Text(f"The table itself: {failure}", BAD))
    console.print()
    for lane in shown.lanes:
        _ending(console, lane)
    console.print()
    console.print(Text("In the end a reader finds", "bold"), _sight(shown.end))
    for row in shown.end.rows:
        console.print(Text(f"    {row}{_duplicate_note(row, shown.end)}"))


def _lanes(shown: Timeline) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, border_style=FAINT)
    for lane in shown.lanes:
        asks = "\n".join(_CHECKS.get(check, check) for check in lane.checks) or "asks for nothing"
        table.add_column(Text.assemble((lane.name, "bold"), "\n", lane.kind, "\n", (asks, FAINT)))
    table.add_column(Text("a reader finds", "bold"))
    for moment in shown.moments:
        cells = [_moment(moment) if moment.writer == lane.writer else Text() for lane in shown.lanes]
        if moment.writer is None:
            cells[0] = Text(f"table: {', '.join(moment.did)}", AGAIN)
        table.add_row(*cells, Text() if moment.sight is None else _sight(moment.sight))
    return table


def _moment(moment: Moment) -> Text:
    mark, style = _ENDINGS.get(moment.ended, ("○", FAINT))
    text = Text(f"{mark} ", style)
    for at, step in enumerate(moment.did):
        last = at == len(moment.did) - 1
        lost = step == "loses the swap"
        text.append(" → " if at else "")
        text.append(step, AGAIN if lost else style if last and moment.ended else "")
    return text


def _sight(sight: ReaderView) -> Text:
    text = Text(", ".join(sight.data) or "nothing")
    if sight.deletes:
        text.append(f" less {', '.join(sight.deletes)}", AGAIN)
    return text


def _duplicate_note(row: str, sight: ReaderView) -> str:
    """A note on a person who is in the table more than once."""
    who = row.partition(",")[0]
    times = sum(other.partition(",")[0] == who for other in sight.rows)
    return f"   ← {who} is there {times} times" if times > 1 else ""


def _ending(console: Console, lane: Lane) -> None:
    _, style = _ENDINGS.get(lane.verdict, ("", FAINT))
    tries = f" at attempt {lane.attempts}" if lane.attempts > 1 else ""
    by = f" by {lane.conflict.rule}" if lane.conflict is not None else ""
    console.print(Text.assemble((lane.name, "bold"), ": ", (f"{lane.verdict}{by}{tries}", style)))
    if lane.explanation is not None:
        explained(console, lane.explanation)


def explained(console: Console, explanation: Explanation) -> None:
    """Print a conflict's explanation, and Iceberg's own text."""
    parts = [("what", explanation.what), ("why", explanation.why), ("next", explanation.next)]
    for label, text in [*parts, ("Iceberg", explanation.iceberg)]:
        if text:
            hanging(console, f"  {label}", Text(text, FAINT if label == "Iceberg" else ""), width=12)


def hanging(console: Console, label: str, text: Text, *, width: int = 4) -> None:
    """Print a label, and text with a hanging indent to its right."""
    grid = Table.grid(padding=(0, 0))
    grid.add_column(width=width, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label, FAINT), text)
    console.print(grid)


def title_of(figure: Figure) -> str:
    """A figure's heading."""
    return f"Figure {figure.name}: {figure.title}" if figure.name.isdecimal() else f"{figure.name}: {figure.title}"
