"""The control API's routes for figures: what agents' writes come to, and what jobs have measured (docs/metrics.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field
from starlette.responses import Response
from starlette.routing import Route

from icetower.admission import permissions
from icetower.ambient import Ambient
from icetower.contracts.model import Operation, Role
from icetower.errors import BadRequest
from icetower.gateway.http import Call, Front, Handler, json_response, route
from icetower.ledger.measures import Measures
from icetower.ledger.metrics import AUDIT, COLLECTOR_LAG, ORPHANS, WAL_LAG, Report, Wanted
from icetower.ledger.tallies import WINDOW_S, row_of
from icetower.observe.events import one_line
from icetower.protocol.names import Identifier
from icetower.protocol.wire import Wire, read, read_object
from icetower.service.journal import Journal
from icetower.texts import clipped

ROWS_MAX = 1_000
REPORTED_MAX = 1_000
"""Rows of one report."""

NAME_CHARACTERS_MAX = 1_000
WITNESS_CHARACTERS_MAX = 1_000
_BRINGS = (Operation.APPEND, Operation.OVERWRITE, Operation.DELETE)
_PAGE = re.compile(r"([0-9]{1,15})-([0-9a-f]{32})")


class _Orphans(Wire):
    table: Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MAX)]
    principal: Annotated[str, Field(max_length=255)] = ""
    files: Annotated[int, Field(ge=0, lt=2**53)]
    bytes: Annotated[int, Field(ge=0, lt=2**63)] = 0


class _OrphansReport(Wire):
    tables: Annotated[list[str], Field(max_length=REPORTED_MAX)]
    """Those that were looked through: what they had before and have not now is gone."""
    orphans: Annotated[list[_Orphans], Field(max_length=REPORTED_MAX)]


class _Audited(Wire):
    table: Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MAX)]
    whole: bool = True
    """From its beginning; else from where an earlier audit ended, whose findings stay."""


class _Finding(Wire):
    table: Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MAX)]
    rule: Annotated[str, Field(min_length=1, max_length=64)]
    verdict: Annotated[str, Field(min_length=1, max_length=32)]
    times: Annotated[int, Field(ge=1, lt=2**53)] = 1
    witness: Annotated[str, Field(max_length=WITNESS_CHARACTERS_MAX)] = ""


class _AuditReport(Wire):
    tables: Annotated[list[_Audited], Field(max_length=REPORTED_MAX)]
    findings: Annotated[list[_Finding], Field(max_length=REPORTED_MAX)]


class _Lag(Wire):
    table: Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MAX)]
    lag_s: Annotated[float, Field(ge=0, le=1e9)]


class _LagReport(Wire):
    lags: Annotated[list[_Lag], Field(max_length=REPORTED_MAX)]


class MetricRoutes:
    """The routes of figures."""

    def __init__(self, front: Front, measures: Measures, journal: Journal, ambient: Ambient) -> None:
        self._front = front
        self._measures = measures
        self._journal = journal
        self._ambient = ambient

    def routes(self) -> list[Route]:
        """In the order in which they are tried."""
        front, base = self._front, "/icetower/v1/metrics"
        return [
            route(front, "GET", base, self.show),
            route(front, "GET", base + "/reports", self.show_reports),
            route(front, "PUT", base + "/orphans", self.report_orphans),
            route(front, "PUT", base + "/audit", self.report_audit),
            route(front, "PUT", base + "/wal-lag", self._reporting(WAL_LAG)),
            route(front, "PUT", base + "/collector-lag", self._reporting(COLLECTOR_LAG)),
        ]

    async def show(self, call: Call) -> Response:
        """What attempts came to, by agent, table and window, newest first, and since ever.

        `?since_ms= &principal= &table= &limit= &page_token=`. A principal sees its own. The totals come with the first
        page, those with most attempts first.
        """
        since_ms = call.number("since_ms") or 0
        principal = call.query("principal") if call.principal.sees_all else call.principal.name
        # Empty names stand for the rows of all together, which are not asked for by name.
        wanted = Wanted(since_ms, principal or None, call.query("table") or None)
        limit, before = call.limit(ROWS_MAX), _page(call.query("page_token"))
        await self._journal.flush()
        await self._measures.count()
        found = await self._measures.windows(wanted, limit=limit, before=before)
        totals = [] if before is not None else await self._measures.totals(wanted, limit=limit)
        return json_response(
            {
                "window_s": WINDOW_S,
                "now_ms": self._ambient.now_ms(),
                "windows": [row_of(row.principal, row.table, row.window_ms, row.tally) for row in found.rows],
                "totals": [row_of(row.principal, row.table, None, row.tally) for row in totals],
                "next_page_token": None if found.next is None else f"{found.next[0]}-{found.next[1].hex()}",
            }
        )

    async def show_reports(self, call: Call) -> Response:
        """What jobs have measured last: orphaned files, and how far logs and delta tables are behind."""
        call.require_overseer()
        kinds = (ORPHANS, AUDIT, WAL_LAG, COLLECTOR_LAG)
        found = await self._measures.reports(kinds, limit=call.limit(ROWS_MAX, ROWS_MAX))
        return json_response({"reports": [_shown(report) for report in found]})

    async def report_orphans(self, call: Call) -> Response:
        """Keep how many orphaned files a job has found, by table and, where it is known, by who left them."""
        said = read(_OrphansReport, read_object(call.body, "report"), "report")
        _require_job(call, Role.MAINTENANCE, [*said.tables, *(each.table for each in said.orphans)], (Operation.READ,))
        now_ms = self._ambient.now_ms()
        looked = {_name(table) for table in said.tables} | {_name(each.table) for each in said.orphans}
        found = [
            Report(ORPHANS, _name(each.table), one_line(each.principal), each.files, now_ms, {"bytes": each.bytes})
            for each in said.orphans
        ]
        none = looked - {report.table for report in found}
        await self._measures.report(
            [*found, *(Report(ORPHANS, table, "", 0, now_ms, {"bytes": 0}) for table in sorted(none))],
            instead_of=looked,
        )
        return json_response({"kept": len(found)})

    async def report_audit(self, call: Call) -> Response:
        """Keep what an audit of histories has found, by table and rule."""
        call.require_administrator()
        said = read(_AuditReport, read_object(call.body, "report"), "report")
        now_ms = self._ambient.now_ms()
        found = [
            Report(
                AUDIT,
                _name(each.table),
                one_line(each.rule),
                each.times,
                now_ms,
                {"verdict": one_line(each.verdict), "witness": one_line(each.witness)},
            )
            for each in said.findings
        ]
        audited = [Report(AUDIT, _name(each.table), "", 0, now_ms) for each in said.tables]
        whole = {_name(each.table) for each in said.tables if each.whole}
        await self._measures.report([*audited, *found], instead_of=whole)
        return json_response({"kept": len(found)})

    def _reporting(self, kind: str) -> Handler:
        async def answer(call: Call) -> Response:
            """Keep how far the rows of tables are behind, in seconds."""
            said = read(_LagReport, read_object(call.body, "report"), "report")
            _require_job(call, Role.PIPELINE, [lag.table for lag in said.lags], _BRINGS)
            now_ms = self._ambient.now_ms()
            await self._measures.report([Report(kind, _name(lag.table), "", lag.lag_s, now_ms) for lag in said.lags])
            return json_response({"kept": len(said.lags)})

        return answer


def _require_job(call: Call, role: Role, tables: Sequence[str], operations: Sequence[Operation]) -> None:
    """Raises `Forbidden` unless the caller is an administrator, or has that role and may do one of these to each."""
    contract = call.principal.contract
    if call.principal.administrator:
        return
    if contract.role is not role:
        call.require_administrator()
    for table in map(Identifier.parse, tables):
        if not any(contract.grants(operation, table) for operation in operations):
            call.allow(permissions.require, operations[0], table)


def _page(token: str | None) -> tuple[int, bytes] | None:
    if token is None:
        return None
    found = _PAGE.fullmatch(token)
    if found is None:
        raise BadRequest("query parameter page_token is none that was given: begin without one")
    return int(found[1]), bytes.fromhex(found[2])


def _name(table: str) -> str:
    return clipped(one_line(table), NAME_CHARACTERS_MAX)


def _shown(report: Report) -> dict[str, Any]:
    return {
        "kind": report.kind,
        "table": report.table,
        "principal": report.source,
        "value": report.value,
        "at_ms": report.at_ms,
        **report.details,
    }
