"""What contracts in shadow mode would have refused: counted by who, what and why, so that the log stays small."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from icetower.ledger.hashes import SHADOW, hashed
from icetower.ledger.schema import shadow

MESSAGE_CHARACTERS_MAX = 2_000
PARTITIONS_MAX = 20
ROWS_MAX = 100_000
"""Kinds of refusals that are kept; what comes after them is not counted."""


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
        if len(connection.execute(select(shadow.c.id).limit(ROWS_MAX)).all()) >= ROWS_MAX:
            return
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
