"""`GET /metrics`, for a monitoring system: with a token of its own, or an administrator's; nobody else is let in."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from prometheus_client.core import Metric
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from icetower.ambient import Ambient
from icetower.errors import ConfigurationError, IcetowerError
from icetower.gateway.exposition import CONTENT_TYPE, Figures, Local, expose, read_figures
from icetower.gateway.http import Call, Front, route
from icetower.gateway.settings import Server
from icetower.gateway.unknown_callers import bearer_of
from icetower.ledger.measures import Measures
from icetower.threads import Threads

PATH = "/metrics"
KEPT_S = 5.0
"""So long one answer is given to all who ask, in seconds."""

TOKEN_CHARACTERS_MIN = 16


def hash_of_token(server: Server, environment: Mapping[str, str]) -> bytes | None:
    """The SHA-256 of the token that opens `/metrics`; None: only an administrator's does.

    Raises `ConfigurationError`, which shows no secret.
    """
    if server.metrics_token_sha256 is not None:
        return bytes.fromhex(server.metrics_token_sha256)
    if server.metrics_token_env is None:
        return None
    token = environment.get(server.metrics_token_env, "")
    if len(token) < TOKEN_CHARACTERS_MIN:
        raise ConfigurationError(
            f"[server] metrics_token_env: the environment variable {server.metrics_token_env} must hold a token of at "
            f"least {TOKEN_CHARACTERS_MIN} characters",
            rule="configuration.metrics",
        )
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class Scrape:
    """What is answered at `/metrics`, made at most once in `KEPT_S`, away from the event loop.

    Args:
        local: what this process knows of itself, but for the disk.
        data: the directory whose disk is asked.
        extra: more families, made anew for each answer.
    """

    def __init__(
        self,
        measures: Measures,
        ambient: Ambient,
        local: Callable[[], Local],
        data: Path,
        extra: Callable[[], Awaitable[Sequence[Metric]]] | None = None,
    ) -> None:
        self._measures = measures
        self._ambient = ambient
        self._local = local
        self._data = data
        self._extra = extra
        self._threads = Threads(1, "metrics")
        self._making: asyncio.Task[bytes] | None = None
        self._made_s = 0.0

    async def text(self) -> bytes:
        """The figures as they were `KEPT_S` ago at the most."""
        making = self._making
        if making is None or (making.done() and self._ambient.monotonic_s() >= self._made_s + KEPT_S):
            making = self._making = asyncio.create_task(self._make())
        return await asyncio.shield(making)

    def close(self) -> None:
        if self._making is not None:
            self._making.cancel()
        self._threads.close(wait=False)

    async def _make(self) -> bytes:
        local = self._local()
        figures: Figures | None = None
        extra: Sequence[Metric] = ()
        try:
            figures = await self._figures()
            if self._extra is not None:
                extra = await self._extra()
        except IcetowerError:
            pass  # the answer says so: icetower_control_up is 0
        try:
            return await self._threads.run(
                lambda: expose(replace(local, disk_free_bytes=free_bytes(self._data)), figures, extra)
            )
        finally:
            self._made_s = self._ambient.monotonic_s()

    async def _figures(self) -> Figures:
        await self._measures.count()
        now_ms = self._ambient.now_ms()
        return await self._measures.read(lambda connection: read_figures(connection, now_ms))


class ScrapeRoutes:
    """The route."""

    def __init__(self, front: Front, scrape: Scrape, token_hash: bytes | None) -> None:
        self._front = front
        self._scrape = scrape
        self._token_hash = token_hash

    def routes(self) -> list[Route]:
        inner = route(self._front, "GET", PATH, self.show)
        return [Route(PATH, _Endpoint(self._token_hash, self._scrape, inner), methods=["GET"])]

    async def show(self, call: Call) -> Response:
        """For administrators and viewers: all figures."""
        call.require_overseer()
        return await _answer(self._scrape)


class _Endpoint:
    """Answers who brings the token of its own; all others go the way of every route."""

    def __init__(self, token_hash: bytes | None, scrape: Scrape, inner: Route) -> None:
        self._token_hash = token_hash
        self._scrape = scrape
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._opens(Request(scope)):
            response = await _answer(self._scrape)
            await response(scope, receive, send)
            return
        await self._inner.app(scope, receive, send)

    def _opens(self, request: Request) -> bool:
        token = bearer_of(request.headers.get("authorization", ""))
        if self._token_hash is None or token is None:
            return False
        # Hashes of equal length, compared in constant time: neither the token nor its length shows.
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(digest, self._token_hash)


async def _answer(scrape: Scrape) -> Response:
    return Response(await scrape.text(), headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})


def free_bytes(data: Path) -> int | None:
    """What is free on the disk of the data directory; None where it cannot be asked."""
    try:
        return shutil.disk_usage(data).free
    except OSError:
        return None
