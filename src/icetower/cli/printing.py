"""Tables and texts for people. Text that may have to be copied, such as an id, a path or a rule, is never cut.

At a terminal prose is wrapped to its width, and other text may exceed it. Piped output has no width: each row and each
paragraph is one line.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table

from icetower.texts import without_acting

PIPED_COLUMNS = 100_000
PROSE = frozenset({"message", "reason", "notified", "outcome", "title"})
"""Columns, by their titles, whose text may be wrapped."""
_PROSE_COLUMNS_MIN = 24


class SafeConsole(Console):
    """A console for text from tables and cases: characters that control the terminal are left out.

    (They have no width, so the layout does not change.) Where they may matter, they are escaped before.
    """

    def __init__(self, **options: Any) -> None:
        piped = options.get("file") is None and not sys.stdout.isatty()
        width: dict[str, Any] = {"width": PIPED_COLUMNS} if piped else {}
        super().__init__(**{**width, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else without_acting(text), style, control)


def show(table: Table, prose: Collection[str] = PROSE) -> None:
    """Print a table with nothing cut. `prose`: the titles of columns that may be wrapped."""
    console = SafeConsole()
    wide = console.options.update(width=PIPED_COLUMNS)
    for column in table.columns:
        widths = (Measurement.get(console, wide, cell).maximum for cell in column.cells)
        widest = max((*widths, Measurement.get(console, wide, column.header).maximum))
        if str(column.header) in prose:
            column.overflow = "fold"
            column.min_width = min(widest, _PROSE_COLUMNS_MIN)
        else:
            column.no_wrap = True
            column.min_width = widest
    least, most = Measurement.get(console, wide, table)
    SafeConsole(width=min(most, max(console.width, least))).print(table)
