"""Output of commands: results on standard output, everything else on standard error.

With `--json` each warning and each error is one JSON object on one line of standard error, so that a program can read
both streams.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from icetower.errors import IcetowerError, UsageError
from icetower.texts import escaped

DONE, FAILED, USED_WRONGLY, FOUND, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit statuses, as docs/commands.md describes them."""


def at_terminal() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty() and not for_machines()


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


def for_machines() -> bool:
    """Whether the command line asks for JSON; also where the rest of it cannot be read."""
    words = sys.argv[1:]
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def warn(text: str) -> None:
    _say_aside(f"icetower: warning: {harmless(text)}", {"warning": {"message": text}})


def tell_finding(text: str) -> None:
    """Report a finding of a review, which by itself ends nothing."""
    _say_aside(f"icetower: {harmless(text)}", {"finding": {"message": text}})


def fail(text: str, status: int, error: IcetowerError | None = None) -> None:
    """Report why a command ended.

    Args:
        status: the exit status, which is part of the JSON.
        error: what a server or Icetower itself raised; its rule and its next step are part of the JSON.
    """
    about: dict[str, Any] = {"message": text, "exit_status": status}
    if error is not None:
        about |= {"rule": error.rule, "next_step": error.next_step}
        further = {
            "partitions": list(error.partitions),
            "snapshot": error.snapshot,
            "owner": error.owner,
            "wait_until_ms": error.wait_until_ms,
            "escalated_to": error.escalated_to,
            "request_id": error.request_id,
        }
        about |= {name: value for name, value in further.items() if value}
    _say_aside(f"icetower: {harmless(text)}", {"error": about})


def interrupted_line(text: str, status: int) -> str:
    """The line for a command that a signal has ended."""
    about = {"error": {"message": text, "exit_status": status}}
    return json.dumps(about) if for_machines() else f"icetower: {text}"


def _say_aside(text: str, as_json: dict[str, Any]) -> None:
    sys.stderr.write((json.dumps(as_json) if for_machines() else text) + "\n")
    sys.stderr.flush()
