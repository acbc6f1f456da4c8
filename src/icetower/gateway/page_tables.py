"""Pages of tables and of commits: the live stream by agent, partitions, and all that is known of one attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute

from icetower.commit.head import Heads
from icetower.errors import BadRequest, IcetowerError, NotFound
from icetower.gateway.http import Front
from icetower.gateway.page_branches import BranchReading
from icetower.gateway.page_explain import Explainer, named_snapshots
from icetower.gateway.page_http import PAGE_SIZE, Pages, Visit, redirect
from icetower.gateway.page_live import Streams
from icetower.gateway.page_reading import Reading
from icetower.ledger.attempts import NOT_LANDED, Attempt, Outcome, Search
from icetower.page.commits import commit_of
from icetower.page.heat import Heat, heat_of
from icetower.page.lanes import Lanes, lanes_of
from icetower.page.refusals import Health, Tally
from icetower.page.rendering import url
from icetower.protocol.names import Identifier
from icetower.protocol.snapshots import Snapshot
from icetower.rules import Table

LIVE_SHOWN = 200
LISTED_LIVE = 25
UNSEEN = Tally()
REQUEST_CHARACTERS_MIN = 4


class TablePageRoutes:
    """Tables and commits."""

    def __init__(
        self,
        front: Front,
        pages: Pages,
        streams: Streams,
        reading: Reading,
        heads: Heads,
        explainer: Explainer,
        rules: Table,
        branches: BranchReading,
    ) -> None:
        self._front = front
        self._pages = pages
        self._streams = streams
        self._reading = reading
        self._heads = heads
        self._explainer = explainer
        self._rules = rules
        self._branches = branches

    def routes(self) -> list[BaseRoute]:
        route = self._pages.route
        return [
            route("GET", "/ui/tables", self.list_tables),
            route("GET", "/ui/tables/{name}", self.show_table),
            self._streams.route("/ui/live/tables/{name}", self.live_table),
            route("GET", "/ui/commits", self.list_commits),
            route("GET", "/ui/commits/{number}", self.show_commit),
            route("GET", "/ui/find", self.find),
        ]

    # ── Tables ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def list_tables(self, visit: Visit) -> Response:
        """Tables: those first at which most was refused lately, then by name."""
        tables, activity, fared = await asyncio.gather(
            self._reading.tables(visit.principal),
            self._reading.activity(visit.own),
            self._reading.fared(visit.own, of_tables=True),
        )
        names = map(str, tables)
        sought = (visit.query("q") or "").lower()
        rows = [fared.get(name, Health(name, UNSEEN, None)) for name in names if sought in name.lower()]
        rows.sort(key=lambda row: (-row.tally.failed, -(row.last_ms or 0), row.name))
        page = visit.number("page") or 0
        return await self._pages.page(
            visit,
            "tables.html",
            "Tables",
            rows=rows[page * PAGE_SIZE : (page + 1) * PAGE_SIZE],
            total=len(rows),
            page=page,
            more=len(rows) > (page + 1) * PAGE_SIZE,
            activity=activity,
            sought=visit.query("q") or "",
        )

    async def show_table(self, visit: Visit) -> Response:
        """One table: the stream of its commits, and its partitions as a heat map."""
        table = await self._reading.require_table(visit.principal, visit.path("name"))
        return await self._pages.page(visit, "table.html", str(table), **await self._table(visit, table))

    async def live_table(self, visit: Visit) -> tuple[Hashable, Callable[[], Awaitable[str]]]:
        """The same, as it goes on."""
        table = await self._reading.require_table(visit.principal, visit.path("name"))
        found = await self._reading.stream(str(table), visit.own, LIVE_SHOWN)
        newest = found.attempts[0][0] if found.attempts else 0
        values = await self._table(visit, table)
        return newest, lambda: self._pages.part("table_live.html", me=visit.principal, **values)

    async def _table(self, visit: Visit, table: Identifier) -> dict[str, Any]:
        reading = self._reading
        found, facts, branches, owners = await asyncio.gather(
            reading.stream(str(table), visit.own, LIVE_SHOWN),
            self._facts(table),
            self._branches.open(visit, table),
            reading.owners(visit.principal, table),
        )
        attempts = [attempt for _, attempt in found.attempts]
        newest, now_ms = found.attempts[0][0] if found.attempts else 0, self._front.ambient.now_ms()

        def draw() -> tuple[Lanes, Heat]:
            lanes, heat = lanes_of(found.attempts, now_ms), heat_of(attempts)
            writers: dict[str, dict[str, None]] = {row.partition: {} for row in heat.rows}
            for attempt in attempts:
                for name in attempt.partitions:
                    if attempt.contract and name in writers:
                        writers[name][attempt.contract] = None
            return lanes, heat.owned(reading.owned(owners, writers).get)

        lanes, heat = await reading.briefly.get(
            ("drawn", str(table), visit.own, newest), lambda: reading.thread.run(draw)
        )
        counted: dict[Outcome, int] = {}
        for attempt in attempts:
            counted[attempt.outcome] = counted.get(attempt.outcome, 0) + 1
        return {
            "table": str(table),
            "facts": facts,
            "branches": branches,
            "lanes": lanes,
            "heat": heat,
            "attempts": found.attempts[:LISTED_LIVE],
            "tally": Tally.of(counted),
            "shown": len(attempts),
        }

    async def _facts(self, table: Identifier) -> dict[str, Any] | None:
        """What the table itself says; None where it cannot be read now."""

        async def read() -> dict[str, Any] | None:
            try:
                head = await self._heads.load(table)
            except IcetowerError:
                return None
            metadata = head.metadata
            current = metadata.get("current-snapshot-id")
            snapshot = head.snapshots.get(current) if current is not None else None
            return {
                "uuid": str(metadata.get("table-uuid", "")),
                "version": metadata.get("format-version"),
                "location": str(metadata.get("location", "")),
                "snapshots": len(head.snapshots),
                "snapshot": current if snapshot is not None else None,
                "updated_ms": metadata.get("last-updated-ms"),
                "rows": None if snapshot is None else Snapshot(snapshot).summary.get("total-records"),
            }

        return await self._reading.briefly.get(("facts", str(table)), read)

    # ── Commits ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def list_commits(self, visit: Visit) -> Response:
        """A page of the log, newest first."""
        outcome, snapshot = visit.query("outcome"), visit.number("snapshot")
        outcomes: tuple[Outcome, ...] = NOT_LANDED if outcome == "failed" else ()
        if outcome in tuple(Outcome):
            outcomes = (Outcome(outcome),)
        wanted = Search(
            table=visit.query("table"),
            principal=visit.query("principal") if visit.own is None else visit.own,
            outcomes=outcomes,
            request_id=visit.query("request"),
            snapshot=snapshot,
        )
        found = await self._reading.attempts(visit.principal, wanted, limit=PAGE_SIZE, before=visit.number("before"))
        asked = {
            "table": wanted.table,
            "principal": visit.query("principal") if visit.own is None else None,
            "outcome": outcome,
            "request": wanted.request_id,
            "snapshot": snapshot,
        }
        if len(found.attempts) == 1 and (wanted.request_id or snapshot) and visit.query("before") is None:
            return redirect(url("commits", str(found.attempts[0][0])))
        return await self._pages.page(
            visit,
            "commits.html",
            "Commits",
            attempts=found.attempts,
            asked=asked,
            outcomes=list(Outcome),
            older=None if found.next is None else url("commits", before=found.next, **asked),
        )

    async def find(self, visit: Visit) -> Response:
        """An attempt by what an agent or a log says of it: the id of its request, its snapshot, or its number."""
        text = (visit.query("q") or "").strip()
        if not text:
            return redirect(url("commits"))
        if text.isascii() and text.isdigit() and len(text) > 12:
            return redirect(url("commits", snapshot=text[:19]))
        if len(text) < REQUEST_CHARACTERS_MIN or not text.isalnum() or not text.isascii():
            raise BadRequest("give the id of a request, at least its first four characters, or a snapshot's id")
        return redirect(url("commits", request=text.lower()))

    async def show_commit(self, visit: Visit) -> Response:
        """All that is known of one attempt."""
        number = visit.number("number", visit.path("number"))
        assert number is not None
        attempt = await self._reading.attempt(number)
        if attempt is None or (visit.own is not None and attempt.principal != visit.own):
            raise NotFound(f"the log has no attempt {number} that {visit.principal.name} may see", rule="exists")
        group, timeline = await asyncio.gather(self._group(visit, number, attempt), self._explainer.timeline(attempt))
        shown = commit_of(number, attempt, self._rules)
        return await self._pages.page(
            visit,
            "commit.html",
            f"{attempt.operation} on {attempt.table}",
            number=number,
            attempt=attempt,
            shown=shown,
            group=group,
            timeline=timeline,
            named=named_snapshots(attempt.message),
        )

    async def _group(self, visit: Visit, number: int, attempt: Attempt) -> list[tuple[int, Attempt]]:
        """What went in with the same swap: those that were logged beside it, on the same head."""
        size = min(attempt.group_size or 0, PAGE_SIZE)
        if size < 2:
            return []
        beside = await self._reading.numbered(range(max(1, number - 2 * size), number + 2 * size + 1))
        return [
            (at, other)
            for at, other in sorted(beside.items())
            if at != number
            and (other.table, other.head, other.group_size) == (attempt.table, attempt.head, attempt.group_size)
            and (visit.own is None or other.principal == visit.own)
        ]
