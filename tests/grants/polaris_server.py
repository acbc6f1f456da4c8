"""A small Polaris on loopback: its management API with roles, principals and grants, as far as grants need it.

Every request and every good answer goes before the judges of `published`. What Polaris's server does beyond its
document is done here as its source does it: 409 for what exists, 404 for what is not there, 400 with GRANT_NOT_FOUND
for an assignment or grant that cannot be revoked since nobody has it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import httpx2

from tests.grants.published import Judge, judges

MANAGEMENT = "/api/management/v1"
JSON = dict[str, Any]


class Refused(Exception):
    def __init__(self, status: int, message: str, kind: str = "Error") -> None:
        self.status, self.message, self.kind = status, message, kind


@dataclass
class Fault:
    """What happens to one request that changes something: the `at`-th from now on, counted from 0.

    Attributes:
        status: of the answer; 0: the connection is closed without one.
        carried_out: whether the request takes effect all the same.
    """

    at: int
    status: int
    carried_out: bool


@dataclass
class State:
    """Attributes:
    catalog_roles: by catalog and name; each with `properties` and `grants`.
    assigned: pairs of a principal role and a (catalog, catalog role).
    members: pairs of a principal and a principal role.
    securables: namespaces and tables that are there, as tuples of names.
    """

    catalogs: set[str] = field(default_factory=lambda: {"prod"})
    catalog_roles: dict[tuple[str, str], JSON] = field(default_factory=dict)
    principal_roles: dict[str, JSON] = field(default_factory=dict)
    principals: dict[str, JSON] = field(default_factory=dict)
    assigned: set[tuple[str, tuple[str, str]]] = field(default_factory=set)
    members: set[tuple[str, str]] = field(default_factory=set)
    securables: set[tuple[str, ...]] = field(default_factory=set)
    secrets_made: int = 0

    # -- catalog roles --------------------------------------------------------------------------------------------

    def list_catalog_roles(self, catalog: str) -> JSON:
        self._catalog(catalog)
        return {"roles": [self._role(key) for key in self.catalog_roles if key[0] == catalog]}

    def create_catalog_role(self, catalog: str, *, catalogRole: JSON) -> JSON:  # noqa: N803 - as it travels
        self._catalog(catalog)
        key = (catalog, catalogRole["name"])
        self._new(key, self.catalog_roles)
        self.catalog_roles[key] = {"properties": catalogRole.get("properties", {}), "grants": []}
        return self._role(key)

    def delete_catalog_role(self, catalog: str, role: str) -> None:
        self._there((catalog, role), self.catalog_roles)
        del self.catalog_roles[catalog, role]
        self.assigned = {pair for pair in self.assigned if pair[1] != (catalog, role)}

    def list_grants(self, catalog: str, role: str) -> JSON:
        self._there((catalog, role), self.catalog_roles)
        return {"grants": self.catalog_roles[catalog, role]["grants"]}

    def add_grant(self, catalog: str, role: str, *, grant: JSON) -> None:
        self._there((catalog, role), self.catalog_roles)
        self._securable(grant)
        grants = self.catalog_roles[catalog, role]["grants"]
        if grant not in grants:
            grants.append(grant)

    def revoke_grant(self, catalog: str, role: str, *, grant: JSON) -> None:
        self._there((catalog, role), self.catalog_roles)
        self._securable(grant)
        self._held(grant, self.catalog_roles[catalog, role]["grants"])
        self.catalog_roles[catalog, role]["grants"].remove(grant)

    def list_principal_roles_of(self, catalog: str, role: str) -> JSON:
        self._there((catalog, role), self.catalog_roles)
        return {
            "roles": [self._named(name, self.principal_roles) for name, key in self.assigned if key == (catalog, role)]
        }

    # -- principal roles ------------------------------------------------------------------------------------------

    def list_principal_roles(self) -> JSON:
        return {"roles": [self._named(name, self.principal_roles) for name in self.principal_roles]}

    def create_principal_role(self, *, principalRole: JSON) -> JSON:  # noqa: N803
        self._new(principalRole["name"], self.principal_roles)
        self.principal_roles[principalRole["name"]] = {"properties": principalRole.get("properties", {})}
        return self._named(principalRole["name"], self.principal_roles)

    def list_catalog_roles_of(self, role: str, catalog: str) -> JSON:
        self._there(role, self.principal_roles)
        return {"roles": [self._role(key) for name, key in self.assigned if name == role and key[0] == catalog]}

    def assign_catalog_role(self, role: str, catalog: str, *, catalogRole: JSON) -> None:  # noqa: N803
        self._there(role, self.principal_roles)
        self._there((catalog, catalogRole["name"]), self.catalog_roles)
        self.assigned.add((role, (catalog, catalogRole["name"])))

    def revoke_catalog_role(self, role: str, catalog: str, catalog_role: str) -> None:
        self._there(role, self.principal_roles)
        self._there((catalog, catalog_role), self.catalog_roles)
        self._held((role, (catalog, catalog_role)), self.assigned)
        self.assigned.remove((role, (catalog, catalog_role)))

    def list_members(self, role: str) -> JSON:
        self._there(role, self.principal_roles)
        return {"principals": [self._named(who, self.principals) for who, name in self.members if name == role]}

    # -- principals -----------------------------------------------------------------------------------------------

    def list_principals(self) -> JSON:
        return {"principals": [self._named(name, self.principals) for name in self.principals]}

    def create_principal(self, *, principal: JSON, credentialRotationRequired: bool = False) -> JSON:  # noqa: N803
        self._new(principal["name"], self.principals)
        self.principals[principal["name"]] = {"properties": principal.get("properties", {})}
        return self.reset(principal["name"])

    def reset(self, principal: str) -> JSON:
        self._there(principal, self.principals)
        self.secrets_made += 1
        secret = f"secret-{self.secrets_made}-of-{principal}"
        self.principals[principal]["secret"] = secret
        credentials = {"clientId": f"id-of-{principal}", "clientSecret": secret}
        return {"principal": self._named(principal, self.principals), "credentials": credentials}

    def list_roles_of(self, principal: str) -> JSON:
        self._there(principal, self.principals)
        return {"roles": [self._named(name, self.principal_roles) for who, name in self.members if who == principal]}

    def assign_principal_role(self, principal: str, *, principalRole: JSON) -> None:  # noqa: N803
        self._there(principal, self.principals)
        self._there(principalRole["name"], self.principal_roles)
        self.members.add((principal, principalRole["name"]))

    def revoke_principal_role(self, principal: str, role: str) -> None:
        self._there(principal, self.principals)
        self._there(role, self.principal_roles)
        self._held((principal, role), self.members)
        self.members.remove((principal, role))

    # -- what they have in common ---------------------------------------------------------------------------------

    def _catalog(self, name: str) -> None:
        if name not in self.catalogs:
            raise Refused(404, f"Catalog {name} does not exist")

    def _there(self, key: Any, among: Mapping[Any, Any]) -> None:
        if key not in among:
            raise Refused(404, f"{key} does not exist")

    def _new(self, key: Any, among: Mapping[Any, Any]) -> None:
        if key in among:
            raise Refused(409, f"{key} already exists")

    def _held(self, what: Any, among: Any) -> None:
        if what not in among:
            raise Refused(400, "Operation failed: GRANT_NOT_FOUND", "GRANT_NOT_FOUND")

    def _securable(self, grant: JSON) -> None:
        names = (*grant.get("namespace", ()), *([grant["tableName"]] if "tableName" in grant else ()))
        if names and names not in self.securables:
            raise Refused(404, f"{'.'.join(names)} does not exist")

    def _role(self, key: tuple[str, str]) -> JSON:
        return {"name": key[1], "properties": self.catalog_roles[key]["properties"], "entityVersion": 1}

    def _named(self, name: str, among: Mapping[str, JSON]) -> JSON:
        return {"name": name, "properties": among[name]["properties"], "entityVersion": 1}


ROUTES: tuple[tuple[str, str, int, Callable[..., Any]], ...] = (
    ("GET", "/catalogs/([^/]+)/catalog-roles", 200, State.list_catalog_roles),
    ("POST", "/catalogs/([^/]+)/catalog-roles", 201, State.create_catalog_role),
    ("DELETE", "/catalogs/([^/]+)/catalog-roles/([^/]+)", 204, State.delete_catalog_role),
    ("GET", "/catalogs/([^/]+)/catalog-roles/([^/]+)/grants", 200, State.list_grants),
    ("PUT", "/catalogs/([^/]+)/catalog-roles/([^/]+)/grants", 201, State.add_grant),
    ("POST", "/catalogs/([^/]+)/catalog-roles/([^/]+)/grants", 201, State.revoke_grant),
    ("GET", "/catalogs/([^/]+)/catalog-roles/([^/]+)/principal-roles", 200, State.list_principal_roles_of),
    ("GET", "/principal-roles", 200, State.list_principal_roles),
    ("POST", "/principal-roles", 201, State.create_principal_role),
    ("GET", "/principal-roles/([^/]+)/catalog-roles/([^/]+)", 200, State.list_catalog_roles_of),
    ("PUT", "/principal-roles/([^/]+)/catalog-roles/([^/]+)", 201, State.assign_catalog_role),
    ("DELETE", "/principal-roles/([^/]+)/catalog-roles/([^/]+)/([^/]+)", 204, State.revoke_catalog_role),
    ("GET", "/principal-roles/([^/]+)/principals", 200, State.list_members),
    ("GET", "/principals", 200, State.list_principals),
    ("POST", "/principals", 201, State.create_principal),
    ("POST", "/principals/([^/]+)/reset", 200, State.reset),
    ("GET", "/principals/([^/]+)/principal-roles", 200, State.list_roles_of),
    ("PUT", "/principals/([^/]+)/principal-roles", 201, State.assign_principal_role),
    ("DELETE", "/principals/([^/]+)/principal-roles/([^/]+)", 204, State.revoke_principal_role),
)


class PolarisServer:
    """Serves until it is closed.

    Args:
        token: the one that is let in.
        catalog: where an Iceberg REST catalog serves that takes the same token; it is found under ``/api/catalog``.

    Attributes:
        changed: the requests that change something, as they came: method, path, body.
        objections: what the judges said; empty if all was right.
        meanwhile: what somebody else does just before the next of those requests.
    """

    def __init__(self, token: str = "polaris-token", catalog: str | None = None) -> None:
        self.state = State()
        self.token = token
        self.changed: list[tuple[str, str, JSON | None]] = []
        self.objections: list[str] = []
        self.faults: list[Fault] = []
        self.meanwhile: Callable[[State], None] | None = None
        self._judges: tuple[Judge, ...] = judges()
        self._lock = threading.Lock()
        self._catalog = None if catalog is None else httpx2.Client(base_url=catalog, timeout=60.0)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.uri = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self._catalog is not None:
            self._catalog.close()
        assert not self.objections, self.objections

    def fail(self, at: int, status: int, *, carried_out: bool = False) -> None:
        self.faults.append(Fault(len(self.changed) + at, status, carried_out))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body go out together

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with server._lock:
                    status, answer = server._answered(self.command, self.path, dict(self.headers), body)
                if not status:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                del format, args

        return Handler

    def _answered(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        path = urlsplit(target).path
        if path == "/api/catalog/v1/oauth/tokens":
            form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
            assert form["grant_type"] == "client_credentials"
            known = (form["client_id"], form["client_secret"]) == ("root", "s3cr3t:with:colons")
            good = {"access_token": self.token, "token_type": "bearer", "expires_in": 3600}
            return (200, json.dumps(good).encode()) if known else (401, b'{"error": "unauthorized_client"}')
        if headers.get("Authorization") != f"Bearer {self.token}":
            return 401, _error(Refused(401, "Unauthorized"))
        if path.startswith("/api/catalog/"):
            if self._catalog is None:
                return 404, _error(Refused(404, "no catalog is served here"))
            kept = {name: headers[name] for name in ("Authorization", "Content-Type") if name in headers}
            answer = self._catalog.request(method, target.removeprefix("/api/catalog"), headers=kept, content=body)
            return answer.status_code, answer.content
        return self._managed(method, path.removeprefix(MANAGEMENT), json.loads(body) if body else None)

    def _managed(self, method: str, path: str, body: JSON | None) -> tuple[int, bytes]:
        self._judge(lambda judge: judge.request(method, path, body))
        fault = None
        if method != "GET":
            fault = next((fault for fault in self.faults if fault.at == len(self.changed)), None)
            self.changed.append((method, path, body))
            if self.meanwhile is not None:
                self.meanwhile(self.state)
                self.meanwhile = None
        if fault is not None and not fault.carried_out:
            return fault.status, _error(Refused(fault.status, "injected"))
        try:
            status, answer = self._routed(method, path, body)
        except Refused as refused:
            return refused.status, _error(refused)
        self._judge(lambda judge: judge.answer(method, path, body, status, answer))
        if fault is not None:
            return fault.status, _error(Refused(fault.status, "injected"))
        return status, answer.encode()

    def _routed(self, method: str, path: str, body: JSON | None) -> tuple[int, str]:
        for its_method, pattern, status, handler in ROUTES:
            match = re.fullmatch(pattern, path) if its_method == method else None
            if match:
                answer = handler(self.state, *map(unquote, match.groups()), **(body or {}))
                return status, "" if answer is None else json.dumps(answer)
        raise Refused(404, f"no route {method} {path}")

    def _judge(self, ask: Callable[[Judge], None]) -> None:
        for judge in self._judges:
            try:
                ask(judge)
            except Exception as objection:  # noqa: BLE001 - whatever a judge's library raises
                self.objections.append(f"{type(judge).__name__}: {objection!r}")


def _error(refused: Refused) -> bytes:
    return json.dumps({"error": {"message": refused.message, "type": refused.kind, "code": refused.status}}).encode()
