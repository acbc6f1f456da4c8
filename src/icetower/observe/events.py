"""Structured lines on the server's log: one for each thing that an operator may have to look for.

A line is a record of Python's logging with fields. `LineFormatter` writes it, and every other record of the process, as
logfmt or as JSON: always one line, with every value escaped, so that no text of a client can begin a line of its own.
Of each kind of event a limited number is written in a minute. What is left out is counted, and the count is a line too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from icetower.ambient import Ambient

log = logging.getLogger("icetower")

WINDOW_S = 60.0
LINES_MAX = 100
"""Lines of one kind in one window."""
VALUE_CHARACTERS_MAX = 500
ITEMS_MAX = 5
"""Items of a list that a line names; it counts the rest."""
_FIELDS = "event_fields"
_PLAIN = re.compile(r"[A-Za-z0-9_./:@+,*~-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_PASSWORD_IN_URL = re.compile(r"://[^/\s@]*@")
_SECRET = re.compile(r"\b(?:ict|icat)_[A-Za-z0-9_-]{20,}")
"""What a tower gives out, also where a client has put it into a path."""


class Event(StrEnum):
    """The kinds of events; docs/operations.md explains each."""

    REFUSED = "refused"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"
    LANDED = "landed"
    FAILED = "failed"
    NOT_AUTHENTICATED = "not-authenticated"
    ESCALATION = "escalation"
    METADATA_LOST = "metadata-lost"
    SWAP_SLOW = "swap-slow"
    BYPASS = "bypass"
    UNDECLARED = "undeclared"
    NOT_SENT = "not-sent"
    LEFT_OUT = "left-out"


class Form(StrEnum):
    """How lines are written."""

    LOGFMT = "logfmt"
    JSON = "json"


@dataclass(slots=True)
class _Window:
    """How many events of one kind there were since a time, and how many of them were left out."""

    since_s: float
    count: int = 0
    left_out: int = 0


class Events:
    """Writes events to the log. One a server.

    Args:
        lines_max: so many lines of one kind are written in `WINDOW_S` seconds; None: all.
    """

    def __init__(self, ambient: Ambient, *, lines_max: int | None = LINES_MAX) -> None:
        self._ambient = ambient
        self._lines_max = lines_max
        self._windows: dict[Event, _Window] = {}
        self._timer: asyncio.TimerHandle | None = None

    def say(self, event: Event, level: int = logging.WARNING, /, **fields: object) -> None:
        """One line, unless there were too many of its kind in this window. A field that is None is left out."""
        if not log.isEnabledFor(level):
            return
        now_s = self._ambient.monotonic_s()
        self._count(now_s)
        window = self._windows.setdefault(event, _Window(now_s))
        window.count += 1
        if self._lines_max is not None and window.count > self._lines_max:
            window.left_out += 1
            self._count_later()
            return
        _write(event, level, fields)

    def writes(self, level: int) -> bool:
        """Whether lines of a level are written at all."""
        return log.isEnabledFor(level)

    def close(self) -> None:
        """Say what was left out so far."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._count(None)

    def _count(self, now_s: float | None) -> None:
        """End the windows that are over, or all of them, and say what was left out in them."""
        over = [e for e, window in self._windows.items() if now_s is None or now_s >= window.since_s + WINDOW_S]
        for event in over:
            window = self._windows.pop(event)
            if window.left_out:
                _write(Event.LEFT_OUT, logging.WARNING, {"of": event.value, "count": window.left_out})

    def _count_later(self) -> None:
        """See to it that the count is written even if nothing else happens."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self._at_the_end)

    def _at_the_end(self) -> None:
        self._timer = None
        self._count(self._ambient.monotonic_s())
        if any(window.left_out for window in self._windows.values()):
            self._count_later()


def _write(event: Event, level: int, fields: Mapping[str, object]) -> None:
    said = {name: value for name, value in fields.items() if value is not None and value != ()}
    log.log(level, "%s", event.value, extra={_FIELDS: {"event": event.value, **said}})


class LineFormatter(logging.Formatter):
    """Writes every record as one line: its time, level and logger, and its fields or its message."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields: dict[str, Any] = {"time": at, "level": record.levelname.lower(), "logger": record.name}
        own: Mapping[str, object] | None = getattr(record, _FIELDS, None)
        if own is None:
            fields["message"] = record.getMessage()
        else:
            fields |= own
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        shown = {name: _shown(name, value) for name, value in fields.items()}
        if self._form is Form.JSON:
            return json.dumps(shown, ensure_ascii=True)
        return " ".join(f"{name}={_logfmt(value)}" for name, value in shown.items())


def _shown(name: str, value: object) -> object:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return round(value, 3) if isinstance(value, float) else value
    if isinstance(value, list | tuple):
        items: list[object] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        rest = [f"and {len(items) - ITEMS_MAX} more"] if len(items) > ITEMS_MAX else []
        return [_shown(name, item) for item in (*items[:ITEMS_MAX], *rest)]
    text = _SECRET.sub("…", _PASSWORD_IN_URL.sub("://", str(value)))
    most = VALUE_CHARACTERS_MAX * (20 if name == "traceback" else 1)
    return text if len(text) <= most else text[: most - 1] + "…"


def _logfmt(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=True)


def configure_logging(form: Form, level: str) -> None:
    """Write all logging of this process to standard error, in one form; for the start of a server."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def one_line(text: str) -> str:
    """Text that may go into a database, a header or a terminal: no control characters, no ends of lines."""
    return _CONTROL.sub(" ", text.encode("utf-8", "replace").decode())
