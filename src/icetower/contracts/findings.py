"""What a review of contracts finds, and where. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from icetower.contracts.document import load
from icetower.contracts.model import Contract
from icetower.contracts.reading import RULE, lines_of
from icetower.errors import BadRequest

RULES: Mapping[str, str] = {
    RULE: "it cannot be read as a contract",
    "agent.role": "two agents would share one role in a catalog",
    "agent.twice": "two contracts of one agent",
    "blind.serializable": "blind_appends beside isolation: serializable, which goes before it",
    "blind.upsert": "blind_appends for an agent that may change rows: its upserts may insert one row twice",
    "escalation.none": "nobody is notified when commits keep failing",
    "escalation.within": "retrying takes longer than the time within which failures count together",
    "except.nothing": "an exception that takes nothing away",
    "gap.partitions": "partitions that nobody owns, between those that are owned, or among the buckets",
    "gap.rows": "partitions that hold rows, and that nobody owns",
    "gap.unread": "the partitions of a table could not be read",
    "idempotency.window": "a key is forgotten while its commit is still tried",
    "mode.shadow": "the contract admits everything",
    "orphans.age": "files are deleted that may belong to a commit under way",
    "idempotency.clients": "every commit needs a key, which unchanged clients do not send",
    "operation.table": "an operation on the whole table, in an entry that owns a part of it",
    "overlap.owned": "two agents own the same partitions, and one changes rows there",
    "overlap.possible": "two agents may own the same partitions, which cannot be determined",
    "overlap.role": "a maintenance job or a pipeline works on partitions that another owns",
    "overlap.shared": "two agents share partitions, and neither stands in the way of the other",
    "owner.none": "nobody answers for the agent",
    "partitions.empty": "partitions that hold nothing",
    "partitions.none": "file operations on no partition",
    "partitions.slot": "a moving slot that is shorter than what its term counts",
    "partitions.unused": "partitions without an operation on them",
    "partitions.value": "a value that means nothing for its transform",
    "pattern.collector": "no delta table through which the rows could come",
    "pattern.mediator": "no log through which the rows could come",
    "principal.none": "nobody is bound to the contract",
    "reference.catalog": "a table is named with its catalog in front of its namespace",
    "reference.name": "a table has no such partition field or column",
    "reference.spec": "a table's partitions tell nothing of a region",
    "reference.table": "there is no such table",
    "reference.value": "a value or a transform means nothing for a column of a table",
    "retries.key": "retries without an idempotency key",
    "checks.unknown": "whose word on checks counts is no principal",
    "revocation.unknown": "who may revoke the contract is no principal",
    "slots.alone": "slots that are handed out, and that nobody else may take when they are missed",
    "slots.late": "more contracts share a slot than can take it one after another",
    "strict.rebase": "clauses about rebasing beside strict, which turns it off",
}
"""All that can be found."""
ALIKE_MAX = 4
"""Findings of one kind at one place, such as one for each of a thousand tables."""


class Severity(StrEnum):
    """`ERROR`: it must not be put in force so. `WARNING`: it does not do what was meant, most likely."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Place:
    """A line, counted from 1, of something that was read."""

    source: str
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Attributes:
        rule: what was broken, such as ``overlap.owned``; docs/contracts.md lists them.
        also: other places that it is about.
    """

    severity: Severity
    rule: str
    message: str
    place: Place
    contract: str = ""
    also: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """A contract as it stands in a file, or in force.

    Attributes:
        source: the file; or in words which version in force.
        lines: where everything stands (`reading.lines_of`).
    """

    contract: Contract
    source: str
    text: str
    lines: Mapping[str, int]

    @classmethod
    def read(cls, text: str, source: str) -> Written:
        """Raises `BadRequest` as `load`."""
        return cls(load(text, source=source), source, text, lines_of(text, source=source))

    def at(self, place: str = "") -> Place:
        """Where a field stands, or the nearest one around it that is there: ``tables[0].partitions[1].day(ts)``."""
        while place and place not in self.lines:
            cut = max(place.rfind("."), place.rfind("["))
            place = place[: max(cut, 0)]
        return Place(self.source, self.lines.get(place, self.lines.get("agent", 1)))

    def found(
        self, severity: Severity, rule: str, message: str, place: str = "", also: tuple[Place, ...] = ()
    ) -> Finding:
        """A finding at a field of this contract. `rule` is one of `RULES`."""
        assert rule in RULES
        return Finding(severity, rule, message, self.at(place), self.contract.name, also)


def condensed(findings: Iterable[Finding]) -> list[Finding]:
    """Findings in the order of their places, the worst first; of many alike at one place a few, and how many more."""
    alike: dict[tuple[Place, str, Severity], list[Finding]] = {}
    for finding in dict.fromkeys(findings):
        alike.setdefault((finding.place, finding.rule, finding.severity), []).append(finding)
    kept: list[Finding] = []
    for group in alike.values():
        kept += group[:ALIKE_MAX]
        if len(group) > ALIKE_MAX:
            kept.append(replace(group[0], message=f"and {len(group) - ALIKE_MAX} more like these", also=()))
    order = list(Severity)
    return sorted(kept, key=lambda each: (each.place.source, each.place.line, order.index(each.severity)))


def of_syntax(error: BadRequest, source: str) -> Finding:
    """The finding that a contract cannot be read."""
    line, colon, problem = error.message.removeprefix(f"{source}, line ").partition(": ")
    if not (colon and line.isdigit()):
        line, problem = "1", error.message
    return Finding(Severity.ERROR, RULE, problem, Place(source, int(line)))
