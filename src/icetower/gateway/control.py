"""The control API, `/icetower/v1/…`: contracts, principals and the log of commits, for people and their tools."""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from icetower.contracts.document import dump, load
from icetower.errors import BadRequest, Forbidden
from icetower.gateway.http import Call, json_response, no_content, route
from icetower.gateway.tower import Tower
from icetower.protocol.wire import Wire, read, read_object

RECENT_MAX = 1_000


class _NewPrincipal(Wire):
    name: str
    contract: str


def routes(tower: Tower) -> list[Route]:
    async def alive(_: Request) -> Response:
        return json_response({"status": "ok"})

    base = "/icetower/v1"
    return [
        Route("/healthz", alive, methods=["GET"]),
        route(tower, "GET", base + "/me", me),
        route(tower, "GET", base + "/contracts", list_contracts),
        route(tower, "POST", base + "/contracts", apply_contract),
        route(tower, "GET", base + "/contracts/{name}", show_contract),
        route(tower, "DELETE", base + "/contracts/{name}", revoke_contract),
        route(tower, "GET", base + "/principals", list_principals),
        route(tower, "POST", base + "/principals", create_principal),
        route(tower, "DELETE", base + "/principals/{name}", revoke_principal),
        route(tower, "POST", base + "/principals/{name}/rotate", rotate_principal),
        route(tower, "GET", base + "/commits", recent_commits),
        route(tower, "GET", base + "/commits/summary", summarise_commits),
    ]


def _require_administrator(call: Call) -> None:
    if not call.principal.administrator:
        raise Forbidden(f"{call.principal.name} is not an administrator", rule="permission.administrator")


async def me(call: Call) -> Response:
    """Who the caller is and what its contract grants, in the contract's own words."""
    principal = call.principal
    text = None if principal.administrator else dump(principal.contract)
    return json_response(
        {
            "principal": principal.name,
            "administrator": principal.administrator,
            "contract": principal.contract.name,
            "version": principal.contract_version,
            "text": text,
        }
    )


async def list_contracts(call: Call) -> Response:
    _require_administrator(call)
    return json_response({"contracts": [asdict(version) for version in await call.tower.registry.contracts()]})


async def apply_contract(call: Call) -> Response:
    _require_administrator(call)
    try:
        text = call.body.decode()
    except UnicodeDecodeError as error:
        raise BadRequest("the contract is not UTF-8 text") from error
    contract = load(text, source="the body")
    version = await call.tower.registry.apply_contract(contract, by=call.principal.name, text=text)
    return json_response({"contract": contract.name, "version": version})


async def show_contract(call: Call) -> Response:
    name = call.request.path_params["name"]
    if not call.principal.administrator and name != call.principal.contract.name:
        raise Forbidden(f"{call.principal.name} may read its own contract only", rule="permission.administrator")
    contract, version = await call.tower.registry.contract(name)
    return json_response({"contract": name, "version": version, "text": dump(contract)})


async def revoke_contract(call: Call) -> Response:
    _require_administrator(call)
    name = call.request.path_params["name"]
    version = await call.tower.registry.revoke_contract(name, by=call.principal.name)
    return json_response({"contract": name, "version": version})


async def list_principals(call: Call) -> Response:
    _require_administrator(call)
    return json_response({"principals": [asdict(record) for record in await call.tower.registry.principals()]})


async def create_principal(call: Call) -> Response:
    _require_administrator(call)
    wanted = read(_NewPrincipal, read_object(call.body, "principal"), "principal")
    secret = await call.tower.registry.create_principal(wanted.name, wanted.contract)
    return json_response({"name": wanted.name, "contract": wanted.contract, "secret": secret}, 201)


async def revoke_principal(call: Call) -> Response:
    _require_administrator(call)
    await call.tower.registry.revoke_principal(call.request.path_params["name"])
    return no_content()


async def rotate_principal(call: Call) -> Response:
    _require_administrator(call)
    name = call.request.path_params["name"]
    return json_response({"name": name, "secret": await call.tower.registry.rotate(name)})


async def recent_commits(call: Call) -> Response:
    """The newest attempts: an administrator sees all, an agent its own."""
    await call.tower.flush()
    try:
        limit = int(call.query("limit") or 100)
    except ValueError as error:
        raise BadRequest("query parameter limit must be a number") from error
    principal = call.query("principal") if call.principal.administrator else call.principal.name
    found = await call.tower.ledger.recent(
        limit=max(1, min(limit, RECENT_MAX)), table=call.query("table"), principal=principal
    )
    return json_response({"attempts": [asdict(attempt) for attempt in found]})


async def summarise_commits(call: Call) -> Response:
    """How commits ended, and how long they took, by table and by principal."""
    _require_administrator(call)
    await call.tower.flush()
    ledger = call.tower.ledger
    outcomes = await ledger.counts()
    tables, principals = await ledger.summary("table"), await ledger.summary("principal")
    return json_response(
        {
            "outcomes": {outcome.value: count for outcome, count in outcomes.items()},
            "tables": [_with_text_keys(asdict(row)) for row in tables],
            "principals": [_with_text_keys(asdict(row)) for row in principals],
        }
    )


def _with_text_keys(row: dict[str, object]) -> dict[str, object]:
    """JSON's keys are text: percentile 99 becomes p99."""
    return {
        name: {f"p{key}" if isinstance(key, int) else key: item for key, item in value.items()}
        if isinstance(value, dict)
        else value
        for name, value in row.items()
    }
