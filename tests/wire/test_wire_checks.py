"""Dry runs over the wire: the body that PyIceberg would send is checked first, and then committed."""

from __future__ import annotations

from typing import Any

import httpx2
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from icetower.agent import Tower, keyed, new_key
from icetower.errors import TooManyRequests
from verify.kit.tower_process import TowerProcess

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False), NestedField(2, "region", StringType(), required=False)
)
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
EUROPE = "tables: [{{table: {0}.prices, operations: [append], partitions: [{{region: [eu]}}], read_scope: owned}}]"


def rows(region: str) -> pa.Table:
    return pa.table({"id": pa.array([1], pa.int64()), "region": pa.array([region], pa.string())})


def body_of(table: Table, region: str, key: str | None = None) -> dict[str, Any]:
    """The body of PyIceberg's commit, which is not sent."""
    transaction = table.transaction()
    transaction.append(rows(region), snapshot_properties=keyed(key or new_key()))
    requirements = transaction._requirements  # pyright: ignore[reportPrivateUsage]
    updates = transaction._updates  # pyright: ignore[reportPrivateUsage]
    assert any(isinstance(update, AddSnapshotUpdate) for update in updates)
    return {
        "requirements": [each.model_dump(mode="json", by_alias=True) for each in requirements],
        "updates": [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in updates],
    }


@pytest.fixture
def table(catalog: Catalog, namespace: str) -> Table:
    return catalog.create_table((namespace, "prices"), SCHEMA, partition_spec=BY_REGION)


def commit(tower: TowerProcess, table: Table, body: dict[str, Any], token: str) -> httpx2.Response:
    namespace, name = table.name()
    with tower.client(token) as http:
        return http.post(f"/v1/namespaces/{namespace}/tables/{name}", json=body)


def test_a_commit_gets_what_its_check_has_said(tower: TowerProcess, table: Table, namespace: str) -> None:
    name = f"{namespace}.prices"
    token = tower.principal(f"{namespace}_eu", EUROPE.format(namespace))
    asia = tower.principal(f"{namespace}_as", f"owner: a@example.com\n{EUROPE.format(namespace)}".replace("eu]", "as]"))
    with Tower(tower.uri, token) as mine:
        own = tower.catalog(token).load_table((namespace, "prices"))
        body = body_of(own, "eu")
        found = mine.check(name, commit=body)
        assert (found["allowed"], found["outcome"], found["error"]) == (True, "direct", None)
        assert found["partitions"] == ["region=eu"]
        assert not table.refresh().snapshots()
        assert commit(tower, own, body, token).status_code == 200
        assert mine.check(name, commit=body)["outcome"] == "replayed"

        # Outside of the contract: the same error, field by field, but for the id under which the log has it.
        foreign = body_of(own.refresh(), "as")
        found = mine.check(name, commit=foreign)
        refused = commit(tower, own, foreign, token).json()["error"]
        assert refused.pop("request_id")
        assert found["error"].pop("request_id") is None
        refused["message"] = refused["message"].split(" (rule ")[0]
        found["error"]["message"] = found["error"]["message"].split(" (rule ")[0]
        assert found["error"] == refused
        assert found["error"]["owner"] == f"{namespace}_as (a@example.com)"

        # On a stale base: what was written meanwhile lies elsewhere, or in the partition that the contract reads.
        stale = body_of(own.refresh(), "eu")
        tower.catalog(asia).load_table((namespace, "prices")).append(rows("as"))
        assert mine.check(name, commit=stale)["outcome"] == "rebased"
        table.refresh().append(rows("eu"))
        found = mine.check(name, commit=stale)
        assert (found["allowed"], found["error"]["code"]) == (False, 409)
        assert found["error"]["rule"].startswith("conflict.")
        assert commit(tower, own, stale, token).json()["error"]["rule"] == found["error"]["rule"]


def test_asking_does_not_stop_an_agent_and_is_in_no_log(tower: TowerProcess, table: Table, namespace: str) -> None:
    name = f"{namespace}.prices"
    stopping = EUROPE.format(namespace) + "\nescalation: {after_failures: 2, within: 10m, to: a@example.com}"
    token = tower.principal(f"{namespace}_eu", stopping)
    with Tower(tower.uri, token) as mine:
        own = tower.catalog(token).load_table((namespace, "prices"))
        foreign = body_of(own, "as")
        for _ in range(5):
            assert not mine.check(name, commit=foreign)["allowed"]
            assert not mine.check(name, partitions=["region=as"])["allowed"]
        assert mine.commits(table=name) == []
        assert mine.escalations(state="open") == []
        assert mine.check(name, partitions=["region=eu"])["outcome"] == "admitted"
        for _ in range(2):
            assert commit(tower, own, foreign, token).status_code == 403
        assert mine.check(name, partitions=["region=eu"])["error"]["rule"] == "contract.escalated"


def test_who_asks_too_often_is_told_when_to_come_back(tower: TowerProcess, table: Table, namespace: str) -> None:
    token = tower.principal(f"{namespace}_eu", EUROPE.format(namespace))
    with Tower(tower.uri, token) as mine:

        def many() -> None:
            for _ in range(2_000):
                mine.check(f"{namespace}.prices", partitions=["region=eu"])

        with pytest.raises(TooManyRequests) as refused:
            many()
        assert refused.value.rule == "check.rate"
        assert refused.value.wait_until_ms is not None
        said = [line for line in tower.log.read_text().splitlines() if " rule=check.rate " in line]
        assert said, "it is on the log"
        assert all(" event=refused " in line and f" principal={namespace}_eu " in line for line in said)
        # Its commits go on.
        body = body_of(tower.catalog(token).load_table((namespace, "prices")), "eu")
        assert commit(tower, table, body, token).status_code == 200
