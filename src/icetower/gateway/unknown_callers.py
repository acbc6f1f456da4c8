"""Requests without a credential that is known to be good: so many a second, addresses in turn (trap A8).

What such a request costs, principals wait for: they share one event loop and one interpreter with it. So each waits for
its turn before anything is looked up or routed. A bearer that was right before needs no turn, but for what is answered
before anybody asks who it is: health checks, token requests, and requests that no route takes. The turns go round by
address and by what is asked for, so that no flood from one address delays the others, and no flood of one kind delays
the health checks, token requests and first requests of principals that come from the same address.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

from starlette.types import Scope

from icetower.gateway.connection_state import connection_state_of
from icetower.gateway.page_cookies import session_of
from icetower.gateway.token_rates import network_of
from icetower.registry.registry import hash_of

AT_ONCE = 1_000
"""So many requests go on at once, where none have come for a while."""
PER_S = 500.0
BEARERS_MAX = 50_000
"""Bearers that are remembered; one that is forgotten waits for its turn again."""

NO_CREDENTIAL = "Bearer None"
"""What PyIceberg 0.12 sends where it was given no token."""

_LOOK_S = 0.002
_ROUTES = {"/healthz": "health", "/readyz": "health", "/v1/oauth/tokens": "token"}


class UnknownCallers:
    """One for a tower.

    Args:
        open_to_all: requests without a credential are an administrator's, and need no turn.
    """

    def __init__(self, *, open_to_all: bool = False, at_once: int = AT_ONCE, per_s: float = PER_S) -> None:
        self._open = open_to_all
        self._at_once = at_once
        self._per_s = per_s
        self._left = float(at_once)
        self._since_s = 0.0
        self._held: OrderedDict[tuple[str, str], deque[asyncio.Future[bool]]] = OrderedDict()
        self._look: asyncio.TimerHandle | None = None
        self._right: OrderedDict[str, None] = OrderedDict()  # hashes of bearers

    def knows(self, scope: Scope) -> bool:
        """Whether a request needs no turn before it is routed: its bearer was right before."""
        token = _bearer(scope)
        return self._open if token is None else hash_of(token) in self._right and scope["path"] not in _ROUTES

    async def turn(self, scope: Scope) -> bool:
        """Wait until a request may go on. False: its connection has gone meanwhile."""
        asked_for, token = _ROUTES.get(scope["path"], ""), _bearer(scope)
        if token is None and self._open:
            return True
        if token is not None:
            asked_for = f"{asked_for} {'known' if hash_of(token) in self._right else 'bearer'}"
        client = scope.get("client")
        name = (network_of(client[0]) if client else "", asked_for)
        loop = asyncio.get_running_loop()
        self._refill(loop.time())
        if not self._held and self._left >= 1:
            self._left -= 1
            return True
        turn: asyncio.Future[bool] = loop.create_future()
        self._held.setdefault(name, deque()).append(turn)
        if self._look is None:
            self._look = loop.call_later(_LOOK_S, self._go_on, loop)
        return await connection_state_of(scope).wait(turn)

    def right(self, bearer: str) -> None:
        """A bearer was right: the requests that bring it need no turn."""
        name = hash_of(bearer)
        self._right[name] = None
        self._right.move_to_end(name)
        if len(self._right) > BEARERS_MAX:
            self._right.popitem(last=False)

    def wrong(self, bearer: str) -> None:
        """A bearer was wrong, or is good no more."""
        self._right.pop(hash_of(bearer), None)

    def _refill(self, now_s: float) -> None:
        self._left = min(float(self._at_once), self._left + (now_s - self._since_s) * self._per_s)
        self._since_s = now_s

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let those go on whose turn it is: the one that waits longest of each name, name after name."""
        self._refill(loop.time())
        while self._held and self._left >= 1:
            name, held = self._held.popitem(last=False)
            turn = held.popleft()
            while turn.done() and held:  # its connection has gone
                turn = held.popleft()
            if not turn.done():
                turn.set_result(True)
                self._left -= 1
            if held:
                self._held[name] = held
        self._look = loop.call_later(_LOOK_S, self._go_on, loop) if self._held else None


def bearer_of(header: str) -> str | None:
    """The token of an Authorization header; None where it has another form."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def _bearer(scope: Scope) -> str | None:
    """The token that a request brings; an empty one where its Authorization header has another form.

    Somebody who has signed in at the page brings it in a cookie, to the page alone.
    """
    header = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"), None)
    if header is None or header == NO_CREDENTIAL:
        return session_of(scope)
    return bearer_of(header) or ""
