"""Finds the patterns that sustain a workload, today and at ten times the load, and the load at which each breaks.

A pattern holds a load if 95 % of the transactions commit, and 99 % of those are visible in the table within the
required freshness. Every number comes from a simulated run; the breaking point is searched by doubling the load.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from icetower.errors import ConfigurationError, UsageError
from icetower_simulator.experiments import Row
from icetower_simulator.latencies import PROVIDERS
from icetower_simulator.pool import run_one
from icetower_simulator.setup import Setup, timing
from icetower_simulator.tallies import BEGUN, WHOLE, Outcome
from icetower_simulator.validation import validated

SUCCESS_PCT = 95.0
"""The percentage that must commit for a pattern to hold."""
ENGINE_MAX_PCT = 100.0
"""An engine that is asked for more falls behind, further and further."""
GROWTH = 10
"""Advice is for today's load and for this multiple of it."""
_MULTIPLES = tuple(2.0**power for power in range(-3, 11))
_RATE_MAX_PER_S = 1_000.0
"""Higher loads are not simulated: a pattern that holds this one is said to hold `more than` it."""
_TRANSACTIONS = 10_000
"""Transactions in a run; more if it would otherwise end before the first ones have done their work."""
_DURATION_MIN_S = 300.0
_HOUR_S = 3600.0
_YEAR_S = 366 * 24 * _HOUR_S
_MANY = 1_000_000
"""The limit on writers, on partitions, and on writes in progress at once."""
_SLOT_MIN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The writers of one table.

    Attributes:
        agents: the number of writers.
        writes_per_hour: of each agent.
        appends: share of writes that add rows and depend on nothing that they have read.
        partitions: the number of partitions over which the writes are spread evenly.
        own_partitions: each agent writes to partitions of its own.
        conflicts: share of the other writes that change rows which another agent changes at the same time.
        by_the_clock: each agent writes at a fixed pace.
        checked_first: the work is several commits, or is checked before anybody sees it.
        work_s: mean time between an agent's reading and its commit.
        storage: a provider of the simulator; `catalog_latency_ms`: a round trip to the catalog.
        freshness_s: the time within which a write must be visible in the table.
        job_s: how long a job of the mediator or the collector takes besides its reads and writes.
        interval_s: how often such a job runs. None: a third of the freshness.
        slot_s: how long an agent's slot is. None: a share of the freshness, and no shorter than a slow commit.
        engine_writes_per_s: how many statements that write the engine does in a second which all agents share, such as
            one Spark cluster. None: each agent has an engine of its own.
        read_usd_per_1000, write_usd_per_1000: price of requests to the storage; by default those of S3 Standard.
    """

    title: str = "workload"
    agents: int = 10
    writes_per_hour: float = 60.0
    appends: float = 1.0
    partitions: int = 1
    own_partitions: bool = False
    conflicts: float = 0.0
    by_the_clock: bool = False
    checked_first: bool = False
    work_s: float = 30.0
    storage: str = "s3"
    catalog_latency_ms: float = 20.0
    freshness_s: float = 60.0
    job_s: float = 5.0
    interval_s: float | None = None
    slot_s: float | None = None
    server_cpu_ms: float = 4.0
    engine_writes_per_s: float | None = None
    read_usd_per_1000: float = 0.0004
    write_usd_per_1000: float = 0.005

    def __post_init__(self) -> None:
        for rule, holds in {
            f"agents and partitions: from 1 to {_MANY:,}": min(self.agents, self.partitions) >= 1
            and max(self.agents, self.partitions) <= _MANY,
            "writes_per_hour, work_s and catalog_latency_ms: above 0": min(
                self.writes_per_hour, self.work_s, self.catalog_latency_ms
            )
            > 0,
            "freshness_s: 0.01 or more": self.freshness_s >= 0.01,
            "appends: from 0 to 1": 0 <= self.appends <= 1,
            "conflicts: from 0 to 1": 0 <= self.conflicts <= 1,
            "conflicts: 0 where own_partitions is true, since nobody else changes an agent's rows": self.conflicts == 0
            or not self.own_partitions,
            "engine_writes_per_s: above 0": self.engine_writes_per_s is None or self.engine_writes_per_s > 0,
            "interval_s and slot_s: 0.001 or more": all(
                each is None or each >= 0.001 for each in (self.interval_s, self.slot_s)
            ),
            "job_s, server_cpu_ms and the prices: 0 or more": min(
                self.job_s, self.server_cpu_ms, self.read_usd_per_1000, self.write_usd_per_1000
            )
            >= 0,
            f"storage: one of {', '.join(PROVIDERS)}, not {self.storage!r}": self.storage in PROVIDERS,
            f"agents x writes_per_hour: {_RATE_MAX_PER_S / GROWTH:g} writes a second at most": self.rate_per_s
            <= _RATE_MAX_PER_S / GROWTH,
            "agents x writes_per_hour: one write a year at least": self.rate_per_s * _YEAR_S >= 1,
            f"agents x writes_per_hour x work_s: {_MANY // GROWTH:,} writes at work at once at most": self.rate_per_s
            * self.work_s
            <= _MANY // GROWTH,
            f"agents x writes_per_hour x interval_s (or a third of freshness_s): {_MANY // GROWTH:,} writes between "
            "two runs of a job at most": self.rate_per_s * self.period_s <= _MANY // GROWTH,
        }.items():
            if not holds:
                raise ConfigurationError(f"the workload is invalid; {rule}")

    @property
    def contended(self) -> bool:
        """Whether writes change rows that others change, too."""
        return self.appends < 1 and self.conflicts > 0

    @property
    def rate_per_s(self) -> float:
        return self.agents * self.writes_per_hour / _HOUR_S

    @property
    def period_s(self) -> float:
        """The interval of a job."""
        return self.interval_s or self.freshness_s / 3

    def setup(self, times: float, **overrides: Any) -> Setup:
        """The setup at a multiple of today's load."""
        rate = self.rate_per_s * times
        duration = max(_TRANSACTIONS / rate, _DURATION_MIN_S, 6 * self.work_s, 8 * self.period_s)
        values: dict[str, Any] = {
            "model": "client",
            "inter_arrival_ms": 1000 / rate,
            "fast_append_ratio": self.appends,
            "storage": self.storage,
            "catalog_latency_ms": self.catalog_latency_ms,
            "partitions": max(self.partitions, self.agents if self.own_partitions else 1),
            "conflict_probability": self.conflicts,
            "runtime_s": self.work_s,
            "runtime_sigma": 0.5,
            "runtime_floor_s": 0.0,
            "agents": self.agents,
            "interval_s": self.period_s,
            "job_s": self.job_s,
            "server_cpu_ms": self.server_cpu_ms,
            "duration_s": duration,
        }
        setup = Setup(**values | overrides)
        # With slots, every agent must have had a few turns.
        cycles_s = 4 * setup.agents * setup.interval_s if setup.pattern == "slots" else 0.0
        cycles_s = min(cycles_s, GROWTH * _MANY / rate)
        return replace(setup, duration_s=max(duration, cycles_s))


def workload_from(text: str, source: str) -> Workload:
    """A workload from a TOML file. Raises `ConfigurationError`, which names the source."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{source} is not TOML: {error}") from error
    return workload_of(document, source)


def workload_of(values: Mapping[str, Any], source: str) -> Workload:
    """A workload from settings by name. Raises `ConfigurationError`, which names the source."""
    settings = validated(Workload, values, "a workload", source)
    try:
        return Workload(**settings)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error.message}") from error


def workload_of_log(attempts: Sequence[Mapping[str, Any]], **settings: Any) -> Workload:
    """The workload seen in a tower's log of attempts: the writers, their rate, and the share of appends.

    Args:
        attempts: with `principal`, `operation` and `at_ms` each.
        settings: settings of a workload that the log does not show.

    Raises:
        UsageError: the log is too short.
    """
    # The log also has reads that were refused, and changes of tables that are not commits.
    attempts = [each for each in attempts if each["operation"] != "read" and each.get("outcome") != "done"]
    times = sorted(int(attempt["at_ms"]) for attempt in attempts)
    if len(times) < 2 or times[-1] - times[0] < 60_000:
        raise UsageError(
            "the log is too short to plan by: it needs at least two attempts that are a minute apart; name a "
            "workload's file instead"
        )
    agents = len({attempt["principal"] for attempt in attempts})
    hours = (times[-1] - times[0]) / 1000 / _HOUR_S
    appends = sum(attempt["operation"] == "append" for attempt in attempts) / len(attempts)
    seen = {"agents": agents, "writes_per_hour": (len(attempts) - 1) / hours / agents, "appends": round(appends, 3)}
    return workload_of({**seen, **settings}, "the log")


# ── Patterns ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pattern, its description, and the setup's values that select it."""

    name: str
    description: str
    overrides: Mapping[str, Any]

    @property
    def by_statements(self) -> bool:
        """Is each write a statement of the agents' engine? In its slot an agent writes all that waits as one."""
        return self.name not in ("appends", "wal", "collector", "slots")


def candidates(workload: Workload) -> list[Candidate]:
    """The patterns that suit a workload: who replaces rows cannot use appends alone; who appends needs no intent."""
    slot_s = slot_length_s(workload)
    wait_s = max(workload.freshness_s, workload.work_s)
    found = [
        Candidate("optimistic", "Iceberg's clients, each for itself", {"partitions": 1}),
        Candidate("lock", "a lock on the table, held while one commits", {"pattern": "lock"}),
        Candidate("group", "Icetower commits all waiting writes as one", {"pattern": "group"}),
        Candidate("slots", "each agent commits in its own time slot", {"pattern": "slots", "interval_s": slot_s}),
    ]
    if workload.appends < 1:
        reserved = {"pattern": "intents", "deadline_s": wait_s}
        found.append(Candidate("intents", "partitions are reserved before the work", reserved))
    if workload.partitions > 1 or workload.own_partitions:
        found.insert(1, Candidate("isolated", "the same, in partitions of their own", {}))
    if workload.appends == 1:
        found.append(
            Candidate("appends", "rows, or named files, that the tower commits as one snapshot", {"pattern": "appends"})
        )
    found.append(Candidate("wal", "rows go into a log, and a mediator merges them", {"pattern": "wal"}))
    found.append(
        Candidate("collector", "change rows go into a delta table, and a job folds them in", {"pattern": "collector"})
    )
    return found


def slot_length_s(workload: Workload) -> float:
    """How long an agent's slot is, if that is not given."""
    works_s = workload.work_s if workload.conflicts > 0 else 0.0  # what it has read must be the newest
    shortest_s = max(_SLOT_MIN_S, 2 * (works_s + _commit_s(workload)))
    return workload.slot_s or max(shortest_s, workload.freshness_s / (2 * workload.agents))


def _commit_s(workload: Workload) -> float:
    """How long an undisturbed client's commit takes on average."""
    times = timing(workload.setup(1.0))
    steps = (times.catalog_read, times.get, times.get, times.put_list, times.put_metadata, times.commit)
    return sum(step.mean_ms for step in steps) / 1000


@dataclass(frozen=True, slots=True)
class Assessment:
    """A pattern at one load.

    Attributes:
        fresh_p99_s: the time until a write is visible.
        wasted_pct: the share of the agents' and their clients' work that was in vain.
        requests: requests to storage and catalog for one commit.
        usd_per_1000: price of the requests to the storage for a thousand commits.
        engine_pct: how much of the agents' shared engine their statements ask for; 0 if they share none.
    """

    times: float
    commits_per_s: float
    success_pct: float
    p50_s: float
    p99_s: float
    fresh_p99_s: float
    wasted_pct: float
    requests: float
    usd_per_1000: float
    engine_pct: float

    def holds(self, workload: Workload) -> bool:
        in_time = self.success_pct >= SUCCESS_PCT and self.fresh_p99_s <= workload.freshness_s
        return in_time and self.engine_pct < ENGINE_MAX_PCT


@dataclass(frozen=True, slots=True)
class Advice:
    """The findings about a pattern.

    Attributes:
        curve: the pattern at growing loads; `today`, `grown`: at today's load, and at `GROWTH` times as much.
        holds_to: the highest load, as a multiple of today's, up to which it held in all runs; None: it held none.
        breaks_at: the lowest load at which it did not hold; None: it held all.
    """

    candidate: Candidate
    curve: tuple[Assessment, ...]
    today: Assessment
    grown: Assessment
    holds_to: float | None
    breaks_at: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The patterns for a workload, the best first."""

    workload: Workload
    advice: tuple[Advice, ...]

    def as_json(self) -> Row:
        return {
            "workload": {field.name: getattr(self.workload, field.name) for field in fields(Workload)},
            "writes_per_s": self.workload.rate_per_s,
            "patterns": [
                {
                    "pattern": each.candidate.name,
                    "today": _figures(each.today),
                    "grown": _figures(each.grown),
                    "holds_now": each.today.holds(self.workload),
                    "holds_grown": each.grown.holds(self.workload),
                    "holds_to": each.holds_to,
                    "breaks_at": each.breaks_at,
                }
                for each in self.advice
            ],
        }


def _figures(assessed: Assessment) -> Row:
    found = {field.name: getattr(assessed, field.name) for field in fields(Assessment)}
    return {name: None if math.isnan(value) else value for name, value in found.items()}


def plan(workload: Workload, on_progress: Callable[[int, int], None] | None = None, seed: int = 1) -> Plan:
    """Simulate every pattern at a range of loads, and rank them.

    First come the patterns that hold today's load and the grown one, then those that hold today's; among equals the one
    that is more than twice as fresh, then the one that breaks later, then the one that costs less.
    """
    options = candidates(workload)
    advice: list[Advice] = []
    for number, option in enumerate(options, 1):
        curve = _curve(workload, option, seed)
        broken = next((each.times for each in curve if not each.holds(workload)), None)
        today, grown = (next(each for each in curve if each.times == times) for times in (1.0, float(GROWTH)))
        advice.append(Advice(option, curve, today, grown, _highest_load_held(workload, curve), broken))
        if on_progress is not None:
            on_progress(len(options), number)
    return Plan(workload, tuple(sorted(advice, key=lambda each: _rank(workload, each))))


def _curve(workload: Workload, option: Candidate, seed: int) -> tuple[Assessment, ...]:
    """A pattern at growing loads: today's, the grown one, and others until it did not hold twice in a row."""
    found: list[Assessment] = []
    wanted = {1.0, float(GROWTH)}
    for times in sorted({*_MULTIPLES, *wanted}):
        over = [each for each in found[-2:] if not each.holds(workload)]
        rate = workload.rate_per_s * times
        few = rate <= _RATE_MAX_PER_S and rate * max(workload.work_s, workload.period_s) <= _MANY
        if times in wanted or (len(over) < 2 and few):
            found.append(assess(workload, option, times, run_one(workload.setup(times, **option.overrides), seed)))
    return tuple(found)


def _highest_load_held(workload: Workload, curve: Sequence[Assessment]) -> float | None:
    """The highest load up to which the pattern held every load."""
    held: float | None = None
    for each in curve:
        if not each.holds(workload):
            break
        held = each.times
    return held


def _rank(workload: Workload, advice: Advice) -> tuple[Any, ...]:
    holds = advice.today.holds(workload) + (advice.today.holds(workload) and advice.grown.holds(workload))
    if not holds:
        return (
            0,
            advice.today.engine_pct >= ENGINE_MAX_PCT,
            -round(advice.today.success_pct),
            advice.today.fresh_p99_s,
        )
    fresh = math.floor(math.log2(max(advice.grown.fresh_p99_s if holds == 2 else advice.today.fresh_p99_s, 0.01)))
    return (-holds, fresh, -(advice.holds_to or 0), advice.today.usd_per_1000)


def assess(workload: Workload, candidate: Candidate, times: float, outcome: Outcome) -> Assessment:
    """Assess a pattern at one load by a run's outcome."""
    figures, whole = outcome.figures[BEGUN], outcome.figures[WHOLE]
    committed = max(whole.committed, 1)
    ended = whole.committed + whole.failed
    tried = 0.0 if math.isnan(whole.mean_retries) else whole.mean_retries
    mean_s = 0.0 if math.isnan(whole.mean_s) else whole.mean_s
    # An agent that waited for an intent in vain has not begun to work; any other that fails has done all its work.
    worked = 0.0 if candidate.name == "intents" else workload.work_s
    lost_s = whole.failed * worked + whole.committed * mean_s * tried / (1 + tried)
    spent_s = whole.failed * worked + whole.committed * (workload.work_s + mean_s)
    usd = outcome.reads * workload.read_usd_per_1000 + outcome.writes * workload.write_usd_per_1000
    engine = workload.engine_writes_per_s
    requests = outcome.reads + outcome.writes + outcome.catalog_reads + outcome.catalog_commits
    return Assessment(
        times=times,
        commits_per_s=outcome.commits_per_s,
        success_pct=figures.success_pct if ended else math.nan,
        p50_s=figures.p50_s,
        p99_s=figures.p99_s,
        fresh_p99_s=outcome.fresh[BEGUN].p99_s,
        wasted_pct=100 * lost_s / spent_s if spent_s else 0.0,
        requests=requests / committed,
        usd_per_1000=usd / committed,
        engine_pct=100 * workload.rate_per_s * times / engine if engine and candidate.by_statements else 0.0,
    )
