"""Iceberg's REST catalog protocol: namespaces, tables, commits (specification: rest-catalog-open-api.yaml)."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import orjson
from starlette.responses import Response
from starlette.routing import Route

from icetower.admission import locations, permissions
from icetower.admission.locations import PATHS
from icetower.admission.properties import check_properties
from icetower.contracts.model import Operation
from icetower.errors import BadRequest, ContractViolation, NoSuchNamespace, NoSuchTable
from icetower.gateway.attempts import READ, STAGED
from icetower.gateway.body_bounds import APPEND, COMMIT, CREATION, TRANSACTION, parsed
from icetower.gateway.http import (
    Call,
    idempotency_key,
    json_response,
    namespace_of,
    no_content,
    numbered,
    once,
    route,
    takes_gzip,
)
from icetower.gateway.kept_answers import endpoint_of
from icetower.gateway.paths import path_of
from icetower.gateway.tower import Tower
from icetower.gateway.unread import SharedResponse
from icetower.ledger.answers import Answer
from icetower.protocol import catalog as wire
from icetower.protocol.appends import append_answer, parse_append
from icetower.protocol.commits import parse_commit, parse_transaction
from icetower.protocol.marks import GROUP_SIZE
from icetower.protocol.names import NAMESPACE_SEPARATOR, Identifier, Namespace
from icetower.protocol.wire import read_object
from icetower.table.client_properties import check_code
from icetower.table.head import HeadState, overlaid
from icetower.table.metadata import Metadata

Item = TypeVar("Item", Identifier, Namespace)

TOLD_TO_CLIENTS = {"rck.requires-namespace-create": "true", "token-exchange-enabled": "false"}
"""Iceberg's compatibility kit asks the catalog itself whether tables need their namespace first; here they do, as the
specification has it. Its reference server creates them on the way.

A token that is renewed by itself comes to its end, and Java has no other way then; so it renews by its credential."""

COMPRESS_FROM_BYTES = 16 * 1024
PAGE_MAX = 1_000

ENDPOINTS = (
    "GET /v1/{prefix}/namespaces",
    "POST /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "DELETE /v1/{prefix}/namespaces/{namespace}",
    "POST /v1/{prefix}/namespaces/{namespace}/properties",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "POST /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/register",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics",
    "POST /v1/{prefix}/tables/rename",
    "POST /v1/{prefix}/transactions/commit",
)


def routes(tower: Tower) -> list[Route]:
    namespaces, tables = "/v1/namespaces", "/v1/namespaces/{namespace}/tables"
    return [
        # Routes are tried in order: those that are called most come first. The append is in no specification, and so
        # not among the endpoints that clients are told of: Icetower's own SDK knows it.
        route(tower, "POST", tables + "/{table}", commit_table, operation="commit", commits=True, body=COMMIT),
        route(tower, "POST", tables + "/{table}/append", append_files, operation="append", commits=True, body=APPEND),
        route(tower, "GET", "/v1/config", config),
        route(tower, "GET", namespaces, list_namespaces, operation=READ),
        route(
            tower,
            "POST",
            namespaces,
            create_namespace,
            mutates=True,
            operation="create-namespace",
            again=namespace_again,
        ),
        route(tower, "HEAD", namespaces + "/{namespace}", namespace_exists, operation=READ),
        route(tower, "GET", namespaces + "/{namespace}", load_namespace, operation=READ),
        route(tower, "DELETE", namespaces + "/{namespace}", drop_namespace, mutates=True, operation="drop-namespace"),
        route(
            tower,
            "POST",
            namespaces + "/{namespace}/properties",
            update_namespace,
            mutates=True,
            operation="alter-namespace",
            again=update_again,
        ),
        route(
            tower,
            "POST",
            namespaces + "/{namespace}/register",
            register_table,
            mutates=True,
            operation="register",
            again=register_again,
        ),
        route(tower, "GET", tables, list_tables, operation=READ),
        route(tower, "POST", tables, create_table, mutates=True, operation="create", again=create_again, body=CREATION),
        route(tower, "HEAD", tables + "/{table}", table_exists, operation=READ),
        route(tower, "GET", tables + "/{table}", load_table, operation=READ),
        route(tower, "DELETE", tables + "/{table}", drop_table, mutates=True, operation="drop"),
        route(tower, "POST", tables + "/{table}/metrics", report_metrics, operation=READ),
        route(tower, "POST", "/v1/tables/rename", rename_table, mutates=True, operation="rename"),
        route(
            tower,
            "POST",
            "/v1/transactions/commit",
            commit_transaction,
            operation="transaction",
            commits=True,
            body=TRANSACTION,
        ),
    ]


# -- configuration ----------------------------------------------------------------------------------------------------


async def config(call: Call) -> Response:
    settings = call.tower.settings
    return json_response(
        {
            "defaults": TOLD_TO_CLIENTS | settings.defaults,
            "overrides": settings.overrides,
            "endpoints": ENDPOINTS,
            "idempotency-key-lifetime": f"PT{settings.server.key_lifetime_s}S",
        }
    )


# -- namespaces -------------------------------------------------------------------------------------------------------


async def list_namespaces(call: Call) -> Response:
    parent = namespace_of(call.query("parent") or "") if call.query("parent") else ()
    if parent:  # before it is looked up: whether it is there is told to whom it concerns
        call.allow(permissions.require_visible, parent)
    found = await call.tower.upstream.list_namespaces(parent)
    seen = [namespace for namespace in found if permissions.visible(call.principal, namespace)]
    page, token = _page(call, seen)
    return json_response({"namespaces": page, "next-page-token": token})


async def create_namespace(call: Call) -> Response:
    wanted = wire.parse_request(wire.CreateNamespace, call.body)
    namespace = wanted.levels()
    call.concerns(namespace)
    call.allow(permissions.require_namespace_change, namespace)
    check_code(wanted.properties, call.tower.settings.client_code, of="namespace")
    _require_no_location(call, [*filter(locations.steers_clients, wanted.properties)], ".".join(namespace))
    await call.tower.upstream.create_namespace(namespace, wanted.properties)
    return json_response({"namespace": namespace, "properties": wanted.properties})


async def namespace_again(call: Call) -> Response:
    """A namespace that was created before, as it is by now."""
    namespace = wire.parse_request(wire.CreateNamespace, call.body).levels()
    call.allow(permissions.require_visible, namespace)
    properties = await call.tower.upstream.namespace_properties(namespace)
    return json_response({"namespace": namespace, "properties": properties})


async def load_namespace(call: Call) -> Response:
    call.allow(permissions.require_visible, call.namespace)
    properties = await call.tower.upstream.namespace_properties(call.namespace)
    return json_response({"namespace": call.namespace, "properties": properties})


async def namespace_exists(call: Call) -> Response:
    call.allow(permissions.require_visible, call.namespace)
    if not await call.tower.upstream.namespace_exists(call.namespace):
        raise NoSuchNamespace(f"Namespace does not exist: {'.'.join(call.namespace)}")
    return no_content()


async def drop_namespace(call: Call) -> Response:
    call.allow(permissions.require_namespace_change, call.namespace)
    await call.tower.upstream.drop_namespace(call.namespace)
    return no_content()


async def update_namespace(call: Call) -> Response:
    wanted = wire.parse_request(wire.UpdateProperties, call.body)
    call.allow(permissions.require_namespace_change, call.namespace)
    changed = filter(locations.steers_clients, {*wanted.removals, *wanted.updates})
    check_code(wanted.updates, call.tower.settings.client_code, of="namespace")
    _require_no_location(call, sorted(changed), ".".join(call.namespace))
    done = await call.tower.upstream.update_namespace(call.namespace, wanted.removals, wanted.updates)
    return json_response({"updated": done.updated, "removed": done.removed, "missing": done.missing})


async def update_again(call: Call) -> Response:
    """What a change of properties was, that was made before."""
    wanted = wire.parse_request(wire.UpdateProperties, call.body)
    call.allow(permissions.require_visible, call.namespace)
    return json_response({"updated": [*wanted.updates], "removed": [*wanted.removals], "missing": []})


# -- tables -----------------------------------------------------------------------------------------------------------


async def list_tables(call: Call) -> Response:
    call.allow(permissions.require_visible, call.namespace)
    found = await call.tower.upstream.list_tables(call.namespace)
    seen = [identifier for identifier in found if permissions.visible(call.principal, identifier)]
    page, token = _page(call, seen)
    rows = [{"namespace": identifier.namespace, "name": identifier.name} for identifier in page]
    return json_response({"identifiers": rows, "next-page-token": token})


async def create_table(call: Call) -> Response:
    parse = partial(wire.parse_request, wire.CreateTable)
    wanted = await parsed(call.tower.manifests.parsing, parse, call.body)
    identifier = Identifier(call.namespace, wanted.name)
    call.concerns(identifier, operation=STAGED if wanted.stage_create else None)
    call.allow(permissions.require, Operation.CREATE, identifier)
    check_code(wanted.properties, call.tower.settings.client_code)
    chosen = [name for name in wanted.properties if name in PATHS or locations.steers_clients(name)]
    chosen += ["location"] if wanted.location else []
    _require_no_location(call, chosen, str(identifier))
    check_properties(wanted.properties, {})
    metadata = await call.tower.tables.new_metadata(
        identifier,
        schema=wanted.schema_,
        spec=wanted.partition_spec,
        sort_order=wanted.write_order,
        location=wanted.location,
        properties=wanted.properties,
    )
    if wanted.stage_create:
        own = _own(call, identifier, HeadState("", metadata)) or {}
        staged = {**metadata, "properties": overlaid(metadata.get("properties") or {}, own)}
        return json_response({"metadata": staged, "config": call.tower.settings.table_config})
    return _table_response(call, identifier, await call.tower.tables.create(identifier, metadata))


async def create_again(call: Call) -> Response:
    """A table that was created before, as it is by now; a staged one has changed nothing, and is made anew."""
    wanted = wire.parse_request(wire.CreateTable, call.body)
    return await create_table(call) if wanted.stage_create else await _load_again(call, wanted.name)


async def register_again(call: Call) -> Response:
    """A table that was registered before, as it is by now."""
    return await _load_again(call, wire.parse_request(wire.RegisterTable, call.body).name)


async def _load_again(call: Call, name: str) -> Response:
    identifier = Identifier(call.namespace, name)
    call.allow(permissions.require, Operation.READ, identifier)
    return _table_response(call, identifier, await call.tower.heads.load(identifier))


async def _require_read(call: Call) -> None:
    """Raises `ContractViolation`; `NoSuchTable` where Spark looks for the metadata table of a table that may be read.

    For `ns.t.entries` it asks for table `entries` in namespace `ns.t`, and goes on to the real table after a 404 only.
    """
    *parents, last = call.namespace
    asked_for = Identifier(tuple(parents), last) if parents else None
    if (
        asked_for is not None
        and permissions.may(call.principal, Operation.READ, asked_for)
        and not await call.tower.upstream.namespace_exists(call.namespace)
    ):
        raise NoSuchTable(f"Table does not exist: {call.table}")
    call.allow(permissions.require, Operation.READ, call.table)


def _require_no_location(call: Call, chosen: Sequence[str], what: str) -> None:
    """Where things lie is for administrators to say: two tables at one place could write, and purge, each other."""
    if chosen and not call.principal.administrator:
        raise ContractViolation(
            f"{call.principal.name} may not choose where {what} lies, or how clients get there; leave out: "
            f"{', '.join(chosen)}",
            rule="contract.location",
            next_step="fix_request",
        )


async def register_table(call: Call) -> Response:
    wanted = wire.parse_request(wire.RegisterTable, call.body)
    identifier = Identifier(call.namespace, wanted.name)
    call.concerns(identifier)
    call.allow(permissions.require, Operation.REGISTER, identifier)
    await call.tower.escalations.require_free(call.principal, identifier)
    tables = call.tower.tables
    confined = not call.principal.administrator
    head = await tables.register(identifier, wanted.metadata_location, overwrite=wanted.overwrite, confined=confined)
    return _table_response(call, identifier, head)


async def load_table(call: Call) -> Response:
    await _require_read(call)
    mode = call.query("snapshots") or "all"
    if mode not in ("all", "refs"):
        raise BadRequest(f"query parameter snapshots is {mode!r}; write all or refs")
    return _table_response(call, call.table, await call.tower.heads.load(call.table, verify=True), mode=mode)


async def table_exists(call: Call) -> Response:
    await _require_read(call)
    await call.tower.upstream.location(call.table)
    return no_content()


async def drop_table(call: Call) -> Response:
    call.allow(permissions.require, Operation.DROP, call.table)
    await call.tower.escalations.require_free(call.principal, call.table)
    confined = not call.principal.administrator
    await call.tower.tables.drop(call.table, purge=call.flag("purgeRequested"), confined=confined)
    return no_content()


async def rename_table(call: Call) -> Response:
    source, target = wire.parse_request(wire.RenameTable, call.body).identifiers()
    call.concerns(source, target)
    # It needs `rename` on the old name and `create` on the new one.
    call.allow(permissions.require, Operation.RENAME, source)
    call.allow(permissions.require, Operation.CREATE, target)
    await call.tower.escalations.require_free(call.principal, source)
    await call.tower.tables.rename(source, target)
    return no_content()


async def report_metrics(call: Call) -> Response:
    call.allow(permissions.require, Operation.READ, call.table)
    read_object(call.body, "metrics report")
    return no_content()


# -- commits ----------------------------------------------------------------------------------------------------------


async def commit_table(call: Call) -> Response:
    request = await parsed(call.tower.manifests.parsing, parse_commit, call.body)
    if request.identifier is not None and request.identifier != call.table:
        raise BadRequest(f"the commit names table {request.identifier}, its path {call.table}", rule="request.name")
    request = replace(request, identifier=call.table)
    key, application = idempotency_key(call.request), numbered(call.request)

    async def commit(call: Call) -> Response:
        return _table_response(call, call.table, await call.tower.commit(call.principal, request, key, application))

    if key is None:
        return await commit(call)
    if any(update["action"] == "add-snapshot" for update in request.updates):
        # The key lives in the snapshot, under the same swap; the ledger only sees that it serves one endpoint.
        endpoint = endpoint_of("POST", path_of(call.request.scope))
        await call.tower.aftermath.find(call.principal.name, key, endpoint)
        response = await commit(call)
        call.tower.remember_answer(call.principal.name, key, Answer(endpoint, 200, b""))
        return response
    return await once(call, key, commit, replay=load_after_commit)


async def load_after_commit(call: Call) -> Response:
    call.allow(permissions.require, Operation.READ, call.table)  # the contract may have changed since the commit
    return _table_response(call, call.table, await call.tower.heads.load(call.table))


async def append_files(call: Call) -> Response:
    """The fast path: data files into a table, without its metadata in the answer."""
    request = await parsed(call.tower.manifests.parsing, parse_append, call.body)
    done = await call.tower.append(call.principal, call.table, request, idempotency_key(call.request))
    snapshot = done.head.snapshots.get(done.snapshots[-1]) or {}
    return json_response(
        append_answer(
            snapshot_id=done.snapshots[-1],
            sequence_number=snapshot.get("sequence-number"),
            outcome=done.outcome,
            group_size=int((snapshot.get("summary") or {}).get(GROUP_SIZE, 1)),
            files=len(request.files),
            queue_wait_ms=done.queue_wait_ms,
        )
    )


async def commit_transaction(call: Call) -> Response:
    requests = await parsed(call.tower.manifests.parsing, parse_transaction, call.body)
    call.concerns(*(request.identifier for request in requests if request.identifier is not None))
    key, application = idempotency_key(call.request), numbered(call.request)

    async def commit(call: Call) -> Response:
        await call.tower.commit_together(call.principal, requests, key, application)
        return no_content()

    if key is None:
        return await commit(call)
    if any(update["action"] == "add-snapshot" for request in requests for update in request.updates):
        # As for one table, the key lives in the snapshots: a stored answer would call done what was rolled back (trap
        # K2). The ledger only sees that the key serves this endpoint, for the same tables.
        endpoint = endpoint_of("POST", path_of(call.request.scope))
        tables = sorted([*r.identifier.namespace, r.identifier.name] for r in requests if r.identifier is not None)
        about = hashlib.sha256(orjson.dumps(tables)).hexdigest()
        await call.tower.aftermath.find(call.principal.name, key, endpoint, about)
        response = await commit(call)
        call.tower.remember_answer(call.principal.name, key, Answer(endpoint, 204, b"", about))
        return response
    return await once(call, key, commit)


# -- answers ----------------------------------------------------------------------------------------------------------


def _table_response(call: Call, identifier: Identifier, head: HeadState, *, mode: str = "all") -> Response:
    """A `LoadTableResult`, or 304 where the caller has it (trap A6: answer and ETag are the caller's own)."""
    config_bytes = orjson.dumps(call.tower.settings.table_config)
    own = _own(call, identifier, head)
    etag = head.etag(f"{mode}\n{call.principal.name}\n{own}\n{config_bytes.decode()}")
    if etag in (call.request.headers.get("if-none-match") or "").split(", "):
        return Response(status_code=304, headers={"ETag": etag})
    headers = {"ETag": etag}
    if mode == "refs":
        head = HeadState(head.location, _only_refs(head.metadata))
    compressed = takes_gzip(call.request) and head.size_bytes > COMPRESS_FROM_BYTES
    if compressed:
        headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    parts = head.answer_parts(config_bytes, compressed=compressed, own=own)
    return SharedResponse(parts, headers, "application/json")


def _own(call: Call, identifier: Identifier, head: HeadState) -> dict[str, str | None] | None:
    """The properties that this caller is given with a table in place of the table's own; None: none differ.

    One without a value is left out: clients would load code by it (trap S8).
    """
    kept_back = head.withheld(call.tower.settings.client_code)
    own = locations.client_properties(call.principal, identifier, head.metadata)
    return {**kept_back, **(own or {})} if kept_back or own else None


def _only_refs(metadata: Metadata) -> Metadata:
    named = {ref["snapshot-id"] for ref in metadata.get("refs", {}).values()}
    return {**metadata, "snapshots": [s for s in metadata.get("snapshots", ()) if s["snapshot-id"] in named]}


def _page(call: Call, items: Sequence[Item]) -> tuple[list[Item], str | None]:
    """One page of a sorted listing. The token names the last item given, so that a page stays right while names come
    and go."""
    size_text, token = call.query("pageSize"), call.query("pageToken")
    if size_text is None and not token:
        return list(items), None
    try:
        size = min(int(size_text or PAGE_MAX), PAGE_MAX)
    except ValueError:
        size = 0
    if size < 1:
        raise BadRequest(f"query parameter pageSize is {size_text!r}; write a number from 1")
    start = 0
    if token:
        try:
            after = base64.b64decode(token, altchars=b"-_", validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, ValueError) as error:
            raise BadRequest("query parameter pageToken was not given out by this server") from error
        start = sum(1 for item in items if _name(item) <= after)
    page = list(items[start : start + size])
    more = start + size < len(items)
    return page, base64.urlsafe_b64encode(_name(page[-1]).encode()).decode() if more else None


def _name(item: Identifier | Namespace) -> str:
    return item.name if isinstance(item, Identifier) else NAMESPACE_SEPARATOR.join(item)
