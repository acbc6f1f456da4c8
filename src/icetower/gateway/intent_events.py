"""`GET /icetower/v1/intents/{intent}/events`: what happens to an intent, as server-sent events.

The first event is the intent as it stands; then comes one for each change of its state, and one for each warning. A
stream takes no place among its principal's requests, and while an intent in line is listened to, it lives, as with the
long poll. Streams are bounded in number and in time, and end with the credential, with the intent and with the tower.

The id of an event is the number of warnings that came until then. Whoever connects again with it (`Last-Event-ID`)
hears those that it has missed. The last event of an intent that has ended has the id `ended`: then there is nothing to
connect for, which the answer 204 says to a browser's `EventSource`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from icetower.errors import BadRequest, IcetowerError, TooManyRequests, without_frames
from icetower.gateway.connection_state import connection_state_of
from icetower.gateway.event_streams import CONTENT_TYPE, StreamPlaces, message, sent
from icetower.gateway.http import Front, authenticate, error_response
from icetower.gateway.intents import seen_json
from icetower.gateway.paths import NamedRoute, path_of
from icetower.intents.model import State
from icetower.registry.principals import Principal
from icetower.service.intents import Intents, Seen

TICK_S = 1.0
"""So soon a stream hears that its credential has ended."""
HEARTBEAT_S = 5.0
"""After so long without news a comment is sent: proxies keep the connection, and its client knows that it is there."""
STREAM_MAX_S = 300.0
"""Then a client connects anew."""
STREAMS_MAX, STREAMS_OF_PRINCIPAL_MAX = 500, 50
RETRY_MS = 1_000
ENDED = "ended"

_BEGIN = f"retry: {RETRY_MS}\n\n".encode()
_HEARTBEAT = b": \n\n"
_NUMBER = re.compile(r"[0-9]{1,9}")
_OVER = (401, 403, 404)
"""Statuses of refusals that end a stream; after others it goes on."""


class IntentEvents:
    """The streams of a tower."""

    def __init__(self, front: Front, intents: Intents) -> None:
        self._front = front
        self._intents = intents
        self._places = StreamPlaces(STREAMS_MAX, STREAMS_OF_PRINCIPAL_MAX)

    def routes(self) -> list[Route]:
        return [NamedRoute("/icetower/v1/intents/{intent}/events", self._Endpoint(self), methods=["GET"])]

    class _Endpoint:
        """An object, since Starlette takes a function for a handler that returns its answer."""

        def __init__(self, streams: IntentEvents) -> None:
            self._streams = streams

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await self._streams.answer(Request(scope, receive, send), send)

    async def answer(self, request: Request, send: Send) -> None:
        """Stream until something ends it; what is refused is refused before the first byte."""
        scope, front = request.scope, self._front
        try:
            principal = await self._caller(request)
            last = _seen_by(request)
            seen = await self._found(request, principal)
            if last is None and not seen.intent.live:
                await Response(status_code=204)(scope, request.receive, send)
                return
            if not self._places.take(principal.name):
                raise TooManyRequests(
                    f"{principal.name} has {STREAMS_OF_PRINCIPAL_MAX} streams of intents open, or all principals "
                    f"together have {STREAMS_MAX}; close some, or ask with ?wait_s=",
                    rule="intent.streams",
                    next_step="retry",
                )
        except ClientDisconnect:
            await Response(status_code=400)(scope, request.receive, send)
            return
        except IcetowerError as error:
            front.attempts.failed(request.method, path_of(scope), error)
            response = error_response(error, front.ambient)
            without_frames(error)
            await response(scope, request.receive, send)
            return
        headers = {"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        raw = [(key.lower().encode(), value.encode()) for key, value in headers.items()]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": raw})
            if request.method == "HEAD":
                await sent(send, b"", more=False)
            else:
                await self._go_on(request, send, principal, seen, last or 0)
        finally:
            self._places.leave(principal.name)

    async def _caller(self, request: Request) -> Principal:
        principal = await authenticate(self._front, request, may_be_revoked=False)
        connection_state_of(request.scope).prove(principal.name)
        return principal

    async def _found(self, request: Request, principal: Principal) -> Seen:
        """One's own intent as it stands, read in the principal's turn. Raises `NotFound`."""
        async with self._front.place(principal, request.scope):
            return await self._intents.wait(principal, _id(request), 0)

    async def _go_on(self, request: Request, send: Send, principal: Principal, seen: Seen, heard: int) -> None:
        ambient, connection = self._front.ambient, connection_state_of(request.scope)
        ends_s = ambient.monotonic_s() + STREAM_MAX_S
        known: State | None = None
        news, heard = _news(seen, known, heard)
        news, said_s = _BEGIN + news, ambient.monotonic_s()
        while True:
            if news:
                if not await sent(send, news):
                    connection.abort()
                    return
                said_s = ambient.monotonic_s()
            known = seen.intent.state
            if not seen.intent.live or self._intents.closing or connection.lost or ambient.monotonic_s() >= ends_s:
                break
            try:
                seen = await self._intents.wait(principal, _id(request), TICK_S, seen=heard, known=known)
                principal = await self._caller(request)  # after it has waited: nothing is said to who is revoked
                news, heard = _news(seen, known, heard)
            except IcetowerError as error:
                without_frames(error)
                if error.status in _OVER:
                    break
                news = b""
                await ambient.sleep(TICK_S)  # a database that is away for a moment
            if not news and ambient.monotonic_s() >= said_s + HEARTBEAT_S:
                news = _HEARTBEAT
        await sent(send, b"", more=False)


def _news(seen: Seen, known: State | None, heard: int) -> tuple[bytes, int]:
    """The events that a client lacks, and how many warnings it has then.

    Args:
        known: the state that it knows; None: none.
        heard: how many warnings it has had.
    """
    ended = not seen.intent.live
    warnings: Sequence[str] = seen.warnings[heard:]
    numbered = enumerate(warnings, heard + 1)
    parts = [message(text, event="warning", id_=str(number)) for number, text in numbered]
    heard = max(heard, len(seen.warnings))
    if seen.intent.state is not known:
        text = orjson.dumps(seen_json(seen, warnings=False)).decode()
        if ended:
            parts.append(message(text, event="state", id_=ENDED))
        else:
            parts.insert(0, message(text, event="state", id_=str(heard - len(warnings))))
    return b"".join(parts), heard


def _seen_by(request: Request) -> int | None:
    """How many warnings a client has had, by its last event, or `?seen=`; None: it has had the last event of all.

    Raises `BadRequest`.
    """
    text = request.headers.get("last-event-id") or request.query_params.get("seen") or "0"
    if text == ENDED:
        return None
    if not _NUMBER.fullmatch(text):
        raise BadRequest("Last-Event-ID, or query parameter seen, must be a number of warnings, or 'ended'")
    return int(text)


def _id(request: Request) -> str:
    return str(request.path_params["intent"])
