"""Intents over the wire: agents by the SDK, PyIceberg and plain HTTP, over restarts and with two towers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ForbiddenError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from icetower import Agent, AsyncAgent
from icetower.agent import Lease, Tower
from icetower.errors import Conflict, Forbidden, IcetowerError, NotFound
from verify.kit.tower_process import TowerProcess, error_of

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False), NestedField(2, "region", StringType(), required=False)
)
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
REQUIRED = {"icetower.intents": "required"}
FENCE = "icetower.intents.fence"


def rows(region: str, *ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids or [1], pa.int64()), "region": pa.array([region] * len(ids or [1]))})


def held(region: str, **more: Any) -> dict[str, Any]:
    return {"partitions": [{"region": region}], **more}


class Shop:
    """A table by region, and two agents that may do anything to it."""

    def __init__(self, tower: TowerProcess, catalog: Catalog, namespace: str, **properties: str) -> None:
        self.tower = tower
        self.name = f"{namespace}.prices"
        self.admin = catalog.create_table(
            (namespace, "prices"), SCHEMA, partition_spec=BY_REGION, properties=properties
        )
        contract = f"tables: [{{table: {self.name}, operations: [overwrite, alter], partitions: all}}]\n"
        self.secrets = {who: tower.principal(f"{namespace}_{who}", contract) for who in ("ann", "bob")}

    def table(self, who: str) -> Table:
        return self.tower.catalog(self.secrets[who]).load_table(self.name)

    def client(self, who: str) -> Tower:
        return Tower(self.tower.uri, self.secrets[who])

    def agent(self, who: str) -> Agent:
        return Agent(self.tower.uri, self.secrets[who])

    def properties(self) -> dict[str, str]:
        return dict(self.admin.refresh().properties)

    def ids(self) -> list[int]:
        return sorted(self.admin.refresh().scan().to_arrow()["id"].to_pylist())


@pytest.fixture
def shop(tower: TowerProcess, catalog: Catalog, namespace: str) -> Shop:
    return Shop(tower, catalog, namespace)


@pytest.fixture
def strict(tower: TowerProcess, catalog: Catalog, namespace: str) -> Shop:
    return Shop(tower, catalog, namespace, **REQUIRED)


def test_disjoint_leases_are_held_side_by_side_and_others_wait_in_line(shop: Shop) -> None:
    with shop.client("ann") as ann, shop.client("bob") as bob:
        first = ann.declare_intent([{"table": shop.name, **held("eu")}])
        assert (first["state"], first["tables"][0]["partitions"]) == ("held", [{"region": "eu"}])
        other = bob.declare_intent([{"table": shop.name, **held("as")}])
        assert other["fence"] > first["fence"]
        with pytest.raises(Conflict) as refused:
            bob.declare_intent([{"table": shop.name, **held("eu")}])
        assert (refused.value.rule, refused.value.wait_until_ms) == ("intent.held", first["expires_ms"])
        queued = bob.declare_intent([{"table": shop.name, **held("eu")}], queue=True)
        assert (queued["state"], queued["waits_for"][0]["intent"]) == ("queued", first["intent"])

        with ThreadPoolExecutor(1) as threads:
            granted = threads.submit(bob.intent, queued["intent"], wait_s=30, state="queued")
            ann.release_intent(first["intent"])
            assert granted.result()["state"] == "held"
        for each in (other, queued):
            assert bob.release_intent(each["intent"])["ended"] == "released"
        assert bob.intents(table=shop.name)["intents"] == []


def test_a_commit_under_an_intent_brings_its_fence_into_the_table(shop: Shop) -> None:
    with shop.agent("ann") as agent, agent.intent(shop.name, **held("eu")) as lease:
        shop.table("ann").overwrite(rows("eu", 1), snapshot_properties=lease.properties)
        assert int(shop.properties()[FENCE]) >= lease.fence
        summary = shop.admin.refresh().current_snapshot()
        assert summary is not None
        assert summary.summary is not None
        assert summary.summary.additional_properties["icetower.intent"] == lease.id
        lease.check()
    with shop.client("ann") as ann:
        assert ann.intent(lease.id)["ended"] == "released"


def test_a_zombie_changes_nothing(shop: Shop) -> None:
    """It was paused, an administrator broke its lease, and another agent went on."""
    table = shop.table("ann")
    with shop.client("ann") as ann, shop.client("bob") as bob:
        old = ann.declare_intent([{"table": shop.name, **held("eu")}])
        assert shop.tower.admin.release_intent(old["intent"])["ended"] == "broken"
        new = bob.declare_intent([{"table": shop.name, **held("eu")}])
        said = {"icetower.intent": new["intent"], "icetower.fence": str(new["fence"])}
        shop.table("bob").append(rows("eu", 1), snapshot_properties=said)
        zombie = {"icetower.intent": old["intent"], "icetower.fence": str(old["fence"])}
        with pytest.raises(ForbiddenError, match="has ended"):
            table.append(rows("eu", 2), snapshot_properties=zombie)
        with pytest.raises(Forbidden) as refused:
            ann.renew_intent(old["intent"])
        assert refused.value.rule == "intent.fenced"
    assert shop.ids() == [1]


def test_a_lease_that_is_not_renewed_ends(shop: Shop) -> None:
    with shop.client("ann") as ann, shop.client("bob") as bob:
        ann.declare_intent([{"table": shop.name, **held("eu")}], ttl_s=1)
        granted = bob.declare_intent([{"table": shop.name, **held("eu")}], wait_s=30)
        assert granted["state"] == "held"
        bob.release_intent(granted["intent"])


def test_whoever_has_waited_for_long_enough_is_out_of_the_line(shop: Shop) -> None:
    with shop.client("ann") as ann, shop.client("bob") as bob:
        ann.declare_intent([{"table": shop.name}])
        with pytest.raises(Conflict) as refused:
            bob.declare_intent([{"table": shop.name, **held("as")}], wait_s=0.2)
        assert refused.value.rule == "intent.held"
        assert bob.intents()["intents"] == []


def test_where_intents_are_required_others_stay_out(strict: Shop) -> None:
    bobs = strict.table("bob")
    with strict.agent("ann") as agent, agent.intent(strict.name, **held("eu")) as lease:
        with pytest.raises(CommitFailedException, match="are held"):
            bobs.overwrite(rows("eu", 5))
        with strict.client("bob") as bob:
            verdict = bob.check(strict.name, operation="overwrite", partitions=["region=eu"])
            assert (verdict["allowed"], verdict["error"]["rule"]) == (False, "intent.held")
            assert bob.check(strict.name, operation="overwrite", partitions=["region=as"])["allowed"]
        strict.table("bob").append(rows("as", 6))
        strict.table("bob").append(rows("eu", 7), snapshot_properties={"icetower.blind": "true"})
        strict.table("ann").append(rows("eu", 8), snapshot_properties=lease.properties)
    assert strict.ids() == [6, 7, 8]
    strict.table("bob").overwrite(rows("eu", 9))
    assert strict.ids() == [9]


def test_what_required_intents_would_refuse_is_known_before_they_are(shop: Shop, namespace: str) -> None:
    """On a table where they are advisory: counted, for `advise` and, of contracts in shadow mode, for their report."""
    contract = (
        f"mode: shadow\ntables: [{{table: {shop.name}, operations: [overwrite], partitions: all, intents: required}}]\n"
    )
    tried = shop.tower.principal(f"{namespace}_tried", contract)
    with shop.agent("ann") as agent, agent.intent(shop.name, **held("eu")) as lease:
        bobs = shop.table("bob")
        bobs.overwrite(rows("eu", 1))
        bobs.append(rows("eu", 2), snapshot_properties={"icetower.blind": "true"})  # would land all the same
        bobs.append(rows("as", 3))
        shop.tower.catalog(tried).load_table(shop.name).overwrite(rows("eu", 4))
        while len(lease.warnings) < 3:
            threading.Event().wait(0.02)
        shop.table("ann").append(rows("eu", 5), snapshot_properties=lease.properties)
    found = shop.tower.admin.ignored_intents(table=shop.name)
    assert {row["principal"]: row["landed"] for row in found} == {f"{namespace}_bob": 1, f"{namespace}_tried": 1}
    assert {tuple(row["holders"]) for row in found} == {(f"{namespace}_ann",)}
    assert found[0]["command"] == f"icetower tables set {shop.name} --intents required"
    with shop.client("bob") as bob:
        assert [row["principal"] for row in bob.ignored_intents()] == [f"{namespace}_bob"]
    (report,) = shop.tower.admin.shadow_report(f"{namespace}_tried")
    assert [(row["rule"], row["partitions"]) for row in report["refusals"]] == [
        ("intent.held", ["region=as", "region=eu"])
    ]


def test_a_client_that_names_no_intent_is_known_by_its_principal(strict: Shop) -> None:
    with strict.client("ann") as ann:
        intent = ann.declare_intent([{"table": strict.name, **held("eu")}])
        strict.table("ann").append(rows("eu", 1))
        assert strict.properties()[FENCE] == str(intent["fence"])
        ann.release_intent(intent["intent"])


def test_a_commit_beyond_its_intent_is_refused(shop: Shop) -> None:
    with shop.agent("ann") as agent, agent.intent(shop.name, **held("eu")) as lease:
        beyond = lease.properties
        with pytest.raises(ForbiddenError, match="goes beyond intent"):
            shop.table("ann").append(rows("as", 1), snapshot_properties=beyond)
    assert shop.ids() == []


def test_holders_hear_at_once_of_commits_into_their_rows(shop: Shop) -> None:
    heard: list[Any] = []
    came = threading.Event()

    def on_warning(warning: Any) -> None:
        heard.append(warning)
        came.set()

    with shop.agent("ann") as agent, agent.intent(shop.name, **held("eu"), on_warning=on_warning) as lease:
        shop.table("bob").append(rows("as", 1))
        shop.table("bob").append(rows("eu", 2))
        assert came.wait(60)
        [warning] = heard
        assert warning["table"] == shop.name
        assert warning["partitions"] == ["region=eu"]
        assert warning["operations"] == ["append"]
        assert warning["principal"].endswith("_bob")
        assert lease.warnings == heard
        shop.table("ann").append(rows("eu", 3), snapshot_properties=lease.properties)  # one's own is none
    with shop.client("ann") as ann:
        assert len(ann.intent(lease.id)["warnings"]) == 1


def test_a_rewriter_under_an_exclusive_intent_is_not_sent_back(strict: Shop) -> None:
    """A copy-on-write delete by filter from PyIceberg, on a table that has moved on."""
    strict.table("bob").append(rows("eu", 1, 2, 3))
    with strict.agent("ann") as agent, agent.intent(strict.name, **held("eu", exclusive=True)) as lease:
        stale = strict.table("ann")
        strict.table("bob").append(rows("as", 10))
        with pytest.raises(CommitFailedException, match="are held"):
            strict.table("bob").append(rows("eu", 11), snapshot_properties={"icetower.blind": "true"})
        stale.delete("region = 'eu' and id < 3", snapshot_properties=lease.properties)
    assert strict.ids() == [3, 10]
    assert "rebased" in strict.tower.outcomes(strict.name)


def test_what_came_before_the_grant_still_refuses_a_rewriter(
    tower: TowerProcess, catalog: Catalog, namespace: str
) -> None:
    strict = Shop(tower, catalog, namespace, **REQUIRED, **{"commit.retry.num-retries": "0"})
    strict.table("bob").append(rows("eu", 1, 2, 3))
    stale = strict.table("ann")
    transaction = stale.transaction()
    transaction.delete("region = 'eu' and id < 3")
    strict.table("bob").append(rows("eu", 4))
    with (
        strict.agent("ann") as agent,
        agent.intent(strict.name, **held("eu", exclusive=True)),
        pytest.raises(CommitFailedException),
    ):
        transaction.commit_transaction()
    assert strict.ids() == [1, 2, 3, 4]


def test_exclusive_is_for_tables_that_require_intents(shop: Shop) -> None:
    with shop.client("ann") as ann, pytest.raises(IcetowerError) as refused:
        ann.declare_intent([{"table": shop.name, **held("eu", exclusive=True)}])
    assert (refused.value.rule, refused.value.status) == ("intent.exclusive", 400)


def test_only_what_a_contract_owns_can_be_held(shop: Shop, namespace: str) -> None:
    contract = f"tables: [{{table: {shop.name}, operations: [overwrite], partitions: [{{region: [eu, us]}}]}}]\n"
    with Tower(shop.tower.uri, shop.tower.principal(f"{namespace}_cy", contract)) as cy:
        for wanted in ({"partitions": [{"region": "as"}]}, {"filter": True}):
            with pytest.raises(Forbidden) as refused:
                cy.declare_intent([{"table": shop.name, **wanted}])
            assert refused.value.rule == "contract.partitions"
        mine = cy.declare_intent([{"table": shop.name}])  # all that it owns
        with shop.client("ann") as ann:
            other = ann.declare_intent([{"table": shop.name, **held("as")}])
            with pytest.raises(Conflict):
                ann.declare_intent([{"table": shop.name, **held("us")}])
            ann.release_intent(other["intent"])
            with pytest.raises(NotFound):
                ann.release_intent(mine["intent"])
        by_filter = {"type": "eq", "term": "region", "value": "eu"}
        cy.release_intent(mine["intent"])
        assert cy.declare_intent([{"table": shop.name, "filter": by_filter}])["state"] == "held"


def test_several_tables_are_held_together(shop: Shop, catalog: Catalog, namespace: str) -> None:
    catalog.create_table((namespace, "other"), SCHEMA)
    other = f"{namespace}.other"
    admin = shop.tower.admin
    with shop.client("ann") as ann:
        ann.declare_intent([{"table": shop.name, **held("eu")}])
        both = [{"table": other}, {"table": shop.name, **held("eu")}]
        with pytest.raises(Conflict):
            admin.declare_intent(both)
        assert admin.declare_intent([{"table": other}])["state"] == "held"


def test_a_transaction_of_several_tables_lands_whole_or_not_at_all_beside_a_holder(
    strict: Shop, catalog: Catalog, namespace: str
) -> None:
    other = catalog.create_table((namespace, "other"), SCHEMA)

    def both(*into_prices: int) -> dict[str, Any]:
        """Rows into both tables, as PyIceberg writes them, in one transaction."""
        return {
            "table-changes": [
                captured(strict.admin.refresh(), rows("eu", *into_prices)),
                captured(other, rows("eu", 1)),
            ]
        }

    with strict.agent("ann") as agent, strict.tower.client() as http:
        with agent.intent(strict.name, **held("eu")):
            refused = http.post("/v1/transactions/commit", json=both(5))
            assert (refused.status_code, refused.json()["error"]["rule"]) == (409, "intent.held")
            assert (strict.ids(), other.refresh().scan().to_arrow().num_rows) == ([], 0)
        assert http.post("/v1/transactions/commit", json=both(6)).status_code == 204
    assert (strict.ids(), other.refresh().scan().to_arrow().num_rows) == ([6], 1)


class _Captured(Exception):
    """A commit was taken instead of being sent."""


def captured(table: Table, data: pa.Table) -> dict[str, Any]:
    """The overwrite of a table that PyIceberg would send, as one of a transaction's changes."""
    sent: dict[str, Any] = {}

    def capture(_table: Table, requirements: Any, updates: Any) -> Any:
        sent.update(
            requirements=[each.model_dump(mode="json", by_alias=True) for each in requirements],
            updates=[each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in updates],
        )
        raise _Captured

    commit, table.catalog.commit_table = table.catalog.commit_table, capture  # type: ignore[method-assign]
    try:
        with pytest.raises(_Captured):
            table.overwrite(data)
    finally:
        table.catalog.commit_table = commit  # type: ignore[method-assign]
    return {"identifier": {"namespace": [table.name()[0]], "name": table.name()[1]}, **sent}


@pytest.mark.parametrize(
    ("body", "status", "rule"),
    [
        ({"tables": []}, 400, "shape"),
        ({"tables": [{"table": "{t}", "exclusve": True}]}, 400, "shape"),
        ({"tables": [{"table": "{t}", "partitions": [{"region": {"at": 1}}]}]}, 400, "request.partitions"),
        ({"tables": [{"table": "{t}", "partitions": [{"region": 1}], "filter": True}]}, 400, "shape"),
        ({"tables": [{"table": "{t}", "filter": {"type": "eq", "term": "colour", "value": 1}}]}, 400, "filter.column"),
        ({"tables": [{"table": "{t}", "filter": {"type": "like"}}]}, 400, "filter.json"),
        ({"tables": [{"table": "{t}", "operations": ["drop"]}]}, 400, "request.operations"),
        ({"tables": [{"table": "{t}"}], "ttl_s": 0}, 400, "shape"),
        ({"tables": [{"table": "{t}"}], "wait_s": 31}, 400, "shape"),
        ({"tables": [{"table": "{t}"}], "intent": "short"}, 400, "shape"),
        ({"tables": [{"table": "nowhere.at_all"}]}, 403, "contract.table"),
    ],
)
def test_what_cannot_be_declared(shop: Shop, body: dict[str, Any], status: int, rule: str) -> None:
    sent = json.loads(json.dumps(body).replace("{t}", shop.name))
    with shop.tower.client(shop.secrets["ann"]) as http:
        answer = http.post("/icetower/v1/intents", json=sent)
    assert (answer.status_code, error_of(answer)["rule"]) == (status, rule)


def test_the_same_declaration_sent_again_is_there_once(shop: Shop) -> None:
    with shop.client("ann") as ann:
        wanted = [{"table": shop.name, **held("eu")}]
        first = ann.declare_intent(wanted, intent="0123456789abcdef-own")
        assert ann.declare_intent(wanted, intent="0123456789abcdef-own")["fence"] == first["fence"]
        with pytest.raises(IcetowerError) as refused:
            ann.declare_intent([{"table": shop.name, **held("as")}], intent="0123456789abcdef-own")
        assert refused.value.rule == "intent.id"


def test_waiting_takes_no_place_among_a_principals_requests(shop: Shop, namespace: str) -> None:
    """An agent that may do one thing at once listens, and commits meanwhile."""
    contract = (
        f"tables: [{{table: {shop.name}, operations: [overwrite], partitions: all}}]\nquotas: {{requests_at_once: 1}}\n"
    )
    secret = shop.tower.principal(f"{namespace}_one", contract)
    with Tower(shop.tower.uri, secret) as listens, Tower(shop.tower.uri, secret) as works:
        intent = listens.declare_intent([{"table": shop.name, **held("eu")}])
        with ThreadPoolExecutor(1) as threads:
            heard = threads.submit(listens.intent, intent["intent"], wait_s=30, state="held")
            works.renew_intent(intent["intent"])
            works.release_intent(intent["intent"])
            assert heard.result()["ended"] == "released"


def test_an_agent_in_an_event_loop(shop: Shop) -> None:
    async def scenario() -> Lease:
        agent = AsyncAgent(shop.tower.uri, shop.secrets["ann"])
        async with agent, agent.intent(shop.name, **held("eu"), ttl_s=9) as lease:
            before, renewed = lease.expires_ms, asyncio.Event()

            def look() -> None:  # it renews itself
                if lease.expires_ms > before:
                    renewed.set()
                else:
                    asyncio.get_running_loop().call_later(0.05, look)

            look()
            await renewed.wait()
            with pytest.raises(Conflict):
                async with agent.intent(shop.name, **held("eu"), wait_s=0.1):
                    raise AssertionError("it is held")
        return lease

    lease = asyncio.run(scenario())
    assert lease.lost is None
    with shop.client("ann") as ann:
        assert ann.intent(lease.id)["ended"] == "released"


def test_a_lost_lease_is_known_to_its_holder(shop: Shop) -> None:
    with shop.agent("ann") as agent, agent.intent(shop.name, **held("eu")) as lease:
        shop.tower.admin.release_intent(lease.id)
        while lease.lost is None:
            threading.Event().wait(0.02)
        with pytest.raises(Forbidden) as refused:
            lease.check()
        assert refused.value.rule == "intent.fenced"


def test_leases_live_over_a_restart(
    start_tower: Callable[..., TowerProcess],
) -> None:
    tower = start_tower()
    catalog = tower.catalog()
    catalog.create_namespace("ns")
    catalog.create_table("ns.t", SCHEMA, partition_spec=BY_REGION, properties=REQUIRED)
    intent = tower.admin.declare_intent([{"table": "ns.t", **held("eu")}], ttl_s=3_600)
    assert tower.stop() == 0
    again = start_tower()
    assert again.admin.intent(intent["intent"])["state"] == "held"
    secret = again.principal("bob", "tables: [{table: ns.t, operations: [overwrite], partitions: all}]\n")
    table = again.catalog(secret).load_table("ns.t")
    with pytest.raises(CommitFailedException, match="are held"):
        table.append(rows("eu", 1))
    assert again.admin.renew_intent(intent["intent"])["fence"] == intent["fence"]
    with httpx2.Client(base_url=again.uri, headers={"Authorization": f"Bearer {again.secret}"}) as http:
        text = http.get("/metrics").text
    assert 'icetower_intents{state="held"} 1.0' in text


@pytest.mark.parametrize("act", ["append", "upsert", "overwrite_partition", "delete"])
def test_what_an_agent_writes_within_its_lease_is_fenced_when_the_lease_was_lost(strict: Shop, act: str) -> None:
    """It was paused for too long, another came and went, and nobody holds the rows any more."""
    strict.table("bob").append(rows("eu", 1))
    with strict.agent("ann") as agent, agent.intent(strict.name, **held("eu"), exclusive=True) as lease:
        agent.append(strict.name, rows("eu", 2))
        agent.append(strict.name, rows("as", 3))  # rows that it does not hold are nobody's
        strict.tower.admin.release_intent(lease.id)
        with strict.client("bob") as bob:
            bob.release_intent(bob.declare_intent([{"table": strict.name, **held("eu")}])["intent"])
        acts: dict[str, Callable[[], object]] = {
            "append": lambda: agent.append(strict.name, rows("eu", 9)),
            "upsert": lambda: agent.upsert(strict.name, rows("eu", 9), keys=["id"]),
            "delete": lambda: agent.delete(strict.name, rows("eu", 1), keys=["id"]),
            "overwrite_partition": lambda: agent.overwrite_partition(
                strict.name, rows("eu", 9), where={"region": "eu"}
            ),
        }
        with pytest.raises(Forbidden) as fenced:
            acts[act]()
        assert fenced.value.rule == "intent.fenced"
        agent.append(strict.name, rows("as", 4))
    with strict.agent("ann") as agent:
        agent.append(strict.name, rows("eu", 5))  # outside of the block it is a write like any other
    assert strict.ids() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("act", ["overwrite_partition", "upsert", "delete"])
def test_what_others_append_while_a_holder_thinks_is_not_replaced_unseen(shop: Shop, act: str) -> None:
    """On a table that lets others' blind appends in: the holder's rows were computed before them."""
    with shop.agent("bob") as bob, shop.agent("ann") as ann:
        bob.append(shop.name, rows("eu", 1, 2))
        acts: dict[str, Callable[..., Any]] = {
            "overwrite_partition": lambda **more: ann.overwrite_partition(
                shop.name, rows("eu", 1, 2), {"region": "eu"}, **more
            ),
            "upsert": lambda **more: ann.upsert(shop.name, rows("eu", 2, 3), keys=["id"], **more),
            "delete": lambda **more: ann.delete(shop.name, rows("eu", 3), keys=["id"], **more),
        }
        with ann.intent(shop.name, **held("eu")):
            bob.append(shop.name, rows("eu", 3))
            bob.append(shop.name, rows("as", 4))
            with pytest.raises(Conflict, match="was granted") as refused:
                acts[act]()
            assert (refused.value.rule, refused.value.next_step) == ("conflict.C1", "fix_request")
            assert shop.ids() == [1, 2, 3, 4]
            assert acts[act](read=shop.table("ann")).outcome == "committed"  # it has looked again


def test_a_holder_goes_on_after_its_own_commits_and_whoever_waits_after_them(shop: Shop) -> None:
    with shop.agent("bob") as bob, shop.agent("ann") as ann, shop.agent("ann") as later, ThreadPoolExecutor(1) as line:
        own = later.intent(shop.name, **held("eu"), wait_s=60)
        with ann.intent(shop.name, **held("eu")):
            waits = line.submit(own.__enter__)
            while all(each["state"] == "held" for each in shop.tower.admin.intents(table=shop.name)["intents"]):
                threading.Event().wait(0.02)
            ann.append(shop.name, rows("eu", 1, 2))
            ann.overwrite_partition(shop.name, rows("eu", 1, 2, 3), {"region": "eu"})
            bob.append(shop.name, rows("as", 9))
            ann.overwrite_partition(shop.name, rows("eu", 1, 2), {"region": "eu"})
        waits.result()
        later.overwrite_partition(shop.name, rows("eu", 7), {"region": "eu"})  # it has what was there at its own grant
        own.__exit__(None, None, None)
    assert shop.ids() == [7, 9]


def test_leases_that_a_write_names_are_read_strictly(shop: Shop) -> None:
    with httpx2.Client(base_url=shop.tower.uri, headers={"Authorization": f"Bearer {shop.secrets['ann']}"}) as http:
        path = "/v1/namespaces/{}/tables/{}/rows".format(*shop.name.split("."))
        for said, status in (("x", 400), ("a:b", 400), (" ".join(["a:1"] * 65), 400), ("a:1", 403), ("", 200)):
            answer = http.post(path, params={"leases": said}, json={"rows": [{"id": 7, "region": "eu"}]})
            assert answer.status_code == status, answer.text
