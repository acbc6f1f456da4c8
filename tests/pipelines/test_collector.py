"""The collector against real tables. An oracle that knows every change, in order, says what the table holds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from icetower.agent import merged_view as merged_view_of_pyiceberg
from icetower.contracts.document import load
from icetower.contracts.model import Contract
from icetower.errors import BadRequest
from icetower.pipelines.collector import collect, compact, merged_view
from icetower.pipelines.tables import iceberg_table, load_metadata
from icetower.pipelines.wal_mediator import Job, Mediation
from tests.pipelines.clocks import Later
from tests.pipelines.wal_world import Crash, crash_at, once

pytestmark = pytest.mark.spark


def contract(agent: str, *stores: int) -> Contract:
    return load(
        f"version: 1\nagent: {agent}\ntables:\n  - table: '**'\n    operations: [append, overwrite]\n"
        f"    partitions: [{{store: [{', '.join(map(str, stores))}]}}]\n    pattern: collector\n",
        source="test",
    )


STORES = {"web": (1, 2), "till": (2, 3)}
CONTRACTS = {agent: contract(agent, *stores) for agent, stores in STORES.items()}
MERGE_ON_READ = ", ".join(f"'write.{kind}.mode' = 'merge-on-read'" for kind in ("delete", "update", "merge"))
COLUMNS = "store INT, id BIGINT, amount INT, _event_time TIMESTAMP, _idempotency_key STRING"
Row = tuple[int, int, int | None]


class Change(NamedTuple):
    """`second`: the event time, counted from the start of 2026."""

    second: int
    key: str
    store: int = 1
    id: int = 1
    amount: int | None = 0
    operation: str = "upsert"
    agent: str = "web"


def oracle(changes: Iterable[Change]) -> list[Row]:
    """The rows after all changes, which are in the order of the delta table's commits."""
    keys, last = set[str](), dict[tuple[int, int], Change]()
    for change in changes:
        if change.store not in STORES.get(change.agent, ()) or change.operation not in ("upsert", "delete"):
            continue
        if change.key in keys:
            continue
        keys.add(change.key)
        place = (change.store, change.id)
        if place not in last or last[place].second <= change.second:
            last[place] = change
    return sorted((each.store, each.id, each.amount) for each in last.values() if each.operation == "upsert")


class Place:
    """A delta table and its target in a namespace of their own."""

    def __init__(self, spark: SparkSession, namespace: str, properties: str = MERGE_ON_READ, version: int = 3) -> None:
        self.spark = spark
        self.deltas, self.target, self.system = f"{namespace}.t_deltas", f"{namespace}.t", f"{namespace}.system"
        spark.sql(
            f"CREATE TABLE {self.deltas} ({COLUMNS}, _operation STRING, _agent STRING) USING iceberg "
            "PARTITIONED BY (_agent) TBLPROPERTIES ('format-version' = '3')"
        )
        spark.sql(
            f"CREATE TABLE {self.target} ({COLUMNS}) USING iceberg PARTITIONED BY (store) "
            f"TBLPROPERTIES ('format-version' = '{version}', 'commit.retry.num-retries' = '2', {properties})"
        )
        self.job = Job(self.deltas, self.target, CONTRACTS, self.system, merge_keys=("store", "id"))
        self.sent: list[Change] = []

    def send(self, *changes: Change) -> None:
        """One commit."""
        self.sent += changes
        self.spark.sql(
            f"INSERT INTO {self.deltas} VALUES "
            + ", ".join(
                f"({c.store}, {c.id}, {'NULL' if c.amount is None else c.amount}, "
                f"timestamp'2026-01-01 00:00:00' + make_interval(0, 0, 0, 0, 0, 0, {c.second}), '{c.key}', "
                f"'{c.operation}', '{c.agent}')"
                for c in changes
            )
        )

    def run(self, after: Callable[[str], None] | None = None, **changes: Any) -> Mediation:
        job = replace(self.job, **changes)
        return collect(self.spark, job) if after is None else collect(self.spark, job, after=after)

    def rows(self) -> list[Row]:
        return self._rows(self.spark.table(self.target))

    def view(self, contracts: dict[str, Contract] | None = CONTRACTS) -> list[Row]:
        return self._rows(
            merged_view(
                self.spark,
                self.target,
                self.deltas,
                self.job.merge_keys,
                contracts=contracts,
                system=self.system,
            )
        )

    def pyiceberg_view(self) -> list[Row]:
        """The same for a reader with PyIceberg, which asks no contracts."""
        rows = self.pyiceberg_view_of(self.job.merge_keys)
        return sorted((row["store"], row["id"], row["amount"]) for row in rows)

    def pyiceberg_view_of(self, keys: tuple[str, ...]) -> list[dict[str, Any]]:
        target, deltas, log = (
            self._pyiceberg(name) for name in (self.target, self.deltas, f"{self.system}.agent_dedup_log")
        )
        assert target is not None
        assert deltas is not None
        return merged_view_of_pyiceberg(target, deltas, keys, dedup_log=log).to_pylist()

    def _pyiceberg(self, name: str) -> StaticTable | None:
        if not self.spark.catalog.tableExists(name):
            return None
        table = iceberg_table(self.spark, name)
        return StaticTable.from_metadata(table.operations().current().metadataFileLocation())

    def _rows(self, frame: Any) -> list[Row]:
        return sorted((row.store, row.id, row.amount) for row in frame.select("store", "id", "amount").collect())

    def compact_deltas(self) -> None:
        name = self.deltas.partition(".")[2]
        self.spark.sql(
            f"CALL tower.system.rewrite_data_files(table => '{name}', strategy => 'sort', "
            "sort_order => 'amount DESC', options => map('rewrite-all', 'true'))"
        )

    def expire_deltas(self) -> None:
        expire = iceberg_table(self.spark, self.deltas).expireSnapshots()
        for snapshot in load_metadata(self.spark, self.deltas)["snapshots"][:-1]:
            expire = expire.expireSnapshotId(snapshot["snapshot-id"])
        expire.cleanExpiredFiles(False).commit()


@pytest.fixture
def place(spark: SparkSession, fresh: Callable[[], str]) -> Place:
    return Place(spark, fresh())


def test_the_last_event_wins_whenever_it_comes_and_deletes_stay_deletes(place: Place) -> None:
    place.send(Change(10, "a", amount=1), Change(10, "b", id=2, amount=2), Change(10, "x", store=3, amount=9))
    place.send(Change(20, "c", id=2, operation="delete", amount=None), Change(30, "d", id=3, operation="truncate"))
    assert place.view() == oracle(place.sent) == [(1, 1, 1)]
    first = place.run()
    assert (first.read, first.applied, first.superseded, first.rejected) == (5, 2, 1, 2)
    assert place.rows() == place.view() == [(1, 1, 1)]
    place.send(
        Change(15, "e", id=2, amount=7), Change(5, "f", amount=8), Change(10, "g", amount=3)
    )  # late, late, a tie
    assert place.view() == place.pyiceberg_view() == oracle(place.sent) == [(1, 1, 3)]
    assert (second := place.run()).superseded == 2
    assert second.applied == 1
    place.send(Change(25, "h", id=2, amount=5), Change(10, "g", amount=3), Change(40, "i", operation="delete"))
    assert (third := place.run()).duplicates == 1
    assert third.applied == 2
    assert place.rows() == place.view() == oracle(place.sent) == [(1, 2, 5)]
    rejected = place.spark.table(f"{place.system}.wal_rejections").collect()
    assert sorted(row.rule for row in rejected) == ["collect.operation", "contract.partitions"]
    files = place.spark.sql(f"SELECT file_format FROM {place.target}.delete_files").collect()
    assert {row.file_format for row in files} == {"PUFFIN"}
    compact(place.spark, place.target)
    assert place.rows() == [(1, 2, 5)]
    assert place.spark.table(f"{place.target}.delete_files").isEmpty()
    place.send(Change(1, "j", operation="delete"), Change(1, "k", id=2, amount=0))  # nothing changes, it is progress
    assert place.run().superseded == 1
    assert place.rows() == [(1, 2, 5)]
    assert place.run().status == "idle"


@pytest.mark.parametrize(
    "step",
    [
        "committed",
        *(pytest.param(step, marks=pytest.mark.sharp) for step in ("planned", "rejections", "keys", "closed")),
    ],
)
def test_a_crash_at_any_step_loses_and_doubles_nothing(place: Place, step: str) -> None:
    place.send(Change(10, "a", amount=1), Change(12, "b", operation="delete"), Change(5, "c", id=2, amount=2))
    with pytest.raises(Crash):
        place.run(crash_at(step))
    place.send(Change(11, "d", amount=4), Change(6, "e", id=2, amount=5), Change(5, "c", id=2, amount=2))
    assert place.view() == oracle(place.sent) == [(1, 2, 5)]
    place.run()
    assert place.rows() == place.view() == [(1, 2, 5)]
    assert place.run().status == "idle"


def test_two_collectors_at_once_fold_each_change_once(place: Place) -> None:
    place.send(Change(10, "a", amount=1), Change(10, "b", id=2, amount=2))
    place.run()
    place.send(Change(20, "c", amount=3), Change(20, "d", id=2, operation="delete"))
    others: list[Mediation] = []
    mine = place.run(once("planned", lambda: others.append(place.run())))
    assert (others[0].applied, mine.status) == (2, "idle")
    assert place.rows() == [(1, 1, 3)]


@pytest.mark.sharp
def test_the_delta_table_is_compacted_and_its_snapshots_expire(place: Place) -> None:
    place.send(Change(10, "a", amount=1))
    place.send(Change(20, "b", operation="delete"))
    place.run()
    place.send(Change(30, "c", id=2, amount=1))
    place.send(Change(30, "d", id=2, amount=0))
    place.send(Change(15, "e", amount=9))
    place.compact_deltas()
    place.expire_deltas()
    with pytest.raises(BadRequest) as caught:
        place.run()
    assert caught.value.rule == "wal.expired"
    assert place.view() == oracle(place.sent) == [(1, 2, 0)]
    place.run(reread=True)
    assert place.rows() == place.view() == [(1, 2, 0)]


@pytest.mark.parametrize("last", ["upsert", "delete"])
def test_a_change_that_was_rejected_does_not_replace_its_successor_once_it_is_granted(place: Place, last: str) -> None:
    place.send(Change(5, "a", store=3, agent="till"))
    place.send(Change(10, "b", store=3, amount=1))  # not granted
    place.send(Change(10, "c", store=3, amount=2, operation=last, agent="till"))
    place.run()
    place.send(Change(10, "d", id=9))
    place.spark.sql(f"DELETE FROM {place.deltas} WHERE id = 9")
    wider = {**CONTRACTS, "web": contract("web", 1, 2, 3)}
    again = place.run(contracts=wider, reread=True)
    assert (again.applied, again.superseded, again.duplicates) == (0, 1, 2)
    assert place.rows() == ([(3, 1, 2)] if last == "upsert" else [])


def test_a_delete_that_was_folded_counts_whatever_became_of_its_agents_contract(place: Place) -> None:
    place.send(Change(10, "a", store=2, amount=1), Change(30, "b", store=2, operation="delete"))
    place.run()
    place.send(Change(20, "c", store=2, amount=9, agent="till"))
    revoked = {"till": CONTRACTS["till"]}
    assert place.view(revoked) == []
    assert (place.run(contracts=revoked).superseded, place.rows()) == (1, [])


def test_a_delete_that_was_rejected_does_not_count_once_it_would_be_granted(place: Place) -> None:
    place.send(Change(1, "a", store=3, amount=1, agent="till"))
    place.send(Change(30, "b", store=3, operation="delete"))  # not granted
    assert place.run().rejected == 1
    place.send(Change(20, "c", store=3, amount=9, agent="till"))
    wider = {**CONTRACTS, "web": contract("web", 1, 2, 3)}
    assert place.view(wider) == [(3, 1, 9)]
    assert (place.run(contracts=wider).applied, place.rows()) == (1, [(3, 1, 9)])


def test_times_without_a_zone_are_compared_as_they_are(spark: SparkSession, fresh: Callable[[], str]) -> None:
    """In Berlin, 03:10 is before 02:30 on the day on which clocks go forward."""
    namespace = fresh()
    target, deltas, keys = f"{namespace}.t", f"{namespace}.d", ("store", "id")
    columns = "store INT, id BIGINT, _event_time TIMESTAMP_NTZ, _idempotency_key STRING"
    for name, more in ((target, ""), (deltas, ", _operation STRING, _agent STRING")):
        by = "_agent" if more else "store"
        properties = f"'format-version' = '3', {MERGE_ON_READ}"
        spark.sql(
            f"CREATE TABLE {name} ({columns}{more}) USING iceberg PARTITIONED BY ({by}) TBLPROPERTIES ({properties})"
        )
    job = Job(deltas, target, CONTRACTS, f"{namespace}.system", merge_keys=keys)
    sent = [
        (1, "2026-03-29 03:10:00", "delete"),
        (2, "-0044-03-15 12:00:00", "upsert"),
        (3, "+12026-01-01 00:00:00", "delete"),
    ]
    for number, time, operation in sent:
        spark.sql(
            f"INSERT INTO {deltas} VALUES (1, {number}, timestamp_ntz'{time}', 'k{number}', '{operation}', 'web')"
        )
    collect(spark, job)
    late = (
        "1, timestamp_ntz'2026-03-29 02:30:00', 'l1'",
        "2, timestamp_ntz'-0044-03-14 12:00:00', 'l2'",
        "3, timestamp_ntz'+12025-01-01 00:00:00', 'l3'",
    )
    for each in late:
        spark.sql(f"INSERT INTO {deltas} VALUES (1, {each}, 'upsert', 'web')")
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        view = merged_view(spark, target, deltas, keys, system=job.system)
        seen = [row._idempotency_key for row in view.select("_idempotency_key").collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    collect(spark, job)
    assert seen == [row._idempotency_key for row in spark.table(target).select("_idempotency_key").collect()] == ["k2"]


def test_zeros_of_both_signs_are_one_key(spark: SparkSession, fresh: Callable[[], str]) -> None:
    namespace = fresh()
    place = Place.__new__(Place)
    place.spark, place.system = spark, f"{namespace}.system"
    place.target, place.deltas = f"{namespace}.t", f"{namespace}.d"
    columns = "x DOUBLE, amount INT, _event_time TIMESTAMP, _idempotency_key STRING"
    properties = f"TBLPROPERTIES ('format-version' = '3', {MERGE_ON_READ})"
    spark.sql(f"CREATE TABLE {place.target} ({columns}) USING iceberg {properties}")
    spark.sql(
        f"CREATE TABLE {place.deltas} ({columns}, _operation STRING, _agent STRING) USING iceberg "
        f"PARTITIONED BY (_agent) {properties}"
    )
    text = "version: 1\nagent: web\ntables:\n  - {table: '**', operations: [overwrite], partitions: all}\n"
    contracts = {"web": load(text, source="test")}
    place.job = Job(place.deltas, place.target, contracts, place.system, merge_keys=("x",))

    def views() -> list[list[int]]:
        one = merged_view(spark, place.target, place.deltas, ("x",), contracts=contracts, system=place.system)
        other = place.pyiceberg_view_of(("x",))
        return [sorted(row.amount for row in one.collect()), sorted(row["amount"] for row in other)]

    for x, amount, second, operation in (
        ("0.0", 1, 10, "upsert"), ("NaN", 2, 10, "upsert"), ("-0.0", 3, 11, "upsert"), ("0.0", 4, 12, "upsert"),
        ("-0.0", 0, 13, "delete"), ("NaN", 0, 13, "delete"),
    ):  # fmt: skip
        values = f"double('{x}'), {amount}, timestamp'2026-01-01 00:00:{second}', '{x}{second}', '{operation}', 'web'"
        spark.sql(f"INSERT INTO {place.deltas} VALUES ({values})")
        seen = views()
        if x != "NaN":
            place.run()
            seen.append(sorted(row.amount for row in spark.table(place.target).collect()))
        assert all(each == seen[0] for each in seen), (x, seen)
    assert seen[0] == []


@pytest.mark.parametrize(("properties", "version"), [(MERGE_ON_READ, 2), ("'write.merge.mode' = 'copy-on-write'", 3)])
def test_a_target_that_has_no_deletion_vectors_is_refused(
    spark: SparkSession, fresh: Callable[[], str], properties: str, version: int
) -> None:
    place = Place(spark, fresh(), properties, version)
    place.send(Change(10, "a"))
    with pytest.raises(BadRequest) as caught:
        place.run()
    assert caught.value.rule == "collect.target"
    statement = caught.value.message.partition("Run once: ")[2].replace("ALTER TABLE ", "ALTER TABLE tower.")
    spark.sql(statement)
    assert place.run().applied == 1


def test_columns_that_are_missing_are_named(place: Place) -> None:
    place.spark.sql(f"ALTER TABLE {place.target} DROP COLUMN _event_time")
    with pytest.raises(BadRequest, match="ADD COLUMN _event_time TIMESTAMP"):
        place.run()


def test_a_delete_that_was_rejected_hides_nothing(place: Place) -> None:
    place.send(Change(20, "a", operation="delete", agent="till"))  # not its store
    assert place.run().rejected == 1
    place.send(Change(10, "c", amount=1))
    assert place.run().applied == 1
    assert place.rows() == place.view() == [(1, 1, 1)]


def test_a_delete_hides_older_upserts_however_long_ago_all_of_it_was(place: Place) -> None:
    """Histories are folded, too: what counts is which event came later, and not when the job runs."""
    place.send(Change(20, "b", operation="delete"))
    place.run()
    place.send(Change(10, "d", amount=2))
    assert place.view() == place.pyiceberg_view() == []
    assert collect(place.spark, place.job, ambient=Later(40 * 366 * 86_400)).superseded == 1
    assert place.rows() == []


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.sharp if seed < 1 else pytest.mark.matrix) for seed in range(6)]
)
def test_the_view_before_a_fold_is_the_table_after_it(place: Place, seed: int) -> None:
    """Random histories: few rows, few times, keys sent again, others' rows, crashes, compactions."""
    dice = random.Random(seed)
    for turn in range(4):
        for _ in range(dice.randint(1, 3)):
            fresh = [
                Change(
                    dice.randint(0, 6),
                    f"{turn}-{len(place.sent)}-{n}",
                    store=dice.randint(1, 3),
                    id=dice.randint(1, 3),
                    amount=dice.randint(0, 99),
                    operation=dice.choice(("upsert", "upsert", "delete")),
                    agent="web",
                )
                for n in range(dice.randint(1, 6))
            ]
            place.send(*fresh, *dice.sample(place.sent, min(len(place.sent), dice.randint(0, 2))))
        if dice.random() < 0.3:
            place.compact_deltas()
        expected = oracle(place.sent)
        assert place.view() == expected
        assert place.pyiceberg_view() == place.view(contracts=None)
        if dice.random() < 0.4:
            with pytest.raises(Crash):
                place.run(crash_at(dice.choice(("planned", "committed", "keys"))))
            assert place.view() == expected
        place.run()
        assert place.rows() == place.view() == place.pyiceberg_view() == expected


def test_changes_that_a_rollback_took_back_are_in_the_view(place: Place) -> None:
    place.send(Change(1, "a", amount=1))
    place.run()
    before = load_metadata(place.spark, place.target)["current-snapshot-id"]
    place.send(Change(2, "b", id=2, amount=2), Change(3, "c", amount=3))
    place.run()
    name = place.target.partition(".")[2]
    place.spark.sql(f"CALL tower.system.rollback_to_snapshot('{name}', {before})")
    assert place.view() == place.pyiceberg_view() == oracle(place.sent)
    place.run()
    assert place.rows() == oracle(place.sent)


def test_a_change_with_a_blank_key_is_in_no_view(place: Place) -> None:
    place.send(Change(1, "a", amount=1))
    place.run()
    place.send(Change(5, " ", amount=9), Change(60, "", id=2, operation="delete"), Change(7, "b", id=2, amount=2))
    assert place.pyiceberg_view() == place.view() == [(1, 1, 1), (1, 2, 2)]
    place.run()
    assert place.rows() == [(1, 1, 1), (1, 2, 2)]


def test_events_of_years_that_python_does_not_know_are_folded(place: Place) -> None:
    place.spark.sql(
        f"INSERT INTO {place.deltas} VALUES (1, 1, 1, timestamp'-0044-03-15 00:00:00', 'a', 'upsert', 'web'), "
        "(1, 2, 2, timestamp'+20000-03-15 00:00:00', 'b', 'upsert', 'web')"
    )
    assert place.run().applied == 2
    assert place.rows() == [(1, 1, 1), (1, 2, 2)]
