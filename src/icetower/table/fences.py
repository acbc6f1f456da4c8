"""Fences: names under which no write lands any more. Pure.

Whoever has lost an answer, and finds that the write is not in the table, cannot know that it will not land yet: a
request may be on its way, here or at another tower. A fence makes that certain. It stands in the table's properties, so
that it commits under the swap by which the write would have landed: one of the two is first (trap K4). No control
database is asked for it, so that none which is lost or restored lets the write in.

A fence holds for one key, or for one number of an application, as sent by one principal for one branch. It stays as
long as a key would be kept, and longer where nobody sets another one: the next fence of the table removes those that
have lapsed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from icetower.errors import KeyMisused, TooManyRequests
from icetower.protocol.marks import FENCE
from icetower.table.keys import Names

JSON = dict[str, Any]

OF_TABLE_MAX, OF_PRINCIPAL_MAX = 1_000, 100
"""So many fences a table has at most, and those of one principal: each is written again with every commit."""


def fenced(names: Names, properties: Mapping[str, str]) -> str | None:
    """By which name a write is fenced: its key or its number, in words. None: it is not.

    That the property is there is enough, whatever it says: nobody but a tower sets it.
    """
    return next((words for words, at, _ in _properties(names) if at in properties), None)


def fenced_number(names: Names, properties: Mapping[str, str]) -> str | None:
    """The same by its number alone."""
    if names.application is None:
        return None
    return fenced(Names(names.principal, names.ref, None, names.application), properties)


def fence(names: Names, properties: Mapping[str, str], *, now_ms: int, until_ms: int) -> tuple[JSON, ...]:
    """The updates of the table that fence a write, and remove what has lapsed.

    Args:
        properties: of the table.
        until_ms: until when the fence stays, at least.

    Raises:
        TooManyRequests: the table, or the principal there, has too many fences.
    """
    set_ = {at: orjson.dumps({**said, "until-ms": until_ms}).decode() for _, at, said in _properties(names)}
    others = {name: _read(value) for name, value in properties.items() if name.startswith(FENCE) and name not in set_}
    lapsed = [name for name, said in others.items() if said["until-ms"] <= now_ms]
    left = [said for name, said in others.items() if name not in lapsed]
    own = [said for said in left if said.get("principal") == names.principal]
    for those, most, whose in ((own, OF_PRINCIPAL_MAX, f"{names.principal} has"), (left, OF_TABLE_MAX, "it has")):
        if len(those) + len(set_) > most:
            first_ms = min(said["until-ms"] for said in those)
            raise TooManyRequests(
                f"the table takes no more fences: {whose} {len(those)}, and may have {most}. They lapse as keys do; or "
                f"somebody who may alter the table removes properties that begin with {FENCE}",
                rule="limit.fences",
                next_step="wait_until",
                wait_until_ms=first_ms + 1,
            )
    removal = [{"action": "remove-properties", "removals": lapsed}] if lapsed else []
    return (*removal, {"action": "set-properties", "updates": set_})


def _properties(names: Names) -> Iterator[tuple[str, str, JSON]]:
    """Of each name of a write: its words, the property that fences it, and what that says."""
    whose: JSON = {"principal": names.principal, "ref": names.ref}
    if names.key is not None:
        yield f"idempotency key {names.key}", _property(names, "key", names.key), {**whose, "key": names.key}
    if names.application is not None:
        application, number = names.application
        said = {**whose, "application": application, "sequence": number}
        yield f"number {number} of application {application}", _property(names, str(number), application), said


def _property(names: Names, kind: str, name: str) -> str:
    text = "\0".join((kind, names.principal, names.ref, name))
    return FENCE + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _read(value: str) -> JSON:
    """What a fence says; one that cannot be read never lapses."""
    try:
        said = orjson.loads(value)
        return {**said, "until-ms": int(said["until-ms"])}
    except (ValueError, KeyError, TypeError):
        return {"until-ms": 2**63}


def refusal_of_fenced(name: str) -> KeyMisused:
    """The refusal of what was fenced. `name`: what it goes by, in words."""
    return KeyMisused(
        f"{name} was fenced: it had not landed then, and nothing lands under it any more. To write it after all, "
        "use a new key, or another number",
        rule="key.fenced",
        next_step="none",  # somebody has made sure of it: no program goes around that by another key
    )
