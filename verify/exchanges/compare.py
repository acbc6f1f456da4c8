"""What differs between two recordings, field by field."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

JSON = dict[str, Any]
Recording = dict[str, list[JSON]]
"""The exchanges of a client, by the part of its session."""

SHOWN_CHARACTERS_MAX = 300
SEEN = "$seen"
SEEN_CHARACTERS_MIN = 40


def read(path: Path) -> Recording:
    """A kept recording: a line for each part's name, and one for each of its exchanges."""
    found: Recording = {}
    packing = Packing()
    for line in path.read_text().splitlines():
        row: JSON = json.loads(line)
        if "part" in row:
            found[row["part"]] = []
        else:
            found[list(found)[-1]].append(cast(JSON, packing.unpacked(row)))
    return found


def write(path: Path, recording: Recording) -> None:
    packing = Packing()
    lines: list[object] = []
    for part, exchanges in recording.items():
        lines += [{"part": part}, *map(packing.packed, exchanges)]
    path.write_text("".join(f"{_text(line)}\n" for line in lines))


class Packing:
    """A table's metadata comes again in every answer: a value that has been in the file is written as its number.

    Values are numbered in the order in which they end, in writing as in reading.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._values: list[object] = []

    def packed(self, value: object) -> object:
        if not isinstance(value, dict | list):
            return value
        text = _text(value)
        if text in self._numbers:
            return {SEEN: self._numbers[text]}
        packed = _rebuilt(value, self.packed)
        self._note(value, text)
        return packed

    def unpacked(self, value: object) -> object:
        if not isinstance(value, dict | list):
            return value
        if isinstance(value, dict) and SEEN in value:
            return self._values[cast(dict[str, int], value)[SEEN]]
        unpacked = _rebuilt(value, self.unpacked)
        self._note(unpacked, _text(unpacked))
        return unpacked

    def _note(self, value: object, text: str) -> None:
        if len(text) >= SEEN_CHARACTERS_MIN and text not in self._numbers:
            self._numbers[text] = len(self._values)
            self._values.append(value)


def _rebuilt(value: object, convert: Callable[[object], object]) -> object:
    if isinstance(value, dict):
        return {name: convert(item) for name, item in cast(JSON, value).items()}
    return [convert(item) for item in cast(list[object], value)]


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def differences(before: Recording, after: Recording) -> list[str]:
    """One line for each difference: where, what it was, and what it is."""
    found = [f"{part}: only before" for part in before if part not in after]
    found += [f"{part}: only now" for part in after if part not in before]
    for part in before:
        if part in after:
            found += _of_part(part, before[part], after[part])
    return found


def _of_part(part: str, before: Sequence[JSON], after: Sequence[JSON]) -> Iterator[str]:
    """Exchanges are paired by their requests, in order: one more or one less is one difference, not many."""
    rows = [[f"{each['step']}: {each['request']}" for each in side] for side in (before, after)]
    matcher = difflib.SequenceMatcher(None, rows[0], rows[1], autojunk=False)
    for kind, start, end, start_now, end_now in matcher.get_opcodes():
        if kind == "equal":
            for one, other in zip(before[start:end], after[start_now:end_now], strict=True):
                place = f"{part}: {one['step']}: {one['request']}"
                yield from (f"{place}: {each}" for each in _of_value("", one, other))
        else:
            yield from (f"{part}: only before: {row}" for row in rows[0][start:end])
            yield from (f"{part}: only now: {row}" for row in rows[1][start_now:end_now])


def _of_value(place: str, before: object, after: object) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        one, other = cast(JSON, before), cast(JSON, after)
        for name in one:
            if name not in other:
                yield f"{_joined(place, name)}: {_shown(one[name])} is missing now"
        for name in other:
            if name not in one:
                yield f"{_joined(place, name)}: {_shown(other[name])} is new"
        shared = [name for name in one if name in other]
        if shared != [name for name in other if name in one]:
            yield f"{place or 'fields'}: the order was {', '.join(one)} and is {', '.join(other)}"
        for name in shared:
            yield from _of_value(_joined(place, name), one[name], other[name])
    elif isinstance(before, list) and isinstance(after, list):
        first, second = cast(list[object], before), cast(list[object], after)
        if len(first) != len(second):
            yield f"{place}: {len(first)} items were {_shown(first)}, {len(second)} are {_shown(second)}"
        else:
            for at, (one, other) in enumerate(zip(first, second, strict=True)):
                yield from _of_value(f"{place}[{at}]", one, other)
    elif before != after or type(before) is not type(after):
        yield f"{place}: was {_shown(before)}, is {_shown(after)}"


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "…"
