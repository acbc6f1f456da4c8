"""`GET …/tables/{table}/landed` and `POST …/tables/{table}/fence`: has a write landed, and may it never?"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from icetower.gateway.checks import CheckRate
from icetower.gateway.http import Call, Front, json_response, route
from icetower.protocol.catalog import error_body
from icetower.protocol.landings import WriteNamed, parse_fence, parse_landed
from icetower.service.attempts import READ
from icetower.service.landings import Landing, Landings, Wanted
from icetower.table.keys import application_sequence


class LandingRoutes:
    """The routes for who has lost an answer."""

    def __init__(self, front: Front, landings: Landings, rate: CheckRate) -> None:
        self._front = front
        self._landings = landings
        self._rate = rate

    def routes(self) -> list[Route]:
        path = "/v1/namespaces/{namespace}/tables/{table}"
        return [
            route(self._front, "GET", f"{path}/landed", self.landed, operation=READ),
            route(self._front, "POST", f"{path}/fence", self.fence, operation="fence"),
        ]

    async def landed(self, call: Call) -> Response:
        self._rate.take_turn(call.principal.name)
        wanted = _wanted(parse_landed(call.request.query_params))
        found, _ = await self._landings.of(call.principal, call.table, wanted, call.shadow)
        return json_response(_to_json(found))

    async def fence(self, call: Call) -> Response:
        self._rate.take_turn(call.principal.name)
        wanted = _wanted(parse_fence(call.body))
        return json_response(_to_json(await self._landings.fence(call.principal, call.table, wanted, call.shadow)))


def _wanted(named: WriteNamed) -> Wanted:
    application = None if named.application is None else application_sequence(*named.application)
    return Wanted(named.ref, named.key, application, named.snapshot_id, named.principal)


def _to_json(found: Landing) -> dict[str, Any]:
    return {
        "landed": found.landed,
        "snapshot-id": found.snapshot,
        "fenced": found.fenced,
        "error": None if found.error is None else error_body(found.error)["error"],
    }
