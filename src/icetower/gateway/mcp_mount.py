"""`/mcp`: the tools of `icetower.mcp` over streamable HTTP, in the tower itself.

A request is authenticated, and its body bounded, as any other. No session is kept: each request stands for itself, so
any tower answers it. The tools are clients of this tower's own routes, with the caller's credential; what they do
besides (reading and writing files) happens in processes of their own.

The package `mcp` takes seconds to import. It is imported, in a thread, when the first request comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from icetower.errors import BadRequest, IcetowerError, NotSupported, without_frames
from icetower.gateway.body_bounds import BodyBound
from icetower.gateway.connection_state import connection_state_of
from icetower.gateway.http import Front, authenticate, error_response, read_body
from icetower.gateway.paths import NamedRoute
from icetower.gateway.unknown_callers import NO_CREDENTIAL, bearer_of

log = logging.getLogger("icetower")

BODY_MAX_BYTES = 1024 * 1024
"""A thousand rows of a thousand characters."""
AT_ONCE = 8
"""Requests of one principal that are under way here. Their own requests to the routes take other places."""
READ_ONLY = "icetower-read-only"
CALLER = "icetower.mcp.caller"
"""In the scope of a request: on whose behalf it is made."""

_BODY = BodyBound(BODY_MAX_BYTES)
_MEMBERS = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})


class McpMount:
    """The route, and the server behind it once it is used.

    Args:
        storage: for the tools' own reads and writes of files: the tower's.
    """

    def __init__(self, front: Front, storage: Mapping[str, str]) -> None:
        self._front = front
        self._storage = dict(storage)
        self._lock = asyncio.Lock()
        self._serves: ASGIApp | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    def routes(self) -> list[Route]:
        return [NamedRoute("/mcp", self, methods=["POST"])]

    async def close(self) -> None:
        """End what is under way."""
        self._stop.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        front = self._front
        try:
            principal = await authenticate(front, request, may_be_revoked=False)
            connection_state = connection_state_of(scope)
            connection_state.prove(principal.name)
            # Places of its own: a tool's requests to this tower need the principal's places while this one waits.
            name = f"{principal.name}\n/mcp"
            room = front.intake.bodies.room(name, connection_state)
            async with front.intake.places.place(name, connection_state, AT_ONCE), room:
                read = partial(read_body, room=room)
                body = await _BODY.read(read, request, principal, front.settings.body_max_bytes)
                _require_message(body)
                serves = await self._server()
                scope[CALLER] = self._caller(request)
                await serves(scope, _replayed(body, receive), send)
        except IcetowerError as error:
            front.attempts.failed(request.method, scope["path"], error)
            response = error_response(error, front.ambient)
            without_frames(error)
            await response(scope, receive, send)
        except ClientDisconnect:
            return

    def _caller(self, request: Request) -> Any:
        from icetower.mcp.caller import Caller

        header = request.headers.get("authorization")
        token = None if header is None or header == NO_CREDENTIAL else bearer_of(header)
        host, port = request.scope["server"]
        asked = request.headers.get(READ_ONLY, request.query_params.get("read_only", "false"))
        read_only = asked.lower() not in ("false", "0", "")
        return Caller(
            f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", token, read_only, self._storage
        )

    async def _server(self) -> ASGIApp:
        """The server, made when it is first used. Raises `NotSupported` where its package is not installed."""
        async with self._lock:
            serves = self._serves
            if serves is None:
                if find_spec("mcp") is None:
                    raise NotSupported("this tower has no MCP: install icetower[server,mcp]", rule="supported")
                manager, workers = await asyncio.to_thread(_made, self._front)
                ready = asyncio.Event()
                self._task = asyncio.create_task(self._run(manager, workers, ready))
                await ready.wait()
                serves = self._serves = manager.handle_request
        return serves

    async def _run(self, manager: Any, workers: Any, ready: asyncio.Event) -> None:
        try:
            async with manager.run():
                ready.set()
                await self._stop.wait()
        finally:
            ready.set()
            workers.close()


def _made(front: Front) -> tuple[Any, Any]:
    """The manager of requests, and the threads behind it."""
    from mcp.server.transport_security import TransportSecuritySettings

    from icetower.mcp.server import build
    from icetower.mcp.workers import Workers

    def caller_of(request: Any) -> Any:
        return request.scope[CALLER]

    logging.getLogger("mcp").setLevel(logging.ERROR)
    workers = Workers()
    server = build(caller_of, front.ambient, workers)
    # Origins are judged for all routes alike (`browsers`), and a name that resolves here is no credential.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    server.streamable_http_app(
        json_response=True,
        stateless_http=True,
        max_request_body_size=BODY_MAX_BYTES,
        transport_security=unchecked,
    )
    return server.session_manager, workers


def _require_message(body: bytes) -> None:
    """Raises `BadRequest` for what is no JSON-RPC message by its members alone.

    The package compares what it gets with every kind of message, member by member, and writes down what is wrong with
    each: a second of the event loop for a body of a megabyte that is none (trap A8).
    """
    try:
        message = orjson.loads(body)
    except ValueError:
        return  # which is refused at once
    if not isinstance(message, dict) or not _MEMBERS.issuperset(message):
        raise BadRequest(
            f"the body is no JSON-RPC message: send one object with nothing but {', '.join(sorted(_MEMBERS))}",
            rule="shape",
        )


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once more, as ASGI has it."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
