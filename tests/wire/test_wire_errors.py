"""What can be wrong with a request, over the wire: each answer names what was wrong, and the way out."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ForbiddenError

from icetower.agent import new_key
from icetower.ambient import SystemAmbient
from icetower.errors import ConfigurationError
from icetower.gateway import app
from icetower.gateway.settings import load_settings
from verify.kit.tower_process import SCHEMA, TowerProcess, command, error_of

MAX_BODY_BYTES = 32 * 1024 * 1024
TOKENS = "/v1/oauth/tokens"
SEPARATOR = "%1F"


@pytest.fixture(scope="session")
def http(tower: TowerProcess) -> Iterator[httpx2.Client]:
    with tower.client() as client:
        yield client


@pytest.fixture
def tables(namespace: str) -> str:
    return f"/v1/namespaces/{namespace}/tables"


@pytest.fixture
def table(http: httpx2.Client, tables: str) -> str:
    http.post(tables, json={"name": "t", "schema": SCHEMA}).raise_for_status()
    return f"{tables}/t"


def set_property(**properties: str) -> dict[str, Any]:
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": properties}]}


# -- 400: the request is wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/v1/namespaces", "CreateNamespace"),
        ("{tables}", "CreateTable"),
        ("{tables}/t", "commit"),
        ("/v1/tables/rename", "RenameTable"),
        ("/v1/transactions/commit", "transaction"),
        ("/icetower/v1/principals", "principal"),
    ],
)
def test_malformed_json_is_400(http: httpx2.Client, tables: str, path: str, what: str) -> None:
    response = http.post(path.format(tables=tables), content=b'{"updates": [')
    error = error_of(response)
    assert (response.status_code, error["type"], error["next_step"]) == (400, "BadRequestException", "fix_request")
    assert what in error["message"]
    assert "not JSON" in error["message"]


@pytest.mark.parametrize(
    ("commit", "named"),
    [
        ({"requirements": [], "updates": [{"action": "levitate"}]}, "Unknown update 'levitate'"),
        ({"requirements": [{"type": "assert-mood"}], "updates": []}, "Unknown requirement 'assert-mood'"),
        ({"requirements": [], "updates": [{"action": "set-location"}]}, "location"),
    ],
)
def test_a_commit_that_is_not_in_the_specification_is_400(
    http: httpx2.Client, table: str, commit: dict[str, Any], named: str
) -> None:
    response = http.post(table, json=commit)
    assert response.status_code == 400
    assert named in error_of(response)["message"]


def test_a_commit_that_names_another_table_than_its_path_is_400(
    http: httpx2.Client, table: str, namespace: str
) -> None:
    commit = set_property(a="1") | {"identifier": {"namespace": [namespace], "name": "other"}}
    error = error_of(http.post(table, json=commit))
    assert (error["code"], error["rule"]) == (400, "request.name")
    assert f"{namespace}.other" in error["message"]


@pytest.mark.parametrize(
    ("path", "named"),
    [("?pageSize=0", "pageSize"), ("?pageSize=many", "pageSize"), ("?pageToken=%21", "pageToken")],
)
def test_a_bad_page_is_400(http: httpx2.Client, tables: str, path: str, named: str) -> None:
    error = error_of(http.get(tables + path))
    assert error["code"] == 400
    assert named in error["message"]


def test_a_query_that_is_neither_true_nor_false_is_400(http: httpx2.Client, table: str) -> None:
    assert "purgeRequested" in error_of(http.delete(f"{table}?purgeRequested=perhaps"))["message"]
    assert "snapshots" in error_of(http.get(f"{table}?snapshots=some"))["message"]
    assert http.head(table).status_code == 204


def test_another_method_is_refused_by_name(http: httpx2.Client) -> None:
    response = http.put("/v1/config")
    assert response.status_code == 405
    assert "GET" in response.headers["Allow"]
    assert error_of(response)["rule"] == "request.method"
    assert "PUT is not offered on /v1/config" in response.json()["error"]["message"]


# -- 401 --------------------------------------------------------------------------------------------------------------


def test_wrong_and_revoked_credentials_get_one_answer(tower: TowerProcess) -> None:
    """Nobody learns from the answer whether a credential was ever good."""
    secret = tower.principal("short-lived", "reads: ['**']\n")
    with tower.client(secret) as client:
        assert client.get("/v1/config").status_code == 200
        tower.admin.revoke_principal("short-lived")
        revoked = client.get("/v1/config")
    with tower.client("nobody-knows-me") as client:
        unknown = client.get("/v1/config")
    assert unknown.status_code == 401
    assert unknown.headers["WWW-Authenticate"].startswith("Bearer")
    assert error_of(unknown)["type"] == "NotAuthorizedException"
    assert error_of(unknown)["next_step"] == "authenticate"
    first, second = error_of(revoked), error_of(unknown)
    for error in (first, second):  # but for the id of the request
        error["message"] = error["message"].replace(error.pop("request_id"), "")
    assert first == second


@pytest.mark.parametrize("header", [None, "Basic YTpi", "Bearer"])
def test_a_missing_credential_is_401_and_says_how_to_send_one(tower: TowerProcess, header: str | None) -> None:
    response = httpx2.get(f"{tower.uri}/v1/config", headers={} if header is None else {"Authorization": header})
    assert response.status_code == 401
    assert "Bearer TOKEN" in error_of(response)["message"]


def test_the_credential_is_asked_for_before_the_body_is_read(tower: TowerProcess) -> None:
    response = httpx2.post(f"{tower.uri}/v1/namespaces", content=b"{")
    assert response.status_code == 401


# -- 403 --------------------------------------------------------------------------------------------------------------


def test_a_foreign_partition_is_403_with_its_name(tower: TowerProcess, catalog: Catalog, namespace: str) -> None:
    """Read from the manifests that PyIceberg wrote; nothing of the commit is in the table."""
    name = f"{namespace}.t"
    http = tower.client()
    http.post(
        f"/v1/namespaces/{namespace}/tables",
        json={
            "name": "t",
            "schema": SCHEMA,
            "partition-spec": {"fields": [{"source-id": 2, "name": "region", "transform": "identity"}]},
        },
    ).raise_for_status()
    http.close()
    secret = tower.principal(
        "north-only", f"tables:\n  - table: {name}\n    operations: [append]\n    partitions: [{{region: north}}]\n"
    )
    agents = tower.catalog(secret).load_table(name)
    agents.append(pa.table({"id": [1], "region": ["north"]}))
    with pytest.raises(ForbiddenError) as refusal:
        agents.append(pa.table({"id": [2, 3], "region": ["north", "south"]}))
    assert "region=south" in str(refusal.value)
    assert "region=north" not in str(refusal.value)
    assert catalog.load_table(name).scan().to_arrow()["id"].to_pylist() == [1]
    newest = tower.admin.commits(table=name)[0]
    assert (newest["principal"], newest["outcome"], newest["rule"]) == ("north-only", "refused", "contract.partitions")


def test_what_the_contract_does_not_name_is_403(tower: TowerProcess, table: str, namespace: str) -> None:
    with tower.client(tower.principal("stranger", "reads: [elsewhere.*]\n")) as stranger:
        for response in (stranger.get(table), stranger.post(table, json=set_property(a="1")), stranger.delete(table)):
            error = error_of(response)
            assert (error["code"], error["rule"], error["next_step"]) == (403, "contract.table", "ask_owner")
            assert f"{namespace}.t" in error["message"]
        assert error_of(stranger.get("/icetower/v1/principals"))["rule"] == "permission.administrator"


# -- 404, 409, 413 ----------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_404_by_name(http: httpx2.Client, namespace: str, tables: str) -> None:
    cases = [
        (http.get(f"{tables}/nothing"), "NoSuchTableException", f"{namespace}.nothing"),
        (http.post(f"{tables}/nothing", json=set_property(a="1")), "NoSuchTableException", f"{namespace}.nothing"),
        (http.delete(f"{tables}/nothing"), "NoSuchTableException", f"{namespace}.nothing"),
        (http.get("/v1/namespaces/nowhere"), "NoSuchNamespaceException", "nowhere"),
        (http.get("/v1/namespaces/nowhere/tables"), "NoSuchNamespaceException", "nowhere"),
        (
            http.post("/v1/namespaces/nowhere/tables", json={"name": "t", "schema": SCHEMA}),
            "NoSuchNamespaceException",
            "nowhere",
        ),
        (http.get("/v1/no/such/route"), "NotFoundException", "/v1/no/such/route"),
    ]
    for response, kind, named in cases:
        error = error_of(response)
        assert (response.status_code, error["type"]) == (404, kind)
        assert named in error["message"]
    for path in (f"{tables}/nothing", "/v1/namespaces/nowhere"):
        missing = http.head(path)
        assert (missing.status_code, missing.content) == (404, b"")


def test_a_stale_strict_commit_is_409(http: httpx2.Client, table: str) -> None:
    add = {
        "type": "struct",
        "schema-id": 1,
        "fields": [*SCHEMA["fields"], {**SCHEMA["fields"][0], "id": 3, "name": "x"}],
    }
    commit = {
        "requirements": [{"type": "assert-last-assigned-field-id", "last-assigned-field-id": 2}],
        "updates": [{"action": "add-schema", "schema": add, "last-column-id": 3}],
    }
    assert http.post(table, json=commit).status_code == 200
    error = error_of(http.post(table, json=commit))
    assert (error["code"], error["type"], error["next_step"]) == (409, "CommitFailedException", "refresh")
    assert error["rule"] == "requirement.assert-last-assigned-field-id"
    assert "expected id 2 != 3" in error["message"]


def test_a_stale_append_that_nobody_declared_blind_is_409_and_says_what_would_help(
    tower: TowerProcess, catalog: Catalog, namespace: str
) -> None:
    """Trap R1: the word "append" proves nothing."""
    name = f"{namespace}.t"
    catalog.create_table(name, schema=pa.schema([("id", pa.int64())]), properties={"commit.retry.num-retries": "0"})
    stale = catalog.load_table(name)
    catalog.load_table(name).append(pa.table({"id": [1]}))
    with pytest.raises(Exception, match=r"icetower\.blind-appends") as refusal:
        stale.append(pa.table({"id": [2]}))
    assert type(refusal.value).__name__ == "CommitFailedException"
    assert tower.admin.commits(table=name)[0]["rule"] == "rebase.not-blind"
    assert catalog.load_table(name).scan().to_arrow()["id"].to_pylist() == [1]


def test_what_exists_or_is_not_empty_is_409(http: httpx2.Client, namespace: str, tables: str, table: str) -> None:
    again = error_of(http.post(tables, json={"name": "t", "schema": SCHEMA}))
    assert (again["code"], again["type"]) == (409, "AlreadyExistsException")
    assert f"{namespace}.t" in again["message"]
    full = error_of(http.delete(f"/v1/namespaces/{namespace}"))
    assert (full["code"], full["type"]) == (409, "NamespaceNotEmptyException")
    assert namespace in full["message"]


def test_an_overlong_body_is_413_by_its_declared_length(http: httpx2.Client, table: str) -> None:
    error = error_of(http.post(table, content=b" " * (MAX_BODY_BYTES + 1)))
    assert (error["code"], error["rule"]) == (413, "limit.body")
    assert str(MAX_BODY_BYTES) in error["message"]


def test_an_overlong_stream_is_413_without_a_declared_length(http: httpx2.Client, table: str) -> None:
    chunk = b" " * (1024 * 1024)
    error = error_of(http.post(table, content=(chunk for _ in range(MAX_BODY_BYTES // len(chunk) + 1))))
    assert (error["code"], error["rule"]) == (413, "limit.body")
    assert http.head(table).status_code == 204


# -- idempotency keys -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["again", "6f9619ff-8b86-4011-b42d-00cf4fc964ff", "", "0" * 36])
def test_a_key_that_is_no_uuid_of_version_7_is_400(http: httpx2.Client, table: str, key: str) -> None:
    error = error_of(http.post(table, json=set_property(a="1"), headers={"Idempotency-Key": key}))
    assert (error["code"], error["rule"], error["next_step"]) == (400, "key.form", "new_key")
    assert "Idempotency-Key" in error["message"]


def test_a_key_on_another_endpoint_is_422(http: httpx2.Client, table: str, namespace: str) -> None:
    key = {"Idempotency-Key": new_key()}
    assert http.post(table, json=set_property(a="1"), headers=key).status_code == 200
    rename = {"source": {"namespace": [namespace], "name": "t"}, "destination": {"namespace": [namespace], "name": "u"}}
    error = error_of(http.post("/v1/tables/rename", json=rename, headers=key))
    assert (error["code"], error["rule"], error["next_step"]) == (422, "key.endpoint", "fix_request")
    assert http.head(table).status_code == 204


def test_a_key_with_another_body_is_422(http: httpx2.Client, namespace: str) -> None:
    key = {"Idempotency-Key": new_key()}
    assert http.post("/v1/namespaces", json={"namespace": [namespace, "a"]}, headers=key).status_code == 200
    assert http.post("/v1/namespaces", json={"namespace": [namespace, "b"]}, headers=key).status_code == 422
    assert http.head(f"/v1/namespaces/{namespace}{SEPARATOR}b").status_code == 404


def test_under_a_key_every_mutation_happens_once_and_answers_twice(http: httpx2.Client, namespace: str) -> None:
    """Without the key, each of these would be refused the second time."""
    child = f"/v1/namespaces/{namespace}{SEPARATOR}child"
    table = {"namespace": [namespace, "child"], "name": "t"}
    mutations: list[tuple[str, str, Any]] = [
        ("POST", "/v1/namespaces", {"namespace": [namespace, "child"], "properties": {"owner": "me"}}),
        ("POST", f"{child}/tables", {"name": "t", "schema": SCHEMA}),
        ("POST", "/v1/tables/rename", {"source": table, "destination": table | {"name": "u"}}),
        ("DELETE", f"{child}/tables/u", None),
        ("DELETE", child, None),
    ]
    for method, path, body in mutations:
        key = {"Idempotency-Key": new_key()}
        first = http.request(method, path, json=body, headers=key)
        assert first.is_success, first.text
        second = http.request(method, path, json=body, headers=key)
        assert (second.status_code, second.content) == (first.status_code, first.content)
        assert not http.request(method, path, json=body).is_success


def test_a_final_refusal_is_replayed_under_its_key_too(http: httpx2.Client, namespace: str) -> None:
    key = {"Idempotency-Key": new_key()}
    path = f"/v1/namespaces/{namespace}/tables/late"
    first = http.delete(path, headers=key)
    assert error_of(first)["code"] == 404
    http.post(f"/v1/namespaces/{namespace}/tables", json={"name": "late", "schema": SCHEMA}).raise_for_status()
    assert http.delete(path, headers=key).content == first.content
    assert http.head(path).status_code == 204


# -- listings, namespaces, caching ------------------------------------------------------------------------------------


def test_pages_stay_right_while_names_come_and_go(http: httpx2.Client, tables: str) -> None:
    for number in range(7):
        http.post(tables, json={"name": f"t{number}", "schema": SCHEMA}).raise_for_status()
    first = http.get(tables, params={"pageSize": "3"}).json()
    assert [row["name"] for row in first["identifiers"]] == ["t0", "t1", "t2"]
    http.delete(f"{tables}/t2").raise_for_status()  # the name that the token stands on
    http.post(tables, json={"name": "t1a", "schema": SCHEMA}).raise_for_status()
    seen: list[str] = []
    token = first["next-page-token"]
    while token:
        page = http.get(tables, params={"pageSize": "2", "pageToken": token}).json()
        assert len(page["identifiers"]) <= 2
        seen += [row["name"] for row in page["identifiers"]]
        token = page["next-page-token"]
    assert seen == ["t3", "t4", "t5", "t6"]
    everything = http.get(tables, params={"pageToken": ""}).json()
    assert [row["name"] for row in everything["identifiers"]] == ["t0", "t1", "t1a", "t3", "t4", "t5", "t6"]


def test_namespaces_have_levels(http: httpx2.Client, namespace: str) -> None:
    for levels in ([namespace, "a"], [namespace, "a", "b"], [namespace, "c"]):
        http.post("/v1/namespaces", json={"namespace": levels}).raise_for_status()
    listed = http.get("/v1/namespaces", params={"parent": namespace}).json()["namespaces"]
    assert listed == [[namespace, "a"], [namespace, "c"]]
    deep = f"/v1/namespaces/{namespace}{SEPARATOR}a{SEPARATOR}b"
    assert http.get(deep).json()["namespace"] == [namespace, "a", "b"]
    http.post(f"{deep}/tables", json={"name": "t", "schema": SCHEMA}).raise_for_status()
    assert http.get(f"{deep}/tables").json()["identifiers"] == [{"namespace": [namespace, "a", "b"], "name": "t"}]
    assert http.get(f"/v1/namespaces/{namespace}{SEPARATOR}a/tables").json()["identifiers"] == []
    assert error_of(http.get(f"/v1/namespaces/{namespace}{SEPARATOR}{SEPARATOR}b"))["rule"] == "request.name"
    assert error_of(http.delete(f"/v1/namespaces/{namespace}{SEPARATOR}a"))["code"] == 409


def test_a_table_that_the_caller_has_is_304(http: httpx2.Client, table: str) -> None:
    first = http.get(table)
    etag = first.headers["ETag"]
    again = http.get(table, headers={"If-None-Match": etag})
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", etag)
    assert http.get(f"{table}?snapshots=refs", headers={"If-None-Match": etag}).status_code == 200
    committed = http.post(table, json=set_property(a="1"))
    assert committed.headers["ETag"] != etag
    changed = http.get(table, headers={"If-None-Match": etag})
    assert (changed.status_code, changed.json()["metadata"]["properties"]["a"]) == (200, "1")
    assert http.get(table, headers={"If-None-Match": committed.headers["ETag"]}).status_code == 304


def test_an_etag_is_its_callers_own(tower: TowerProcess, http: httpx2.Client, table: str, namespace: str) -> None:
    """Trap A6: what a load answers may differ by principal."""
    etag = http.get(table).headers["ETag"]
    with tower.client(tower.principal("another-reader", f"reads: [{namespace}.*]\n")) as reader:
        assert reader.get(table, headers={"If-None-Match": etag}).status_code == 200


def test_snapshots_refs_leaves_the_others_out(http: httpx2.Client, catalog: Catalog, namespace: str) -> None:
    table = catalog.create_table(f"{namespace}.t", schema=pa.schema([("id", pa.int64())]))
    for number in range(3):
        table.append(pa.table({"id": [number]}))
    path = f"/v1/namespaces/{namespace}/tables/t"
    whole, short = (http.get(f"{path}?snapshots={mode}").json()["metadata"] for mode in ("all", "refs"))
    assert len(whole["snapshots"]) == 3
    assert [snapshot["snapshot-id"] for snapshot in short["snapshots"]] == [whole["current-snapshot-id"]]
    assert short["snapshot-log"] == whole["snapshot-log"]


def test_config_lists_endpoints_that_are_there(http: httpx2.Client, namespace: str) -> None:
    """Trap A7: clients follow the list to the letter. None of them may answer that there is no such route."""
    config = http.get("/v1/config", params={"warehouse": "anything"}).json()
    assert config["idempotency-key-lifetime"] == "PT86400S"
    assert len(config["endpoints"]) == len(set(config["endpoints"])) > 10
    for endpoint in config["endpoints"]:
        method, path = endpoint.split()
        path = path.replace("/{prefix}", "").format(namespace=namespace, table="nothing")
        response = http.request(method, path, **({"content": b"["} if method == "POST" else {}))
        assert "there is no route" not in response.text, endpoint
        assert "is not offered" not in response.text, endpoint


@pytest.mark.parametrize("path", ["/v1/v1/config", "/v1/icetower/v1/contracts"])
def test_a_uri_that_ends_in_v1_is_said_to_be_too_long(http: httpx2.Client, path: str) -> None:
    response = http.get(path)
    assert response.status_code == 404
    assert "leave /v1 out of the URI" in response.text


def test_health_needs_no_credential(tower: TowerProcess) -> None:
    response = httpx2.get(f"{tower.uri}/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


# -- OAuth2 -----------------------------------------------------------------------------------------------------------


def test_every_way_to_an_access_token(tower: TowerProcess) -> None:
    secret = tower.principal("oauth-agent", "reads: ['**']\n")
    with httpx2.Client(base_url=tower.uri) as client:
        credentials = {"grant_type": "client_credentials"}
        answers = [
            client.post(TOKENS, data={**credentials, "client_id": "oauth-agent", "client_secret": secret}),
            client.post(TOKENS, data={**credentials, "client_secret": secret}),
            client.post(TOKENS, data=credentials, auth=("oauth-agent", secret)),
            client.post(
                TOKENS,
                data={
                    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
                    "subject_token": secret,
                    "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
                },
            ),
        ]
        tokens: list[str] = []
        for answer in answers:
            assert answer.status_code == 200, answer.text
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.json()["token_type"] == "bearer"
            tokens.append(answer.json()["access_token"])
        headers = [{"Authorization": f"Bearer {token}"} for token in tokens]
        found = [client.get("/icetower/v1/me", headers=header).json()["principal"] for header in headers]
        assert found == ["oauth-agent"] * 4
        tower.admin.revoke_principal("oauth-agent")
        assert [client.get("/v1/config", headers=header).status_code for header in headers] == [401] * 4


@pytest.mark.parametrize(
    ("form", "status", "code"),
    [
        ({"grant_type": "client_credentials", "client_id": "admin", "client_secret": "guess"}, 401, "invalid_client"),
        ({"grant_type": "client_credentials", "client_id": "admin"}, 400, "invalid_request"),
        ({"grant_type": "password"}, 400, "unsupported_grant_type"),
        ({}, 400, "unsupported_grant_type"),
    ],
)
def test_oauth_refusals_are_of_its_own_form(tower: TowerProcess, form: dict[str, str], status: int, code: str) -> None:
    response = httpx2.post(f"{tower.uri}{TOKENS}", data=form)
    assert (response.status_code, response.json()["error"]) == (status, code)
    assert response.json()["error_description"]


def test_pyiceberg_fetches_its_own_token(tower: TowerProcess, namespace: str) -> None:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog(
        "tower",
        type="rest",
        uri=tower.uri,
        credential=f"admin:{tower.secret}",
        **{"oauth2-server-uri": tower.uri + TOKENS},
    )
    assert (namespace,) in catalog.list_namespaces()


# -- the process ------------------------------------------------------------------------------------------------------


def test_sigterm_ends_with_0_and_a_restart_finds_everything(start_tower: Callable[..., TowerProcess]) -> None:
    first = start_tower()
    first.catalog().create_namespace("kept")
    first.process.terminate()
    assert first.process.wait(60) == 0
    assert "error" not in first.log.read_text().lower()
    second = start_tower()
    assert second.secret == first.secret
    assert second.catalog().list_namespaces() == [("kept",)]


def test_an_open_tower_lets_callers_in_without_credentials(start_tower: Callable[..., TowerProcess]) -> None:
    tower = start_tower("--open")
    assert "administrator" in tower.log.read_text()
    assert httpx2.get(f"{tower.uri}/icetower/v1/me").json()["administrator"] is True
    assert httpx2.get(f"{tower.uri}/v1/config", headers={"Authorization": "Bearer wrong"}).status_code == 401


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60, check=False)


def test_an_open_tower_listens_on_loopback_only(tmp_path: Path) -> None:
    done = run("serve", "--open", "--host", "0.0.0.0", "--port", "0", "--data", str(tmp_path / "data"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "0.0.0.0" in done.stderr
    assert "--open" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", "--port", str(port), "--data", str(tmp_path / "data"))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_setting_that_does_not_exist_is_named(tmp_path: Path) -> None:
    (tmp_path / "tower.toml").write_text("[server]\nprot = 1\n")
    done = run("serve", "--config", str(tmp_path / "tower.toml"), "--data", str(tmp_path / "data"))
    assert done.returncode == 2
    assert "tower.toml: [server] prot: there is no such key; did you mean port?" in done.stderr


def test_accepted_connections_do_not_delay_small_answers() -> None:
    """Trap A7: TCP_NODELAY, on the accepted side."""
    with app._listen("127.0.0.1", 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_open_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    settings = load_settings(None, host="192.0.2.1", port=0, data=str(tmp_path / "data"))
    with pytest.raises(ConfigurationError, match="loopback"):
        app.serve(settings, SystemAmbient(), open_to_all=True, ready=lambda _: None)
    assert not (tmp_path / "data").exists()


@pytest.mark.usefixtures("table")
def test_a_metadata_table_is_looked_for_before_it_is_refused(tower: TowerProcess, namespace: str) -> None:
    """Spark asks for table `entries` in namespace `ns.t`, and goes on to the real table after a 404 only."""
    with tower.client(tower.principal("metadata-reader", f"reads: [{namespace}.t]\n")) as reader:
        seen = reader.get(f"/v1/namespaces/{namespace}%1Ft/tables/entries")
        assert (seen.status_code, error_of(seen)["rule"]) == (404, "table.exists")
        other = reader.get(f"/v1/namespaces/{namespace}%1Fother/tables/entries")
        assert (other.status_code, error_of(other)["rule"]) == (403, "contract.table")
