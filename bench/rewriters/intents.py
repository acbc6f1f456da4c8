"""The side `intents`: a rewriter reserves its partition before it reads it, and nothing else comes in while it thinks.

The intent is exclusive, so an append of another to the partition would be refused while it is held. So the appenders
stand in line as well: each declares an intent to append, which others may hold at the same time, and commits when it
has it. What they wait is in the figures of appends.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from bench.rewriters.seats import NAME, Seat, Think, Way, thought
from icetower.agent import keyed, new_key

WAIT_S = 3_600.0
"""So long an agent stands in line."""


def _under_an_intent(seat: Seat, partition: int, think: Think) -> None:
    where = f"part = {partition}"
    with seat.tower.intent(NAME, partitions=[{"part": partition}], exclusive=True, wait_s=WAIT_S) as lease:
        table = seat.table()
        found = table.scan(where).to_arrow()
        think()
        table.overwrite(thought(found), where, snapshot_properties=keyed(new_key()) | lease.properties)


@contextmanager
def room(seat: Seat, partition: int) -> Generator[Mapping[str, str]]:
    """Room for an append to a partition: what its summary says beside its key."""
    wanted = seat.tower.intent(NAME, partitions=[{"part": partition}], operations=["append"], wait_s=WAIT_S)
    with wanted as lease:
        yield lease.properties


WAY: Way = _under_an_intent
