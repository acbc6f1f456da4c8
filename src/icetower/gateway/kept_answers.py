"""How much of what was answered under a key is kept, so that no principal fills the disk with it.

That a key was used, on which endpoint, for which body and with which status is kept for the lifetime of a key; for a
principal that makes very many such changes, long enough for its retries. Refusals, and staged creations, have changed
nothing: of one principal a number is kept, and what comes beyond it is judged anew. The answer's body is kept where it
is short, as long as its principal and all together have not kept too much lately. Else it stands by reference:
the same request is then answered anew, from what there is by then. A staged creation has changed nothing and always is.
"""

from __future__ import annotations

import hashlib

from icetower.ambient import Ambient
from icetower.gateway.token_rates import Buckets

BODY_MAX_BYTES = 16 * 1024
PRINCIPAL_MAX_BYTES = 8 * 1024 * 1024
"""Bodies of one principal, over the lifetime of a key."""
ALL_MAX_BYTES = 256 * 1024 * 1024

UNCHANGED_MAX = 10_000
"""Answers to requests of one principal that have changed nothing, over the lifetime of a key."""
CHANGES_MAX = 100_000
"""Answers to one principal's changes other than commits of snapshots, over the lifetime of a key."""
BRIEF_S = 600
"""So long an answer beyond `CHANGES_MAX` is kept: clients send a request again within seconds."""

BEGUN_MAX = 10_000
"""Changes of one principal that are kept as begun, over `BRIEF_S`."""

ENDPOINT_CHARACTERS_MAX = 300

REFERENCE = b"\x00"
"""Stands for the body of an answer that is made anew; none begins so."""


class KeptAnswers:
    """One for a tower.

    Args:
        lifetime_s: how long an answer is kept.
    """

    def __init__(self, ambient: Ambient, *, lifetime_s: float) -> None:
        self._ambient = ambient
        self._of_principals = Buckets(PRINCIPAL_MAX_BYTES, PRINCIPAL_MAX_BYTES / lifetime_s)
        self._of_all = Buckets(ALL_MAX_BYTES, ALL_MAX_BYTES / lifetime_s)
        self._unchanged = Buckets(UNCHANGED_MAX, UNCHANGED_MAX / lifetime_s)
        self._changes = Buckets(CHANGES_MAX, CHANGES_MAX / lifetime_s)
        self._begun = Buckets(BEGUN_MAX, BEGUN_MAX / BRIEF_S)

    def kept(self, principal: str, body: bytes) -> bytes:
        """What is kept of an answer's body: itself, or `REFERENCE`."""
        if not body:
            return body
        now_s, size = self._ambient.monotonic_s(), len(body)
        waits = (self._of_principals.wait_s(principal, now_s, size), self._of_all.wait_s("", now_s, size))
        if size > BODY_MAX_BYTES or max(waits) > 0:
            return REFERENCE
        self._of_principals.take(principal, now_s, size)
        self._of_all.take("", now_s, size)
        return body

    def keeps_unchanged(self, principal: str) -> bool:
        """Whether one more answer is kept to a request that has changed nothing."""
        return self._taken(self._unchanged, principal)

    def begins(self, principal: str) -> bool:
        """Whether it is kept that one more change was begun."""
        return self._taken(self._begun, principal)

    def brief_s(self, principal: str) -> int | None:
        """How long the answer to one more change is kept; None: for the lifetime of a key."""
        return None if self._taken(self._changes, principal) else BRIEF_S

    def _taken(self, buckets: Buckets, principal: str) -> bool:
        now_s = self._ambient.monotonic_s()
        if buckets.wait_s(principal, now_s) > 0:
            return False
        buckets.take(principal, now_s)
        return True


def endpoint_of(method: str, path: str) -> str:
    """How an answer names its endpoint: method and path; of a very long path the beginning and a hash."""
    endpoint = f"{method} {path}"
    if len(endpoint) <= ENDPOINT_CHARACTERS_MAX:
        return endpoint
    digest = hashlib.sha256(endpoint.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{endpoint[: ENDPOINT_CHARACTERS_MAX - 80]}… (sha256 {digest})"
