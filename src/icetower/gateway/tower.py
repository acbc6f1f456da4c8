"""Everything that one running tower holds, put together once at its start."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.routing import BaseRoute

from icetower.admission.gate import Files, Gate
from icetower.admission.quotas import RateLimits
from icetower.admission.shadow import ShadowRecorder
from icetower.ambient import Ambient
from icetower.commit.engine import Engine, Limits
from icetower.commit.gatekeeper import Gatekeeper
from icetower.commit.head import Heads
from icetower.commit.replays import Replays
from icetower.commit.safe_refusals import SafeRefusals
from icetower.contracts.model import ADMINISTRATOR_NAME
from icetower.database import Database, sqlite_url
from icetower.escalations.approvals import Approvals, DryApprovals
from icetower.escalations.escalations import Escalations
from icetower.files.changes import Manifests
from icetower.files.deletes import Contents, Vectors
from icetower.files.footers import Footers
from icetower.gateway.checks import CheckRate, CheckRoutes
from icetower.gateway.control import ADMIN_SECRET_FILE, ControlRoutes
from icetower.gateway.deliveries import DeliveryRoutes
from icetower.gateway.escalations import EscalationRoutes
from icetower.gateway.events import EventRoutes
from icetower.gateway.http import Front
from icetower.gateway.iceberg import CatalogRoutes
from icetower.gateway.intake import Intake
from icetower.gateway.intent_events import IntentEvents
from icetower.gateway.intents import IntentRoutes
from icetower.gateway.landings import LandingRoutes
from icetower.gateway.mcp_mount import McpMount
from icetower.gateway.monitor import monitor_of, report_of
from icetower.gateway.oauth import OAuthRoutes
from icetower.gateway.page_tower import PageOfTower, Watch, page_of
from icetower.gateway.publishing import PublishRoutes
from icetower.gateway.readiness import readiness_of
from icetower.gateway.settings import Server, Settings, data_directory
from icetower.gateway.shadow import ShadowRoutes
from icetower.gateway.slots import SlotRoutes
from icetower.gateway.token_rates import TokenRates
from icetower.intents.fencing import Fencing
from icetower.intents.store import NUMBER_OF_CHANGES, Store, end_revoked
from icetower.ledger.ledger import Ledger
from icetower.ledger.measures import Measures
from icetower.ledger.verdicts import Verdicts
from icetower.ledger.writers import Writers
from icetower.observe.bypasses import Bypasses
from icetower.observe.events import Events
from icetower.observe.openlineage import Names
from icetower.observe.posting import Poster
from icetower.observe.traces import Traces, open_traces
from icetower.observe.undeclared import Undeclared
from icetower.recent import Budget
from icetower.registry.registry import Registry, revoked_among
from icetower.registry.tokens import Lifetimes
from icetower.service.attempts import Attempts, Heard
from icetower.service.authors import Authors
from icetower.service.changes import Changes
from icetower.service.checks import Checks
from icetower.service.commits import Commits
from icetower.service.fence_counts import FenceCounts
from icetower.service.in_force import InForce
from icetower.service.intents import Intents
from icetower.service.journal import Journal
from icetower.service.landings import Landings
from icetower.service.lifecycle import Lifecycle
from icetower.service.lineage import Lineage
from icetower.service.outcomes import Outcomes
from icetower.service.owners import Owners
from icetower.service.publishing import Publishing
from icetower.service.rows_in_flight import RowsInFlight
from icetower.service.slots import Slots
from icetower.service.under_way import UnderWay
from icetower.storage.file_io import FileIOStorage
from icetower.storage.port import Storage
from icetower.upstream.port import Upstream
from icetower.upstream.sql import SqlUpstream

ADMIN_NAME = "admin"


@dataclass(frozen=True, slots=True)
class Lake:
    """The catalog and the warehouse that a tower stands in front of, and what it knows of their tables."""

    upstream: Upstream
    storage: Storage
    manifests: Manifests
    heads: Heads
    budget: Budget


@dataclass(frozen=True, slots=True)
class Records:
    """What a tower keeps in its own databases."""

    registry: Registry
    ledger: Ledger
    journal: Journal
    escalations: Escalations
    databases: Sequence[Database]


@dataclass(frozen=True, slots=True)
class Tower:
    """One running tower.

    Attributes:
        data: the directory with its databases and its administrator's secret.
    """

    settings: Settings
    data: Path
    lake: Lake
    records: Records
    watch: Watch
    engine: Engine
    lifecycle: Lifecycle
    commits: Commits
    checks: Checks
    landings: Landings
    publishing: Publishing
    intents: Intents
    slots: Slots
    front: Front
    token_rates: TokenRates
    page: PageOfTower
    mcp: McpMount

    def routes(self) -> list[BaseRoute]:
        """All routes, in the order in which they are tried."""
        front, lake, records, watch = self.front, self.lake, self.records, self.watch
        rate = CheckRate(front.ambient)
        rooms = (
            OAuthRoutes(front, self.token_rates),
            CatalogRoutes(
                front,
                self.commits,
                self.lifecycle,
                lake.heads,
                lake.upstream,
                records.escalations,
                lake.manifests.parsing,
                records.journal,
                self.settings,
            ),
            CheckRoutes(front, self.checks, lake.manifests.parsing, rate),
            LandingRoutes(front, self.landings, rate),
            PublishRoutes(front, self.publishing, rate),
            IntentRoutes(front, self.intents),
            SlotRoutes(front, self.slots),
            IntentEvents(front, self.intents),
            ControlRoutes(
                front,
                self.lake.manifests.parsing,
                records.registry,
                records.journal,
                records.escalations,
                watch.bypasses,
                watch.undeclared,
                watch.readiness,
                self.settings.server,
                self.data,
            ),
            EventRoutes(front, records.journal, lake.manifests.parsing, self.settings.events.keep),
            DeliveryRoutes(front, lake.heads, self.slots, front.ambient),
            EscalationRoutes(front, records.escalations),
            ShadowRoutes(front, records.registry, records.journal),
            self.mcp,
        )
        rows = (each for room in rooms for each in room.routes())
        return [*rows, *watch.monitor.routes(front), *self.page.routes()]

    async def start(self) -> None:
        """Make an administrator where there is none, and begin to send what waits for people."""
        await self._ensure_administrator()
        self.records.escalations.start()
        self.watch.monitor.start()

    def let_go(self) -> None:
        """The tower is about to stop: whoever only listens or waits is answered now."""
        self.page.streams.stop()
        self.intents.let_go()

    async def close(self) -> None:
        """Finish what waits, write what is to be written, let go of files and threads."""
        self.page.thread.close()
        self.let_go()
        await self.watch.monitor.close()
        await self.mcp.close()
        await self.engine.drain()
        await self.intents.close()
        await self.records.journal.close()
        await self.records.escalations.close()
        await self.watch.bypasses.close()
        await self.watch.readiness.close()
        if self.watch.lineage is not None:
            await self.watch.lineage.close()
        if self.watch.traces is not None:
            await self.watch.traces.close()
        self.watch.events.close()
        await self.lake.upstream.close()
        for database in self.records.databases:
            database.close()

    async def _ensure_administrator(self) -> None:
        """At the first start of a data directory: an administrator, its secret in a file only its owner can read."""
        registry = self.records.registry
        if await registry.principals():
            return
        secret = await registry.create_principal(ADMIN_NAME, ADMINISTRATOR_NAME)
        path = self.data / ADMIN_SECRET_FILE
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secret + "\n")


def open_tower(settings: Settings, ambient: Ambient, *, open_to_all: bool = False) -> Tower:
    """Open the databases of a tower, and put its parts together.

    Raises:
        ConfigurationError: the data directory or a database cannot be used.
    """
    server, given = settings.server, settings.upstream.uri
    data = data_directory(server.data, ["control.db", *([] if given else ["catalog.db"])])
    control = Database(sqlite_url(data / "control.db"), own=True, name="the control database (control.db)")
    catalog = Database(given or sqlite_url(data / "catalog.db"), own=given is None, name="the catalog's database")
    upstream = SqlUpstream(catalog, settings.upstream.catalog)
    storage = FileIOStorage(settings.storage, threads=server.storage_threads)
    warehouse = settings.upstream.warehouse or f"file://{data}/warehouse"  # as it is: nothing is unquoted
    readiness = readiness_of(
        upstream, storage, control, ambient, warehouse=warehouse, data=data, disk_min_bytes=server.disk_min_bytes
    )

    registry = _registry(control, ambient, server)
    ledger = Ledger(control, ambient, lifetime_s=server.key_lifetime_s, events_max=settings.events.keep)
    events, budget = Events(ambient, lines_max=server.log_lines_max or None), Budget(server.cache_max_bytes)
    escalations = Escalations(registry, ambient, settings.escalations.channels(os.environ), events)
    manifests = Manifests(storage, budget=budget)
    bypasses = Bypasses(manifests, ambient, events, lambda bypass: journal.put(report_of(bypass)))
    heads = _heads(server, upstream, storage, budget, ledger, ambient, bypasses, manifests)
    journal = Journal(ledger, heads.group_keys, ambient)
    traces, lineage, heard = _followers(settings, ambient, events, journal)
    attempts = Attempts(ambient, events, journal.put, slow_s=server.slow_swap_s, heard=heard, traces=traces)
    lake = Lake(upstream, storage, manifests, heads, budget)
    records = Records(registry, ledger, journal, escalations, [control, catalog])
    undeclared, door, fences = Undeclared(ambient, events), RowsInFlight(), FenceCounts()
    (fencing, intents, slots), limits = _intents(control, registry, heads, journal, ambient), _limits(server)
    gatekeeper = Gatekeeper(registry, ledger, heads.group_keys, journal.flush, fencing)
    engine = Engine(upstream, storage, heads, manifests, ambient, gatekeeper, limits, attempts.swapped)
    measures = Measures(control)
    measured = measures, escalations, journal, attempts, engine, door, fences, ambient, intents
    monitor = monitor_of(settings, data, registry, *measured)
    watch = Watch(events, attempts, bypasses, undeclared, readiness, monitor, door, fences, traces, lineage)
    lifecycle = Lifecycle(
        upstream,
        storage,
        heads,
        manifests,
        ambient,
        warehouse=warehouse,
        ledger=ledger,
        client_code=settings.client_code,
        data=str(data.absolute()),
    )
    shadow = ShadowRecorder(ambient, journal.put)
    files, owners = _files(manifests, storage, budget), Owners(registry, ambient)
    rates, code = RateLimits(ambient, shadow, deadline_s=server.queue_deadline_s), settings.client_code
    approvals = Approvals(registry, escalations, ambient)
    gate = Gate(files, escalations, rates, shadow, registry, lifecycle, ambient, code, approvals)
    outcomes = Outcomes(escalations, owners, attempts, undeclared)
    replays, under_way = Replays(heads, ledger), UnderWay()
    landings = Landings(heads, replays, engine, under_way, ambient, fences, key_lifetime_ms=limits.lately_ms)
    dry = ambient, code, DryApprovals(approvals), intents
    checks = Checks(files, escalations, rates, registry, lifecycle, engine, heads, replays, landings, owners, *dry)
    writers = Writers(ledger, ambient)
    refusals = SafeRefusals(upstream, heads, replays, ledger, manifests, writers, engine.live)
    deciding = gate, engine, heads, replays, refusals, writers
    commits = Commits(*deciding, lifecycle, gatekeeper, outcomes, journal, ambient, door, under_way, intents)
    kept = writers, outcomes, journal, Verdicts(control, ambient), ambient
    whose = intents, Authors(registry, storage)
    publishing = Publishing(gate, engine, heads, replays, *kept, *whose, key_lifetime_ms=limits.lately_ms)
    intake = Intake(server, ambient, open_to_all=open_to_all)
    front = Front(registry, intake, attempts, journal, shadow, ambient, server, open_to_all, traces=traces)
    token_rates, mcp = TokenRates(ambient), McpMount(front, settings.storage)
    shown = watch, intents, publishing
    page = page_of(front, token_rates, registry, journal, escalations, upstream, heads, manifests.parsing, *shown)
    rooms = engine, lifecycle, commits, checks, landings, publishing, intents, slots
    return Tower(settings, data, lake, records, watch, *rooms, front, token_rates, page, mcp)


def _registry(control: Database, ambient: Ambient, server: Server) -> Registry:
    """The registry; what it reads for each request has the number of changes of intents beside its own.

    A revocation ends the intents of its principals.
    """
    lifetimes = Lifetimes(server.token_ttl_s, server.token_renewal_max_s)
    return Registry(control, ambient, lifetimes, beside=NUMBER_OF_CHANGES, on_revoked=end_revoked)


def _heads(
    server: Server,
    upstream: Upstream,
    storage: Storage,
    budget: Budget,
    ledger: Ledger,
    ambient: Ambient,
    bypasses: Bypasses,
    manifests: Manifests,
) -> Heads:
    return Heads(
        upstream,
        storage,
        budget=budget,
        metadata_max_bytes=server.metadata_max_bytes,
        ledger=ledger,
        ambient=ambient,
        on_bypass=bypasses.noticed,
        parsing=manifests.parsing,
    )


def _intents(
    control: Database, registry: Registry, heads: Heads, journal: Journal, ambient: Ambient
) -> tuple[Fencing, Intents, Slots]:
    store = Store(control, ambient, lambda: registry.beside, revoked_among)
    fencing = Fencing(store)
    intents = Intents(store, fencing, heads, ambient, journal.put)
    return fencing, intents, Slots(store, intents, heads, InForce(registry, ambient), ambient)


def _files(manifests: Manifests, storage: FileIOStorage, budget: Budget) -> Files:
    contents = Contents(storage, budget=budget)
    return Files(manifests, Footers(storage, budget=budget), Vectors(storage), contents)


def _limits(server: Server) -> Limits:
    return Limits(
        deadline_s=server.queue_deadline_s,
        metadata_max_bytes=server.metadata_max_bytes,
        lately_ms=server.key_lifetime_s * 1000,
    )


def _followers(
    settings: Settings, ambient: Ambient, events: Events, journal: Journal
) -> tuple[Traces | None, Poster | None, list[Heard]]:
    """Traces, what sends OpenLineage's events, and all that hear of each attempt; nothing where nobody wants them."""
    traced = settings.traces.wanted()
    traces = None if traced is None else open_traces(traced, ambient)
    heard = [Changes(journal.put, ambient).heard] if settings.events.keep else []
    wanted, address = settings.lineage, settings.lineage.address(os.environ)
    if address is None:
        return traces, None, heard
    poster = Poster(
        address,
        "lineage",
        ambient,
        events,
        queue_max=wanted.queue_max,
        timeout_s=wanted.timeout_s,
        retry_for_s=wanted.retry_for_s,
    )
    names = Names(wanted.namespace, wanted.catalog or settings.upstream.catalog)
    return traces, poster, [*heard, Lineage(poster, names, ambient).heard]
