"""Output of commands: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from icetower.errors import UsageError

_CONTROLS = (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0))
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_COMMANDS = dict.fromkeys((*_CONTROLS, *_DIRECTIONS))


def at_terminal() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Around writing a file that the user asked for. Raises `UsageError` if that is not possible."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; name a file in an existing folder") from error


def harmless(text: str) -> str:
    """Text without characters that control a terminal or change the reading direction. (They have no width.)"""
    return text.translate(_COMMANDS)


def say(text: str) -> None:
    """Print a line of the result; flushed, since another process may be waiting for it."""
    sys.stdout.write(harmless(text) + "\n")
    sys.stdout.flush()


def warn(text: str) -> None:
    sys.stderr.write(f"icetower: warning: {harmless(text)}\n")
    sys.stderr.flush()


def fail(text: str) -> None:
    sys.stderr.write(f"icetower: {harmless(text)}\n")
    sys.stderr.flush()
