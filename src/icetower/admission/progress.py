"""A principal may not write the progress of another principal's sink: that sink would silently skip rows.

Flink, Spark's streaming and Kafka Connect look for their progress in the summaries of the table's snapshots, whoever
wrote them. So it is written by the principal that wrote it last, or by one under the same contract. A principal that
may append everywhere may write any: nothing in the table is kept from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from icetower.contracts.model import Operation
from icetower.errors import ContractViolation
from icetower.iceberg.change import Change
from icetower.protocol.marks import PRINCIPAL
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal
from icetower.table.sinks import Sink, sinks_of

_APPEND = frozenset({Operation.APPEND})


def sink_owners(
    principal: Principal, table: Identifier, metadata: Mapping[str, Any] | None, changes: Sequence[Change]
) -> dict[Sink, str]:
    """Sinks with progress in a commit, each with the other principal that wrote it last.

    What was committed past the tower has no principal, and may be gone on with by anybody.
    """
    if metadata is None or principal.administrator or principal.contract.grants_everywhere(_APPEND, table):
        return {}
    left = {sink for change in changes for sink in _named(change.snapshot.summary)}
    found: dict[Sink, str] = {}
    for snapshot in reversed(metadata.get("snapshots") or ()) if left else ():
        summary: Mapping[str, Any] = snapshot.get("summary") or {}
        for sink in left & _named(summary):
            left.remove(sink)
            if summary.get(PRINCIPAL) not in (None, principal.name):
                found[sink] = str(summary[PRINCIPAL])
        if not left:
            break
    return found


def _named(summary: Mapping[str, Any]) -> set[Sink]:
    # By the job alone: to Flink, a snapshot that names no operator is about all of them.
    return {sink[:2] for sink in sinks_of(summary)}


def check_progress(
    principal: Principal, table: Identifier, sink_owners: Mapping[Sink, str], others: Collection[str]
) -> None:
    """Raises `ContractViolation` where a commit tells the progress of another's sink.

    Args:
        tellers: from `sink_owners`.
        others: those of its principals that may act, under other contracts.
    """
    for sink, other in sink_owners.items():
        if other in others:
            raise ContractViolation(
                f"{principal.name} may not commit to {table}: its summary tells the progress of the sink "
                f"{' '.join(sink)}, as {other} has done up to now, and that one would pass over what it has not "
                f"committed yet. To go on with {other}'s work, write under its contract, or have {other} revoked",
                rule="contract.summary",
                next_step="ask_owner",
            )
