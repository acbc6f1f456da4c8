"""The log of attempts: what was asked of tables, by whom, and how it ended. Rows are searched in bounded pages."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Dialect, Row, Table, delete, func, insert, or_, select

from icetower.ledger.putting import Put
from icetower.ledger.schema import attempts

MESSAGE_CHARACTERS_MAX = 1_000
PARTITIONS_MAX = 20
PARTITION_CHARACTERS_MAX = 200
OPERATION_CHARACTERS_MAX = 32
SCANNED_MAX = 50_000
"""Attempts that one page of a search looks at, however few of them are wanted."""


ORDER_LOCK = 0x1CE70E3
"""Of PostgreSQL: who holds it numbers attempts."""


NUMBERED = "number:"
"""How `Attempt.work` begins for a commit that its application has numbered; the hash of its `numbered_name` follows."""


def numbered_name(application: tuple[str, int]) -> str:
    """How a commit that its application has numbered is named where others have a key."""
    return f"{application[0]}:{application[1]}"


class Outcome(StrEnum):
    """What became of an attempt. `DONE`: of a change that is no commit, such as a drop."""

    DIRECT = "direct"
    REBASED = "rebased"
    APPENDED = "appended"
    DONE = "done"
    REFUSED = "refused"
    CONFLICT = "conflict"
    REPLAYED = "replayed"
    UNKNOWN = "unknown"


NOT_LANDED = (Outcome.REFUSED, Outcome.CONFLICT, Outcome.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to commit, or to read, create, drop, rename or register. `at_ms` 0: now.

    Attributes:
        table: the table, or the namespace.
        key_hash: of the idempotency key; keys are never kept as they are.
        request_id: names it in the log, and in the error that its client got.
        partitions: those that it touches, or that it was refused for; a few, by name.
        message: what its client was answered, where it was refused.
        contract: of the principal, at that time.
        work: equal for all tries of one write, where it has no key: a hash of its number, of its files or of the ids
            of its snapshots, and before it which of these.
        base: the snapshot that it was prepared on.
        head: the snapshot that it was committed on.
        decided_ms: when its agent decided what it writes, as the agent says.
        group_size: how many commits went in with the same swap.
        metadata_bytes: its share of what the tower wrote for that swap.
        manifests: those that its snapshots added; appends that share a snapshot have equal shares of them.
        judge_ms: until it was admitted. `plan_ms`, `write_ms`, `swap_ms`: of its group.
    """

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
    request_id: str | None = None
    partitions: tuple[str, ...] = ()
    message: str | None = None
    contract: str | None = None
    work: str | None = None
    base: int | None = None
    head: int | None = None
    decided_ms: int | None = None
    group_size: int | None = None
    metadata_bytes: int | None = None
    manifests: float | None = None
    judge_ms: float | None = None
    plan_ms: float | None = None
    write_ms: float | None = None
    swap_ms: float | None = None


_PLAIN = (
    "contract",
    "work",
    "base",
    "head",
    "decided_ms",
    "group_size",
    "metadata_bytes",
    "manifests",
    "judge_ms",
    "plan_ms",
    "write_ms",
    "swap_ms",
)
"""Fields that are kept as they are, in columns of their names."""


@dataclass(frozen=True, slots=True)
class Search:
    """Which attempts are wanted: all that fit every field that is given.

    Attributes:
        outcomes: one of these; empty: any.
        request_id: how their ids begin.
        snapshot: one of those that they committed.
    """

    since_ms: int = 0
    table: str | None = None
    principal: str | None = None
    outcomes: tuple[Outcome, ...] = ()
    request_id: str | None = None
    snapshot: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Attempts, newest first. `next`: where the next page begins; None after the last one."""

    attempts: tuple[Attempt, ...]
    next: int | None


@dataclass(frozen=True, slots=True)
class NumberedPage:
    """A page of attempts with their numbers in the log, newest first; `next` as of a `Page`."""

    attempts: tuple[tuple[int, Attempt], ...]
    next: int | None


@dataclass(frozen=True, slots=True)
class Numbered:
    """Attempts with their numbers, which grow in the order in which they were logged.

    Attributes:
        oldest, newest: numbers of the whole log; None: it is empty.
    """

    attempts: tuple[tuple[int, Attempt], ...]
    oldest: int | None
    newest: int | None


@dataclass(frozen=True, slots=True)
class Summary:
    """Attempts of one table or principal: how they ended, and percentiles (nearest rank) of those that landed."""

    name: str
    outcomes: dict[str, int]
    latency_ms: dict[int, float]
    queue_wait_ms: dict[int, float]


def write_attempts(
    connection: Connection,
    logged: Sequence[Attempt],
    now_ms: int,
    attempts_max: int,
    before_the_oldest_go: Callable[[int], None] | None = None,
) -> None:
    """Append to the log, and let the oldest go where it is full.

    This comes last in its transaction: towers that share a PostgreSQL take turns from here until they have committed.
    So whoever sees a number has seen all lower ones, and a reader that goes by them misses none.

    Args:
        before_the_oldest_go: is told the newest number, once all are appended.
    """
    take_order_lock(connection)
    insert_rows(connection, attempts, [_row_of(attempt, now_ms) for attempt in logged])
    newest = connection.execute(select(func.max(attempts.c.id))).scalar_one()
    if before_the_oldest_go is not None:
        before_the_oldest_go(newest)
    connection.execute(delete(attempts).where(attempts.c.id <= newest - attempts_max))


def take_order_lock(connection: Connection) -> None:
    """Be the one tower that numbers attempts, until this transaction ends. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(ORDER_LOCK)))


def insert_rows(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Append rows to a log, which numbers them."""
    _appending(connection.dialect, table).rows(connection, rows)


@lru_cache(maxsize=12)
def _appending(dialect: Dialect, table: Table) -> Put:
    return Put.of(insert(table).inline(), dialect, [column.name for column in table.c if column.name != "id"])


def read_page(connection: Connection, wanted: Search, limit: int, before: int | None) -> Page:
    """The newest attempts that are wanted, at most `limit`, among the next `SCANNED_MAX` that were logged `before`."""
    found = read_numbered_page(connection, wanted, limit, before)
    return Page(tuple(attempt for _, attempt in found.attempts), found.next)


def read_numbered_page(
    connection: Connection, wanted: Search, limit: int, before: int | None, *, scanned_max: int = SCANNED_MAX
) -> NumberedPage:
    """As `read_page`, with the numbers of the attempts.

    Args:
        scanned_max: so many attempts are looked at, however few of them are wanted.
    """
    own = attempts.c.id
    newest = select(func.max(own)) if before is None else select(func.max(own)).where(own < before)
    last_number: int | None = connection.execute(newest).scalar()
    oldest: int | None = connection.execute(select(func.min(own))).scalar()
    if last_number is None or oldest is None:
        return NumberedPage((), None)
    # By their numbers, which have no gaps worth the name: to count rows is to read them.
    last = max(last_number - scanned_max + 1, oldest)
    query = select(attempts).where(own >= last, own <= last_number, *_conditions(wanted))
    rows = list(connection.execute(query.order_by(own.desc()).limit(limit + 1)))
    if len(rows) > limit:
        return NumberedPage(_with_numbers(rows[:limit]), rows[limit - 1].id)
    began = connection.execute(select(attempts.c.at_ms).where(own >= last).order_by(own).limit(1)).scalar_one()
    over = oldest >= last or began < wanted.since_ms
    return NumberedPage(_with_numbers(rows), None if over else last)


def read_attempts(connection: Connection, numbers: Sequence[int]) -> dict[int, Attempt]:
    """Attempts by their numbers in the log; those that it has."""
    rows = connection.execute(select(attempts).where(attempts.c.id.in_(numbers)))
    return dict(_with_numbers(rows))


def _with_numbers(rows: Iterable[Row[Any]]) -> tuple[tuple[int, Attempt], ...]:
    return tuple((row.id, _attempt(row)) for row in rows)


def read_after(connection: Connection, after: int, limit: int) -> Numbered:
    """The first attempts that were logged after the one with this number."""
    rows = list(connection.execute(select(attempts).where(attempts.c.id > after).order_by(attempts.c.id).limit(limit)))
    oldest = connection.execute(select(func.min(attempts.c.id))).scalar()
    newest = connection.execute(select(func.max(attempts.c.id))).scalar()
    return Numbered(tuple((row.id, _attempt(row)) for row in rows), oldest, newest)


def read_counts(connection: Connection, wanted: Search) -> dict[Outcome, int]:
    """How many attempts ended how."""
    query = select(attempts.c.outcome, func.count().label("n")).where(*_conditions(wanted)).group_by(attempts.c.outcome)
    return {Outcome(row.outcome): row.n for row in connection.execute(query)}


def read_summary(
    connection: Connection,
    by: Literal["table", "principal"],
    since_ms: int,
    percentiles: Sequence[int],
    sample_max: int,
) -> list[Summary]:
    """Outcomes and percentiles for each table or principal, from the newest `sample_max` attempts since a time."""
    name = attempts.c.table_name if by == "table" else attempts.c.principal
    columns = select(name, attempts.c.outcome, attempts.c.latency_ms, attempts.c.queue_wait_ms)
    query = columns.where(attempts.c.at_ms >= since_ms).order_by(attempts.c.id.desc()).limit(sample_max)
    outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    latencies: defaultdict[str, list[float]] = defaultdict(list)
    waits: defaultdict[str, list[float]] = defaultdict(list)
    for group, outcome, latency_ms, queue_wait_ms in connection.execute(query):
        outcomes[group][outcome] += 1
        if outcome in (Outcome.DIRECT, Outcome.REBASED, Outcome.APPENDED):
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


def _conditions(wanted: Search) -> list[ColumnElement[bool]]:
    given = ((attempts.c.table_name, wanted.table), (attempts.c.principal, wanted.principal))
    found = [column == value for column, value in given if value is not None]
    if wanted.since_ms:
        found.append(attempts.c.at_ms >= wanted.since_ms)
    if wanted.outcomes:
        found.append(attempts.c.outcome.in_([outcome.value for outcome in wanted.outcomes]))
    if wanted.request_id is not None:
        found.append(attempts.c.request_id.startswith(wanted.request_id, autoescape=True))
    if wanted.snapshot is not None:  # the list is JSON, and no id is a part of another there
        listed = attempts.c.snapshots
        one = str(wanted.snapshot)
        found.append(
            or_(listed == f"[{one}]", *(listed.contains(part) for part in (f"[{one},", f" {one},", f" {one}]")))
        )
    return found


def _row_of(attempt: Attempt, now_ms: int) -> dict[str, Any]:
    return {
        "at_ms": attempt.at_ms or now_ms,
        "principal": attempt.principal,
        "table_name": attempt.table,
        "operation": attempt.operation[:OPERATION_CHARACTERS_MAX],
        "outcome": attempt.outcome.value,
        "rule": attempt.rule,
        "queue_wait_ms": attempt.queue_wait_ms,
        "latency_ms": attempt.latency_ms,
        "snapshots": json.dumps(attempt.snapshots),
        "key_hash": attempt.key_hash,
        "request_id": attempt.request_id,
        "partitions": json.dumps([name[:PARTITION_CHARACTERS_MAX] for name in attempt.partitions[:PARTITIONS_MAX]]),
        "message": None if attempt.message is None else attempt.message[:MESSAGE_CHARACTERS_MAX],
        **{name: getattr(attempt, name) for name in _PLAIN},
    }


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
        row.request_id,
        tuple(json.loads(row.partitions or "[]")),
        row.message,
        *(getattr(row, name) for name in _PLAIN),
    )
