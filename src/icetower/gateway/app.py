"""The application: routes, and a server that says when it is ready and drains when it has to stop."""

from __future__ import annotations

import asyncio
import gc
import math
import signal
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import FrameType

import uvicorn
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from icetower.ambient import Ambient
from icetower.errors import ConfigurationError, MethodNotAllowed, NotFound
from icetower.gateway import browsers
from icetower.gateway.connections import Bounds, protocol_of, raise_file_limit
from icetower.gateway.http import error_response
from icetower.gateway.paths import path_of, settle_path
from icetower.gateway.settings import LOOPBACK, Settings
from icetower.gateway.tower import Tower, open_tower

DRAIN_S = 30
COLLECT_AFTER = (50_000, 5, 200)
"""Thresholds of the garbage collector. The second is small: what it looks through at once, every commit waits for."""


def build(tower: Tower) -> ASGIApp:
    """The application around a tower; the tower is closed when the application stops."""

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncGenerator[None]:
        await tower.start()
        yield
        await tower.close()

    # No redirects from a path with a slash at its end: they would lead to whatever host the caller names.
    router = Router(tower.routes(), lifespan=lifespan, redirect_slashes=False)
    unknown_callers, origins = tower.front.intake.unknown_callers, tower.settings.server.origins

    # A router and no Starlette application: its layers of middleware cost more than a route, and nothing here needs
    # them, since what a route raises is answered in it.
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = router  # then it raises what it has no route for
        if scope["type"] != "http":
            await router(scope, receive, send)
            return
        known = unknown_callers.knows(scope)
        if not known and not await unknown_callers.turn(scope):
            return
        refusal = browsers.refusal(scope["method"], scope["headers"], origins) or settle_path(scope)
        if refusal is None:
            try:
                await router(scope, receive, send)
                return
            except HTTPException as error:
                response = _no_route(scope, error, tower.front.ambient)
        else:
            response = error_response(refusal, tower.front.ambient)
        if not known or await unknown_callers.turn(scope):
            await response(scope, receive, send)

    return application


def _no_route(scope: Scope, error: HTTPException, ambient: Ambient) -> Response:
    if error.status_code == 404:
        path = path_of(scope)
        twice = path.startswith(("/v1/v1/", "/v1/icetower/"))
        way_out = "leave /v1 out of the URI: clients add it" if twice else "docs/protocol.md lists them"
        return error_response(NotFound(f"there is no route {path}; {way_out}"), ambient)
    refusal = error_response(MethodNotAllowed(f"{scope['method']} is not offered on {path_of(scope)}"), ambient)
    if error.headers and "Allow" in error.headers:
        refusal.headers["Allow"] = error.headers["Allow"]
    return refusal


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[int], None], stopping: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready
        self._stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            self._ready(sockets[0].getsockname()[1])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn's own also notes the signal and raises it again once all is drained: the exit status would not be 0.
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True
        self._stopping()


def serve(settings: Settings, ambient: Ambient, *, open_to_all: bool, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish what waits. `ready` gets the URI once requests are answered.

    Raises `ConfigurationError` where the port is taken, or where an open tower would listen beyond loopback.
    """
    host = settings.server.host
    if open_to_all and host not in LOOPBACK:
        raise ConfigurationError(
            f"--open lets anybody in as an administrator, so it serves loopback only; {host} is not. "
            "Leave --open out, and create principals",
            rule="configuration.open",
        )
    listener = _listen(host, settings.server.port)
    tower = open_tower(settings, ambient, open_to_all=open_to_all)
    limits = settings.server
    bounds = Bounds(
        connections_max=raise_file_limit(limits.connections_max, limits.storage_threads),
        by_address_max=limits.connections_by_address_max,
        head_s=limits.head_timeout_s,
        idle_s=limits.idle_timeout_s,
    )
    config = uvicorn.Config(
        build(tower),
        http=protocol_of(bounds),
        access_log=False,
        log_level="error",  # its warnings are about what callers send, who could fill a disk with them
        log_config=None,  # its records go where all others go, in the same form
        ws="none",
        lifespan="on",
        server_header=False,
        proxy_headers=False,  # nothing here depends on who is at the other end of the connection
        timeout_graceful_shutdown=DRAIN_S,
        timeout_keep_alive=math.ceil(limits.idle_timeout_s),
        backlog=2048,
    )
    shown = f"[{host}]" if ":" in host else host
    server = _Server(config, lambda port: ready(f"http://{shown}:{port}"), tower.let_go)
    # What was loaded stays, and hardly anything here is in cycles: with Python's own thresholds, looking for them again
    # and again takes a tenth of the processor.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    # uvloop and httptools where they are installed (uvicorn chooses): a third less of the processor for each request.
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[listener]))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit it; without it small answers wait 40 ms for the client's delayed ACK (trap A7).
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port (0: any free one)",
            rule="configuration.port",
        ) from error
    return listener
