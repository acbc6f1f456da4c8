"""Intents over HTTP: `/icetower/v1/intents`.

A request that waits takes none of its principal's places: an agent that listens must not hold up its own commits. What
it does to the book, it does in its turn like any other. Once it has waited, its credential is looked at again before it
is answered.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.responses import Response
from starlette.routing import Route

from icetower.ambient import Ambient
from icetower.contracts.deliveries import Slot
from icetower.contracts.model import Operation
from icetower.errors import BadRequest, Forbidden, NotAuthenticated
from icetower.gateway.http import Call, Front, authenticate, json_response, route
from icetower.intents.book import fenced
from icetower.intents.model import Claim, Intent, State
from icetower.intents.regions import read_regions
from icetower.protocol.intents import WAIT_S_MAX, TableWanted, parse_intent, parse_renewal
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal
from icetower.service.intents import Intents, Seen, Wish

LISTED_MAX = 20_000
IN_THE_WAY_MAX = 10
"""Of an intent that waits, so many that it waits for are listed, held ones first."""
IGNORED_MAX = 1_000
BROKEN = "intent-broken"
"""What the log of attempts calls it when a person ends another's intent."""


class IntentRoutes:
    """The routes for agents, and for people who look at leases."""

    def __init__(self, front: Front, intents: Intents) -> None:
        self._front = front
        self._intents = intents
        self._ambient: Ambient = front.ambient

    def routes(self) -> list[Route]:
        path = "/icetower/v1/intents"
        return [
            route(self._front, "POST", path, self.declare, waits=True),
            route(self._front, "GET", path, self.list_intents),
            route(self._front, "GET", f"{path}/ignored", self.list_ignored),  # no id of an intent is so short
            route(self._front, "GET", f"{path}/{{intent}}", self.show, waits=True),
            route(self._front, "POST", f"{path}/{{intent}}/renew", self.renew),
            route(self._front, "DELETE", f"{path}/{{intent}}", self.release),
        ]

    async def declare(self, call: Call) -> Response:
        """201 with the fence; 202 where it stays in line (`queue`); 409 `intent.held`, 403 where it ended meanwhile."""
        wanted = parse_intent(call.body)
        wishes = [_wish(each) for each in wanted.tables]
        ttl_ms, waits = round(wanted.ttl_s * 1000), wanted.wait_s > 0
        async with self._front.place(call.principal, call.request.scope):
            seen = await self._intents.declare(
                call.principal,
                wishes,
                call.shadow,
                id_=wanted.intent,
                ttl_ms=ttl_ms,
                queue=wanted.queue or waits,
            )
        if seen.intent.state is State.QUEUED and waits:
            seen = await self._intents.wait(call.principal, seen.intent.id, wanted.wait_s, known=State.QUEUED)
            try:
                await still_acts(self._front, call)
            except (NotAuthenticated, Forbidden):
                if not wanted.queue:  # else it is asked for again, by whatever credential its principal has then
                    await self._intents.release(call.principal, seen.intent.id)
                raise
        if seen.intent.state is State.QUEUED and not wanted.queue:
            refusal = await self._intents.withdraw(call.principal, seen)
            if refusal is not None:
                raise refusal
            seen = await self._intents.find(call.principal, seen.intent.id)
        if not seen.intent.live:
            raise fenced(seen.intent)
        return json_response(seen_json(seen), 202 if seen.intent.state is State.QUEUED else 201)

    async def show(self, call: Call) -> Response:
        """`?wait_s= &state= &seen=`: an intent, once there is news of it, or at the end of the wait."""
        id_, wait_s = str(call.request.path_params["intent"]), _seconds(call)
        async with self._front.place(call.principal, call.request.scope):
            seen = await self._intents.find(call.principal, id_)
        if wait_s > 0 and seen.intent.principal == call.principal.name:
            number, known = call.number("seen") or 0, _state(call)
            seen = await self._intents.wait(call.principal, id_, wait_s, seen=number, known=known)
            await still_acts(self._front, call)
        return json_response(seen_json(seen))

    async def renew(self, call: Call) -> Response:
        ttl_s = parse_renewal(call.body)
        ttl_ms = None if ttl_s is None else round(ttl_s * 1000)
        id_ = str(call.request.path_params["intent"])
        return json_response(seen_json(await self._intents.renew(call.principal, id_, ttl_ms)))

    async def release(self, call: Call) -> Response:
        id_ = str(call.request.path_params["intent"])
        return json_response(seen_json(await released(self._front, self._intents, call.principal, id_)))

    async def list_intents(self, call: Call) -> Response:
        """`?table= &principal= &limit=`: those that are held or wait. An agent sees its own."""
        table, wanted = call.query("table"), call.query("principal")
        owner = wanted if call.principal.sees_all else call.principal.name
        found = [
            intent
            for intent in await self._intents.live()
            if owner in (None, intent.principal) and (table is None or any(c.table == table for c in intent.claims))
        ]
        book = self._intents.book
        rows = [
            _intent_json(intent) | {"waits_for": [_short(each) for each in book.waits_for(intent.id)[:IN_THE_WAY_MAX]]}
            for intent in found[: call.limit(LISTED_MAX)]
        ]
        return json_response({"intents": rows, "count": len(found), "now_ms": self._ambient.now_ms()})

    async def list_ignored(self, call: Call) -> Response:
        """`?table= &limit=`: commits that landed in rows of others since the tower was started; of an agent its own."""
        own = None if call.principal.sees_all else call.principal.name
        rows = self._intents.ignored.to_json(own, call.query("table"), call.limit(IGNORED_MAX))
        return json_response({"ignored": rows})


async def still_acts(front: Front, call: Call) -> None:
    """Whoever has waited may have been revoked meanwhile, and its token may have ended.

    Raises `NotAuthenticated`, or `Forbidden` where its contract was revoked.
    """
    await authenticate(front, call.request, may_be_revoked=False)


async def released(front: Front, intents: Intents, principal: Principal, id_: str) -> Seen:
    """End an intent; where somebody breaks another's, that is logged for each of its tables. Raises `NotFound`."""
    started_s = front.ambient.monotonic_s()
    seen = await intents.release(principal, id_)
    if seen.broken:
        for table in dict.fromkeys(claim.table for claim in seen.intent.claims):
            front.attempts.ended(principal.name, table, BROKEN, started_s, None)
    return seen


def _state(call: Call) -> State | None:
    said = call.query("state")
    try:
        return None if said is None else State(said)
    except ValueError as error:
        raise BadRequest(f"query parameter state must be one of {', '.join(State)}") from error


def _seconds(call: Call) -> float:
    text = call.query("wait_s")
    try:
        found = 0.0 if text is None else float(text)
    except ValueError as error:
        raise BadRequest("query parameter wait_s must be a number of seconds") from error
    return min(found, WAIT_S_MAX) if found > 0 else 0.0


def _wish(wanted: TableWanted) -> Wish:
    regions = None if wanted.partitions is None else read_regions(wanted.partitions)
    said: Any = wanted.partitions if wanted.filter is None else {"filter": wanted.filter}
    return Wish(
        Identifier.parse(wanted.table),
        frozenset(Operation(each) for each in wanted.operations),
        regions,
        wanted.filter,
        "all" if said is None else json.dumps(said, sort_keys=True),
        wanted.exclusive,
    )


def seen_json(seen: Seen, *, warnings: bool = True) -> dict[str, Any]:
    """An intent as its holder sees it, with its warnings or without."""
    return {
        **_intent_json(seen.intent),
        "waits_for": [_short(each) for each in seen.in_the_way],
        **({"warnings": [json.loads(each) for each in seen.warnings]} if warnings else {}),
    }


def _intent_json(intent: Intent) -> dict[str, Any]:
    return {
        "intent": intent.id,
        "state": intent.state.value,
        "fence": intent.fence,
        "principal": intent.principal,
        "contract": intent.contract,
        "tables": [_claim_json(claim) for claim in intent.claims],
        "ttl_s": intent.ttl_ms / 1000,
        "declared_ms": intent.declared_ms,
        "granted_ms": intent.granted_ms,
        "expires_ms": intent.expires_ms,
        "ended": None if intent.ended is None else intent.ended.value,
        "ended_ms": intent.ended_ms,
        "ended_by": intent.ended_by or None,
        "slot": None if intent.slot is None else slot_json(intent.slot),
    }


def slot_json(slot: Slot) -> dict[str, Any]:
    return {"term": slot.term, "starts_ms": slot.starts_ms, "ends_ms": slot.ends_ms, "until_ms": slot.until_ms}


def _claim_json(claim: Claim) -> dict[str, Any]:
    said: Any = "all" if claim.said == "all" else json.loads(claim.said)
    by = {"filter": said["filter"]} if isinstance(said, dict) else {"partitions": said}
    return {
        "table": claim.table,
        **by,
        "operations": sorted(claim.operations),
        "exclusive": claim.exclusive,
        "base_snapshot": claim.base,
    }


def _short(intent: Intent) -> dict[str, Any]:
    return {
        "intent": intent.id,
        "state": intent.state.value,
        "principal": intent.principal,
        "expires_ms": intent.expires_ms,
    }


async def intent_families(intents: Intents) -> list[Metric]:
    """How many intents there are, for `/metrics`."""
    states = Counter(intent.state for intent in await intents.live())
    return families(states, intents.book.fence, intents.warned)


def families(states: Mapping[State, int], granted: int, warned: int) -> list[Metric]:
    """The same of numbers. Pure."""
    there = GaugeMetricFamily("icetower_intents", "Intents that are held, and that wait.", labels=["state"])
    for state in (State.HELD, State.QUEUED):
        there.add_metric([state.value], states.get(state, 0))
    grants = CounterMetricFamily("icetower_intents_granted", "Intents that were granted since ever.")
    grants.add_metric([], granted)
    warnings = CounterMetricFamily("icetower_intent_warnings", "Warnings of holders, by this tower.")
    warnings.add_metric([], warned)
    return [there, grants, warnings]
