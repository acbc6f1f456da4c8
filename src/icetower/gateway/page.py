"""The page's own routes: what it is made of, signing in and out, and the first screen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from icetower.errors import Forbidden, IcetowerError, NotFound, without_frames
from icetower.escalations.tickets import Kind
from icetower.gateway.http import Front, retry_after, takes_gzip
from icetower.gateway.page_cookies import FORM, SECURE_FORM, is_page, set_cookie
from icetower.gateway.page_http import SECURITY, Pages, Visit, redirect
from icetower.gateway.page_live import Streams
from icetower.gateway.page_reading import Reading
from icetower.gateway.page_sessions import Sessions, code_of, forgetting
from icetower.gateway.paths import NamedRoute, path_of
from icetower.observe.bypasses import Bypasses
from icetower.observe.undeclared import Undeclared
from icetower.page.assets import Asset
from icetower.page.refusals import RULES_MAX, Tally, by_rule
from icetower.rules import Table

SHOWN_MAX = 20
"""Tickets, bypasses and declarations on the first screen."""
ALERTING = ("firing", "pending")
ASSETS_KEPT_S = 365 * 24 * 3600
SIGN_IN = "/ui/sign-in"


Alerts = Callable[[str | None], Awaitable[Sequence[Mapping[str, Any]]]]
"""The alerts of one principal, or all, as `GET /icetower/v1/alerts` has them."""


class FrontPageRoutes:
    """Assets, signing in and out, and the first screen: who is refused or stopped, why, since when, and what to do."""

    def __init__(
        self,
        front: Front,
        pages: Pages,
        streams: Streams,
        sessions: Sessions,
        reading: Reading,
        bypasses: Bypasses,
        undeclared: Undeclared,
        assets: Mapping[str, Asset],
        rules: Table,
        alerts: Alerts,
    ) -> None:
        self._front = front
        self._pages = pages
        self._streams = streams
        self._sessions = sessions
        self._reading = reading
        self._bypasses = bypasses
        self._undeclared = undeclared
        self._assets = assets
        self._rules = rules
        self._alerts = alerts

    def routes(self) -> list[BaseRoute]:
        pages = self._pages
        return [
            NamedRoute("/ui/assets/{name}", self._asset, methods=["GET"]),
            Route(SIGN_IN, self._sign_in_form, methods=["GET"]),
            Route(SIGN_IN, self._sign_in, methods=["POST"]),
            pages.route("POST", "/ui/sign-out", self._sign_out),
            pages.route("GET", "/", self.show),
            Route("/ui", _to_first_screen, methods=["GET"]),
            Route("/ui/", _to_first_screen, methods=["GET"]),
            self._streams.route("/ui/live/now", self.live),
        ]

    # ── What the page is made of ─────────────────────────────────────────────────────────────────────────────────

    async def _asset(self, request: Request) -> Response:
        """A script or a style. Whoever has it in this version is told so, and nothing else."""
        asset = self._assets.get(request.path_params["name"])
        if asset is None:
            return self._pages.failed(request, None, NotFound("the page has no such file"))
        for_ever = request.query_params.get("v") == asset.version
        kept = f"public, max-age={ASSETS_KEPT_S}, immutable" if for_ever else "public, no-cache"
        headers = {**SECURITY, "ETag": asset.etag, "Cache-Control": kept, "Vary": "Accept-Encoding"}
        if asset.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if takes_gzip(request):
            return Response(asset.packed, headers=headers | {"Content-Encoding": "gzip"}, media_type=asset.media_type)
        return Response(asset.content, headers=headers, media_type=asset.media_type)

    # ── Signing in and out ───────────────────────────────────────────────────────────────────────────────────────

    async def _sign_in_form(self, request: Request) -> Response:
        return self._form(request, request.query_params.get("next", ""))

    def _form(
        self, request: Request, next_: str, error: IcetowerError | None = None, name: str = "", status: int = 200
    ) -> Response:
        key = self._sessions.form_key(request) or self._sessions.new_form_key()
        next_ = "" if (own := own_address(next_)) == "/" else own
        response = self._pages.short(
            "sign_in.html", status, title="Sign in", code=code_of(key, SIGN_IN), next=next_, error=error, name=name
        )
        # Both: the page may be reached by TLS or not, and the browser takes the one that fits.
        response.headers.append("Set-Cookie", set_cookie(FORM, key, secure=False))
        response.headers.append("Set-Cookie", set_cookie(SECURE_FORM, key, secure=True))
        return response

    async def _sign_in(self, request: Request) -> Response:
        fields: Mapping[str, str] = {}
        try:
            key = self._sessions.form_key(request)
            if key is None:
                raise Forbidden("the form is too old; send it again", rule="page.form", next_step="retry")
            fields = await self._sessions.form(request, key)
            cookies = await self._sessions.sign_in(
                request, fields.get("name", "").strip(), fields.get("secret", "").strip()
            )
        except IcetowerError as error:
            host = None if request.client is None else request.client.host
            self._front.attempts.failed(request.method, path_of(request.scope), error, address=host)
            response = self._form(request, fields.get("next", ""), error, fields.get("name", ""), error.status)
            response.headers.update(retry_after(error, self._front.ambient))
            without_frames(error)
            return response
        return redirect(own_address(fields.get("next", "")), cookies)

    async def _sign_out(self, visit: Visit) -> Response:
        await self._sessions.sign_out(visit.visitor)
        return redirect(SIGN_IN, forgetting())

    # ── The first screen ─────────────────────────────────────────────────────────────────────────────────────────

    async def show(self, visit: Visit) -> Response:
        """Who is refused or stopped, why, since when, and what to do."""
        return await self._pages.page(visit, "now.html", "Now", **await self._now(visit))

    async def live(self, visit: Visit) -> tuple[Hashable, Callable[[], Awaitable[str]]]:
        """The same, as it goes on."""
        values = await self._now(visit)
        activity = values["activity"]
        seen = (
            tuple(activity.counted.items()),
            tuple(ticket.id for ticket in (*values["escalations"], *values["requests"])),
            len(values["bypasses"]),
            tuple((alert["id"], alert["state"]) for alert in values["alerts"]),
        )
        return seen, lambda: self._pages.part("now_live.html", me=visit.principal, **values)

    async def _now(self, visit: Visit) -> dict[str, Any]:
        reading, own = self._reading, visit.own
        # Side by side: beside two hundred commits a second each turn of the event loop takes a while.
        activity, fared, escalations, requests, alerts = await asyncio.gather(
            reading.activity(own),
            reading.fared(own, of_tables=False),
            reading.tickets(Kind.ESCALATION, own),
            reading.tickets(Kind.REQUEST, own),
            reading.briefly.get(("alerts", own), lambda: self._alerts(own)),
        )
        rules = by_rule(activity.groups, self._rules.rules, self._rules.next_steps)
        shown = rules[:RULES_MAX]
        samples = await reading.numbered([each.last for each in shown])
        return {
            "activity": activity,
            "tally": Tally.of(activity.counted),
            "agents": len(fared),
            "rules": [replace(each, sample=samples.get(each.last)) for each in shown],
            "more_rules": len(rules) - len(shown),
            "escalations": escalations[:SHOWN_MAX],
            "more_escalations": max(0, len(escalations) - SHOWN_MAX),
            "requests": requests[:SHOWN_MAX],
            "more_requests": max(0, len(requests) - SHOWN_MAX),
            "alerts": [alert for alert in alerts if alert["state"] in ALERTING][:SHOWN_MAX],
            "bypasses": self._bypasses.newest(SHOWN_MAX) if visit.principal.sees_all else [],
            "undeclared": self._undeclared.to_json(own, None, SHOWN_MAX),
        }


def own_address(asked: str) -> str:
    """An address on the page to go to; the first screen for every other one, on whatever host."""
    try:
        parts = urlsplit(asked)
    except ValueError:
        return "/"
    plain = asked.startswith("/") and not asked.startswith("//") and not set(asked) & set("\\\r\n\t\x00")
    return asked if plain and not parts.netloc and not parts.scheme and is_page(parts.path) and asked.isascii() else "/"


async def _to_first_screen(request: Request) -> Response:
    """Whoever types the beginning of the other pages' addresses means the first one."""
    del request
    return redirect("/")
