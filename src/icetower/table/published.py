"""Keys of publications that added no snapshot: a branch was set forward to another one's head. Pure.

The snapshots that such a publication brings were made before it, and cannot carry its key. So the key stands in a
property of the table, under the very swap that moves the branch (trap K1). The newest stay, for as long as keys are
kept; the ledger remembers all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from icetower.protocol.marks import PUBLISHED
from icetower.table.keys import KeyRecord

JSON = dict[str, Any]

OF_TABLE_MAX = 100
"""So many stand in a table's properties at most: each is written again with every commit."""


def keep(record: KeyRecord, properties: Mapping[str, str], *, now_ms: int, until_ms: int) -> tuple[JSON, ...]:
    """The updates of the table that keep a key, and remove those that have lapsed or are one too many."""
    if record.key is None or not record.snapshots:
        return ()
    said: JSON = {
        "principal": record.principal,
        "ref": record.ref,
        "key": record.key,
        "snapshot": record.snapshots[-1],
        "until-ms": until_ms,
    }
    text = "\0".join((record.principal, record.ref, record.key))
    name = PUBLISHED + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    others = {at: _until_ms(value) for at, value in properties.items() if at.startswith(PUBLISHED) and at != name}
    by_age = sorted(others, key=lambda at: others[at], reverse=True)
    gone = [at for place, at in enumerate(by_age) if place >= OF_TABLE_MAX - 1 or others[at] <= now_ms]
    removal: list[JSON] = [{"action": "remove-properties", "removals": gone}] if gone else []
    return (*removal, {"action": "set-properties", "updates": {name: orjson.dumps(said).decode()}})


def records_in(properties: Mapping[str, str]) -> Iterator[KeyRecord]:
    """The keys that stand in a table's properties. What cannot be read says nothing."""
    for name, value in properties.items():
        if not name.startswith(PUBLISHED):
            continue
        try:
            said = orjson.loads(value)
            record = KeyRecord(
                str(said["principal"]), str(said["ref"]), str(said["key"]), None, (int(said["snapshot"]),)
            )
        except (ValueError, KeyError, TypeError):
            continue
        yield record


def _until_ms(value: str) -> int:
    """What cannot be read lapses at once."""
    try:
        return int(orjson.loads(value)["until-ms"])
    except (ValueError, KeyError, TypeError):
        return 0
