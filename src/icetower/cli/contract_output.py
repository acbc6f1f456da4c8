"""The output of the commands for contracts: findings and changes, for people, for machines, and for GitHub."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from icetower.cli.printing import SafeConsole
from icetower.cli.terminal import say
from icetower.cli.timelines import AGAIN, BAD, FAINT, hanging
from icetower.contracts.differences import Change, Kind, changes
from icetower.contracts.findings import Finding, Place, Severity, Written
from icetower.contracts.model import Contract
from icetower.texts import escaped

_SIGNS = {Kind.GAINS: "+", Kind.LOSES: "-", Kind.CHANGES: "~"}
_STYLES = {Severity.ERROR: BAD, Severity.WARNING: AGAIN, Severity.NOTE: FAINT}
_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes of one contract.

    Attributes:
        version: the version in force; None: there is none.
        since: the git commit that it is compared with, instead of the version in force.
        new: the contract did not exist before.
        written: the new text; None: it was removed.
        principals: the principals that it binds.
    """

    name: str
    changes: tuple[Change, ...]
    version: int | None = None
    since: str | None = None
    new: bool = False
    written: Written | None = None
    principals: Sequence[str] = ()

    @classmethod
    def between(cls, old: Contract | None, written: Written | None, **about: Any) -> Difference:
        """The difference between an old contract and its new text, either of which may be missing."""
        now = None if written is None else written.contract
        name = now.name if now is not None else old.name if old is not None else ""
        return cls(name, changes(old, now), new=old is None, written=written, **about)


# ── For people ───────────────────────────────────────────────────────────────────────────────────────────────────────


def say_findings(findings: Sequence[Finding]) -> None:
    """Print findings: a line each, as editors read it; at a terminal a heading, and the message below it."""
    console = SafeConsole()
    for finding in findings:
        if console.is_terminal:
            kind = str(finding.severity), _STYLES[finding.severity]
            console.print(Text.assemble(f"{finding.place}  ", kind, f"  {finding.rule}", overflow="fold"))
            hanging(console, "", Text(escaped(finding.message)))
        else:
            line(f"{finding.place}: {finding.severity}: {finding.message} [{finding.rule}]")
    counts = [
        f"{count} {severity}{'s' if count > 1 else ''}"
        for severity in Severity
        if (count := sum(finding.severity is severity for finding in findings))
    ]
    line(", ".join(counts) or "nothing was found")


def say_differences(differences: Sequence[Difference], *, nothing: str) -> None:
    """Print each change on a line of its own; unchanged contracts are left out.

    Args:
        nothing: the text if nothing changes at all.
    """
    changed = [difference for difference in differences if difference.changes]
    for difference in changed:
        line(f"{difference.name}: {_head(difference)}")
        for change in difference.changes:
            line(f"  {sign(change)} {difference.name} {change.words}")
    if not changed:
        line(nothing)


def sign(change: Change) -> str:
    """``+`` for a gained permission, ``-`` for a lost one, ``~`` for a change."""
    return _SIGNS[change.kind]


def _head(difference: Difference) -> str:
    since = f" since {difference.since}" if difference.since is not None else ""
    if difference.written is None:
        what = f"gone{since}; it stays in force until it is revoked"
    elif difference.new:
        what = f"new{since}"
    else:
        what = f"changed{since}" if difference.version is None else f"changes version {difference.version}"
    return what + (f" (principals: {', '.join(difference.principals)})" if difference.principals else "")


def line(text: str) -> None:
    """Print text from files and tables, without control characters."""
    say(escaped(text))


# ── For machines ─────────────────────────────────────────────────────────────────────────────────────────────────────


def finding_json(finding: Finding) -> Mapping[str, Any]:
    return {
        "severity": finding.severity.value,
        "rule": finding.rule,
        "message": finding.message,
        "file": finding.place.source,
        "line": finding.place.line,
        "contract": finding.contract or None,
        "also": [{"file": place.source, "line": place.line} for place in finding.also],
    }


def difference_json(difference: Difference) -> Mapping[str, Any]:
    return {
        "contract": difference.name,
        "version": difference.version,
        "since": difference.since,
        "new": difference.new,
        "gone": difference.written is None,
        "principals": list(difference.principals),
        "changes": [change_json(change) for change in difference.changes],
    }


def change_json(change: Change) -> Mapping[str, Any]:
    return {
        "kind": change.kind.value,
        "words": change.words,
        "table": None if change.tables is None else str(change.tables),
        "operations": sorted(operation.value for operation in change.operations),
        "partitions": change.partitions,
        "clause": change.clause,
    }


# ── For GitHub ───────────────────────────────────────────────────────────────────────────────────────────────────────


def github_commands(findings: Iterable[Finding], differences: Iterable[Difference], files: set[str]) -> Iterable[str]:
    """Workflow commands that show findings and changes at their lines of a pull request.

    Args:
        files: places elsewhere, such as in a contract in force, cannot be shown.
    """
    for finding in findings:
        for place in (finding.place, *finding.also):
            if place.source in files:
                yield _command(_COMMANDS[finding.severity], place, f"contracts: {finding.rule}", finding.message)
    for difference in differences:
        it = difference.written
        for change in difference.changes if it is not None else ():
            assert it is not None
            at = it.at(change.clause if change.rule is None else f"tables[{change.rule}]")
            yield _command("notice", at, f"contracts: {change.kind}", f"{difference.name} {change.words}")


def _command(command: str, place: Place, title: str, message: str) -> str:
    where = f"file={_property(place.source)},line={place.line},title={_property(title)}"
    return f"::{command} {where}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
