"""The page of one tower, put together once at its start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.routing import BaseRoute

from icetower import rules
from icetower.commit.head import Heads
from icetower.escalations.escalations import Escalations
from icetower.files.parsing import Parsing
from icetower.gateway.http import Front
from icetower.gateway.monitor import Monitor
from icetower.gateway.page import FrontPageRoutes
from icetower.gateway.page_agents import AgentPageRoutes
from icetower.gateway.page_branches import BranchReading
from icetower.gateway.page_explain import Explainer
from icetower.gateway.page_figures import MeasuredFigures
from icetower.gateway.page_http import Pages
from icetower.gateway.page_leases import LeasePageRoutes
from icetower.gateway.page_live import Streams
from icetower.gateway.page_panels import PanelPageRoutes, Sources
from icetower.gateway.page_reading import Briefly, Reading
from icetower.gateway.page_sessions import Sessions
from icetower.gateway.page_tables import TablePageRoutes
from icetower.gateway.page_thread import PageThread
from icetower.gateway.readiness import Readiness
from icetower.gateway.token_rates import TokenRates
from icetower.observe.bypasses import Bypasses
from icetower.observe.events import Events
from icetower.observe.posting import Poster
from icetower.observe.traces import Traces
from icetower.observe.undeclared import Undeclared
from icetower.page.assets import read_assets
from icetower.page.rendering import Renderer
from icetower.registry.registry import Registry
from icetower.service.attempts import Attempts
from icetower.service.fence_counts import FenceCounts
from icetower.service.intents import Intents
from icetower.service.journal import Journal
from icetower.service.publishing import Publishing
from icetower.service.rows_in_flight import RowsInFlight
from icetower.upstream.port import Upstream


@dataclass(frozen=True, slots=True)
class Watch:
    """What a tower notices of itself and of others."""

    events: Events
    attempts: Attempts
    bypasses: Bypasses
    undeclared: Undeclared
    readiness: Readiness
    monitor: Monitor
    door: RowsInFlight
    fences: FenceCounts
    traces: Traces | None
    lineage: Poster | None


@dataclass(frozen=True, slots=True)
class PageOfTower:
    """The page. `streams` are to be stopped before the server drains."""

    streams: Streams
    rooms: Sequence[FrontPageRoutes | AgentPageRoutes | TablePageRoutes | LeasePageRoutes | PanelPageRoutes]
    thread: PageThread

    def routes(self) -> list[BaseRoute]:
        return [each for room in self.rooms for each in room.routes()]


def page_of(
    front: Front,
    rates: TokenRates,
    registry: Registry,
    journal: Journal,
    escalations: Escalations,
    upstream: Upstream,
    heads: Heads,
    parsing: Parsing,
    watch: Watch,
    intents: Intents,
    publishing: Publishing,
) -> PageOfTower:
    """The page of a tower, from its parts."""
    assets, table = read_assets(), rules.table()
    sessions = Sessions(front, rates)
    thread = PageThread()
    pages = Pages(front, sessions, Renderer(assets, front.ambient.now_ms), thread)
    streams = Streams(pages)
    ambient = front.ambient
    reading = Reading(registry, journal, escalations, upstream, heads, parsing, ambient, Briefly(ambient), thread)
    known = watch.readiness, watch.bypasses, watch.undeclared, watch.monitor.measures, watch.door, watch.fences
    sources = Sources(reading, *known)
    return PageOfTower(
        streams,
        (
            FrontPageRoutes(
                front,
                pages,
                streams,
                sessions,
                reading,
                watch.bypasses,
                watch.undeclared,
                assets,
                table,
                watch.monitor.alerts.shown,
            ),
            AgentPageRoutes(front, pages, reading, registry, escalations, table),
            TablePageRoutes(
                front, pages, streams, reading, heads, Explainer(heads), table, BranchReading(reading, publishing)
            ),
            LeasePageRoutes(front, pages, streams, reading, intents),
            PanelPageRoutes(pages, sources, MeasuredFigures(watch.monitor.measures, journal, ambient, reading.briefly)),
        ),
        thread,
    )
