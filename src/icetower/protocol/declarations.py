"""What the owner of a table declares about its writers, so that stale commits are judged instead of sent back."""

from __future__ import annotations

import shlex
from enum import StrEnum

from icetower.protocol.marks import BLIND_APPENDS
from icetower.texts import acting_character, escaped

LEVELS = tuple(f"write.{command}.isolation-level" for command in ("merge", "update", "delete"))
"""The table properties by which Spark chooses how much a command validates."""


class Declaration(StrEnum):
    """A declaration that the server may lack.

    Under `BLIND_APPENDS` every append lands that was refused for want of it. Under the others commits are compared with
    what was written meanwhile. `READ_SCOPE` is given by a contract alone, or by the writer.
    """

    BLIND_APPENDS = "blind-appends"
    SNAPSHOT_ISOLATION = "snapshot-isolation"
    READ_SCOPE = "read-scope"


_OPTIONS = {
    Declaration.BLIND_APPENDS: ("--blind-appends",),
    Declaration.SNAPSHOT_ISOLATION: ("--isolation", "snapshot"),
}


def command_of(declaration: Declaration, table: str) -> str | None:
    """The command that gives a declaration for a table, to be pasted into a shell; None where a contract gives it."""
    options = _OPTIONS.get(declaration)
    if options is None:
        return None
    # A name that begins like an option would be taken for one.
    words = [*options, "--", table] if table.startswith("-") else [table, *options]
    return " ".join(("icetower tables set", *map(_quoted, words)))


def _quoted(word: str) -> str:
    """A word for bash or zsh, on one line whatever it holds."""
    if acting_character(word) is None:
        return shlex.quote(word)
    plain = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{escaped(plain)}'"


def properties_of(declaration: Declaration) -> dict[str, str]:
    """The table properties that a declaration consists of; none where a contract gives it."""
    if declaration is Declaration.BLIND_APPENDS:
        return {BLIND_APPENDS: "true"}
    return dict.fromkeys(LEVELS, "snapshot") if declaration is Declaration.SNAPSHOT_ISOLATION else {}
