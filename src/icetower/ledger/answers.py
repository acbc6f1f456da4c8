"""What was answered under a key, and to which request."""

from __future__ import annotations

from dataclasses import dataclass

from icetower.errors import KeyMisused

BEGUN = 102
"""The status of what was begun, and not answered yet; its body is a mark of the change. A final answer replaces it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A final answer of a mutating endpoint, or that it was begun (`BEGUN`).

    Attributes:
        endpoint: method and path.
        fingerprint: of the request's body.
        brief_s: how long it is kept at most; None: for the lifetime of a key.
    """

    endpoint: str
    status: int
    body: bytes
    fingerprint: str | None = None
    brief_s: int | None = None

    def to(self, endpoint: str, fingerprint: str | None) -> Answer:
        """Itself, as the answer to a request. Raises `KeyMisused` where it answered another one."""
        if (self.endpoint, self.fingerprint) != (endpoint, fingerprint):
            raise KeyMisused(
                f"the idempotency key was used for another request, {self.endpoint}. If a table was renamed since, it "
                "may be this very request: look for its rows before writing them again. Else take a new key",
                rule="key.endpoint",
                next_step="fix_request",  # a table may have been renamed since: under a new key it would land twice
            )
        return self
