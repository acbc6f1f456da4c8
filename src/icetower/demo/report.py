"""What the demo found: the numbers for machines, and the tables for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table

from icetower.demo import plan
from icetower.demo.crew import Outcome
from icetower.demo.data import Totals
from icetower.demo.plan import Engine
from icetower.demo.reconcile import Verdict

_LANDED = ("direct", "rebased")


@dataclass(frozen=True, slots=True)
class CommitCounts:
    """How the commits of the agents landed, each counted once, and what did not land."""

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
    """One thing that the demo sets out to show, and whether it did."""

    text: str
    kept: bool
    evidence: str


@dataclass(frozen=True, slots=True)
class Findings:
    """All that a run of the demo found out. `recounted`: totals by table, counted by Spark.

    `by_engine` splits `outcome`: Spark's commits are few and slow, and the baseline has none.
    """

    days: int
    verdicts: tuple[Verdict, ...]
    recounted: Mapping[str, Totals]
    orphans: tuple[str, ...]
    orphaned_metadata: int
    outcome: Outcome
    by_engine: Mapping[Engine, Outcome]
    counts: CommitCounts
    queue_waits_ms: tuple[float, ...]
    baseline: Outcome
    baseline_counts: CommitCounts
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
    """How commits landed: by the ledgers of PyIceberg's agents; of Spark's, who are not told, by the server's attempts.

    A Spark client retries a conflict (409) by itself: as many of its commits landed after retries as it met conflicts.
    """
    spark: Counter[str] = Counter(
        attempt["outcome"] for attempt in attempts if _engine(attempt["principal"]) is Engine.SPARK
    )
    said = outcome.landed.get("unsaid", 0)
    retried = min(said, spark["conflict"])
    rebased = min(said - retried, spark["rebased"])
    return CommitCounts(
        direct=outcome.landed.get("direct", 0) + said - retried - rebased,
        rebased=outcome.landed.get("rebased", 0) + rebased,
        after_retries=outcome.landed.get("after retries", 0) + retried,
        refused=outcome.refused,
        repeated=outcome.repeated,
        failed=outcome.failed,
    )


def _engine(principal: str) -> Engine | None:
    return next((agent.engine for agent in plan.AGENTS if agent.name == principal), None)


def queue_waits(attempts: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """Milliseconds that the agents' commits waited for their turn."""
    return tuple(
        attempt["queue_wait_ms"]
        for attempt in attempts
        if attempt["outcome"] in _LANDED and _engine(attempt["principal"]) is not None
    )


def to_json(findings: Findings) -> dict[str, Any]:
    """The numbers, in one flat object. Money is text, exact to the cent."""
    expected, found = _sums(findings)
    outcome, counts = findings.outcome, findings.counts
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
        "pyiceberg_commits_per_s": round(findings.by_engine[Engine.PYICEBERG].commits_per_s, 2),
        "spark_commits_per_s": round(findings.by_engine[Engine.SPARK].commits_per_s, 2),
        "first_try_success": round(first_try(outcome, counts), 4),
        "latency_p50_ms": percentile(outcome.latencies_ms, 50),
        "latency_p99_ms": percentile(outcome.latencies_ms, 99),
        "queue_wait_p50_ms": round(percentile(findings.queue_waits_ms, 50), 1),
        "queue_wait_p99_ms": round(percentile(findings.queue_waits_ms, 99), 1),
        "baseline_commits": findings.baseline.commits,
        "baseline_commits_per_s": round(findings.baseline.commits_per_s, 2),
        "baseline_first_try_success": round(first_try(findings.baseline, findings.baseline_counts), 4),
        "baseline_failed": findings.baseline.failed,
        "baseline_unfinished": findings.baseline.unfinished,
        "promises_broken": [promise.text for promise in findings.promises if not promise.kept],
        "seconds": {name: round(value, 1) for name, value in findings.seconds.items()},
    }


def first_try(outcome: Outcome, counts: CommitCounts) -> float:
    """The share of commits, of those sent in good faith, that landed without any client having to try again."""
    sent = outcome.commits + outcome.failed
    # A batch that failed and was sent again later did not land at once, though the later sending met no conflict.
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
    console.print(_reconciliation(findings))
    console.print(_commits(findings))
    console.print(_promises(findings))


def _reconciliation(findings: Findings) -> Table:
    table = Table(title=f"Contents against source and ledgers, {findings.days} days", title_justify="left")
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


def _commits(findings: Findings) -> Table:
    """Columns: all agents of the tower, its agents by engine where that can be told apart, and the baseline."""
    table = Table(title="Commits", title_justify="left")
    table.add_column("")
    for name in ("with Icetower", "its PyIceberg agents", "its Spark agents", "PyIceberg straight to SQL"):
        table.add_column(name, justify="right")
    ours, theirs = findings.counts, findings.baseline_counts
    runs = (findings.outcome, *(findings.by_engine[engine] for engine in Engine), findings.baseline)
    counted: tuple[tuple[str, int, str], ...] = (
        ("landed", ours.landed, str(theirs.landed)),
        ("  direct", ours.direct, str(theirs.direct)),
        ("  rebased by the server", ours.rebased, "—"),
        ("  retried by the client", ours.after_retries, str(theirs.after_retries)),
        ("sent twice, in the table once", ours.repeated, "—"),
        ("refused by contract", ours.refused, "—"),
        ("failed", ours.failed, str(theirs.failed)),
        ("not begun in time", findings.outcome.unfinished, str(findings.baseline.unfinished)),
    )
    for name, here, there in counted:
        table.add_row(name, str(here), "", "", there)
    first = (first_try(findings.outcome, ours), first_try(findings.baseline, theirs))
    table.add_row("first try", f"{first[0]:.1%}", "", "", f"{first[1]:.1%}")
    table.add_row("commits a second", *(f"{run.commits_per_s:.1f}" for run in runs))
    for percent in (50, 99):
        latencies = (f"{percentile(run.latencies_ms, percent):,.0f}" for run in runs)
        table.add_row(f"write and commit p{percent}, ms", *latencies)
    for percent in (50, 99):
        table.add_row(f"queue wait p{percent}, ms", f"{percentile(findings.queue_waits_ms, percent):.1f}", "", "", "—")
    return table


def _promises(findings: Findings) -> Table:
    table = Table(title="Promises", title_justify="left", show_header=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for promise in findings.promises:
        table.add_row("[green]kept" if promise.kept else "[red]broken", promise.text, promise.evidence)
    return table
