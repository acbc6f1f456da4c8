"""Validates settings from a file or from a person's answers: each has its field's type, and numbers are finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from icetower.errors import ConfigurationError

LARGEST = 1e15
"""Milliseconds and bytes stay exact up to here."""
_TYPE_NAMES = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "text"}


def validated(kind: type, values: Mapping[str, Any], kind_name: str, source: str) -> dict[str, Any]:
    """The values, with a list as a tuple where the field is a pair.

    Args:
        kind: the dataclass that the values are for.
        kind_name: its name in messages.
        source: the origin of the values, for messages.

    Raises:
        ConfigurationError: a name is unknown or a value is invalid; the message names the source and the value.
    """
    types = {field.name: str(field.type) for field in fields(kind)}
    unknown = sorted(set(values) - set(types))
    if unknown:
        raise ConfigurationError(
            f"{source}: {kind_name} has no setting {', '.join(unknown)}; it has {', '.join(sorted(types))}"
        )
    return {name: _value(name, value, types[name], source) for name, value in values.items()}


def _value(name: str, value: Any, declared: str, source: str) -> Any:
    kind, _, optional = declared.partition(" | ")
    if value is None and optional:
        return None
    if kind.startswith("tuple"):
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise ConfigurationError(f"{source}: {name} must be a list of two numbers, not {value!r}")
        return tuple(_value(name, each, "float", source) for each in value)
    if not _fits(value, kind):
        raise ConfigurationError(f"{source}: {name} must be {_TYPE_NAMES[kind]}, not {value!r}")
    if kind in ("float", "int") and not _in_range(value):
        raise ConfigurationError(f"{source}: {name} must be between -{LARGEST:g} and {LARGEST:g}, not {value!r}")
    return value


def _in_range(value: Any) -> bool:
    return math.isfinite(value) and abs(value) <= LARGEST


def _fits(value: Any, kind: str) -> bool:
    if kind == "bool" or isinstance(value, bool):
        return kind == "bool" and isinstance(value, bool)
    return isinstance(value, {"float": (int, float), "int": int, "str": str}[kind])
