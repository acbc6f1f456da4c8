"""What a person finds at three in the morning: log lines, the log of attempts, readiness."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable

import httpx2
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ForbiddenError

from verify.kit.tower_process import SCHEMA, TowerProcess, command, error_of

ROWS = pa.table({"id": pa.array([1], pa.int64()), "region": ["eu"]})
CONTRACT = """owner: eve@example.com
tables:
  - table: {table}
    operations: [append]
    partitions:
      - region: [us]
"""


def lines(tower: TowerProcess, event: str) -> list[str]:
    return [line for line in tower.log.read_text().splitlines() if f" event={event} " in line]


def partitioned(tower: TowerProcess, namespace: str) -> str:
    spec = {"spec-id": 0, "fields": [{"source-id": 2, "field-id": 1000, "name": "region", "transform": "identity"}]}
    with tower.client() as http:
        body = {"name": "t", "schema": SCHEMA, "partition-spec": spec}
        http.post(f"/v1/namespaces/{namespace}/tables", json=body).raise_for_status()
    return f"{namespace}.t"


def test_a_refusal_is_found_by_the_id_that_the_client_was_shown(tower: TowerProcess, namespace: str) -> None:
    table = partitioned(tower, namespace)
    secret = tower.principal("op-eve", CONTRACT.format(table=table))
    with pytest.raises(ForbiddenError) as refused:
        tower.catalog(secret).load_table(table).append(ROWS)
    request_id = str(refused.value).rpartition("request ")[2].partition(")")[0]
    (found,) = tower.admin.commits(request_id=request_id[:10])
    assert (found["principal"], found["operation"], found["outcome"]) == ("op-eve", "append", "refused")
    assert (found["rule"], found["partitions"]) == ("contract.partitions", ["region=eu"])
    assert found["request_id"] == request_id
    assert found["message"] in str(refused.value)
    (line,) = [line for line in lines(tower, "refused") if request_id in line]
    assert f"principal=op-eve table={table} operation=append status=403 rule=contract.partitions" in line
    assert 'partitions="region=eu"' in line
    assert secret not in tower.log.read_text()


def test_the_message_names_the_owner_of_a_partition_and_a_command_that_asks_for_it(
    tower: TowerProcess, namespace: str
) -> None:
    """PyIceberg and Spark print the message, and nothing else of the answer."""
    table = partitioned(tower, namespace)
    tower.principal("op-eu", CONTRACT.format(table=table).replace("eve@", "eu-team@").replace("us", "eu"))
    secret = tower.principal("op-us", CONTRACT.format(table=table))

    def refused(rows: pa.Table) -> str:
        with pytest.raises(ForbiddenError) as caught:
            tower.catalog(secret).load_table(table).append(rows)
        return str(caught.value)

    message = refused(ROWS)
    assert "region=eu of" in message
    assert "; it belongs to op-eu (eu-team@example.com). To ask for it: `icetower requests make " in message
    asked = shlex.split(message.split("`")[1])
    assert asked[-1] == "WHY"
    environment = {**os.environ, "ICETOWER_URI": tower.uri, "ICETOWER_TOKEN": secret}
    subprocess.run(command(*asked[1:]), env=environment, check=True, timeout=60)
    (request,) = [each for each in tower.admin.requests(state="open") if each["principal"] == "op-us"]
    assert (request["table"], request["partitions"], request["operations"]) == (table, ["region=eu"], ["append"])
    # Nobody's: there is no name to give.
    assert "belongs to" not in refused(pa.table({"id": pa.array([1], pa.int64()), "region": ["asia"]}))
    both = refused(pa.table({"id": pa.array([1, 2], pa.int64()), "region": ["eu", "asia"]}))
    assert "; some of them belong to op-eu (eu-team@example.com)" in both


def test_wrong_secrets_and_refused_changes_of_properties_are_on_the_log(tower: TowerProcess, namespace: str) -> None:
    table = partitioned(tower, namespace)
    secret = tower.principal("op-log", CONTRACT.format(table=table))
    before = len(lines(tower, "not-authenticated"))
    form = {"grant_type": "client_credentials", "client_id": "op-log", "client_secret": "guessed-4711"}
    with httpx2.Client(base_url=tower.uri) as http:
        statuses = [http.post("/v1/oauth/tokens", data=form).status_code for _ in range(12)]
    assert (statuses[0], statuses[-1]) == (401, 429)
    written = lines(tower, "not-authenticated")[before:]
    assert [int(line.partition(" status=")[2][:3]) for line in written] == statuses
    assert all("path=/v1/oauth/tokens" in line and "address=127.0.0.1" in line for line in written)
    assert "guessed-4711" not in tower.log.read_text()
    with pytest.raises(ForbiddenError):
        tower.catalog(secret).load_table(table).transaction().set_properties(a="b").commit_transaction()
    (attempt,) = tower.admin.commits(limit=1, table=table)
    assert (attempt["operation"], attempt["rule"]) == ("alter", "contract.operation")


def test_what_landed_has_its_partitions_and_changes_of_tables_are_logged(
    tower: TowerProcess, catalog: Catalog, namespace: str
) -> None:
    table = partitioned(tower, namespace)
    catalog.load_table(table).append(ROWS)
    catalog.rename_table(table, f"{namespace}.u")
    catalog.drop_table(f"{namespace}.u")
    (append,) = (each for each in tower.admin.commits(table=table) if each["operation"] == "append")
    assert (append["outcome"], append["partitions"]) == ("direct", ["region=eu"])
    seen = [(each["operation"], each["outcome"]) for each in tower.admin.commits(table=f"{namespace}.u")]
    assert seen == [("drop", "done"), ("rename", "done")]
    assert ("create", "done") in [(each["operation"], each["outcome"]) for each in tower.admin.commits(table=table)]


def test_refused_reads_creates_and_drops_are_logged_once_each(tower: TowerProcess, namespace: str) -> None:
    table = partitioned(tower, namespace)
    secret = tower.principal("op-mallory", CONTRACT.format(table=f"{namespace}.other"))
    with tower.client(secret) as http:
        base = f"/v1/namespaces/{namespace}/tables"
        for _ in range(20):  # a loop of refused reads must not push others out of the log
            assert http.get(f"{base}/t").status_code == 403
        assert http.post(base, json={"name": "t2", "schema": SCHEMA}).status_code == 403
        assert http.delete(f"{base}/t").status_code == 403
        assert http.post("/v1/transactions/commit", content=b"{").status_code == 400
        assert http.get("/icetower/v1/commits?principal=admin").json()["attempts"][0]["principal"] == "op-mallory"
    found = tower.admin.commits(principal="op-mallory", refused=True)
    assert [(each["operation"], each["table"], each["rule"]) for each in found] == [
        ("transaction", "", "json"),
        ("drop", table, "contract.table"),
        ("create", f"{namespace}.t2", "contract.table"),
        ("read", table, "contract.table"),
    ]


def test_an_answer_that_is_replayed_is_not_logged_again(tower: TowerProcess, namespace: str) -> None:
    key = "0199b3a0-0000-7000-8000-0000000000aa"
    with tower.client(**{"Idempotency-Key": key}) as http:
        wrong = {"name": "t", "schema": {"type": "struct", "fields": "none"}}
        answers = [http.post(f"/v1/namespaces/{namespace}/tables", json=wrong) for _ in range(2)]
    first, second = map(error_of, answers)
    assert first == second
    assert first["request_id"]
    assert len(tower.admin.commits(table=f"{namespace}.t")) == 1


def test_the_log_of_attempts_is_read_in_bounded_pages(tower: TowerProcess, namespace: str) -> None:
    with tower.client() as http:
        for name in ("a", "b", "c"):
            http.post(f"/v1/namespaces/{namespace}.{name}/properties", json={"updates": {}})
        where = "/icetower/v1/commits"
        first = http.get(where, params={"limit": "2"}).json()
        second = http.get(where, params={"limit": "2", "page_token": first["next_page_token"]}).json()
        both = http.get(where, params={"limit": "4"}).json()["attempts"]
        assert first["attempts"] + second["attempts"] == both
        assert len(both) == 4
        for wrong in ({"page_token": "-1"}, {"since_ms": "now"}, {"outcome": "well"}, {"limit": "x"}):
            assert error_of(http.get(where, params=wrong))["next_step"] == "fix_request"


def test_a_metadata_file_that_is_lost_is_a_line(tower: TowerProcess, catalog: Catalog, namespace: str) -> None:
    table = catalog.create_table(f"{namespace}.lost", pa.schema([("id", pa.int64())]))
    shutil.rmtree(table.location().removeprefix("file://"))
    restarted = TowerProcess(tower.data.parent / "again", *_same_catalog(tower))
    try:
        with restarted.client() as http:
            error = error_of(http.get(f"/v1/namespaces/{namespace}/tables/lost"))
        assert error["rule"] == "upstream.metadata"
        (line,) = lines(restarted, "metadata-lost")
        assert error["request_id"] in line
        assert table.metadata_location in line
    finally:
        assert restarted.stop() == 0


def _same_catalog(tower: TowerProcess) -> tuple[str, str]:
    config = tower.data.parent / "same.toml"
    config.write_text(f'[upstream]\nuri = "sqlite:///{tower.data}/catalog.db"\n')
    return "--config", str(config)


def test_readiness_says_which_component_is_away_and_no_more_to_strangers(
    start_tower: Callable[..., TowerProcess], tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = tmp_path_factory.mktemp("ready") / "icetower.toml"
    config.write_text("[server]\nslow_swap_s = 0.000001\ndisk_min_bytes = 4611686018427387904\nlog_format = 'json'\n")
    tower = start_tower("--config", str(config))
    answer = httpx2.get(f"{tower.uri}/readyz")
    assert answer.status_code == 503
    components = {"upstream": "ok", "warehouse": "ok", "registry": "ok", "disk": "failed"}
    assert answer.json() == {"status": "not ready", "components": components}
    assert httpx2.get(f"{tower.uri}/icetower/v1/readiness").status_code == 401
    disk = tower.admin.readiness()["components"]["disk"]
    assert "server.disk_min_bytes" in disk["cause"]
    with tower.client() as http:
        http.post("/v1/namespaces", json={"namespace": ["a"]}).raise_for_status()
        http.post("/v1/namespaces/a/tables", json={"name": "t", "schema": SCHEMA}).raise_for_status()
    catalog = tower.catalog()
    catalog.load_table("a.t").append(ROWS)
    snapshot = catalog.load_table("a.t").metadata.current_snapshot_id
    said = [json.loads(line) for line in tower.log.read_text().splitlines()]
    (slow,) = [line for line in said if line.get("event") == "swap-slow"]
    assert (slow["tables"], slow["snapshots"], slow["commits"]) == (["a.t"], [snapshot], 1)


def test_a_tower_that_is_well_is_ready(tower: TowerProcess) -> None:
    answer = httpx2.get(f"{tower.uri}/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")
