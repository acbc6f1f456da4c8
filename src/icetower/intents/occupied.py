"""Which intents are about which rows of one table: an index over boxes. Pure.

Ten thousand intents on one table are disjoint, most often along one axis: days, buckets, keys. So each box is filed
under one of its axes, that along which it has the fewest neighbours, by the stretches of its values. Whoever is near is
found by what overlaps there; whether two boxes truly meet is for the caller to say.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from itertools import accumulate

from icetower.contracts.boxes import Box, Cut, Spans

CHUNK = 128
PIECES_MAX = 16
"""Of so many stretches a box is filed by each; one of more by the stretch from its first value to its last."""

_BEFORE_NULL: Cut = (-2, 0, False)
_AFTER_NULL: Cut = (-2, 0, True)
"""Null lies before all values, as far as the index is concerned."""

Stretch = tuple[Cut, Cut]
_Entry = tuple[Cut, Cut, str]


class Stretches:
    """Stretches of one order, each with a name, found by what they overlap."""

    def __init__(self) -> None:
        # In order of their beginnings, in chunks; of each chunk the first entry, and the farthest end.
        self._chunks: list[list[_Entry]] = []
        self._firsts: list[_Entry] = []
        self._ends: list[Cut] = []
        # The farthest end of each chunk and all before it, made when it is asked for.
        self._reach: list[Cut] | None = None

    def add(self, stretch: Stretch, name: str) -> None:
        entry = (*stretch, name)
        self._reach = None
        if not self._chunks:
            self._chunks, self._firsts, self._ends = [[entry]], [entry], [entry[1]]
            return
        at = max(0, bisect_right(self._firsts, entry) - 1)
        chunk = self._chunks[at]
        insort(chunk, entry)
        self._firsts[at], self._ends[at] = chunk[0], max(self._ends[at], entry[1])
        if len(chunk) > 2 * CHUNK:
            halves = chunk[:CHUNK], chunk[CHUNK:]
            self._chunks[at : at + 1] = halves
            self._firsts[at : at + 1] = [half[0] for half in halves]
            self._ends[at : at + 1] = [max(each[1] for each in half) for half in halves]

    def remove(self, stretch: Stretch, name: str) -> None:
        entry = (*stretch, name)
        self._reach = None
        at = bisect_right(self._firsts, entry) - 1
        chunk = self._chunks[at]
        place = bisect_left(chunk, entry)
        assert chunk[place] == entry
        del chunk[place]
        if not chunk:
            del self._chunks[at], self._firsts[at], self._ends[at]
            return
        self._firsts[at] = chunk[0]
        if self._ends[at] == entry[1]:
            self._ends[at] = max(each[1] for each in chunk)

    def overlapping(self, stretch: Stretch) -> list[str]:
        """The names of what has something in common with a stretch."""
        start, end = stretch
        if self._reach is None:
            self._reach = list(accumulate(self._ends, max))
        found: list[str] = []
        for at in range(bisect_right(self._reach, start), bisect_left(self._firsts, (end,))):
            if self._ends[at] > start:
                chunk = self._chunks[at]
                found += [each[2] for each in chunk[: bisect_left(chunk, (end,))] if each[1] > start]
        return found

    def __iter__(self) -> Iterator[str]:
        return (entry[2] for chunk in self._chunks for entry in chunk)

    def __len__(self) -> int:
        return sum(map(len, self._chunks))


class Occupied:
    """The boxes of intents on one table, by the intents' ids."""

    def __init__(self) -> None:
        self._along: dict[object, Stretches] = {}
        self._everywhere: dict[str, int] = {}
        self._filed: dict[str, list[tuple[object, Stretch] | None]] = {}

    def __len__(self) -> int:
        return len(self._filed)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._filed

    def add(self, id_: str, boxes: Sequence[Box]) -> None:
        """File the boxes of an intent, which is not there yet."""
        filed: list[tuple[object, Stretch] | None] = []
        for box in boxes:
            axis = min(box, key=lambda each: (self._neighbours(each, box[each]), str(each)), default=None)
            if axis is None:
                self._everywhere[id_] = self._everywhere.get(id_, 0) + 1
                filed.append(None)
                continue
            for stretch in _stretches(box[axis]):
                self._along.setdefault(axis, Stretches()).add(stretch, id_)
                filed.append((axis, stretch))
        self._filed[id_] = filed

    def remove(self, id_: str) -> None:
        """Take an intent away, if it is there."""
        for place in self._filed.pop(id_, ()):
            if place is None:
                self._everywhere.pop(id_, None)
                continue
            axis, stretch = place
            along = self._along[axis]
            along.remove(stretch, id_)
            if not along:
                del self._along[axis]

    def near(self, boxes: Sequence[Box]) -> set[str]:
        """All intents with a box that may meet one of these, and some others."""
        found = set(self._everywhere) if boxes else set[str]()
        for axis, along in self._along.items():
            if any(axis not in box for box in boxes):
                found.update(along)
                continue
            for stretch in {stretch for box in boxes for stretch in _stretches(box[axis])}:
                found.update(along.overlapping(stretch))
        return found

    def _neighbours(self, axis: object, spans: Spans) -> int:
        along = self._along.get(axis)
        if along is None:
            return 0
        return sum(len(along.overlapping(stretch)) for stretch in _stretches(spans))


def _stretches(spans: Spans) -> list[Stretch]:
    pieces = list(spans.pieces)
    if len(pieces) > PIECES_MAX:
        pieces = [(pieces[0][0], pieces[-1][1])]
    return [*pieces, (_BEFORE_NULL, _AFTER_NULL)] if spans.null else pieces
