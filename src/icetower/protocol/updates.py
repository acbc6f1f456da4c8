"""What the updates and requirements of a commit say, as the REST specification has them (JSON)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

JSON = Mapping[str, Any]


def added_snapshots(updates: Sequence[JSON]) -> list[JSON]:
    """The snapshots that a commit adds, in order."""
    return [update["snapshot"] for update in updates if update["action"] == "add-snapshot"]


def target_ref(updates: Sequence[JSON]) -> str | None:
    """The ref that a commit moves to a snapshot of its own, or to any."""
    for update in updates:
        if update["action"] == "set-snapshot-ref":
            return update["ref-name"]
    return None


def creates(requirements: Sequence[JSON]) -> bool:
    """Whether a commit creates its table."""
    return any(requirement["type"] == "assert-create" for requirement in requirements)


def assigned_uuid(updates: Sequence[JSON]) -> str:
    """The uuid that a commit gives to the table that it creates; empty where it gives none."""
    return next((str(update["uuid"]) for update in updates if update["action"] == "assign-uuid"), "")
