"""Branches that nobody has written to for longer than the contract of their writer retains them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from icetower.contracts.model import Contract
from icetower.errors import CommitConflict
from icetower.iceberg.metadata import MAIN
from icetower.protocol.marks import AUTHOR, PRINCIPAL
from icetower.protocol.snapshots import Snapshot
from icetower.publish.comparison import compare
from icetower.table.head import HeadState


@dataclass(frozen=True, slots=True)
class BranchState:
    """A branch of a table.

    Attributes:
        snapshot: where it stands.
        written_ms: when it was last written to.
        principal, contract: who has done that, and the name of its contract; None where that is not known.
        retain_s: how long the contract retains it; None: it stays.
        lacking: how many of its snapshots `main` lacks; None where that can't be told.
        stale: it may be removed.
    """

    name: str
    snapshot: int
    written_ms: int
    principal: str | None
    contract: str | None
    retain_s: float | None
    lacking: int | None
    stale: bool


def branches_in(head: HeadState, contracts: Mapping[str, Contract], now_ms: int) -> Iterator[BranchState]:
    """The branches of a table, but for `main`, by their names.

    Args:
        contracts: by principal.
    """
    for name, ref in sorted((head.metadata.get("refs") or {}).items()):
        snapshot = head.snapshot(ref["snapshot-id"])
        if name == MAIN or ref.get("type") != "branch" or snapshot is None:
            continue
        principal = writer_of(snapshot)
        contract = None if principal is None else contracts.get(principal)
        branches = None if contract is None else contract.branches
        retain_s = None if branches is None else branches.retain_s
        stale = retain_s is not None and snapshot.timestamp_ms + retain_s * 1000 <= now_ms
        yield BranchState(
            name,
            snapshot.id,
            snapshot.timestamp_ms,
            principal,
            None if contract is None else contract.name,
            retain_s,
            _lacking(head, snapshot.id),
            stale,
        )


def writer_of(snapshot: Snapshot) -> str | None:
    """The principal that committed a snapshot, or whose appends it has; None where nobody or several are known."""
    authors = str(snapshot.summary.get(AUTHOR, "")).split(",")
    return snapshot.summary.get(PRINCIPAL) or (authors[0] if len(authors) == 1 else None) or None


def _lacking(head: HeadState, at: int) -> int | None:
    try:
        return len(compare(head.snapshots.get, at, head.ref(MAIN)).lacking)
    except CommitConflict:
        return None
