"""Counted things in messages: ``1 row``, ``2 rows``."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A number and its noun; `plural` where that is more than an s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def number_of(count: int, noun: str, plural: str | None = None) -> str:
    """The same with thousands set off by commas."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def series(items: Sequence[str], last: str = "and") -> str:
    """``a, b and c``."""
    return f" {last} ".join(([", ".join(items[:-1])] if len(items) > 1 else []) + list(items[-1:]))
