"""Slots that are handed out, over HTTP: `/icetower/v1/slots`."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from icetower.errors import Conflict, Forbidden, NotAuthenticated
from icetower.gateway.http import Call, Front, json_response, route
from icetower.gateway.intents import seen_json, slot_json, still_acts
from icetower.intents.slots import Taker
from icetower.protocol.intents import parse_slot
from icetower.protocol.names import Identifier
from icetower.service.intents import Seen
from icetower.service.slots import SlotRow, Slots


class SlotRoutes:
    """The routes by which agents take slots, and people see whose turn it is."""

    def __init__(self, front: Front, slots: Slots) -> None:
        self._front = front
        self._slots = slots

    def routes(self) -> list[Route]:
        path = "/icetower/v1/slots"
        return [
            route(self._front, "POST", f"{path}/next", self.take, waits=True),
            route(self._front, "GET", path, self.list_slots),
        ]

    async def take(self, call: Call) -> Response:
        """201 with the intent of the slot; 409 `slot.waiting` with the time from which on there is one."""
        wanted = parse_slot(call.body)
        taker = Taker(
            wanted.intent or self._front.ambient.uuid7(),
            call.principal.name,
            call.principal.contract.name,
            Identifier.parse(wanted.table),
            None if wanted.ttl_s is None else round(wanted.ttl_s * 1000),
            round(wanted.least_s * 1000),
        )
        seen = await self._taken(call, taker, wanted.wait_s)
        assert seen.intent.slot is not None
        column = await self._slots.column(taker.table, seen.intent.slot)
        answer = seen_json(seen)
        answer["slot"] |= {"column": column}
        return json_response(answer | {"now_ms": self._front.ambient.now_ms()}, 201)

    async def _taken(self, call: Call, taker: Taker, wait_s: float) -> Seen:
        async with self._front.place(call.principal, call.request.scope):
            try:
                return await self._slots.take(call.principal, taker, call.shadow, 0)
            except Conflict as refusal:
                if wait_s <= 0 or refusal.rule != "slot.waiting":
                    raise
        try:
            seen = await self._slots.take(call.principal, taker, call.shadow, wait_s)
        except Conflict:
            await still_acts(self._front, call)
            raise
        try:
            await still_acts(self._front, call)
        except (NotAuthenticated, Forbidden):
            await self._slots.give_back(call.principal, seen)
            raise
        return seen

    async def list_slots(self, call: Call) -> Response:
        """`?table=`: of each contract the slot that goes on or comes next, and by whom it is held."""
        table = call.query("table")
        found = await self._slots.rows(call.principal, None if table is None else Identifier.parse(table))
        return json_response({"slots": [_row(each) for each in found], "now_ms": self._front.ambient.now_ms()})


def _row(found: SlotRow) -> dict[str, Any]:
    row = found.row
    return {
        "tables": row.tables,
        "contract": row.contract,
        **slot_json(row.slot),
        "claim_within_s": None if row.claim_within_ms is None else row.claim_within_ms / 1000,
        "line": list(row.line),
        "held": [
            {
                "intent": each.id,
                "principal": each.principal,
                "contract": each.contract,
                "table": each.claims[0].table,
                "fence": each.fence,
                "expires_ms": each.expires_ms,
            }
            for each in found.held
        ],
    }
