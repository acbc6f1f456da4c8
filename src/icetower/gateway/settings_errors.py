"""What is wrong with a configuration file, so that its author finds the place: file, section, key, and the way out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from icetower.errors import ConfigurationError

_SHOWN = ("server",)
"""Sections whose values may be shown; in the others there may be secrets."""


def settings_error(path: Path | None, model: type[BaseModel], error: ValidationError) -> ConfigurationError:
    """The first mistake of a configuration."""
    first = error.errors()[0]
    where = [str(part) for part in first["loc"]]
    known = _known(model, where[:-1])
    if first["type"] == "extra_forbidden" and known is not None:
        near = get_close_matches(where[-1], known, n=1, cutoff=0.6)
        kind = "key" if len(where) > 1 else "section"
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
        said = f"there is no such {kind}; {hint}"
    else:
        message = str(first["msg"])
        value = f"is {str(first.get('input'))[:80]!r}: " if where[:1] == list(_SHOWN) else ""
        said = f"{value}{message[:1].lower()}{message[1:]}"
    return ConfigurationError(f"{path or 'the command line'}: {_place(where)}: {said}", rule="configuration.settings")


def _place(where: Sequence[str]) -> str:
    return f"[{where[0]}]" if len(where) == 1 else f"[{'.'.join(where[:-1])}] {where[-1]}"


def _known(model: type[BaseModel], path: Sequence[str]) -> list[str] | None:
    """The keys of a section; None where any key may stand."""
    at: Any = model
    for part in path:
        fields: Mapping[str, Any] = getattr(at, "model_fields", {})
        named = next((field for name, field in fields.items() if part in (name, field.alias)), None)
        if named is None:
            return None
        at = named.annotation
    own: Mapping[str, Any] | None = getattr(at, "model_fields", None)
    return None if own is None else [field.alias or name for name, field in own.items()]
