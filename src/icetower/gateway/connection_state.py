"""`ConnectionState`: what a connection and the application tell each other; it travels in the scope of each request.

The application says that a credential was right, and that a request is held before anything is looked up. The
connection goes by it where there are too many connections, and says when it has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

_CONNECTION_STATE = "icetower.connection"


def _nothing() -> None:
    """Where there is no connection."""


class ConnectionState:
    """One for each connection.

    Args:
        changed: is called when `known_as` or `held` have changed.
        abort: ends the connection.

    Attributes:
        known_as: whose credential was right on this connection; None: none was.
        sent_bytes: of long answers, handed to the connection so far.
    """

    __slots__ = ("_changed", "_turn", "abort", "known_as", "lost", "sent_bytes")

    def __init__(self, changed: Callable[[], None] = _nothing, abort: Callable[[], None] = _nothing) -> None:
        self._changed = changed
        self._turn: asyncio.Future[bool] | None = None
        self.abort = abort
        self.known_as: str | None = None
        self.lost = False
        self.sent_bytes = 0

    @property
    def held(self) -> bool:
        """Whether its request waits for its turn."""
        return self._turn is not None

    @property
    def known(self) -> bool:
        """Whether a credential was right on this connection."""
        return self.known_as is not None

    def prove(self, principal: str) -> None:
        """A credential was right, of this principal."""
        if self.known_as != principal:
            self.known_as = principal
            self._changed()

    async def wait(self, turn: asyncio.Future[bool]) -> bool:
        """Wait for a turn. False: the connection has gone."""
        if self.lost:
            return False
        self._turn = turn
        self._changed()
        try:
            return await turn
        finally:
            self._turn = None
            self._changed()

    def lose(self) -> None:
        """The connection has gone."""
        self.lost = True
        self.abort = self._changed = _nothing  # it must not be kept by this
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(False)


def attach(scope: MutableMapping[str, Any], connection_state: ConnectionState) -> None:
    """Let a request carry the state of its connection."""
    scope[_CONNECTION_STATE] = connection_state


def connection_state_of(scope: MutableMapping[str, Any]) -> ConnectionState:
    """The state of the connection that a request came by; a new one where it came by none."""
    found = scope.get(_CONNECTION_STATE)
    return found if isinstance(found, ConnectionState) else ConnectionState()
