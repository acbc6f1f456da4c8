"""How each side rewrites a partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from bench.rewriters import branches, intents
from bench.rewriters.seats import Seat, Think, Way, thought
from bench.rewriters.work import ALONE, BRANCHES, INTENTS, PLAIN, TOWER
from icetower.agent import keyed, new_key, reads


def on_the_head(seat: Seat, partition: int, think: Think) -> None:
    """Reads the partition, thinks, and overwrites it on `main`: `plain`, and `tower`.

    A plain catalog takes whatever PyIceberg's own validation lets by. The tower is told what was read, by which it
    puts the overwrite on a newer head where nothing came into the partition.
    """
    table, where = seat.table(), f"part = {partition}"
    said = {} if seat.side == PLAIN else keyed(new_key()) | reads(table, where)
    found = table.scan(where).to_arrow()
    think()
    table.overwrite(thought(found), where, snapshot_properties=said)


WAYS: Mapping[str, Way] = {
    PLAIN: on_the_head,
    TOWER: on_the_head,
    INTENTS: intents.WAY,
    BRANCHES: branches.WAY,
    ALONE: branches.WAY_ALONE,
}
"""How a side rewrites a partition."""

Room = Callable[[Seat, int], AbstractContextManager[Mapping[str, str]]]
ROOMS: Mapping[str, Room] = {INTENTS: intents.room}
"""How an appender of a side comes to append to a partition, where it has to wait for that."""


def room(seat: Seat, partition: int) -> AbstractContextManager[Mapping[str, str]]:
    """Room for an append: what its summary says beside its key."""
    found = ROOMS.get(seat.side)
    return nullcontext({}) if found is None else found(seat, partition)
