"""Strict reading of YAML: every value knows its line and its place, and nothing unexpected is passed over.

The nodes of the document are walked as written, so that `2017-01-01`, `010` and `1.10` stay the text that their author
saw instead of becoming a date, an octal number and a rounded one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from icetower.errors import BadRequest

RULE = "contract.syntax"
TEXT_CHARACTERS_MAX = 1_000_000
DEPTH_MAX = 20

# libyaml reads the same language in a twentieth of the time; not every build of PyYAML has it.
_QUICK: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
TOP = "the contract"
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UNITS_BYTES = {"B": 1, **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)}}
DURATION_MAX_S = 10 * 366 * 86_400


@dataclass(frozen=True, slots=True)
class Reader:
    """One value of the document: its node, where it stands, and what the document is called."""

    node: Any
    place: str
    source: str

    def wrong(self, problem: str, *, line: int | None = None) -> BadRequest:
        where = line if line is not None else self.node.start_mark.line + 1
        return BadRequest(f"{self.source}, line {where}: {self.place} {problem}", rule=RULE)

    def is_mapping(self) -> bool:
        return isinstance(self.node, yaml.MappingNode)

    def is_list(self) -> bool:
        return isinstance(self.node, yaml.SequenceNode)

    def is_text(self, text: str) -> bool:
        return isinstance(self.node, yaml.ScalarNode) and self.node.value == text

    def open_fields(self) -> dict[str, Reader]:
        """The fields of a mapping whose names are free; each may stand there once."""
        if not self.is_mapping():
            raise self.wrong("must be a mapping of names to values")
        fields: dict[str, Reader] = {}
        for key, value in self.node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or not key.value:
                raise self.wrong("has a name that is not a plain word", line=line)
            if key.value in fields:
                raise self.wrong(f"has the field {key.value!r} twice; keep one", line=line)
            fields[key.value] = Reader(value, _inner(self.place, key.value), self.source)
            if key.value == "<<":
                raise self.wrong("uses '<<'; write the fields out", line=line)
        return fields

    def fields(self, *, required: Sequence[str], optional: Sequence[str]) -> Mapping[str, Reader]:
        """The fields of a mapping whose names are fixed. Raises `BadRequest` for one unknown or missing."""
        fields = self.open_fields()
        allowed = ", ".join((*required, *optional))
        for key, _ in self.node.value:
            if key.value not in required and key.value not in optional:
                raise self.wrong(
                    f"has the unknown field {key.value!r}; allowed are: {allowed}", line=key.start_mark.line + 1
                )
        for name in required:
            if name not in fields:
                raise self.wrong(f"lacks the field {name!r}")
        return fields

    def items(self) -> list[Reader]:
        if not self.is_list():
            raise self.wrong("must be a list")
        return [Reader(node, f"{self.place}[{index}]", self.source) for index, node in enumerate(self.node.value)]

    def text_or_null(self) -> str | None:
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.wrong("must be a single value")
        return None if self.node.tag.endswith(":null") else str(self.node.value)

    def text(self) -> str:
        text = self.text_or_null()
        if text is None:
            raise self.wrong("is empty; give a value")
        return text

    def choice(self, choices: Sequence[str]) -> str:
        text = self.text()
        if text not in choices:
            raise self.wrong(f"is {text!r}; allowed are: {', '.join(choices)}")
        return text

    def boolean(self) -> bool:
        return self.choice(("true", "false")) == "true"

    def whole_number(self, *, least: int = 0) -> int:
        text = self.text()
        if not re.fullmatch(r"\d{1,15}", text) or int(text) < least:
            raise self.wrong(f"is {text!r}; write a whole number, {least} or more")
        return int(text)

    def duration_s(self) -> float:
        """Seconds of a duration such as 100ms, 30s, 10m, 24h, 7d or 2w."""
        text = self.text()
        found = re.fullmatch(r"(\d{1,15})(ms|s|m|h|d|w)", text)
        if found is None or not 0 < int(found[1]) * _UNITS_MS[found[2]] <= DURATION_MAX_S * 1000:
            raise self.wrong(
                f"is {text!r}; write a duration of up to ten years, such as 100ms, 30s, 10m, 24h, 7d or 2w"
            )
        return int(found[1]) * _UNITS_MS[found[2]] / 1000

    def size_bytes(self) -> int:
        """Bytes of a size such as 1048576, 512MiB or 1GiB."""
        text = self.text()
        found = re.fullmatch(r"([1-9]\d{0,14})(B|KiB|MiB|GiB|TiB)?", text)
        if found is None:
            raise self.wrong(f"is {text!r}; write a size such as 1048576, 512MiB or 1GiB")
        return int(found[1]) * _UNITS_BYTES[found[2] or "B"]


def duration_text(seconds: float) -> str:
    """A duration in the largest unit up to days that it is a whole number of; `Reader.duration_s` reads it back."""
    thousandths = round(seconds * 1000)
    unit = next(unit for unit in ("d", "h", "m", "s", "ms") if thousandths % _UNITS_MS[unit] == 0)
    return f"{thousandths // _UNITS_MS[unit]}{unit}"


def size_text(size_bytes: int) -> str:
    """A size in the largest unit that it is a whole number of; `Reader.size_bytes` reads it back."""
    unit = next(unit for unit in ("TiB", "GiB", "MiB", "KiB", "B") if size_bytes % _UNITS_BYTES[unit] == 0)
    return f"{size_bytes // _UNITS_BYTES[unit]}{'' if unit == 'B' else unit}"


def _inner(place: str, name: str) -> str:
    return name if place == TOP else f"{place}.{name}"


def lines_of(text: str, *, source: str) -> dict[str, int]:
    """Where everything stands: place, as messages name it (``tables[0].partitions``) → line, counted from 1.

    A field's line is its name's. Raises `BadRequest` for what is not plain YAML.
    """
    return dict(_lines(read_document(text, source=source).node, TOP))


def _lines(node: Any, place: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = _inner(place, str(key.value))
            yield inner, key.start_mark.line + 1
            yield from _lines(value, inner)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield f"{place}[{index}]", item.start_mark.line + 1
            yield from _lines(item, f"{place}[{index}]")


def read_document(text: str, *, source: str) -> Reader:
    """The one document in `text`. Raises `BadRequest` for what is not plain YAML."""
    top = Reader(None, TOP, source)
    if len(text) > TEXT_CHARACTERS_MAX:
        raise top.wrong(f"is longer than {TEXT_CHARACTERS_MAX} characters", line=1)
    try:
        try:
            node = _composed(text, top, _QUICK)
        except (yaml.YAMLError, UnicodeEncodeError):
            node = _composed(text, top, yaml.SafeLoader)  # it says better what is wrong, and where
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise top.wrong(f"is not YAML: {error.problem}", line=line) from None
    except yaml.YAMLError as error:
        raise top.wrong(f"is not YAML: {str(error).splitlines()[0]}", line=1) from None
    if node is None:
        raise top.wrong("is empty", line=1)
    return Reader(node, top.place, source)


def _composed(text: str, top: Reader, loader: Any) -> Any:
    _refuse_tricks(text, top, loader)
    return yaml.compose(text, Loader=loader)


def _refuse_tricks(text: str, top: Reader, loader: Any) -> None:
    """Anchors can make a short text endless and deep nesting exhausts the stack; no contract needs either."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=loader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise top.wrong("uses an anchor or alias; write the value out", line=line)
        if tag := getattr(event, "tag", None):
            raise top.wrong(f"uses the tag {tag!r}; write a plain value", line=line)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_MAX:
                raise top.wrong(f"is nested deeper than {DEPTH_MAX} levels", line=line)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise top.wrong("is followed by a second document; keep one a file", line=line)
