"""Changes of a catalog as another program follows them, and what a client reports of its commits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from icetower.agent import DataFile, new_key
from tests.protocol.events_schema import check
from verify.kit.tower_process import TowerProcess, error_of

JSON = dict[str, Any]
SCHEMA = Schema(NestedField(1, "id", LongType(), required=False))
ROWS = pa.table({"id": pa.array([1], pa.int64())})
BLIND = {"icetower.blind": "true"}
ONLY_ONE = "owner: r@example.com\ntables:\n  - table: shop.one\n    operations: [append]\n"


def asked(
    tower: TowerProcess, token: str | None = None, secret: str | None = None, **query: Any
) -> tuple[list[JSON], str]:
    """A page of events, as the proposal has it, and the token for the next."""
    body = {name.replace("_", "-"): value for name, value in query.items()}
    with tower.client(secret) as http:
        response = http.post("/v1/events", json=body if token is None else {**body, "continuation-token": token})
    assert response.status_code == 200, response.text
    check(response.json())
    return response.json()["events"], response.json()["continuation-token"]


def kinds(events: list[JSON]) -> list[str]:
    return [event["operation"]["operation-type"] for event in events]


def a_life(tower: TowerProcess) -> Any:
    """Two tables that are made, changed, renamed and dropped; the first one."""
    catalog = tower.catalog()
    catalog.create_namespace("shop", {"owner": "me"})
    catalog.update_namespace_properties("shop", updates={"a": "b"}, removals={"owner"})
    one, two = (catalog.create_table(f"shop.{name}", SCHEMA) for name in ("one", "two"))
    one.append(ROWS, snapshot_properties=BLIND)
    with two.transaction() as change:
        change.set_properties(a="b")
    catalog.rename_table("shop.two", "shop.three")
    catalog.drop_table("shop.three")
    catalog.register_table("shop.two", two.metadata_location)
    catalog.drop_table("shop.two")
    return one


LIFE = [
    "create-namespace", "update-namespace-properties", "create-table", "create-table", "update-table", "update-table",
    "rename-table", "drop-table", "register-table", "drop-table",
]  # fmt: skip


def test_changes_are_followed_page_by_page_and_over_a_restart(start_tower: Callable[..., TowerProcess]) -> None:
    tower = start_tower()
    assert asked(tower)[0] == []
    one = a_life(tower)
    pages: list[JSON] = []
    token = None
    while (page := asked(tower, token, page_size=3))[0]:
        assert len(page[0]) <= 3
        pages, token = [*pages, *page[0]], page[1]
    assert kinds(pages) == LIFE
    assert len({event["event-id"] for event in pages}) == len(pages)
    append = pages[4]["operation"]
    snapshot = one.refresh().current_snapshot()
    assert append["updates"][0]["snapshot"]["snapshot-id"] == snapshot.snapshot_id
    assert append["updates"][0]["snapshot"]["manifest-list"] == snapshot.manifest_list
    assert append["table-uuid"] == str(one.metadata.table_uuid)
    assert pages[4]["actor"]["id"] == "admin"
    [attempt] = tower.admin.commits(limit=1, table="shop.one")
    assert pages[4]["request-id"] == attempt["request_id"]
    assert pages[6]["operation"]["destination"] == {"namespace": ["shop"], "name": "three"}
    assert tower.stop() == 0
    tower = start_tower()
    assert asked(tower, token)[0] == []
    tower.catalog().load_table("shop.one").append(ROWS, snapshot_properties=BLIND)
    events, later = asked(tower, token)
    assert kinds(events) == ["update-table"]
    assert asked(tower, later)[0] == []
    # The same by numbers, for scripts.
    with tower.client() as http:
        first = http.get("/icetower/v1/events", params={"limit": 4}).json()
        rest = http.get("/icetower/v1/events", params={"after": first["next"], "table": "shop.one"}).json()
    assert [event["event-id"] for event in first["events"]] == [event["event-id"] for event in pages[:4]]
    assert kinds(rest["events"]) == ["update-table", "update-table"]
    assert [event["number"] for event in first["events"]] == sorted(event["number"] for event in first["events"])


def test_events_are_filtered_and_a_principal_sees_what_it_may_read(start_tower: Callable[..., TowerProcess]) -> None:
    tower = start_tower()
    a_life(tower)
    secret = tower.principal("reader", ONLY_ONE)
    seen, token = asked(tower, secret=secret)
    named = {
        (*each["operation"]["identifier"]["namespace"], each["operation"]["identifier"]["name"]) for each in seen[2:]
    }
    assert kinds(seen) == ["create-namespace", "update-namespace-properties", "create-table", "update-table"]
    assert named == {("shop", "one")}
    assert kinds(asked(tower, operation_types=["drop-table", "drop-view"])[0]) == ["drop-table", "drop-table"]
    assert kinds(asked(tower, catalog_objects_by_name=[["shop", "three"]])[0]) == ["rename-table", "drop-table"]
    assert kinds(asked(tower, object_types=["namespace"])[0]) == LIFE[:2]
    uuid = seen[-1]["operation"]["table-uuid"]
    page, token = asked(tower, catalog_objects_by_uuid=[uuid], page_size=1)
    assert kinds(page) == ["create-table"]
    assert kinds(asked(tower, token)[0]) == ["update-table"]  # the token has the filter
    last = asked(tower)[0][-1]["timestamp-ms"]
    assert asked(tower, since_timestamp_ms=last)[0][-1]["timestamp-ms"] == last
    assert asked(tower, since_timestamp_ms=last + 1_000_000)[0] == []
    # Another's token grants nothing, and neither does a contract that has changed since.
    assert asked(tower, token, secret=tower.principal("stranger", ONLY_ONE.replace("one", "other")))[0] == []
    with tower.client(secret) as http:
        assert error_of(http.post("/v1/events", json={"continuation-token": "x"}))["rule"] == "events.token"
        assert http.get("/icetower/v1/reports").status_code == 403
    with tower.client("wrong") as http:
        assert http.post("/v1/events", json={}).status_code == 401


def test_appends_by_the_fast_path_are_events_of_their_own_principals(start_tower: Callable[..., TowerProcess]) -> None:
    tower = start_tower()
    table = a_life(tower)
    token = asked(tower, page_size=1000)[1]
    place = tower.admin.new_data_file("shop.one")
    with table.io.new_output(place).create() as out:
        parquet.write_table(ROWS.cast(schema_to_pyarrow(table.schema())), out)
    file = DataFile(place, 1, len(table.io.new_input(place)), {})
    tower.admin.append("shop.one", [file], key=new_key())
    [event], _ = asked(tower, token)
    snapshot = table.refresh().current_snapshot()
    updates = event["operation"]["updates"]
    assert [update["action"] for update in updates] == ["add-snapshot", "set-snapshot-ref"]
    assert {updates[0]["snapshot"]["snapshot-id"], updates[1]["snapshot-id"]} == {snapshot.snapshot_id}


def test_a_transaction_is_one_request_with_an_event_for_each_table(start_tower: Callable[..., TowerProcess]) -> None:
    tower = start_tower()
    catalog = tower.catalog()
    catalog.create_namespace("shop")
    names = ("one", "two")
    uuids = {name: str(catalog.create_table(f"shop.{name}", SCHEMA).metadata.table_uuid) for name in names}
    token = asked(tower)[1]
    update = {"action": "set-properties", "updates": {"a": "b"}}
    changes = [
        {"identifier": {"namespace": ["shop"], "name": name}, "requirements": [], "updates": [update]} for name in names
    ]
    with tower.client() as http:
        assert http.post("/v1/transactions/commit", json={"table-changes": changes}).status_code == 204
    events, _ = asked(tower, token)
    assert {event["operation"]["table-uuid"] for event in events} == set(uuids.values())
    assert [event["operation"]["updates"] for event in events] == [[update]] * 2
    assert [event["request-event-count"] for event in events] == [2, 2]
    assert len({event["request-id"] for event in events}) == 1
    assert {attempt["request_id"] for attempt in tower.admin.commits(limit=2)} == {events[0]["request-id"]}


def test_a_bounded_number_is_kept_and_who_comes_later_is_told(
    start_tower: Callable[..., TowerProcess], tmp_path: Path
) -> None:
    config = tmp_path / "icetower.toml"
    config.write_text("[events]\nkeep = 4\n")
    tower = start_tower("--config", str(config))
    tower.catalog().create_namespace("shop")
    _, token = asked(tower)
    for number in range(6):
        tower.catalog().create_table(f"shop.t{number}", SCHEMA)
    assert len(asked(tower)[0]) == 4
    with tower.client() as http:
        gone = error_of(http.post("/v1/events", json={"continuation-token": token}))
        assert (gone["code"], gone["rule"]) == (410, "events.gone")
        assert http.get("/icetower/v1/events", params={"after": 1}).status_code == 410
    config.write_text("[events]\nkeep = 0\n")
    none = start_tower("--config", str(config), data="none")
    none.catalog().create_namespace("shop")
    with none.client() as http:
        assert error_of(http.post("/v1/events", json={}))["rule"] == "events.kept"


def test_a_report_of_a_commit_joins_it_by_its_snapshot(start_tower: Callable[..., TowerProcess]) -> None:
    tower = start_tower()
    table = a_life(tower)
    snapshot = table.refresh().current_snapshot().snapshot_id
    metrics = {
        "attempts": {"unit": "count", "value": 3},
        "total-duration": {"count": 1, "time-unit": "nanoseconds", "total-duration": 2_500_000},
    }
    report = {"report-type": "commit-report", "table-name": "x", "snapshot-id": snapshot, "operation": "append"}
    with tower.client() as http:
        path = "/v1/namespaces/shop/tables/one/metrics"
        assert http.post(path, json={**report, "metrics": metrics}).status_code == 204
        assert http.post(path, json={"report-type": "scan-report", "metrics": {}}).status_code == 204
        [found] = http.get("/icetower/v1/reports").json()["reports"]
    assert (found["principal"], found["table"], found["attempts"], found["total_ms"]) == ("admin", "shop.one", 3, 2.5)
    [attempt] = tower.admin.commits(limit=1, table="shop.one")
    assert attempt["snapshots"] == [found["snapshot_id"]]


@pytest.mark.parametrize("level", ["info", "warning"])
def test_each_commit_that_lands_is_a_line_of_json_where_wanted(
    level: str, start_tower: Callable[..., TowerProcess]
) -> None:
    tower = start_tower("--log-format", "json", "--log-level", level)
    a_life(tower)
    [attempt] = tower.admin.commits(limit=1, table="shop.one")
    assert tower.stop() == 0
    lines = [json.loads(line) for line in tower.log.read_text().splitlines()]
    landed = [line for line in lines if line.get("event") == "landed"]
    if level == "warning":
        assert landed == []
        return
    [line] = [line for line in landed if line["table"] == "shop.one" and line["operation"] == "append"]
    assert line["snapshots"] == attempt["snapshots"]
    assert (line["request"], line["principal"]) == (attempt["request_id"], "admin")
    assert tower.secret not in tower.log.read_text()
