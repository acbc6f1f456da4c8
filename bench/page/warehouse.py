"""What the pages are asked about: agents, their contracts, their tables, and a log of attempts. Pure.

Each agent works at two tables, and all of them at the hot one. At each it owns one hour: the heat maps of a table have
as many owners as it has agents.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from bench.commits.shapes import hour_text
from icetower.ledger.attempts import Attempt, Outcome
from icetower.protocol.names import Identifier

AREAS = 10
"""Namespaces that the tables are in."""
HOT = 0
SLOTTED_EVERY = 50
"""Of so many agents one has slots, at a table that nobody else has."""
JOBS = 3
"""Principals with the role of a maintenance job, beside the agents."""
SPAN_S = 6 * 3600
"""The log is so long: 46 attempts a second of a million."""
BUSY_AT_ONCE, BUSY_FOR = 100, 1_000
"""So many agents are at work at a time, for so many attempts; then the next ones are. All are in the newest 20,000."""
SEED = 20261126
IDS_FROM = 3_000_000_000_000_000_000

REFUSALS = (
    ("contract.partitions", "agent {agent} does not own partition {partition} of {table}; another contract owns it"),
    ("contract.operation", "contract {agent} does not let its principals overwrite {table}; ask for the operation"),
    ("contract.quota", "contract {agent} allows 60 commits a minute at {table}, and this is one more; wait"),
)
CONFLICTS = (
    ("conflict", "snapshot 3000000000000000001 has written to {partition} of {table} since the base of this commit"),
    ("commit.stale", "the base of this commit is no longer the head of {table}; read it again, and retry"),
    ("plan.needs", "nothing says what this commit to {table} depends on; declare it, or retry"),
)
OUTCOMES = (
    (Outcome.REBASED, 0.50), (Outcome.DIRECT, 0.30), (Outcome.APPENDED, 0.08), (Outcome.REFUSED, 0.06),
    (Outcome.CONFLICT, 0.04), (Outcome.REPLAYED, 0.015), (Outcome.UNKNOWN, 0.005),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    """Of a warehouse."""

    agents: int = 1_000
    tables: int = 100
    attempts: int = 1_000_000


def agent_name(number: int) -> str:
    return f"agent-{number}"


def table_name(number: int) -> Identifier:
    return Identifier.parse(f"area{number % AREAS}.events_{number}")


def tables_of(agent: int, size: Size) -> tuple[int, ...]:
    """The numbers of an agent's tables; the first is where it is most of the time."""
    return tuple(dict.fromkeys((agent % size.tables, (7 * agent + 3) % size.tables, HOT)))


def contract_of(agent: int, size: Size) -> str:
    """An agent's contract."""
    rules = "".join(
        f"""
  - table: {table_name(number)}
    operations: [append, overwrite]
    write_location: table
    partitions:
      - at_hour: {{from: "{hour_text(agent)}", to: "{hour_text(agent, 1)}"}}
    blind_appends: true
    read_scope: owned
    quotas: {{commits_per_minute: 60000, files_per_commit: 500}}
"""
        for number in tables_of(agent, size)
    )
    if agent % SLOTTED_EVERY == 0:
        rules += f"""
  - table: turns.events_{agent}
    operations: [append]
    pattern: scheduler
    partitions:
      - slot: {{every: 10m, from: 0s, to: 4m}}
"""
    return f"""version: 1
agent: {agent_name(agent)}
owner: team-{agent % 16}@example.com
description: keeps the events of source {agent}
tables:{rules}"""


def job_name(job: int) -> str:
    return f"compaction-{job}"


def job_contract(job: int) -> str:
    """The contract of a maintenance job, which may compact the tables of one namespace."""
    return f"""version: 1
agent: {job_name(job)}
owner: platform@example.com
role: maintenance
tables:
  - {{table: "area{job}.*", operations: [replace], partitions: all}}
"""


def attempts(size: Size, now_ms: int, seed: int = SEED) -> Iterator[Attempt]:
    """The log, oldest first, until now."""
    draw = random.Random(seed)
    outcomes, weights = zip(*OUTCOMES, strict=True)
    step_ms = SPAN_S * 1000 / max(1, size.attempts)
    start_ms = now_ms - SPAN_S * 1000
    ends = draw.choices(outcomes, weights, k=size.attempts)
    for number in range(size.attempts):
        agent = (number // BUSY_FOR * BUSY_AT_ONCE + int(draw.random() * BUSY_AT_ONCE)) % size.agents
        tables = tables_of(agent, size)
        at = draw.random()
        table = tables[0 if at < 0.6 else min(1 if at < 0.9 else 2, len(tables) - 1)]
        yield _attempt(number, agent, table, ends[number], int(start_ms + number * step_ms), draw)


def _attempt(number: int, agent: int, table: int, outcome: Outcome, at_ms: int, draw: random.Random) -> Attempt:
    name, where = agent_name(agent), str(table_name(table))
    bits = draw.getrandbits(256)
    partition = f"at_hour={hour_text(agent).replace('T', '-')}/id_bucket={bits % 16}"
    landed = outcome in (Outcome.DIRECT, Outcome.REBASED, Outcome.APPENDED, Outcome.REPLAYED)
    rule = message = None
    if outcome is Outcome.REFUSED:
        rule, message = REFUSALS[bits % len(REFUSALS)]
    elif outcome is Outcome.CONFLICT:
        rule, message = CONFLICTS[bits % len(CONFLICTS)]
    elif outcome is Outcome.UNKNOWN:
        rule, message = "commit.unknown", "whether this commit to {table} has landed is not known; send it again"
    latency_ms = 20.0 + bits % 400
    return Attempt(
        name,
        where,
        "append",
        outcome,
        rule,
        queue_wait_ms=latency_ms / 4,
        latency_ms=latency_ms,
        snapshots=(IDS_FROM + number,) if landed else (),
        key_hash=f"{bits:064x}",
        at_ms=at_ms,
        request_id=f"{bits >> 192:016x}",
        partitions=(partition,),
        message=None if message is None else message.format(agent=name, table=where, partition=partition),
        contract=name,
        base=IDS_FROM + max(0, number - 2_000),
        head=IDS_FROM + max(0, number - 1_000) if landed else None,
        group_size=1 + bits % 8 if landed else None,
        metadata_bytes=4_000 if landed else None,
        manifests=1.0 if landed else None,
        judge_ms=1.5,
        plan_ms=2.0 if landed else None,
        write_ms=6.0 if landed else None,
        swap_ms=3.0 if landed else None,
    )
