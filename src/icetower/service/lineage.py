"""Commits as runs of OpenLineage: what is known of an attempt that has ended, for whoever configures `[lineage]`.

A stale commit that is sent back is no failure: its client tries again by itself. Nor is a replay a run: its first try
was.
"""

from __future__ import annotations

from functools import partial

from icetower.ambient import Ambient
from icetower.commit.engine import Committed
from icetower.iceberg.metadata import current_schema
from icetower.ledger.attempts import Outcome
from icetower.observe.openlineage import Names, Output, Run, events_of
from icetower.observe.posting import Poster
from icetower.service.attempts import READ, Ended

LANDED = frozenset({Outcome.DIRECT, Outcome.REBASED, Outcome.APPENDED})


class Lineage:
    """Hears of attempts, and has their events posted."""

    def __init__(self, poster: Poster, names: Names, ambient: Ambient) -> None:
        self._poster = poster
        self._names = names
        self._ambient = ambient

    def heard(self, ended: Ended) -> None:
        """An attempt has ended. Returns at once: its events are made where they are sent."""
        kept, committed = ended.kept, ended.committed
        landed = committed is not None and bool(committed.snapshots) and kept.outcome in LANDED
        if not landed and (kept.operation == READ or not _failed(ended)):
            return
        facts = {
            "requestId": kept.request_id,
            "contract": kept.contract,
            "operation": kept.operation,
            "outcome": kept.outcome.value,
            "rule": kept.rule,
            "snapshots": [str(i) for i in kept.snapshots],  # 64 bits: as numbers, JavaScript would round them
            "base": _id(kept.base),
            "head": _id(kept.head),
            "decidedMs": kept.decided_ms,
            "groupSize": kept.group_size,
            "queueWaitMs": None if committed is None else round(kept.queue_wait_ms, 3),
            "latencyMs": round(kept.latency_ms, 3),
        }
        run = Run(
            run_id=self._ambient.uuid7(),
            began_ms=kept.at_ms - int(kept.latency_ms),
            ended_ms=kept.at_ms,
            principal=kept.principal,
            table=kept.table,
            facts=facts,
            partitions=kept.partitions,
            failure=None if ended.error is None else kept.message or kept.rule or kept.outcome.value,
            unknown=kept.outcome is Outcome.UNKNOWN,
            output=_output(committed) if committed is not None and landed else None,
        )
        self._poster.put(partial(events_of, run, self._names))


def _failed(ended: Ended) -> bool:
    """Whether a commit has failed for good, as far as its client can be expected to know."""
    kept = ended.kept
    if kept.outcome is Outcome.CONFLICT:
        return (kept.rule or "").startswith("conflict.")
    return kept.outcome in (Outcome.REFUSED, Outcome.UNKNOWN)


def _output(committed: Committed) -> Output:
    """The table as the commit has left it; of the version only what the events say is kept."""
    metadata, last = committed.head.metadata, committed.snapshots[-1]
    summary = (committed.head.snapshots.get(last) or {}).get("summary") or {}
    return Output(metadata.get("location"), last, current_schema(metadata), summary)


def _id(snapshot: int | None) -> str | None:
    return None if snapshot is None else str(snapshot)
