"""Pages of agents, of contracts and their slots, and of what waits for a person. Whoever acts is asked once more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

from starlette.responses import Response
from starlette.routing import BaseRoute

from icetower.contracts.differences import changes
from icetower.contracts.slots import EVERY
from icetower.errors import BadRequest, Forbidden, NotFound
from icetower.escalations.escalations import Escalations
from icetower.escalations.tickets import Decision, Kind, Ticket
from icetower.gateway.http import Front
from icetower.gateway.page_http import PAGE_SIZE, Pages, Visit, redirect
from icetower.gateway.page_reading import Reading
from icetower.ledger.attempts import Search
from icetower.page.contract_words import words_of
from icetower.page.refusals import Health, Tally, by_rule, health
from icetower.page.rendering import url
from icetower.page.turns import turns_of
from icetower.registry.principals import Principal
from icetower.registry.registry import PrincipalRecord, Registry
from icetower.registry.versions import ContractVersion, parsed
from icetower.rules import Table

ATTEMPTS_SHOWN = 30
VERSIONS_SHOWN = 20
CLOSED_SHOWN = 10
UNSEEN = Tally()


class AgentPageRoutes:
    """Agents, contracts, slots, escalations and requests."""

    def __init__(
        self,
        front: Front,
        pages: Pages,
        reading: Reading,
        registry: Registry,
        escalations: Escalations,
        rules: Table,
    ) -> None:
        self._front = front
        self._pages = pages
        self._reading = reading
        self._registry = registry
        self._escalations = escalations
        self._rules = rules

    def routes(self) -> list[BaseRoute]:
        route = self._pages.route
        return [
            route("GET", "/ui/agents", self.list_agents),
            route("GET", "/ui/agents/{name}", self.show_agent),
            route("GET", "/ui/contracts", self.list_contracts),
            route("GET", "/ui/contracts/{name}", self.show_contract),
            route("GET", "/ui/slots", self.show_slots),
            route("GET", "/ui/escalations/{id}", self.show_escalation),
            route("POST", "/ui/escalations/{id}/close", self.close_escalation),
            route("GET", "/ui/requests/{id}", self.show_request),
            route("POST", "/ui/requests/{id}/close", self.close_request),
        ]

    # ── Agents ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def list_agents(self, visit: Visit) -> Response:
        """Principals: those first that are stopped or refused, then by name."""
        reading, own = self._reading, visit.own

        async def shown() -> list[PrincipalRecord]:
            if own is not None:
                return [PrincipalRecord(own, visit.principal.contract.name, 0, None)]
            return [record for record in await reading.principals() if record.revoked_ms is None]

        records, activity, fared, tickets = await asyncio.gather(
            shown(),
            reading.activity(own),
            reading.fared(own, of_tables=False),
            reading.tickets(Kind.ESCALATION, own),
        )
        stopped = {ticket.principal for ticket in tickets}
        sought = (visit.query("q") or "").lower()
        rows = [
            (record, fared.get(record.name, Health(record.name, UNSEEN, None)), record.name in stopped)
            for record in records
            if sought in record.name.lower() or sought in record.contract.lower()
        ]
        rows.sort(key=lambda row: (not row[2], -row[1].tally.failed, row[0].name))
        page = visit.number("page") or 0
        return await self._pages.page(
            visit,
            "agents.html",
            "Agents",
            rows=rows[page * PAGE_SIZE : (page + 1) * PAGE_SIZE],
            total=len(rows),
            page=page,
            more=len(rows) > (page + 1) * PAGE_SIZE,
            activity=activity,
            sought=visit.query("q") or "",
        )

    async def show_agent(self, visit: Visit) -> Response:
        """One principal: its contract in plain words, how it fares, what waits for a person, its newest attempts."""
        name = visit.path("name")
        record = await self._record(visit, name)
        principal = await self._principal(visit, record)
        of_all_kinds = (self._escalations.list(kind, principal=name, open_=None, limit=CLOSED_SHOWN) for kind in Kind)
        activity, found, listed = await asyncio.gather(
            self._reading.activity(visit.own),
            self._reading.attempts(visit.principal, Search(principal=name), limit=ATTEMPTS_SHOWN),
            asyncio.gather(*of_all_kinds),
        )
        groups = [group for group in activity.groups if group.principal == name]
        tickets = [ticket for some in listed for ticket in some]
        return await self._pages.page(
            visit,
            "agent.html",
            name,
            record=record,
            principal=principal,
            words=None if principal is None else words_of(principal.contract),
            health=health(groups, of_tables=False).get(name, Health(name, UNSEEN, None)),
            rules=by_rule(groups, self._rules.rules, self._rules.next_steps),
            activity=activity,
            open=[ticket for ticket in tickets if ticket.closing is None],
            closed=[ticket for ticket in tickets if ticket.closing is not None],
            attempts=found.attempts,
            search=url("commits", principal=name),
        )

    async def _record(self, visit: Visit, name: str) -> PrincipalRecord:
        if visit.own is not None:
            if name != visit.own:
                raise NotFound(f"there is no principal {name} that {visit.own} may see", rule="principal.exists")
            return PrincipalRecord(name, visit.principal.contract.name, 0, None)
        found = next((record for record in await self._reading.principals() if record.name == name), None)
        if found is None:
            raise NotFound(f"there is no principal {name}", rule="principal.exists")
        return found

    async def _principal(self, visit: Visit, record: PrincipalRecord) -> Principal | None:
        """The principal with its contract; None where that is not in force."""
        if visit.own is not None:
            return visit.principal
        if record.contract == visit.principal.contract.name:  # the administrators'
            return Principal(record.name, visit.principal.contract, 0)
        found = next((each for each in await self._reading.contracts() if each.name == record.contract), None)
        if found is None or found.text is None:
            return None
        return Principal(record.name, parsed(found.name, found.text), found.version)

    # ── Contracts ────────────────────────────────────────────────────────────────────────────────────────────────

    async def list_contracts(self, visit: Visit) -> Response:
        """Contracts by name, with who changed each last."""
        if visit.own is not None:
            return redirect(url("contracts", visit.principal.contract.name))
        sought = (visit.query("q") or "").lower()
        found = [each for each in await self._reading.contracts() if sought in each.name.lower()]
        bound: dict[str, int] = {}
        for record in await self._reading.principals():
            bound[record.contract] = bound.get(record.contract, 0) + (record.revoked_ms is None)
        page = visit.number("page") or 0
        return await self._pages.page(
            visit,
            "contracts.html",
            "Contracts",
            rows=[(each, bound.get(each.name, 0)) for each in found[page * PAGE_SIZE : (page + 1) * PAGE_SIZE]],
            total=len(found),
            page=page,
            more=len(found) > (page + 1) * PAGE_SIZE,
            sought=visit.query("q") or "",
        )

    async def show_contract(self, visit: Visit) -> Response:
        """A contract in plain words and as it was written, and what each version changed."""
        name = visit.path("name")
        if visit.own is not None and name != visit.principal.contract.name:
            raise Forbidden(f"{visit.own} may read its own contract only", rule="permission.administrator")
        versions = await self._registry.history(name)
        if not versions:
            raise NotFound(f"there has never been a contract {name}", rule="contract.exists")
        newest = versions[-1]
        principals = []
        if visit.own is None:
            records = await self._reading.principals()
            principals = [each.name for each in records if each.contract == name and each.revoked_ms is None]
        words, history = await self._reading.thread.run(
            lambda: (
                None if newest.text is None else words_of(parsed(name, newest.text)),
                list(reversed(_history(versions[-VERSIONS_SHOWN - 1 :])))[:VERSIONS_SHOWN],
            )
        )
        return await self._pages.page(
            visit,
            "contract.html",
            name,
            newest=newest,
            words=words,
            history=history,
            more=max(0, len(versions) - VERSIONS_SHOWN),
            principals=principals[:PAGE_SIZE],
            more_principals=max(0, len(principals) - PAGE_SIZE),
        )

    async def show_slots(self, visit: Visit) -> Response:
        """Whose turn it is, was and will be."""
        contracts = await self._reading.in_force(EVERY) if visit.own is None else [visit.principal.contract]
        turns = turns_of(contracts, self._front.ambient.now_ms())
        return await self._pages.page(visit, "slots.html", "Slots", turns=turns)

    # ── What waits for a person ──────────────────────────────────────────────────────────────────────────────────

    async def show_escalation(self, visit: Visit) -> Response:
        return await self._ticket(visit, Kind.ESCALATION)

    async def show_request(self, visit: Visit) -> Response:
        return await self._ticket(visit, Kind.REQUEST)

    async def _ticket(self, visit: Visit, kind: Kind) -> Response:
        """A ticket; with `?close=` the question whether it is to be closed."""
        ticket = await self._escalations.find(kind, visit.path("id"), visit.own)
        asked = visit.query("close")
        decision = None
        if asked is not None and ticket.closing is None and visit.principal.administrator:
            decision = _decision(kind, asked)
        found = await self._reading.attempts(
            visit.principal, Search(principal=ticket.principal, table=ticket.table), limit=ATTEMPTS_SHOWN
        )
        return await self._pages.page(
            visit, "ticket.html", ticket.title, ticket=ticket, decision=decision, attempts=found.attempts, failed=None
        )

    async def close_escalation(self, visit: Visit) -> Response:
        return await self._close(visit, Kind.ESCALATION)

    async def close_request(self, visit: Visit) -> Response:
        return await self._close(visit, Kind.REQUEST)

    async def _close(self, visit: Visit, kind: Kind) -> Response:
        """Close a ticket: of administrators, who have confirmed it. Who did it stands in the ticket and in the log."""
        principal = visit.principal
        visit.require_administrator()
        if visit.form.get("sure") != "yes":
            raise BadRequest("the page asks once more before it acts; confirm it there", rule=f"{kind}.decision")
        decision, started_s = _decision(kind, visit.form.get("decision", "")), self._front.ambient.monotonic_s()
        id_, note = visit.path("id"), visit.form.get("note", "").replace("\r\n", "\n")
        closed = await self._escalations.close_ticket(kind, id_, principal.name, decision, note)
        self._front.attempts.ended(principal.name, closed.table, f"{kind.value}-{decision.value}", started_s, None)
        self._reading.briefly.forget()
        return redirect(_address(closed))


def _address(ticket: Ticket) -> str:
    return url(f"{ticket.kind.value}s", ticket.id)


def _decision(kind: Kind, text: str) -> Decision:
    """A decision that such a ticket may have. Raises `BadRequest`."""
    allowed = (Decision.CLOSED,) if kind is Kind.ESCALATION else (Decision.GRANTED, Decision.DENIED)
    found = next((each for each in allowed if each.value == text), None)
    if found is None:
        raise BadRequest(f"a decision is one of {', '.join(allowed)}", rule=f"{kind}.decision")
    return found


def _history(versions: Sequence[ContractVersion]) -> list[tuple[ContractVersion, list[tuple[str, str]]]]:
    """Versions, each with what it changed of the one before: the kind, and the words."""
    first = [
        (
            versions[0],
            [("changes", "is the oldest that is shown here")]
            if versions[0].version > 1
            else _changed(None, versions[0]),
        )
    ]
    return first + [(now, _changed(before, now)) for before, now in pairwise(versions)]


def _changed(before: ContractVersion | None, now: ContractVersion) -> list[tuple[str, str]]:
    old, new = (None if each is None or each.text is None else parsed(each.name, each.text) for each in (before, now))
    return [(change.kind.value, change.words) for change in changes(old, new)]
