"""What a trace is told of a commit and of its group: the phases that the engine has noted, and who it was."""

from __future__ import annotations

from collections.abc import Sequence

from icetower.commit.queue import Committed
from icetower.commit.steps import Step
from icetower.ledger.attempts import Attempt
from icetower.observe.traces import CommitTrace, Phase, Traces

TABLES_MAX = 20
SNAPSHOTS_MAX = 100


def trace_attempt(trace: CommitTrace, kept: Attempt, started_s: float, committed: Committed | None) -> None:
    """An attempt has ended. `started_s`: when it came, monotonic."""
    phases: list[Phase] = []
    if kept.judge_ms is not None:
        phases.append(("judge", started_s, kept.judge_ms))
    cost = None if committed is None else committed.cost
    if committed is not None and cost is not None:
        waited_ms = committed.queue_wait_ms
        phases.append(("queue", cost.plan_s - waited_ms / 1000, waited_ms))
        phases.append(("plan", cost.plan_s, cost.plan_ms))
        phases.append(("write", cost.write_s, cost.write_ms))
        phases.append(("swap", cost.swap_s, cost.swap_ms))
    about = {
        "request_id": kept.request_id,
        "principal": kept.principal,
        "contract": kept.contract,
        "table": kept.table,
        "operation": kept.operation,
        "outcome": kept.outcome.value,
        "rule": kept.rule,
        "snapshots": kept.snapshots[:SNAPSHOTS_MAX],
        "partitions": kept.partitions,
        "base": kept.base,
        "head": kept.head,
        "group.size": kept.group_size,
    }
    trace.ended(about, phases, None if cost is None else cost.group, kept.rule)


def trace_group(traces: Traces, steps: Sequence[Step]) -> None:
    """A group of commits was swapped in, or was not."""
    requests = list(dict.fromkeys(waiting.request for step in steps for waiting in step.waiting))
    took = steps[0].took
    phases: list[Phase] = [("plan", each.took.plan_s, each.took.plan_ms) for each in steps]
    phases += [("write", took.write_s, took.write_ms), ("swap", took.swap_s, took.swap_ms)]
    snapshots = [i for step in steps for accepted in step.plan.accepted for i in accepted.snapshots]
    about = {
        "tables": tuple(str(step.identifier) for step in steps[:TABLES_MAX]),
        "group.size": sum(len(step.plan.accepted) for step in steps),
        "group.members": len(requests),
        "snapshots": tuple(dict.fromkeys(snapshots))[:SNAPSHOTS_MAX],
        "landed": took.landed,
    }
    context = traces.group(requests, about, phases)
    for step in steps:
        step.took.group = context
