"""The end of a refusal's message, which says again what a machine needs to act.

Iceberg's clients in Java make an exception of the message and drop the other fields of the answer. So the message ends
with the rule, the next step and the request's id, and `Tail.of` finds them there.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass

from icetower.errors import IcetowerError

_TAIL = re.compile(
    r"\(rule (?P<rule>[\w.-]{1,64}), next step (?P<next_step>[a-z_]{1,32})"
    r"(?:, wait until (?P<until>[\dT:.+-]{1,40}))?, request (?P<request>\w{1,32})\)"
)
_MS = dt.timedelta(milliseconds=1)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Tail:
    """What stands at the end of a message, by the names of `IcetowerError`."""

    rule: str
    next_step: str
    wait_until_ms: int | None
    request_id: str

    @staticmethod
    def of(text: str) -> Tail | None:
        """The last tail in a text, which may go on after it: before it there may be words of a client."""
        tails = list(_TAIL.finditer(text))
        if not tails:
            return None
        found = tails[-1]
        until = found["until"]
        try:
            until_ms = None if until is None else round((dt.datetime.fromisoformat(until) - _EPOCH) / _MS)
        except (ValueError, TypeError):  # no time, or one without an offset
            until_ms = None
        return Tail(found["rule"], found["next_step"], until_ms, found["request"])


def with_tail(error: IcetowerError) -> str:
    """The message of an error as clients are answered it; without a tail while it has no request id."""
    if error.request_id is None:
        return error.message
    until = ""
    if error.wait_until_ms is not None:
        at = _EPOCH + dt.timedelta(milliseconds=error.wait_until_ms)
        until = f", wait until {at.isoformat(timespec='milliseconds')}"
    return f"{error.message} (rule {error.rule}, next step {error.next_step}{until}, request {error.request_id})"
