"""Live parts of the page: server-sent events, bounded in number and in time, and ended with the session.

A stream sends a part of the page whenever what it shows has changed. All streams of one part share what is read for it.
Each tick asks for the session again, so that a revocation ends a stream within a second. When the tower stops, streams
end first: they would hold up its drain.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from icetower.errors import IcetowerError, NotAuthenticated, Unavailable, without_frames
from icetower.gateway.connection_state import connection_state_of
from icetower.gateway.event_streams import CONTENT_TYPE, StreamPlaces, message, sent
from icetower.gateway.page_http import SECURITY, Pages, Visit
from icetower.gateway.page_sessions import Visitor
from icetower.gateway.paths import NamedRoute

TICK_S = 1.0
STREAM_MAX_S = 600.0
"""Then a browser connects anew."""
STREAMS_MAX = 200
STREAMS_OF_PRINCIPAL_MAX = 20
QUIET_MAX_S = 15.0
"""After so long without news a line is sent, so that proxies keep the connection, and ages stay right."""

Fragment = Callable[[Visit], Awaitable[tuple[Hashable, Callable[[], Awaitable[str]]]]]
"""What a part shows, to be compared, and how it is made into HTML."""


class Streams:
    """The streams of a tower."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._places = StreamPlaces(STREAMS_MAX, STREAMS_OF_PRINCIPAL_MAX)
        self._stopping = False

    def __len__(self) -> int:
        return len(self._places)

    def route(self, path: str, fragment: Fragment) -> NamedRoute:
        return NamedRoute(path, _Stream(self, self._pages, fragment), methods=["GET"])

    def stop(self) -> None:
        """End all streams within a tick, and begin no more."""
        self._stopping = True

    @property
    def stopping(self) -> bool:
        return self._stopping

    def enter(self, name: str) -> None:
        """Raises `Unavailable` where there are too many."""
        if self._stopping or not self._places.take(name):
            raise Unavailable("too many live pages are open; this one is shown as it was when it was loaded")

    def leave(self, name: str) -> None:
        self._places.leave(name)


@dataclass(frozen=True, slots=True)
class _Stream:
    streams: Streams
    pages: Pages
    fragment: Fragment

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            visitor = await self.pages.sessions.visitor(request)
            self.streams.enter(visitor.principal.name)
        except IcetowerError as error:
            await self._refuse(error, scope, receive, send)
            return
        try:
            try:
                seen, first = await self._first(request, visitor)
            except IcetowerError as error:
                await self._refuse(error, scope, receive, send)
                return
            except ClientDisconnect:  # while it waited for its turn
                return
            headers = {**SECURITY, "Cache-Control": "no-store", "Content-Type": CONTENT_TYPE}
            if request.method == "HEAD":
                await Response(headers=headers)(scope, receive, send)
                return
            raw = [(key.lower().encode(), value.encode()) for key, value in headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": raw})
            await self._go_on(request, send, seen, first)
        finally:
            self.streams.leave(visitor.principal.name)

    async def _first(self, request: Request, visitor: Visitor) -> tuple[Hashable, bytes]:
        """What the part shows now, read in the principal's turn. What it may not see is refused here."""
        async with self.pages.front.place(visitor.principal, request.scope):
            seen, html = await self.fragment(Visit(request, visitor))
            return seen, message(await html())

    async def _refuse(self, error: IcetowerError, scope: Scope, receive: Receive, send: Send) -> None:
        without_frames(error)
        await Response(status_code=error.status, headers=dict(SECURITY))(scope, receive, send)

    async def _go_on(self, request: Request, send: Send, seen: Hashable, first: bytes) -> None:
        ambient, state = self.pages.front.ambient, connection_state_of(request.scope)
        ends_s, said_s = ambient.monotonic_s() + STREAM_MAX_S, ambient.monotonic_s()
        if not await sent(send, first):
            state.abort()
            return
        while not self.streams.stopping and not state.lost and ambient.monotonic_s() < ends_s:
            await ambient.sleep(TICK_S)
            try:
                visitor = await self.pages.sessions.visitor(request)
                now, html = await self.fragment(Visit(request, visitor))
                if now == seen and ambient.monotonic_s() < said_s + QUIET_MAX_S:
                    continue
                news = message(await html())
            except NotAuthenticated:
                break
            except IcetowerError as error:
                without_frames(error)
                continue  # a database that is away for a moment
            seen, said_s = now, ambient.monotonic_s()
            if not await sent(send, news):
                state.abort()
                return
        await sent(send, b"", more=False)
