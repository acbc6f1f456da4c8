"""The commits of a table as lanes by agent, to be drawn: where each mark stands. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from icetower.ledger.attempts import Attempt, Outcome
from icetower.page.axis import Axis
from icetower.page.times import clock_text

LANES_MAX = 12
WIDTH, LANE_HEIGHT, TOP, NAMES_WIDTH, MARGIN = 960, 26, 8, 150, 34
"""Of the drawing, in its own units."""
TICKS = 5
OTHERS = "others"
NAME_CHARACTERS_MAX = 20


@dataclass(frozen=True, slots=True)
class Mark:
    """One attempt.

    Attributes:
        number: in the log.
        words: what a reader hears of it.
    """

    number: int
    x: float
    y: float
    outcome: Outcome
    words: str


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    y: float
    whole_name: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Link:
    """Commits that went in with one swap: a line from the highest of their lanes to the lowest."""

    x: float
    top: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Lanes:
    """The drawing."""

    lanes: tuple[Lane, ...]
    marks: tuple[Mark, ...]
    links: tuple[Link, ...]
    ticks: tuple[Tick, ...]
    height: float
    words: str


def lanes_of(attempts: Sequence[tuple[int, Attempt]], now_ms: int) -> Lanes:
    """The drawing of some attempts at one table, from the oldest of them to the newest."""
    times = Counter(attempt.principal for _, attempt in attempts)
    named = [name for name, _ in times.most_common(LANES_MAX)]
    if len(times) > LANES_MAX:
        named = [*named[: LANES_MAX - 1], OTHERS]
    height = {
        name: TOP + LANE_HEIGHT * (at + 0.5) for at, name in enumerate(sorted(named, key=lambda n: (n == OTHERS, n)))
    }
    oldest_ms = min((attempt.at_ms for _, attempt in attempts), default=now_ms)
    newest_ms = max((attempt.at_ms for _, attempt in attempts), default=now_ms)
    span_ms = max(newest_ms - oldest_ms, 1_000)
    axis = Axis(oldest_ms, oldest_ms + span_ms, NAMES_WIDTH + MARGIN, WIDTH - MARGIN)
    marks = tuple(
        Mark(
            number,
            axis.across(attempt.at_ms),
            height.get(attempt.principal, height.get(OTHERS, TOP)),
            attempt.outcome,
            words_of(attempt),
        )
        for number, attempt in attempts
    )
    return Lanes(
        tuple(Lane(_short(name), y, name) for name, y in height.items()),
        marks,
        _links(attempts, marks),
        tuple(Tick(*tick) for tick in axis.ticks(TICKS)),
        TOP + LANE_HEIGHT * max(1, len(height)) + 24,
        f"{len(attempts)} attempts of {len(times)} principals, {clock_text(oldest_ms)} to {clock_text(newest_ms)} UTC",
    )


def words_of(attempt: Attempt) -> str:
    """An attempt in a line."""
    why = f" by {attempt.rule}" if attempt.rule else ""
    return f"{clock_text(attempt.at_ms)} {attempt.principal}: {attempt.operation}, {attempt.outcome.value}{why}"


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS_MAX else name[: NAME_CHARACTERS_MAX - 1] + "…"


def _links(attempts: Sequence[tuple[int, Attempt]], marks: Sequence[Mark]) -> tuple[Link, ...]:
    """A group has one head, and its commits are logged together."""
    groups: dict[tuple[int | None, int], list[Mark]] = {}
    for (_, attempt), mark in zip(attempts, marks, strict=True):
        if (attempt.group_size or 0) > 1:
            groups.setdefault((attempt.head, attempt.group_size or 0), []).append(mark)
    return tuple(
        Link(round(sum(mark.x for mark in some) / len(some), 1), min(m.y for m in some), max(m.y for m in some))
        for some in groups.values()
        if len({mark.y for mark in some}) > 1
    )
