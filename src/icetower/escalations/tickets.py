"""What waits for a person: an agent that was stopped at a table, or one that asks for partitions. Pure.

A ticket is open until an administrator closes it. There is at most one open ticket for a subject.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.headerregistry import Address
from enum import StrEnum
from typing import Any, Protocol

from icetower.contracts.model import Contract, Operation
from icetower.counting import counted
from icetower.errors import BadRequest
from icetower.escalations.failures import BUDGET_MAX, Failure, budget, summary
from icetower.observe.events import one_line
from icetower.protocol.names import Identifier

TABLE_CHARACTERS_MAX = 1_024
PARTITIONS_MAX = 100
PARTITION_CHARACTERS_MAX = 512
TEXT_CHARACTERS_MAX = 2_000
FAILURES_SHOWN = 20


class Kind(StrEnum):
    """The kinds of tickets."""

    ESCALATION = "escalation"
    REQUEST = "request"
    ALERT = "alert"


class Decision(StrEnum):
    """How a ticket was closed: an escalation is `closed`, a request granted or denied, an alert resolved."""

    CLOSED = "closed"
    GRANTED = "granted"
    DENIED = "denied"
    RESOLVED = "resolved"


DECISIONS: Mapping[Kind, frozenset[Decision]] = {
    Kind.ESCALATION: frozenset({Decision.CLOSED}),
    Kind.REQUEST: frozenset({Decision.GRANTED, Decision.DENIED}),
    Kind.ALERT: frozenset({Decision.RESOLVED}),
}


class Channel(StrEnum):
    """How a notification of a ticket is sent."""

    MAIL = "mail"
    WEBHOOK = "webhook"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One notification of a ticket, and how far it has come.

    Attributes:
        address: of mail; for a webhook its name in the tower's settings.
        next_ms: when it is sent (again); None: it arrived, or was given up.
        fault: what the last attempt failed with.
    """

    channel: Channel
    address: str
    attempts: int = 0
    next_ms: int | None = None
    delivered_ms: int | None = None
    fault: str | None = None

    @property
    def state(self) -> str:
        """``delivered``, ``waiting`` or ``given up``."""
        if self.delivered_ms is not None:
            return "delivered"
        return "given up" if self.next_ms is None else "waiting"


@dataclass(frozen=True, slots=True)
class Closing:
    """Who closed a ticket, when, how, and the note."""

    at_ms: int
    by: str
    decision: Decision
    note: str


@dataclass(frozen=True, slots=True)
class Ticket:
    """One ticket.

    Attributes:
        subject: what it is about, as a hash.
        table: its name as people write it.
        contact: the named human, or the contact of the contract's owner; None: the contract names nobody.
        details: of an escalation `after_failures`, `within_s` and the last `failures`; of a request `partitions`,
            `operations` and `reason`, and `guard` where it is about an overwrite that was refused; of an alert `rule`,
            `value`, `threshold`, `partitions`, `message` and `advice`.
        closing: None while it is open.
    """

    id: str
    kind: Kind
    subject: str
    principal: str
    contract: str
    table: str
    contact: str | None
    details: Mapping[str, Any]
    opened_ms: int
    closing: Closing | None = None
    deliveries: tuple[Delivery, ...] = ()

    @property
    def title(self) -> str:
        """In a line."""
        if self.kind is Kind.ALERT:
            return str(self.details["message"])
        if self.kind is Kind.REQUEST and self.guards:
            return f"{self.principal} asks whether an overwrite of {self.table} was meant"
        if self.kind is Kind.REQUEST:
            return f"{self.principal} asks for partitions of {self.table}"
        failures = counted(self.details["after_failures"], "failure")
        return f"{self.principal} is stopped at {self.table} after {failures} in a row"

    @property
    def guards(self) -> bool:
        """Whether it is about an overwrite that a guard has refused (`approvals`)."""
        return "guard" in self.details

    @property
    def rules(self) -> str:
        """By which rules an escalation's last failures were refused, most frequent first."""
        return summary(Failure(**failure) for failure in self.details.get("failures", ()))

    def to_json(self) -> dict[str, Any]:
        """As the control API shows it."""
        closing = self.closing
        return {
            "id": self.id,
            "kind": self.kind.value,
            "state": "open" if closing is None else closing.decision.value,
            "principal": self.principal,
            "contract": self.contract,
            "table": self.table,
            "contact": self.contact,
            "opened_ms": self.opened_ms,
            **self.details,
            "closed_ms": closing and closing.at_ms,
            "closed_by": closing and closing.by,
            "note": closing and closing.note,
            "deliveries": [
                {
                    "way": delivery.channel.value,
                    "address": delivery.address,
                    "state": delivery.state,
                    "attempts": delivery.attempts,
                    "next_ms": delivery.next_ms,
                    "delivered_ms": delivery.delivered_ms,
                    "fault": delivery.fault,
                }
                for delivery in self.deliveries
            ],
        }


def subject_of(kind: Kind, principal: str, *parts: str) -> str:
    """The subject of a ticket, as a hash (hex). The parts are kept apart, whatever characters they have."""
    digest = hashlib.sha256()
    for part in (kind.value, principal, *parts):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def stop_of(principal: str, table: Identifier) -> str:
    """The subject of an escalation."""
    return subject_of(Kind.ESCALATION, principal, *table.namespace, table.name)


def escalation_details(contract: Contract, failures: Sequence[Failure]) -> dict[str, Any]:
    """What an escalation says. The contract must have the clause."""
    assert contract.escalation is not None
    return {
        "after_failures": budget(contract.escalation),
        "within_s": contract.escalation.within_s,
        "failures": [{"at_ms": failure.at_ms, "rule": failure.rule} for failure in failures[-FAILURES_SHOWN:]],
    }


def time_text(at_ms: int) -> str:
    """A time as people read it, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")


# ------------------------------------------------------------------------------------------------------------ requests


class Wish(Protocol):
    """What a request is about."""

    @property
    def table(self) -> Identifier: ...

    @property
    def details(self) -> dict[str, Any]:
        """The details of the ticket for it."""
        ...

    def subject(self, principal: str) -> str:
        """Two requests of a principal for the same are one."""
        ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an agent asks for: operations on partitions of a table; no partitions: on all of it."""

    table: Identifier
    partitions: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = ()
    reason: str = ""

    @property
    def details(self) -> dict[str, Any]:
        """The details of the ticket for it."""
        operations = [operation.value for operation in self.operations]
        return {"partitions": list(self.partitions), "operations": operations, "reason": self.reason}

    def subject(self, principal: str) -> str:
        """Two requests for the same are one, whatever reason they give."""
        names = (*self.table.namespace, self.table.name)
        counted = (str(len(names)), *names, str(len(self.partitions)), *self.partitions)
        return subject_of(Kind.REQUEST, principal, *counted, *(operation.value for operation in self.operations))


def wanted(table: str, partitions: Sequence[str], operations: Sequence[str], reason: str) -> Wanted:
    """A request as it was sent, in order and without repetitions. Raises `BadRequest` naming the field."""
    if len(table) > TABLE_CHARACTERS_MAX:
        raise _wrong("table", f"has {len(table)} characters; {TABLE_CHARACTERS_MAX} are allowed")
    identifier = Identifier.parse(table)
    if len(partitions) > PARTITIONS_MAX:
        raise _wrong("partitions", f"names {len(partitions)}; {PARTITIONS_MAX} are allowed: ask for ranges in words")
    for partition in partitions:
        if not 0 < len(partition) <= PARTITION_CHARACTERS_MAX:
            raise _wrong("partitions", f"each has 1 to {PARTITION_CHARACTERS_MAX} characters, as refusals name them")
    known = {operation.value: operation for operation in Operation}
    strange = sorted(set(operations) - set(known))
    if strange or not operations:
        said = f"names {strange[0]!r}" if strange else "is empty"
        raise _wrong("operations", f"{said}; write some of: {', '.join(known)}")
    if not reason.strip() or len(reason) > TEXT_CHARACTERS_MAX:
        raise _wrong("reason", f"needs 1 to {TEXT_CHARACTERS_MAX} characters: a person will read it")
    asked = {known[operation] for operation in operations}
    return Wanted(
        identifier,
        tuple(sorted({one_line(partition) for partition in partitions})),
        tuple(operation for operation in Operation if operation in asked),
        _lines(reason),
    )


def checked_note(note: str) -> str:
    """The note with which a ticket is closed, in its stored form. Raises `BadRequest`."""
    if not note.strip() or len(note) > TEXT_CHARACTERS_MAX:
        raise _wrong("note", f"needs 1 to {TEXT_CHARACTERS_MAX} characters: what was found, and what was done")
    return _lines(note)


def _wrong(field_name: str, what: str) -> BadRequest:
    return BadRequest(f"{field_name}: {what}", rule=f"request.{field_name}")


# ----------------------------------------------------------------------------------------------------------- contracts

_USER, _DOMAIN = r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+", r"[A-Za-z0-9.-]+"
# No more than what mail servers everywhere take: what goes into a header or an SMTP command is nobody's free text.
_CONTACT = re.compile(rf"(?:(?P<name>[^<>@]*)<)?(?P<user>{_USER})@(?P<domain>{_DOMAIN})(?(name)>)")


def _lines(text: str) -> str:
    return "\n".join(one_line(line) for line in text.strip().splitlines())


def mail_address(contact: str) -> Address | None:
    """`Dana Ito <dana.ito@example.com>` or the address alone; None for a contact that is no mail address."""
    found = _CONTACT.fullmatch(one_line(contact).strip())
    if found is None:
        return None
    return Address((found["name"] or "").strip(' "'), found["user"], found["domain"])


def check_escalation(contract: Contract, webhooks: Sequence[str], *, mails: bool) -> list[str]:
    """Whether this tower can do what a contract's escalation says. Warnings, in plain words.

    Args:
        webhooks: the names of those that the tower's settings have.
        mails: whether it can send mail.

    Raises:
        BadRequest: it names a webhook that the tower does not have, nobody who can be written to, or a budget that
            cannot be counted.
    """
    clause = contract.escalation
    if clause is None:
        return []
    if clause.after_failures > BUDGET_MAX:
        raise BadRequest(
            f"contract {contract.name}: escalation.after_failures is {clause.after_failures}; {BUDGET_MAX} is the most "
            "that is counted",
            rule="contract.escalation",
        )
    if mail_address(clause.to) is None:
        raise BadRequest(
            f"contract {contract.name}: escalation.to is {clause.to!r}, which is no mail address; write "
            "'Dana Ito <dana.ito@example.com>'",
            rule="contract.escalation",
        )
    if clause.webhook is not None and clause.webhook not in webhooks:
        known = ", ".join(sorted(webhooks)) or "none"
        raise BadRequest(
            f"contract {contract.name}: escalation.webhook is {clause.webhook!r}, and this tower has no address of "
            f"that name; its settings ([escalations.webhooks]) have: {known}",
            rule="contract.escalation",
        )
    if clause.webhook is None and not mails:
        warning = (
            f"contract {contract.name}: nobody will be notified of its escalations: it names no webhook, and this "
            "tower sends no mail ([escalations] smtp_host). They stop the agent all the same, and stand in `icetower "
            "escalations list`"
        )
        return [warning]
    return []
