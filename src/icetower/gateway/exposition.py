"""What a monitoring system reads at `/metrics`: figures as OpenMetrics, by prometheus-client, in a registry of its own.

Figures of the control database are equal on every tower that shares it: take the highest of them, not the sum. Those of
the process (queue, swaps, backlog, memory) are each tower's own. Labels are bounded: the busiest pairs of principal and
table have theirs, and the others are one pair, `other`. What has labels of principals is a gauge over the last windows,
so that a pair may come and go; what counts since ever has none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from sqlalchemy import Connection

from icetower.ledger.metrics import (
    BYPASS,
    COLLECTOR_LAG,
    ORPHANS,
    WAL_LAG,
    Measured,
    Report,
    Wanted,
    read_busiest,
    read_noted,
    read_outcomes,
    read_reports,
    read_totals,
)
from icetower.ledger.tallies import WINDOW_MS, Sketch, Tally, ratio, summed, window_of

CONTENT_TYPE = CONTENT_TYPE_LATEST

PAIRS_MAX = 100
"""Pairs of principal and table with labels of their own."""

TABLES_MAX = 50
ROWS_MAX = 2_000
"""Rows of windows that one scrape reads of pairs, and of tables."""

OTHER = "other"
HOUR_MS = 3_600_000
POWERS = range(17)
"""The buckets of latencies end at 1, 2, 4, … 65,536 ms: there the sketches are exact."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What stands in the control database.

    Attributes:
        recent: of the window that runs and the one before it, by principal and table, the busiest first.
        recent_all: of all attempts in these.
        hour: by table, of `hours` hours up to now.
        whole: since ever.
    """

    outcomes: Mapping[tuple[str, str], int]
    recent: Mapping[tuple[str, str], Tally]
    recent_all: Tally
    hour: Mapping[str, Tally]
    hour_all: Tally
    hours: float
    whole: Tally
    reports: Sequence[Report]
    bypasses: int


@dataclass(frozen=True, slots=True)
class Local:
    """What one process knows of itself.

    Attributes:
        disk_free_bytes: None: it could not be asked.
        row_requests, rows, rows_refused: at the door, since the process was started.
        rows_bytes: of rows, on their way now.
        fences: that were asked for, by outcome, since the process was started.
    """

    queued: int
    swaps: int
    swap_s: float
    backlog: int
    dropped: int
    disk_free_bytes: int | None
    row_requests: int = 0
    rows: int = 0
    rows_refused: int = 0
    rows_bytes: int = 0
    fences: Mapping[str, int] = field(default_factory=dict[str, int])


def read_figures(connection: Connection, now_ms: int) -> Figures:
    """All that is shown, from one state of the database."""
    before_ms = window_of(now_ms) - WINDOW_MS
    hour_ms = window_of(now_ms - HOUR_MS)
    whole = read_totals(connection, Wanted(principal="", table=""), 1)
    hour_all = read_busiest(connection, Wanted(hour_ms, "", ""), ROWS_MAX)
    return Figures(
        read_outcomes(connection),
        _by_pair(read_busiest(connection, Wanted(before_ms), ROWS_MAX)),
        summed(row.tally for row in hour_all if (row.window_ms or 0) >= before_ms),
        _by_table(read_busiest(connection, Wanted(hour_ms, ""), ROWS_MAX)),
        summed(row.tally for row in hour_all),
        (now_ms - hour_ms) / HOUR_MS,
        whole[0].tally if whole else Tally(),
        read_reports(connection, (ORPHANS, WAL_LAG, COLLECTOR_LAG), limit=ROWS_MAX),
        read_noted(connection, BYPASS),
    )


def _by_pair(rows: Sequence[Measured]) -> dict[tuple[str, str], Tally]:
    found: defaultdict[tuple[str, str], list[Tally]] = defaultdict(list)
    for row in rows:
        found[row.principal, row.table].append(row.tally)
    return {pair: summed(some) for pair, some in found.items()}


def _by_table(rows: Sequence[Measured]) -> dict[str, Tally]:
    return {table: tally for (_, table), tally in _by_pair(rows).items()}


class _Collector:
    """Families that are made already, as a registry wants them."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def expose(local: Local, figures: Figures | None, extra: Sequence[Metric] = ()) -> bytes:
    """The text. `figures` None: the control database could not be asked."""
    registry = CollectorRegistry(auto_describe=False)
    up = _gauge("icetower_control_up", "Whether the control database answers.")
    up.add_metric([], float(figures is not None))
    families = [*_of_process(local), up]
    if figures is not None:
        families += [*_of_agents(figures), *_of_tables(figures), *_of_all(figures)]
    registry.register(_Collector([*families, *extra]))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def _gauge(name: str, text: str, labels: Sequence[str] = (), unit: str = "") -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=list(labels), unit=unit)


def _of_process(local: Local) -> list[Metric]:
    queued = _gauge("icetower_queue_depth", "Commits and appends that wait for their turn, in all tables' queues.")
    queued.add_metric([], local.queued)
    backlog = _gauge("icetower_ledger_backlog", "Entries that wait to be written to the control database.")
    backlog.add_metric([], local.backlog)
    swaps = CounterMetricFamily("icetower_swaps", "Swaps of tables' metadata that this tower has tried.")
    swaps.add_metric([], local.swaps)
    took = CounterMetricFamily("icetower_swap_seconds", "How long these took together.", unit="seconds")
    took.add_metric([], local.swap_s)
    dropped = CounterMetricFamily("icetower_ledger_dropped", "Entries that were dropped before they were written.")
    dropped.add_metric([], local.dropped)
    requests = CounterMetricFamily("icetower_row_requests", "Requests of rows that this tower has taken in.")
    requests.add_metric([], local.row_requests)
    rows = CounterMetricFamily("icetower_rows", "Rows of these.")
    rows.add_metric([], local.rows)
    refused = CounterMetricFamily("icetower_row_requests_refused", "Requests of rows that were told to wait (429).")
    refused.add_metric([], local.rows_refused)
    on_their_way = _gauge("icetower_rows_in_flight_bytes", "Rows that are on their way into a table.", unit="bytes")
    on_their_way.add_metric([], local.rows_bytes)
    fences = CounterMetricFamily("icetower_fences", "Fences that were asked for, by outcome.", labels=["outcome"])
    for outcome, times in local.fences.items():
        fences.add_metric([outcome], times)
    found: list[Metric] = [queued, backlog, swaps, took, dropped, requests, rows, refused, on_their_way, fences]
    if local.disk_free_bytes is not None:
        disk = _gauge("icetower_disk_free_bytes", "Free below the tower's data directory.", unit="bytes")
        disk.add_metric([], local.disk_free_bytes)
        found.append(disk)
    return found


def _of_agents(figures: Figures) -> list[Metric]:
    labels = ("principal", "table")
    attempts = _gauge("icetower_agent_write_attempts", "Attempts to commit in the last 5 to 10 minutes.", labels)
    retried = _gauge(
        "icetower_agent_write_retry_rate",
        "Attempts that ended in a conflict, unknown, or were sent again, for each that landed, in the last 5 to 10 "
        "minutes.",
        labels,
    )
    first = _gauge(
        "icetower_commit_first_try_success",
        "The share of first tries that landed, in the last 5 to 10 minutes.",
        labels,
    )
    others = Tally()
    others.merge(figures.recent_all)
    ordered = sorted(figures.recent.items(), key=lambda each: (-each[1].attempts, each[0]))[:PAIRS_MAX]
    for _, tally in ordered:
        others.merge(tally, sign=-1)
    named = [*ordered, ((OTHER, OTHER), others)] if others.attempts > 0 else ordered
    for pair, tally in named:
        attempts.add_metric(pair, tally.attempts)
        _add(retried, pair, ratio(tally.retries, tally.landed))
        _add(first, pair, ratio(tally.first_try_landed, tally.first_tries))
    return [attempts, retried, first]


def _of_tables(figures: Figures) -> list[Metric]:
    churn = _gauge(
        "icetower_metadata_churn_per_hour",
        "Metadata versions, manifests and bytes of metadata written in an hour, over the last one.",
        ("table", "kind"),
    )
    others = Tally()
    others.merge(figures.hour_all)
    ordered = sorted(figures.hour.items(), key=lambda each: (-each[1].attempts, each[0]))[:TABLES_MAX]
    for _, tally in ordered:
        others.merge(tally, sign=-1)
    for table, tally in [*ordered, (OTHER, others)] if others.attempts > 0 else ordered:
        for kind, value in (
            ("versions", tally.metadata_versions),
            ("manifests", tally.manifests),
            ("bytes", tally.metadata_bytes),
        ):
            _add(churn, (table, kind), None if value is None else max(0.0, value) / figures.hours)
    files = _gauge("icetower_orphaned_files", "Orphaned files, as `icetower orphans` found them last.", ("table",))
    sizes = _gauge("icetower_orphaned_bytes", "How large these are together.", ("table",), "bytes")
    lags = _gauge("icetower_pattern_lag_seconds", "How far a job is behind.", ("table", "kind"), "seconds")
    orphans: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for report in figures.reports:
        if report.kind == ORPHANS:
            orphans[report.table][0] += report.value
            orphans[report.table][1] += float(report.details.get("bytes", 0))
    ranked = sorted(orphans.items(), key=lambda each: (-each[1][0], each[0]))
    rest = [each for _, each in ranked[TABLES_MAX:]]
    if rest:
        ranked = [*ranked[:TABLES_MAX], (OTHER, [sum(each[0] for each in rest), sum(each[1] for each in rest)])]
    for table, (count, size) in ranked:
        files.add_metric([table], count)
        sizes.add_metric([table], size)
    late = sorted((r for r in figures.reports if r.kind != ORPHANS), key=lambda r: (-r.value, r.kind, r.table))
    for report in late[:TABLES_MAX]:
        lags.add_metric([report.table, report.kind.removesuffix("-lag")], report.value)
    return [churn, files, sizes, lags]


def _of_all(figures: Figures) -> list[Metric]:
    attempts = CounterMetricFamily(
        "icetower_write_attempts",
        "Attempts to commit, by how they ended and by which rule.",
        labels=["outcome", "rule"],
    )
    for (outcome, rule), count in sorted(figures.outcomes.items()):
        attempts.add_metric([outcome, rule], count)
    latency = HistogramMetricFamily(
        "icetower_write_latency_seconds",
        "Of commits that landed: `commit`, from the request to the answer; `end_to_end`, from the agent's decision.",
        labels=["step"],
        unit="seconds",
    )
    for step, sketch in (("commit", figures.whole.latency), ("end_to_end", figures.whole.end_to_end)):
        latency.add_metric([step], _buckets(sketch), max(0.0, sketch.sum_ms) / 1000)
    bypasses = CounterMetricFamily("icetower_bypasses", "Commits that came to tables around the tower.")
    bypasses.add_metric([], figures.bypasses)
    return [attempts, latency, bypasses]


def _buckets(sketch: Sketch) -> list[tuple[str, float]]:
    found = [(repr(2**power / 1000), float(sketch.at_most(power))) for power in POWERS]
    return [*found, ("+Inf", float(sketch.count))]


def _add(family: GaugeMetricFamily, labels: Sequence[str], value: float | None) -> None:
    """A sample; none where there is no value."""
    if value is not None:
        family.add_metric(list(labels), value)
