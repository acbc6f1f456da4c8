"""A course as a drawing: a lane for each writer, one for the table, and what a reader finds. Pure.

time runs to the right; what stands in one column happened at the same time
a line from a won swap leads down to the snapshot that it put into the table
an arrow from a won swap leads to the writer whom it made lose its swap, or whom Iceberg refused because of it
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from xml.sax.saxutils import escape

from verify.walkthrough.observation import Did, Held, Mark, Observation, Row, Writer
from verify.walkthrough.shapes import (
    BACK,
    BLUE,
    CARD,
    FAINT,
    FONT,
    GREEN,
    INK,
    INKS,
    LINE,
    MUTED,
    ORANGE,
    PURPLE,
    RADIUS,
    RED,
    arrowheads,
    box,
    chip,
    label,
    line,
    number,
    path,
    symbol,
    tag,
    text,
    words,
)

WIDTH = 860
EDGE = 24
LANES_TOP = 74
NAMES_WIDTH = 178
FIRST_X = EDGE + NAMES_WIDTH + 40
LAST_X = WIDTH - EDGE - 46
COLUMN_MAX = 140
LANE_HEIGHT, AT_ONCE_HEIGHT = 86, 46
CHIP_LEAD = 20
CARD_WIDTH_MAX = 196
NAMES_CHARS = 29

API: Mapping[str, str] = MappingProxyType(
    {
        "fast-append": "AppendFiles",
        "append": "AppendFiles",
        "overwrite": "OverwriteFiles",
        "row-delta": "RowDelta",
        "rewrite": "RewriteFiles",
        "replace-partitions": "ReplacePartitions",
        "delete": "DeleteFiles",
        "rewrite-manifests": "RewriteManifests",
    }
)
"""What Iceberg's API calls the operations."""
ASKED: Mapping[str, str] = MappingProxyType(
    {
        "added-files-match-filter": "added files match",
        "no-conflicting-data": "no new data",
        "no-conflicting-deletes": "no new deletes",
        "deleted-files": "deleted files too",
        "files-exist": "files exist",
        "append-only": "append only",
        "data-files-exist": "data files exist",
    }
)
"""The checks in a word or three."""


def draw(observation: Observation) -> str:
    """The drawing, as an SVG document that is the same whenever the course is."""
    lanes = _Lanes(observation)
    table_top = lanes.bottom
    depth = max((len(snapshot.files) for snapshot in observation.snapshots), default=0)
    end_top = table_top + max(28 + 18 + CHIP_LEAD * depth + 8, 70)
    end, bottom = _end(observation, end_top)
    parts = [
        tag("rect", x=0.5, y=0.5, width=WIDTH - 1, height=bottom - 1, rx=10, fill=BACK, stroke=LINE),
        text(EDGE, 32, heading(observation.figure.name, observation.figure.title), size=15, bold=True),
        text(EDGE, 51, observation.figure.source, size=11, fill=MUTED),
        *_time(),
        *lanes.drawn(),
        *_table(observation, lanes, table_top),
        *lanes.arrows(),
        *end,
    ]
    return document(bottom, observation.figure.title, described(observation), parts)


def heading(name: str, title: str) -> str:
    """``Figure 7: …`` for the numbered ones."""
    return f"Figure {name}: {title}" if name.isdecimal() else title


def document(height: float, title: str, desc: str, parts: Sequence[str]) -> str:
    """Parts as a whole document, an element a line."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{number(height)}" '
        f'viewBox="0 0 {WIDTH} {number(height)}" role="img" aria-labelledby="title desc" font-family="{FONT}">'
    )
    named = [tag("title", escape(title), id="title"), tag("desc", escape(desc), id="desc")]
    return "\n".join([head, *named, tag("defs", arrowheads()), *(part for part in parts if part), "</svg>"]) + "\n"


def described(observation: Observation) -> str:
    """The drawing in words, for those who cannot see it."""
    said = list(observation.figure.story)
    said += [f"Iceberg refuses {writer.name}: {writer.message}." for writer in observation.writers if writer.message]
    rows = "; ".join(row.text + (" (there twice)" if row.twice else "") for row in observation.found)
    wrong = f" Wrong: {observation.figure.wrong}." if observation.figure.wrong and not observation.frozen else ""
    return " ".join([*said, f"A reader finds {rows or 'no row'}.{wrong}"])


def _time() -> Iterator[str]:
    y = LANES_TOP - 10
    yield line(LAST_X - 50, y, LAST_X + 30, y, FAINT, marker_end="url(#arrow-time)")
    yield text(LAST_X - 56, y + 4, "time", size=10.5, fill=MUTED, anchor="end")


def legend() -> str:
    """What the shapes mean."""
    left, right = EDGE + 18, WIDTH / 2 + 62
    rows = [52 + 34 * at for at in range(6)]
    symbols = (
        (Did.READS, left, "reads the table; then (thick) works on its data files"),
        (Did.CHECKS, left, "checks what others have committed since it read"),
        (Did.UNCHECKED, left, "would check now, but has asked for nothing"),
        (Did.MAKES, left, "makes its snapshot: manifests, metadata; unseen yet"),
        (Did.WON, left, "swap won: readers see its snapshot from now on"),
        (Did.LOST, right, "swap lost: somebody was faster; it begins again"),
        (Did.REFUSED, right, "refused, with the rule: an exception, no snapshot"),
    )
    parts = [text(EDGE, 30, "How to read the drawings", size=13, bold=True)]
    at = {left: 0, right: 0}
    for did, x, said in symbols:
        y = rows[at[x]]
        at[x] += 1
        if did is Did.READS:
            parts.append(line(x, y, x + 22, y, LINE, 8))
        parts += [symbol(did, x, y), text(x + (34 if x == left else 52), y + 4, said, size=11.5)]
    y = rows[5]
    parts.append(path(f"M{number(left - 18)},{number(y)} h32", ORANGE, marker_end="url(#arrow-lost)"))
    parts.append(path(f"M{number(left - 18)},{number(y + 9)} h32", RED, marker_end="url(#arrow-refused)"))
    parts.append(text(left + 34, y + 8, "whose commit made whom lose the swap, or be refused", size=11.5))
    chips = (
        ("data-2", "added", False, "a data file that came with this snapshot"),
        ("data-1", "live", False, "a data file that was there before"),
        ("data-1", "removed", False, "a data file that this snapshot took out"),
        ("delete-1", "live", True, "a delete file: strikes rows out of a data file"),
    )
    for file, (name, state, deletes, said) in enumerate(chips):
        y = rows[2 + file]
        parts.append(chip(right, y - 8, name, state, deletes=deletes))
        parts.append(text(right + 52, y + 4, said, size=11.5))
    bottom = rows[5] + 34
    parts.insert(0, tag("rect", x=0.5, y=0.5, width=WIDTH - 1, height=bottom - 1, rx=10, fill=BACK, stroke=LINE))
    desc = " ".join([*(f"{did}: {said}." for did, _, said in symbols), *(f"{said}." for *_, said in chips)])
    return document(bottom, "How to read the drawings", desc, parts)


# ── Writers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Lanes:
    """Where everything is."""

    def __init__(self, observation: Observation) -> None:
        self._course = observation
        self._step = min(COLUMN_MAX, (LAST_X - FIRST_X) / max(observation.columns - 1, 1))
        self._tops: dict[int, float] = {}
        y: float = LANES_TOP
        for writer in observation.writers:
            self._tops[writer.id] = y
            y += AT_ONCE_HEIGHT if writer.at_once else LANE_HEIGHT
        self.bottom = y
        self._at_once = {writer.id for writer in observation.writers if writer.at_once}

    def x(self, column: int) -> float:
        return FIRST_X + column * self._step

    def y(self, writer: int) -> float:
        """The middle of its symbols."""
        return self._tops[writer] + (16 if writer in self._at_once else 28)

    def drawn(self) -> Iterator[str]:
        """Lanes with their names and symbols."""
        for at, writer in enumerate(self._course.writers):
            back = CARD if at % 2 == 0 else BACK
            yield tag("g", "".join(self._lane(writer, back)), class_="lane", id=f"writer-{writer.id}")

    def _lane(self, writer: Writer, back: str) -> Iterator[str]:
        top, y = self._tops[writer.id], self.y(writer.id)
        height = AT_ONCE_HEIGHT if writer.at_once else LANE_HEIGHT
        yield tag("rect", x=1, y=top, width=WIDTH - 2, height=height, fill=back)
        yield from _names(writer, top)
        marks = [mark for mark in self._course.marks if mark.writer == writer.id]
        yield from self._bar(writer, marks, y)
        for mark in marks:
            x = self.x(mark.column)
            said = "" if writer.at_once else label(mark.did, x, y, mark.label, back)
            yield tag("g", symbol(mark.did, x, y) + said, class_=f"mark {mark.did}")

    def _bar(self, writer: Writer, marks: Sequence[Mark], y: float) -> Iterator[str]:
        """From the first thing that it did to the last; thick while it works on its data files."""
        if writer.at_once:
            return
        first, last = self.x(marks[0].column), self.x(marks[-1].column)
        if not writer.done:
            yield line(first, y, LAST_X + 22, y, LINE, 8, stroke_dasharray="8 4")
            yield text(first + 18, y - 10, "still at work", size=10.5, fill=MUTED)
            return
        yield line(first, y, self.x(marks[1].column), y, LINE, 8)
        yield line(first, y, last, y, LINE, 2.5)

    def arrows(self) -> Iterator[str]:
        """Who made whom lose, and what follows a lost swap."""
        for at, mark in enumerate(self._course.marks):
            name, colour = ("lost", ORANGE) if mark.did is Did.LOST else ("refused", RED)
            end = f"url(#arrow-{name})"
            for blamed in mark.blamed:
                cause = next(each for each in self._course.marks if each.writer == blamed and each.did is Did.WON)
                yield path(self._thrown(cause, mark), colour, marker_end=end, class_=f"blame {name}")
            if mark.did is Did.LOST:
                following = next((each for each in self._course.marks[at + 1 :] if each.writer == mark.writer), None)
                if following is not None:
                    yield from self._retry(mark, following)

    def _thrown(self, cause: Mark, mark: Mark) -> str:
        """From the right of a won swap into the top of what it caused, in the lane below."""
        x1, y1 = self.x(cause.column) + RADIUS + 2, self.y(cause.writer)
        x2, y2 = self.x(mark.column), self.y(mark.writer) - RADIUS - 4
        bend = (y2 - y1) / 2
        return (
            f"M{number(x1)},{number(y1)} C{number(x2 - 4)},{number(y1)} "
            f"{number(x2)},{number(y1 + bend * 0.6)} {number(x2)},{number(y2)}"
        )

    def _retry(self, lost: Mark, again: Mark) -> Iterator[str]:
        x1, x2, y = self.x(lost.column) + RADIUS - 1, self.x(again.column) - RADIUS - 3, self.y(lost.writer)
        middle = (x1 + x2) / 2
        arc = f"M{number(x1)},{number(y - 3)} Q{number(middle)},{number(y - 16)} {number(x2)},{number(y - 3)}"
        yield path(arc, ORANGE, marker_end="url(#arrow-lost)", stroke_dasharray="3 3", class_="retry")
        yield text(middle, y - 14, "again", size=9.5, fill=INKS[ORANGE], anchor="middle")


def _names(writer: Writer, top: float) -> Iterator[str]:
    """Who it is, what it brings and what it has asked for."""
    removes = [(f"− {name}", MUTED) for name in writer.removes]
    adds = [(f"+ {name}", INKS[PURPLE if name in writer.deletes else GREEN]) for name in writer.adds]
    yield text(EDGE, top + 19, writer.name, size=12.5, bold=True)
    if writer.at_once:
        yield words(EDGE, top + 35, [(API[writer.kind], MUTED), *removes, *adds])
        return
    yield text(EDGE, top + 35, API[writer.kind], size=11)
    yield words(EDGE, top + 50, [*removes, *adds])
    asked = ", ".join(ASKED[check] for check in writer.asks) or "nothing"
    for at, part in enumerate(textwrap.wrap(f"asks: {asked}", NAMES_CHARS)):
        yield text(EDGE, top + 65 + 13 * at, part, size=10.5, fill=MUTED)


# ── The table ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _table(observation: Observation, lanes: _Lanes, top: float) -> Iterator[str]:
    """The snapshots on main with the files in them, and the lines that lead to them."""
    y = top + 28
    yield line(1, top, WIDTH - 1, top, LINE)
    yield text(EDGE, top + 24, "The table", size=12.5, bold=True)
    yield text(EDGE, top + 40, "snapshots of main, and", size=10.5, fill=MUTED)
    yield text(EDGE, top + 53, "the files live in each", size=10.5, fill=MUTED)
    yield line(lanes.x(0), y, LAST_X + 22, y, BLUE, 3)
    for snapshot in observation.snapshots:
        x = lanes.x(snapshot.column)
        at_once = any(writer.id == snapshot.id and writer.at_once for writer in observation.writers)
        start = lanes.y(snapshot.id) + (RADIUS + 1 if at_once else 42)
        drawn = [
            line(x, start, x, y - 12, BLUE, 1.4),
            tag("circle", cx=x, cy=y, r=11, fill=BACK, stroke=BLUE, stroke_width=2.2),
            text(x, y + 4.2, str(snapshot.id), size=12, fill=INKS[BLUE], anchor="middle", bold=True),
        ]
        for at, file in enumerate(snapshot.files):
            drawn.append(chip(x, y + 18 + CHIP_LEAD * at, file.name, file.state, deletes=file.deletes))
        yield tag("g", "".join(drawn), class_="snapshot", id=f"snapshot-{snapshot.id}")


# ── The end ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _end(observation: Observation, top: float) -> tuple[list[str], float]:
    """What a reader finds, file by file; and where the drawing ends."""
    count = len(observation.found)
    when = f"After snapshot {observation.after} a reader finds" if observation.frozen else "In the end a reader finds"
    found = f"{count or 'no'} row{'' if count == 1 else 's'}"
    title = tag("tspan", escape(f"{when} {found}"))
    if observation.figure.wrong and not observation.frozen:
        title += tag("tspan", escape(observation.figure.wrong), dx=14, font_size=11, fill=INKS[RED])
    parts = [
        line(1, top, WIDTH - 1, top, LINE),
        tag("text", title, x=EDGE, y=top + 24, font_size=12.5, font_weight="600", fill=INK),
    ]
    gap = 12
    width = min(CARD_WIDTH_MAX, (WIDTH - 2 * EDGE + gap) / max(len(observation.held), 1) - gap)
    lines = max((2 if held.of else len(held.rows) for held in observation.held), default=0)
    height = 30 + 20 * lines + 4
    for at, held in enumerate(observation.held):
        parts.append(_card(held, EDGE + at * (width + gap), top + 36, width, height))
    return parts, top + 36 + height + 18


def _card(held: Held, x: float, y: float, width: float, height: float) -> str:
    colour = PURPLE if held.of else GREEN
    drawn = [
        box(x, y, width, height, CARD, LINE),
        tag("rect", x=x, y=y + 1, width=4, height=height - 2, fill=colour),
        text(x + 14, y + 18, held.name, size=11, fill=INKS[colour], bold=True),
    ]
    if held.of:
        drawn.append(text(x + 14, y + 38, f"strikes {held.rows[0].text}", size=11, fill=MUTED))
        end, fill = (f"out of {held.of}, which is gone", INKS[RED]) if held.dangling else (f"out of {held.of}", MUTED)
        drawn.append(text(x + 14, y + 56, end, size=11, fill=fill, bold=held.dangling))
    else:
        drawn += [_row(row, x, y + 24 + 20 * at, width) for at, row in enumerate(held.rows)]
    return tag("g", "".join(drawn), class_="held")


def _row(row: Row, x: float, y: float, width: float) -> str:
    """A row in its card; red where the same person is found twice, struck where a delete file removes it."""
    if row.twice:
        back = box(x + 9, y, width - 15, 18, "#fdeadd", RED)
        mark = text(x + width - 14, y + 13, "twice", size=10.5, fill=INKS[RED], anchor="end", bold=True)
        return tag("g", back + text(x + 14, y + 13, row.text, size=11.5) + mark, class_="row twice")
    if row.struck_by:
        mark = text(x + width - 10, y + 13, " ".join(row.struck_by), size=10, fill=INKS[PURPLE], anchor="end")
        body = text(x + 14, y + 13, row.text, size=11.5, fill=MUTED, struck=True) + mark
        return tag("g", body, class_="row struck")
    return tag("g", text(x + 14, y + 13, row.text, size=11.5), class_="row")
