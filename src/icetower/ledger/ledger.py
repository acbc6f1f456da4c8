"""Keys, answers and attempts, kept in the control database."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, update

from icetower.ambient import Ambient
from icetower.database import Database
from icetower.errors import KeyMisused
from icetower.ledger.schema import answers, attempts, keys
from icetower.registry.sql import migrate, take_write_lock

T = TypeVar("T")

LIFETIME_S = 24 * 3600
ATTEMPTS_MAX = 1_000_000
PRUNED_AT_ONCE = 1_000


class Outcome(StrEnum):
    """What became of an attempt to commit."""

    DIRECT = "direct"
    REBASED = "rebased"
    REFUSED = "refused"
    CONFLICT = "conflict"
    REPLAYED = "replayed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CommitKey:
    """To whom a key belongs (trap K2): a table dropped and created again has another `table_uuid`: it starts afresh."""

    table_uuid: str
    ref: str
    principal: str
    key: str


@dataclass(frozen=True, slots=True)
class Commit:
    """What was committed under a key. `fingerprint` stands for the content (trap K3)."""

    owner: CommitKey
    snapshots: tuple[int, ...]
    application_id: str | None
    fingerprint: str
    first_ms: int = 0
    last_ms: int = 0
    expires_ms: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """A final answer of a mutating endpoint. `endpoint`: method and path; `fingerprint`: of the request's body."""

    endpoint: str
    status: int
    body: bytes
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to commit. `at_ms` 0: now. Keys are kept as hashes (`key_hash`), never as they are."""

    principal: str
    table: str
    operation: str
    outcome: Outcome
    rule: str | None = None
    queue_wait_ms: float = 0.0
    latency_ms: float = 0.0
    snapshots: tuple[int, ...] = ()
    key_hash: str | None = None
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """Attempts of one table or principal: how they ended, and percentiles (nearest rank) of those that landed."""

    name: str
    outcomes: dict[str, int]
    latency_ms: dict[int, float]
    queue_wait_ms: dict[int, float]


def key_hash(key: str | None) -> str | None:
    """How a client's key appears in the log."""
    return None if key is None else hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class Ledger:
    """Open it once; its tables are made or brought up to date then.

    Args:
        lifetime_s: how long keys and answers are kept. A live one is never evicted.
        attempts_max: how many attempts the log keeps; the oldest give way.
    """

    def __init__(
        self, database: Database, ambient: Ambient, *, lifetime_s: int = LIFETIME_S, attempts_max: int = ATTEMPTS_MAX
    ) -> None:
        self._database = database
        self._ambient = ambient
        self._lifetime_ms = lifetime_s * 1000
        self._attempts_max = attempts_max
        migrate(database, Path(__file__).parent / "migrations", version_table="ledger_version")

    async def _write(self, work: Callable[[Connection], T]) -> T:
        def locked(connection: Connection) -> T:
            take_write_lock(connection)
            return work(connection)

        return await self._database.run(locked)

    # ------------------------------------------------------------------------------------------------ keys of commits

    async def find_commit(self, owner: CommitKey) -> Commit | None:
        """What was committed under a live key."""
        now = self._ambient.now_ms()

        def work(connection: Connection) -> Commit | None:
            row = connection.execute(select(keys).where(_is(owner), keys.c.expires_ms > now)).one_or_none()
            return None if row is None else _commit(owner, row)

        return await self._database.run(work)

    async def remember_commits(self, commits: Sequence[Commit]) -> None:
        """Keep what was committed, a group at once; its times are set here. A live key keeps its first content."""
        now = self._ambient.now_ms()
        times = {"last_ms": now, "expires_ms": now + self._lifetime_ms}

        def work(connection: Connection) -> None:
            _prune(connection, now)
            for commit in commits:
                live = _is(commit.owner), keys.c.expires_ms > now
                if connection.execute(update(keys).where(*live).values(**times)).rowcount:
                    continue
                connection.execute(delete(keys).where(_is(commit.owner)))
                row = {
                    "table_uuid": commit.owner.table_uuid,
                    "ref": commit.owner.ref,
                    "principal": commit.owner.principal,
                    "key": commit.owner.key,
                    "snapshots": json.dumps(commit.snapshots),
                    "application_id": commit.application_id,
                    "fingerprint": commit.fingerprint,
                    "first_ms": now,
                }
                connection.execute(insert(keys).values(**row, **times))

        if commits:
            await self._write(work)

    async def forget_commits(self, owners: Sequence[CommitKey]) -> None:
        """Let go of keys whose commits are no longer part of their branch."""

        def work(connection: Connection) -> None:
            for owner in owners:
                connection.execute(delete(keys).where(_is(owner)))

        if owners:
            await self._write(work)

    # ----------------------------------------------------------------------------------------- answers of other routes

    async def find(self, principal: str, key: str, endpoint: str, fingerprint: str | None = None) -> Answer | None:
        """The answer that was given under a live key. Raises `KeyMisused` if it stands for another request."""
        now = self._ambient.now_ms()

        def work(connection: Connection) -> Answer | None:
            query = select(answers).where(answers.c.principal == principal, answers.c.key == key)
            row = connection.execute(query.where(answers.c.expires_ms > now)).one_or_none()
            return None if row is None else Answer(row.endpoint, row.status, row.body, row.fingerprint)

        found = await self._database.run(work)
        if found is not None and (found.endpoint, found.fingerprint) != (endpoint, fingerprint):
            raise KeyMisused(
                f"the idempotency key was used for another request, {found.endpoint}; take a new key for each request",
                rule="key.endpoint",
            )
        return found

    async def remember(self, principal: str, key: str, answer: Answer) -> None:
        """Keep a final answer (2xx or a final 4xx; never 5xx). The first one under a live key stays."""
        now = self._ambient.now_ms()

        def work(connection: Connection) -> None:
            _prune(connection, now)
            mine = answers.c.principal == principal, answers.c.key == key
            connection.execute(delete(answers).where(*mine, answers.c.expires_ms <= now))
            if connection.execute(select(answers.c.key).where(*mine)).first() is None:
                row = {"endpoint": answer.endpoint, "status": answer.status, "body": answer.body}
                row |= {"fingerprint": answer.fingerprint, "expires_ms": now + self._lifetime_ms}
                connection.execute(insert(answers).values(principal=principal, key=key, **row))

        if answer.status < 500:
            await self._write(work)

    # ------------------------------------------------------------------------------------------------------- attempts

    async def record(self, batch: Sequence[Attempt]) -> None:
        """Append attempts to the log, and let the oldest go where it is full."""
        now = self._ambient.now_ms()
        rows = [
            {
                "at_ms": attempt.at_ms or now,
                "principal": attempt.principal,
                "table_name": attempt.table,
                "operation": attempt.operation,
                "outcome": attempt.outcome.value,
                "rule": attempt.rule,
                "queue_wait_ms": attempt.queue_wait_ms,
                "latency_ms": attempt.latency_ms,
                "snapshots": json.dumps(attempt.snapshots),
                "key_hash": attempt.key_hash,
            }
            for attempt in batch
        ]

        def work(connection: Connection) -> None:
            connection.execute(insert(attempts), rows)
            newest = connection.execute(select(func.max(attempts.c.id))).scalar_one()
            connection.execute(delete(attempts).where(attempts.c.id <= newest - self._attempts_max))

        if rows:
            await self._write(work)

    async def recent(
        self, *, limit: int = 100, table: str | None = None, principal: str | None = None
    ) -> list[Attempt]:
        """The newest attempts, newest first."""
        query = select(attempts).where(*_of(table, principal)).order_by(attempts.c.id.desc()).limit(limit)

        def work(connection: Connection) -> list[Attempt]:
            return [_attempt(row) for row in connection.execute(query)]

        return await self._database.run(work)

    async def counts(
        self, *, since_ms: int = 0, table: str | None = None, principal: str | None = None
    ) -> dict[Outcome, int]:
        """How many attempts ended how, since a time."""
        wanted = (attempts.c.at_ms >= since_ms, *_of(table, principal))
        query = select(attempts.c.outcome, func.count().label("n")).where(*wanted).group_by(attempts.c.outcome)

        def work(connection: Connection) -> dict[Outcome, int]:
            return {Outcome(row.outcome): row.n for row in connection.execute(query)}

        return await self._database.run(work)

    async def summary(
        self,
        by: Literal["table", "principal"],
        *,
        since_ms: int = 0,
        percentiles: Sequence[int] = (50, 95, 99),
        sample_max: int = 100_000,
    ) -> list[Summary]:
        """Outcomes and percentiles for each table or principal, from the newest `sample_max` attempts since a time."""
        name = attempts.c.table_name if by == "table" else attempts.c.principal
        columns = select(name, attempts.c.outcome, attempts.c.latency_ms, attempts.c.queue_wait_ms)
        query = columns.where(attempts.c.at_ms >= since_ms).order_by(attempts.c.id.desc()).limit(sample_max)
        rows = await self._database.run(lambda connection: connection.execute(query).all())
        outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        latencies: defaultdict[str, list[float]] = defaultdict(list)
        waits: defaultdict[str, list[float]] = defaultdict(list)
        for group, outcome, latency_ms, queue_wait_ms in rows:
            outcomes[group][outcome] += 1
            if outcome in (Outcome.DIRECT, Outcome.REBASED):
                latencies[group].append(latency_ms)
                waits[group].append(queue_wait_ms)
        return [
            Summary(
                group,
                dict(sorted(outcomes[group].items())),
                {p: percentile(latencies[group], p) for p in percentiles},
                {p: percentile(waits[group], p) for p in percentiles},
            )
            for group in sorted(outcomes)
        ]


def percentile(values: Iterable[float], percent: int) -> float:
    """The nearest-rank percentile; 0.0 of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0


def _is(owner: CommitKey) -> Any:
    return (
        (keys.c.table_uuid == owner.table_uuid)
        & (keys.c.ref == owner.ref)
        & (keys.c.principal == owner.principal)
        & (keys.c.key == owner.key)
    )


def _prune(connection: Connection, now_ms: int) -> None:
    """Drop what has expired, a bounded piece at a time, so that no request pays for a long backlog."""
    for table in (keys, answers):
        end = select(table.c.expires_ms).where(table.c.expires_ms <= now_ms).order_by(table.c.expires_ms)
        last = connection.execute(end.limit(PRUNED_AT_ONCE)).scalars().all()
        if last:
            connection.execute(delete(table).where(table.c.expires_ms <= last[-1]))


def _of(table: str | None, principal: str | None) -> list[ColumnElement[bool]]:
    wanted = ((attempts.c.table_name, table), (attempts.c.principal, principal))
    return [column == value for column, value in wanted if value is not None]


def _commit(owner: CommitKey, row: Row[Any]) -> Commit:
    return Commit(
        owner,
        tuple(json.loads(row.snapshots)),
        row.application_id,
        row.fingerprint,
        row.first_ms,
        row.last_ms,
        row.expires_ms,
    )


def _attempt(row: Row[Any]) -> Attempt:
    return Attempt(
        row.principal,
        row.table_name,
        row.operation,
        Outcome(row.outcome),
        row.rule,
        row.queue_wait_ms,
        row.latency_ms,
        tuple(json.loads(row.snapshots)),
        row.key_hash,
        row.at_ms,
    )
