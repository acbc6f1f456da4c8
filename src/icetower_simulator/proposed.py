"""The contracts to start from under a pattern, as YAML. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icetower_simulator.planner import Plan, Workload, slot_length_s

_NOTES: Mapping[str, str] = {
    "optimistic": "nothing coordinates these writers but Iceberg's own retries",
    "isolated": "each agent owns partitions; the swap of the table is still shared",
    "lock": "the lock is for your scheduler to hold: commits of one agent at a time",
    "group": "commits by its own client; the tower rebases and groups them",
    "appends": "agents send rows (icetower.Agent) or name files (Tower.append); a group becomes one snapshot",
    "slots": "each agent commits in its turn, by the tower's clock (docs/contracts.md, Slots)",
    "wal": "rows come through the write-ahead log alone; run `icetower mediate` at regular intervals",
    "collector": "change rows come through the delta table alone; run `icetower collect` at regular intervals",
    "intents": "an agent reserves its partitions by an intent before it reads them (docs/intents.md)",
    "branches": "an agent works on a branch, and publishes it once it has passed its checks (docs/branches.md)",
}


@dataclass(frozen=True, slots=True)
class SharedBy:
    """The column by whose buckets the rows of a table are shared out.

    Attributes:
        buckets: into how many the table is partitioned by it; None: it is not.
    """

    column: str
    buckets: int | None = None


def shared_by(metadata: Mapping[str, Any]) -> SharedBy | None:
    """The column for a table's contracts: that of its bucket partitions, or an identifier; None if it has no column.

    Args:
        metadata: the table's, as plain JSON.
    """
    schema = next((each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"]), None)
    specs = [each for each in metadata["partition-specs"] if each["spec-id"] == metadata["default-spec-id"]]
    columns: dict[int, str] = {
        each["id"]: each["name"] for each in (schema or {}).get("fields", ()) if each["type"] in _BUCKETED
    }
    for field in specs[0]["fields"] if specs else ():
        size = _BUCKET.fullmatch(field["transform"])
        if size is not None and field["source-id"] in columns:
            return SharedBy(columns[field["source-id"]], int(size[1]))
    identifiers = [each for each in (schema or {}).get("identifier-field-ids", ()) if each in columns]
    first = next(iter([*identifiers, *columns]), None)
    return None if first is None else SharedBy(columns[first])


_BUCKET = re.compile(r"bucket\[(\d+)\]")
_BUCKETED = frozenset({"int", "long", "string", "uuid", "date"})
"""Types of columns by which rows are usually shared out."""


def contracts(
    plan: Plan,
    pattern: str,
    table: str = "namespace.table",
    agent: str = "my_agent",
    *,
    first: int = 1,
    shared_by: SharedBy | None = None,
) -> tuple[str, ...]:
    """The contracts to start from under a pattern, as YAML: those of the first agents, and that of the job, if any.

    Agents that may change each other's rows share one contract: no contract can keep apart what the workload does not.

    Args:
        pattern: by its name in a plan, or ``branches``.
        shared_by: the column by whose buckets agents share the rows; None: the table is not known.
    """
    workload = plan.workload
    shares = _shares(workload, pattern)
    only_appends = workload.appends == 1
    apart = workload.agents > 1 and (shares > 1 or only_appends or pattern == "slots")
    agents = min(first, shares if shares > 1 else workload.agents) if apart else 1
    names = (agent, *(f"{agent}_{number}" for number in range(2, agents + 1)))
    sharing = "Each agent needs a contract of its own" if apart else "All agents are principals of this contract"
    about = f"# {_NOTES[pattern]}.\n" + (f"# {sharing}.\n" if workload.agents > 1 else "")
    texts = [
        about + _contract(workload, pattern, table, name, (at, shares), shared_by) for at, name in enumerate(names)
    ]
    if pattern in _JOBS:
        texts.append(_JOBS[pattern].format(table=table, agent=agent))
    return tuple(texts)


_JOBS: Mapping[str, str] = {
    "wal": """\
# The mediator's contract: it merges the log into the table, and records its progress in `system`.
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
# The collector's contract: it folds the delta table into the table, and records its progress in `system`.
version: 1
agent: {agent}_collector
owner: my-team@example.com
role: pipeline
tables:
  - {{table: {table}, operations: [append, overwrite], partitions: all}}
  - {{table: system.*, operations: [create, append, overwrite], partitions: all}}
reads: [{table}_deltas, system.*]
""",
}


_CLAUSES: Mapping[str, str] = {"slots": "scheduler", "wal": "mediator", "collector": "collector"}
_THROUGH: Mapping[str, str] = {"wal": "_wal", "collector": "_deltas"}  # how the table ends that the agents append to


def _shares(workload: Workload, pattern: str) -> int:
    """The number of owners that share the partitions; 1: every writer may write anywhere."""
    if workload.own_partitions:
        return workload.agents
    return min(workload.partitions, workload.agents) if pattern == "isolated" else 1


def _contract(
    workload: Workload, pattern: str, table: str, agent: str, share: tuple[int, int], shared_by: SharedBy | None
) -> str:
    """One agent's contract. `share`: the number of its share of the partitions, and how many shares there are."""
    number, shares = share
    region: list[str] = []
    if pattern == "slots":
        every, start, end = (
            each * math.ceil(slot_length_s(workload)) for each in (workload.agents, number, number + 1)
        )
        region.append(f"now: {{every: {every}s, from: {start}s, to: {end}s}}")
    if shares > 1:
        region.append(_share(workload, number, shares, shared_by))
    lines = [
        "version: 1",
        f"agent: {agent}",
        "owner: my-team@example.com",
        "tables:",
        f"  - table: {table}",
        f"    operations: {'[append]' if workload.appends == 1 else '[append, overwrite]'}",
    ]
    if region:
        lines += ["    partitions:", f"      - {region[0]}", *(f"        {line}" for line in region[1:])]
    else:
        lines.append("    partitions: all")
    if pattern in _CLAUSES:
        lines.append(f"    pattern: {_CLAUSES[pattern]}")
    if pattern in ("group", "appends", "isolated", "intents", "branches") and workload.appends > 0:
        lines.append("    blind_appends: true")
    if pattern in ("group", "isolated", "intents", "branches") and workload.appends < 1:
        lines.append("    read_scope: owned")
    if pattern == "intents" or (pattern == "branches" and workload.contended):
        lines.append("    intents: required   # nothing goes into rows that another agent holds")
    if pattern in _THROUGH:
        lines += [
            f"  - table: {table}{_THROUGH[pattern]}   # PARTITIONED BY _agent: no agent writes rows in another's name",
            "    operations: [append]",
            "    partitions:",
            f"      - _agent: [{agent}]",
            "    blind_appends: true",
        ]
    if pattern == "branches":
        lines += [
            f"  - table: {table}",
            "    operations: [refs]   # creates branches; of all partitions it could also set main to any snapshot",
            "    partitions:",
            f"      - {_share(workload, 0, max(workload.partitions, 2), shared_by)}",
            "branches: {retain: 7d, checks: [row-counts], checked_by: [ci]}   # your checks, and who reports them",
        ]
    return "\n".join(lines) + "\n"


def _share(workload: Workload, number: int, shares: int, shared_by: SharedBy | None) -> str:
    """The line of a region that has one of some equal shares of the partitions."""
    size = max(workload.partitions, shares)
    column, note = "id", "its share; write a column of the table in place of id"
    if shared_by is not None:
        column, note = shared_by.column, "this agent's share of the partitions"
        if shared_by.buckets is not None and shared_by.buckets >= shares:
            size = shared_by.buckets
        else:
            note = f"its share; the table is not partitioned so yet: add bucket({size}, {column})"
    start, end = number * size // shares, (number + 1) * size // shares
    return f"bucket({size}, {column}): {{from: {start}, to: {end}}}   # {note}"
