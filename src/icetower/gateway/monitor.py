"""What one tower shows of its figures and does about them: `/metrics`, the routes of figures, and alerts."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import Metric
from starlette.routing import Route

from icetower.alerts.alerts import Alerts, Recipients
from icetower.ambient import Ambient
from icetower.commit.engine import Engine
from icetower.errors import ConfigurationError
from icetower.escalations.escalations import Escalations
from icetower.gateway.alerts import AlertRoutes, alert_families
from icetower.gateway.exposition import Local
from icetower.gateway.http import Front
from icetower.gateway.intents import intent_families
from icetower.gateway.metrics import MetricRoutes
from icetower.gateway.scrape import Scrape, ScrapeRoutes, free_bytes, hash_of_token
from icetower.gateway.settings import Settings
from icetower.ledger.measures import Measures
from icetower.ledger.metrics import BYPASS, Report
from icetower.observe.bypasses import Bypass
from icetower.registry.registry import Registry
from icetower.service.attempts import Attempts
from icetower.service.fence_counts import FenceCounts
from icetower.service.intents import Intents
from icetower.service.journal import Journal
from icetower.service.rows_in_flight import RowsInFlight


@dataclass(frozen=True, slots=True)
class Monitor:
    """One for a tower."""

    measures: Measures
    journal: Journal
    scrape: Scrape
    alerts: Alerts
    token_hash: bytes | None
    looks: bool

    def routes(self, front: Front) -> list[Route]:
        """In the order in which they are tried."""
        rooms = (
            ScrapeRoutes(front, self.scrape, self.token_hash),
            MetricRoutes(front, self.measures, self.journal, front.ambient),
            AlertRoutes(front, self.alerts),
        )
        return [each for room in rooms for each in room.routes()]

    def start(self) -> None:
        """Begin to look at the figures, on the event loop that runs."""
        if self.looks:
            self.alerts.start()

    async def close(self) -> None:
        await self.alerts.close()
        self.scrape.close()


def monitor_of(
    settings: Settings,
    data: Path,
    registry: Registry,
    measures: Measures,
    escalations: Escalations,
    journal: Journal,
    attempts: Attempts,
    engine: Engine,
    door: RowsInFlight,
    fences: FenceCounts,
    ambient: Ambient,
    intents: Intents,
) -> Monitor:
    """Put it together. Raises `ConfigurationError` for alerts or a token that cannot be."""
    said, server = settings.alerts, settings.server
    if said.webhook is not None and said.webhook not in settings.escalations.webhooks:
        raise ConfigurationError(
            f"[alerts] webhook {said.webhook!r} is none of [escalations.webhooks]", rule="configuration.alerts"
        )
    alerts = Alerts(
        registry,
        measures,
        escalations,
        ambient,
        said.rules_in_force(),
        Recipients(said.webhook, said.mail),
        every_s=said.every_s,
        name=f"{socket.gethostname()}:{server.port}",
        free_bytes=lambda: free_bytes(data),
    )

    def local() -> Local:
        rows = (door.requests, door.rows, door.refused, door.size_bytes)
        backlog = (journal.waiting, journal.dropped_ever)
        return Local(engine.queued(), attempts.swaps, attempts.swap_s, *backlog, None, *rows, fences=fences.counts)

    async def more() -> list[Metric]:
        return [*await alert_families(alerts), *await intent_families(intents)]

    scrape = Scrape(measures, ambient, local, data, more)
    return Monitor(measures, journal, scrape, alerts, hash_of_token(server, os.environ), said.enabled)


def report_of(bypass: Bypass) -> Report:
    """A commit around the tower, as the ledger counts it: the same, whichever tower noticed it."""
    details = {"partitions": list(bypass.partitions), "origin": dict(bypass.origin), "operation": bypass.operation}
    return Report(BYPASS, bypass.table, str(bypass.snapshot_id), 1.0, bypass.noticed_ms, details)
