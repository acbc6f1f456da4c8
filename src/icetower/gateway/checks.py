"""`POST /v1/namespaces/{namespace}/tables/{table}/check`: a dry run of a commit, or of what somebody intends to write.

It is answered 200 whatever the verdict: the refusal that a commit would get stands in `error`, with all its fields.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from icetower.ambient import Ambient
from icetower.contracts.model import Operation
from icetower.errors import BadRequest, TooManyRequests
from icetower.files.parsing import Parsing
from icetower.gateway.body_bounds import COMMIT, parsed
from icetower.gateway.http import Call, Front, idempotency_key, json_response, numbered, route
from icetower.gateway.token_rates import Buckets
from icetower.ledger.shadow import Shadowed
from icetower.protocol.catalog import error_body
from icetower.protocol.checks import IntentRequest, LandedRequest, parse_check
from icetower.service.checks import Checks, Intent, Verdict
from icetower.service.landings import Wanted

CHECKS = (60, 2.0)
"""By principal: so many at once, and so many more a second. One costs what judging a commit costs."""


class CheckRate:
    """How often each principal may ask."""

    def __init__(self, ambient: Ambient) -> None:
        self._ambient = ambient
        self._asked = Buckets(*CHECKS)

    def take_turn(self, name: str) -> None:
        """Raises `TooManyRequests`."""
        now_s = self._ambient.monotonic_s()
        wait_s = self._asked.wait_s(name, now_s)
        if wait_s > 0:
            raise TooManyRequests(
                f"{name} has asked for too many dry runs, or after too many writes ({CHECKS[0]} at once, then "
                f"{CHECKS[1]:.0f} a second); come back in {max(1, round(wait_s + 0.5))} s, or just commit: a refusal "
                "commits nothing either",
                rule="check.rate",
                next_step="wait_until",
                wait_until_ms=self._ambient.now_ms() + int(wait_s * 1000) + 1,
            )
        self._asked.take(name, now_s)


class CheckRoutes:
    """The route for dry runs."""

    def __init__(self, front: Front, checks: Checks, parsing: Parsing, rate: CheckRate) -> None:
        self._front = front
        self._checks = checks
        self._parsing = parsing
        self._rate = rate

    def routes(self) -> list[Route]:
        path = "/v1/namespaces/{namespace}/tables/{table}/check"
        return [route(self._front, "POST", path, self.check, body=COMMIT)]

    async def check(self, call: Call) -> Response:
        self._rate.take_turn(call.principal.name)
        wanted = await parsed(self._parsing, call.principal, parse_check, call.body)
        if isinstance(wanted, IntentRequest):
            operations = frozenset(Operation(each) for each in wanted.operations())
            intent = Intent(operations, wanted.regions(), wanted.files, wanted.size_bytes)
            verdict = await self._checks.intent(call.principal, call.table, intent)
        elif isinstance(wanted, LandedRequest):
            verdict = await self._checks.landed(call.principal, call.table, Wanted(wanted.ref, wanted.key))
        else:
            if wanted.identifier is not None and wanted.identifier != call.table:
                raise BadRequest(
                    f"the commit names table {wanted.identifier}, its path {call.table}", rule="request.name"
                )
            request = replace(wanted, identifier=call.table)
            key, application = idempotency_key(call.request), numbered(call.request)
            verdict = await self._checks.commit(call.principal, request, key, application)
        return json_response(_to_json(verdict))


def _to_json(verdict: Verdict) -> dict[str, Any]:
    error = verdict.error
    return {
        "allowed": error is None,
        "outcome": "refused" if error is not None else verdict.outcome,
        "error": None if error is None else error_body(error)["error"],
        "snapshot": verdict.snapshot,
        "operations": verdict.operations,
        "partitions": verdict.partitions,
        "shadowed": [_shadowed(each) for each in verdict.shadowed],
        "wait_ms": round(verdict.wait_s * 1000),
    }


def _shadowed(noted: Shadowed) -> dict[str, Any]:
    return {"rule": noted.rule, "message": noted.message, "partitions": list(noted.partitions)}
