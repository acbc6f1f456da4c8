"""A server's error answer, turned back into the error that it was raised as."""

from __future__ import annotations

import json

from icetower.errors import IcetowerError

NO_EXPLANATION = "without an explanation"


def _tree(root: type[IcetowerError]) -> list[type[IcetowerError]]:
    return [root, *(leaf for branch in root.__subclasses__() for leaf in _tree(branch))]


def error_of(status: int, body: bytes) -> IcetowerError:
    """The error of an answer with this status and body."""
    try:
        said = json.loads(body)["error"]
        message, kind = str(said["message"]), str(said["type"])
    except (ValueError, KeyError, TypeError):
        said, message, kind = {}, f"HTTP status {status} {NO_EXPLANATION}", ""
    matching = [leaf for leaf in _tree(IcetowerError) if leaf.status == status]
    exact = [leaf for leaf in matching if leaf.kind == kind]
    chosen = (exact or matching or [IcetowerError])[0]
    error = chosen(
        message,
        rule=said.get("rule"),
        partitions=said.get("partitions") or (),
        snapshot=said.get("snapshot"),
        files=said.get("files") or (),
        next_step=said.get("next_step"),
        owner=said.get("owner"),
        wait_until_ms=said.get("wait_until_ms"),
        escalated_to=said.get("escalated_to"),
    )
    error.request_id = said.get("request_id")
    return error
