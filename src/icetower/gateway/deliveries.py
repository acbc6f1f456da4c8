"""`GET /icetower/v1/me/delivery`: how the caller's rows come into a table, which its contract says."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from icetower.admission import permissions
from icetower.admission.deliveries import way_of
from icetower.ambient import Ambient
from icetower.commit.head import Heads
from icetower.contracts.check import appends_blindly
from icetower.contracts.deliveries import Slot, next_slot
from icetower.contracts.model import Operation
from icetower.errors import BadRequest
from icetower.gateway.http import Call, Front, json_response, route
from icetower.protocol.names import Identifier
from icetower.service.slots import Slots, column_of

OPERATIONS = (Operation.APPEND, Operation.OVERWRITE, Operation.DELETE)


class DeliveryRoutes:
    """The route by which agents learn the way of their rows."""

    def __init__(self, front: Front, heads: Heads, slots: Slots, ambient: Ambient) -> None:
        self._front = front
        self._heads = heads
        self._slots = slots
        self._ambient = ambient

    def routes(self) -> list[Route]:
        return [route(self._front, "GET", "/icetower/v1/me/delivery", self.show)]

    async def show(self, call: Call) -> Response:
        """`?table= &operation= &least_ms=`: pattern, the table to append to, key columns, and the next slot.

        A slot that the caller holds goes before. `least_ms`: of the slot that goes on, so much must be left; else it is
        the next one.
        """
        table = Identifier.parse(call.query("table") or "")
        asked = call.query("operation") or Operation.APPEND.value
        if asked not in OPERATIONS:
            raise BadRequest(f"query parameter operation is {asked!r}; write one of {', '.join(OPERATIONS)}")
        operation = Operation(asked)
        principal = call.principal
        call.allow(permissions.require, Operation.READ, table)
        call.allow(permissions.require, operation, table)
        delivery = way_of(principal, table, operation)
        metadata = (await self._heads.load(table)).metadata
        now_ms = self._ambient.now_ms()
        slot = await self._slots.held(principal, str(metadata["table-uuid"]))
        slot = slot or next_slot(delivery.rules, now_ms, least_ms=call.number("least_ms") or 0)
        through = table if delivery.through is None else Identifier.parse(str(delivery.through))
        blind = not principal.administrator and appends_blindly(principal.contract, through)
        return json_response(
            {
                "table": str(table),
                "operation": operation.value,
                "agent": principal.contract.name,
                "pattern": delivery.pattern.value,
                "through": None if delivery.through is None else str(delivery.through),
                "blind": blind and (delivery.through is not None or operation is Operation.APPEND),
                "key_columns": _key_columns(metadata),
                "slot": None if slot is None else _slot(slot, metadata),
                "now_ms": now_ms,
            }
        )


def _key_columns(metadata: Any) -> list[str]:
    """The columns that identify a row: the identifier fields of the table's schema."""
    schema = next(each for each in metadata["schemas"] if each.get("schema-id", 0) == metadata["current-schema-id"])
    wanted = schema.get("identifier-field-ids") or ()
    return [field["name"] for field in schema["fields"] if field["id"] in wanted]


def _slot(slot: Slot, metadata: Any) -> dict[str, Any]:
    """A slot, and the column whose values lie in it; None: any rows may be written in that time."""
    return {
        "column": column_of(slot, metadata),
        "starts_ms": slot.starts_ms,
        "ends_ms": slot.ends_ms,
        "until_ms": slot.until_ms,
    }
