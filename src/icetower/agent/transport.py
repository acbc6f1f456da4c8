"""An agent's steps by httpx2: for threads, and for an event loop."""

from __future__ import annotations

import asyncio
import datetime as dt
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2

from icetower.agent.causes import is_refused, unreachable
from icetower.agent.recovery import Patience
from icetower.agent.steps import Lost, Pause, Request, Response, Step
from icetower.errors import BadRequest, Unavailable

CONNECT_WITHIN_S = 10.0
IDLE_MAX = 64
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
_LOST = (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError)


class Transport:
    """Takes steps, and waits for each. Threads may share it.

    Args:
        answer_within_s: how long one request may wait for its answer, in seconds.
    """

    def __init__(self, uri: str, *, answer_within_s: float, patience: Patience) -> None:
        self._uri = uri
        self._patience = patience
        try:
            self._http = httpx2.Client(base_url=uri, timeout=_timeout(answer_within_s), limits=_limits())
        except _LOST as error:
            raise BadRequest(unreachable("tower", uri, error)) from error

    def take(self, step: Step) -> Any:
        """Raises `Lost`, and what the step's call raises."""
        if isinstance(step, Pause):
            return self._patience.pause(step.seconds)
        if not isinstance(step, Request):
            return step.call()
        try:
            return _response(self._http.request(**_arguments(step)))
        except _LOST as error:
            raise _lost(self._uri, error) from error

    def close(self) -> None:
        self._http.close()


class AsyncTransport:
    """The same in an event loop; calls that block are made in threads."""

    def __init__(self, uri: str, *, answer_within_s: float, patience: Patience) -> None:
        self._uri = uri
        self._patience = patience
        try:
            self._http = httpx2.AsyncClient(base_url=uri, timeout=_timeout(answer_within_s), limits=_limits())
        except _LOST as error:
            raise BadRequest(unreachable("tower", uri, error)) from error

    async def take(self, step: Step) -> Any:
        """Raises `Lost`, and what the step's call raises."""
        if isinstance(step, Pause):
            return await self._patience.ambient.sleep(step.seconds)
        if not isinstance(step, Request):
            return await asyncio.to_thread(step.call)
        try:
            return _response(await self._http.request(**_arguments(step)))
        except _LOST as error:
            raise _lost(self._uri, error) from error

    async def close(self) -> None:
        await self._http.aclose()


def retry_after_s(response: Response, now_ms: int) -> float:
    """How long an answer asks to wait before the request comes again, in seconds: its `Retry-After`, or none."""
    said = response.headers.get("retry-after", "").strip()
    if said.isascii() and said.isdigit():
        return float(min(int(said[:10]), 10**9))
    try:
        until = parsedate_to_datetime(said)
    except (ValueError, TypeError):
        return 0.0
    until = until if until.tzinfo is not None else until.replace(tzinfo=dt.UTC)
    return max(0.0, until.timestamp() - now_ms / 1000)


def _timeout(answer_within_s: float) -> httpx2.Timeout:
    return httpx2.Timeout(answer_within_s, connect=min(CONNECT_WITHIN_S, answer_within_s))


def _limits() -> httpx2.Limits:
    """As many connections as there are requests at once: else some would wait for others, and run out of time."""
    return httpx2.Limits(max_connections=None, max_keepalive_connections=IDLE_MAX)


def _arguments(request: Request) -> dict[str, Any]:
    return {
        "method": request.method,
        "url": request.path,
        "params": dict(request.params) or None,
        "headers": dict(request.headers),
        "content": request.body or None,
    }


def _response(response: httpx2.Response) -> Response:
    return Response(
        response.status_code, {name.lower(): value for name, value in response.headers.items()}, response.content
    )


def _lost(uri: str, error: Exception) -> Lost:
    refusal = Unavailable(unreachable("tower", uri, error), rule="client.connection")
    return Lost(refusal, sent=not isinstance(error, _NOT_SENT), refused=is_refused(error))
