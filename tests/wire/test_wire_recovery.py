"""An agent that goes by the `next_step` of a refusal alone recovers wherever there is a way, and stops where there is
none: real towers, real refusals. People act, and time passes, where it waits."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from icetower.agent import Patience, Tower, carry_out, keyed, new_key
from icetower.agent.failures import error_of
from icetower.ambient import SystemAmbient
from icetower.errors import BadRequest, Forbidden, IcetowerError
from tests.wire.clauses import BY_REGION, NO_RETRY, SCHEMA, Agent, ids, rows
from verify.kit.tower_process import TowerProcess

NORTH = "tables: [{table: T, operations: [append], partitions: [{region: north}]%s}]\n"


class Clock(SystemAmbient):
    """It goes on when the agent waits."""

    ahead_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + int(self.ahead_s * 1000)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


class Follower:
    """An agent that appends a row with PyIceberg, and what happens while it waits, one thing a wait."""

    def __init__(self, agent: Agent, *meanwhile: Callable[[], object]) -> None:
        self.agent = agent
        self.meanwhile = list(meanwhile)
        self.clock = Clock()
        self.waits_s: list[float] = []
        self.keys: list[str] = []

    def pause(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        self.clock.ahead_s += seconds
        if self.meanwhile:
            self.meanwhile.pop(0)()

    def append(self, id_: int, *, region: str = "north", first: Table | None = None, **given: Any) -> None:
        """`first`: what it writes to at its first attempt, loaded earlier."""

        def work(tower: Tower, key: str) -> None:
            self.keys.append(key)
            table = first if first is not None and len(self.keys) == 1 else self._load(tower)
            table.append(rows(id_, region=region), snapshot_properties=keyed(key))

        self._carry_out(work, **given)

    def _load(self, tower: Tower) -> Table:
        return load_catalog("t", **tower.pyiceberg_properties()).load_table(f"{self.agent.namespace}.t")

    def _carry_out(self, work: Callable[[Tower, str], None], **given: Any) -> None:
        patience = Patience(pause=self.pause, ambient=self.clock)
        table = f"{self.agent.namespace}.t"
        with self.agent.sdk() as tower:
            carry_out(work, tower, table, operations=["append"], reason="its rows", patience=patience, **given)


@pytest.fixture
def table(catalog: Catalog, namespace: str) -> Table:
    return catalog.create_table(f"{namespace}.t", schema=SCHEMA, partition_spec=BY_REGION, properties=NO_RETRY)


@pytest.fixture
def agent(tower: TowerProcess, namespace: str) -> Callable[[str], Agent]:
    return lambda contract: Agent(tower, namespace, contract)


Make = Callable[[str], Agent]


def test_refresh_a_stale_commit_is_written_again_on_the_table_as_it_is(agent: Make, table: Table) -> None:
    follower = Follower(agent(NORTH % ""))
    stale = follower.agent.table()
    table.append(rows(1))
    follower.append(2, first=stale)
    assert follower.agent.attempts() == [("conflict", "rebase.not-blind"), ("direct", None)]
    assert len(set(follower.keys)) == 1
    assert ids(table) == [1, 2]


def test_refresh_files_in_the_wrong_place_are_written_where_the_table_says_by_now(agent: Make, table: Table) -> None:
    follower = Follower(agent(NORTH % ", write_location: table"))
    before = follower.agent.table()
    follower.agent.change(NORTH % "")
    follower.append(1, first=before)
    assert follower.agent.attempts() == [("refused", "contract.location"), ("direct", None)]
    assert ids(table) == [1]


def test_wait_until_a_quota_has_a_place_again(agent: Make, table: Table) -> None:
    bound = agent(NORTH % ", quotas: {commits_per_minute: 1}")
    Follower(bound).append(1)
    follower = Follower(bound, lambda: bound.change(NORTH % ", quotas: {commits_per_minute: 2}"))
    follower.append(2)
    assert 30 < follower.waits_s[0] <= 60.1
    assert [rule for _, rule in bound.attempts()] == [None, "contract.quota", None]
    assert ids(table) == [1, 2]


def test_request_partition_another_teams_partition_is_asked_for_and_granted(
    agent: Make, table: Table, tower: TowerProcess, namespace: str
) -> None:
    Agent(tower, namespace, "owner: South <south@example.com>\n" + NORTH.replace("north", "south") % "", name="south")
    bound = agent(NORTH % "")
    seen: list[dict[str, Any]] = []

    def decide() -> None:
        seen.extend(each for each in tower.admin.requests(state="open") if each["principal"] == bound.name)
        bound.change(NORTH.replace("north", "[north, south]") % "")
        tower.admin.close_request(seen[-1]["id"], "granted", "for this month")

    follower = Follower(bound, decide)
    follower.append(1, region="south")
    assert (seen[-1]["principal"], seen[-1]["partitions"], seen[-1]["operations"], seen[-1]["reason"]) == (
        bound.name,
        ["region=south"],
        ["append"],
        "its rows",
    )
    assert bound.attempts() == [("refused", "contract.partitions"), ("direct", None)]
    denied = Follower(bound, lambda: tower.admin.close_request(tower.admin.requests()[0]["id"], "denied", "never"))
    with pytest.raises(Forbidden) as refused:
        denied.append(2, region="west")
    assert (refused.value.rule, refused.value.owner) == ("contract.partitions", None)
    assert ids(table) == [1]


def test_request_partition_the_refusal_says_whose_they_are(
    agent: Make, table: Table, tower: TowerProcess, namespace: str
) -> None:
    other = Agent(
        tower, namespace, "owner: South <south@example.com>\n" + NORTH.replace("north", "south") % "", name="south"
    )
    bound = agent(NORTH % "")
    told: list[IcetowerError] = []
    for write in (
        lambda: Follower(bound, *[lambda: _deny(tower)] * 9).append(1, region="south"),
        lambda: _in_transaction(bound, table),
    ):
        with pytest.raises(Forbidden) as refused:
            write()
        told.append(refused.value)
    assert {each.owner for each in told} == {f"{other.name} (South <south@example.com>)"}
    assert [each.partitions for each in told] == [("region=south",)] * 2


def _deny(tower: TowerProcess) -> None:
    tower.admin.close_request(tower.admin.requests(state="open")[0]["id"], "denied", "no")


def _in_transaction(bound: Agent, table: Table) -> None:
    """The same append as a part of a commit over two tables."""
    sent: list[dict[str, Any]] = []

    class Captured(Exception):
        pass

    handle = bound.table()
    commit = handle.catalog.commit_table

    def capture(_table: Table, requirements: Any, updates: Any) -> Any:
        sent.append({
            "requirements": [each.model_dump(mode="json", by_alias=True) for each in requirements],
            "updates": [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in updates],
        })  # fmt: skip
        raise Captured

    handle.catalog.commit_table = capture  # type: ignore[method-assign]
    try:
        handle.append(rows(1, region="south"))
    except Captured:
        pass
    finally:
        handle.catalog.commit_table = commit  # type: ignore[method-assign]
    names = [{"namespace": [bound.namespace], "name": name} for name in ("t", "u")]
    bound.tower.catalog().create_table(f"{bound.namespace}.u", SCHEMA)
    bound.change("tables: [{table: NS.*, operations: [append, alter], partitions: [{region: north}]}]\n")
    changes = [
        {"identifier": names[0], **sent[0]},
        {"identifier": names[1], "requirements": [], "updates": []},
    ]
    with bound.tower.client(bound.secret) as http:
        answer = http.post("/v1/transactions/commit", json={"table-changes": changes})
    raise error_of(answer.status_code, answer.content)


def test_new_key_for_what_was_rolled_back(agent: Make, table: Table) -> None:
    bound = agent(NORTH % "")
    table.append(rows(1))
    first = table.metadata.current_snapshot_id
    assert first is not None
    key = new_key()
    Follower(bound).append(2, key=key)
    table.refresh().manage_snapshots().rollback_to_snapshot(first).commit()
    follower = Follower(bound)
    follower.append(2, key=key)
    assert follower.keys[0] == key != follower.keys[1]
    assert [rule for _, rule in bound.attempts()] == [None, "key.rolled-back", None]
    assert ids(table) == [1, 2]


def test_new_key_where_the_contract_requires_one(agent: Make, table: Table) -> None:
    bound = agent(NORTH % "" + "idempotency: {required: true, how: [summary]}\n")
    follower = Follower(bound)

    def work(tower: Tower, key: str) -> None:
        follower.keys.append(key)
        marks = keyed(key) if len(follower.keys) > 1 else {}
        follower._load(tower).append(rows(1), snapshot_properties=marks)

    follower._carry_out(work)
    assert [rule for _, rule in bound.attempts()] == ["contract.key", None]
    assert ids(table) == [1]


def test_escalated_to_it_waits_until_a_person_has_closed_it(agent: Make, table: Table, tower: TowerProcess) -> None:
    bound = agent(NORTH % "" + "escalation: {after_failures: 1, within: 10m, to: dana@example.com}\n")
    with pytest.raises(Forbidden):
        Follower(bound, *[lambda: _deny(tower)]).append(1, region="south")

    def look() -> None:
        (open_,) = (each for each in tower.admin.escalations(state="open") if each["principal"] == bound.name)
        tower.admin.close_escalation(open_["id"], "the south was a mistake")

    follower = Follower(bound, lambda: None, look)
    follower.append(2)
    assert len(follower.waits_s) == 2
    assert [rule for _, rule in bound.attempts()] == ["contract.partitions", "contract.escalated", None]
    assert ids(table) == [2]


def test_authenticate_with_the_credential_that_it_is_given(agent: Make, table: Table, tower: TowerProcess) -> None:
    bound = agent(NORTH % "")
    anew = tower.admin.rotate_principal(bound.name)
    with pytest.raises(IcetowerError) as refused:
        Follower(bound).append(1)
    assert (refused.value.status, refused.value.next_step) == (401, "authenticate")
    Follower(bound).append(1, authenticate=lambda: Tower(tower.uri, anew))
    assert ids(table) == [1]


@pytest.fixture
def port() -> int:
    """Where nobody listens yet."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_retry_until_the_tower_is_there(start_tower: Callable[..., TowerProcess], port: int) -> None:
    first = start_tower()
    first.catalog().create_namespace("ns")
    table = first.catalog().create_table("ns.t", SCHEMA, partition_spec=BY_REGION)
    follower = Follower(Agent(first, "ns", NORTH % ""), lambda: None, lambda: start_tower("--port", str(port)))
    elsewhere = Tower(f"http://127.0.0.1:{port}", follower.agent.secret)

    def work(_tower: Tower, key: str) -> None:
        follower.keys.append(key)
        follower._load(elsewhere).append(rows(1), snapshot_properties=keyed(key))

    follower._carry_out(work)
    elsewhere.close()
    assert len(follower.keys) == 3
    assert ids(table) == [1]


STOPS = [
    # the contract, a region → the rule, the next step
    (NORTH % ", quotas: {bytes_per_commit: 100}", "contract.quota", "fix_request"),
    (NORTH % ", pattern: mediator", "contract.pattern", "fix_request"),
    ("reads: [NS.*]\n", "contract.operation", "ask_owner"),
    ("tables: [{table: T, operations: [append], partitions: [{other: 1}]}]\n", "contract.undecided", "ask_owner"),
]


@pytest.mark.parametrize(("contract", "rule", "step"), STOPS, ids=[stop[1] for stop in STOPS])
def test_where_there_is_no_way_it_stops_at_once(agent: Make, table: Table, contract: str, rule: str, step: str) -> None:
    follower = Follower(agent(contract))
    with pytest.raises(Forbidden) as refused:
        follower.append(1)
    assert (refused.value.rule, refused.value.next_step) == (rule, step)
    assert (len(follower.keys), follower.waits_s) == (1, [])
    assert ids(table) == []


def test_where_there_is_no_way_it_stops_at_once_revoked_or_misspelt(agent: Make, table: Table) -> None:
    bound = agent(NORTH % "")
    follower = Follower(bound)
    with pytest.raises(BadRequest) as refused:
        follower._carry_out(
            lambda tower, _: follower._load(tower).append(rows(1), snapshot_properties={"icetower.blnd": "true"})
        )
    assert (refused.value.rule, refused.value.next_step) == ("summary.unknown", "fix_request")
    bound.revoke()
    with pytest.raises(Forbidden) as revoked:
        follower.append(1)
    assert (revoked.value.rule, revoked.value.next_step) == ("contract.revoked", "ask_owner")
    assert ids(table) == []
