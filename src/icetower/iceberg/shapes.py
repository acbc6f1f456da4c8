"""Reading fields of plain JSON, with errors that name the field, as Iceberg's `JsonUtil` does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, cast

from icetower.errors import BadRequest

JSON = dict[str, Any]
_MISSING = object()


def integer(value: Mapping[str, Any], field: str, where: str, *, bits: int = 64) -> int:
    """The integer in a field.

    Args:
        bits: how wide it may be. Iceberg's ids have 32: a wider one, no Java client could read.

    Raises:
        BadRequest: missing, no integer, or too wide.
    """
    found = value.get(field, _MISSING)
    # A JSON true is an int to Python, not to Iceberg.
    if not isinstance(found, int) or isinstance(found, bool) or not -1 << (bits - 1) <= found < 1 << (bits - 1):
        _refuse(found, field, where, f"an integer of {bits} bits" if isinstance(found, int) else "an integer")
    return found


def optional_integer(value: Mapping[str, Any], field: str, where: str, *, bits: int = 64) -> int | None:
    """The integer in a field; None where it is missing or null."""
    return None if value.get(field) is None else integer(value, field, where, bits=bits)


def text(value: Mapping[str, Any], field: str, where: str) -> str:
    """The string in a field.

    Raises:
        BadRequest: missing, or no string.
    """
    found = value.get(field, _MISSING)
    if not isinstance(found, str):
        _refuse(found, field, where, "a string")
    return found


def flag(value: Mapping[str, Any], field: str, where: str) -> bool:
    """The boolean in a field.

    Raises:
        BadRequest: missing, or no boolean.
    """
    found = value.get(field, _MISSING)
    if not isinstance(found, bool):
        _refuse(found, field, where, "true or false")
    return found


def mapping(value: Mapping[str, Any], field: str, where: str) -> Mapping[str, Any]:
    """The object in a field.

    Raises:
        BadRequest: missing, or no object.
    """
    found = value.get(field, _MISSING)
    if not isinstance(found, dict):
        _refuse(found, field, where, "an object")
    return cast("Mapping[str, Any]", found)


def objects(value: Mapping[str, Any], field: str, where: str) -> list[JSON]:
    """The list of objects in a field.

    Raises:
        BadRequest: missing, no list, or something in it is no object.
    """
    found = value.get(field, _MISSING)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        _refuse(found, field, where, "a list of objects")
    return cast("list[JSON]", found)


def integers(value: Mapping[str, Any], field: str, where: str, *, bits: int = 64) -> list[int]:
    """The list of integers in a field.

    Raises:
        BadRequest: missing, no list, or something in it is no integer, or too wide.
    """
    found = value.get(field, _MISSING)
    if not isinstance(found, list):
        _refuse(found, field, where, "a list of integers")
    return [integer({field: entry}, field, where, bits=bits) for entry in cast("list[Any]", found)]


def texts(value: Mapping[str, Any], field: str, where: str) -> list[str]:
    """The list of strings in a field.

    Raises:
        BadRequest: missing, no list, or something in it is no string.
    """
    found = value.get(field, _MISSING)
    if not isinstance(found, list) or not all(isinstance(entry, str) for entry in found):
        _refuse(found, field, where, "a list of strings")
    return cast("list[str]", found)


def text_map(value: Mapping[str, Any], field: str, where: str) -> dict[str, str]:
    """The string-to-string object in a field.

    Raises:
        BadRequest: missing, no object, or a value in it is no string.
    """
    found = mapping(value, field, where)
    for key, entry in found.items():
        if not isinstance(entry, str):
            _refuse(entry, f"{field}[{key!r}]", where, "a string")
    return dict(found)


def without_nulls(value: Mapping[str, Any]) -> JSON:
    """A copy without the fields that are null: to Iceberg they are absent."""
    return {key: entry for key, entry in value.items() if entry is not None}


def _refuse(found: object, field: str, where: str, wanted: str) -> NoReturn:
    if found is _MISSING:
        raise BadRequest(f"Cannot parse {where}: missing field {field} ({wanted})", rule="shape")
    raise BadRequest(f"Cannot parse {where}: field {field} must be {wanted}, not {str(found)[:80]!r}", rule="shape")
