"""How much an agent may send: files and bytes a commit, and commits a minute (contract: `quotas`)."""

from __future__ import annotations

from collections import deque

from icetower.contracts.model import Quota
from icetower.counting import counted
from icetower.errors import ContractViolation
from icetower.protocol.names import Identifier
from icetower.recent import Recent
from icetower.registry.principals import Principal

MINUTE_S = 60.0
PLACES_MAX = 1_000_000
"""Commits of the last minutes that are remembered, of all principals; who is forgotten begins anew."""


def _quota(principal: Principal, table: Identifier) -> Quota:
    return Quota() if principal.administrator else principal.contract.on(table).quota


def check_quota(principal: Principal, table: Identifier, *, files: int, size_bytes: int) -> None:
    """Raises `ContractViolation` for a commit that adds more files, or bytes, than the contract allows."""
    quota = _quota(principal, table)
    for what, given, most, name in (
        (counted(files, "file"), files, quota.files_per_commit, "files_per_commit"),
        (f"files of {size_bytes} bytes", size_bytes, quota.bytes_per_commit, "bytes_per_commit"),
    ):
        if most is not None and given > most:
            raise ContractViolation(
                f"{principal.name} may not add {what} to {table} at once: contract {principal.contract.name} allows "
                f"{most} ({name}); send it in several commits",
                rule="contract.quota",
                next_step="fix_request",
            )


class Rates:
    """Commits a minute, by principal and table: no minute has more than its contract allows, and who comes too early
    takes the next place that is free."""

    def __init__(self) -> None:
        self._places_s: Recent[deque[float]] = Recent(PLACES_MAX)

    def __len__(self) -> int:
        """Places that are kept."""
        return sum(map(len, self._places_s.values()))

    def wait_s(self, principal: Principal, table: Identifier, now_s: float, most_s: float) -> float:
        """How long a commit has to wait for its place, in seconds; more than `most_s`: it has taken none.

        Args:
            now_s: of a clock that never goes back.
        """
        quota = _quota(principal, table).commits_per_minute
        if quota is None:
            return 0.0
        name = f"{principal.name}\n{table}"
        places_s = self._places_s.get(name, deque[float]())
        while places_s and (len(places_s) > quota or places_s[0] + MINUTE_S <= now_s):
            places_s.popleft()
        wait_s = places_s[0] + MINUTE_S - now_s if len(places_s) == quota else 0.0
        if wait_s <= most_s:
            places_s.append(now_s + wait_s)
        self._places_s.put(name, places_s, len(places_s) or 1)
        return wait_s
