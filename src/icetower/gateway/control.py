"""The control API, `/icetower/v1/…`: contracts, principals and the log of commits, for people and their tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from icetower.contracts.document import load
from icetower.contracts.model import Contract
from icetower.errors import BadRequest, CommitConflict, Forbidden, NotFound, Unavailable
from icetower.escalations.escalations import Escalations
from icetower.files.parsing import Parsing
from icetower.gateway.body_bounds import MIDDLE
from icetower.gateway.http import Call, Front, json_response, no_content, route
from icetower.gateway.readiness import OK, Readiness, State
from icetower.gateway.settings import Server
from icetower.ledger.attempts import NOT_LANDED, Outcome, Search
from icetower.ledger.forgetting import TEXT_CHARACTERS_MAX, TEXT_CHARACTERS_MIN
from icetower.observe.bypasses import Bypasses
from icetower.observe.undeclared import Undeclared
from icetower.protocol.wire import Wire, read, read_object
from icetower.registry.proof import NONCE_CHARACTERS, PROOF_PATH, proof_of
from icetower.registry.registry import Registry
from icetower.registry.versions import Proposal
from icetower.service.journal import Journal

ADMIN_SECRET_FILE = "admin.token"  # noqa: S105 - the name of a file

RECENT_MAX = 1_000
"""Rows of one answer."""

CONTRACTS_MAX = 1_000
"""Contracts in one request."""


class _NewPrincipal(Wire):
    name: str
    contract: str


GRACE_MAX_S = 7 * 24 * 3600
"""So long a secret may still be good beside the one that replaces it."""


class _Proposed(Wire):
    text: str
    expected: int | None = None


class _Proposals(Wire):
    contracts: list[_Proposed]
    message: str | None = None


class _Rotation(Wire):
    grace_s: Annotated[float, Field(ge=0, le=GRACE_MAX_S)] = 0.0


class _Erasure(Wire):
    text: Annotated[str, Field(min_length=TEXT_CHARACTERS_MIN, max_length=TEXT_CHARACTERS_MAX)]


class _Restoration(Wire):
    version: int | None = None
    expected: int | None = None
    message: str | None = None


class ControlRoutes:
    """The routes of the control API, and what shows that a tower lives.

    Args:
        data: the directory with the administrator's secret.
    """

    def __init__(
        self,
        front: Front,
        parsing: Parsing,
        registry: Registry,
        journal: Journal,
        escalations: Escalations,
        bypasses: Bypasses,
        undeclared: Undeclared,
        readiness: Readiness,
        server: Server,
        data: Path,
    ) -> None:
        self._front = front
        self._parsing = parsing
        self._registry = registry
        self._journal = journal
        self._escalations = escalations
        self._bypasses = bypasses
        self._undeclared = undeclared
        self._readiness = readiness
        self._server = server
        self._data = data

    def routes(self) -> list[Route]:
        """In the order in which they are tried."""
        front = self._front
        base = "/icetower/v1"
        return [
            Route(PROOF_PATH, self._prove, methods=["GET"]),
            Route("/healthz", self._alive, methods=["GET"]),
            Route("/readyz", self._ready, methods=["GET"]),
            route(front, "GET", base + "/readiness", self.show_readiness),
            route(front, "GET", base + "/me", self.me),
            route(front, "GET", base + "/contracts", self.list_contracts),
            route(front, "POST", base + "/contracts", self.apply_contract, body=MIDDLE),
            route(front, "POST", base + "/contracts/apply", self.apply_contracts, body=MIDDLE),
            route(front, "GET", base + "/contracts/{name}", self.show_contract),
            route(front, "GET", base + "/contracts/{name}/history", self.contract_history),
            route(front, "POST", base + "/contracts/{name}/restore", self.restore_contract),
            route(front, "DELETE", base + "/contracts/{name}", self.revoke_contract),
            route(front, "GET", base + "/principals", self.list_principals),
            route(front, "POST", base + "/principals", self.create_principal),
            route(front, "DELETE", base + "/principals/{name}", self.revoke_principal),
            route(front, "POST", base + "/principals/{name}/rotate", self.rotate_principal),
            route(front, "GET", base + "/commits", self.recent_commits),
            route(front, "GET", base + "/commits/log", self.log_of_commits),
            route(front, "GET", base + "/commits/summary", self.summarise_commits),
            route(front, "POST", base + "/commits/forget", self.forget),
            route(front, "GET", base + "/bypasses", self.recent_bypasses),
            route(front, "GET", base + "/undeclared", self.count_undeclared),
        ]

    async def _alive(self, _: Request) -> Response:
        return json_response({"status": "ok"})

    async def _ready(self, _: Request) -> Response:
        """200, or 503 where a component is not ready: the name and state of each, and nothing else."""
        states = await self._readiness.states()
        good = _all_ready(states)
        shown = {name: each.state for name, each in states.items()}
        body = {"status": "ready" if good else "not ready", "components": shown}
        return json_response(body, 200 if good else 503, {"Cache-Control": "no-store"})

    async def _prove(self, request: Request) -> Response:
        """That this is the tower of its data directory, for whoever has read the secret there: see `registry.proof`."""
        nonce = request.query_params.get("nonce", "")
        local = request.scope.get("server")
        if len(nonce) != NONCE_CHARACTERS or not nonce.isalnum() or local is None:
            return json_response({"proof": None}, 400)
        try:
            secret = (self._data / ADMIN_SECRET_FILE).read_text().strip()
        except OSError:
            return json_response({"proof": None}, 404)
        return json_response({"proof": proof_of(secret, nonce, *local)}, headers={"Cache-Control": "no-store"})

    async def show_readiness(self, call: Call) -> Response:
        """What `/readyz` says, with details: for administrators."""
        call.require_overseer()
        states = await self._readiness.states()
        rows = {name: {"state": each.state, "took_ms": each.took_ms, **each.details} for name, each in states.items()}
        return json_response({"ready": _all_ready(states), "components": rows})

    async def me(self, call: Call) -> Response:
        """Who the caller is and what its contract grants, in the words of the contract's author.

        To write the contract anew would take seconds of everybody's time where it is long (trap A8).
        """
        principal = call.principal
        text: str | None = None
        if not principal.sees_all:
            text = (await self._registry.contract(principal.contract.name, principal.contract_version)).text
        return json_response(
            {
                "principal": principal.name,
                "administrator": principal.administrator,
                "contract": principal.contract.name,
                "version": principal.contract_version,
                "text": text,
                "retries": None if principal.contract.retries is None else asdict(principal.contract.retries),
            }
        )

    async def list_contracts(self, call: Call) -> Response:
        call.require_overseer()
        return json_response({"contracts": [asdict(version) for version in await self._registry.contracts()]})

    async def apply_contract(self, call: Call) -> Response:
        call.require_administrator()
        try:
            text = call.body.decode()
        except UnicodeDecodeError as error:
            raise BadRequest("the contract is not UTF-8 text") from error
        contract = await self._loaded(call, text, "the body")
        warnings = self._can_keep(contract)
        version = await self._registry.apply_contract(contract, by=call.principal.name, text=text)
        return json_response({"contract": contract.name, "version": version, "warnings": warnings})

    async def apply_contracts(self, call: Call) -> Response:
        """Several contracts in one transaction, all or none; each may say which version its author has seen."""
        call.require_administrator()
        wanted = read(_Proposals, read_object(call.body, "contracts"), "contracts")
        if not 1 <= len(wanted.contracts) <= CONTRACTS_MAX:
            raise BadRequest(f"contracts: give 1 to {CONTRACTS_MAX} of them at once")
        proposals: list[Proposal] = []
        for position, each in enumerate(wanted.contracts):
            contract = await self._loaded(call, each.text, f"contracts[{position}]")
            proposals.append(Proposal(contract, each.text, each.expected))
        warnings = [warning for proposal in proposals for warning in self._can_keep(proposal.contract)]
        done = await self._registry.apply_contracts(proposals, by=call.principal.name, message=wanted.message)
        return json_response({"contracts": [asdict(applied) for applied in done], "warnings": warnings})

    async def show_contract(self, call: Call) -> Response:
        """A contract in force as its author wrote it, or an older version of it."""
        name = self._own_contract(call)
        found = asdict(await self._registry.contract(name, call.number("version")))
        return json_response({"contract": found.pop("name"), **found})

    async def contract_history(self, call: Call) -> Response:
        """Every version of a contract, oldest first; a revocation has no text."""
        name = self._own_contract(call)
        found = await self._registry.history(name)
        if not found:
            raise NotFound(f"there has never been a contract {name}", rule="contract.exists")
        return json_response({"contract": name, "versions": [asdict(version) for version in found]})

    def _own_contract(self, call: Call) -> str:
        """The contract in the path, which anybody but an administrator must be bound to."""
        name = str(call.request.path_params["name"])
        if not call.principal.sees_all and name != call.principal.contract.name:
            raise Forbidden(f"{call.principal.name} may read its own contract only", rule="permission.administrator")
        return name

    async def restore_contract(self, call: Call) -> Response:
        """An older version in force again, as a new one."""
        call.require_administrator()
        wanted = read(_Restoration, read_object(call.body or b"{}", "restoration"), "restoration")
        registry = self._registry
        older = await registry.restorable(call.request.path_params["name"], wanted.version)
        text, source = older.text or "", f"version {older.version}"
        warnings = self._can_keep(await self._loaded(call, text, source))
        done = await registry.restore_contract(
            older.name, older.version, by=call.principal.name, message=wanted.message, expected=wanted.expected
        )
        return json_response(asdict(done) | {"warnings": warnings})

    async def revoke_contract(self, call: Call) -> Response:
        """For administrators, and for principals that the contract itself names."""
        name = call.request.path_params["name"]
        version = await self._registry.revoke_contract(
            name,
            by=call.principal.name,
            message=call.query("message"),
            named_only=not call.principal.administrator,
        )
        return json_response({"contract": name, "version": version})

    async def list_principals(self, call: Call) -> Response:
        call.require_overseer()
        return json_response({"principals": [asdict(record) for record in await self._registry.principals()]})

    async def create_principal(self, call: Call) -> Response:
        call.require_administrator()
        wanted = read(_NewPrincipal, read_object(call.body, "principal"), "principal")
        secret = await self._registry.create_principal(wanted.name, wanted.contract)
        return json_response({"name": wanted.name, "contract": wanted.contract, "secret": secret}, 201)

    async def revoke_principal(self, call: Call) -> Response:
        call.require_administrator()
        await self._registry.revoke_principal(call.request.path_params["name"])
        return no_content()

    async def rotate_principal(self, call: Call) -> Response:
        call.require_administrator()
        name = call.request.path_params["name"]
        wanted = read(_Rotation, read_object(call.body or b"{}", "rotation"), "rotation")
        return json_response({"name": name, "secret": await self._registry.rotate(name, grace_s=wanted.grace_s)})

    async def recent_commits(self, call: Call) -> Response:
        """A page of attempts, newest first: an administrator sees all, an agent its own.

        `?limit= &table= &principal= &outcome= &refused=true &since_ms= &request_id= &page_token=`; the last one is the
        `next_page_token` of the page before. A page may hold fewer than there are, even none, and still have a next.
        """
        ledger = await self._journal.read_through()
        outcome = call.query("outcome")
        if outcome is not None and outcome not in tuple(Outcome):
            raise BadRequest(f"query parameter outcome is {outcome!r}; write one of {', '.join(Outcome)}")
        outcomes = NOT_LANDED if call.flag("refused") else ()
        wanted = Search(
            since_ms=call.number("since_ms") or 0,
            table=call.query("table"),
            principal=call.query("principal") if call.principal.sees_all else call.principal.name,
            outcomes=outcomes if outcome is None else (Outcome(outcome),),
            request_id=call.query("request_id"),
        )
        limit, before = call.limit(RECENT_MAX), call.number("page_token")
        async with self._searching(call):
            page = await ledger.search(wanted, limit=limit, before=before)
        return json_response({"attempts": [asdict(attempt) for attempt in page.attempts], "next_page_token": page.next})

    @asynccontextmanager
    async def _searching(self, call: Call) -> AsyncGenerator[None]:
        """One search of the log at a time: each reads tens of thousands of rows, and commits ask the same database."""
        try:
            async with self._parsing.searches.turn(call.principal.name):
                yield
        except CommitConflict as error:
            raise Unavailable(error.message) from error

    async def log_of_commits(self, call: Call) -> Response:
        """Attempts in the order in which they were logged: `?after= &limit=`, from the one after that number on.

        For whoever copies the log: no attempt turns up later with a lower number than one that was answered.
        """
        call.require_overseer()
        ledger = await self._journal.read_through()
        found = await ledger.attempts_after(call.number("after") or 0, limit=call.limit(RECENT_MAX))
        rows = [{"id": number, **asdict(attempt)} for number, attempt in found.attempts]
        return json_response({"attempts": rows, "oldest": found.oldest, "newest": found.newest})

    async def forget(self, call: Call) -> Response:
        """Take a text, such as a person's id, out of the partitions and messages of the log."""
        call.require_administrator()
        wanted = read(_Erasure, read_object(call.body, "erasure"), "erasure")
        ledger = await self._journal.read_through()
        return json_response({"attempts": await ledger.forget(wanted.text)})

    async def summarise_commits(self, call: Call) -> Response:
        """How commits ended, and how long they took, by table and by principal."""
        call.require_overseer()
        ledger = await self._journal.read_through()
        async with self._searching(call):
            outcomes = await ledger.counts()
            tables, principals = await ledger.summary("table"), await ledger.summary("principal")
        return json_response(
            {
                "outcomes": {outcome.value: count for outcome, count in outcomes.items()},
                "tables": [_with_text_keys(asdict(row)) for row in tables],
                "principals": [_with_text_keys(asdict(row)) for row in principals],
            }
        )

    async def recent_bypasses(self, call: Call) -> Response:
        """Commits that were noticed to have come around the tower, since it was started."""
        call.require_overseer()
        found = self._bypasses.newest(call.limit(RECENT_MAX))
        return json_response({"bypasses": [bypass.to_json() for bypass in found]})

    async def count_undeclared(self, call: Call) -> Response:
        """Commits that were refused for want of a declaration; an agent sees its own."""
        own = None if call.principal.sees_all else call.principal.name
        rows = self._undeclared.to_json(own, call.query("table"), call.limit(RECENT_MAX))
        return json_response({"undeclared": rows})

    async def _loaded(self, call: Call, text: str, source: str) -> Contract:
        """A contract, read away from the event loop: a long one takes seconds (trap A8)."""
        try:
            return await self._parsing.body(partial(load, text, source=source), call.principal.name)
        except CommitConflict as error:
            raise Unavailable(error.message) from error

    def _can_keep(self, contract: Contract) -> list[str]:
        """What is to be said of a contract that this tower can keep. Raises `BadRequest` where it can't."""
        window_s = None if contract.idempotency is None else contract.idempotency.window_s
        if window_s is not None and window_s > self._server.key_lifetime_s:
            raise BadRequest(
                f"contract {contract.name}: idempotency.window is {window_s:g} s, and this tower keeps keys for "
                f"{self._server.key_lifetime_s} s; ask for less, or raise server.key_lifetime_s",
                rule="contract.window",
            )
        return self._escalations.check(contract)


def _all_ready(states: Mapping[str, State]) -> bool:
    return all(each.state == OK for each in states.values())


def _with_text_keys(row: dict[str, object]) -> dict[str, object]:
    """JSON's keys are text: percentile 99 becomes p99."""
    return {
        name: {f"p{key}" if isinstance(key, int) else key: item for key, item in value.items()}
        if isinstance(value, dict)
        else value
        for name, value in row.items()
    }
