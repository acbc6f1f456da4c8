"""Points in time as people type and read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import typer

from icetower.errors import UsageError

PAUSE_LEAST_S = 0.1
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?")
_AGO = re.compile(r"(\d{1,9})(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def since_ms(text: str, now_ms: int) -> int:
    """A point in time, in milliseconds since 1970. Raises `UsageError`."""
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            return now_ms - int(timedelta(**{_UNITS[ago[2]]: int(ago[1])}).total_seconds() * 1_000)
        at = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"--since {text!r} is not a time: write 2026-11-21T08:00Z, or how long ago: 90m, 2h, 1d"
        ) from error
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000)


def duration_s(text: str, option: str) -> float:
    """A length of time such as 90m, 2h or 1d, in seconds. Raises `UsageError`, which names the option."""
    found = _AGO.fullmatch(text)
    if found is None:
        raise UsageError(f"{option} {text!r} is not a length of time: write it like 90m, 2h or 1d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])}).total_seconds()


def seconds_of(given: str | float) -> float:
    """An option's length of time, in seconds: 90m, 2h, or a number of seconds alone. Raises `typer.BadParameter`."""
    text = str(given)
    try:
        seconds = float(text) if _NUMBER.fullmatch(text) else duration_s(text, "it")
    except UsageError as error:
        raise typer.BadParameter(f"{text!r} is not a length of time: write it like 90s, 5m or 2h") from error
    return seconds


def pause_of(given: str | float) -> float:
    """Likewise, of a pause between two looks: at least a tenth of a second."""
    seconds = seconds_of(given)
    if seconds < PAUSE_LEAST_S:
        raise typer.BadParameter(f"{given} is too short; the least is {PAUSE_LEAST_S:g} s")
    return seconds


def time_text(at_ms: int) -> str:
    """A time as people read it, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
