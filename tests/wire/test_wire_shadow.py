"""Contracts in shadow mode: everything goes on as it did, what they would refuse is counted, and reported."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from icetower.agent import DataFile
from icetower.errors import NotFound
from tests.wire.clauses import BY_DAY, BY_REGION, NO_RETRY, SCHEMA, Agent, ids, in_bucket, rows
from verify.kit.tower_process import TowerProcess, command, error_of

SHADOW = "mode: shadow\n"
NORTH = "tables: [{table: T, operations: [append], partitions: [{region: north}]%s}]\n"
Make = Callable[..., Agent]


@pytest.fixture
def agent(tower: TowerProcess, namespace: str) -> Make:
    return lambda contract, name="agent": Agent(tower, namespace, contract, name=name)


@pytest.fixture
def table(catalog: Catalog, namespace: str) -> Table:
    return catalog.create_table(f"{namespace}.t", SCHEMA, partition_spec=BY_REGION, properties=NO_RETRY)


def report(bound: Agent) -> dict[str, Any]:
    (found,) = bound.tower.admin.shadow_report(bound.name)
    return found


def counted(bound: Agent) -> dict[tuple[str, str, str], int]:
    """(about, operation, rule) → how often; names without the namespace that they begin with."""
    return {
        (row["about"].removeprefix(bound.namespace).lstrip("._"), row["operation"], row["rule"]): row["count"]
        for row in report(bound)["refusals"]
    }


def test_commits_go_on_and_every_clause_that_they_break_is_counted(
    agent: Make, table: Table, catalog: Catalog, namespace: str
) -> None:
    other = catalog.create_table(f"{namespace}.other", SCHEMA, properties=NO_RETRY)
    quotas = ", quotas: {files_per_commit: 1, commits_per_minute: 2}"
    bound = agent(f"{SHADOW}idempotency: {{required: true}}\n" + NORTH % quotas)
    bound.table().append(rows(1), snapshot_properties={"icetower.idempotency-key": "fine"})
    bound.table().append(rows(2, region="south"))
    bound.table().delete("id == 1")
    bound.table().append(rows(3, region="west"))
    bound.table("other").append(rows(4))
    bound.table().transaction().set_properties(a="b").commit_transaction()
    assert (ids(table), ids(other), table.properties["a"]) == ([2, 3], [4], "b")
    assert {outcome for outcome, _ in (*bound.attempts(), *bound.attempts("other"))} == {"direct"}
    assert counted(bound) == {
        ("t", "append", "contract.partitions"): 2,
        ("t", "append", "contract.key"): 2,
        ("t", "commit", "contract.quota"): 3,
        ("t", "delete", "contract.operation"): 1,
        ("t", "delete", "contract.key"): 1,
        ("t", "alter", "contract.operation"): 1,
        ("t", "alter", "contract.key"): 1,
        ("other", "read", "contract.table"): 1,
        ("other", "append", "contract.table"): 1,
    }
    (foreign,) = (row for row in report(bound)["refusals"] if row["rule"] == "contract.partitions")
    assert foreign["principal"] == bound.name
    assert foreign["partitions"] == ["region=west"]
    assert foreign["first_ms"] <= foreign["last_ms"]
    assert "doesn't own region=west" in foreign["message"]


def test_routes_go_on_too(agent: Make, table: Table, namespace: str) -> None:
    bound = agent(SHADOW + "tables: []\n")
    seen = bound.catalog
    assert (namespace,) in seen.list_namespaces()
    assert seen.list_tables(namespace) == [(namespace, "t")]
    made, moved = f"{namespace}.made", f"{namespace}.moved"
    seen.create_table(made, SCHEMA)
    seen.rename_table(made, moved)
    registered = seen.load_table(moved).metadata_location
    seen.drop_table(moved)
    with bound.tower.client(bound.secret) as http:
        again = http.post(
            f"/v1/namespaces/{namespace}/register", json={"name": "moved", "metadata-location": registered}
        )
        assert (again.status_code, error_of(again)["rule"]) == (400, "register.location")  # which holds for all
    inner = (namespace, "inner")
    seen.create_namespace(inner)
    seen.update_namespace_properties(inner, updates={"a": "b"})
    assert seen.load_namespace_properties(inner) == {"a": "b"}
    seen.drop_namespace(inner)
    staged = seen.create_table_transaction(f"{namespace}.staged", SCHEMA)
    staged.append(rows(1))
    staged.commit_transaction()
    found = counted(bound)
    for kind in (
        ("", "namespace", "contract.namespace"),
        ("made", "create", "contract.table"),
        ("made", "rename", "contract.table"),
        ("moved", "create", "contract.table"),
        ("moved", "read", "contract.table"),
        ("moved", "drop", "contract.table"),
        ("moved", "register", "contract.table"),
        ("inner", "namespace", "contract.namespace"),
        ("staged", "create", "contract.table"),
        ("staged", "append+create", "contract.table"),
    ):
        assert kind in found, (kind, found)
    assert found["inner", "namespace", "contract.namespace"] == 4
    with bound.tower.client(bound.secret) as http:
        assert http.post(f"/v1/namespaces/{namespace}/tables/t/metrics", json={"report-type": "x"}).status_code == 204


def test_the_fast_path_transactions_and_proofs_go_on_too(
    agent: Make, table: Table, catalog: Catalog, namespace: str
) -> None:
    bound = agent(SHADOW + NORTH % ", prove_partitions: true")
    days = catalog.create_table(f"{namespace}.days", SCHEMA, partition_spec=BY_DAY)

    def written(into: Table, name: str, *row_ids: int, **partition: Any) -> DataFile:
        path = Path(into.location().removeprefix("file://")) / "data" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows(*row_ids, region="south").cast(schema_to_pyarrow(into.schema())), path)
        return DataFile.of_parquet(path, partition=partition)

    with bound.sdk() as sdk:
        for name in ("one", "two"):
            assert sdk.append(f"{namespace}.t", [written(table, name, 1, region="south")]).outcome == "appended"
    assert counted(bound) == {
        ("t", "append", "contract.partitions"): 2,
        ("t", "append", "contract.location"): 2,  # beside its own place, of which it was told
    }
    bound.change(SHADOW + "tables: [{table: NS.days, operations: [append], partitions: all, prove_partitions: true}]\n")
    two = (in_bucket(1), in_bucket(1, nth=1))
    with bound.sdk() as sdk:
        file = written(days, "unproven", *two, at_day="2017-01-01", id_bucket=1)
        sdk.append(f"{namespace}.days", [file])
    days.refresh()
    bound.table("days").append(rows(*two))
    assert counted(bound)["days", "append", "append.unproven"] == 2
    changes = [
        {"identifier": {"namespace": [namespace], "name": name}, "requirements": [], "updates": [update]}
        for name, update in (
            ("t", {"action": "set-properties", "updates": {"a": "b"}}),
            ("days", {"action": "set-properties", "updates": {"c": "d"}}),
        )
    ]
    with bound.tower.client(bound.secret) as http:
        assert http.post("/v1/transactions/commit", json={"table-changes": changes}).status_code == 204
    assert (table.refresh().properties["a"], days.refresh().properties["c"]) == ("b", "d")
    assert counted(bound)["t", "alter", "contract.table"] == 1
    assert counted(bound)["days", "alter", "contract.operation"] == 1


def test_one_of_two_agents_is_switched_from_shadow_to_enforce(agent: Make, table: Table) -> None:
    """The one is held to its contract from its next request on, and the other goes on."""
    one, two = (agent(SHADOW + NORTH % "", name) for name in ("one", "two"))
    for who in (one, two):
        who.table().append(rows(1, region="south"))
    running = one.table()
    one.change(NORTH % "")
    running.append(rows(2))  # it writes to its own place already
    one.refused("contract.partitions", lambda: one.table().append(rows(3, region="south")), "region=south")
    two.table().append(rows(4, region="south"))
    assert ids(table) == [1, 1, 2, 4]
    assert (counted(one), counted(two)) == (
        {("t", "append", "contract.partitions"): 1},
        {("t", "append", "contract.partitions"): 2},
    )
    assert [(report(who)["mode"], report(who)["version"]) for who in (one, two)] == [("enforce", 2), ("shadow", 1)]
    listed = {each["contract"] for each in one.tower.admin.shadow_report()}
    assert two.name in listed
    assert one.name not in listed
    one.change(SHADOW + NORTH % "")
    one.table().append(rows(5, region="south"))
    assert Counter(row["contract_version"] for row in report(one)["refusals"]) == {1: 1, 3: 1}


def test_a_contract_in_shadow_mode_holds_nobody_up(agent: Make, table: Table) -> None:
    """It is not strict, not serializable, nobody waits for its quotas, and nobody is stopped; its words are heard."""
    clauses = ", strict: true, isolation: serializable, blind_appends: true, quotas: {commits_per_minute: 1}"
    bound = agent(SHADOW + NORTH % clauses + "escalation: {after_failures: 1, within: 1m, to: dana@example.com}\n")
    table.append(rows(0))
    for id_ in (1, 2, 3):
        stale = bound.table()
        table.refresh().append(rows(100 + id_))
        stale.append(rows(id_))
    assert bound.attempts() == [("rebased", None)] * 3
    assert bound.name not in {each["principal"] for each in bound.tower.admin.escalations()}
    (spared,) = report(bound)["principals"]
    assert (spared["principal"], spared["retries_spared"], spared["outcomes"]) == (bound.name, 3, {"rebased": 3})
    assert set(spared["latency_ms"]) == {"rebased"}
    assert 0 < spared["latency_ms"]["rebased"]["p50"] <= spared["latency_ms"]["rebased"]["p99"]


# -- the report -------------------------------------------------------------------------------------------------------


def printed(tower: TowerProcess, *words: str) -> str:
    environment = {**os.environ, "ICETOWER_URI": tower.uri, "ICETOWER_TOKEN": tower.secret, "COLUMNS": "250"}
    done = subprocess.run(
        command("contracts", "shadow-report", *words),
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    return done.stdout if done.returncode == 0 else f"{done.returncode}: {done.stderr}"


def test_the_report(agent: Make, table: Table, namespace: str) -> None:
    """For whom, how often, since when, an example; what rebasing has spared, and which clause would spare more."""
    bound = agent(SHADOW + NORTH % "")
    tower = bound.tower
    assert "nothing was committed under it yet" in printed(tower, bound.name)
    table.append(rows(0))
    stale = bound.table()
    table.refresh().append(rows(1))
    with pytest.raises(Exception, match="blind"):
        stale.append(rows(2))
    for region in ("south", "west", "south"):
        bound.table().append(rows(3, region=region))
    second = tower.admin.create_principal(f"{namespace}-second", bound.name)
    tower.catalog(second).load_table(f"{namespace}.t").append(rows(4, region="south"))
    said = printed(tower, bound.name)
    assert f"{bound.name}: version 1, shadow since 20" in said
    assert f"binds {bound.name}, {namespace}-second" in said
    lines = [line for line in said.splitlines() if "contract.partitions" in line]
    assert [(bound.name in line, f"{namespace}.t" in line, "region=south" in line) for line in lines] == [
        (True, True, True),
        (False, True, True),
    ]
    assert f"{bound.name}: 1 were sent back to retry (rebase.not-blind); blind_appends: true would" in said

    (machine,) = json.loads(printed(tower, bound.name, "--json"))
    assert [(row["principal"], row["count"]) for row in machine["refusals"]] == [
        (bound.name, 3),
        (f"{namespace}-second", 1),
    ]
    back = machine["principals"][0]["retries_to_spare"]
    assert [(each["rule"], each["count"], each["clause"]) for each in back] == [
        ("rebase.not-blind", 1, "blind_appends: true")
    ]

    bound.change(SHADOW + NORTH % ", blind_appends: true")
    stale = bound.table()
    table.refresh().append(rows(5))
    stale.append(rows(6))
    said = printed(tower, bound.name)
    assert "nothing would have been refused" in said
    assert "earlier versions would have refused 4 more (--all)" in said
    assert f"{bound.name}: 1 commit rebased, each a retry spared; rebased ones" in said
    assert "contract.partitions" in printed(tower, bound.name, "--all")
    assert bound.name in printed(tower)
    assert "there has never been a contract nobody-at-all" in printed(tower, "nobody-at-all")
    with pytest.raises(NotFound):
        tower.admin.shadow_report("nobody-at-all")
