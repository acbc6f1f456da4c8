"""The fields of a contract: one entry each, from which everything else about a field follows. Pure.

A class of `model` that stands in a contract as a mapping is a `Part`, and each of its attributes that can be written is
made by `said`: how its value is read and written (`Kind`), what it means, its default, what a review says where it
changes, and how it stands in a contract to begin with.

    read_part     the reader (`document`), which refuses what it does not know with line and field
    written       the writer
    schema_of     the JSON Schema (`schema`)

`differences` and `cli.contract_template` walk `fields_of`; tests hold docs/contracts.md against the schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cache, partial
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

from icetower.contracts.reading import Reader, duration_text, size_text

JSON = dict[str, Any]
C = TypeVar("C")
P = TypeVar("P", bound="Part")

REQUIRED: Any = object()
"""Stands where a field has no default."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is written.

    Attributes:
        read: raises `BadRequest` for what is none.
        schema: its JSON Schema.
        part: of a mapping, its class.
    """

    read: Callable[[Reader], Any]
    schema: JSON
    written: Callable[[Any], Any] = lambda value: value
    part: type[Part] | None = None


@dataclass(frozen=True, slots=True)
class Saying:
    """What a review says where a field changes.

    Attributes:
        words: of what was and what is; in rules, with ``{}`` for the tables.
        gains: whether that grants more than before; None: neither more nor less.
        together: what the values of several rules for one table come to; of no rule, what goes without saying.
        of_writers: only rules that grant changes of files count.
    """

    words: Callable[[Any, Any], str]
    gains: Callable[[Any, Any], bool] | None = None
    together: Callable[[Sequence[Any]], Any] = any
    of_writers: bool = False


@dataclass(frozen=True, slots=True)
class Hint:
    """How a field stands in a contract to begin with: as a comment, unless it is `on`."""

    value: str
    note: str = ""
    above: str = ""
    on: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """One field.

    Attributes:
        says: what it means, for editors.
        name: as it is written.
        saying: for reviews. None: its text (`text`) stands there, or nothing.
    """

    kind: Kind
    says: str
    default: Any
    name: str
    saying: Saying | None
    text: Callable[[Any], str]
    hint: Hint | None


def said(
    kind: Kind,
    says: str = "",
    *,
    default: Any = REQUIRED,
    name: str = "",
    saying: Saying | None = None,
    text: Callable[[Any], str] = str,
    hint: Hint | None = None,
) -> Any:
    """An attribute of a part that is written as a field; without `name` as it is called itself."""
    given = {} if default is REQUIRED else {"default": default}
    return field(**given, metadata={Field: Field(kind, says, default, name, saying, text, hint)})


@dataclass_transform(frozen_default=True, field_specifiers=(said, field))
def part(cls: type[C]) -> type[C]:
    """A class whose attributes are made by `said`."""
    return dataclass(frozen=True, slots=True)(cls)


class Part:
    """What is written as a mapping of fields."""

    __slots__ = ()

    def problem(self) -> tuple[str, str] | None:
        """What is wrong with the fields together: the one to blame, or "" for all of them, and a sentence."""
        return None


@cache
def fields_of(part: type[Part]) -> Mapping[str, Field]:
    """The fields that are written, by attribute, in their order."""
    attributes: Any = fields(part)  # type: ignore[arg-type]  # every part is a dataclass
    found = {each.name: each.metadata[Field] for each in attributes if Field in each.metadata}
    return {attribute: replace(each, name=each.name or attribute) for attribute, each in found.items()}


def read_part(part: type[P], reader: Reader, *, head: Mapping[str, Kind] | None = None) -> P:
    """A part as written. `head`: fields that stand before its own, and are only checked. Raises `BadRequest`."""
    head, entries = head or {}, fields_of(part)
    required = [each.name for each in entries.values() if each.default is REQUIRED]
    optional = [each.name for each in entries.values() if each.default is not REQUIRED]
    given = reader.fields(required=(*head, *required), optional=optional)
    for name, kind in head.items():
        kind.read(given[name])
    read = part(**{at: each.kind.read(given[each.name]) for at, each in entries.items() if each.name in given})
    if problem := read.problem():
        name, why = problem
        raise given.get(name, reader).wrong(why)
    return read


def written(part: Part, *, full: bool = False) -> JSON:
    """A part as `read_part` reads it, without what goes without saying; `full`: with all that has a value."""
    found = ((each, getattr(part, attribute)) for attribute, each in fields_of(type(part)).items())
    return {
        each.name: each.kind.written(value)
        for each, value in found
        if (value is not None if full else each.default is REQUIRED or value != each.default)
    }


def schema_of(part: type[Part]) -> JSON:
    """The JSON Schema of a part."""
    entries = fields_of(part).values()
    required = [each.name for each in entries if each.default is REQUIRED]
    return object_schema({each.name: _schema(each) for each in entries}, required)


def _schema(entry: Field) -> JSON:
    default: Any = None if entry.default in (REQUIRED, None) else entry.kind.written(entry.default)
    return {
        **({"description": entry.says} if entry.says else {}),
        **entry.kind.schema,
        **({"default": default} if isinstance(default, str | int) and default != "" else {}),
    }


def object_schema(properties: Mapping[str, Any], required: Sequence[str] = (), **rules: Any) -> JSON:
    """The JSON Schema of a mapping whose names are fixed."""
    return {
        "type": "object",
        **({"required": list(required)} if required else {}),
        **rules,
        "properties": dict(properties),
        "additionalProperties": False,
    }


# ── Kinds ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_SIZE = r"^[1-9]\d{0,14}(B|KiB|MiB|GiB|TiB)?$"
TEXT = Kind(Reader.text, {"type": "string"})
FLAG = Kind(Reader.boolean, {"type": "boolean"})
SIZE = Kind(
    Reader.size_bytes,
    {
        "anyOf": [
            {"type": "integer", "minimum": 1},
            {"type": "string", "pattern": r"^[1-9]\d{0,14}(B|KiB|MiB|GiB|TiB)?$"},
        ]
    },
    size_text,
)


def text_like(pattern: str, wrong: str, **more: Any) -> Kind:
    """A text that a pattern matches. `wrong`: what else is, with ``{!r}`` for it; `more`: for the schema."""

    def read(reader: Reader) -> str:
        text = reader.text()
        if not re.fullmatch(pattern, text) or more.get("not") == {"const": text} or len(text) > _length_max:
            raise reader.wrong(wrong.format(text))
        return text

    _length_max = more.get("maxLength", float("inf"))
    return Kind(read, {"type": "string", "pattern": f"^{pattern}$", **more})


def number(least: int) -> Kind:
    """A whole number."""
    return Kind(lambda reader: reader.whole_number(least=least), {"type": "integer", "minimum": least})


def duration(per_s: int = 1) -> Kind:
    """A time span, kept in a unit of which `per_s` are a second."""
    return Kind(
        lambda reader: reader.duration_s() if per_s == 1 else round(reader.duration_s() * per_s),
        {"type": "string", "pattern": r"^(?=\d{1,15}\D)0*[1-9]\d*(ms|s|m|h|d|w)$"},
        lambda value: duration_text(value / per_s),
    )


def choice(values: type[StrEnum]) -> Kind:
    """One value of an enumeration."""
    texts = [value.value for value in values]
    return Kind(lambda reader: values(reader.choice(texts)), {"enum": texts}, attrgetter("value"))


def choices(values: type[StrEnum], empty: str) -> Kind:
    """Several values of an enumeration. `empty`: what to do where there are none."""

    def read(reader: Reader) -> frozenset[Any]:
        found = frozenset(map(choice(values).read, reader.items()))
        if not found:
            raise reader.wrong(f"is empty; {empty}")
        return found

    schema = {"type": "array", "items": choice(values).schema, "minItems": 1}
    return Kind(read, schema, lambda held: [value.value for value in values if value in held])


def switch(words: Sequence[str], on: str) -> Kind:
    """True or false in words of its own: `on` stands for true, the other of `words` for false."""
    off = next((word for word in words if word != on), None)
    return Kind(lambda reader: reader.choice(words) == on, {"enum": list(words)}, lambda is_on: on if is_on else off)


def listed(item: Kind) -> Kind:
    """A list."""
    return Kind(
        lambda reader: tuple(map(item.read, reader.items())),
        {"type": "array", "items": item.schema},
        lambda values: list(map(item.written, values)),
    )


def nested(part: type[Part], *, full: bool = False) -> Kind:
    """A mapping. `full`: what it leaves out is written all the same."""
    return Kind(partial(read_part, part), schema_of(part), partial(written, full=full), part)


def only(name: str, kind: Kind, says: str) -> Kind:
    """A value as the only field of a mapping."""
    return Kind(
        lambda reader: kind.read(reader.fields(required=(name,), optional=())[name]),
        object_schema({name: {"description": says, **kind.schema}}, (name,)),
        lambda value: {name: kind.written(value)},
    )


# ── Fields of rules ──────────────────────────────────────────────────────────────────────────────────────────────────


def either(on: str, off: str) -> Callable[[Any, Any], str]:
    """What a review says where a flag changes."""
    return lambda _, now: on if now else off


def flag(says: str, on: str, off: str, *, gains: bool = False, hint: Hint | None = None) -> Any:
    """A flag, off by default. `on`, `off`: what a review says where it changes; `gains`: whether it grants more."""
    return said(FLAG, says, default=False, saying=Saying(either(on, off), lambda _, now: now is gains), hint=hint)


def limit(kind: Kind, says: str, words: Callable[[int], str]) -> Any:
    """A quota, none by default; of several the strictest holds. `words`: how a review says it."""

    def changed(was: int | None, now: int | None) -> str:
        if now is None:
            return f"gains writes to {{}} without a limit of {words(was or 0)}"
        before = "" if was is None else f", before: {words(was)}"
        return f"is limited to {words(now)} on {{}}{before}"

    def gains(was: int | None, now: int | None) -> bool:
        return now is None or (was is not None and now > was)

    def strictest(values: Sequence[int | None]) -> int | None:
        return min((value for value in values if value is not None), default=None)

    return said(kind, says, default=None, saying=Saying(changed, gains, strictest))
