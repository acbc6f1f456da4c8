"""PyIceberg and plain HTTP: configuration, credentials, namespaces, tables."""

from __future__ import annotations

import base64
from collections.abc import Callable

from verify.exchanges.stage import BY_REGION, NO_RETRY, SCHEMA, Stage, fails, rows

ALL = "tables: [{table: NS.*, operations: [append, overwrite], partitions: all}]\n"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def configuration(stage: Stage) -> None:
    with stage.http() as http:
        stage.step("the configuration")
        http.get("/v1/config")
        http.get("/v1/config", params={"warehouse": "elsewhere"})
        stage.step("what shows that it lives")
        http.get("/healthz")
        http.get("/readyz")
        stage.step("no such route")
        http.get("/v1/nothing")
        http.put("/v1/config")
        http.get("/v1/namespaces/a/views")
        http.get("/elsewhere")
        stage.step("bad bodies")
        for body in (b"", b"{", b"[]", b'{"namespace": "x"}', b'{"namespace": []}', b"\xff"):
            http.post("/v1/namespaces", content=body, headers={"Content-Type": "application/json"})


def credentials(stage: Stage) -> None:
    secret = stage.agent(ALL)
    name = f"{stage.ns}-agent"
    stage.step("no credential, and a wrong one")
    with stage.http("wrong") as http:
        http.get("/v1/config")
        http.get("/v1/namespaces")
        for header in ("", "Bearer", "Basic eDp5", "Digest x"):
            http.get("/v1/namespaces", headers={"Authorization": header})
    with stage.http(secret) as http:
        stage.step("tokens for a credential")
        form = {"grant_type": "client_credentials", "client_id": name, "client_secret": secret}
        token = http.post("/v1/oauth/tokens", data=form).json()["access_token"]
        http.post("/v1/oauth/tokens", data=form | {"client_id": ""})
        basic = base64.b64encode(f"{name}:{secret}".encode()).decode()
        http.post(
            "/v1/oauth/tokens",
            data={"grant_type": "client_credentials", "scope": "catalog"},
            headers={"Authorization": f"Basic {basic}"},
        )
        stage.step("tokens refused")
        http.post("/v1/oauth/tokens", data=form | {"client_secret": "wrong"})
        http.post("/v1/oauth/tokens", data=form | {"client_id": "unknown"})
        http.post("/v1/oauth/tokens", data=form | {"grant_type": "password"})
        http.post("/v1/oauth/tokens", data={"grant_type": "client_credentials"})
        http.post("/v1/oauth/tokens", content=b"%", headers=FORM)
        stage.step("a token is renewed, and used")
        exchange = "urn:ietf:params:oauth:grant-type:token-exchange"
        kind = "urn:ietf:params:oauth:token-type:access_token"
        renewed = http.post(
            "/v1/oauth/tokens",
            data={"grant_type": exchange, "subject_token": token, "subject_token_type": kind},
            headers={"Authorization": f"Bearer {token}"},
        ).json()["access_token"]
        http.get("/icetower/v1/me", headers={"Authorization": f"Bearer {renewed}"})
    stage.step("PyIceberg with a credential")
    catalog = stage.catalog(credential=f"{name}:{secret}")
    catalog.list_tables(stage.ns)
    stage.step("a principal that is revoked")
    stage.tower.admin.revoke_principal(name)
    with stage.http(secret) as http:
        http.get("/v1/namespaces")
        http.post("/v1/oauth/tokens", data=form)


def namespaces(stage: Stage) -> None:
    catalog = stage.catalog()
    inner = (stage.ns, "inner")
    stage.step("create, again, and beside it")
    catalog.create_namespace(inner, {"owner": "dana", "note": "x"})
    fails(lambda: catalog.create_namespace(inner))
    catalog.create_namespace((stage.ns, "inner", "deep"))
    catalog.create_namespace((f"{stage.ns}-missing", "x"))
    stage.step("look")
    catalog.list_namespaces(stage.ns)
    catalog.load_namespace_properties(inner)
    catalog.namespace_exists(inner)
    catalog.namespace_exists((stage.ns, "other"))
    fails(lambda: catalog.load_namespace_properties((stage.ns, "other")))
    fails(lambda: catalog.list_namespaces((stage.ns, "other")))
    stage.step("properties")
    catalog.update_namespace_properties(inner, removals={"note"}, updates={"owner": "eve", "new": "1"})
    catalog.update_namespace_properties(inner, removals={"missing"})
    fails(lambda: catalog.update_namespace_properties(inner, removals={"a"}, updates={"a": "1"}))
    fails(lambda: catalog.update_namespace_properties((stage.ns, "other"), updates={"a": "1"}))
    fails(lambda: catalog.update_namespace_properties(inner, updates={"location-provider.impl": "a.B"}))
    stage.step("by pages")
    with stage.http() as http:
        for name in ("a", "b", "c"):
            catalog.create_namespace((stage.ns, "inner", name))
        parent = f"{stage.ns}\x1finner"
        page = http.get("/v1/namespaces", params={"parent": parent, "pageSize": 2, "pageToken": ""}).json()
        http.get("/v1/namespaces", params={"parent": parent, "pageSize": 2, "pageToken": page["next-page-token"]})
        http.get("/v1/namespaces", params={"parent": parent, "pageSize": 0, "pageToken": ""})
        http.get("/v1/namespaces", params={"parent": parent, "pageSize": 2, "pageToken": "no token"})
    stage.step("drop")
    fails(lambda: catalog.drop_namespace(inner))
    for name in ("a", "b", "c", "deep"):
        catalog.drop_namespace((*inner, name))
    catalog.drop_namespace(inner)
    fails(lambda: catalog.drop_namespace(inner))
    stage.step("as an agent")
    agent = stage.catalog(stage.agent(ALL))
    fails(lambda: agent.create_namespace((stage.ns, "own")))
    agent.list_namespaces()
    fails(lambda: agent.load_namespace_properties("elsewhere"))
    fails(lambda: agent.drop_namespace(stage.ns))


def tables(stage: Stage) -> None:
    catalog = stage.catalog()
    stage.step("create, and again")
    table = catalog.create_table(stage.name(), SCHEMA, partition_spec=BY_REGION, properties=NO_RETRY)
    fails(lambda: catalog.create_table(stage.name(), SCHEMA))
    fails(lambda: catalog.create_table(f"{stage.ns}-missing.t", SCHEMA))
    fails(lambda: catalog.create_table(stage.name("bad"), SCHEMA, properties={"icetower.misspelt": "1"}))
    fails(lambda: catalog.create_table(stage.name("bad"), SCHEMA, properties={"icetower.strict": "perhaps"}))
    fails(lambda: catalog.create_table(stage.name("bad"), SCHEMA, properties={"write.location-provider.impl": "a.B"}))
    catalog.create_table(stage.name("v1"), SCHEMA, properties={"format-version": "1"})
    catalog.create_table(stage.name("v3"), SCHEMA, properties={"format-version": "3"})
    stage.step("look")
    catalog.list_tables(stage.ns)
    fails(lambda: catalog.list_tables(f"{stage.ns}-missing"))
    catalog.table_exists(stage.name())
    catalog.table_exists(stage.name("other"))
    fails(lambda: catalog.load_table(stage.name("other")))
    table.append(rows(1))
    with stage.http() as http:
        stage.step("load in other ways")
        path = f"/v1/namespaces/{stage.ns}/tables/t"
        answer = http.get(path, params={"snapshots": "refs"})
        http.get(path, params={"snapshots": "some"})
        http.get(path, headers={"If-None-Match": answer.headers.get("etag", "none")})
        tag = http.get(path).headers.get("etag", "none")
        http.get(path, headers={"If-None-Match": tag})
        http.get(path, headers={"If-None-Match": '"other"'})
        http.get(path, headers={"Accept-Encoding": "gzip"})
        http.post(f"{path}/metrics", json={"report-type": "scan-report"})
        http.get(f"/v1/namespaces/{stage.ns}/tables", params={"pageSize": 2, "pageToken": ""})
    stage.step("rename")
    catalog.rename_table(stage.name(), stage.name("moved"))
    fails(lambda: catalog.rename_table(stage.name(), stage.name("again")))
    fails(lambda: catalog.rename_table(stage.name("moved"), stage.name("v1")))
    fails(lambda: catalog.rename_table(stage.name("moved"), f"{stage.ns}-missing.t"))
    stage.step("register")
    place = catalog.load_table(stage.name("moved")).metadata_location
    fails(lambda: catalog.register_table(stage.name("moved"), place))
    fails(lambda: catalog.register_table(stage.name("new"), place.replace(".metadata.json", "x.metadata.json")))
    fails(lambda: catalog.register_table(stage.name("new"), "s3://elsewhere/00000-x.metadata.json"))
    catalog.drop_table(stage.name("moved"))
    catalog.register_table(stage.name("back"), place)
    catalog.register_table(stage.name("back"), place, overwrite=True)
    stage.step("drop")
    fails(lambda: catalog.drop_namespace(stage.ns))
    catalog.drop_table(stage.name("v1"))
    fails(lambda: catalog.drop_table(stage.name("v1")))
    catalog.purge_table(stage.name("back"))


def staged(stage: Stage) -> None:
    catalog = stage.catalog()
    stage.step("created by a commit")
    transaction = catalog.create_table_transaction(stage.name(), SCHEMA, partition_spec=BY_REGION)
    other = catalog.create_table_transaction(stage.name(), SCHEMA)
    transaction.append(rows(1))
    transaction.commit_transaction()
    stage.step("the second to create it")
    other.append(rows(2))
    fails(other.commit_transaction)
    fails(lambda: catalog.create_table_transaction(stage.name(), SCHEMA))
    stage.step("dropped, and created again under a writer")
    handle = catalog.load_table(stage.name())
    catalog.drop_table(stage.name())
    fails(lambda: handle.append(rows(3)))
    catalog.create_table(stage.name(), SCHEMA)
    fails(lambda: handle.append(rows(3)))
    fails(handle.refresh)


def permissions(stage: Stage) -> None:
    """What a contract without `create`, `drop` and the like is refused."""
    table = stage.table()
    catalog = stage.catalog(stage.agent(ALL))
    acts: dict[str, Callable[[], object]] = {
        "create": lambda: catalog.create_table(stage.name("new"), SCHEMA),
        "drop": lambda: catalog.drop_table(stage.name()),
        "rename": lambda: catalog.rename_table(stage.name(), stage.name("new")),
        "register": lambda: catalog.register_table(stage.name("new"), table.metadata_location),
        "load another's": lambda: catalog.load_table("elsewhere.t"),
        "list another's": lambda: catalog.list_tables("elsewhere"),
    }
    for name, act in acts.items():
        stage.step(name)
        fails(act)
    stage.step("the control API")
    with stage.http(stage.agent(ALL, "curious")) as http:
        for path in ("contracts", "principals", "commits", "commits/summary", "bypasses", "readiness", "shadow", "me"):
            http.get(f"/icetower/v1/{path}")


PARTS = (configuration, credentials, namespaces, tables, staged, permissions)
