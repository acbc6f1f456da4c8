"""Times and sizes as the page says them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def moment_text(ms: int) -> str:
    """A time of UTC, to the second; a time that no calendar has stays a number."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def machine_time(ms: int) -> str:
    """The same for the attribute `datetime`."""
    return moment_text(ms).replace(" ", "T") + "Z"


def clock_text(ms: int) -> str:
    """The time of the day alone."""
    return moment_text(ms)[-8:]


def age_text(ms: int, now_ms: int) -> str:
    """How long ago that is, in one unit: ``3 min``. What is less than a second ago, or to come, is ``now``."""
    age_ms = now_ms - ms
    unit_ms, unit = next((each for each in _UNITS if age_ms >= each[0]), (0, ""))
    return f"{age_ms // unit_ms} {unit}" if unit else "now"


def took_text(ms: float | None) -> str:
    """A duration: ``0.4 ms``, ``38 ms``, ``1.24 s``; a dash where it is not known."""
    if ms is None:
        return "–"
    if ms >= 1000:
        return f"{ms / 1000:,.2f} s"
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms"


def bytes_text(size: int | None) -> str:
    """A size: ``812 B``, ``14.2 KiB``."""
    if size is None:
        return "–"
    if size < 1024:
        return f"{size} B"
    units = ("KiB", "MiB", "GiB", "TiB")
    power = next((at for at in range(1, len(units)) if size < 1024 ** (at + 1)), len(units))
    return f"{size / 1024**power:,.1f} {units[power - 1]}"
