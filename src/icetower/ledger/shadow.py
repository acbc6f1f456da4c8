"""What contracts in shadow mode would have refused: counted by who, what and why, so that the log stays small.

And how the attempts of those whom they bind have ended, in all the detail that a report of it wants.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from icetower.ledger.hashes import SHADOW, hashed
from icetower.ledger.schema import attempts, shadow

MESSAGE_CHARACTERS_MAX = 2_000
PARTITIONS_MAX = 20
ATTEMPTS_MAX = 100_000
KINDS_MAX = 1_000
"""Kinds of refusals that are kept of one principal; those that were met longest ago give way."""


@dataclass(frozen=True, slots=True)
class Shadowed:
    """One refusal that did not happen. `about`: the table, or the namespace."""

    principal: str
    contract: str
    contract_version: int
    about: str
    operation: str
    rule: str
    message: str
    partitions: tuple[str, ...]
    at_ms: int

    @property
    def id(self) -> bytes:
        """Of its kind: refusals of one kind are counted together."""
        names = (self.principal, self.contract, str(self.contract_version), self.about, self.operation, self.rule)
        return hashed(SHADOW, *names)


@dataclass(frozen=True, slots=True)
class ShadowCount:
    """Refusals of one kind: how many, from when to when, and the last of them."""

    count: int
    first_ms: int
    last: Shadowed


def write_shadowed(connection: Connection, refusals: Sequence[Shadowed]) -> None:
    """Count refusals, in the transaction of `connection`."""
    for refusal in sorted(refusals, key=lambda each: each.id):
        said = {
            "last_ms": refusal.at_ms,
            "message": refusal.message[:MESSAGE_CHARACTERS_MAX],
            "partitions": json.dumps(refusal.partitions[:PARTITIONS_MAX]),
        }
        known = update(shadow).where(shadow.c.id == refusal.id).values(times=shadow.c.times + 1, **said)
        if connection.execute(known).rowcount:
            continue
        own = select(shadow.c.id).where(shadow.c.principal == refusal.principal)
        newest = own.order_by(shadow.c.last_ms.desc(), shadow.c.id).offset(KINDS_MAX - 1)
        connection.execute(delete(shadow).where(shadow.c.id.in_(connection.execute(newest).scalars().all())))
        row = {
            "id": refusal.id,
            "principal": refusal.principal,
            "contract": refusal.contract,
            "contract_version": refusal.contract_version,
            "about": refusal.about,
            "operation": refusal.operation[:32],
            "rule": refusal.rule,
            "times": 1,
            "first_ms": refusal.at_ms,
        }
        connection.execute(insert(shadow), [row | said])


def read_shadowed(connection: Connection, contract: str | None) -> list[ShadowCount]:
    """What is counted, the most frequent first; of one contract, or of all."""
    query = select(shadow).order_by(shadow.c.times.desc(), shadow.c.id)
    if contract is not None:
        query = query.where(shadow.c.contract == contract)
    return [
        ShadowCount(
            row.times,
            row.first_ms,
            Shadowed(
                row.principal,
                row.contract,
                row.contract_version,
                row.about,
                row.operation,
                row.rule,
                row.message,
                tuple(json.loads(row.partitions)),
                row.last_ms,
            ),
        )
        for row in connection.execute(query)
    ]


@dataclass(frozen=True, slots=True)
class Ended:
    """Attempts of one principal that ended alike, each with how long it took, in milliseconds."""

    principal: str
    outcome: str
    rule: str | None
    latencies_ms: tuple[float, ...]


def read_endings(connection: Connection, principals: Collection[str], since_ms: int) -> list[Ended]:
    """How the attempts of some principals have ended, by rule; of the newest `ATTEMPTS_MAX` since a time."""
    kind = (attempts.c.principal, attempts.c.outcome, attempts.c.rule)
    wanted = (attempts.c.principal.in_(principals), attempts.c.at_ms >= since_ms)
    query = select(*kind, attempts.c.latency_ms).where(*wanted).order_by(attempts.c.id.desc()).limit(ATTEMPTS_MAX)
    found: defaultdict[tuple[str, str, str | None], list[float]] = defaultdict(list)
    for principal, outcome, rule, latency_ms in connection.execute(query):
        found[principal, outcome, rule].append(latency_ms)
    return [Ended(*kind, tuple(latencies_ms)) for kind, latencies_ms in found.items()]
