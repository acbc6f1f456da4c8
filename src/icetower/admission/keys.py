"""Under which names a commit may be sent again: its idempotency key, and the number that its application gave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icetower.contracts.model import KeyWay
from icetower.errors import BadRequest, ContractViolation, KeyMisused
from icetower.protocol.marks import APPLICATION, KEY, SEQUENCE
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal
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


_WAYS = {
    KeyWay.HEADER: "send the header Idempotency-Key (a UUID of version 7)",
    KeyWay.SUMMARY: f"set the snapshot property {KEY}",
    KeyWay.SEQUENCE: f"number the commits ({APPLICATION}, {SEQUENCE})",
}


def ways_of(key: str | None, application: tuple[str, int] | None, *, in_summary: bool) -> frozenset[KeyWay]:
    """In which of the ways that contracts name a commit's key came. One in the summary is the request's, too."""
    found = {
        KeyWay.HEADER: key is not None,
        KeyWay.SUMMARY: key is not None and in_summary,
        KeyWay.SEQUENCE: application is not None,
    }
    return frozenset(way for way, came in found.items() if came)


def check_key(principal: Principal, table: Identifier, ways: frozenset[KeyWay]) -> None:
    """Raises `ContractViolation` where the contract requires a key, and none came in one of the ways that it names."""
    contract = principal.contract
    if not contract.requires_key(table):
        return
    asked = frozenset(KeyWay) if contract.idempotency is None else contract.idempotency.how
    if not ways & asked:
        how = [words for way, words in _WAYS.items() if way in asked]
        takes_keys = not asked.isdisjoint((KeyWay.HEADER, KeyWay.SUMMARY))
        raise ContractViolation(
            f"contract {contract.name} requires an idempotency key for every commit to {table}: {', or '.join(how)}",
            rule="contract.key",
            next_step="new_key" if takes_keys else "fix_request",
        )
