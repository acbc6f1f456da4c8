"""The control API's routes for alerts: `/icetower/v1/alerts`. An agent sees its own; an administrator silences them."""

from __future__ import annotations

from typing import Annotated, Any

from prometheus_client.core import GaugeMetricFamily
from pydantic import Field
from starlette.responses import Response
from starlette.routing import Route

from icetower.alerts.alerts import REASON_CHARACTERS_MAX, RULE, SILENT_MAX_S, Alerts
from icetower.errors import BadRequest, NotFound
from icetower.gateway.http import Call, Front, json_response, no_content, route
from icetower.protocol.wire import Wire, read, read_object


class _About(Wire):
    id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    rule: Annotated[str, Field(min_length=1, max_length=64)] | None = None

    @property
    def name(self) -> str:
        """What is silenced. Raises `BadRequest` unless one of both is given."""
        if self.id is not None and self.rule is None:
            return self.id
        if self.rule is not None and self.id is None:
            return RULE + self.rule
        raise BadRequest("say which: the id of an alert, or a rule", rule="shape")


class _Silence(_About):
    for_s: Annotated[float, Field(gt=0, le=SILENT_MAX_S)]
    reason: Annotated[str, Field(min_length=1, max_length=REASON_CHARACTERS_MAX)]


class AlertRoutes:
    """The routes of alerts."""

    def __init__(self, front: Front, alerts: Alerts) -> None:
        self._front = front
        self._alerts = alerts

    def routes(self) -> list[Route]:
        front, base = self._front, "/icetower/v1/alerts"
        return [
            route(front, "GET", base, self.show),
            route(front, "POST", base + "/silence", self.silence),
            route(front, "DELETE", base + "/silence", self.speak),
        ]

    async def show(self, call: Call) -> Response:
        """Alerts, those that fire first, and the rules."""
        own = None if call.principal.sees_all else call.principal.name
        found = await self._alerts.shown(own)
        return json_response({"alerts": found, "rules": [rule.to_json() for rule in self._alerts.rules]})

    async def silence(self, call: Call) -> Response:
        """Nobody is told of an alert, or of what a rule finds, for a time."""
        call.require_administrator()
        said = read(_Silence, read_object(call.body, "silence"), "silence")
        silence = await self._alerts.silence(said.name, said.for_s, call.principal.name, said.reason)
        return json_response({"about": silence.about, "silenced_until_ms": silence.until_ms, "silenced_by": silence.by})

    async def speak(self, call: Call) -> Response:
        """End a silence: `{"id"}` or `{"rule"}`, in the body or in the query."""
        call.require_administrator()
        given: dict[str, Any] = {name: text for name in ("id", "rule") if (text := call.query(name)) is not None}
        about = read(_About, read_object(call.body, "silence") if call.body else given, "silence")
        if not await self._alerts.speak(about.name):
            what = f"rule {about.rule}" if about.rule else f"alert {about.id}"
            raise NotFound(f"{what} is not silenced; `icetower alerts list` shows what is", rule="alert.exists")
        return no_content()


async def alert_families(alerts: Alerts) -> list[GaugeMetricFamily]:
    """How many alerts there are, for `/metrics`."""
    family = GaugeMetricFamily("icetower_alerts", "Alerts by rule and state.", labels=["rule", "state"])
    for pair, count in sorted((await alerts.counts()).items()):
        family.add_metric(list(pair), count)
    return [family]
