"""Sets of rows as boxes: along each axis a set of values, and along an axis that is not named every value. Pure.

Regions of a contract become boxes (`axes.py`), so that whether two agents own a partition in common, what a new version
of a contract adds, and what nobody owns are all one thing: an intersection or a difference of boxes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

BOXES_MAX = 2_000
"""Subtracting a box may leave two for each of its axes."""

Cut = tuple[int, Any, bool]
"""A place between values: before or after (True) one of them; the first number is -1 and 1 at the ends of the order."""

LOWEST: Cut = (-1, 0, False)
HIGHEST: Cut = (1, 0, False)


class TooMany(Exception):
    """More boxes than are worth counting."""


@dataclass(frozen=True, slots=True)
class Spans:
    """A set of values of one order, and null or not.

    Attributes:
        pieces: half open, in order, with something between each and the next. Null lies in none of them.
    """

    pieces: tuple[tuple[Cut, Cut], ...]
    null: bool = False

    def __bool__(self) -> bool:
        return bool(self.pieces) or self.null

    def __and__(self, other: Spans) -> Spans:
        return Spans(tuple(_common(self.pieces, other.pieces)), self.null and other.null)

    def meets(self, other: Spans) -> bool:
        """Whether the two have a value in common, or null."""
        if self.null and other.null:
            return True
        if len(self.pieces) == len(other.pieces) == 1:  # nearly always, and asked at each commit beside held rows
            ((start, end),), ((first, last),) = self.pieces, other.pieces
            return start < last and first < end
        return next(_common(self.pieces, other.pieces), None) is not None

    def holds(self, other: Spans) -> bool:
        """Whether all of the other lies in this one."""
        if other.null and not self.null:
            return False
        places = iter(self.pieces)
        place = next(places, None)
        for start, end in other.pieces:
            while place is not None and place[1] <= start:
                place = next(places, None)
            if place is None or start < place[0] or place[1] < end:
                return False
        return True

    def __or__(self, other: Spans) -> Spans:
        return spans_of((*self.pieces, *other.pieces), null=self.null or other.null)

    def __sub__(self, other: Spans) -> Spans:
        return replace(self & Spans(_outside(other.pieces)), null=self.null and not other.null)


def spans_of(pieces: Iterable[tuple[Cut, Cut]], *, null: bool = False) -> Spans:
    """Pieces in any order, which may overlap, as one set."""
    joined: list[tuple[Cut, Cut]] = []
    for start, end in sorted(pieces):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return Spans(tuple(joined), null)


def _common(some: Sequence[tuple[Cut, Cut]], others: Sequence[tuple[Cut, Cut]]) -> Iterator[tuple[Cut, Cut]]:
    """The pieces of what lies in both, in order."""
    at = its = 0
    while at < len(some) and its < len(others):
        (start, end), (first, last) = some[at], others[its]
        if start < last and first < end:
            yield max(start, first), min(end, last)
        if end < last:
            at += 1
        else:
            its += 1


def _outside(pieces: Sequence[tuple[Cut, Cut]]) -> tuple[tuple[Cut, Cut], ...]:
    starts = (LOWEST, *(end for _, end in pieces))
    ends = (*(start for start, _ in pieces), HIGHEST)
    return tuple((start, end) for start, end in zip(starts, ends, strict=True) if start < end)


EVERYTHING = Spans(((LOWEST, HIGHEST),), null=True)


def before(value: Any) -> Cut:
    return (0, value, False)


def after(value: Any) -> Cut:
    return (0, value, True)


def span(start: Cut, end: Cut) -> Spans:
    """From one cut to another; nothing, where they stand the wrong way round."""
    return Spans(((start, end),) if start < end else ())


Box = Mapping[Any, Spans]
"""Axis → what of it; none of them empty. An axis that is not named has every value, null among them."""


def intersection(one: Box, other: Box) -> Box | None:
    """What lies in both; None where nothing does."""
    both: dict[Any, Spans] = dict(one)
    for axis, spans in other.items():
        both[axis] = both.get(axis, EVERYTHING) & spans
        if not both[axis]:
            return None
    return both


def overlap(one: Box, other: Box) -> bool:
    """Whether something lies in both, without saying what."""
    for axis, spans in other.items():
        own = one.get(axis)
        if own is not None and not own.meets(spans):
            return False
    return True


def difference(some: Iterable[Box], others: Iterable[Box]) -> list[Box]:
    """What lies in some of the boxes and in none of the others; the pieces of one box lie apart. Raises `TooMany`."""
    left = list(some)
    for other in others:
        left = [piece for box in left for piece in _without(box, other)]
        if len(left) > BOXES_MAX:
            raise TooMany
    return left


def _without(box: Box, other: Box) -> list[Box]:
    if not overlap(box, other):
        return [box]
    pieces: list[Box] = []
    rest: dict[Any, Spans] = dict(box)
    for axis, spans in other.items():
        held = rest.get(axis, EVERYTHING)
        if outside := held - spans:
            pieces.append({**rest, axis: outside})
        rest[axis] = held & spans
    return pieces


def merged(boxes: Iterable[Box]) -> list[Box]:
    """The same in fewer boxes: without those that others hold, and two that differ along one axis put together."""
    found: list[Box] = []
    for box in boxes:
        _merge_into(found, box)
    return found


def _merge_into(found: list[Box], box: Box) -> None:
    for position, other in enumerate(found):
        together = _together(other, box)
        if together is not None:
            del found[position]
            _merge_into(found, together)
            return
    found.append(box)


def _together(one: Box, other: Box) -> Box | None:
    """The union of two boxes, where it is a box."""
    axes = one.keys() | other.keys()
    unlike = [axis for axis in axes if one.get(axis, EVERYTHING) != other.get(axis, EVERYTHING)]
    if len(unlike) <= 1:
        union = {axis: one.get(axis, EVERYTHING) | other.get(axis, EVERYTHING) for axis in axes}
        return {axis: spans for axis, spans in union.items() if spans != EVERYTHING}
    if all(one.get(axis, EVERYTHING).holds(other.get(axis, EVERYTHING)) for axis in unlike):
        return one
    if all(other.get(axis, EVERYTHING).holds(one.get(axis, EVERYTHING)) for axis in unlike):
        return other
    return None


NOTHING = Spans(())
