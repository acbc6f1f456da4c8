"""The intents that a writer believes to hold, as it says them in a URL or in a snapshot's summary."""

from __future__ import annotations

from icetower.errors import BadRequest
from icetower.texts import without_middle

LEASES_MAX = 64
LEASE_CHARACTERS_MAX = 100


def leases_of(text: str) -> tuple[tuple[str, str], ...]:
    """The intents that a writer believes to hold, of ``intent:fence``, separated by spaces. Raises `BadRequest`."""
    found: list[tuple[str, str]] = []
    for each in text.split():
        id_, colon, fence = each.partition(":")
        if not colon or not id_ or not fence.isdecimal() or len(each) > LEASE_CHARACTERS_MAX:
            raise BadRequest(
                f"{without_middle(each, 100)!r} is no lease; write intent:fence, as the grant has them",
                rule="request.leases",
            )
        found.append((id_, fence))
    if len(found) > LEASES_MAX:
        raise BadRequest(f"{len(found)} leases are named, and {LEASES_MAX} may be", rule="request.leases")
    return tuple(found)
