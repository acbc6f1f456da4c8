"""How large the schemas of one request may be: their columns, how deep they lie, and their full names; pure.

A column's full name repeats the names of all that it lies in, so that a name of 40 KB around 3,000 columns takes 120 MB
wherever columns are looked up by name (trap A8). The limits lie well above what engines take: Hive's and PostgreSQL's
names have 128 and 63 characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from icetower.errors import ValidationFailed

COLUMNS_MAX = 20_000
"""Columns of all schemas that one request adds, nested ones included."""

DEPTH_MAX = 100
NAME_CHARACTERS_MAX = 1_000
FULL_NAME_CHARACTERS_MAX = 10_000
FULL_NAMES_CHARACTERS_MAX = 8 * 1024 * 1024
"""Full names of all columns together. Without it, deep schemas within the other limits would take hundreds of MB."""

_SHOWN_CHARACTERS = 40
_PARTS = ("element", "key", "value")


def check_schemas(schemas: Iterable[Any], what: str) -> None:
    """Refuse schemas that are too large. They may have any shape: their form is looked at afterwards.

    Args:
        what: who sent them, for the message.

    Raises:
        ValidationFailed: ``limit.schemas``.
    """
    columns = characters = 0
    for schema in schemas:
        for name, own, full, depth in _walk(schema):
            columns += 1
            characters += full
            if own > NAME_CHARACTERS_MAX:
                raise _refused(what, f"a name of {own} characters", name, NAME_CHARACTERS_MAX)
            if full > FULL_NAME_CHARACTERS_MAX:
                raise _refused(what, f"a full name of {full} characters", name, FULL_NAME_CHARACTERS_MAX)
            if depth > DEPTH_MAX:
                raise _refused(what, f"a depth of {depth}", name, DEPTH_MAX)
            if columns > COLUMNS_MAX:
                raise ValidationFailed(
                    f"the schemas of the {what} have more than {COLUMNS_MAX} columns, nested ones included; send fewer "
                    "in one request",
                    rule="limit.schemas",
                )
            if characters > FULL_NAMES_CHARACTERS_MAX:
                raise ValidationFailed(
                    f"the full names of all columns in the schemas of the {what} have more than "
                    f"{FULL_NAMES_CHARACTERS_MAX} characters; shorten the names of columns that hold others",
                    rule="limit.schemas",
                )


def characters_around(schema: Any) -> int:
    """How many characters the full names of a schema's columns have besides the columns' own names.

    It is quick, since columns at the top have none: a whole table's schemas can be measured whenever they are read.
    """
    found, waiting = 0, [(schema, 0)]
    while waiting:
        type_, around = waiting.pop()
        if not isinstance(type_, Mapping):
            continue
        holder = cast("Mapping[str, Any]", type_)
        fields: object = holder.get("fields")
        if isinstance(fields, list):
            members = cast("list[Any]", fields)
            found += around * len(members)
            waiting += [
                (field["type"], around + len(str(field.get("name"))) + 1)
                for field in members
                if isinstance(field, Mapping) and type(cast("Mapping[str, Any]", field).get("type")) is dict
            ]
        for part in _PARTS:
            if part in holder:
                found += around
                waiting.append((holder[part], around + len(part) + 1))
    return found


def _walk(schema: Any) -> Iterator[tuple[str, int, int, int]]:
    """Of each column: its name, the characters of its own name and of its full one, and how deep it lies."""
    waiting: list[tuple[Any, int, int]] = [(schema, 0, 1)]
    while waiting:
        type_, around, depth = waiting.pop()
        if not isinstance(type_, Mapping):
            continue
        holder = cast("Mapping[str, Any]", type_)
        fields: object = holder.get("fields")
        for field in cast("list[Any]", fields) if isinstance(fields, list) else ():
            if isinstance(field, Mapping):
                column = cast("Mapping[str, Any]", field)
                name = str(column.get("name"))
                yield name, len(name), around + len(name), depth
                waiting.append((column.get("type"), around + len(name) + 1, depth + 1))
        for part in _PARTS:
            if part in holder:
                yield part, len(part), around + len(part), depth
                waiting.append((holder[part], around + len(part) + 1, depth + 1))


def _refused(what: str, has: str, name: str, most: int) -> ValidationFailed:
    shown = name if len(name) <= _SHOWN_CHARACTERS else name[:_SHOWN_CHARACTERS] + "…"
    return ValidationFailed(
        f"the column {shown!r} in a schema of the {what} has {has}; at most {most} are taken. "
        "Give columns shorter names, or nest them less deeply",
        rule="limit.schemas",
    )
