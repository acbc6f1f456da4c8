"""Iceberg's REST catalog protocol: namespaces, tables, commits (specification: rest-catalog-open-api.yaml)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

import orjson
from starlette.responses import Response
from starlette.routing import Route

from icetower.admission import client_settings, locations, permissions
from icetower.admission.gate import Stops
from icetower.admission.locations import PATHS
from icetower.admission.properties import check_properties
from icetower.commit.head import Heads
from icetower.contracts.model import Operation
from icetower.errors import (
    AlreadyExists,
    BadRequest,
    ContractViolation,
    IcetowerError,
    NoSuchNamespace,
    NoSuchTable,
)
from icetower.files.parsing import Parsing
from icetower.gateway.answers import answer_parts, etag, overlaid
from icetower.gateway.body_bounds import APPEND, COMMIT, CREATION, NAMESPACE, REPORT, TRANSACTION, parsed, rows_body
from icetower.gateway.deeds import metadata_files, table_of
from icetower.gateway.http import (
    Call,
    Front,
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
from icetower.gateway.listings import listed
from icetower.gateway.paths import path_of
from icetower.gateway.settings import Settings
from icetower.gateway.unread import SharedResponse
from icetower.ledger.answers import Answer
from icetower.ledger.watching import Reported
from icetower.protocol import catalog as wire
from icetower.protocol.appends import append_answer, parse_append
from icetower.protocol.commits import parse_commit, parse_transaction
from icetower.protocol.events import NOBODY_KNOWS, Kind
from icetower.protocol.marks import GROUP_SIZE
from icetower.protocol.names import Identifier, check_new, checked_identifier
from icetower.protocol.reports import parse_report
from icetower.protocol.row_limits import JSON_TYPE
from icetower.protocol.rows import leased, parse_rows, rows_answer, seeded
from icetower.service.attempts import READ, STAGED
from icetower.service.changes import created, identified
from icetower.service.commits import Commits
from icetower.service.journal import Journal
from icetower.service.lifecycle import Lifecycle
from icetower.table.client_properties import check_code
from icetower.table.head import HeadState
from icetower.upstream.port import Upstream

T = TypeVar("T")

TOLD_TO_CLIENTS = {"rck.requires-namespace-create": "true", "token-exchange-enabled": "false"}
"""Iceberg's compatibility kit asks the catalog itself whether tables need their namespace first; here they do, as the
specification has it. Its reference server creates them on the way.

A token that is renewed by itself comes to its end, and Java has no other way then; so it renews by its credential."""

COMPRESS_FROM_BYTES = 16 * 1024
UUID_WITHIN_S = 2.0
"""A table's metadata is waited for so long where nothing but an event needs it."""

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


class CatalogRoutes:
    """The routes of the Iceberg REST catalog."""

    def __init__(
        self,
        front: Front,
        commits: Commits,
        lifecycle: Lifecycle,
        heads: Heads,
        upstream: Upstream,
        stops: Stops,
        parsing: Parsing,
        journal: Journal,
        settings: Settings,
    ) -> None:
        self._front = front
        self._commits = commits
        self._lifecycle = lifecycle
        self._heads = heads
        self._upstream = upstream
        self._stops = stops
        self._parsing = parsing
        self._journal = journal
        self._settings = settings

    def routes(self) -> list[Route]:
        on = partial(route, self._front)
        namespaces, tables = "/v1/namespaces", "/v1/namespaces/{namespace}/tables"
        rows = rows_body(self._commits.check_rows)
        return [
            # Routes are tried in order: those that are called most come first. The append is in no specification, and
            # so not among the endpoints that clients hear of: Icetower's own SDK knows it.
            on("POST", tables + "/{table}", self.commit_table, operation="commit", commits=True, body=COMMIT),
            on("POST", tables + "/{table}/append", self.append_files, operation="append", commits=True, body=APPEND),
            on("POST", tables + "/{table}/rows", self.append_rows, operation="rows", commits=True, body=rows),
            on("GET", "/v1/config", self.config),
            on("GET", namespaces, self.list_namespaces, operation=READ),
            on(
                "POST",
                namespaces,
                self.create_namespace,
                mutates=True,
                operation="create-namespace",
                again=self.namespace_again,
                body=NAMESPACE,
            ),
            on("HEAD", namespaces + "/{namespace}", self.namespace_exists, operation=READ),
            on("GET", namespaces + "/{namespace}", self.load_namespace, operation=READ),
            on("DELETE", namespaces + "/{namespace}", self.drop_namespace, mutates=True, operation="drop-namespace"),
            on(
                "POST",
                namespaces + "/{namespace}/properties",
                self.update_namespace,
                mutates=True,
                operation="alter-namespace",
                again=self.update_again,
                body=NAMESPACE,
            ),
            on(
                "POST",
                namespaces + "/{namespace}/register",
                self.register_table,
                mutates=True,
                operation="register",
                again=self.register_again,
            ),
            on("GET", tables, self.list_tables, operation=READ),
            on(
                "POST",
                tables,
                self.create_table,
                mutates=True,
                operation="create",
                again=self.create_again,
                body=CREATION,
            ),
            on("HEAD", tables + "/{table}", self.table_exists, operation=READ),
            on("GET", tables + "/{table}", self.load_table, operation=READ),
            on("DELETE", tables + "/{table}", self.drop_table, mutates=True, operation="drop"),
            on("POST", tables + "/{table}/metrics", self.report_metrics, operation=READ, body=REPORT),
            on("POST", "/v1/tables/rename", self.rename_table, mutates=True, operation="rename"),
            on(
                "POST",
                "/v1/transactions/commit",
                self.commit_transaction,
                operation="transaction",
                commits=True,
                body=TRANSACTION,
            ),
        ]

    async def _parsed(self, call: Call, parse: Callable[[bytes], T], *, commits: bool = False) -> T:
        """What `parse` makes of the body of a request that may be long. Raises as `body_bounds.parsed`."""
        return await parsed(self._parsing, call.principal, parse, call.body, commits=commits)

    # -- configuration ------------------------------------------------------------------------------------------------

    async def config(self, call: Call) -> Response:
        settings = self._settings
        return json_response(
            {
                "defaults": TOLD_TO_CLIENTS | settings.defaults,
                "overrides": settings.overrides,
                "endpoints": ENDPOINTS,
                "idempotency-key-lifetime": f"PT{settings.server.key_lifetime_s}S",
            }
        )

    # -- namespaces ---------------------------------------------------------------------------------------------------

    async def list_namespaces(self, call: Call) -> Response:
        parent = namespace_of(call.query("parent") or "") if call.query("parent") else ()
        if parent:  # before it is looked up: only those who may know hear whether it is there
            call.allow(permissions.require_visible, parent)
        return await listed(
            self._parsing,
            call,
            lambda: self._upstream.list_namespaces(parent),
            partial(permissions.visible, call.principal),
            lambda page: {"namespaces": page},
        )

    async def create_namespace(self, call: Call) -> Response:
        wanted = await self._parsed(call, partial(wire.parse_request, wire.CreateNamespace))
        namespace = wanted.levels()
        call.concerns(namespace)
        check_new(*namespace)
        call.allow(permissions.require_namespace_change, namespace)
        check_code(wanted.properties, self._settings.client_code, of="namespace")
        _require_no_location(call, [*filter(locations.steers_clients, wanted.properties)], ".".join(namespace))
        try:
            await self._upstream.create_namespace(namespace, wanted.properties)
        except AlreadyExists:
            if not call.is_again:
                raise
            return await self.namespace_again(call)
        call.changed(Kind.CREATE_NAMESPACE, namespace=namespace, properties=wanted.properties)
        return json_response({"namespace": namespace, "properties": wanted.properties})

    async def namespace_again(self, call: Call) -> Response:
        """A namespace that was created before, as it is by now."""
        wanted = await self._parsed(call, partial(wire.parse_request, wire.CreateNamespace))
        namespace = wanted.levels()
        call.allow(permissions.require_visible, namespace)
        properties = await self._upstream.namespace_properties(namespace)
        return json_response({"namespace": namespace, "properties": properties})

    async def load_namespace(self, call: Call) -> Response:
        call.allow(permissions.require_visible, call.namespace)
        properties = await self._upstream.namespace_properties(call.namespace)
        return json_response({"namespace": call.namespace, "properties": properties})

    async def namespace_exists(self, call: Call) -> Response:
        call.allow(permissions.require_visible, call.namespace)
        if not await self._upstream.namespace_exists(call.namespace):
            raise NoSuchNamespace(f"Namespace does not exist: {'.'.join(call.namespace)}")
        return no_content()

    async def drop_namespace(self, call: Call) -> Response:
        call.allow(permissions.require_namespace_change, call.namespace)
        if call.is_again and not await self._upstream.namespace_exists(call.namespace):
            return no_content()
        if not call.principal.administrator:
            given = sorted(filter(locations.steers_clients, await self._upstream.namespace_properties(call.namespace)))
            if given:  # made anew without them, its tables would lie elsewhere
                raise ContractViolation(
                    f"{call.principal.name} may not drop {'.'.join(call.namespace)}: an administrator has set "
                    f"{', '.join(given)} for the tables in it; ask an administrator to drop it",
                    rule="contract.location",
                )
        await self._upstream.drop_namespace(call.namespace)
        call.changed(Kind.DROP_NAMESPACE, namespace=call.namespace)
        return no_content()

    async def update_namespace(self, call: Call) -> Response:
        wanted = await self._parsed(call, partial(wire.parse_request, wire.UpdateProperties))
        call.allow(permissions.require_namespace_change, call.namespace)
        changed = filter(locations.steers_clients, {*wanted.removals, *wanted.updates})
        check_code(wanted.updates, self._settings.client_code, of="namespace")
        _require_no_location(call, sorted(changed), ".".join(call.namespace))
        done = await self._upstream.update_namespace(call.namespace, wanted.removals, wanted.updates)
        call.changed(
            Kind.UPDATE_NAMESPACE_PROPERTIES, namespace=call.namespace, updated=done.updated, removed=done.removed
        )
        return json_response({"updated": done.updated, "removed": done.removed, "missing": done.missing})

    async def update_again(self, call: Call) -> Response:
        """What a change of properties was, that was made before."""
        wanted = await self._parsed(call, partial(wire.parse_request, wire.UpdateProperties))
        call.allow(permissions.require_visible, call.namespace)
        return json_response({"updated": [*wanted.updates], "removed": [*wanted.removals], "missing": []})

    # -- tables -------------------------------------------------------------------------------------------------------

    async def list_tables(self, call: Call) -> Response:
        call.allow(permissions.require_visible, call.namespace)
        return await listed(
            self._parsing,
            call,
            lambda: self._upstream.list_tables(call.namespace),
            permissions.visible_tables(call.principal, call.namespace),
            lambda page: {"identifiers": [{"namespace": table.namespace, "name": table.name} for table in page]},
        )

    async def create_table(self, call: Call) -> Response:
        wanted = await self._parsed(call, partial(wire.parse_request, wire.CreateTable))
        identifier = checked_identifier(call.namespace, wanted.name)
        call.concerns(identifier, operation=STAGED if wanted.stage_create else None)
        check_new(identifier.name)
        call.allow(permissions.require, Operation.CREATE, identifier)
        check_code(wanted.properties, self._settings.client_code)
        chosen = [name for name in wanted.properties if name in PATHS or locations.steers_clients(name)]
        chosen += ["location"] if wanted.location else []
        _require_no_location(call, chosen, str(identifier))
        check_properties(wanted.properties, {})
        if call.is_again and not wanted.stage_create:
            head = await table_of(self._heads, identifier)
            if head is not None and call.deed is not None and head.metadata.get("table-uuid") == call.deed.mark:
                return self._table_response(call, identifier, head)
        metadata = await self._lifecycle.new_metadata(
            identifier,
            schema=wanted.schema_,
            spec=wanted.partition_spec,
            sort_order=wanted.write_order,
            location=wanted.location,
            properties=wanted.properties,
            uuid=None if call.deed is None or wanted.stage_create else call.deed.mark,
        )
        if wanted.stage_create:
            properties = metadata.get("properties") or {}
            given = client_settings.created_properties(call.principal, identifier, metadata["location"], properties)
            own = {**HeadState("", metadata).withheld(self._settings.client_code), **given}
            staged = {**metadata, "properties": overlaid(metadata.get("properties") or {}, own)}
            return json_response({"metadata": staged, "config": self._settings.table_config})
        head = await self._lifecycle.create(identifier, metadata)
        call.changed(
            Kind.CREATE_TABLE,
            identifier=identified(identifier),
            table_uuid=str(metadata["table-uuid"]),
            updates=created(metadata),
        )
        return self._table_response(call, identifier, head)

    async def create_again(self, call: Call) -> Response:
        """A table that was created before, as it is by now; a staged one has changed nothing, and is made anew."""
        wanted = await self._parsed(call, partial(wire.parse_request, wire.CreateTable))
        return await self.create_table(call) if wanted.stage_create else await self._load_again(call, wanted.name)

    async def register_again(self, call: Call) -> Response:
        """A table that was registered before, as it is by now."""
        return await self._load_again(call, wire.parse_request(wire.RegisterTable, call.body).name)

    async def _load_again(self, call: Call, name: str) -> Response:
        identifier = checked_identifier(call.namespace, name)
        call.allow(permissions.require, Operation.READ, identifier)
        return self._table_response(call, identifier, await self._heads.load(identifier))

    async def _require_read(self, call: Call) -> None:
        """Raises `ContractViolation`; `NoSuchTable` where Spark looks for a metadata table of a table that may be read.

        For `ns.t.entries` it asks for table `entries` in namespace `ns.t`, and goes on to the real table only after
        a 404.
        """
        *parents, last = call.namespace
        asked_for = Identifier(tuple(parents), last) if parents else None
        if (
            asked_for is not None
            and permissions.may(call.principal, Operation.READ, asked_for)
            and not await self._upstream.namespace_exists(call.namespace)
        ):
            raise NoSuchTable(f"Table does not exist: {call.table}")
        call.allow(permissions.require, Operation.READ, call.table)

    async def register_table(self, call: Call) -> Response:
        wanted = wire.parse_request(wire.RegisterTable, call.body)
        identifier = checked_identifier(call.namespace, wanted.name)
        call.concerns(identifier)
        check_new(identifier.name)
        call.allow(permissions.require, Operation.REGISTER, identifier)
        if wanted.overwrite:  # the table that is there goes, with its history
            call.allow(permissions.require, Operation.DROP, identifier)
        await self._stops.require_free(call.principal, identifier)
        if call.is_again:
            head = await table_of(self._heads, identifier)
            if head is not None and wanted.metadata_location in metadata_files(head):
                return self._table_response(call, identifier, head)
        confined = not call.principal.administrator
        head = await self._lifecycle.register(
            identifier, wanted.metadata_location, overwrite=wanted.overwrite, confined=confined
        )
        uuid = str(head.metadata.get("table-uuid") or NOBODY_KNOWS)
        call.changed(Kind.REGISTER_TABLE, identifier=identified(identifier), table_uuid=uuid)
        return self._table_response(call, identifier, head)

    async def load_table(self, call: Call) -> Response:
        await self._require_read(call)
        mode = call.query("snapshots") or "all"
        if mode not in ("all", "refs"):
            raise BadRequest(f"query parameter snapshots is {mode!r}; write all or refs")
        return self._table_response(call, call.table, await self._heads.load(call.table, verify=True), mode=mode)

    async def table_exists(self, call: Call) -> Response:
        await self._require_read(call)
        await self._upstream.location(call.table)
        return no_content()

    async def drop_table(self, call: Call) -> Response:
        call.allow(permissions.require, Operation.DROP, call.table)
        if call.is_again and await table_of(self._heads, call.table) is None:
            return no_content()
        await self._stops.require_free(call.principal, call.table)
        confined, purge, uuid = (
            not call.principal.administrator,
            call.flag("purgeRequested"),
            await self._uuid(call.table),
        )
        await self._lifecycle.drop(call.table, purge=purge, confined=confined)
        call.changed(Kind.DROP_TABLE, identifier=identified(call.table), table_uuid=uuid, purge=purge)
        return no_content()

    async def rename_table(self, call: Call) -> Response:
        source, target = wire.parse_request(wire.RenameTable, call.body).identifiers()
        call.concerns(source, target)
        check_new(target.name)
        # It needs `rename` on the old name and `create` on the new one.
        call.allow(permissions.require, Operation.RENAME, source)
        call.allow(permissions.require, Operation.CREATE, target)
        if call.is_again and call.deed is not None and await table_of(self._heads, source) is None:
            moved = await table_of(self._heads, target)
            if moved is not None and moved.metadata.get("table-uuid") == call.deed.mark:
                return no_content()
        await self._stops.require_free(call.principal, source)
        uuid = await (self._uuid(source) if call.deed is None else self._uuid_of(source))
        if call.deed is not None and uuid != NOBODY_KNOWS:
            await call.deed.note(uuid)
        await self._lifecycle.rename(source, target)
        names = {"source": identified(source), "destination": identified(target)}
        call.changed(Kind.RENAME_TABLE, table_uuid=uuid, **names)
        return no_content()

    async def _uuid(self, table: Identifier) -> str:
        """A table's uuid, for those who follow changes. One whose metadata is lost or far can still be dropped."""
        if self._settings.events.keep:
            return await self._uuid_of(table)
        return NOBODY_KNOWS

    async def _uuid_of(self, table: Identifier) -> str:
        with suppress(IcetowerError, TimeoutError):
            async with asyncio.timeout(UUID_WITHIN_S):
                return str((await self._heads.load(table)).metadata.get("table-uuid") or NOBODY_KNOWS)
        return NOBODY_KNOWS

    async def report_metrics(self, call: Call) -> Response:
        call.allow(permissions.require, Operation.READ, call.table)
        report = await self._parsed(call, parse_report)
        if report is not None:
            about = call.principal.name, str(call.table)
            self._journal.put(Reported(self._front.ambient.now_ms(), *about, *report))
        return no_content()

    # -- commits ------------------------------------------------------------------------------------------------------

    async def commit_table(self, call: Call) -> Response:
        request, table = await self._parsed(call, parse_commit, commits=True), call.table
        if request.identifier is not None and request.identifier != table:
            raise BadRequest(f"the commit names table {request.identifier}, its path {table}", rule="request.name")
        request = replace(request, identifier=table)
        key, application = idempotency_key(call.request), numbered(call.request)

        async def commit(call: Call) -> Response:
            return self._table_response(
                call, table, await self._commits.commit(call.principal, request, key, application, call.trace)
            )

        if key is None:
            return await commit(call)
        if "add-snapshot" in request.updates.actions:
            # The key lives in the snapshot, under the same swap; the ledger only sees that it serves one endpoint.
            endpoint = endpoint_of("POST", path_of(call.request.scope))
            await self._journal.find(call.principal.name, key, endpoint)
            response = await commit(call)
            self._journal.remember_answer(call.principal.name, key, Answer(endpoint, 200, b""))
            return response
        return await once(self._front, call, key, commit, replay=self.load_after_commit)

    async def load_after_commit(self, call: Call) -> Response:
        call.allow(permissions.require, Operation.READ, call.table)  # the contract may have changed since the commit
        return self._table_response(call, call.table, await self._heads.load(call.table))

    async def append_files(self, call: Call) -> Response:
        """The fast path: data files into a table, without its metadata in the answer."""
        request = await self._parsed(call, parse_append, commits=True)
        key, application = idempotency_key(call.request), numbered(call.request)
        done = await self._commits.append(call.principal, call.table, request, key, application, call.trace)
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

    async def append_rows(self, call: Call) -> Response:
        """Rows into a table, of which the tower makes the files."""
        asked = call.request.query_params
        kind, ref, operation = (
            call.request.headers.get("content-type", JSON_TYPE),
            asked.get("ref"),
            asked.get("operation"),
        )
        parse = partial(parse_rows, content_type=kind, ref=ref, operation=operation)
        request = seeded(await self._parsed(call, parse, commits=True), asked.get("seed"))
        request = leased(request, asked.get("leases"))
        key, application = idempotency_key(call.request), numbered(call.request)
        table, done = await self._commits.append_rows(call.principal, call.table, request, key, application, call.trace)
        snapshot = done.head.snapshots.get(done.snapshots[-1]) or {}
        return json_response(
            rows_answer(
                table=str(table),
                snapshot_id=done.snapshots[-1],
                sequence_number=snapshot.get("sequence-number"),
                outcome=done.outcome,
                group_size=int((snapshot.get("summary") or {}).get(GROUP_SIZE, 1)),
                rows=request.count,
                queue_wait_ms=done.queue_wait_ms,
            )
        )

    async def commit_transaction(self, call: Call) -> Response:
        requests = await self._parsed(call, parse_transaction, commits=True)
        call.concerns(*(request.identifier for request in requests if request.identifier is not None))
        key, application = idempotency_key(call.request), numbered(call.request)

        async def commit(call: Call) -> Response:
            await self._commits.commit_together(call.principal, requests, key, application, call.trace)
            return no_content()

        if key is None:
            return await commit(call)
        if any("add-snapshot" in request.updates.actions for request in requests):
            # As for one table, the key lives in the snapshots: a stored answer would call done what was rolled back
            # (trap K2). The ledger only sees that the key serves this endpoint, for the same tables.
            endpoint = endpoint_of("POST", path_of(call.request.scope))
            tables = sorted([*r.identifier.namespace, r.identifier.name] for r in requests if r.identifier is not None)
            about = hashlib.sha256(orjson.dumps(tables)).hexdigest()
            await self._journal.find(call.principal.name, key, endpoint, about)
            response = await commit(call)
            self._journal.remember_answer(call.principal.name, key, Answer(endpoint, 204, b"", about))
            return response
        return await once(self._front, call, key, commit)

    # -- answers ------------------------------------------------------------------------------------------------------

    def _table_response(self, call: Call, identifier: Identifier, head: HeadState, *, mode: str = "all") -> Response:
        """A `LoadTableResult`, or 304 where the caller has it (trap A6: answer and ETag are the caller's own)."""
        config_bytes = orjson.dumps(self._settings.table_config)
        own = self._own(call, identifier, head)
        tag = etag(head, f"{mode}\n{call.principal.name}\n{own}\n{config_bytes.decode()}")
        if tag in (call.request.headers.get("if-none-match") or "").split(", "):
            return Response(status_code=304, headers={"ETag": tag})
        headers = {"ETag": tag}
        if mode == "refs":
            head = head.of_refs  # kept, as the whole one is: to pack it takes long where its schemas are many (trap A8)
        compressed = takes_gzip(call.request) and head.size_bytes > COMPRESS_FROM_BYTES
        if compressed:
            headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        parts = answer_parts(head, config_bytes, compressed=compressed, own=own)
        return SharedResponse(parts, headers, "application/json")

    def _own(self, call: Call, identifier: Identifier, head: HeadState) -> dict[str, str | None] | None:
        """The properties that this caller is given with a table in place of the table's own; None: none differ.

        One without a value is left out: clients would load code by it (trap S8).
        """
        kept_back = head.withheld(self._settings.client_code)
        own = client_settings.client_properties(call.principal, identifier, head.metadata)
        return {**kept_back, **(own or {})} if kept_back or own else None


def _require_no_location(call: Call, chosen: Sequence[str], what: str) -> None:
    """Where things lie is for administrators to say: two tables at one place could write, and purge, each other."""
    if chosen and not call.principal.administrator:
        raise ContractViolation(
            f"{call.principal.name} may not choose where {what} lies, or how clients get there; leave out: "
            f"{', '.join(chosen)}",
            rule="contract.location",
            next_step="fix_request",
        )
