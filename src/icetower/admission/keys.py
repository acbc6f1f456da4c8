"""Under which names a commit may be sent again: its idempotency key, and the number that its application gave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icetower.errors import BadRequest, KeyMisused
from icetower.protocol.marks import APPLICATION, KEY, SEQUENCE
from icetower.table.keys import application_sequence

KEY_CHARACTERS_MAX = 255

Summary = Mapping[str, Any]


def key_of(summaries: Sequence[Summary], requested: str | None) -> str | None:
    """The key of a commit: that of its snapshots' summaries, else the one that came with the request.

    Raises:
        KeyMisused: the snapshots carry different keys.
        BadRequest: a key that is empty, unprintable or too long.
    """
    keys = {str(summary[KEY]) for summary in summaries if KEY in summary}
    if len(keys) > 1:
        raise KeyMisused(f"the snapshots of one commit carry different values of {KEY}; give them one", rule="key")
    key = keys.pop() if keys else requested
    if key is not None and not (0 < len(key) <= KEY_CHARACTERS_MAX and key.isprintable()):
        raise BadRequest(
            f"the idempotency key is empty, has unprintable characters or more than {KEY_CHARACTERS_MAX}; "
            "a UUID does well",
            rule="key",
            next_step="new_key",
        )
    return key


def number_of(summaries: Sequence[Summary], requested: tuple[str, int] | None) -> tuple[str, int] | None:
    """(application, sequence) of a commit: of its snapshots' summaries, else what came with the request.

    Raises:
        KeyMisused: the snapshots carry different ones.
        BadRequest: one without the other, or one that makes no sense.
    """
    marked = [summary for summary in summaries if APPLICATION in summary or SEQUENCE in summary]
    numbers = {application_sequence(summary.get(APPLICATION), summary.get(SEQUENCE)) for summary in marked}
    if len(numbers) > 1:
        raise KeyMisused(
            f"the snapshots of one commit carry different values of {APPLICATION} and {SEQUENCE}; give them one",
            rule="key.sequence",
        )
    return numbers.pop() if numbers else requested
