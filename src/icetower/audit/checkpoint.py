"""How far an audit has looked, kept between runs. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, cast

from icetower.audit.findings import Report
from icetower.errors import BadRequest

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
