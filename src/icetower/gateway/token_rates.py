"""How often somebody may ask for a token: wrong guesses by address and name, tokens by principal. In bounded memory.

A guess counts for the address that it comes from and the name that it is made for, and for the address alone. So nobody
is kept out by guesses that somebody makes elsewhere, and a secret that has been right before is right at once, whatever
else comes from the same address: behind a proxy, all callers share one. The database is not asked about a guess too
many.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager

from icetower.ambient import Ambient
from icetower.errors import NotAuthenticated, TooManyRequests
from icetower.registry.registry import hash_of

GUESSES = (10, 0.2)
"""Wrong ones by address and name: so many at once, and so many more a second."""
GUESSES_OF_ADDRESS = (100, 2.0)
TOKENS = (1_000, 10.0)
"""By principal."""
KEPT_MAX = 10_000
"""Addresses, names and secrets that are remembered, each of them; who is forgotten begins anew."""


class Buckets:
    """Each name has a bucket with so many places, which fill again with time; one that is full is not kept.

    Args:
        places: that a bucket has.
        per_s: how many come back each second.
    """

    def __init__(self, places: int, per_s: float, kept_max: int = KEPT_MAX) -> None:
        self._places = places
        self._per_s = per_s
        self._kept_max = kept_max
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()  # places that are used, as of when

    def __len__(self) -> int:
        return len(self._used)

    def wait_s(self, name: str, now_s: float, count: int = 1) -> float:
        """How long until so many places are free, in seconds; 0: they are."""
        return max(0.0, (self._of(name, now_s) + count - self._places) / self._per_s)

    def take(self, name: str, now_s: float, count: int = 1) -> None:
        """Use so many places."""
        self._keep(name, self._of(name, now_s) + count, now_s)

    def give_back(self, name: str, now_s: float) -> None:
        """A place was used in vain."""
        self._keep(name, self._of(name, now_s) - 1, now_s)

    def _of(self, name: str, now_s: float) -> float:
        used, since_s = self._used.get(name, (0.0, now_s))
        return max(0.0, used - (now_s - since_s) * self._per_s)

    def _keep(self, name: str, used: float, now_s: float) -> None:
        self._used.pop(name, None)
        if used > 0:
            self._used[name] = used, now_s
        if len(self._used) > self._kept_max:
            self._used.popitem(last=False)


class TokenRates:
    """One for the token route of a tower."""

    def __init__(self, ambient: Ambient, *, kept_max: int = KEPT_MAX) -> None:
        self._ambient = ambient
        self._kept_max = kept_max
        self._guesses = Buckets(*GUESSES, kept_max)
        self._addresses = Buckets(*GUESSES_OF_ADDRESS, kept_max)
        self._tokens = Buckets(*TOKENS, kept_max)
        self._right: OrderedDict[str, None] = OrderedDict()  # hashes of secrets

    def __len__(self) -> int:
        """What is remembered."""
        return len(self._guesses) + len(self._addresses) + len(self._tokens) + len(self._right)

    @contextmanager
    def attempt(self, address: str, name: str, secret: str) -> Generator[None]:
        """Around the look whether a secret is right. Raises `TooManyRequests` where too many were wrong.

        A place is taken before the answer is known, so that guesses at the same time count, too; what is right, or was
        not looked at, gives it back.

        Args:
            name: that the secret is said to be of; empty: none is said.
        """
        network, presented = network_of(address), hash_of(secret)
        guess = hash_of(f"{network}\n{name}")  # of one length, however long the name is
        now_s = self._ambient.monotonic_s()
        if presented not in self._right:
            wait_s = max(self._guesses.wait_s(guess, now_s), self._addresses.wait_s(network, now_s))
            if wait_s > 0:
                raise self._too_many(
                    f"too many wrong secrets came from {network or 'here'}; this one was not looked at", wait_s
                )
        self._guesses.take(guess, now_s)
        self._addresses.take(network, now_s)
        try:
            yield
        except NotAuthenticated:
            self._right.pop(presented, None)
            raise
        except BaseException:
            self._give_back(guess, network)
            raise
        self._give_back(guess, network)
        self._right[presented] = None
        self._right.move_to_end(presented)
        if len(self._right) > self._kept_max:
            self._right.popitem(last=False)

    def allow(self, principal: str) -> None:
        """Before a token is made for a principal. Raises `TooManyRequests`."""
        now_s = self._ambient.monotonic_s()
        wait_s = self._tokens.wait_s(principal, now_s)
        if wait_s > 0:
            raise self._too_many(
                f"{principal} has asked for too many tokens; use each until it ends ({TOKENS[1]:.0f} a second)", wait_s
            )
        self._tokens.take(principal, now_s)

    def _give_back(self, guess: str, network: str) -> None:
        now_s = self._ambient.monotonic_s()
        self._guesses.give_back(guess, now_s)
        self._addresses.give_back(network, now_s)

    def _too_many(self, message: str, wait_s: float) -> TooManyRequests:
        return TooManyRequests(
            f"{message}; come back in {max(1, round(wait_s + 0.5))} s",
            rule="oauth.rate",
            next_step="wait_until",
            wait_until_ms=self._ambient.now_ms() + int(wait_s * 1000) + 1,
        )


def network_of(address: str) -> str:
    """An address as it counts: whoever has one of IPv6 has the 2^64 beside it."""
    try:
        parsed = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
