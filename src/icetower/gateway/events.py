"""Changes of tables and namespaces, for others to follow, and reports of clients on their commits.

`POST /v1/events` is the route of Iceberg's open proposal (`protocol.events`); `GET /icetower/v1/events` has the same
events with a number for a cursor, for scripts. Whoever asks sees what it may read: every row is judged by the contract
that is in force as it asks. A page looks at a bounded number of events, however few of them are wanted.
"""

from __future__ import annotations

from dataclasses import asdict

import orjson
from starlette.responses import Response
from starlette.routing import Route

from icetower.admission import permissions
from icetower.contracts.model import Operation
from icetower.errors import BadRequest, CommitConflict, Gone, NotFound, Unavailable
from icetower.files.parsing import Parsing
from icetower.gateway.http import Call, Front, json_response, route
from icetower.ledger.watching import Changed
from icetower.protocol.events import Kind, Query, parse_query, token_of
from icetower.protocol.names import Identifier
from icetower.protocol.wire import read_object
from icetower.registry.principals import Principal
from icetower.service.journal import Journal

PAGE_DEFAULT = 100
PAGE_MAX = 1_000
PIECE = 500
SCANNED_MAX = 5_000
BYTES_MAX = 4 * 1024 * 1024
"""Of the events of one page."""
REPORTS_MAX = 1_000


class EventRoutes:
    """Args:
    keep: how many events this tower keeps; 0: none.
    """

    def __init__(self, front: Front, journal: Journal, parsing: Parsing, keep: int) -> None:
        self._front = front
        self._parsing = parsing
        self._journal = journal
        self._keep = keep

    def routes(self) -> list[Route]:
        """In the order in which they are tried."""
        return [
            route(self._front, "POST", "/v1/events", self.query_events),
            route(self._front, "GET", "/icetower/v1/events", self.list_events),
            route(self._front, "GET", "/icetower/v1/reports", self.list_reports),
        ]

    async def query_events(self, call: Call) -> Response:
        """`QueryEventsRequest` → `QueryEventsResponse`."""
        query = parse_query(read_object(call.body or b"{}", "events query"))
        found, last = await self._in_turn(call, query, min(query.page_size or PAGE_DEFAULT, PAGE_MAX))
        parts = b",".join(event.event.encode() for _, event in found)
        token = orjson.dumps(token_of(last, query))
        body = b'{"continuation-token":' + token + b',"events":[' + parts + b"]}"
        return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})

    async def list_events(self, call: Call) -> Response:
        """`?after= &limit= &table= &since_ms=`: `events`, each with its `number`, and `next`, from where to go on."""
        table = call.query("table")
        names = None if table is None else frozenset({tuple(table.split("."))})
        query = Query(call.number("after") or 0, since_ms=call.number("since_ms") or 0, names=names)
        found, last = await self._in_turn(call, query, call.limit(PAGE_MAX))
        rows = b",".join(b'{"number":%d,%s' % (number, event.event.encode()[1:]) for number, event in found)
        return Response(b'{"events":[' + rows + b'],"next":%d}' % last, media_type="application/json")

    async def list_reports(self, call: Call) -> Response:
        """`?since_ms= &limit=`, newest first: administrators and viewers see all."""
        call.require_overseer()
        ledger = await self._journal.read_through()
        found = await ledger.reports(since_ms=call.number("since_ms") or 0, limit=call.limit(REPORTS_MAX))
        return json_response({"reports": [asdict(report) for report in found]})

    async def _in_turn(self, call: Call, query: Query, limit: int) -> tuple[list[tuple[int, Changed]], int]:
        """A page, one search of a log at a time: commits ask the same database."""
        try:
            async with self._parsing.searches.turn(call.principal.name):
                return await self._page(call, query, limit)
        except CommitConflict as error:
            raise Unavailable(error.message) from error

    async def _page(self, call: Call, query: Query, limit: int) -> tuple[list[tuple[int, Changed]], int]:
        """The next events that are wanted and may be seen, and the number up to which the log was looked through.

        Raises `Gone` where some after the caller's last one are not kept any more.
        """
        if not self._keep:
            raise NotFound("this tower keeps no events ([events] keep = 0)", rule="events.kept")
        ledger = await self._journal.read_through()
        found: list[tuple[int, Changed]] = []
        last, size, scanned = query.after, 0, 0
        while scanned < SCANNED_MAX:
            since_ms = query.since_ms if last == query.after else 0
            piece = await ledger.changes_after(last, since_ms=since_ms, limit=PIECE)
            if not scanned and query.after and (piece.oldest or 0) > query.after + 1:
                raise Gone(
                    f"the events after number {query.after} are not kept any more; the oldest is {piece.oldest}. Read "
                    "the tables anew, and begin again without a token",
                    rule="events.gone",
                )
            if query.after > (piece.newest or 0) and piece.newest is not None:
                raise BadRequest(
                    "this place is beyond the end of the log; begin again without a token", rule="events.token"
                )
            for number, event in piece.events:
                if query.wants(event.kind, event.objects, event.uuid) and _may_see(call.principal, event):
                    size += len(event.event)
                    if len(found) == limit or (found and size > BYTES_MAX):
                        return found, last
                    found.append((number, event))
                last = number
            scanned += PIECE
            if len(piece.events) < PIECE:
                break
        return found, last


def _may_see(principal: Principal, event: Changed) -> bool:
    """Whether a principal may read what an event is about, by either of its names."""
    if principal.sees_all:
        return True
    if Kind(event.kind).object_type == "namespace":
        return any(permissions.visible(principal, levels) for levels in event.objects)
    tables = [Identifier(levels[:-1], levels[-1]) for levels in event.objects]
    return any(permissions.may(principal, Operation.READ, table) for table in tables)
