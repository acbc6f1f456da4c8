"""Turns a server's error answer back into the error that the server raised."""

from __future__ import annotations

import json

from icetower.errors import IcetowerError
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
    chosen = (exact or matching or [IcetowerError])[0]
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
