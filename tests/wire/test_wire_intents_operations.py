"""What comes into rows that another holds, and what does not: every operation of PyIceberg, the SDK and the tower.

Ann holds the region `eu`, once so that blind appends are let in, and once for herself alone; the table requires
intents. Bob does one thing. It lands, or it is refused with `intent.held`, and the table is as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.types import StringType

from icetower.agent import keyed, new_key
from icetower.errors import Conflict, Forbidden
from tests.pages.page_blocks import blocks_of
from tests.wire.test_wire_audit import typed
from tests.wire.test_wire_intents import FENCE, REQUIRED, Shop, held, rows
from verify.kit.tower_process import TowerProcess, error_of

ONCE = {"commit.retry.num-retries": "0"}
BLIND = {"icetower.blind": "true"}
OPERATIONS = "[overwrite, alter, refs]"


class Held:
    """A shop with rows 1 and 2 in `eu` and 10 in `as`, where Bob comes by."""

    def __init__(self, tower: TowerProcess, catalog: Catalog, namespace: str) -> None:
        self.shop = Shop(tower, catalog, namespace, **REQUIRED, **ONCE)
        self.name = self.shop.name
        contract = f"tables: [{{table: {self.name}, operations: {OPERATIONS}, partitions: all}}]\n"
        for who in ("ann", "bob"):
            tower.admin.apply_contract(f"version: 1\nagent: {namespace}_{who}\n{contract}")
        bobs = self.shop.table("bob")
        bobs.append(rows("as", 10), snapshot_properties=BLIND)
        self.first = self.head()
        bobs.append(rows("eu", 1, 2), snapshot_properties=BLIND)

    def bobs(self) -> Table:
        return self.shop.table("bob")

    def head(self) -> int:
        head = self.shop.admin.refresh().metadata.current_snapshot_id
        assert head is not None
        return head

    def branch(self, region: str, *, blind: bool = False) -> str:
        """A branch of Bob's with a row of a region."""
        bobs = self.bobs()
        bobs.manage_snapshots().create_branch(self.head(), "dev").commit()
        bobs.append(rows(region, 20), branch="dev", snapshot_properties=BLIND if blind else {})
        return "dev"

    def publish(self) -> None:
        with self.shop.agent("bob") as bob:
            bob.publish(self.name, "dev")

    def rule(self) -> str | None:
        """Of the last attempt."""
        return self.shop.tower.admin.commits(limit=1, table=self.name)[0]["rule"]


@dataclass(frozen=True)
class Case:
    """What Bob does, whether it lands beside a shared intent and beside an exclusive one, and what comes before."""

    name: str
    act: Callable[[Held], object]
    shared: bool
    alone: bool
    before: Callable[[Held], object] = lambda _: None


def _delete_and_append(held: Held) -> None:
    with held.bobs().transaction() as transaction:
        transaction.append(rows("as", 11))
        transaction.delete("region = 'eu'")


def _rows_by_the_door(held: Held) -> None:
    """As `Agent.append` sends them, which would wait until the rows are free."""
    space, _, name = held.name.rpartition(".")
    with held.shop.tower.client(held.shop.secrets["bob"]) as http:
        answer = http.post(f"/v1/namespaces/{space}/tables/{name}/rows", json={"rows": [{"id": 5, "region": "eu"}]})
    if answer.status_code == 409:
        raise Conflict(error_of(answer)["message"])
    answer.raise_for_status()


def _revert(held: Held) -> None:
    bob = held.shop.secrets["bob"]
    agent = held.shop.tower.admin.commits(limit=1, table=held.name)[0]["principal"]
    done = typed(held.shop.tower, "revert", held.name, "--agent", agent, "--since", "1h", "--assume-unread", token=bob)
    if done.returncode:
        raise Conflict(f"{done.stdout}{done.stderr}")


def _manage(held: Held) -> None:
    held.bobs().manage_snapshots().create_tag(held.first, "t").create_branch(held.first, "b").commit()


CASES = [
    Case("append", lambda it: it.bobs().append(rows("eu", 5)), False, False),
    Case("append elsewhere", lambda it: it.bobs().append(rows("as", 5)), True, True),
    Case("blind append", lambda it: it.bobs().append(rows("eu", 5), snapshot_properties=BLIND), True, False),
    Case("append under a key", lambda it: it.bobs().append(rows("eu", 5), keyed(new_key())), False, False),
    Case("overwrite all", lambda it: it.bobs().overwrite(rows("as", 5)), False, False),
    Case("overwrite by filter", lambda it: it.bobs().overwrite(rows("eu", 5), "region = 'eu'"), False, False),
    Case("overwrite elsewhere", lambda it: it.bobs().overwrite(rows("as", 5), "region = 'as'"), True, True),
    Case("overwrite into", lambda it: it.bobs().overwrite(rows("eu", 5), "region = 'as'"), False, False),
    Case("delete whole files", lambda it: it.bobs().delete("region = 'eu'"), False, False),
    Case("delete whole files elsewhere", lambda it: it.bobs().delete("region = 'as'"), True, True),
    Case("delete all", lambda it: it.bobs().delete(), False, False),
    Case("delete rows", lambda it: it.bobs().delete("id = 1"), False, False),
    Case("overwrite partitions", lambda it: it.bobs().dynamic_partition_overwrite(rows("eu", 5)), False, False),
    Case("overwrite partitions elsewhere", lambda it: it.bobs().dynamic_partition_overwrite(rows("as", 5)), True, True),
    Case("upsert of a row", lambda it: it.bobs().upsert(rows("eu", 1, 7), ["id"]), False, False),
    Case("upsert of a new row", lambda it: it.bobs().upsert(rows("eu", 7), ["id"]), False, False),
    Case("several at once", _delete_and_append, False, False),
    Case("rows by the door", _rows_by_the_door, True, False),
    Case("roll back", lambda it: it.bobs().manage_snapshots().rollback_to_snapshot(it.first).commit(), False, False),
    Case("set current", lambda it: it.bobs().manage_snapshots().set_current_snapshot(it.first).commit(), False, False),
    Case("branches and tags", _manage, True, True),
    Case("append to a branch", lambda it: it.branch("eu"), True, True),
    Case("publish", Held.publish, False, False, lambda it: it.branch("eu")),
    Case("publish elsewhere", Held.publish, True, True, lambda it: it.branch("as")),
    Case("publish what is blind", Held.publish, True, False, lambda it: it.branch("eu", blind=True)),
    Case("revert", _revert, False, False),
    Case("add a column", lambda it: it.bobs().update_schema().add_column("note", StringType()).commit(), True, True),
    Case("set a property", lambda it: it.bobs().transaction().set_properties(a="b").commit_transaction(), True, True),
]  # fmt: skip


@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
@pytest.mark.parametrize("case", CASES, ids=[case.name.replace(" ", "-") for case in CASES])
def test_what_comes_into_rows_that_another_holds(
    tower: TowerProcess, catalog: Catalog, namespace: str, case: Case, exclusive: bool
) -> None:
    it = Held(tower, catalog, namespace)
    case.before(it)
    ids, head, version = it.shop.ids(), it.head(), it.shop.admin.refresh().metadata_location
    with it.shop.agent("ann") as agent, agent.intent(it.name, **held("eu", exclusive=exclusive)):
        if case.alone if exclusive else case.shared:
            case.act(it)
            assert it.shop.admin.refresh().metadata_location != version
            assert it.rule() is None
        else:
            with pytest.raises(Exception, match="are held"):
                case.act(it)
            assert (it.shop.ids(), it.head()) == (ids, head)
            assert it.rule() == "intent.held"
    if it.shop.admin.refresh().metadata_location == version:  # once nobody holds them, it goes on
        case.act(it)
        assert it.shop.admin.refresh().metadata_location != version


# -- who publishes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def it(tower: TowerProcess, catalog: Catalog, namespace: str) -> Held:
    return Held(tower, catalog, namespace)


def test_who_holds_the_rows_publishes_into_them(it: Held) -> None:
    it.branch("eu")
    with it.shop.agent("ann") as ann, ann.intent(it.name, **held("eu")) as lease:
        assert ann.publish(it.name, "dev").outcome == "forwarded"
        assert int(it.shop.properties()[FENCE]) >= lease.fence, "it came under the only intent that covers it"
    assert it.shop.ids() == [1, 2, 10, 20]


def test_a_publication_that_names_its_intent_is_fenced(it: Held) -> None:
    it.branch("eu")
    with it.shop.agent("ann") as ann:
        with ann.intent(it.name, **held("as")) as other, pytest.raises(Forbidden) as beyond:
            ann.publish(it.name, "dev", lease=other)
        assert beyond.value.rule == "intent.region"
        with ann.intent(it.name, **held("eu")) as lease:
            it.shop.tower.admin.release_intent(lease.id)
            with pytest.raises(Forbidden) as refused:
                ann.publish(it.name, "dev", lease=lease)
            assert refused.value.rule == "intent.fenced"
            assert it.shop.ids() == [1, 2, 10]
        with ann.intent(it.name, **held("eu")) as lease:
            it.shop.table("bob").append(rows("as", 11), snapshot_properties=BLIND)
            done = ann.publish(it.name, "dev", lease=lease, blind=True)
    assert done.outcome == "rebased"
    summary = it.shop.admin.refresh().current_snapshot()
    assert summary is not None
    assert summary.summary is not None
    assert summary.summary["icetower.intent"] == lease.id
    assert it.shop.ids() == [1, 2, 10, 11, 20]


def test_under_which_intent_it_was_made_counts_no_more_when_it_is_published(it: Held) -> None:
    """The lease under which the branch was written has ended, and its holder publishes under another, or none."""
    bobs = it.bobs()
    bobs.manage_snapshots().create_branch(it.head(), "dev").commit()
    with it.shop.agent("bob") as bob:
        with bob.intent(it.name, **held("eu")) as lease:
            bobs.append(rows("eu", 20), branch="dev", snapshot_properties=lease.properties)
        assert bob.publish(it.name, "dev").outcome == "forwarded"
    assert it.shop.ids() == [1, 2, 10, 20]


def test_the_example_of_the_page(it: Held) -> None:
    (_, block) = [block for block in blocks_of("docs/branches.md") if block.language == "python"]
    text = block.text.replace("shop.sales", it.name).replace("...", 'branch.append([{"id": 20, "region": "eu"}])')
    with it.shop.agent("bob") as agent:
        exec(compile(text, block.place, "exec"), {"agent": agent})
    assert it.shop.ids() == [1, 2, 10, 20]


def test_a_rewrite_on_a_branch_is_published_under_an_exclusive_intent(it: Held) -> None:
    """As on `main`, what the intent keeps others out of is what it has read; what came before the grant refuses it."""
    bobs = it.bobs()
    bobs.manage_snapshots().create_branch(it.head(), "dev").commit()
    bobs.refresh().delete("id = 1", branch="dev")
    bobs.append(rows("as", 11), snapshot_properties=BLIND)
    with it.shop.agent("bob") as bob:
        with pytest.raises(Conflict) as undeclared:
            bob.publish(it.name, "dev")
        assert undeclared.value.rule == "rebase.predicate"
        with bob.intent(it.name, **held("eu", exclusive=True)):
            assert bob.publish(it.name, "dev").outcome == "rebased"
        assert it.shop.ids() == [2, 10, 11]
        bobs.refresh().manage_snapshots().create_branch(it.head(), "late").commit()
        bobs.refresh().delete("id = 2", branch="late")
        bobs.append(rows("eu", 3), snapshot_properties=BLIND)
        with bob.intent(it.name, **held("eu", exclusive=True)), pytest.raises(Conflict) as refused:
            bob.publish(it.name, "late")
        assert refused.value.rule.startswith("conflict.")
    assert it.shop.ids() == [2, 3, 10, 11]


def test_where_intents_are_advisory_it_is_published_and_the_holder_hears(it: Held) -> None:
    it.shop.admin.transaction().set_properties({"icetower.intents": "advisory"}).commit_transaction()
    it.branch("eu")
    with it.shop.client("ann") as ann:
        intent = ann.declare_intent([{"table": it.name, **held("eu")}])
        it.publish()
        heard = ann.intent(intent["intent"], wait_s=30, state="held")
        [warning] = heard["warnings"]
        ann.release_intent(intent["intent"])
    assert (warning["snapshot-id"], warning["partitions"]) == (it.head(), ["region=eu"])
    assert it.shop.ids() == [1, 2, 10, 20]


def test_what_waits_for_checks_is_in_nobodys_way(it: Held, namespace: str) -> None:
    """A rebased branch is staged beside `main` while others hold the rows; the last step is asked for them."""
    contract = (
        f"tables: [{{table: {it.name}, operations: {OPERATIONS}, partitions: all}}]\nbranches: {{checks: [counts]}}\n"
    )
    it.branch("eu")
    it.bobs().append(rows("as", 11), snapshot_properties=BLIND)
    it.shop.tower.admin.apply_contract(f"version: 1\nagent: {namespace}_bob\n{contract}")
    with it.shop.agent("ann") as ann, it.shop.client("bob") as bob:
        with ann.intent(it.name, **held("eu")):
            waiting = bob.publish(it.name, "dev", key=(key := new_key()), blind=True)
            assert waiting.waits_on is not None
            bob.report_check(it.name, waiting.waits_on[1], "counts", passed=True)
            assert it.shop.ids() == [1, 2, 10, 11]
        assert bob.publish(it.name, "dev", key=key, blind=True).outcome == "rebased"
    assert it.shop.ids() == [1, 2, 10, 11, 20]
