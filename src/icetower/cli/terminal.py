"""Output of commands: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from icetower.errors import UsageError
from icetower.texts import escaped


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
    r"""Text whose characters that control a terminal, or change the reading direction, are shown as `\x1b`.

    Ends of lines stay: in a name, or whatever else others wrote, `texts.escaped` shows them before.
    """
    return escaped(text, but="\n\t")


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
