"""Which pattern holds a workload, today and at ten times the load, and where each breaks.

A pattern holds a load if 95 % of the transactions commit, and 99 % of those are visible in the table within the
freshness that is wanted. Every number comes of a simulated run; where a pattern breaks is looked for by doubling the
load.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from icetower.errors import ConfigurationError, UsageError
from icetower_simulator.experiments import Row
from icetower_simulator.given import checked
from icetower_simulator.latencies import PROVIDERS
from icetower_simulator.pool import one
from icetower_simulator.setup import Setup, timing
from icetower_simulator.tallies import BEGUN, WHOLE, Outcome

SUCCESS_PCT = 95.0
"""What must commit, for a pattern to hold."""
GROWTH = 10
"""Advice is for today's load and for so many times as much."""
_MULTIPLES = tuple(2.0**power for power in range(-3, 11))
_RATE_MAX_PER_S = 1_000.0
"""Beyond this nothing is simulated: what holds it holds `more than` that."""
_TRANSACTIONS = 10_000
"""As many are in a run, or more where it would be over before the first ones have done their work."""
_DURATION_MIN_S = 300.0
_HOUR_S = 3600.0
_YEAR_S = 366 * 24 * _HOUR_S
_MANY = 1_000_000
"""Writers, partitions, and writes under way at once, beyond which nothing is simulated."""
_SLOT_MIN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What writes to one table.

    Attributes:
        agents: how many write.
        writes_per_hour: of each agent.
        appends: share of writes that add rows and depend on nothing that they have read.
        partitions: among how many the writes are spread evenly.
        own_partitions: each agent writes to partitions of its own.
        work_s: mean time between an agent's reading and its commit.
        storage: a provider of the simulator; `catalog_latency_ms`: a round trip to the catalog.
        freshness_s: within how long a write is to be visible in the table.
        job_s: what a job of the mediator or the collector takes besides its reads and writes; `interval_s`: how often
            it runs, and how long a slot is. None: a third of the freshness.
        read_usd_per_1000, write_usd_per_1000: requests to the storage; as S3 Standard has it unless said otherwise.
    """

    title: str = "workload"
    agents: int = 10
    writes_per_hour: float = 60.0
    appends: float = 1.0
    partitions: int = 1
    own_partitions: bool = False
    work_s: float = 30.0
    storage: str = "s3"
    catalog_latency_ms: float = 20.0
    freshness_s: float = 60.0
    job_s: float = 5.0
    interval_s: float | None = None
    server_cpu_ms: float = 4.0
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
            "interval_s: 0.001 or more": self.interval_s is None or self.interval_s >= 0.001,
            "job_s, server_cpu_ms and the prices: 0 or more": min(
                self.job_s, self.server_cpu_ms, self.read_usd_per_1000, self.write_usd_per_1000
            )
            >= 0,
            f"storage: one of {', '.join(PROVIDERS)}, not {self.storage!r}": self.storage in PROVIDERS,
            f"agents x writes_per_hour: {_RATE_MAX_PER_S / GROWTH:g} writes a second at most": self.rate_per_s
            <= _RATE_MAX_PER_S / GROWTH,
            "agents x writes_per_hour: a write in a year at least": self.rate_per_s * _YEAR_S >= 1,
            f"agents x writes_per_hour x work_s: {_MANY // GROWTH:,} writes under way at once at most": self.rate_per_s
            * self.work_s
            <= _MANY // GROWTH,
            f"agents x writes_per_hour x interval_s (or a third of freshness_s): {_MANY // GROWTH:,} writes between "
            "two runs of a job at most": self.rate_per_s * self.period_s <= _MANY // GROWTH,
        }.items():
            if not holds:
                raise ConfigurationError(f"the workload is not one: {rule}")

    @property
    def rate_per_s(self) -> float:
        return self.agents * self.writes_per_hour / _HOUR_S

    @property
    def period_s(self) -> float:
        """How often a job runs, or how long a slot is."""
        return self.interval_s or self.freshness_s / 3

    def setup(self, times: float, **changed: Any) -> Setup:
        """At so many times the load."""
        rate = self.rate_per_s * times
        duration = max(_TRANSACTIONS / rate, _DURATION_MIN_S, 6 * self.work_s, 8 * self.period_s)
        given: dict[str, Any] = {
            "model": "client",
            "inter_arrival_ms": 1000 / rate,
            "fast_append_ratio": self.appends,
            "storage": self.storage,
            "catalog_latency_ms": self.catalog_latency_ms,
            "partitions": max(self.partitions, self.agents if self.own_partitions else 1),
            "runtime_s": self.work_s,
            "runtime_sigma": 0.5,
            "runtime_floor_s": 0.0,
            "agents": self.agents,
            "interval_s": self.period_s,
            "job_s": self.job_s,
            "server_cpu_ms": self.server_cpu_ms,
            "duration_s": duration,
        }
        setup = Setup(**given | changed)
        # With slots, everybody must have had a few turns.
        cycles_s = 4 * setup.agents * setup.interval_s if setup.pattern == "slots" else 0.0
        cycles_s = min(cycles_s, GROWTH * _MANY / rate)
        return replace(setup, duration_s=max(duration, cycles_s))


def workload_from(text: str, source: str) -> Workload:
    """A workload from a TOML file. Raises `ConfigurationError`, which names the source."""
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{source} is not TOML: {error}") from error
    return workload_of(given, source)


def workload_of(given: Mapping[str, Any], source: str) -> Workload:
    """Raises `ConfigurationError`, which names the source."""
    values = checked(Workload, given, "a workload", source)
    try:
        return Workload(**values)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error.message}") from error


def workload_of_log(attempts: Sequence[Mapping[str, Any]], **given: Any) -> Workload:
    """What a tower's log of attempts tells: who writes, how often, and how much of it appends.

    Args:
        attempts: with `principal`, `operation` and `at_ms` each.
        given: what the log can't tell, as a workload has it.

    Raises:
        UsageError: there is too little in the log.
    """
    # The log also has reads that were refused, and changes of tables that are no commits.
    attempts = [each for each in attempts if each["operation"] != "read" and each.get("outcome") != "done"]
    times = sorted(int(attempt["at_ms"]) for attempt in attempts)
    if len(times) < 2 or times[-1] - times[0] < 60_000:
        raise UsageError("the log has too little to plan by: two attempts a minute apart at least")
    agents = len({attempt["principal"] for attempt in attempts})
    hours = (times[-1] - times[0]) / 1000 / _HOUR_S
    appends = sum(attempt["operation"] == "append" for attempt in attempts) / len(attempts)
    seen = {"agents": agents, "writes_per_hour": (len(attempts) - 1) / hours / agents, "appends": round(appends, 3)}
    return workload_of({**seen, **given}, "the log")


# ── Patterns ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to write, what it is, and what of a setup makes it."""

    name: str
    said: str
    changed: Mapping[str, Any]


def candidates(workload: Workload) -> list[Candidate]:
    """The ways that are open to a workload: whoever replaces rows can't do so by appends alone."""
    # Slots as long as lets everybody have a turn within the freshness, but no shorter than a slow commit takes.
    shortest_s = max(_SLOT_MIN_S, 2 * _commit_s(workload))
    slot_s = workload.interval_s or max(shortest_s, workload.freshness_s / (2 * workload.agents))
    wait_s = max(workload.freshness_s, workload.work_s)
    found = [
        Candidate("optimistic", "Iceberg's clients, each for itself", {"partitions": 1}),
        Candidate("lock", "a lock on the table, held while one commits", {"pattern": "lock"}),
        Candidate("group", "Icetower commits what waits as one", {"pattern": "group"}),
        Candidate("slots", "each agent commits in its own time slot", {"pattern": "slots", "interval_s": slot_s}),
        Candidate("intents", "partitions are reserved before the work", {"pattern": "intents", "deadline_s": wait_s}),
    ]
    if workload.partitions > 1 or workload.own_partitions:
        found.insert(1, Candidate("isolated", "the same, in partitions of their own", {}))
    if workload.appends == 1:
        found.append(
            Candidate("appends", "Icetower's fast path: named files, one snapshot a group", {"pattern": "appends"})
        )
    found.append(Candidate("wal", "rows go into a log, and a mediator merges them", {"pattern": "wal"}))
    found.append(Candidate("collector", "deltas are staged, and a job merges them", {"pattern": "collector"}))
    return found


def _commit_s(workload: Workload) -> float:
    """What a client takes for a commit on average, if nobody is in its way."""
    times = timing(workload.setup(1.0))
    steps = (times.catalog_read, times.get, times.get, times.put_list, times.put_metadata, times.commit)
    return sum(step.mean_ms for step in steps) / 1000


@dataclass(frozen=True, slots=True)
class Assessed:
    """A pattern at one load.

    Attributes:
        fresh_p99_s: until a write is visible.
        wasted_pct: work of agents and their clients that came to nothing.
        usd_per_1000: requests to the storage, for a thousand commits; `requests`: for one, the catalog's included.
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

    def holds(self, workload: Workload) -> bool:
        return self.success_pct >= SUCCESS_PCT and self.fresh_p99_s <= workload.freshness_s


@dataclass(frozen=True, slots=True)
class Advice:
    """What is to be said of a pattern.

    Attributes:
        holds_to, breaks_at: the highest load, as a multiple of today's, at which it was seen to hold, and the lowest at
            which it was seen not to; None: none was seen.
    """

    candidate: Candidate
    curve: tuple[Assessed, ...]
    today: Assessed
    grown: Assessed
    holds_to: float | None
    breaks_at: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Patterns, the best first."""

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


def _figures(assessed: Assessed) -> Row:
    found = {field.name: getattr(assessed, field.name) for field in fields(Assessed)}
    return {name: None if math.isnan(value) else value for name, value in found.items()}


def plan(workload: Workload, told: Callable[[int, int], None] | None = None, seed: int = 1) -> Plan:
    """Simulate every pattern at a range of loads, and rank them.

    Those come first that hold today and grown, then those that hold today; among equals the one that is more than twice
    as fresh, then the one that breaks later, then the one that costs less.
    """
    options = candidates(workload)
    advice: list[Advice] = []
    for number, option in enumerate(options, 1):
        curve = _curve(workload, option, seed)
        broken = next((each.times for each in curve if not each.holds(workload)), None)
        today, grown = (next(each for each in curve if each.times == times) for times in (1.0, float(GROWTH)))
        advice.append(Advice(option, curve, today, grown, _held(workload, curve), broken))
        if told is not None:
            told(len(options), number)
    return Plan(workload, tuple(sorted(advice, key=lambda each: _rank(workload, each))))


def _curve(workload: Workload, option: Candidate, seed: int) -> tuple[Assessed, ...]:
    """A pattern at growing loads: at today's and the grown one, and as far as twice in a row it did not hold."""
    found: list[Assessed] = []
    wanted = {1.0, float(GROWTH)}
    for times in sorted({*_MULTIPLES, *wanted}):
        over = [each for each in found[-2:] if not each.holds(workload)]
        rate = workload.rate_per_s * times
        few = rate <= _RATE_MAX_PER_S and rate * max(workload.work_s, workload.period_s) <= _MANY
        if times in wanted or (len(over) < 2 and few):
            found.append(assess(workload, option, times, one(workload.setup(times, **option.changed), seed)))
    return tuple(found)


def _held(workload: Workload, curve: Sequence[Assessed]) -> float | None:
    """The highest load up to which all hold."""
    held: float | None = None
    for each in curve:
        if not each.holds(workload):
            break
        held = each.times
    return held


def _rank(workload: Workload, advice: Advice) -> tuple[Any, ...]:
    holds = advice.today.holds(workload) + (advice.today.holds(workload) and advice.grown.holds(workload))
    if not holds:
        return (0, -round(advice.today.success_pct), advice.today.fresh_p99_s)
    fresh = math.floor(math.log2(max(advice.grown.fresh_p99_s if holds == 2 else advice.today.fresh_p99_s, 0.01)))
    return (-holds, fresh, -(advice.holds_to or 0), advice.today.usd_per_1000)


def assess(workload: Workload, candidate: Candidate, times: float, outcome: Outcome) -> Assessed:
    """What a run says of a pattern at a load."""
    figures, whole = outcome.figures[BEGUN], outcome.figures[WHOLE]
    committed = max(whole.committed, 1)
    ended = whole.committed + whole.failed
    tried = 0.0 if math.isnan(whole.mean_retries) else whole.mean_retries
    mean_s = 0.0 if math.isnan(whole.mean_s) else whole.mean_s
    # Who waited for an intent in vain has not begun to work; whoever else fails has done all of it.
    worked = 0.0 if candidate.name == "intents" else workload.work_s
    lost_s = whole.failed * worked + whole.committed * mean_s * tried / (1 + tried)
    spent_s = whole.failed * worked + whole.committed * (workload.work_s + mean_s)
    usd = outcome.reads * workload.read_usd_per_1000 + outcome.writes * workload.write_usd_per_1000
    requests = outcome.reads + outcome.writes + outcome.catalog_reads + outcome.catalog_commits
    return Assessed(
        times=times,
        commits_per_s=outcome.commits_per_s,
        success_pct=figures.success_pct if ended else math.nan,
        p50_s=figures.p50_s,
        p99_s=figures.p99_s,
        fresh_p99_s=outcome.fresh[BEGUN].p99_s,
        wasted_pct=100 * lost_s / spent_s if spent_s else 0.0,
        requests=requests / committed,
        usd_per_1000=usd / committed,
    )


# ── Contracts ────────────────────────────────────────────────────────────────────────────────────────────────────────

_NOTES: Mapping[str, str] = {
    "optimistic": "nothing coordinates these writers but Iceberg's own retries",
    "isolated": "each agent owns partitions; the swap of the table is still shared",
    "lock": "the lock is for your scheduler to hold: commits of one agent at a time",
    "group": "commits by its own client; the tower rebases and groups them",
    "appends": "rows by the fast path: Tower.append names files, a group becomes one snapshot",
    "slots": "the region moves with the clock; your scheduler gives each agent its turn",
    "wal": "rows come through the write-ahead log alone; run `icetower mediate` every so often",
    "collector": "agents append deltas to a staging table; one job merges them",
    "intents": "an agent asks for its partitions before it works (request_partition)",
}


def contracts(
    plan: Plan, pattern: str, table: str = "namespace.table", agent: str = "my_agent", *, first: int = 1
) -> tuple[str, ...]:
    """The contracts to start from under a pattern, as YAML: those of the first agents, and that of the job, if any.

    Agents that may change each other's rows share one contract: no contract can keep apart what the workload does not.
    """
    workload = plan.workload
    shares = _shares(workload, pattern)
    only_appends = workload.appends == 1 or pattern == "collector"
    apart = workload.agents > 1 and (shares > 1 or only_appends)
    agents = min(first, shares if shares > 1 else workload.agents) if apart else 1
    names = (agent, *(f"{agent}_{number}" for number in range(2, agents + 1)))
    whose = "another one for each agent" if apart else "all agents are principals of this one"
    about = f"# {_NOTES[pattern]}.\n" + (f"# {whose[0].upper()}{whose[1:]}.\n" if workload.agents > 1 else "")
    texts = [about + _contract(workload, pattern, table, name, (at, shares)) for at, name in enumerate(names)]
    if pattern in _JOBS:
        texts.append(_JOBS[pattern].format(table=table, agent=agent))
    return tuple(texts)


_JOBS: Mapping[str, str] = {
    "wal": """\
# The mediator's own: it merges the log into the table, and keeps its books in `system`.
version: 1
agent: {agent}_mediator
owner: my-team@example.com
role: pipeline
tables:
  - {{table: {table}, operations: [append, overwrite], partitions: all}}
  - {{table: system.*, operations: [create, append, overwrite], partitions: all}}
reads: [{table}_wal, system.*]
""",
    "collector": """\
# The job's own: it merges what is staged into the table, and removes it from the staging table.
version: 1
agent: {agent}_collector
owner: my-team@example.com
role: pipeline
tables:
  - {{table: {table}, operations: [append, overwrite], partitions: all}}
  - {{table: {table}_staging, operations: [delete], partitions: all}}
""",
}


def _shares(workload: Workload, pattern: str) -> int:
    """Among how many owners the partitions are divided; 1: whoever writes may write anywhere."""
    if workload.own_partitions:
        return workload.agents
    return min(workload.partitions, workload.agents) if pattern in ("isolated", "intents") else 1


def _contract(workload: Workload, pattern: str, table: str, agent: str, share: tuple[int, int]) -> str:
    """One agent's. `share`: which of how many shares of the partitions is its own."""
    number, shares = share
    staged = pattern == "collector"
    region: list[str] = []
    if pattern == "slots":
        region.append("hour(written_at): {from: now, to: now+1h}")
    if shares > 1:
        size = max(workload.partitions, shares)
        start, end = number * size // shares, (number + 1) * size // shares
        region.append(f"bucket({size}, id): {{from: {start}, to: {end}}}   # this agent's share of the partitions")
    lines = [
        "version: 1",
        f"agent: {agent}",
        "owner: my-team@example.com",
        "tables:",
        f"  - table: {table}{'_staging' if staged else ''}",
        f"    operations: {'[append]' if staged or workload.appends == 1 else '[append, overwrite]'}",
    ]
    if region:
        lines += ["    partitions:", f"      - {region[0]}", *(f"        {line}" for line in region[1:])]
    else:
        lines.append("    partitions: all")
    if pattern in ("slots", "wal"):
        lines.append(f"    pattern: {'scheduler' if pattern == 'slots' else 'mediator'}")
    if staged or (pattern in ("group", "appends", "isolated", "intents") and workload.appends > 0):
        lines.append("    blind_appends: true")
    if pattern in ("group", "isolated", "intents") and workload.appends < 1:
        lines.append("    read_scope: owned")
    if pattern == "wal":
        lines += [
            f"  - table: {table}_wal   # PARTITIONED BY _agent: nobody writes rows in another agent's name",
            "    operations: [append]",
            "    partitions:",
            f"      - _agent: [{agent}]",
            "    blind_appends: true",
        ]
    return "\n".join(lines) + "\n"
