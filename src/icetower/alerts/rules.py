"""When an alert stands, and when it ends. Pure.

An alert belongs to a rule and to what it is about: a principal and a table, a table, or neither. Its value must pass
the rule's bound for a while before it fires, and must come back further than that bound before it ends, so that a value
that stands at the bound does not fire again and again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

KEPT_MS = 24 * 3600 * 1000
"""So long an alert that has ended is shown."""

STANDING_MAX = 1_000
"""Alerts that stand at once; the worst of what comes beyond them is not kept."""

PARTITIONS_MAX = 5


class Metric(StrEnum):
    """What rules go by; docs/metrics.md defines each."""

    RETRY_RATE = "agent_write_retry_rate"
    FIRST_TRY = "commit_first_try_success"
    CHURN = "metadata_churn_per_hour"
    LATENCY = "write_latency_p99_s"
    END_TO_END = "end_to_end_p99_s"
    ORPHANS = "orphaned_files"
    BYPASSES = "bypasses"
    WAL_LAG = "wal_lag_s"
    COLLECTOR_LAG = "collector_lag_s"
    DISK = "disk_free_bytes"


class State(StrEnum):
    """Of an alert. `SILENCED` is shown in place of the first two, while somebody has silenced it."""

    PENDING = "pending"
    FIRING = "firing"
    SILENCED = "silenced"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        above, below: the bound; one of them is given.
        clears_at: the alert ends when the value is this, or better.
        window_s: over how long the value is taken, for figures of attempts.
        for_s: how long the bound must be passed before the alert fires.
        at_least: with fewer attempts in the window there is no value.
        advice: what a person does about it.
    """

    name: str
    metric: Metric
    above: float | None = None
    below: float | None = None
    clears_at: float = 0.0
    window_s: int = 300
    for_s: int = 0
    at_least: int = 1
    advice: str = ""

    @property
    def threshold(self) -> float:
        bound = self.below if self.above is None else self.above
        assert bound is not None
        return bound

    def breached(self, value: float) -> bool:
        return value > self.threshold if self.above is not None else value < self.threshold

    def cleared(self, value: float) -> bool:
        return value <= self.clears_at if self.above is not None else value >= self.clears_at

    def to_json(self) -> dict[str, Any]:
        """As the control API shows it."""
        bound = {"above": self.above} if self.above is not None else {"below": self.below}
        shown = {"clears_at": self.clears_at, "window_s": self.window_s, "for_s": self.for_s, "at_least": self.at_least}
        return {"name": self.name, "metric": self.metric.value, **bound, **shown, "advice": self.advice}


DEFAULTS: tuple[Rule, ...] = (
    Rule("retry-rate", Metric.RETRY_RATE, above=0.10, clears_at=0.05, at_least=10,
         advice="`icetower commits` shows by which rule. Where that is rebase.…, a declaration is missing: `icetower "
         "advise --tower` names it. Where it is conflict.…, writers meet in these partitions: divide them by contract, "
         "or bring the rows through a log (docs/patterns.md). Where most were replayed, the agent sends what "
         "has landed: it was started again, or does not keep what it was answered."),
    Rule("first-try", Metric.FIRST_TRY, below=0.95, clears_at=0.97, window_s=900, at_least=20,
         advice="Look at what the agent is refused for (`icetower commits --refused`), and mend the agent or its "
         "contract."),
    Rule("metadata-churn", Metric.CHURN, above=3_600.0, clears_at=2_400.0, window_s=3600, for_s=300,
         advice="More than one metadata version a second: let agents append by the fast path, or write less often with "
         "more rows."),
    Rule("write-latency", Metric.LATENCY, above=30.0, clears_at=15.0, window_s=600, at_least=10, for_s=60,
         advice="Look at the phases of slow commits in the log, at the storage and at the catalog's database."),
    Rule("end-to-end-latency", Metric.END_TO_END, above=300.0, clears_at=150.0, window_s=600, at_least=10, for_s=60,
         advice="Agents write long after they have decided: look at what they do in between, and at their retries."),
    Rule("orphaned-files", Metric.ORPHANS, above=1_000.0, clears_at=100.0,
         advice="`icetower orphans TABLE --dry-run` lists them with their writers; contracts may delete them."),
    Rule("bypass", Metric.BYPASSES, above=0.0, clears_at=0.0, window_s=3600,
         advice="Somebody commits around the tower: `icetower bypasses` says by which engine. Take its access to the "
         "catalog away, or bring it to the tower."),
    Rule("wal-lag", Metric.WAL_LAG, above=900.0, clears_at=300.0,
         advice="Is `icetower mediate` running? Start it, or give it more of the machine."),
    Rule("collector-lag", Metric.COLLECTOR_LAG, above=900.0, clears_at=300.0,
         advice="Is `icetower collect` running? Start it, or run it more often."),
    Rule("disk", Metric.DISK, below=1_073_741_824.0, clears_at=2_147_483_648.0,
         advice="Free or extend the disk of the tower's data directory: without room nothing is committed."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reading:
    """The value of a rule's metric for one principal and table (empty: none)."""

    rule: str
    principal: str
    table: str
    value: float
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert.

    Attributes:
        id: the same whenever this rule fires for this principal and table.
        since_ms: since when it is in this state.
        told: the ticket by which people hear of it; None: they have not.
    """

    id: str
    rule: str
    principal: str
    table: str
    state: State
    since_ms: int
    value: float
    partitions: tuple[str, ...] = ()
    told: str | None = None


@dataclass(frozen=True, slots=True)
class Silence:
    """Nobody hears of an alert (`about` its id), or of all of a rule (`about` ``rule:NAME``), until a time."""

    about: str
    until_ms: int
    by: str
    reason: str


def id_of(rule: str, principal: str, table: str) -> str:
    """The id of an alert."""
    digest = hashlib.sha256()
    for part in (rule, principal, table):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:32]


def step(rule: Rule, alert: Alert | None, reading: Reading | None, now_ms: int) -> Alert | None:
    """The alert as it is now; None: there is none.

    Args:
        alert: as it was before.
        reading: None: there is no value, since nothing happens there any more.
    """
    standing = alert is not None and alert.state in (State.PENDING, State.FIRING)
    if alert is not None and standing:
        pending = alert.state is State.PENDING
        if reading is None or rule.cleared(reading.value) or (pending and not rule.breached(reading.value)):
            value = alert.value if reading is None else reading.value
            return None if pending else replace(alert, state=State.RESOLVED, since_ms=now_ms, value=value)
        changed = replace(alert, value=reading.value, partitions=reading.partitions[:PARTITIONS_MAX])
        if alert.state is State.PENDING and now_ms - alert.since_ms >= rule.for_s * 1000:
            return replace(changed, state=State.FIRING, since_ms=now_ms)
        return changed
    if reading is not None and rule.breached(reading.value):
        state = State.FIRING if rule.for_s == 0 else State.PENDING
        name = id_of(rule.name, reading.principal, reading.table)
        partitions = reading.partitions[:PARTITIONS_MAX]
        return Alert(name, rule.name, reading.principal, reading.table, state, now_ms, reading.value, partitions)
    if alert is not None and now_ms - alert.since_ms >= KEPT_MS:
        return None
    return alert


def advanced(
    rules: Sequence[Rule], alerts: Mapping[str, Alert], readings: Iterable[Reading], now_ms: int
) -> dict[str, Alert]:
    """All alerts as they are now, by id."""
    by_name = {rule.name: rule for rule in rules}
    read = {id_of(each.rule, each.principal, each.table): each for each in readings}
    found: dict[str, Alert] = {}
    for name in sorted(alerts.keys() | read.keys()):
        alert, reading = alerts.get(name), read.get(name)
        rule = by_name.get(alert.rule if alert is not None else read[name].rule)
        after = None if rule is None else step(rule, alert, reading, now_ms)
        if after is not None:
            found[name] = after
    if len(found) > STANDING_MAX:
        kept = sorted(found.values(), key=lambda each: (each.state is State.RESOLVED, each.since_ms, each.id))
        found = {each.id: each for each in kept[:STANDING_MAX]}
    return found


def silence_of(alert: Alert, silences: Mapping[str, Silence], now_ms: int) -> Silence | None:
    """What silences an alert now."""
    for about in (alert.id, f"rule:{alert.rule}"):
        silence = silences.get(about)
        if silence is not None and silence.until_ms > now_ms:
            return silence
    return None


def message_of(rule: Rule, alert: Alert) -> str:
    """In a line: which value of what is beyond which bound, and where."""
    about = " at ".join(part for part in (alert.principal, alert.table) if part) or "the tower"
    side = "above" if rule.above is not None else "below"
    hot = f"; most in {', '.join(alert.partitions)}" if alert.partitions else ""
    value, bound = (value_text(rule.metric, each) for each in (alert.value, rule.threshold))
    return f"{rule.name}: {rule.metric.value} of {about} is {value}, {side} {bound}{hot}"


def value_text(metric: str, value: float) -> str:
    """A value of a metric: a rate in percent, all else as a number."""
    if metric.endswith(("_rate", "_success")):
        return f"{value:.0%}"
    return f"{value:,.6g}" if value < 1e6 else f"{value:,.0f}"
