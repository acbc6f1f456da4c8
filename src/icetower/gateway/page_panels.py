"""Curves of the metrics, and what operators look after: one panel each, in a list to which others are added.

A panel is a line of `PANELS`: its name, its title, and the function that reads what it shows, as rows of a table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.responses import Response
from starlette.routing import BaseRoute

from icetower.contracts.model import Role
from icetower.gateway.http import json_response
from icetower.gateway.page_http import SECURITY, Pages, Visit
from icetower.gateway.page_reading import Reading
from icetower.gateway.readiness import Readiness
from icetower.ledger.attempts import Outcome
from icetower.ledger.measures import Measures
from icetower.ledger.metrics import AUDIT, COLLECTOR_LAG, ORPHANS, WAL_LAG
from icetower.observe.bypasses import Bypasses
from icetower.observe.undeclared import Undeclared
from icetower.page.refusals import Health, Tally
from icetower.page.times import moment_text
from icetower.service.fence_counts import FenceCounts
from icetower.service.rows_in_flight import RowsInFlight

ROWS_MAX = 50
REPORTS_MAX = 1_000
WINDOW_MS = 300_000


# ── Metrics ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Window:
    """Five minutes of attempts. Times are milliseconds; a rate is a part of one, None where nothing was tried."""

    starts_ms: int
    attempts: int
    landed: int
    refused: int
    conflicts: int
    unknown: int
    latency_max_ms: float | None = None
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    retry_rate: float | None = None
    first_try_success_rate: float | None = None


class Figures(Protocol):
    """Where curves come from."""

    async def windows(self, principal: str | None, table: str | None) -> Sequence[Window]:
        """The newest windows, oldest first; of one principal and of one table, where they are given."""
        ...


# ── Panels ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Panel:
    """What a panel shows.

    Attributes:
        columns: headings.
        rows: cells; what is a mapping with `href` and `text` is a link.
        empty: what is said where there are no rows.
        note: what the rows mean, and what to do about them.
    """

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    empty: str = "Nothing."
    note: str = ""


@dataclass(frozen=True, slots=True)
class Sources:
    """What panels read from."""

    reading: Reading
    readiness: Readiness
    bypasses: Bypasses
    undeclared: Undeclared
    measures: Measures
    door: RowsInFlight
    fences: FenceCounts


@dataclass(frozen=True, slots=True)
class Entry:
    """One panel of the page of operations."""

    name: str
    title: str
    read: Callable[[Sources], Awaitable[Panel]] = field(repr=False)


async def _readiness(sources: Sources) -> Panel:
    states = await sources.readiness.states()
    rows = [(name, each.state, f"{each.took_ms:.1f} ms") for name, each in states.items()]
    return Panel(("Component", "State", "Took"), rows, note="What a commit needs, as /readyz says it.")


async def _around(sources: Sources) -> Panel:
    rows = [
        (moment_text(each.noticed_ms), _link("tables", each.table), each.operation, str(each.snapshot_id),
         ", ".join(f"{key}: {value}" for key, value in each.origin.items()))
        for each in sources.bypasses.newest(ROWS_MAX)
    ]  # fmt: skip
    return Panel(
        ("Noticed", "Table", "Operation", "Snapshot", "By"),
        rows,
        "No commit has come around the tower since it was started.",
        "Somebody writes to the catalog itself. Contracts and keys do not hold for it; `icetower audit` finds it.",
    )


async def _declarations(sources: Sources) -> Panel:
    rows = [
        (
            row["table"],
            row["principal"],
            row["declaration"],
            row["refused"],
            row["command"] or "to be given in its contract",
        )
        for row in sources.undeclared.to_json(None, None, ROWS_MAX)
    ]
    return Panel(
        ("Table", "Principal", "Declaration", "Refused", "Command"),
        rows,
        "No stale commit was refused for want of a declaration.",
        "Stale commits that were sent back since nothing says what they depend on. The command gives the declaration.",
    )


async def _jobs(sources: Sources) -> Panel:
    """Maintenance, and the pipelines that bring rows in: when each of their principals was last seen."""
    contracts, fared, principals = await asyncio.gather(
        sources.reading.in_force("role"), sources.reading.fared(None, of_tables=False), sources.reading.principals()
    )
    roles = {contract.name: contract.role for contract in contracts}
    rows: list[Sequence[Any]] = []
    for record in principals:
        role = roles.get(record.contract, Role.AGENT)
        if role is Role.AGENT or record.revoked_ms is not None:
            continue
        found = fared.get(record.name, Health(record.name, Tally(), None))
        last = "not lately" if found.last_ms is None else moment_text(found.last_ms)
        rows.append((_link("agents", record.name), role.value, found.tally.landed, found.tally.failed, last))
    return Panel(
        ("Principal", "Role", "Landed", "Not landed", "Last attempt"),
        rows[:ROWS_MAX],
        "No principal has a contract with the role maintenance or pipeline.",
        "A mediator or a collector that has stopped lets its log grow.",
    )


_BROUGHT_BY = {WAL_LAG: "mediator", COLLECTOR_LAG: "collector"}


async def _lags(sources: Sources) -> Panel:
    """How far tables are behind the logs and delta tables that rows come into them from."""
    found = await sources.measures.reports(tuple(_BROUGHT_BY), limit=REPORTS_MAX)
    found.sort(key=lambda report: (-report.value, report.table))
    rows = [
        (_link("tables", report.table), _BROUGHT_BY[report.kind], f"{report.value:,.1f} s", moment_text(report.at_ms))
        for report in found[:ROWS_MAX]
    ]
    return Panel(
        ("Table", "Brought in by", "Behind", "Said at"),
        rows,
        "No mediator and no collector has said how far it is behind.",
        "From an agent's decision until its row is visible, as the job said after its last batch. A job that has said "
        "nothing for long has stopped, and its tables are behind by that time, too.",
    )


async def _orphans(sources: Sources) -> Panel:
    """Files that no metadata refers to, as the last search left them."""
    reports = await sources.measures.reports((ORPHANS,), limit=REPORTS_MAX)
    found = sorted(filter(lambda report: report.value, reports), key=lambda report: (-report.value, report.table))
    rows = [
        (_link("tables", report.table), _link("agents", report.source) if report.source else "nobody known",
         f"{report.value:,.0f}", f"{report.details.get('bytes', 0):,}", moment_text(report.at_ms))
        for report in found[:ROWS_MAX]
    ]  # fmt: skip
    last_ms = max((report.at_ms for report in reports), default=None)
    return Panel(
        ("Table", "Left by", "Files", "Bytes", "Found at"),
        rows,
        "Nobody has looked for orphaned files yet: `icetower orphans` does."
        if last_ms is None
        else f"None: the last search was at {moment_text(last_ms)}.",
        "What agents wrote and never committed, as they do that are killed or refused. `icetower orphans` finds and "
        "removes them, as the contracts say.",
    )


async def _door(sources: Sources) -> Panel:
    """Rows that are on their way, by principal."""
    door = sources.door
    rows = [(_link("agents", name), f"{size:,d}") for name, size in door.busiest(ROWS_MAX)]
    since = f"{door.rows:,d} rows came in {door.requests:,d} requests since this tower was started"
    refused = f"; {door.refused:,d} more were told to wait" if door.refused else ""
    return Panel(
        ("Principal", "Bytes on their way"),
        rows,
        f"No rows are on their way. {since}{refused}.",
        f"{since}{refused}. At most {door.all_max_bytes:,d} bytes are on their way at once.",
    )


async def _fences(sources: Sources) -> Panel:
    """Writes of which somebody wanted to be certain that they never land."""
    rows = [
        (moment_text(each.at_ms), _link("agents", each.principal), _link("tables", each.table), each.write,
         _FENCES[each.outcome])
        for each in sources.fences.last
    ]  # fmt: skip
    counts = sources.fences.counts
    return Panel(
        ("Asked", "Principal", "Table", "Write", "What is certain"),
        rows,
        "Nobody has fenced a write since this tower was started.",
        f"Since this tower was started: fenced {counts['fenced']:,d}, had landed {counts['landed']:,d}, "
        f"unknown {counts['unknown']:,d}, refused {counts['refused']:,d}. An agent that has lost an answer "
        "fences its write (`icetower fence`) before it does it another way.",
    )


async def _audits(sources: Sources) -> Panel:
    """What audits of the tables' histories have found."""
    reports = await sources.measures.reports((AUDIT,), limit=REPORTS_MAX)
    found = sorted(filter(lambda report: report.source, reports), key=lambda report: (report.table, report.source))
    rows = [
        (_link("tables", report.table), report.source, report.details.get("verdict", ""), f"{report.value:,.0f}",
         report.details.get("witness", ""), moment_text(report.at_ms))
        for report in found[:ROWS_MAX]
    ]  # fmt: skip
    last_ms = max((report.at_ms for report in reports), default=None)
    return Panel(
        ("Table", "Rule", "Verdict", "Times", "What happened", "Found at"),
        rows,
        "No audit of the histories was reported yet: `icetower audits` does."
        if last_ms is None
        else f"Nothing is wrong: the last audit was at {moment_text(last_ms)}.",
        "Lost updates, rows that came back, files that are in a table twice: `icetower audit` says more of each.",
    )


async def _replays(sources: Sources) -> Panel:
    """Agents that sent again what had landed: as one does that was killed, and started again."""
    activity = await sources.reading.activity(None)
    rows = [
        (_link("agents", group.principal), _link("tables", group.table), group.times, moment_text(group.last_ms))
        for group in activity.groups
        if group.outcome is Outcome.REPLAYED
    ]
    return Panel(
        ("Principal", "Table", "Times", "Last"),
        rows[:ROWS_MAX],
        "Nobody has sent again what had landed.",
        "An agent that is killed and started again, or that lost an answer, sends its write once more under the same "
        "key. What it wrote and never committed are orphaned files: `icetower orphans` finds them.",
    )


_FENCES = {
    "fenced": "it never lands",
    "landed": "it had landed",
    "unknown": "nothing more lands; whether it had landed cannot be told",
    "refused": "nothing: the request failed",
}


def _link(*segments: str) -> Mapping[str, Any]:
    return {"segments": segments, "text": segments[-1]}


PANELS: Sequence[Entry] = (
    Entry("readiness", "Readiness", _readiness),
    Entry("bypasses", "Commits around the tower", _around),
    Entry("jobs", "Maintenance and pipelines", _jobs),
    Entry("door", "Rows at the door", _door),
    Entry("fences", "Writes that never land", _fences),
    Entry("lag", "Tables behind their logs", _lags),
    Entry("orphans", "Orphaned files", _orphans),
    Entry("audit", "Audit of the histories", _audits),
    Entry("replays", "Sent again", _replays),
    Entry("declarations", "Declarations that are missing", _declarations),
)
"""The page of operations, in order. A new panel is one more line."""


class PanelPageRoutes:
    """Metrics and operations."""

    def __init__(self, pages: Pages, sources: Sources, figures: Figures) -> None:
        self._pages = pages
        self._sources = sources
        self._figures = figures

    def routes(self) -> list[BaseRoute]:
        route = self._pages.route
        return [
            route("GET", "/ui/metrics", self.show_metrics),
            route("GET", "/ui/metrics/data", self.metrics_data),
            route("GET", "/ui/operations", self.show_operations),
        ]

    async def show_metrics(self, visit: Visit) -> Response:
        """Curves, and the same numbers as a table."""
        windows = await self._windows(visit)
        return await self._pages.page(
            visit,
            "metrics.html",
            "Metrics",
            windows=list(reversed(windows))[:ROWS_MAX],
            principal=self._principal(visit),
            table=visit.query("table"),
        )

    async def metrics_data(self, visit: Visit) -> Response:
        """The curves' numbers, column by column, as uPlot takes them."""
        windows = await self._windows(visit)
        names = (
            "attempts", "landed", "refused", "conflicts", "unknown", "latency_p50_ms", "latency_p99_ms",
            "latency_max_ms", "retry_rate", "first_try_success_rate",
        )  # fmt: skip
        body = {name: [getattr(window, name) for window in windows] for name in names}
        return json_response(
            {"times_s": [window.starts_ms // 1000 for window in windows], **body},
            headers={**SECURITY, "Cache-Control": "no-store"},
        )

    def _principal(self, visit: Visit) -> str | None:
        return visit.query("principal") if visit.own is None else visit.own

    async def _windows(self, visit: Visit) -> Sequence[Window]:
        principal, table = self._principal(visit), visit.query("table")

        async def read() -> Sequence[Window]:
            return await self._figures.windows(principal, table)

        return await self._sources.reading.briefly.get(("windows", principal, table), read)

    async def show_operations(self, visit: Visit) -> Response:
        """What operators look after; for administrators and viewers."""
        visit.require_overseer()
        panels = zip(PANELS, await asyncio.gather(*(entry.read(self._sources) for entry in PANELS)), strict=True)
        return await self._pages.page(visit, "operations.html", "Operations", panels=list(panels))
