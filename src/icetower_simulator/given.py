"""Values that somebody wrote into a file, or answered: of the type that their field has, and numbers that are some."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from icetower.errors import ConfigurationError

LARGEST = 1e15
"""What counts in milliseconds or bytes stays exact up to here."""
_WORDS = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "a text"}


def checked(kind: type, given: Mapping[str, Any], what: str, source: str) -> dict[str, Any]:
    """The values, lists as pairs where a pair is wanted.

    Args:
        kind: the dataclass that is to be made of them; `what` it is called.

    Raises:
        ConfigurationError: a name or a value is none; the message names the source and the value.
    """
    types = {field.name: str(field.type) for field in fields(kind)}
    unknown = sorted(set(given) - set(types))
    if unknown:
        raise ConfigurationError(
            f"{source}: {', '.join(unknown)} is nothing that {what} has; it has {', '.join(sorted(types))}"
        )
    return {name: _value(name, value, types[name], source) for name, value in given.items()}


def _value(name: str, value: Any, wanted: str, source: str) -> Any:
    kind, _, optional = wanted.partition(" | ")
    if value is None and optional:
        return None
    if kind.startswith("tuple"):
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise ConfigurationError(f"{source}: {name} is a list of two numbers, not {value!r}")
        return tuple(_value(name, each, "float", source) for each in value)
    if not _fits(value, kind):
        raise ConfigurationError(f"{source}: {name} has the wrong type: it is {_WORDS[kind]}, not {value!r}")
    if kind in ("float", "int") and not _countable(value):
        raise ConfigurationError(f"{source}: {name} is a number between -{LARGEST:g} and {LARGEST:g}, not {value!r}")
    return value


def _countable(value: Any) -> bool:
    return math.isfinite(value) and abs(value) <= LARGEST


def _fits(value: Any, kind: str) -> bool:
    if kind == "bool" or isinstance(value, bool):
        return kind == "bool" and isinstance(value, bool)
    return isinstance(value, {"float": (int, float), "int": int, "str": str}[kind])
