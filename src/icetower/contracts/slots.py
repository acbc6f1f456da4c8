"""Slots that come round: of every period of the clock one part is an agent's turn. Pure.

    {every: 2m, from: 0s, to: 1m}

is the first of every two minutes. Periods are counted from 1970-01-01T00:00Z, so that one that divides a day begins at
the same times each day. The clock is the tower's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from icetower.contracts.fields import JSON, object_schema
from icetower.contracts.reading import Reader, duration_text

EVERY = "every"
_OFFSET = re.compile(r"0+(ms|s|m|h|d|w)?")


@dataclass(frozen=True, slots=True)
class Turn:
    """Of every `every_ms`, the time from `start_ms` up to, not including, `end_ms`.

    Attributes:
        grace_ms: for so long after its end a slot may still be written; the next one is not held up by that.
    """

    every_ms: int
    start_ms: int
    end_ms: int
    grace_ms: int = 0

    def __str__(self) -> str:
        grace = f", {span_text(self.grace_ms)} of grace" if self.grace_ms else ""
        return f"from {span_text(self.start_ms)} to {span_text(self.end_ms)} of every {span_text(self.every_ms)}{grace}"

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms

    def slot(self, now_ms: int) -> tuple[int, int]:
        """The slot that goes on at `now_ms`, or else the next one: its start and its end, in milliseconds."""
        start = self._latest(now_ms)
        if now_ms >= start + self.length_ms:
            start += self.every_ms
        return start, start + self.length_ms

    def held(self, now_ms: int) -> tuple[int, int] | None:
        """The time whose rows may be written at `now_ms`, within grace too; None: it is not the agent's turn."""
        start = self._latest(now_ms)
        end = start + self.length_ms
        if now_ms >= end + self.grace_ms:
            return None
        # Slots without a pause between them: the last one ends in grace while this one goes on.
        before = self.length_ms == self.every_ms and now_ms < start + self.grace_ms
        return (start - self.every_ms if before else start), end

    def _latest(self, now_ms: int) -> int:
        """The start of the latest slot that has begun."""
        return now_ms - (now_ms - self.start_ms) % self.every_ms


def span_text(ms: int) -> str:
    """A time span as contracts write it, zero included."""
    return duration_text(ms / 1000) if ms else "0s"


def read_turn(reader: Reader) -> Turn:
    """A turn as written. Raises `BadRequest`."""
    fields = reader.fields(required=(EVERY,), optional=("from", "to", "grace"))
    every = round(fields[EVERY].duration_s() * 1000)
    start, grace = (_offset(fields[name]) if name in fields else 0 for name in ("from", "grace"))
    end = _offset(fields["to"]) if "to" in fields else every
    if not start < end <= every:
        raise reader.wrong(
            f"is no part of its period: 'from' {span_text(start)} must come before 'to' {span_text(end)}, and 'to' "
            f"must be within {span_text(every)}"
        )
    longest = every if end - start == every else every - (end - start)
    if grace > longest:
        raise fields["grace"].wrong(
            f"is {span_text(grace)} and reaches the agent's next slot; {span_text(longest)} at most"
        )
    return Turn(every, start, end, grace)


def _offset(reader: Reader) -> int:
    return 0 if _OFFSET.fullmatch(reader.text()) else round(reader.duration_s() * 1000)


def turn_json(turn: Turn) -> JSON:
    """A turn as `read_turn` reads it."""
    found = {EVERY: span_text(turn.every_ms), "from": span_text(turn.start_ms), "to": span_text(turn.end_ms)}
    return found | ({"grace": span_text(turn.grace_ms)} if turn.grace_ms else {})


_SPAN: JSON = {"type": "string", "pattern": r"^(?=\d{1,15}\D)0*[1-9]\d*(ms|s|m|h|d|w)$"}
_POINT: JSON = {"type": ["string", "integer"], "pattern": r"^\d{1,15}(ms|s|m|h|d|w)?$"}
TURN_SCHEMA: JSON = {
    "description": "A slot that comes round: of every period the part from one offset up to, not including, another.",
    **object_schema(
        {
            EVERY: {"description": "The period, counted from 1970-01-01T00:00Z.", **_SPAN},
            "from": {"description": "The beginning of the slot in its period; 0s without it.", **_POINT},
            "to": {"description": "Its end, which is not included; the period's without it.", **_POINT},
            "grace": {"description": "For so long after its end it may still be written.", **_POINT},
        },
        (EVERY,),
    ),
}
