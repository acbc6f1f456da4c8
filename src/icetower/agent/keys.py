"""Idempotency keys: one a write, kept by the agent until the write is acknowledged."""

from __future__ import annotations

from icetower.ambient import Ambient, SystemAmbient
from icetower.protocol.marks import BLIND, KEY


def new_key(ambient: Ambient | None = None) -> str:
    """A fresh key: a UUID of version 7, as the header `Idempotency-Key` wants it.

    Keep it with the work that it stands for, and send it again with every retry of that work, after a crash too.
    """
    return (ambient or SystemAmbient()).uuid7()


def keyed(key: str, *, blind: bool = False) -> dict[str, str]:
    """Snapshot properties that make a write exactly-once, for PyIceberg's `snapshot_properties` and the like.

    Args:
        key: the same for every attempt at the same write.
        blind: this append depends on nothing that was read from the table, so the server may rebase it. The writer's
            word: an append that replaces rows it has looked up is not blind.
    """
    properties = {KEY: key}
    if blind:
        properties[BLIND] = "true"
    return properties
