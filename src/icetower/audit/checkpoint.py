"""How far an audit has looked, kept between runs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from icetower.audit.findings import Report
from icetower.errors import BadRequest, UsageError
from icetower.iceberg.metadata import ancestors
from icetower.table.head import HeadState

VERSION = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Up to which snapshot of a branch a table was looked at.

    Attributes:
        snapshots: how many were checked so far, in all runs.
        violations: how many were found so far.
    """

    uuid: str
    branch: str
    snapshot_id: int
    snapshots: int
    violations: int

    def to_text(self) -> str:
        """As its file holds it."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=2) + "\n"

    @staticmethod
    def of_text(text: str, *, name: str) -> Checkpoint:
        """Read what `to_text` wrote. Raises `BadRequest`."""
        try:
            given: object = json.loads(text)
            kept = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
            if kept.pop("version", None) != VERSION:
                raise ValueError(f"it has no version {VERSION}")
            if not all(isinstance(kept.get(name), int) for name in ("snapshot_id", "snapshots", "violations")):
                raise ValueError("a number is none")
            found = Checkpoint(**kept)
        except (ValueError, TypeError) as error:
            raise BadRequest(
                f"{name} is no checkpoint of an audit ({error}); delete it to audit the whole history",
                rule="audit.checkpoint",
            ) from error
        return found

    @staticmethod
    def kept(path: Path) -> Checkpoint | None:
        """What a file holds; None where there is none. Raises `BadRequest`."""
        return Checkpoint.of_text(path.read_text(), name=str(path)) if path.exists() else None

    def keep(self, path: Path) -> None:
        """Write the file whole, or not at all."""
        aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        aside.write_text(self.to_text())
        aside.replace(path)

    def resume(self, head: HeadState, branch: str) -> int | None:
        """The snapshot to go on from; None where the branch does not have it any more.

        Raises:
            UsageError: the checkpoint is of another table or branch.
        """
        if (self.uuid, self.branch) != (str(head.metadata.get("table-uuid") or ""), branch):
            raise UsageError(
                f"the checkpoint is of branch {self.branch} of table {self.uuid}, not of this one: name another file"
            )
        newest = head.ref(branch)
        line = () if newest is None else ancestors(head.metadata, newest)
        there = any(snapshot["snapshot-id"] == self.snapshot_id for snapshot in line)
        return self.snapshot_id if there else None

    @property
    def lost(self) -> str:
        """What is to be said where `resume` has found nothing."""
        return (
            f"snapshot {self.snapshot_id}, at which the last audit ended, is not on {self.branch} any more (rolled "
            "back, or expired): the whole history is audited again"
        )

    @staticmethod
    def after(report: Report, before: Checkpoint | None) -> Checkpoint | None:
        """Where the next audit goes on; None for a table without snapshots."""
        checked = report.checked
        if checked.head is None:
            return None
        resumed = before if before is not None and checked.resumed else None
        return Checkpoint(
            uuid=checked.uuid,
            branch=checked.branch,
            snapshot_id=checked.head,
            snapshots=checked.snapshots + (resumed.snapshots if resumed else 0),
            violations=len(report.violations) + (resumed.violations if resumed else 0),
        )
