"""The values that rules go by, from the figures in the ledger's database: equal on every tower that shares it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from sqlalchemy import Connection

from icetower.alerts.rules import Metric, Reading, Rule
from icetower.ledger.metrics import (
    BYPASS,
    COLLECTOR_LAG,
    DISK,
    ORPHANS,
    WAL_LAG,
    Measured,
    Report,
    Wanted,
    read_busiest,
    read_reports,
)
from icetower.ledger.tallies import WINDOW_MS, Tally, ratio, summed, window_of

ROWS_MAX = 5_000
"""Rows of windows that are read for one rule, those with most attempts first."""

REPORTS_MAX = 2_000
LAG_FRESH_MS = 24 * 3600 * 1000
"""What a job reported before that says nothing: it may have been given up."""

DISK_FRESH_MS = 5 * 60 * 1000
_BY_PAIR = frozenset({Metric.RETRY_RATE, Metric.FIRST_TRY})
_BY_TABLE = frozenset({Metric.CHURN, Metric.LATENCY, Metric.END_TO_END})
_REPORTED = {Metric.ORPHANS: ORPHANS, Metric.WAL_LAG: WAL_LAG, Metric.COLLECTOR_LAG: COLLECTOR_LAG, Metric.DISK: DISK}


def read_values(connection: Connection, rules: Sequence[Rule], now_ms: int) -> list[Reading]:
    """The value of each rule, for all that has one."""
    found: list[Reading] = []
    for rule in rules:
        if rule.metric in _BY_PAIR or rule.metric in _BY_TABLE:
            found += _of_attempts(connection, rule, now_ms)
        else:
            found += _of_reports(connection, rule, now_ms)
    return found


def _of_attempts(connection: Connection, rule: Rule, now_ms: int) -> list[Reading]:
    since_ms = window_of(now_ms - rule.window_s * 1000)
    wanted = Wanted(since_ms, None if rule.metric in _BY_PAIR else "")
    rows = read_busiest(connection, wanted, ROWS_MAX)
    hours = max(now_ms - since_ms, WINDOW_MS) / 3_600_000
    found: list[Reading] = []
    for (principal, table), some in _grouped(rows).items():
        tally = summed(some)
        value = _value(rule.metric, tally, hours)
        if value is not None and _volume(rule.metric, tally) >= rule.at_least:
            hot = tuple(str(each["partition"]) for each in tally.hottest())
            found.append(Reading(rule.name, principal, table, value, hot))
    return found


def _grouped(rows: Iterable[Measured]) -> dict[tuple[str, str], list[Tally]]:
    found: defaultdict[tuple[str, str], list[Tally]] = defaultdict(list)
    for row in rows:
        found[row.principal, row.table].append(row.tally)
    return found


def _volume(metric: Metric, tally: Tally) -> int:
    if metric is Metric.FIRST_TRY:
        return tally.first_tries
    # What is refused is no try that could be a retry: one lost answer among refusals is no trend.
    return tally.attempts - tally.refused if metric is Metric.RETRY_RATE else tally.attempts


def _value(metric: Metric, tally: Tally, hours: float) -> float | None:
    if metric is Metric.RETRY_RATE:
        # Where nothing has landed, the rate has no value, and things are worse than with any.
        return tally.retries / max(tally.landed, 1)
    if metric is Metric.FIRST_TRY:
        return ratio(tally.first_try_landed, tally.first_tries)
    if metric is Metric.CHURN:
        return None if tally.metadata_versions is None else tally.metadata_versions / hours
    sketch = tally.latency if metric is Metric.LATENCY else tally.end_to_end
    ms = sketch.percentile(0.99)
    return None if ms is None else ms / 1000


def _of_reports(connection: Connection, rule: Rule, now_ms: int) -> list[Reading]:
    if rule.metric is Metric.BYPASSES:
        since_ms = now_ms - rule.window_s * 1000
        return _of_bypasses(rule, read_reports(connection, [BYPASS], since_ms=since_ms, limit=REPORTS_MAX))
    kind = _REPORTED[rule.metric]
    fresh_ms = {ORPHANS: now_ms, DISK: DISK_FRESH_MS}.get(kind, LAG_FRESH_MS)
    reports = read_reports(connection, [kind], since_ms=now_ms - fresh_ms, limit=REPORTS_MAX)
    if kind == DISK:  # the fullest, named by its tower
        worst = min(reports, key=lambda each: each.value, default=None)
        return [] if worst is None else [Reading(rule.name, "", "", worst.value, (worst.source,))]
    values: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        if kind == ORPHANS:
            values[report.table] += report.value
        else:  # a job that says nothing any more falls further behind
            values[report.table] = report.value + (now_ms - report.at_ms) / 1000
    return [Reading(rule.name, "", table, value) for table, value in values.items()]


def _of_bypasses(rule: Rule, reports: Sequence[Report]) -> list[Reading]:
    by_table: defaultdict[str, list[Report]] = defaultdict(list)
    for report in reports:
        by_table[report.table].append(report)
    return [
        Reading(
            rule.name,
            "",
            table,
            float(len(some)),
            tuple(dict.fromkeys(str(name) for each in some for name in each.details.get("partitions", ()))),
        )
        for table, some in by_table.items()
    ]
