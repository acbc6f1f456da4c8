"""What commands say to people: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys


def at_terminal() -> bool:
    """Whether there is somebody who can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


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
