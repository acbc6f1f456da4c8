"""What commands say to people: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from icetower.errors import UsageError


def at_terminal() -> bool:
    """Whether there is somebody who can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


@contextmanager
def writing(path: Path) -> Generator[None]:
    """While a file that somebody asked for is written. Raises `UsageError` where that is not possible."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}; name a place in a folder that is there"
        ) from error


def say(text: str) -> None:
    """A line of the result; flushed, since others may be waiting for it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def warn(text: str) -> None:
    sys.stderr.write(f"icetower: warning: {text}\n")
    sys.stderr.flush()


def fail(text: str) -> None:
    sys.stderr.write(f"icetower: {text}\n")
    sys.stderr.flush()
