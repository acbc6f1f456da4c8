"""The parts of screens for people: a heading, and below it a table or a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from icetower.cli.printing import show
from icetower.cli.terminal import say
from icetower.texts import escaped, without_middle

MESSAGE_CHARACTERS_MAX = 1_000


def say_section(heading: str, rows: Sequence[Sequence[object]], columns: Sequence[str], none: str = "") -> None:
    """Print a heading and a table without a frame; for no rows the heading with `none`, or nothing."""
    if not rows:
        if none:
            say(f"{heading}: {none}")
        return
    say("")
    say(heading)
    show(plain_table(columns, rows))


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table without a frame; numbers stand on the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for position, name in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[position], int | float) for row in rows)
        table.add_column(name, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(Text(escaped(cell(each))) for each in row))  # as text: markup of others is not read
    return table


def cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def percent(part: float | None) -> str:
    """A fraction as a percentage; empty where there is none."""
    return "" if part is None else f"{part * 100:.1f} %"


def length_text(ms: float) -> str:
    """A length of time in its largest unit: 40 s, 12 min, 3 h, 2 d."""
    seconds = max(0, round(ms / 1000))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def ago(at_ms: int, now_ms: int) -> str:
    return f"{length_text(now_ms - at_ms)} ago"


def size_text(count: int) -> str:
    """A number of bytes in its largest unit."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def why(row: Mapping[str, Any]) -> str:
    """What a refused client was answered; of a long one the beginning and the end, which says what to do."""
    return without_middle(str(row.get("message") or ""), MESSAGE_CHARACTERS_MAX)
