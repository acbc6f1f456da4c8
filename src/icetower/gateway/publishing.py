"""`POST …/tables/{table}/publish` and `POST …/tables/{table}/verdicts`: a branch is published, and checked before."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from icetower.gateway.checks import CheckRate
from icetower.gateway.http import Call, Front, idempotency_key, json_response, route
from icetower.ledger.verdicts import CheckVerdict
from icetower.protocol.publishing import parse_publish, parse_verdict
from icetower.service.publishing import OPERATION, Published, Publishing

WAITING = 202
"""The status of a publication that waits for checks."""


class PublishRoutes:
    """The routes for branches that are published."""

    def __init__(self, front: Front, publishing: Publishing, rate: CheckRate) -> None:
        self._front = front
        self._publishing = publishing
        self._rate = rate

    def routes(self) -> list[Route]:
        path = "/v1/namespaces/{namespace}/tables/{table}"
        return [
            route(self._front, "POST", f"{path}/publish", self.publish, operation=OPERATION, commits=True),
            route(self._front, "POST", f"{path}/verdicts", self.report, operation="verdict"),
        ]

    async def publish(self, call: Call) -> Response:
        wanted = parse_publish(call.body)
        done = await self._publishing.publish(call.principal, call.table, wanted, idempotency_key(call.request))
        return json_response(_to_json(done, wanted.to), WAITING if done.waits_on is not None else 200)

    async def report(self, call: Call) -> Response:
        self._rate.take_turn(call.principal.name)
        verdict = await self._publishing.report(call.principal, call.table, parse_verdict(call.body))
        return json_response(_verdict(verdict.name, verdict), 201)


def _to_json(done: Published, to: str) -> dict[str, Any]:
    checks = {} if done.checks is None else done.checks
    picked = {} if done.picked is None else done.picked
    return {
        "outcome": done.outcome,
        "to": to,
        "snapshot-id": done.head.ref(to),
        "snapshots": [{"snapshot-id": at, "source": source} for at, source in done.snapshots],
        "picked": [{"snapshot-id": at, "source": source} for source, at in picked.items()],
        "check": None if done.waits_on is None else {"branch": done.waits_on[0], "snapshot-id": done.waits_on[1]},
        "checks": [_verdict(name, verdict) for name, verdict in checks.items()],
        "checked-by": list(done.checked_by),
        "unchecked": list(done.unchecked),
    }


def _verdict(name: str, verdict: CheckVerdict | None) -> dict[str, Any]:
    if verdict is None:
        return {"check": name, "passed": None, "details": "", "principal": None, "at-ms": None}
    return {
        "check": name,
        "passed": verdict.passed,
        "details": verdict.details,
        "principal": verdict.principal,
        "at-ms": verdict.at_ms,
    }
