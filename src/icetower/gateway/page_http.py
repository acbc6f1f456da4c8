"""From a request for the page to a visit, and from a visit to HTML: what all pages share."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from icetower.errors import BadRequest, IcetowerError, NotAuthenticated, without_frames
from icetower.gateway.http import Front, require_administrator, require_overseer
from icetower.gateway.page_sessions import Sessions, Visitor
from icetower.gateway.page_thread import PageThread
from icetower.gateway.paths import NamedRoute, path_of
from icetower.page.rendering import Renderer, url
from icetower.registry.principals import Principal

log = logging.getLogger("icetower")

SECURITY: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: browsers would hide from the tower, too, which page a form comes from.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""Of every answer: nothing is loaded from elsewhere, nothing inline is run, and nobody puts the page into a frame."""

NAVIGATION: Sequence[tuple[str, str, bool]] = (
    ("/", "Now", False),
    ("/ui/agents", "Agents", False),
    ("/ui/tables", "Tables", False),
    ("/ui/commits", "Commits", False),
    ("/ui/contracts", "Contracts", False),
    ("/ui/leases", "Leases", False),
    ("/ui/slots", "Slots", False),
    ("/ui/metrics", "Metrics", False),
    ("/ui/operations", "Operations", True),
)
"""Address, words, and whether it is for administrators and viewers alone."""

PAGE_SIZE = 50
NUMBER_MAX = 2**63 - 1
"""As databases and ids of snapshots have them."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of somebody who has signed in.

    Attributes:
        form: the fields of a form, of a POST.
    """

    request: Request
    visitor: Visitor
    form: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def principal(self) -> Principal:
        return self.visitor.principal

    @property
    def own(self) -> str | None:
        return self.visitor.own

    def require_administrator(self) -> None:
        """Raises `Forbidden` for anybody else."""
        require_administrator(self.principal)

    def require_overseer(self) -> None:
        """Raises `Forbidden` for anybody but administrators and viewers. Only for what changes nothing."""
        require_overseer(self.principal)

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def query(self, name: str) -> str | None:
        return self.request.query_params.get(name) or None

    def number(self, name: str, text: str | None = None) -> int | None:
        """A number of the query; None where there is none. Raises `BadRequest`."""
        given = self.query(name) if text is None else text
        if given is None:
            return None
        if not given.isascii() or not given.isdigit() or len(given) > 19 or int(given) > NUMBER_MAX:
            raise BadRequest(f"{name} must be a number")
        return int(given)


PageHandler = Callable[[Visit], Awaitable[Response]]


class Pages:
    """Renders pages, and answers for the routes of all of them. One for a tower."""

    def __init__(self, front: Front, sessions: Sessions, renderer: Renderer, thread: PageThread) -> None:
        self.front = front
        self.sessions = sessions
        self._renderer = renderer
        self._thread = thread

    def route(self, method: str, path: str, handler: PageHandler) -> NamedRoute:
        """A route for those who have signed in."""
        return NamedRoute(path, _PageEndpoint(self, handler, method), methods=[method])

    async def page(self, visit: Visit, template: str, title: str, **values: Any) -> Response:
        """A whole page, made apart from the event loop."""
        content = await self.part(template, **self._of_all(visit, title), **values)
        return _html(content, 200)

    async def part(self, template: str, **values: Any) -> str:
        """A part of a page, for live updates, made likewise."""
        now_ms = self.front.ambient.now_ms()
        return await self._thread.run(lambda: self._renderer.render(template, now_ms=now_ms, **values))

    def short(self, template: str, status: int = 200, **values: Any) -> Response:
        """What is small, and must be there whatever else is made."""
        return _html(self._renderer.render(template, now_ms=self.front.ambient.now_ms(), **values), status)

    def failed(self, request: Request, visitor: Visitor | None, error: IcetowerError) -> Response:
        """An error as a page."""
        if visitor is None:
            return self.short("error_outside.html", error.status, title="Not shown", error=error)
        shown = self._of_all(Visit(request, visitor), "Not shown")
        return self.short("error.html", error.status, error=error, **shown)

    def _of_all(self, visit: Visit, title: str) -> dict[str, Any]:
        """What all whole pages show."""
        visitor = visit.visitor
        path = visit.request.url.path
        shown = [
            (address, words, path == address or (address != "/" and path.startswith(address)))
            for address, words, for_overseers in NAVIGATION
            if visitor.principal.sees_all or not for_overseers
        ]
        return {
            "title": title,
            "me": visitor.principal,
            "by_session": visitor.by_session,
            "navigation": shown,
            "code": visitor.code,
            "query": visit.request.query_params,
        }


def _html(content: str, status: int) -> Response:
    """An answer that nobody keeps."""
    return Response(content, status, {**SECURITY, "Cache-Control": "no-store"}, "text/html; charset=utf-8")


def redirect(address: str, cookies: Sequence[str] = ()) -> Response:
    """On to another address of this tower, by GET."""
    response = Response(status_code=303, headers={**SECURITY, "Cache-Control": "no-store", "Location": address})
    _add_cookies(response, cookies)
    return response


def _add_cookies(response: Response, cookies: Sequence[str]) -> None:
    for cookie in cookies:
        response.headers.append("Set-Cookie", cookie)


def sign_in_address(request: Request) -> str:
    """The form for signing in, which leads back to what was asked for."""
    asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return url("sign-in", next=asked if request.method == "GET" and asked != "/" else None)


@dataclass(frozen=True, slots=True)
class _PageEndpoint:
    pages: Pages
    handler: PageHandler
    method: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        response, name = await self._answer(request)
        await self.pages.front.intake.unread.send(response, name, scope, send)

    async def _answer(self, request: Request) -> tuple[Response, str]:
        pages, front = self.pages, self.pages.front
        visitor: Visitor | None = None
        try:
            visitor = await pages.sessions.visitor(request)
            name = visitor.principal.name
            async with front.place(visitor.principal, request.scope):
                form = await pages.sessions.form(request, visitor.key) if self.method == "POST" else {}
                if self.method == "POST":
                    visitor = await pages.sessions.visitor(request)  # a body may take its time to come
                response = await self.handler(Visit(request, visitor, form))
                _add_cookies(response, await pages.sessions.renewed(request, visitor))
                await front.intake.unread.turn(response, name, request.scope)
            return response, name
        except NotAuthenticated as error:
            without_frames(error)
            return redirect(sign_in_address(request)), ""
        except IcetowerError as error:
            front.attempts.failed(request.method, path_of(request.scope), error)
            front.attempts.named(error)
            response = pages.failed(request, visitor, error)
            without_frames(error)
        except ClientDisconnect:
            response = Response(status_code=400, headers=dict(SECURITY))
        except Exception:
            failure = IcetowerError("the page could not be made; the server's log says why")
            name = front.attempts.named(failure)
            log.exception("request %s: %s %s failed", name, request.method, path_of(request.scope))
            response = pages.failed(request, None, failure)
        return response, "" if visitor is None else visitor.principal.name
