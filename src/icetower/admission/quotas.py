"""How much an agent may send: files and bytes a commit, and commits a minute (contract: `quotas`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from icetower.admission.shadow import ShadowRecorder
from icetower.ambient import Ambient
from icetower.contracts.limits import Quota
from icetower.contracts.model import Retries
from icetower.counting import counted
from icetower.errors import CommitConflict, ContractViolation
from icetower.protocol.names import Identifier
from icetower.recent import Recent
from icetower.registry.principals import Principal

MINUTE_S = 60.0
PLACES_MAX = 1_000_000
"""Commits of the last minutes that are remembered, of all principals; a principal that is forgotten begins anew."""


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


class _Places:
    """The places of one principal at one table, the earliest first, and how often the work of each was sent."""

    __slots__ = ("_sends", "taken")

    def __init__(self) -> None:
        self.taken: deque[tuple[float, Hashable]] = deque()
        self._sends: dict[Hashable, tuple[float, int]] = {}

    def take(self, at_s: float, work: Hashable) -> None:
        self.taken.append((at_s, work))
        if work is not None:
            self._sends[work] = at_s, 1

    def end_first(self) -> None:
        at_s, work = self.taken.popleft()
        if self._sends.get(work, (None, 0))[0] == at_s:  # not where it has a later place by now
            del self._sends[work]

    def again(self, work: Hashable, sends_max: int) -> float | None:
        """The place of work that is sent again, monotonic; None: it has none, or was sent too often for it."""
        at_s, sends = self._sends.get(work, (0.0, 0))
        if not 0 < sends < sends_max:
            return None
        self._sends[work] = at_s, sends + 1
        return at_s


class Rates:
    """Commits a minute, by principal and table: no minute begins more than its contract allows, and a commit that comes
    too early takes the next place that is free.

    A commit that is sent again keeps its place: clients send one again when its base was stale, by themselves, and a
    quota that counted these tries would keep out commits that it allows. Within its minute it may be sent once more
    than `retries.attempts` of its contract; every further time counts as another commit. So a quota of `n` bounds the
    attempts of a minute, too, by `n * (attempts + 1)`, however a client names its work.
    """

    def __init__(self) -> None:
        self._places: Recent[_Places] = Recent(PLACES_MAX)

    def __len__(self) -> int:
        """Places that are kept."""
        return sum(len(places.taken) for places in self._places.values())

    def wait_s(
        self, principal: Principal, table: Identifier, now_s: float, most_s: float, work: Hashable = None
    ) -> float:
        """How long a commit has to wait for its place, in seconds; more than `most_s`: it has taken none.

        Args:
            now_s: of a clock that never goes back.
            work: what identifies the commit from one try of its client to the next; None where nothing does.
        """
        quota = _quota(principal, table).commits_per_minute
        if quota is None:
            return 0.0
        name = f"{principal.name}\n{table}"
        places = self._places.get(name, _Places())
        while places.taken and (len(places.taken) > quota or places.taken[0][0] + MINUTE_S <= now_s):
            places.end_first()
        # A digest is enough: where two are equal, a commit counts as a retry of the other, and those are bounded.
        work = None if work is None else hash(work)
        sends_max = (principal.contract.retries or Retries()).attempts + 1
        at_s = None if work is None else places.again(work, sends_max)
        if at_s is not None:
            return max(0.0, at_s - now_s)
        wait_s = places.taken[0][0] + MINUTE_S - now_s if len(places.taken) == quota else 0.0
        if wait_s <= most_s:
            places.take(now_s + wait_s, work)
        self._places.put(name, places, len(places.taken) or 1)
        return wait_s


class RateLimits:
    """Holds a commit until the contract's quota of commits lets one more go on.

    Args:
        deadline_s: as long as this after its request came, a commit is held.
    """

    def __init__(self, ambient: Ambient, shadow: ShadowRecorder, *, deadline_s: float) -> None:
        self._ambient = ambient
        self._shadow = shadow
        self._deadline_s = deadline_s
        self._rates = Rates()

    def wait_now_s(self, principal: Principal, table: Identifier) -> float:
        """How long a commit that came now would be held, in seconds. It takes no place."""
        return self._rates.wait_s(principal, table, self._ambient.monotonic_s(), -1.0)

    async def wait(self, principal: Principal, table: Identifier, *, since_s: float, work: Hashable) -> None:
        """Wait for a place.

        Args:
            since_s: when the request came, monotonic.
            work: what identifies the commit from one try of its client to the next.

        Raises:
            CommitConflict: no place is free before the deadline. Clients back off and come again (trap A4).
        """
        now_s = self._ambient.monotonic_s()
        left_s = max(0.0, since_s + self._deadline_s - now_s)
        wait_s = self._rates.wait_s(principal, table, now_s, left_s, work)
        if wait_s > left_s:
            too_many = CommitConflict(
                f"{principal.name} has used up the commits a minute that contract {principal.contract.name} allows "
                f"for {table} (commits_per_minute); come back in {wait_s:.0f} s, or write more at once",
                rule="contract.quota",
                next_step="wait_until",
                wait_until_ms=self._ambient.now_ms() + int(wait_s * 1000) + 1,
            )
            if not principal.contract.shadow:
                raise too_many
            self._shadow.record(principal, table, "commit", [too_many])
        elif wait_s > 0 and not principal.contract.shadow:
            await self._ambient.sleep(wait_s)
