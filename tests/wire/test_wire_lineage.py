"""OpenLineage's events of real commits, as a receiver on loopback gets them, however badly it behaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import ForbiddenError

from tests.observe.openlineage_schemas import check
from tests.wire.receivers import HookReceiver, hook
from verify.kit.tower_process import SCHEMA, TowerProcess

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "region": ["eu", "us"]})
SPEC = {"spec-id": 0, "fields": [{"source-id": 2, "field-id": 1000, "name": "region", "transform": "identity"}]}
CONTRACT = """owner: eve@example.com
tables:
  - table: shop.t
    operations: [append]
    partitions:
      - region: [eu, us]
"""
BLIND = {"icetower.blind": "true"}
TOKEN = "token-0815"


def configured(folder: Path, url: str, more: str = "") -> str:
    config = folder / "icetower.toml"
    config.write_text(f"[lineage]\nurl = '{url}'\n{more}")
    return str(config)


def made(tower: TowerProcess) -> str:
    with tower.client() as http:
        http.post("/v1/namespaces", json={"namespace": ["shop"]}).raise_for_status()
        body = {"name": "t", "schema": SCHEMA, "partition-spec": SPEC}
        http.post("/v1/namespaces/shop/tables", json=body).raise_for_status()
    return "shop.t"


def pair(receiver: HookReceiver) -> tuple[dict[str, Any], dict[str, Any]]:
    """The next two events, which are one run's."""
    start, end = receiver.next(), receiver.next()
    for post in (start, end):
        check(post.json)
        assert post.headers["Authorization"] == f"Bearer {TOKEN}"
    assert start.json["eventType"] == "START"
    assert start.json["run"]["runId"] == end.json["run"]["runId"]
    return start.json, end.json


def test_each_commit_is_a_run_with_its_principal_partitions_and_snapshot(
    start_tower: Callable[..., TowerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINEAGE_TOKEN", TOKEN)
    with hook() as receiver:
        config = configured(
            tmp_path, receiver.url, "token_env = 'LINEAGE_TOKEN'\nnamespace = 'agents'\ncatalog = 'prod'\n"
        )
        tower = start_tower("--config", config)
        table = made(tower)
        secret = tower.principal("eve", CONTRACT)
        own = tower.catalog(secret).load_table(table)
        own.append(ROWS, snapshot_properties=BLIND)
        _, end = pair(receiver)
        [attempt] = tower.admin.commits(limit=1, table=table)
        assert (end["eventType"], end["job"]["namespace"], end["job"]["name"]) == ("COMPLETE", "agents", "eve.shop.t")
        about = end["run"]["facets"]["icetower_commit"]
        assert (about["principal"], about["requestId"]) == ("eve", attempt["request_id"])
        assert about["snapshots"] == [str(i) for i in attempt["snapshots"]]
        [output] = end["outputs"]
        assert output["facets"]["icetower_partitions"]["partitions"] == ["region=eu", "region=us"]
        assert output["facets"]["version"]["datasetVersion"] == about["snapshots"][0]
        assert output["outputFacets"]["outputStatistics"]["rowCount"] == 2
        assert f"/{output['name'].strip('/')}" == own.location().removeprefix("file://")
        with pytest.raises(ForbiddenError):
            own.delete()
        _, failed = pair(receiver)
        assert failed["eventType"] == "FAIL"
        assert failed["run"]["facets"]["icetower_commit"]["rule"] == "contract.operation"
        assert secret not in str(failed)
        assert tower.stop() == 0
        assert receiver.posts.empty()
        assert TOKEN not in tower.log.read_text()


def test_what_cannot_be_sent_is_sent_again_or_dropped_and_counted_and_no_commit_waits(
    start_tower: Callable[..., TowerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINEAGE_TOKEN", TOKEN)
    more = "token_env = 'LINEAGE_TOKEN'\nqueue_max = 2\ntimeout_s = 60\n"
    with hook([503, 200, 200, 400, *[None] * 4]) as receiver:
        tower = start_tower("--config", configured(tmp_path, receiver.url, more))
        table = made(tower)

        def append() -> None:
            tower.catalog().load_table(table).append(ROWS, snapshot_properties=BLIND)

        append()
        first, again, end = receiver.next(), receiver.next(), receiver.next()
        assert first.json == again.json  # refused with 503, and sent again
        assert (again.json["eventType"], end.json["eventType"]) == ("START", "COMPLETE")
        append()  # 400: nobody ever takes it
        assert receiver.next().json["eventType"] == "START"
        for _ in range(8):  # four are held by the receiver, two may wait
            append()
        assert len(tower.outcomes(table)) == 10
        # Each is on its way at once: none waits for one that is held, whose time is 60 s.
        assert {receiver.posts.get(timeout=30).json["eventType"] for _ in range(4)} == {"START"}
        assert receiver.posts.empty()
        assert tower.stop() == 0
        lines = [line for line in tower.log.read_text().splitlines() if " event=not-sent " in line]
        assert ' of=lineage count=1 dropped=1 sent=2 message="HTTP status 400"' in lines[0]
        # Two gave way to newer ones; when the tower stopped, four were held and two waited.
        assert lines[-1].endswith(' dropped=9 sent=2 message="the tower stops"')
        assert sum(int(line.partition(" count=")[2].partition(" ")[0]) for line in lines) == 9
        assert receiver.url not in tower.log.read_text()
