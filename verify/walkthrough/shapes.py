"""Shapes and texts of the drawings, as SVG. Pure: strings out of numbers, the same ones every time.

Colours are those of Okabe and Ito, which people with any kind of colour blindness tell apart; every shape has its own
outline and a label besides, so that no meaning hangs on colour. A drawing brings its own light background, and is
read the same in light and dark surroundings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from xml.sax.saxutils import escape, quoteattr

from verify.walkthrough.observation import Did

BLUE, GREEN, ORANGE, RED, PURPLE = "#0072b2", "#009e73", "#e69f00", "#d55e00", "#cc79a7"
INK, MUTED, FAINT, LINE, CARD, BACK = "#1f2328", "#57606a", "#8c959f", "#d0d7de", "#f6f8fa", "#ffffff"
# Darker kin of the colours, for text on white: contrast 4.5 to 1 and more.
INKS: Mapping[str, str] = MappingProxyType(
    {BLUE: "#005a8f", GREEN: "#00694d", ORANGE: "#8a5a00", RED: "#a84300", PURPLE: "#8f3a68", FAINT: MUTED}
)
COLOURS: Mapping[Did, str] = MappingProxyType(
    {
        Did.READS: FAINT,
        Did.CHECKS: FAINT,
        Did.UNCHECKED: FAINT,
        Did.MAKES: GREEN,
        Did.WON: BLUE,
        Did.LOST: ORANGE,
        Did.REFUSED: RED,
        Did.EXHAUSTED: RED,
    }
)
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"
RADIUS = 9
LABEL_PX, LABEL_LEAD = 10.5, 12


def number(value: float) -> str:
    """A coordinate: one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")


def tag(name: str, body: str = "", /, **attributes: str | float) -> str:
    """An element. Underscores of attribute names stand for dashes; a trailing one is dropped (``class_``)."""
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(value if isinstance(value, str) else number(value))}"
        for key, value in attributes.items()
    )
    return f"<{name}{said}>{body}</{name}>" if body else f"<{name}{said}/>"


def text(
    x: float,
    y: float,
    said: str,
    *,
    size: float = 11,
    fill: str = INK,
    anchor: str = "start",
    bold: bool = False,
    struck: bool = False,
    halo: str = "",
) -> str:
    """One line of text, its baseline at `y`; with `halo`, lines behind it are kept off by that colour."""
    more: dict[str, str | float] = {}
    if anchor != "start":
        more["text_anchor"] = anchor
    if bold:
        more["font_weight"] = "600"
    if struck:
        more["text_decoration"] = "line-through"
    if halo:
        more |= {"stroke": halo, "stroke_width": 4, "stroke_linejoin": "round", "paint_order": "stroke"}
    return tag("text", escape(said), x=x, y=y, font_size=size, fill=fill, **more)


def words(x: float, y: float, parts: Sequence[tuple[str, str]], *, size: float = 11) -> str:
    """Words on one line, each in its own colour."""
    spans = " ".join(tag("tspan", escape(said), fill=fill) for said, fill in parts)
    return tag("text", spans, x=x, y=y, font_size=size)


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1, **more: str | float) -> str:
    """A straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, stroke_width=width, **more)


def box(x: float, y: float, width: float, height: float, fill: str, stroke: str) -> str:
    """A rectangle with round corners."""
    return tag("rect", x=x, y=y, width=width, height=height, rx=4, fill=fill, stroke=stroke)


def polygon(points: Sequence[tuple[float, float]], fill: str, stroke: str, **more: str | float) -> str:
    """A closed outline."""
    said = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    return tag("polygon", points=said, fill=fill, stroke=stroke, stroke_width=1.8, stroke_linejoin="round", **more)


def path(d: str, colour: str, width: float = 1.6, **more: str | float) -> str:
    """An open line."""
    return tag("path", d=d, fill="none", stroke=colour, stroke_width=width, stroke_linecap="round", **more)


def arrowheads() -> str:
    """The ends of arrows, by colour: `url(#arrow-lost)`, `url(#arrow-refused)`, `url(#arrow-time)`."""
    heads = (("lost", ORANGE), ("refused", RED), ("time", FAINT))
    return "".join(
        tag(
            "marker",
            tag("path", d="M0,0 L8,4 L0,8 z", fill=colour),
            id=f"arrow-{name}",
            viewBox="0 0 8 8",
            refX="7",
            refY="4",
            markerWidth="8",
            markerHeight="8",
            markerUnits="userSpaceOnUse",
            orient="auto",
        )
        for name, colour in heads
    )


def symbol(did: Did, x: float, y: float) -> str:
    """What a writer does, as a shape around a point."""
    r, colour = RADIUS, COLOURS[did]
    cross = f"M{number(x - 3.5)},{number(y - 3.5)} l7,7 m0,-7 l-7,7"
    match did:
        case Did.READS:
            return tag("circle", cx=x, cy=y, r=6, fill=BACK, stroke=MUTED, stroke_width=1.8)
        case Did.CHECKS | Did.UNCHECKED:
            dashes: dict[str, str | float] = {"stroke_dasharray": "3 2.5"} if did is Did.UNCHECKED else {}
            fill = BACK if did is Did.UNCHECKED else "#dbe2ea"
            return polygon([(x, y - r), (x + r, y), (x, y + r), (x - r, y)], fill, MUTED, **dashes)
        case Did.MAKES:
            return tag(
                "rect", x=x - 7, y=y - 7, width=14, height=14, rx=2, fill="#d9f0e8", stroke=colour, stroke_width=1.8
            )
        case Did.WON:
            tick = path(f"M{number(x - 4)},{number(y)} l3,3.5 l5.5,-7", BACK, 2)
            return tag("circle", cx=x, cy=y, r=r, fill=colour) + tick
        case Did.LOST:
            triangle = polygon([(x - r - 1, y - 7.5), (x + r + 1, y - 7.5), (x, y + r + 1)], "#fdf0d5", colour)
            return triangle + path(f"M{number(x)},{number(y - 4)} l0,5 m0,2.6 l0,0.3", INKS[ORANGE], 2)
        case Did.REFUSED | Did.EXHAUSTED:
            a, b = r + 1, 4.2
            outline = [(b, -a), (a, -b), (a, b), (b, a), (-b, a), (-a, b), (-a, -b), (-b, -a)]
            return polygon([(x + dx, y + dy) for dx, dy in outline], colour, colour) + path(cross, BACK, 2)


def label(did: Did, x: float, y: float, lines: Sequence[str], halo: str) -> str:
    """The words under a symbol; `y` is the symbol's middle."""
    fill = INKS[COLOURS[did]]
    bold = did in (Did.WON, Did.LOST, Did.REFUSED, Did.EXHAUSTED)
    return "".join(
        text(x, y + 22 + LABEL_LEAD * at, said, size=LABEL_PX, fill=fill, anchor="middle", bold=bold, halo=halo)
        for at, said in enumerate(lines)
    )


def chip(x: float, y: float, name: str, state: str, *, deletes: bool, width: float = 78) -> str:
    """A file in a snapshot, around `x`: as before, added or removed. Delete files slant, data files stand straight."""
    colour, pale = (PURPLE, "#f9eaf2") if deletes else (GREEN, "#e3f4ee")
    gone, new = state == "removed", state == "added"
    left, right, slant = x - width / 2, x + width / 2, 6 if deletes else 0
    outline = [(left + slant, y), (right, y), (right - slant, y + 16), (left, y + 16)]
    dashes: dict[str, str | float] = {"stroke_dasharray": "3 2.5"} if gone else {}
    shape = polygon(outline, BACK if gone else pale, FAINT if gone else colour, **dashes)
    sign = "+ " if new else ""
    fill = MUTED if gone else INKS[colour]
    return shape + text(x, y + 12, sign + name, size=10.5, fill=fill, anchor="middle", bold=new, struck=gone)
