"""How each side rewrites a partition."""

from __future__ import annotations

from collections.abc import Mapping

from bench.rewriters import branches, intents
from bench.rewriters.seats import Seat, Think, Way, thought
from bench.rewriters.work import BRANCHES, INTENTS, PLAIN, TOWER
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


WAYS: Mapping[str, Way | None] = {
    PLAIN: on_the_head,
    TOWER: on_the_head,
    INTENTS: intents.WAY,
    BRANCHES: branches.WAY,
}
"""How a side rewrites a partition; None: it cannot yet."""
