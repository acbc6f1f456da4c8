"""Pages of leases: who holds which rows, and who waits for them, live; and the end of one, by a person."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute

from icetower.contracts.slots import EVERY
from icetower.errors import BadRequest
from icetower.gateway.http import Front
from icetower.gateway.intents import released
from icetower.gateway.page_http import Pages, Visit, redirect
from icetower.gateway.page_live import Streams
from icetower.gateway.page_reading import Reading
from icetower.intents.model import Intent
from icetower.page.choosing import QUESTIONS
from icetower.page.leases import Leases, LeaseSeen, how_text, leases_of, rows_text
from icetower.page.rendering import url
from icetower.service.intents import Intents, Seen

LATELY_MS = 30 * 60_000
"""Leases that have ended since are shown, too."""
SHOWN_MAX = 400


class LeasePageRoutes:
    """Leases, and the page that says which way to write."""

    def __init__(self, front: Front, pages: Pages, streams: Streams, reading: Reading, intents: Intents) -> None:
        self._front = front
        self._pages = pages
        self._streams = streams
        self._reading = reading
        self._intents = intents

    def routes(self) -> list[BaseRoute]:
        route = self._pages.route
        return [
            route("GET", "/ui/leases", self.list_leases),
            self._streams.route("/ui/live/leases", self.live_leases),
            route("GET", "/ui/leases/{id}", self.show_lease),
            route("POST", "/ui/leases/{id}/break", self.break_lease),
            route("GET", "/ui/choosing", self.show_choosing),
        ]

    async def list_leases(self, visit: Visit) -> Response:
        """Leases by table; of one table, `?table=`, and of one principal, `?principal=`."""
        seen, more = await self._seen(visit)
        asked = _asked(visit)
        return await self._pages.page(
            visit,
            "leases.html",
            "Leases",
            leases=await self._drawn(visit, seen),
            more=more,
            asked=asked,
            live=url("live", "leases", **asked),
        )

    async def live_leases(self, visit: Visit) -> tuple[Hashable, Callable[[], Awaitable[str]]]:
        """The same, as it goes on."""
        seen, more = await self._seen(visit)
        known = tuple((each.intent.id, each.intent.state, each.warnings) for each in seen), more

        async def html() -> str:
            leases = await self._drawn(visit, seen)
            return await self._pages.part(
                "leases_live.html", me=visit.principal, leases=leases, more=more, asked=_asked(visit)
            )

        return known, html

    async def _seen(self, visit: Visit) -> tuple[Sequence[LeaseSeen], int]:
        asked, own = _asked(visit), visit.own
        table, principal = asked["table"], own or asked["principal"]

        def wanted(intent: Intent) -> bool:
            return principal in (None, intent.principal) and (
                table is None or any(claim.table == table for claim in intent.claims)
            )

        async def read() -> tuple[Sequence[LeaseSeen], int]:
            since_ms = self._front.ambient.now_ms() - LATELY_MS
            found, more = await self._intents.lately(since_ms, wanted, SHOWN_MAX)
            return [LeaseSeen(each.intent, tuple(each.in_the_way), len(each.warnings)) for each in found], more

        return await self._reading.briefly.get(("leases", table, principal), read)

    async def _drawn(self, visit: Visit, seen: Sequence[LeaseSeen]) -> Leases:
        contracts = await self._reading.in_force(EVERY) if visit.own is None else [visit.principal.contract]
        now_ms = self._front.ambient.now_ms()
        return await self._reading.thread.run(lambda: leases_of(seen, contracts, now_ms))

    async def show_lease(self, visit: Visit) -> Response:
        """One lease; with `?break=` the question whether it is to end."""
        seen = await self._intents.find(visit.principal, visit.path("id"))
        intent = seen.intent
        return await self._pages.page(
            visit,
            "lease.html",
            f"Lease of {intent.principal}",
            intent=intent,
            rows=[(claim, rows_text(claim), ", ".join(sorted(claim.operations))) for claim in intent.claims],
            how=how_text(intent),
            waits_for=seen.in_the_way,
            warnings=_warnings(seen),
            asked=bool(visit.query("break")) and intent.live and visit.principal.administrator,
        )

    async def break_lease(self, visit: Visit) -> Response:
        """End a lease: of administrators, who have confirmed it. Who did it stands in the lease and in the log."""
        visit.require_administrator()
        if visit.form.get("sure") != "yes":
            raise BadRequest("the page asks once more before it acts; confirm it there")
        id_ = visit.path("id")
        await released(self._front, self._intents, visit.principal, id_)
        self._reading.briefly.forget()
        return redirect(url("leases", id_))

    async def show_choosing(self, visit: Visit) -> Response:
        """Five questions, of which the first one that is answered with yes decides."""
        return await self._pages.page(visit, "choosing.html", "Which way to write", questions=QUESTIONS)


def _asked(visit: Visit) -> dict[str, str | None]:
    return {"table": visit.query("table"), "principal": visit.query("principal")}


def _warnings(seen: Seen) -> list[dict[str, Any]]:
    """What others have committed to its rows, newest first."""
    return [json.loads(each) for each in reversed(seen.warnings)]
