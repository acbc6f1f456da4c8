"""A case of its number: schema, partition specs, rows, the table's history, a contract, and a commit.

Values are few and near each other, so that partitions are shared, coarse ones hold several fine ones, and regions cut
through them. Which rows the contract owns is known before the commit is made: it is about both kinds.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from verify.oracle import commits, tables, values
from verify.oracle.cases import Case
from verify.oracle.contracts import Contracts

NOWS_MS = (1_485_903_600_000 + 1_860_000, 1_767_225_599_999, 0, 86_399_999)
"""Moments at which cases play: within a month, at the end of a year, in 1970."""


def case(number: int) -> Case:
    """The case of a number: always the same."""
    rng = Random(number)
    now_ms = rng.choice(NOWS_MS)
    version = rng.choices((1, 2, 3), (1, 4, 4))[0]
    columns = tables.columns_of(rng)
    pools = [values.pool(rng, column.kind, now_ms) for column in columns]
    if rng.random() < 0.5:  # columns of one type share their values
        kinds = [column.kind for column in columns]
        pools = [pools[kinds.index(kind)] for kind in kinds]
    rows = [tuple(rng.choice(pool) for pool in pools) for _ in range(rng.randint(6, 14))]
    made = Case(number, version, columns, tables.specs_of(rng, columns), (), (), now_ms)
    made = replace(made, rules=Contracts(rng, made, rows).rules())
    return commits.with_commit(rng, commits.with_history(rng, made, rows), rows)
