"""The write-ahead log mediator against real tables. Rows are compared by content, not by the mediator's own logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pytest
from pyspark.sql import SparkSession

from icetower.contracts.check import Touch, Violation, check
from icetower.contracts.document import load
from icetower.contracts.model import Operation
from icetower.contracts.terms import NO_LAYOUT
from icetower.errors import BadRequest
from icetower.iceberg.partitions import spec_of
from icetower.pipelines.tables import iceberg_table, identifier, load_metadata, require_serializable
from icetower.pipelines.wal_logs import Logs
from icetower.pipelines.wal_mediator import Job, Mediation, Window, mediate
from icetower.pipelines.wal_pruning import prune
from tests.pages.page_blocks import blocks_of
from tests.pipelines.wal_world import CONTRACTS, Crash, World, contract, crash_at, once

pytestmark = pytest.mark.spark


@pytest.fixture
def world(spark: SparkSession, fresh: Callable[[], str]) -> World:
    return World(spark, fresh())


def test_batches_are_applied_once_judged_and_written_down(world: World) -> None:
    world.append((1, 1, "k1", "web"), (2, 2, "k2", "till"), (3, 3, "k3", "web"), (4, 1, None, "web"))
    world.append((5, 1, "k1", "web"), (6, 2, "k6", "nobody"))
    first = world.run()
    assert (first.read, first.applied, first.duplicates, first.rejected) == (6, 2, 1, 3)
    assert world.ids() == [1, 2]  # of k1 the row that came first
    assert {row.amount for row in world.spark.table(world.target).collect()} == {Decimal("1.10"), Decimal("2.10")}
    summary = world.summaries()[-1]
    assert summary["icetower.wal.through-snapshot"] == str(first.through_snapshot)
    assert summary["icetower.wal.table-uuid"] == load_metadata(world.spark, world.wal)["table-uuid"]
    assert summary["icetower.idempotency-key"] == summary["icetower.wal.batch"] == first.batch

    world.append((7, 2, "k7", "web"), (8, 2, "k2", "web"))
    second = world.run()
    assert (second.from_snapshot, second.read, second.applied, second.duplicates) == (first.through_snapshot, 2, 1, 1)
    assert world.ids() == [1, 2, 7]
    assert world.run().status == "idle"
    assert len(world.summaries()) == 2

    rejected = {row.rule: row for row in world.log("wal_rejections")}
    assert set(rejected) == {"contract.partitions", "wal.key", "wal.agent"}
    assert json.loads(rejected["contract.partitions"].row)["id"] == 3
    assert rejected["wal.agent"].agent == "nobody"
    (page,) = (block.text for block in blocks_of("docs/mediator.md") if "test_wal_mediator" in block.more)
    listed = world.spark.sql(page.replace("tower.system", world.system)).collect()
    assert {(row.agent, row.rule, row.row) for row in listed} == {
        (row.agent, row.rule, row.row) for row in rejected.values()
    }
    assert sorted((row.agent_id, row.idempotency_key) for row in world.log("agent_dedup_log")) == [
        ("till", "k2"),
        ("web", "k1"),
        ("web", "k7"),
    ]
    assert {row.table_name for row in world.log("agent_dedup_log")} == {str(identifier(world.target))}
    assert sorted(
        (m.rows_read, m.rows_applied, m.rows_duplicate, m.rows_rejected) for m in world.log("wal_mediations")
    ) == [
        (2, 1, 1, 0),
        (6, 2, 1, 3),
    ]
    assert json.loads(json.dumps(second.to_json()))["applied"] == 1


def test_in_shadow_mode_rows_are_judged_and_let_by(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Its rows alone: whose contract is enforced is held to it, and a row without a key is sound for nobody."""
    world.append((1, 1, "k1", "till"), (2, 3, "k2", "web"), (3, 1, None, "till"))
    trying = {**CONTRACTS, "till": replace(CONTRACTS["till"], shadow=True)}
    done = world.run(contracts=trying)
    assert (done.applied, done.rejected) == (1, 2)
    assert world.ids() == [1]
    assert "contract.partitions: contract till doesn't own" in caplog.text
    assert "contract web" not in caplog.text


def test_the_verdict_is_the_one_of_the_contract_check(spark: SparkSession, fresh: Callable[[], str]) -> None:
    """Partitions computed by Spark equal those that manifests hold: the same check on them says the same."""
    namespace = fresh()
    columns = "id BIGINT, at TIMESTAMP, day DATE, word STRING, _idempotency_key STRING"
    spark.sql(f"CREATE TABLE {namespace}.wal ({columns}, _agent STRING) USING iceberg PARTITIONED BY (_agent)")
    spark.sql(
        f"CREATE TABLE {namespace}.target ({columns}) USING iceberg "
        "PARTITIONED BY (bucket(4, id), hours(at), day, truncate(2, word))"
    )
    text = (
        "version: 1\nagent: web\ntables:\n  - table: '**'\n    operations: [append]\n    partitions:\n"
        "      - {id_bucket: [0, 1], at_hour: {from: 2017-01-01, to: 2017-01-02}}\n"
        "      - {day: 2017-02-01, word_trunc: [aa, null]}\n"
    )
    held = load(text, source="test")
    rows = ", ".join(
        f"({i}, timestamp'2017-01-0{1 + i % 2} 23:30:00', date'2017-02-0{1 + i % 3}', "
        f"{'NULL' if i % 5 == 0 else repr(('aab', 'bbc')[i % 2])}, 'k{i}', 'web')"
        for i in range(30)
    )
    spark.sql(f"INSERT INTO {namespace}.wal VALUES {rows}")
    done = mediate(spark, Job(f"{namespace}.wal", f"{namespace}.target", {"web": held}, f"{namespace}.system"))

    # The oracle: let Iceberg itself partition every row, and check what its manifests then say.
    spark.sql(
        f"CREATE TABLE {namespace}.oracle ({columns}) USING iceberg "
        "PARTITIONED BY (bucket(4, id), hours(at), day, truncate(2, word))"
    )
    spark.sql(f"INSERT INTO {namespace}.oracle SELECT id, at, day, word, _idempotency_key FROM {namespace}.wal")
    spec = spec_of(load_metadata(spark, f"{namespace}.oracle"), 0)
    expected: set[int] = set()
    found = spark.table(f"{namespace}.oracle").selectExpr(
        "id", "_partition.id_bucket", "_partition.at_hour", "unix_date(_partition.day)", "_partition.word_trunc"
    )
    for number, *place in found.collect():
        touch = Touch(spec, tuple(place), adds=True, content=0)
        table = identifier(f"{namespace}.target")
        verdict = check(held, table, (touch,), frozenset({Operation.APPEND}), layout=NO_LAYOUT, now_ms=0)
        if not isinstance(verdict, Violation):
            expected.add(number)
    assert 0 < len(expected) < 30
    assert {row.id for row in spark.table(f"{namespace}.target").collect()} == expected
    assert done.rejected == 30 - len(expected)


@pytest.mark.parametrize(
    "step",
    [
        "committed",
        *(pytest.param(step, marks=pytest.mark.sharp) for step in ("planned", "rejections", "keys", "closed")),
    ],
)
def test_a_crash_at_any_step_loses_and_doubles_nothing(world: World, step: str) -> None:
    world.append((1, 1, "k1", "web"), (2, 1, "k2", "till"), (3, 1, "k1", "web"))
    with pytest.raises(Crash):
        world.run(crash_at(step))
    if step == "committed":
        world.append((4, 2, "k4", "web"))  # the log goes on meanwhile
    again = world.run()
    landed = step in ("committed", "keys", "closed")
    assert len(again.settled) == (step in ("committed", "keys"))
    assert again.status == ("idle" if landed and step != "committed" else "applied")
    assert world.ids() == ([1, 4] if step == "committed" else [1])
    assert world.run().status == "idle"
    assert [(row.agent, row.idempotency_key) for row in world.log("wal_rejections")] == [("till", "k2")]
    assert len(world.log("wal_mediations")) == len(world.summaries()) == (2 if step == "committed" else 1)
    expected = {"k1", "k4"} if step == "committed" else {"k1"}
    assert sorted(row.idempotency_key for row in world.log("agent_dedup_log")) == sorted(expected)


def test_r1_two_mediators_from_one_progress_apply_each_row_once(world: World) -> None:
    """Trap R1: a MERGE that only inserts is a blind append unless it is made a row-level operation."""
    world.append((1, 1, "k1", "web"), (2, 2, "k2", "web"))
    others: list[Mediation] = []
    slow = world.run(once("rejections", lambda: others.append(world.run())))
    assert others[0].applied == 2
    assert (slow.status, slow.attempts) == ("idle", 1)
    assert world.ids() == [1, 2]
    assert len(world.log("wal_mediations")) == 1
    assert "spark.merge-into.num-target-rows-inserted" in world.summaries()[-1]


def test_a_slower_mediator_does_not_write_an_older_row_over_a_newer_one(world: World) -> None:
    keys = ("id", "at")
    world.append((1, 1, "k1", "web"))

    def overtaken() -> None:
        world.run(merge_keys=keys)
        world.spark.sql(f"INSERT INTO {world.wal} VALUES (1, timestamp'2017-01-01 05:00:00', 99.00, 'k9', 'web', NULL)")
        world.run(merge_keys=keys)

    slow = world.run(once("rejections", overtaken), merge_keys=keys)
    assert slow.status == "idle"
    rows = world.spark.table(world.target).collect()
    assert [(row.id, row.amount, row._idempotency_key) for row in rows] == [(1, Decimal("99.00"), "k9")]
    world.append((1, 1, "k1", "web"))  # sent again late: the table no longer shows its key, the log of keys does
    assert world.run(merge_keys=keys).duplicates == 1
    assert [row.amount for row in world.spark.table(world.target).collect()] == [Decimal("99.00")]


def test_upserts_take_the_last_row_of_a_batch(world: World) -> None:
    world.append((1, 1, "a", "web"))
    world.spark.sql(f"INSERT INTO {world.wal} VALUES (1, timestamp'2017-01-01 05:00:00', 5.00, 'b', 'web', NULL)")
    done = world.run(merge_keys=("id", "at"))
    assert (done.applied, done.superseded, done.read) == (1, 1, 2)
    assert [row.amount for row in world.spark.table(world.target).collect()] == [Decimal("5.00")]
    with pytest.raises(BadRequest, match="at must be included"):
        world.run(merge_keys=("id",))


def test_rows_that_are_committed_elsewhere_meanwhile_are_not_doubled(world: World) -> None:
    world.append((1, 1, "k1", "web"), (2, 1, "k2", "web"))
    outside = f"INSERT INTO {world.target} VALUES (1, timestamp'2017-01-01 05:00:00', 1.10, 'k1')"
    done = world.run(once("rejections", lambda: world.spark.sql(outside)))
    assert world.ids() == [1, 2]
    assert done.status == "applied"


def test_a_compacted_log_is_not_read_again(world: World) -> None:
    for number in range(1, 4):
        world.append((number, 1, f"k{number}", "web"))
    assert world.run().applied == 3
    world.append((4, 1, "k4", "web"), (5, 1, "k1", "web"))
    world.compact()
    world.append((6, 2, "k6", "web"))
    done = world.run()
    assert (done.read, done.applied, done.duplicates) == (3, 2, 1)
    assert world.ids() == [1, 2, 3, 4, 6]


def test_an_expired_start_is_an_error_with_a_way_out(world: World) -> None:
    world.append((1, 1, "k1", "web"))
    first = world.run()
    for number in (2, 3):
        world.append((number, 1, f"k{number}", "web"))
    # The snapshot itself may go, as long as its child is there; then the child goes too.
    expire = iceberg_table(world.spark, world.wal).expireSnapshots()
    expire.expireSnapshotId(first.through_snapshot).cleanExpiredFiles(False).commit()
    assert world.run(snapshots_max=1).applied == 1
    world.append((4, 1, "k4", "web"))
    table = iceberg_table(world.spark, world.wal)
    table.expireSnapshots().expireSnapshotId(table.currentSnapshot().parentId()).cleanExpiredFiles(False).commit()
    expire = table.expireSnapshots()
    for snapshot in list(load_metadata(world.spark, world.wal)["snapshots"])[:-1]:
        expire = expire.expireSnapshotId(snapshot["snapshot-id"])
    expire.cleanExpiredFiles(False).commit()
    with pytest.raises(BadRequest, match="reread") as told:
        world.run()
    assert told.value.rule == "wal.expired"
    again = world.run(reread=True)
    assert (again.read, again.applied, again.duplicates) == (4, 2, 2)
    assert world.ids() == [1, 2, 3, 4]


def test_rows_deleted_from_the_log_are_an_error(world: World) -> None:
    world.append((1, 1, "k1", "web"))
    world.run()
    world.append((2, 1, "k2", "web"))
    world.append((3, 1, "k3", "web"))
    world.spark.sql(f"DELETE FROM {world.wal} WHERE id = 3")
    with pytest.raises(BadRequest, match=r"only appended to.*--reread") as told:
        world.run()
    assert told.value.rule == "wal.append-only"
    assert world.run(reread=True, merge_keys=("id", "at")).read == 2
    assert world.ids() == [1, 2]


def test_a_batch_without_a_sound_row_moves_the_progress(world: World) -> None:
    assert world.run().status == "idle"
    world.append((1, 1, "k1", "till"))
    done = world.run()
    assert (done.status, done.applied, done.rejected) == ("applied", 0, 1)
    assert world.run().status == "idle"
    assert world.ids() == []


def test_k3_the_key_of_a_batch_stays_out_of_other_statements(world: World) -> None:
    """Trap K3: a snapshot property left in the session would turn later statements into replays."""
    world.append((1, 1, "k1", "web"))
    world.run()
    world.spark.sql(f"INSERT INTO {world.target} VALUES (9, timestamp'2017-01-01 05:00:00', 9.10, 'k9')")
    assert not [name for name in world.summaries()[-1] if name.startswith("icetower.")]


def test_a_window_bounds_where_keys_are_looked_for(world: World) -> None:
    window = Window("at", 3600)
    world.append((1, 1, "k1", "web"))
    world.run(window=window)
    world.append((2, 2, "k2", "web"), (3, 1, "k1", "web"))
    done = world.run(window=window)
    assert (done.applied, done.duplicates) == (1, 1)
    assert world.ids() == [1, 2]


def test_columns_that_came_after_the_last_commit_are_null(spark: SparkSession, fresh: Callable[[], str]) -> None:
    """A table gets its column of keys when its first mediator comes, and its rows have none."""
    world = World(spark, fresh())
    spark.sql(f"ALTER TABLE {world.target} DROP COLUMN _idempotency_key")
    spark.sql(f"INSERT INTO {world.target} VALUES (9, timestamp'2017-01-01 05:00:00', 9.10)")
    spark.sql(f"ALTER TABLE {world.target} ADD COLUMN _idempotency_key STRING")
    world.append((1, 1, "k1", "web"))
    for table in (world.wal, world.target):
        spark.sql(f"ALTER TABLE {table} ADD COLUMN more STRING")
    assert world.run().applied == 1
    assert world.ids() == [1, 9]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("ALTER TABLE {target} ADD COLUMN more STRING", "lacks more"),
        ("ALTER TABLE {wal} ADD COLUMN more STRING", "has more"),
        ("ALTER TABLE {wal} ALTER COLUMN amount TYPE DECIMAL(11,2)", r"decimal\(11,2\)"),
        ("ALTER TABLE {wal} DROP PARTITION FIELD _agent", "nothing proves who wrote a row"),
        ("ALTER TABLE {target} SET TBLPROPERTIES ('write.merge.isolation-level' = 'snapshot')", "serializable"),
        ("ALTER TABLE {target} SET TBLPROPERTIES ('icetower.blind-appends' = 'true')", "Set it to false"),
    ],
)
def test_tables_that_do_not_fit_are_refused(world: World, change: str, message: str) -> None:
    world.append((1, 1, "k1", "web"))
    world.spark.sql(change.format(wal=world.wal, target=world.target))
    with pytest.raises(BadRequest, match=message):
        world.run()
    assert world.ids() == []


@pytest.mark.parametrize("words", ["blind_appends: true", "isolation: snapshot"])
def test_a_contract_under_which_two_mediators_could_double_rows_is_refused(words: str) -> None:
    text = (
        f"version: 1\nagent: merger\ntables:\n  - {{table: shop.*, operations: [append], partitions: all, {words}}}\n"
    )
    own = load(text, source="test")
    with pytest.raises(BadRequest, match=f"contract merger, which has {words}") as refused:
        require_serializable({"properties": {}}, "tower.shop.sales", own)
    assert refused.value.rule == "wal.isolation"
    require_serializable({"properties": {}}, "tower.other.sales", own)


def test_what_was_rejected_can_be_sent_again_whatever_another_mediator_let_by(world: World) -> None:
    """The other one read newer contracts, planned the same batch, and died."""
    world.append((1, 1, "k1", "web"), (2, 3, "k2", "web"))
    newer = {**CONTRACTS, "web": contract("web", "2017-01-01", "2017-01-02", "2017-01-03")}

    def other() -> None:
        with pytest.raises(Crash):
            world.run(crash_at("rejections"), contracts=newer)

    assert world.run(once("rejections", other)).rejected == 1
    assert [row.idempotency_key for row in world.log("wal_rejections")] == ["k2"]
    assert [row.idempotency_key for row in world.log("agent_dedup_log")] == ["k1"]
    world.append((2, 3, "k2", "web"))
    assert world.run(contracts=newer).applied == 1
    assert world.ids() == [1, 2]


def test_a_mediator_that_dies_keeps_its_own_rejections_and_not_those_of_a_rival(world: World) -> None:
    """Keys of rows count as applied unless they were rejected, by the contracts of the mediator that committed."""
    world.append((1, 1, "k1", "web"), (2, 3, "k2", "web"), (3, 3, "k3", "till"))
    stricter = {"web": CONTRACTS["web"]}

    def rival() -> None:  # plans the same batch by other contracts, and dies
        with pytest.raises(Crash):
            world.run(crash_at("rejections"), contracts=stricter)

    def die(step: str) -> None:
        once("rejections", rival)(step)
        crash_at("committed")(step)

    with pytest.raises(Crash):
        world.run(die)
    assert world.run().status == "idle"
    assert world.ids() == [1, 3]
    assert [row.idempotency_key for row in world.log("wal_rejections")] == ["k2"]
    assert sorted(row.idempotency_key for row in world.log("agent_dedup_log")) == ["k1", "k3"]
    plans = [{row.plan for row in world.log(name)} for name in ("wal_mediations", "wal_rejections")]
    assert plans[0] == plans[1] != {None}


def test_a_row_that_was_rejected_does_not_replace_its_successor_once_it_is_granted(world: World) -> None:
    keys = ("id", "at")
    world.append((1, 3, "k1", "web"))  # not granted
    world.append((1, 3, "k2", "till"))
    world.append((2, 3, "k3", "web"))  # not granted
    assert world.run(merge_keys=keys).applied == 1
    world.append((1, 3, "k2", "till"))
    world.append((4, 3, "k4", "till"))
    world.append((5, 3, "k5", "till"))
    world.spark.sql(f"DELETE FROM {world.wal} WHERE id = 5")
    wider = {**CONTRACTS, "web": contract("web", "2017-01-01", "2017-01-02", "2017-01-03")}
    again = world.run(merge_keys=keys, contracts=wider, reread=True)
    assert (again.applied, again.superseded, again.duplicates) == (2, 1, 2)
    found = {row.id: row._idempotency_key for row in world.spark.table(world.target).collect()}
    assert found == {1: "k2", 2: "k3", 4: "k4"}


@pytest.mark.parametrize("log", ["pruned", "new"])
def test_a_row_sent_again_does_not_supersede_what_came_since(world: World, log: str) -> None:
    """The log has no longer the place where the row was applied."""
    keys = ("id", "at")
    world.append((1, 3, "k1", "till"))
    assert world.run(merge_keys=keys).applied == 1
    if log == "pruned":
        assert prune(world.spark, world.wal, [world.target], Logs(world.spark, world.system), keep_s=-60).rows == 1
    else:
        world.spark.sql(f"DROP TABLE {world.wal}")
        world.create_log()
    world.append((1, 3, "k2", "till"))
    world.append((1, 3, "k1", "till"))
    if log == "pruned":
        world.append((9, 3, "k9", "till"))
        world.spark.sql(f"DELETE FROM {world.wal} WHERE id = 9")
    again = world.run(merge_keys=keys, reread=True)
    assert (again.applied, again.superseded, again.duplicates) == (1, 0, 1)
    assert [row._idempotency_key for row in world.spark.table(world.target).collect()] == ["k2"]


@pytest.mark.parametrize("dies", [False, True])
def test_of_two_commits_without_rows_one_keeps_its_rejections(world: World, dies: bool) -> None:
    world.append((1, 3, "k1", "web"))

    def rival() -> None:
        if dies:
            with pytest.raises(Crash):
                world.run(crash_at("committed"))
        else:
            world.run()

    world.run(once("rejections", rival))
    assert world.run().status == "idle"
    assert [row.idempotency_key for row in world.log("wal_rejections")] == ["k1"]
    assert {row.plan for row in world.log("wal_rejections")} == {row.plan for row in world.log("wal_mediations")}


def test_columns_may_have_names_that_the_job_might_use(world: World) -> None:
    """Debezium writes `__deleted`."""
    for table in (world.wal, world.target):
        world.spark.sql(f"ALTER TABLE {table} ADD COLUMNS (__deleted STRING, __row INT)")
    values = "VALUES (1, timestamp'2017-01-01 05:00:00', 'k1', 'web', 'no', 7), (2, NULL, 'k2', 'web', 'no', 8)"
    world.spark.sql(f"INSERT INTO {world.wal} (id, at, _idempotency_key, _agent, __deleted, __row) {values}")
    assert world.run().applied == 1
    assert [(row["__deleted"], row["__row"]) for row in world.spark.table(world.target).collect()] == [("no", 7)]
    assert [json.loads(row.row)["__row"] for row in world.log("wal_rejections")] == [8]
    for table in (world.wal, world.target):
        world.spark.sql(f"ALTER TABLE {table} RENAME COLUMN __row TO _icetower_row")
    with pytest.raises(BadRequest, match="_icetower_row"):
        world.run()
