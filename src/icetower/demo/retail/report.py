"""What a run of the pipeline has come to, for people and for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from icetower.demo.retail.notes import Death
from icetower.demo.retail.reconcile import Verdict


@dataclass(frozen=True, slots=True)
class AgentFigures:
    """What one agent did. `p50_s`, `p99_s`: of the work on an hour, from its file to the acknowledged commit."""

    agent: str
    p50_s: float
    p99_s: float
    attempts: int
    landed: int
    retries: int
    refused: int


@dataclass(frozen=True, slots=True)
class Batches:
    """What the mediator or the collector reported.

    Attributes:
        superseded: changes that were older than what the table had, or than another one of their batch.
        lag_p50_s, lag_max_s: from the landing of a row in the log or the delta table to its landing in the table.
    """

    job: str
    batches: int
    superseded: int
    lag_p50_s: float | None
    lag_max_s: float | None


@dataclass(frozen=True, slots=True)
class Reads:
    """What a reader saw in the merged view of the promotions, meanwhile.

    Attributes:
        views: how often it was compared with the changes.
        ahead: how often it had rows that the table did not have yet.
        wrong: how often it was not what the changes come to.
    """

    views: int
    ahead: int
    wrong: int


@dataclass(frozen=True, slots=True)
class Findings:
    """The outcome of a run.

    Attributes:
        verdicts: how each table compares with the source, row by row.
        maintained: how often each task of the maintenance was done, or failed.
        killed: which processes were killed, in order.
        checkpoint_lost: whether the stream's checkpoint was deleted on the way.
        failures: ends of processes that were neither planned nor wanted.
    """

    days: int
    hours: int
    seconds: float
    verdicts: tuple[Verdict, ...]
    agents: tuple[AgentFigures, ...]
    batches: tuple[Batches, ...]
    maintained: Mapping[str, int]
    reads: Reads
    killed: tuple[Death, ...]
    checkpoint_lost: bool
    failures: int

    @property
    def good(self) -> bool:
        return all(verdict.exact for verdict in self.verdicts) and not self.reads.wrong


def to_json(findings: Findings) -> str:
    """One object, for machines."""
    tables = [{**asdict(verdict), "exact": verdict.exact} for verdict in findings.verdicts]
    fields = {name: value for name, value in asdict(findings).items() if name != "verdicts"}
    return json.dumps({**fields, "exact": findings.good, "tables": tables})


def show(findings: Findings, console: Console) -> None:
    """Two tables, and a line of what happened on the way."""
    agents = Table("agent", "p50", "p99", "attempts", "landed", "retries", "refused", title="Agents")
    for each in findings.agents:
        counts = (each.attempts, each.landed, each.retries, each.refused)
        agents.add_row(each.agent, f"{each.p50_s:.1f} s", f"{each.p99_s:.1f} s", *map(str, counts))
    console.print(agents)
    tables = Table("table", "rows", "money", "of the source", "missing", "unexpected", title="Tables")
    for verdict in findings.verdicts:
        of_source = f"{verdict.expected_rows:,} rows, {verdict.expected_money}"
        tables.add_row(
            verdict.table,
            f"{verdict.rows:,}",
            verdict.money,
            of_source,
            str(verdict.missing),
            str(verdict.unexpected),
            style=None if verdict.exact else "red",
        )
    console.print(tables)
    for each in findings.batches:
        late = f"; {each.superseded:,} changes came after newer ones" if each.superseded else ""
        lag = f"; lag {each.lag_p50_s:.1f} s, at most {each.lag_max_s:.1f} s" if each.lag_p50_s is not None else ""
        console.print(f"{each.job}: {each.batches} batches{lag}{late}")
    tasks = ", ".join(f"{name} {count}" for name, count in findings.maintained.items())
    console.print(f"maintenance: {tasks or 'nothing was due'}")
    reads = findings.reads
    console.print(
        f"merged view: compared {reads.views} times, {reads.ahead} times ahead of the table, {reads.wrong} times wrong"
    )
    lost = "; the stream's checkpoint was deleted" if findings.checkpoint_lost else ""
    killed = ", ".join(f"{death.name} ({death.stage})" for death in findings.killed)
    console.print(f"killed: {killed or 'nothing'}{lost}")
    console.print("every row and cent is there, once" if findings.good else "[red]the tables differ from the source")
