"""The version of a table that rows were computed from, which a commit of the agent declares as read.

The SDK loads a table anew for each commit. What it finds there is not what the rows were computed from: whatever others
have put there in between would be replaced unseen. So within a lease a commit is held against the version at the grant,
and elsewhere against the one that the caller names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from icetower.agent.keys import reads
from icetower.agent.recovery import refusal_of
from icetower.errors import CommitConflict, UsageError
from icetower.protocol.marks import FILTER, GROUP_SIZE, INTENT, READ_SNAPSHOT


@dataclass(slots=True)
class Known:
    """What an agent has seen of one table.

    Attributes:
        base: the snapshot that was read; None: the table had none.
        intent: the lease in whose block it is; empty: the caller has named the snapshot.
        appended: the snapshots of the agent's own appends within that block.
        checked: by filter, the agent's last own commit within that block. Nothing of others came into the rows of that
            filter before it: else it would have been refused.
    """

    base: int | None
    intent: str = ""
    appended: set[int] = field(default_factory=set[int])
    checked: dict[str, int] = field(default_factory=dict[str, int])

    def declared(self, table: Any, where: Any) -> dict[str, str]:
        """The snapshot properties of `reads`, for the version that is known.

        Args:
            table: PyIceberg's, as it is now.
        """
        said = reads(table, where)
        version = self._version(table, said[FILTER])
        return said | {READ_SNAPSHOT: "none" if version is None else str(version)}

    def _version(self, table: Any, where: str) -> int | None:
        """The newest snapshot before which there is none of others that may be in the filter's rows, unseen."""
        version = self.checked.get(where, self.base)
        for snapshot in _after(table, version):
            if not self._alone(snapshot):
                break
            version = snapshot.snapshot_id
        return version

    def _alone(self, snapshot: Any) -> bool:
        """Whether a snapshot has nothing but rows of this agent, committed under the lease."""
        summary = _summary(snapshot)
        if not self.intent or int(summary.get(GROUP_SIZE, "1")) > 1:
            return False
        return summary.get(INTENT) == self.intent or snapshot.snapshot_id in self.appended

    def landed(self, said: Mapping[str, str], snapshot_id: int | None) -> None:
        """A commit with these snapshot properties has landed just now."""
        if self.intent and snapshot_id is not None:
            self.checked[said[FILTER]] = snapshot_id

    def refusal(self, raised: Exception, seen: set[int]) -> CommitConflict | None:
        """The refusal of a commit because of what came after the version that was read; None: it is something else.

        The same rows would be refused again, however often they are sent.

        Args:
            seen: the snapshots of the table as it was loaded for the commit.
        """
        refused = refusal_of(raised)
        if refused is None or not isinstance(refused, CommitConflict):
            return None
        rule = refused.rule or ""
        if rule != "commit.read-snapshot" and not (rule.startswith("conflict.") and refused.snapshot in seen):
            return None
        why = (
            f"the rows are taken to have been read when intent {self.intent} was granted"
            if self.intent
            else "that is the snapshot that was passed as read="
        )
        return CommitConflict(
            f"{refused.message}; {why}. Read the rows again, compute anew, and pass the snapshot that you have read "
            "then: read=table (as PyIceberg has loaded it)",
            rule=refused.rule,
            partitions=refused.partitions,
            snapshot=refused.snapshot,
            files=refused.files,
            next_step="fix_request",
        )


def known_of(read: Any) -> Known | None:
    """What a caller has read: the id of a snapshot, or a table or snapshot of PyIceberg's; None: it does not say.

    Raises `UsageError` for anything else.
    """
    if read is None:
        return None
    if isinstance(read, int):
        if not isinstance(read, bool):
            return Known(read)
    elif callable(getattr(read, "current_snapshot", None)):
        current = read.current_snapshot()
        return Known(None if current is None else current.snapshot_id)
    elif isinstance(getattr(read, "snapshot_id", None), int):
        return Known(read.snapshot_id)
    raise UsageError(
        f"read= takes the id of a snapshot, or a table or a snapshot of PyIceberg's, and this is {type(read).__name__}"
    )


def snapshots_in(table: Any) -> set[int]:
    """The snapshots of a table of PyIceberg's, as it is loaded."""
    return {snapshot.snapshot_id for snapshot in table.metadata.snapshots}


def span_of(rows: Any, columns: list[str]) -> Any:
    """A filter of PyIceberg's for all rows with the same keys: from the least value to the greatest of each column.

    True, the whole table, where a column has values that cannot be ordered, or none.
    """
    expressions, compute = import_module("pyiceberg.expressions"), import_module("pyarrow.compute")
    parts: list[Any] = []
    for name in columns:
        try:
            ends = compute.min_max(rows[name]).as_py()
        except NotImplementedError:  # pyarrow's for a type without an order
            continue
        if ends["min"] is None or rows[name].null_count:
            continue
        least, greatest = (_literal(ends[end]) for end in ("min", "max"))
        parts += [expressions.GreaterThanOrEqual(name, least), expressions.LessThanOrEqual(name, greatest)]
    return expressions.And(*parts) if parts else True


def _literal(value: Any) -> Any:
    # As text a moment keeps its zone in the filter's JSON, which the tower reads.
    return value.isoformat() if hasattr(value, "isoformat") else value


def _after(table: Any, version: int | None) -> Iterator[Any]:
    """The snapshots of ``main`` after one of them, oldest first; none where it is not among them."""
    by_id = {each.snapshot_id: each for each in table.metadata.snapshots}
    found: list[Any] = []
    at = table.metadata.current_snapshot_id
    while at is not None and at != version:
        if at not in by_id:
            return
        found.append(by_id[at])
        at = by_id[at].parent_snapshot_id
    if at == version:
        yield from reversed(found)


def _summary(snapshot: Any) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties
