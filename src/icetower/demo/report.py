"""The results of the demo: the numbers for machines, and the tables for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table

from icetower.demo import plan
from icetower.demo.agents import RESENDS_MAX
from icetower.demo.data import Totals
from icetower.demo.latency import PROFILES
from icetower.demo.plan import Engine
from icetower.demo.processes import Outcome
from icetower.demo.reconcile import Verdict
from icetower.demo.sides import Run

_LANDED = ("direct", "rebased")
EVEN_WITHIN = 1.1
_WORKLOAD = (
    "On both sides one agent sends every commit twice, as after a lost answer; one writes a batch of another's rows; "
    "one is killed and started again; one writes on a stale base. Without Icetower both engines use one SQL catalog."
)


@dataclass(frozen=True, slots=True)
class CommitCounts:
    """How the commits of the agents landed, each counted once, and how many did not land."""

    direct: int
    rebased: int
    after_retries: int
    refused: int
    repeated: int
    failed: int

    @property
    def landed(self) -> int:
        return self.direct + self.rebased + self.after_retries


@dataclass(frozen=True, slots=True)
class Promise:
    """One property that the demo demonstrates, and whether it held in this run."""

    text: str
    kept: bool
    evidence: str


@dataclass(frozen=True, slots=True)
class Findings:
    """All results of a run of the demo.

    Attributes:
        latency: name of the storage latency profile, the same on both sides.
        recounted: totals by table, counted by Spark.
        tower: the workload through the tower.
        plain: the same workload without it.
    """

    days: int
    latency: str
    verdicts: tuple[Verdict, ...]
    recounted: Mapping[str, Totals]
    orphans: tuple[str, ...]
    orphaned_metadata: int
    tower: Run
    plain: Run
    counts: CommitCounts
    plain_counts: CommitCounts
    queue_waits_ms: tuple[float, ...]
    promises: tuple[Promise, ...]
    seconds: Mapping[str, float]

    @property
    def good(self) -> bool:
        return all(verdict.exact for verdict in self.verdicts) and all(promise.kept for promise in self.promises)


def percentile(values: Sequence[float], percent: int) -> float:
    """Nearest rank; 0.0 of nothing."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0.0


def count_commits(outcome: Outcome, attempts: Sequence[Mapping[str, Any]] = ()) -> CommitCounts:
    """How commits landed, by the journals of the agents.

    Spark's agents do not learn whether the server rebased their commits: that comes from the server's `attempts`.
    """
    rebased_for_spark = Counter(
        attempt["outcome"] for attempt in attempts if _engine(attempt["principal"]) is Engine.SPARK
    )["rebased"]
    unknown = outcome.landed.get("unknown", 0)
    rebased = min(unknown, rebased_for_spark)
    return CommitCounts(
        direct=outcome.landed.get("direct", 0) + unknown - rebased,
        rebased=outcome.landed.get("rebased", 0) + rebased,
        after_retries=outcome.landed.get("after retries", 0),
        refused=outcome.refused,
        repeated=outcome.repeated,
        failed=outcome.failed,
    )


def _engine(principal: str) -> Engine | None:
    return next((agent.engine for agent in plan.AGENTS if agent.name == principal), None)


def queue_waits(attempts: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """How long the agents' commits waited in the server's queue, in milliseconds."""
    return tuple(
        attempt["queue_wait_ms"]
        for attempt in attempts
        if attempt["outcome"] in _LANDED and _engine(attempt["principal"]) is not None
    )


def to_json(findings: Findings) -> dict[str, Any]:
    """The numbers, in one flat object. Money is text, exact to the cent."""
    expected, found = _sums(findings)
    outcome, counts, plain = findings.tower.outcome, findings.counts, findings.plain.outcome
    return {
        "days": findings.days,
        "rows_expected": expected.rows,
        "rows_found": found.rows,
        "quantity_expected": expected.quantity,
        "quantity_found": found.quantity,
        "sales_expected": _money(expected.sales_cents),
        "sales_found": _money(found.sales_cents),
        "lost": sum(verdict.lost for verdict in findings.verdicts),
        "duplicated": sum(verdict.duplicated for verdict in findings.verdicts),
        "unexpected": sum(verdict.unexpected for verdict in findings.verdicts),
        "altered": sum(verdict.altered for verdict in findings.verdicts),
        "refused": counts.refused,
        "orphans_reported": len(findings.orphans),
        "orphaned_metadata_files": findings.orphaned_metadata,
        "commits": outcome.commits,
        "commits_direct": counts.direct,
        "commits_rebased": counts.rebased,
        "commits_retried_by_client": counts.after_retries,
        "commits_repeated": counts.repeated,
        "commits_failed": counts.failed,
        "commits_per_s": round(outcome.commits_per_s, 2),
        "pyiceberg_commits_per_s": round(findings.tower.by_engine[Engine.PYICEBERG].commits_per_s, 2),
        "spark_commits_per_s": round(findings.tower.by_engine[Engine.SPARK].commits_per_s, 2),
        "first_try_success": round(first_try(outcome, counts), 4),
        "latency_p50_ms": percentile(outcome.latencies_ms, 50),
        "latency_p99_ms": percentile(outcome.latencies_ms, 99),
        "queue_wait_p50_ms": round(percentile(findings.queue_waits_ms, 50), 1),
        "queue_wait_p99_ms": round(percentile(findings.queue_waits_ms, 99), 1),
        "errors": outcome.errors,
        "wall_s": round(outcome.span_s, 1),
        "storage_latency": findings.latency,
        "baseline_commits": plain.commits,
        "baseline_commits_retried_by_client": findings.plain_counts.after_retries,
        "baseline_commits_per_s": round(plain.commits_per_s, 2),
        "baseline_first_try_success": round(first_try(plain, findings.plain_counts), 4),
        "baseline_failed": plain.failed,
        "baseline_errors": plain.errors,
        "baseline_unfinished": plain.unfinished,
        "baseline_latency_p50_ms": percentile(plain.latencies_ms, 50),
        "baseline_latency_p99_ms": percentile(plain.latencies_ms, 99),
        "baseline_wall_s": round(plain.span_s, 1),
        "baseline_lost": findings.plain.contents.lost,
        "baseline_duplicated": findings.plain.contents.doubled,
        "promises_broken": [promise.text for promise in findings.promises if not promise.kept],
        "seconds": {name: round(value, 1) for name, value in findings.seconds.items()},
    }


def first_try(outcome: Outcome, counts: CommitCounts) -> float:
    """The share of commits that landed without a retry by any client. Commits outside a contract do not count."""
    sent = outcome.commits + outcome.failed
    # A batch that failed and was sent again later did not land at once, although its last sending met no conflict.
    return max(0, outcome.commits - counts.after_retries - outcome.resent) / sent if sent else 0.0


def _sums(findings: Findings) -> tuple[Totals, Totals]:
    nothing = Totals(0, 0, 0)
    expected = sum((verdict.expected for verdict in findings.verdicts), nothing)
    return expected, sum((verdict.found for verdict in findings.verdicts), nothing)


def _money(cents: int) -> str:
    return str(Decimal(cents).scaleb(-2))


# ------------------------------------------------------------------------------------------------------ for people


def show(findings: Findings, console: Console) -> None:
    """Print the tables."""
    console.print(_comparison(findings))
    console.print(_reconciliation(findings))
    console.print(_server(findings))
    console.print(_promises(findings))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the comparison. `more_is_better` is None where neither value is better than the other."""

    name: str
    plain: float
    tower: float
    unit: str = ""
    more_is_better: bool | None = False

    @property
    def better(self) -> str:
        """The name of the better side. Measurements, which have a unit, are called even within 10 % of each other."""
        low, high = sorted((self.plain, self.tower))
        if self.more_is_better is None or low == high or (self.unit and high <= low * EVEN_WITHIN):
            return "even"
        return "Icetower" if (self.tower > self.plain) is self.more_is_better else "without"

    def text(self, value: float) -> str:
        if self.unit == "s":
            return f"{value:,.1f} s"
        return f"{value:,.0f} {self.unit}".strip()


def comparison(findings: Findings) -> tuple[Row, ...]:
    """The lines of the comparison, from what both sides did."""
    plain, tower = findings.plain, findings.tower
    latencies = tuple(
        Row(
            f"{engine}: write and commit, p{percent}",
            percentile(plain.by_engine[engine].latencies_ms, percent),
            percentile(tower.by_engine[engine].latencies_ms, percent),
            "ms",
        )
        for engine in Engine
        for percent in (50, 99)
    )
    return (
        Row(f"commits landed, of {tower.outcome.planned}", plain.outcome.commits, tower.outcome.commits, "", True),
        Row("  after retries by the client", findings.plain_counts.after_retries, findings.counts.after_retries),
        Row("commits failed, sent again by the agent", plain.outcome.errors, tower.outcome.errors),
        Row(f"commits given up, failed {1 + RESENDS_MAX} times", plain.outcome.failed, tower.outcome.failed),
        Row("commits outside a contract that landed", plain.outcome.strayed, tower.outcome.strayed),
        *latencies,
        Row("wall time", plain.outcome.span_s, tower.outcome.span_s, "s"),
        Row("rows lost (acknowledged, in no table)", plain.contents.lost, tower.contents.lost),
        Row("rows not written (their commits failed)", plain.contents.unwritten, tower.contents.unwritten),
        Row("rows doubled", plain.contents.doubled, tower.contents.doubled),
    )


def _comparison(findings: Findings) -> Table:
    profile = PROFILES[findings.latency]
    storage = (
        f"storage as slow as S3 on both sides (median GET {profile.get_median_ms:.0f} ms, "
        f"PUT {profile.put_base_ms:.0f} ms)"
        if profile.get_median_ms
        else "local files without added latency on both sides"
    )
    engines = Counter(agent.engine for agent in plan.AGENTS)
    agents = " and ".join(f"{count} {engine}" for engine, count in engines.items())
    table = Table(
        title=f"The same work without and with Icetower: {_days(findings.days)}, {agents} agents, {storage}",
        caption=_WORKLOAD,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("")
    for name in ("without Icetower", "with Icetower", "better"):
        table.add_column(name, justify="right")
    for row in comparison(findings):
        table.add_row(row.name, row.text(row.plain), row.text(row.tower), row.better)
    return table


def _days(days: int) -> str:
    return f"{days} day" if days == 1 else f"{days} days"


def _reconciliation(findings: Findings) -> Table:
    table = Table(title="With Icetower: contents against source and journals", title_justify="left")
    table.add_column("table")
    for name in ("rows", "quantity", "sales", "lost", "doubled", "unexpected", "altered", "recounted by Spark"):
        table.add_column(name, justify="right")
    for verdict in findings.verdicts:
        recounted = findings.recounted.get(verdict.table)
        table.add_row(
            verdict.table,
            _of(verdict.found.rows, verdict.expected.rows, f"{verdict.found.rows:,}"),
            _of(verdict.found.quantity, verdict.expected.quantity, f"{verdict.found.quantity:,}"),
            _of(verdict.found.sales_cents, verdict.expected.sales_cents, _money(verdict.found.sales_cents)),
            *(_none(count) for count in (verdict.lost, verdict.duplicated, verdict.unexpected, verdict.altered)),
            "[green]the same" if recounted == verdict.found else "[red]differs",
        )
    return table


def _of(found: int, expected: int, text: str) -> str:
    return text if found == expected else f"[red]{text}[/red] of {expected:,}"


def _none(count: int) -> str:
    return str(count) if count == 0 else f"[red]{count}"


def _server(findings: Findings) -> Table:
    """How the tower dealt with the commits."""
    table = Table(title="With Icetower: how commits landed", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    counts = findings.counts
    for name, count in (
        ("on the version that they were written on", counts.direct),
        ("rebased by the server", counts.rebased),
        ("retried by the client", counts.after_retries),
        ("sent a second time, in the table once", counts.repeated),
        ("refused by contract", counts.refused),
    ):
        table.add_row(name, str(count))
    for percent in (50, 99):
        table.add_row(f"wait in the queue, p{percent}", f"{percentile(findings.queue_waits_ms, percent):.1f} ms")
    return table


def _promises(findings: Findings) -> Table:
    table = Table(title="Promises", title_justify="left", show_header=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for promise in findings.promises:
        table.add_row("[green]kept" if promise.kept else "[red]broken", promise.text, promise.evidence)
    return table
