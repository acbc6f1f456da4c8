"""Table properties of ours that a commit sets or removes: may a client, and does the value say something? Pure.

The tower goes by a handful of properties, and by nothing in between: a misspelt one asks for nothing, and the table's
owner would rely on it. Those that a table has already, from a registration or another release, may stay. What the tower
keeps in properties for itself is neither set nor removed by clients. Fences of keys are the exception: whoever may
alter the table may lift one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from icetower.contracts.model import ADVISORY, REQUIRED
from icetower.errors import ValidationFailed
from icetower.protocol.marks import (
    BLIND_APPENDS,
    INTENTS,
    INTENTS_FENCE,
    OURS,
    PUBLISHED,
    RETENTION_AGE_MAX_MS,
    RETENTION_SINKS_MAX_MS,
    RETENTION_SNAPSHOTS_MAX,
    SNAPSHOTS_PER_SECOND,
    STRICT,
)


def positive(text: str) -> int | None:
    """The number that a property gives; None where it is none, or 0."""
    return int(text) or None if text.isascii() and text.isdecimal() and len(text) < 19 else None


def _is_flag(text: str) -> bool:
    return text.lower() in ("true", "false")


def _is_positive(text: str) -> bool:
    return positive(text) is not None


def snapshots_per_s(text: str) -> float | None:
    """The number that `SNAPSHOTS_PER_SECOND` gives; None where it is none, or beyond its bounds."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if 1 <= found <= 1000 else None


_FLAG = ("true or false", _is_flag)
_COUNT = ("a whole number above 0; to ask for nothing, remove the property", _is_positive)

_KNOWN: Mapping[str, tuple[str, Callable[[str], bool]]] = {
    BLIND_APPENDS: _FLAG,
    STRICT: _FLAG,
    INTENTS: (f"{ADVISORY} or {REQUIRED}", lambda text: text in (ADVISORY, REQUIRED)),
    SNAPSHOTS_PER_SECOND: ("a number from 1 to 1000", lambda text: snapshots_per_s(text) is not None),
    RETENTION_SNAPSHOTS_MAX: _COUNT,
    RETENTION_AGE_MAX_MS: _COUNT,
    RETENTION_SINKS_MAX_MS: _COUNT,
}
"""Property → what its value must be, in words and as a check."""


def check_properties(given: Mapping[str, object], before: Mapping[str, object]) -> None:
    """Raises `ValidationFailed` (``property.unknown``, ``property.value``) for what is set anew and says nothing.

    Args:
        given: the properties to be set.
        before: those that the table has.
    """
    for name, value in given.items():
        if not name.startswith(OURS) or before.get(name) == value:
            continue
        if name not in _KNOWN:
            raise ValidationFailed(
                f"the table property {name} is not known here; those that the tower goes by are "
                f"{', '.join(sorted(_KNOWN))}",
                rule="property.unknown",
            )
        wanted, holds = _KNOWN[name]
        if not holds(str(value)):
            raise ValidationFailed(
                f"the table property {name} is {str(value)[:100]!r}; it must be {wanted}", rule="property.value"
            )


def check_removed_properties(names: Iterable[str], before: Mapping[str, object]) -> None:
    """Raises `ValidationFailed` (``property.tower``) where the tower's memory of fences or publications would go.

    Args:
        names: the properties to be removed.
        before: those that the table has.
    """
    for name in names:
        if name in before and (name == INTENTS_FENCE or name.startswith(PUBLISHED)):
            raise ValidationFailed(
                f"the table property {name} is the tower's own: without it, leases that have ended or publications "
                "that are done could count anew. Leave it as it is",
                rule="property.tower",
            )
