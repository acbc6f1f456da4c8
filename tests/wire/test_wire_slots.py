"""Slots that are handed out, over the wire: by PyIceberg and the SDK, on a tower whose clock the test moves."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.table import Table

from icetower import Agent, AsyncAgent
from icetower.agent import Patience, Tower, refusal_of
from icetower.errors import BadRequest, Conflict, Forbidden, IcetowerError
from tests.cli.conftest import Run
from tests.cli.conftest import run as run
from tests.pages.page_blocks import blocks_of
from tests.wire.test_patterns_pyiceberg import BIDS, BY_SLOT, NINE
from verify.kit.clocked_tower import ClockedTower, MovedClock
from verify.kit.tower_process import error_of

MINUTE = 60_000
NAME = "shop.bids"


class Auction:
    """A table by slot, and three agents of two principals each, with a minute for each agent."""

    def __init__(self, tower: ClockedTower, more: str = "claim_within: 15s") -> None:
        self.tower = tower
        self.clock = tower.clock
        for number in range(3):
            turn = f"{{every: 3m, from: {number}m, to: {number + 1}m, grace: 5s}}"
            entry = f"table: {NAME}, operations: [append, overwrite], pattern: scheduler, partitions: "
            text = f"[{{{entry}[{{identity(slot): {turn}}}], {more}}}]"
            tower.admin.apply_contract(f"version: 1\nagent: a{number}\ntables: {text}\n")
        self.secrets = {
            f"a{number}-{second}": tower.admin.create_principal(f"a{number}-{second}", f"a{number}")
            for number in range(3)
            for second in range(2)
        }

    def client(self, who: str) -> Tower:
        return Tower(self.tower.uri, self.secrets[who])

    def agent(self, who: str) -> Agent:
        patience = Patience(pause=self.clock.move, ambient=self.clock, attempts_max=2)
        return Agent(self.tower.uri, self.secrets[who], patience=patience)

    def table(self, who: str) -> Table:
        return self.tower.catalog(self.secrets[who]).load_table(NAME)

    def at(self, seconds: float) -> None:
        """So many seconds into a round of slots of its own, which nobody has taken yet."""
        self.clock.at_ms = self.round_ms + round(seconds * 1000)

    def begin(self) -> None:
        self.round_ms = -(-self.clock.at_ms // (3 * MINUTE)) * 3 * MINUTE + 3 * MINUTE
        self.at(0)

    def rows(self, slot: int, item: int) -> pa.Table:
        moment = dt.datetime.fromtimestamp((self.round_ms + slot * MINUTE) / 1000, dt.UTC)
        return pa.Table.from_pylist([{"item": item, "slot": moment}], schema=self.table("a0-0").schema().as_arrow())

    def contents(self) -> list[tuple[int, int]]:
        """Slot of the round, and item."""
        rows = self.tower.catalog().load_table(NAME).scan().to_arrow().to_pylist()
        slots = [(round(row["slot"].timestamp() * 1000) - self.round_ms) // MINUTE for row in rows]
        return sorted((slot, row["item"]) for slot, row in zip(slots, rows, strict=True) if slot >= 0)


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClockedTower]:
    tower = ClockedTower(tmp_path_factory.mktemp("slots") / "data", MovedClock(NINE))
    tower.catalog().create_namespace("shop")
    tower.catalog().create_table(NAME, BIDS, partition_spec=BY_SLOT)
    yield tower
    assert tower.stop() == 0


@pytest.fixture(scope="module")
def shared(tower: ClockedTower) -> Auction:
    return Auction(tower)


@pytest.fixture
def auction(shared: Auction) -> Auction:
    shared.begin()
    return shared


def summary(taken: dict[str, Any]) -> dict[str, str]:
    return {"icetower.intent": taken["intent"], "icetower.fence": str(taken["fence"])}


def test_a_slot_is_taken_written_in_and_over(auction: Auction) -> None:
    with auction.client("a0-0") as first, auction.client("a0-1") as second, auction.client("a1-0") as other:
        taken = first.take_slot(NAME)
        assert (taken["state"], taken["expires_ms"]) == ("held", auction.round_ms + 65_000)
        assert taken["slot"] == {
            "term": "identity(slot)",
            "column": "slot",
            "starts_ms": auction.round_ms,
            "ends_ms": auction.round_ms + MINUTE,
            "until_ms": auction.round_ms + 65_000,
        }
        assert taken["tables"][0]["exclusive"]
        for late, from_s in ((second, 90), (other, 60)):
            with pytest.raises(Conflict) as refused:
                late.take_slot(NAME)
            assert (refused.value.rule, refused.value.next_step) == ("slot.waiting", "wait_until")
            assert refused.value.wait_until_ms == auction.round_ms + from_s * 1000
            assert "a0-0 holds them" in refused.value.message or late is other
        auction.table("a0-0").append(auction.rows(0, 1), snapshot_properties=summary(taken))
        auction.table("a0-0").append(auction.rows(0, 2))  # known by its principal
        with pytest.raises(ForbiddenError, match="a0-0 holds them") as beside:
            auction.table("a0-1").append(auction.rows(0, 3))
        refusal = refusal_of(beside.value)
        assert refusal is not None
        assert refusal.rule == "slot.taken"
        verdict = second.check(NAME, operation="append", partitions=[{"slot": moment(auction, 0)}])
        assert (verdict["allowed"], verdict["error"]["rule"]) == (False, "slot.taken")
        assert first.check(NAME, operation="append", partitions=[{"slot": moment(auction, 0)}])["allowed"]
        # It overruns. In grace it is let in, beside the holder of the next slot; after that it is fenced.
        auction.at(64)
        following = other.take_slot(NAME)
        assert following["fence"] > taken["fence"]
        auction.table("a0-0").append(auction.rows(0, 4), snapshot_properties=summary(taken))
        auction.at(65)
        for properties in (summary(taken), {}):
            with pytest.raises(ForbiddenError) as fenced:
                auction.table("a0-0").append(auction.rows(0, 5), snapshot_properties=properties)
            refusal = refusal_of(fenced.value)
            assert refusal is not None
            assert (refusal.rule, refusal.next_step) == ("contract.slot", "fix_request")
        with pytest.raises(Forbidden) as ended:
            first.renew_intent(taken["intent"])
        assert ended.value.rule == "intent.fenced"
        auction.table("a1-0").append(auction.rows(1, 6), snapshot_properties=summary(following))
    assert auction.contents() == [(0, 1), (0, 2), (0, 4), (1, 6)]


def moment(auction: Auction, slot: int) -> str:
    return dt.datetime.fromtimestamp((auction.round_ms + slot * MINUTE) / 1000, dt.UTC).isoformat()


def test_a_zombie_of_a_slot_that_was_given_on_is_fenced(auction: Auction) -> None:
    """It was paused in its slot and did not renew; another took the rest. Both write the same partition."""
    with auction.client("a0-0") as dead, auction.client("a1-0") as next_one:
        old = dead.take_slot(NAME, ttl_s=10)
        with pytest.raises(Conflict):
            next_one.take_slot(NAME)
        auction.at(15)
        rest = next_one.take_slot(NAME)
        assert (rest["slot"]["starts_ms"], rest["expires_ms"]) == (auction.round_ms, auction.round_ms + 65_000)
        auction.table("a1-0").append(auction.rows(0, 10), snapshot_properties=summary(rest))
        for properties, rule in ((summary(old), "intent.fenced"), ({}, "slot.taken")):
            with pytest.raises(ForbiddenError) as fenced:
                auction.table("a0-0").append(auction.rows(0, 11), snapshot_properties=properties)
            refusal = refusal_of(fenced.value)
            assert refusal is not None
            assert refusal.rule == rule
    assert auction.contents() == [(0, 10)]
    assert int(auction.table("a0-0").properties["icetower.intents.fence"]) >= rest["fence"]


def test_the_sdk_writes_in_its_slot_and_in_one_that_was_missed(auction: Auction) -> None:
    with auction.agent("a1-0") as agent:
        with pytest.raises(Conflict) as refused, agent.next_slot(NAME):
            pass
        assert refused.value.rule == "slot.waiting"
        auction.at(20)  # nobody has come
        with agent.next_slot(NAME) as lease:
            assert lease.slot is not None
            assert (lease.slot.column, lease.slot.starts_ms) == ("slot", auction.round_ms)
            assert lease.slot.left_s < 45  # it goes on
            agent.append(NAME, [{"item": 20, "price": 1}])
            auction.table("a1-0").overwrite(auction.rows(0, 21), overwrite_filter="item = 20",
                                            snapshot_properties=lease.properties)  # fmt: skip
            lease.check()
        with auction.client("a1-0") as client:
            assert client.intent(lease.id)["ended"] == "released"
        with pytest.raises(IcetowerError) as unheld, auction.agent("a0-0") as without:
            without.append(NAME, [{"item": 22}])
        assert unheld.value.rule == "slot.taken"
    assert auction.contents() == [(0, 21)]


def test_the_pages_example_runs_and_so_do_async_agents(auction: Auction) -> None:
    block = next(block for block in blocks_of("docs/intents.md") if "test_wire_slots" in block.more)
    exec(compile(block.text, block.place, "exec"), {"uri": auction.tower.uri, "secret": auction.secrets["a0-0"]})
    auction.at(61)

    async def story() -> None:
        async with (
            AsyncAgent(auction.tower.uri, auction.secrets["a1-1"]) as agent,
            agent.next_slot(NAME, wait_s=1, least_s=10) as lease,
        ):
            assert lease.slot is not None
            await agent.append(NAME, [{"item": 2}])

    asyncio.run(story())
    assert auction.contents() == [(0, 1), (1, 2)]


def test_who_waits_gets_the_slot_when_its_holder_lets_it_go(auction: Auction) -> None:
    with auction.agent("a0-0") as first, auction.client("a0-1") as second:
        with first.next_slot(NAME), pytest.raises(Conflict):
            second.take_slot(NAME, wait_s=0.1)
        assert second.take_slot(NAME, wait_s=30)["state"] == "held"


def test_whose_turn_it_is_is_listed(auction: Auction, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with auction.client("a0-0") as client, auction.agent("a0-0") as agent, agent.next_slot(NAME) as lease:
        listed = client.slots(table=NAME)
        assert [(each["contract"], each["line"]) for each in listed] == [
            ("a0", ["a0", "a1", "a2"]),
            ("a1", ["a1", "a2", "a0"]),
            ("a2", ["a2", "a0", "a1"]),
        ]
        assert [each["starts_ms"] - auction.round_ms for each in listed] == [0, MINUTE, 2 * MINUTE]
        assert [[held["intent"] for held in each["held"]] for each in listed] == [[lease.id], [], []]
        assert {each["claim_within_s"] for each in listed} == {15}
        monkeypatch.setenv("ICETOWER_URI", auction.tower.uri)
        monkeypatch.setenv("ICETOWER_TOKEN", auction.tower.secret)
        status, out, _ = run("slots", "--table", NAME)
        assert status == 0
        assert "a0-0" in out
        assert out.count("of identity(slot)") == 3
        status, out, _ = run("slots", "--json")
        assert [each["contract"] for each in json.loads(out)] == ["a0", "a1", "a2"]
        stranger = auction.tower.principal("stranger", "tables: [{table: shop.other, operations: [read]}]\n")
        with Tower(auction.tower.uri, stranger) as other:
            assert other.slots() == []


@pytest.mark.parametrize(
    ("body", "status", "rule"),
    [
        ({}, 400, "shape"),
        ({"table": NAME, "wait_s": 31}, 400, "shape"),
        ({"table": NAME, "ttl_s": 0}, 400, "shape"),
        ({"table": NAME, "operations": ["append"]}, 400, "shape"),
        ({"table": NAME, "intent": "short"}, 400, "shape"),
        ({"table": "shop.none"}, 403, "contract.table"),
    ],
)
def test_what_cannot_be_asked_for(auction: Auction, body: dict[str, Any], status: int, rule: str) -> None:
    with auction.tower.client(auction.secrets["a0-0"]) as http:
        answer = http.post("/icetower/v1/slots/next", json=body)
    assert (answer.status_code, error_of(answer)["rule"]) == (status, rule)


def test_a_contract_without_slots_has_none_to_take(auction: Auction) -> None:
    with pytest.raises(BadRequest) as refused:
        auction.tower.admin.take_slot(NAME)
    assert refused.value.rule == "slot.none"


def test_who_overruns_a_slot_by_the_clock_is_fenced(tower: ClockedTower) -> None:
    """No column tells its rows apart: nobody but the holder of the slot that goes on may write at all."""
    tower.catalog().create_table("shop.lots", BIDS)
    entry = "table: shop.lots, operations: [overwrite], pattern: scheduler, claim_within: 15s, partitions: "
    secrets: list[str] = []
    for number in range(2):
        turn = f"{{now: {{every: 2m, from: {number}m, to: {number + 1}m}}}}"
        tower.admin.apply_contract(f"version: 1\nagent: lots{number}\ntables: [{{{entry}[{turn}]}}]\n")
        secrets.append(tower.admin.create_principal(f"lots{number}-0", f"lots{number}"))
    tower.clock.at_ms = -(-tower.clock.at_ms // (2 * MINUTE)) * 2 * MINUTE + 2 * MINUTE
    slow, quick = (tower.catalog(secret).load_table("shop.lots") for secret in secrets)
    rows = pa.Table.from_pylist([{"item": 1}], schema=slow.schema().as_arrow())
    with Tower(tower.uri, secrets[0]) as first, Tower(tower.uri, secrets[1]) as second:
        taken = first.take_slot("shop.lots")
        tower.clock.move(60)
        following = second.take_slot("shop.lots")
        with pytest.raises(ForbiddenError, match="has ended") as fenced:
            slow.append(rows, snapshot_properties=summary(taken))
        refusal = refusal_of(fenced.value)
        assert refusal is not None
        assert (refusal.rule, refusal.status) == ("intent.fenced", 403)
        quick.overwrite(rows, snapshot_properties=summary(following))
    assert tower.catalog().load_table("shop.lots").scan().to_arrow()["item"].to_pylist() == [1]


def test_commits_without_a_slot_are_known_before_the_contract_is_enforced(tower: ClockedTower) -> None:
    tower.catalog().create_table("shop.tries", BIDS, partition_spec=BY_SLOT)
    turn = "{identity(slot): {every: 1m}}"
    entry = f"table: shop.tries, operations: [append], pattern: scheduler, claim_within: 15s, partitions: [{turn}]"
    tower.admin.apply_contract(f"version: 1\nagent: tries\nmode: shadow\ntables: [{{{entry}}}]\n")
    secret = tower.admin.create_principal("tries-0", "tries")
    tower.clock.at_ms = -(-tower.clock.at_ms // MINUTE) * MINUTE
    table = tower.catalog(secret).load_table("shop.tries")
    at = dt.datetime.fromtimestamp(tower.clock.at_ms / 1000, dt.UTC)
    rows = pa.Table.from_pylist([{"item": 1, "slot": at}], schema=table.schema().as_arrow())
    with Agent(tower.uri, secret) as agent, Tower(tower.uri, secret) as client:
        table.append(rows)
        agent.append("shop.tries", rows)
        taken = client.take_slot("shop.tries")
        table.append(rows, snapshot_properties=summary(taken))
        agent.append("shop.tries", rows)
    (report,) = tower.admin.shadow_report("tries")
    assert [(row["rule"], row["count"]) for row in report["refusals"]] == [("slot.taken", 2)]


def test_slots_by_the_clock_alone_are_handed_out_too(tower: ClockedTower) -> None:
    """Without `claim_within`: the intent keeps a contract's own principals apart, where the table requires intents."""
    tower.catalog().create_table("shop.asks", BIDS, properties={"icetower.intents": "required"})
    entry = (
        "table: shop.asks, operations: [append], pattern: scheduler, partitions: [{now: {every: 2m, from: 0s, to: 1m}}]"
    )
    tower.admin.apply_contract(f"version: 1\nagent: asker\ntables: [{{{entry}}}]\n")
    secrets = [tower.admin.create_principal(f"asker-{number}", "asker") for number in range(2)]
    tower.clock.at_ms = -(-tower.clock.at_ms // (2 * MINUTE)) * 2 * MINUTE + 2 * MINUTE
    tables = [tower.catalog(secret).load_table("shop.asks") for secret in secrets]
    rows = pa.Table.from_pylist([{"item": 1}], schema=tables[0].schema().as_arrow())
    with Tower(tower.uri, secrets[0]) as first, Tower(tower.uri, secrets[1]) as second:
        taken = first.take_slot("shop.asks")
        assert taken["slot"]["column"] is None
        with pytest.raises(Conflict):
            second.take_slot("shop.asks")
        tables[0].append(rows, snapshot_properties=summary(taken))
        with pytest.raises(Exception, match="are held"):
            tables[1].append(rows, snapshot_properties={"icetower.blind": "true"})
        first.release_intent(taken["intent"])
        tables[1].append(rows)
