"""The control API's routes for what waits for a person: `/icetower/v1/escalations` and `/icetower/v1/requests`.

Administrators and viewers see all; administrators close them; an agent sees its own, and may ask for partitions.
"""

from __future__ import annotations

from pydantic import Field
from starlette.responses import Response
from starlette.routing import Route

from icetower.errors import BadRequest
from icetower.escalations.escalations import Escalations
from icetower.escalations.tickets import Decision, Kind, wanted
from icetower.gateway.http import Call, Front, Handler, json_response, route
from icetower.protocol.wire import Wire, read, read_object

LISTED_MAX = 1_000
OPEN, CLOSED = "open", "closed"


class _Request(Wire):
    table: str
    partitions: list[str] = Field(default_factory=list)
    operations: list[str]
    reason: str


class _Closing(Wire):
    note: str


class _Answer(Wire):
    decision: str
    note: str


class EscalationRoutes:
    """The routes of escalations and requests."""

    def __init__(self, front: Front, escalations: Escalations) -> None:
        self._front = front
        self._escalations = escalations

    def routes(self) -> list[Route]:
        front = self._front
        escalations, requests = "/icetower/v1/escalations", "/icetower/v1/requests"
        return [
            route(front, "GET", escalations, self._listing(Kind.ESCALATION)),
            route(front, "GET", escalations + "/{id}", self._showing(Kind.ESCALATION)),
            route(front, "POST", escalations + "/{id}/close", self.close_escalation),
            route(front, "GET", requests, self._listing(Kind.REQUEST)),
            route(front, "POST", requests, self.make_request, mutates=True),
            route(front, "GET", requests + "/{id}", self._showing(Kind.REQUEST)),
            route(front, "POST", requests + "/{id}/close", self.close_request),
        ]

    def _listing(self, kind: Kind) -> Handler:
        async def answer(call: Call) -> Response:
            """Newest first: `?state=open|closed&limit=`, for an administrator `&principal=`."""
            state = call.query("state")
            if state not in (None, OPEN, CLOSED):
                raise BadRequest(f"query parameter state is {state!r}; write {OPEN} or {CLOSED}, or leave it out")
            found = await self._escalations.list(
                kind,
                principal=call.query("principal") if call.principal.sees_all else call.principal.name,
                open_=None if state is None else state == OPEN,
                limit=call.limit(LISTED_MAX),
            )
            return json_response({f"{kind}s": [ticket.to_json() for ticket in found]})

        return answer

    def _showing(self, kind: Kind) -> Handler:
        async def answer(call: Call) -> Response:
            own = None if call.principal.sees_all else call.principal.name
            found = await self._escalations.find(kind, call.request.path_params["id"], own)
            return json_response(found.to_json())

        return answer

    async def close_escalation(self, call: Call) -> Response:
        """The agent may go on from its next attempt on."""
        call.require_administrator()
        said = read(_Closing, read_object(call.body, "closing"), "closing")
        return await self._close(call, Kind.ESCALATION, Decision.CLOSED, said.note)

    async def make_request(self, call: Call) -> Response:
        """201 for a new one; 200 with the one that is open for the same already."""
        said = read(_Request, read_object(call.body, "request"), "request")
        asked, new = await self._escalations.ask(
            call.principal, wanted(said.table, said.partitions, said.operations, said.reason)
        )
        return json_response(asked.to_json(), 201 if new else 200)

    async def close_request(self, call: Call) -> Response:
        """Nothing is granted by it: the contract says what is. The agent reads the answer."""
        call.require_administrator()
        said = read(_Answer, read_object(call.body, "answer"), "answer")
        if said.decision not in tuple(Decision):
            raise BadRequest(
                f"decision: is {said.decision!r}; write {Decision.GRANTED} or {Decision.DENIED}",
                rule="request.decision",
            )
        return await self._close(call, Kind.REQUEST, Decision(said.decision), said.note)

    async def _close(self, call: Call, kind: Kind, decision: Decision, note: str) -> Response:
        id_ = call.request.path_params["id"]
        closed = await self._escalations.close_ticket(kind, id_, call.principal.name, decision, note)
        return json_response(closed.to_json())
