"""The figures of agents' writes in the ledger's database, counted from the log of attempts in the order of its numbers.

How far the log is counted stands beside the figures and moves in the same transaction: they are exactly those of the
attempts up to there, over restarts, and whichever tower on the database counted them. Whoever logs the five hundredth
uncounted attempt counts them all, and so does whoever asks for figures. One at a time would cost several times as much:
a row is read, added to and written back for each principal and table, for each table, and for all, both in the window
and since ever.

Rows are bounded: the oldest windows give way, and of the totals those that were added to longest ago; the total of all
keeps everything.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect, Table, and_, delete, func, literal, or_, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from icetower.database import read_at_once
from icetower.ledger.attempts import Attempt, Outcome, take_order_lock
from icetower.ledger.hashes import MEASURED, REPORT, TRY, hashed
from icetower.ledger.putting import Put
from icetower.ledger.schema import attempts, metric_counts, metric_reports, metric_totals, metric_windows, tries
from icetower.ledger.tallies import (
    Counted,
    Tally,
    has_landed,
    is_commit,
    may_be_first,
    window_of,
    write_id,
)

WINDOWS_MAX = 200_000
"""Rows of windows that are kept."""

TOTALS_MAX = 20_000
TRIES_MAX = 200_000
"""Writes that did not land, of which it is known that they were tried."""

REPORTS_MAX = 10_000
"""Of one kind."""

REMOVED_AT_ONCE = 2_000
DAY_MS = 24 * 3600 * 1000
RULE_CHARACTERS_MAX = 64

COUNT_EVERY = 1_000
"""So many attempts may be logged and not counted."""

COUNTED_AT_ONCE = 1_000
_THROUGH = "through"
_WINDOWS, _TOTALS, _TRIES = "rows:windows", "rows:totals", "rows:tries"
_OUTCOME = "outcome:"

ORPHANS, WAL_LAG, COLLECTOR_LAG, BYPASS, DISK = "orphans", "wal-lag", "collector-lag", "bypass", "disk"
AUDIT = "audit"

Key = tuple[int, str, str]
"""Window (0: since ever), principal and table (empty: all)."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What attempts came to. `window_ms` None: since ever; `principal` and `table` empty: of all together."""

    window_ms: int | None
    principal: str
    table: str
    tally: Tally


@dataclass(frozen=True, slots=True)
class Report:
    """What a job has measured, or a tower noticed.

    Attributes:
        kind: `orphans` (files), `wal-lag` and `collector-lag` (seconds), `audit` (findings), `bypass` (a snapshot),
            `disk` (free bytes).
        source: of orphans the principal that left them, of an audit the rule, of a bypass the snapshot, of a disk the
            tower; else empty.
        details: small facts beside the value, such as `bytes`.
    """

    kind: str
    table: str
    source: str
    value: float
    at_ms: int
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])


def measured_id(principal: str, table: str) -> bytes:
    """Under which the figures of a principal and a table are kept."""
    return hashed(MEASURED, principal, table)


# ------------------------------------------------------------------------------------------------------------- counting


def count_logged(connection: Connection) -> int:
    """Count what the log has that is not counted yet. The number of the last attempt that is counted.

    Its transaction must be one that writes; it takes turns with those that log.
    """
    take_order_lock(connection)
    while True:
        query = select(metric_counts.c.count).where(metric_counts.c.name == _THROUGH)
        through: int = connection.execute(query).scalar() or 0
        rows = connection.execute(_LOGGED.where(attempts.c.id > through).limit(COUNTED_AT_ONCE)).all()
        if rows:
            _count_rows(connection, rows)
            through = rows[-1][0]
            _put(connection, metric_counts, [{"name": _THROUGH, "count": through}])
        if len(rows) < COUNTED_AT_ONCE:
            return through


_LOGGED = select(
    attempts.c.id,
    attempts.c.at_ms,
    attempts.c.principal,
    attempts.c.table_name,
    attempts.c.operation,
    attempts.c.outcome,
    attempts.c.rule,
    attempts.c.latency_ms,
    attempts.c.key_hash,
    attempts.c.work,
    attempts.c.partitions,
    attempts.c.decided_ms,
    attempts.c.group_size,
    attempts.c.metadata_bytes,
    attempts.c.manifests,
).order_by(attempts.c.id)


def _logged(row: Any) -> Attempt:
    _, at_ms, principal, table, operation, outcome, rule, latency_ms, key_hash, work, partitions, *rest = row
    decided_ms, group_size, metadata_bytes, manifests = rest
    return Attempt(
        principal,
        table,
        operation,
        Outcome(outcome),
        rule,
        latency_ms=latency_ms,
        key_hash=key_hash,
        at_ms=at_ms,
        partitions=tuple(json.loads(partitions)) if partitions else (),
        work=work,
        decided_ms=decided_ms,
        group_size=group_size,
        metadata_bytes=metadata_bytes,
        manifests=manifests,
    )


def _count_rows(connection: Connection, rows: Sequence[Any]) -> None:
    logged = [(attempt, attempt.at_ms) for row in rows if is_commit(attempt := _logged(row))]
    if not logged:
        return
    firsts = _first_tries(connection, logged)
    own: dict[Key, _More] = {}
    more: dict[str, int] = {}
    for (attempt, at_ms), first in zip(logged, firsts, strict=True):
        key = (window_of(at_ms), attempt.principal, attempt.table)
        found = own.get(key)
        if found is None:
            found = own[key] = _More()
        # Names of partitions mean something together with their table.
        found.tally.add(Counted.of(attempt, at_ms, first=first), partitions=bool(attempt.table))
        found.last_ms = max(found.last_ms, at_ms)
        name = f"{_OUTCOME}{attempt.outcome.value}:{(attempt.rule or '')[:RULE_CHARACTERS_MAX]}"
        more[name] = more.get(name, 0) + 1
    windows, totals = _spread(own)
    more |= {
        _WINDOWS: _add_up(connection, metric_windows, windows),
        _TOTALS: _add_up(connection, metric_totals, totals),
    }
    counts = _count(connection, more)
    if counts[_WINDOWS] > WINDOWS_MAX:
        _remove_oldest(connection, counts[_WINDOWS] - WINDOWS_MAX)
    if counts[_TOTALS] > TOTALS_MAX:
        _remove_least_recent(connection, counts[_TOTALS] - TOTALS_MAX)


def _first_tries(connection: Connection, counted: Sequence[tuple[Attempt, int]]) -> list[bool]:
    """Which attempts are the first tries of their writes, as far as the day before goes; others are noted."""
    ids = [_try_id(attempt) for attempt, _ in counted]
    asked = {name for name in ids if name is not None}
    known: dict[bytes, int] = {}
    if asked:
        rows = connection.execute(select(tries.c.id, tries.c.at_ms).where(tries.c.id.in_(asked)))
        known = {bytes(row.id): row.at_ms for row in rows}
    before, found = dict(known), list[bool]()
    for (attempt, at_ms), name in zip(counted, ids, strict=True):
        last_ms = None if name is None else known.get(name)
        tried = last_ms is not None and last_ms // DAY_MS >= at_ms // DAY_MS - 1
        found.append(may_be_first(attempt) and not tried)
        if name is not None and not has_landed(attempt) and attempt.outcome is not Outcome.REPLAYED:
            known[name] = max(at_ms, last_ms or 0)
    noted = [{"id": name, "at_ms": at_ms} for name, at_ms in known.items() if before.get(name) != at_ms]
    if noted:
        _put(connection, tries, noted)
        rows = _count(connection, {_TRIES: sum(each["id"] not in before for each in noted)})[_TRIES]
        newest_ms = max(at_ms for _, at_ms in counted)
        gone = connection.execute(delete(tries).where(tries.c.at_ms < (newest_ms // DAY_MS - 1) * DAY_MS)).rowcount
        if rows - gone > TRIES_MAX:
            oldest = select(tries.c.id).order_by(tries.c.at_ms).limit(rows - gone - TRIES_MAX)
            gone += connection.execute(delete(tries).where(tries.c.id.in_(oldest))).rowcount
        if gone:
            _count(connection, {_TRIES: -gone})
    return found


def _try_id(attempt: Attempt) -> bytes | None:
    name = write_id(attempt)
    return None if name is None else hashed(TRY, attempt.principal, attempt.table, name)


@dataclass(slots=True)
class _More:
    """What is to be added to a row. `last_ms`: the newest of its attempts."""

    tally: Tally = field(default_factory=Tally)
    last_ms: int = 0

    def merge(self, other: _More, *, partitions: bool) -> None:
        self.tally.merge(other.tally, partitions=partitions)
        self.last_ms = max(self.last_ms, other.last_ms)


def _spread(own: Mapping[Key, _More]) -> tuple[dict[Key, _More], dict[Key, _More]]:
    """What principals did to tables, for the rows of windows and of totals, those of all together included.

    Each attempt is counted once, and what that comes to is added to all the rows that it is in.
    """
    windows, totals = dict(own), dict[Key, _More]()
    for (window_ms, principal, table), more in own.items():
        for of_principal, of_table in dict.fromkeys(((principal, table), ("", table), ("", ""))):
            if (of_principal, of_table) != (principal, table):
                windows.setdefault((window_ms, of_principal, of_table), _More()).merge(more, partitions=bool(of_table))
            # A partition is hot for a time, and not since ever.
            totals.setdefault((0, of_principal, of_table), _More()).merge(more, partitions=False)
    return windows, totals


def _add_up(connection: Connection, table: Table, by_key: Mapping[Key, _More]) -> int:
    """Add attempts to their rows. How many rows are new."""
    in_windows = table is metric_windows
    ids = {key: measured_id(*key[1:]) for key in by_key}
    when = metric_windows.c.window_ms if in_windows else literal(0)
    query = select(when, table.c.id, table.c.tally).where(table.c.id.in_(set(ids.values())))
    if in_windows:
        query = query.where(metric_windows.c.window_ms.in_({key[0] for key in by_key}))
    kept = {(window_ms, bytes(name)): text for window_ms, name, text in connection.execute(query)}
    rows: list[dict[str, Any]] = []
    new = 0
    for key, more in by_key.items():
        window_ms, principal, name = key
        text, tally = kept.get((window_ms, ids[key])), more.tally
        new += text is None
        if text is not None:
            tally = _read(text)
            tally.merge(more.tally)
        row = {"id": ids[key], "principal": principal, "table_name": name, "attempts": tally.attempts}
        row |= {"tally": tally.to_json(), "window_ms": window_ms, "at_ms": more.last_ms}
        rows.append(row | {"table_id": measured_id("", name)} if in_windows else row)
    # In the order of the tree that they go into.
    _put(connection, table, sorted(rows, key=lambda row: (row["window_ms"], row["id"])))
    return new


def _read(text: str) -> Tally:
    """A row's tally. One that cannot be read starts anew: the log must not stand still for it."""
    try:
        return Tally.from_json(text)
    except (ValueError, TypeError):
        return Tally()


def _count(connection: Connection, more: Mapping[str, int]) -> dict[str, int]:
    """Add to counts, and read them."""
    query = select(metric_counts).where(metric_counts.c.name.in_(list(more)))
    counts: dict[str, int] = dict(map(tuple, connection.execute(query)))
    found = {name: counts.get(name, 0) + number for name, number in more.items()}
    changed = [{"name": name, "count": count} for name, count in sorted(found.items()) if counts.get(name) != count]
    if changed:
        _put(connection, metric_counts, changed)
    return found


def _remove_oldest(connection: Connection, many: int) -> None:
    """Let go of the oldest rows of windows, a bounded number."""
    columns = (metric_windows.c.window_ms, metric_windows.c.id)
    at = select(*columns).order_by(*columns).offset(min(many, REMOVED_AT_ONCE)).limit(1)
    row = connection.execute(at).one_or_none()
    if row is not None:
        gone = delete(metric_windows).where(tuple_(*columns) < tuple_(row.window_ms, row.id))
        _count(connection, {_WINDOWS: -connection.execute(gone).rowcount})


def _remove_least_recent(connection: Connection, many: int) -> None:
    """Let go of the totals that were added to longest ago, and some more: finding them reads all of them."""
    most = min(many + TOTALS_MAX // 20, REMOVED_AT_ONCE)
    own = (metric_totals.c.principal != "") | (metric_totals.c.table_name != "")
    oldest = select(metric_totals.c.id).where(own).order_by(metric_totals.c.at_ms).limit(most)
    gone = connection.execute(delete(metric_totals).where(metric_totals.c.id.in_(oldest))).rowcount
    _count(connection, {_TOTALS: -gone})


def _put(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows, over those that are there."""
    _over(connection.dialect, table.name).rows(connection, rows)


@lru_cache(maxsize=16)
def _over(dialect: Dialect, name: str) -> Put:
    tables = (metric_windows, metric_totals, metric_counts, tries, metric_reports)
    table = next(each for each in tables if each.name == name)
    insert = (sqlite if dialect.name == "sqlite" else postgresql).insert(table)
    columns = [column.name for column in table.c]
    keys = [column.name for column in table.primary_key]
    values = {column: insert.excluded[column] for column in columns if column not in keys}
    return Put.of(insert.on_conflict_do_update(index_elements=keys, set_=values), dialect, columns)


# -------------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which figures are wanted.

    Attributes:
        since_ms: of windows that end after this time.
        principal, table: None: any one; empty: that of all together.
    """

    since_ms: int = 0
    principal: str | None = None
    table: str | None = None


@dataclass(frozen=True, slots=True)
class Windows:
    """Figures by window, newest first. `next`: where the next page begins; None after the last one."""

    rows: tuple[Measured, ...]
    next: tuple[int, bytes] | None


def read_windows(
    connection: Connection, wanted: Wanted, limit: int, before: tuple[int, bytes] | None = None
) -> Windows:
    """A page of windows; `before`: where the page before it ended."""
    columns = metric_windows.c
    name = func.hex(columns.id) if connection.dialect.name == "sqlite" else func.encode(columns.id, "hex")
    query = select(columns.window_ms, name, columns.principal, columns.table_name, columns.tally)
    conditions = [columns.window_ms >= window_of(wanted.since_ms), *_named(metric_windows, wanted)]
    if wanted.principal == "" and wanted.table is not None:
        # One row of each window, among those of all tables: its key is found in the index, without reading the others.
        keys = select(columns.window_ms, columns.id).where(*conditions).subquery()
        query = query.join(keys, and_(columns.window_ms == keys.c.window_ms, columns.id == keys.c.id))
    else:
        query = query.where(*conditions)
    if before is not None:
        query = query.where(tuple_(columns.window_ms, columns.id) < tuple_(*before))
    query = query.order_by(columns.window_ms.desc(), columns.id.desc()).limit(limit + 1)
    rows = read_at_once(connection, query)
    page = tuple(Measured(when, who, table, _read(tally)) for when, _, who, table, tally in rows[:limit])
    last = (rows[limit - 1][0], bytes.fromhex(rows[limit - 1][1])) if len(rows) > limit else None
    return Windows(page, last)


def read_busiest(connection: Connection, wanted: Wanted, limit: int, *, attempts_min: int = 1) -> list[Measured]:
    """The windows with most attempts, at most `limit` of them, whichever they are."""
    columns = metric_windows.c
    query = select(columns.window_ms, columns.principal, columns.table_name, columns.tally)
    enough = columns.attempts >= attempts_min
    query = query.where(columns.window_ms >= window_of(wanted.since_ms), enough, *_named(metric_windows, wanted))
    rows = read_at_once(connection, query.order_by(columns.attempts.desc(), columns.id).limit(limit))
    return [Measured(window_ms, principal, name, _read(tally)) for window_ms, principal, name, tally in rows]


def read_totals(connection: Connection, wanted: Wanted, limit: int) -> list[Measured]:
    """Figures since ever, those with most attempts first."""
    columns = metric_totals.c
    query = select(columns.principal, columns.table_name, columns.tally).where(*_named(metric_totals, wanted))
    rows = read_at_once(connection, query.order_by(columns.attempts.desc(), columns.id).limit(limit))
    return [Measured(None, principal, name, _read(tally)) for principal, name, tally in rows]


def read_outcomes(connection: Connection) -> dict[tuple[str, str], int]:
    """Attempts since ever by outcome and rule (empty: none)."""
    query = select(metric_counts).where(metric_counts.c.name.startswith(_OUTCOME, autoescape=True))
    found: dict[tuple[str, str], int] = {}
    for name, count in connection.execute(query):
        _, outcome, rule = str(name).split(":", 2)
        found[outcome, rule] = count
    return found


def _named(table: Table, wanted: Wanted) -> list[Any]:
    """Conditions on the names: the rows of all together only where they are asked for."""
    columns = table.c
    if wanted.principal is not None and wanted.table is not None:
        named = [columns.id == measured_id(wanted.principal, wanted.table)]
        # Of windows the id has no index of its own: it would be looked for in all that there is of each window.
        return [columns.principal == wanted.principal, *named] if table is metric_windows else named
    if wanted.principal is not None:
        named = [columns.principal == wanted.principal]
        return named if wanted.principal else [*named, columns.table_name != ""]
    if wanted.table is None:
        return [columns.principal != ""]
    own = [columns.principal != ""]
    if table is metric_windows:
        return [*own, columns.table_id == measured_id("", wanted.table)]
    return [*own, columns.table_name == wanted.table]


# -------------------------------------------------------------------------------------------------------------- reports


def write_reports(connection: Connection, reports: Sequence[Report], *, instead_of: Collection[str] = ()) -> None:
    """Keep what was measured, over what was there of the same table and source.

    Args:
        instead_of: tables of which nothing else of these kinds is kept.
    """
    kinds = {report.kind for report in reports}
    rows: dict[bytes, dict[str, Any]] = {}
    for report in reports:
        name = _report_id(report)
        rows[name] = {
            "id": name,
            "kind": report.kind,
            "table_name": report.table,
            "source": report.source,
            "value": report.value,
            "details": json.dumps(dict(report.details)),
            "at_ms": report.at_ms,
        }
    columns = metric_reports.c
    if instead_of:
        gone = columns.kind.in_(kinds) & columns.table_name.in_(list(instead_of)) & columns.id.not_in(list(rows))
        connection.execute(delete(metric_reports).where(gone))
    if rows:
        _put(connection, metric_reports, [rows[name] for name in sorted(rows)])
    for kind in kinds:
        newest = select(columns.at_ms).where(columns.kind == kind).order_by(columns.at_ms.desc())
        last_ms = connection.execute(newest.offset(REPORTS_MAX).limit(1)).scalar()
        if last_ms is not None:
            connection.execute(delete(metric_reports).where(columns.kind == kind, columns.at_ms <= last_ms))


def _report_id(report: Report) -> bytes:
    return hashed(REPORT, report.kind, report.table, report.source)


def note_once(connection: Connection, reports: Sequence[Report]) -> int:
    """Keep those of some reports that are not there yet, and count them since ever. How many were new."""
    if not reports:
        return 0
    by_id = {_report_id(report): report for report in reports}
    asked = select(metric_reports.c.id).where(metric_reports.c.id.in_(list(by_id)))
    known = {bytes(name) for name in connection.execute(asked).scalars()}
    new = [report for name, report in by_id.items() if name not in known]
    if new:
        write_reports(connection, new)
        _count(connection, {f"kind:{report.kind}": sum(each.kind == report.kind for each in new) for report in new})
    return len(new)


def read_reports(connection: Connection, kinds: Iterable[str], *, since_ms: int = 0, limit: int) -> list[Report]:
    """The newest reports of some kinds."""
    columns = metric_reports.c
    query = select(metric_reports).where(columns.kind.in_(list(kinds)), columns.at_ms >= since_ms)
    rows = connection.execute(query.order_by(columns.at_ms.desc(), columns.id).limit(limit))
    return [Report(row.kind, row.table_name, row.source, row.value, row.at_ms, json.loads(row.details)) for row in rows]


def read_noted(connection: Connection, kind: str) -> int:
    """How many reports of a kind were noted since ever: see `note_once`."""
    query = select(metric_counts).where(metric_counts.c.name == f"kind:{kind}")
    row = connection.execute(query).one_or_none()
    return 0 if row is None else int(row[1])


# -------------------------------------------------------------------------------------------------------------- erasure


def forget_partitions(connection: Connection, text: str) -> int:
    """Let go of the partitions whose names contain a text; how many rows had some."""
    spellings = {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    has = or_(*(metric_windows.c.tally.contains(each, autoescape=True) for each in spellings))
    rows = connection.execute(
        select(metric_windows.c.window_ms, metric_windows.c.id, metric_windows.c.tally).where(has)
    )
    changed = 0
    for row in rows.all():
        tally = _read(row.tally)
        if tally.forget(text):
            own = (metric_windows.c.window_ms == row.window_ms) & (metric_windows.c.id == row.id)
            connection.execute(update(metric_windows).where(own).values(tally=tally.to_json()))
            changed += 1
    return changed


def count_rows(connection: Connection) -> dict[str, int]:
    """How many rows there are, by table: for tests, and for what holds them to their bounds."""
    tables = (metric_windows, metric_totals, tries, metric_reports)
    return {t.name: connection.execute(select(func.count()).select_from(t)).scalar_one() for t in tables}
