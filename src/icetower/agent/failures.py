"""Turns a server's error answer back into the error that the server raised."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from icetower.errors import CommitConflict, IcetowerError, PublishConflict, SnapshotConflict
from icetower.texts import escaped

NO_EXPLANATION = "without an explanation"


def _tree(root: type[IcetowerError]) -> list[type[IcetowerError]]:
    return [root, *(leaf for branch in root.__subclasses__() for leaf in _tree(branch))]


def error_of(status: int, body: bytes) -> IcetowerError:
    """The error of an answer with this status and body."""
    try:
        answered = json.loads(body)["error"]
        message, kind = escaped(str(answered["message"])), str(answered["type"])
    except (ValueError, KeyError, TypeError):
        answered, message, kind = {}, f"HTTP status {status} {NO_EXPLANATION}", ""
    matching = [leaf for leaf in _tree(IcetowerError) if leaf.status == status]
    exact = [leaf for leaf in matching if leaf.kind == kind]
    kind_of_error = (exact or matching or [IcetowerError])[0]
    chosen: Callable[..., IcetowerError] = kind_of_error
    conflicts = answered.get("conflicts") if issubclass(kind_of_error, CommitConflict) else None
    if conflicts is not None:
        chosen = partial(PublishConflict, conflicts=[_conflict(each) for each in conflicts])
    error = chosen(
        message,
        rule=answered.get("rule"),
        partitions=answered.get("partitions") or (),
        snapshot=answered.get("snapshot"),
        files=answered.get("files") or (),
        next_step=answered.get("next_step"),
        owner=answered.get("owner"),
        wait_until_ms=answered.get("wait_until_ms"),
        escalated_to=answered.get("escalated_to"),
    )
    error.request_id = answered.get("request_id")
    return error


def _conflict(said: dict[str, Any]) -> SnapshotConflict:
    files, partitions = (tuple(map(str, said.get(name) or ())) for name in ("files", "partitions"))
    message = escaped(str(said.get("message", "")))
    return SnapshotConflict(int(said["source"]), str(said["rule"]), message, files, partitions, said.get("snapshot"))
