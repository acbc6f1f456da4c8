"""The notifications of a ticket: the webhook's body and its signature, and the mail. Pure."""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import UTC, datetime
from email import policy
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime

from icetower.counting import counted
from icetower.escalations.tickets import Kind, Ticket, time_text
from icetower.observe.events import one_line

SIGNATURE = "Icetower-Signature"
SUBJECT_CHARACTERS_MAX = 200

_UNFOLDED = policy.default.clone(max_line_length=998)  # what mail allows; short headers are read by people and rules


def webhook_body(ticket: Ticket) -> bytes:
    """JSON. `text` is a line for chat rooms; `event` and `id` are the same whenever the same word is sent again."""
    ended = ticket.closing
    return json.dumps(
        {
            "event": f"{ticket.kind.value}.{'opened' if ended is None else ended.decision.value}",
            "text": f"Icetower: {'' if ended is None else 'ended: '}{one_line(ticket.title)} ({ticket.id})",
            "id": ticket.id,
            "kind": ticket.kind.value,
            "principal": ticket.principal,
            "contract": ticket.contract,
            "table": ticket.table,
            "contact": ticket.contact,
            "opened_ms": ticket.opened_ms,
            **({} if ended is None else {"closed_ms": ended.at_ms}),
            **ticket.details,
        }
    ).encode()


def signature(secret: str, body: bytes, at_ms: int) -> str:
    """The header `Icetower-Signature`: ``t=SECONDS,v1=HEX``.

    HEX is the HMAC-SHA256, under the shared secret, of the seconds since 1970, a dot, and the body. The time is signed
    too, so that a receiver can refuse what somebody has recorded and sends again later.
    """
    at_s = str(at_ms // 1000)
    digest = hmac.new(secret.encode(), at_s.encode() + b"." + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def mail(ticket: Ticket, sender: Address, to: Address, at_ms: int) -> EmailMessage:
    """The mail of a ticket."""
    message = EmailMessage(_UNFOLDED)
    message["From"] = sender
    message["To"] = to
    ended = ticket.closing is not None
    message["Subject"] = f"[icetower] {'ended: ' if ended else ''}{one_line(ticket.title)}"[:SUBJECT_CHARACTERS_MAX]
    message["Date"] = format_datetime(datetime.fromtimestamp(at_ms / 1000, UTC))
    # The same for every attempt: whoever gets two can tell that they are one.
    message["Message-ID"] = f"<{ticket.id}{'.end' if ended else ''}@{sender.domain}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content("\n".join(_lines(ticket)) + "\n")
    return message


def _lines(ticket: Ticket) -> list[str]:
    if ticket.kind is Kind.ALERT and ticket.closing is not None:
        return [
            f"It has ended: {ticket.closing.note}.",
            "",
            f"it was     {one_line(ticket.title)}",
            f"since      {time_text(ticket.opened_ms)}",
            f"until      {time_text(ticket.closing.at_ms)}",
            f"alert      {ticket.details['alert']}",
        ]
    if ticket.kind is Kind.ALERT:
        return [
            f"{one_line(ticket.title)}.",
            "",
            f"since      {time_text(ticket.opened_ms)}",
            f"partitions {', '.join(one_line(each) for each in ticket.details['partitions']) or 'none in particular'}",
            f"alert      {ticket.details['alert']}",
            "",
            one_line(ticket.details["advice"]),
            "",
            "It ends by itself when the value is back, and another mail says so. To hear nothing of it for a while:",
            "",
            "  POST /icetower/v1/alerts/silence",
            f'  {{"id": "{ticket.details["alert"]}", "for_s": 7200, "reason": "why"}}',
        ]
    commands = "escalations" if ticket.kind is Kind.ESCALATION else "requests"
    about = [
        f"{one_line(ticket.title)}.",
        "",
        f"principal  {ticket.principal} (contract {ticket.contract})",
        f"table      {one_line(ticket.table)}",
        f"since      {time_text(ticket.opened_ms)}",
        f"id         {ticket.id}",
    ]
    if ticket.kind is Kind.ESCALATION:
        failures = ticket.details["failures"]
        return [
            *about,
            f"because    {counted(ticket.details['after_failures'], 'failure')} in a row: {one_line(ticket.rules)}",
            f"last       {time_text(failures[-1]['at_ms'])}",
            "",
            "Its commits to this table are refused until an administrator closes the escalation; its other tables, and",
            "other agents, go on. Look at what it tried, mend the agent or its contract, then close it:",
            "",
            f"  icetower {commands} show {ticket.id}",
            f"  icetower {commands} close {ticket.id} --note 'what was found'",
        ]
    return [
        *about,
        f"operations {', '.join(ticket.details['operations'])}",
        f"partitions {', '.join(one_line(each) for each in ticket.details['partitions']) or 'all of the table'}",
        "",
        "The agent's reason:",
        *(f"  {one_line(line)}" for line in ticket.details["reason"].splitlines()),
        "",
        *_granting(ticket),
        "",
        f"  icetower {commands} close {ticket.id} --granted --note '…'",
        f"  icetower {commands} close {ticket.id} --denied --note '…'",
    ]


def _granting(ticket: Ticket) -> list[str]:
    """What follows where a request is granted."""
    if ticket.guards:
        return [
            "Look at what the agent ran: a copy-on-write UPDATE with a subquery can double a table.",
            "Granted, it may be sent again, once, within 24 hours, with about as many rows:",
        ]
    return ["Nothing is granted by answering: change the contract, or don't, and tell the agent which:"]
