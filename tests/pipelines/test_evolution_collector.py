"""Delta tables and targets that change under a collector: between two runs, and at each step of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

from icetower.pipelines.collector import Fold, collect, merged_view
from icetower.pipelines.wal_mediator import Job
from tests.pipelines.evolution import BEFORE, Change, alter, rule_of
from tests.pipelines.test_collector import CONTRACTS, MERGE_ON_READ
from tests.pipelines.wal_world import once

pytestmark = pytest.mark.spark

STEPS = [BEFORE, "read", "planned", "rejections", "committed", "keys"]
COLUMNS = (
    "store INT NOT NULL, id INT, amount INT, price DECIMAL(9,2), place STRUCT<x: INT, y: INT>, "
    "_event_time TIMESTAMP, _idempotency_key STRING"
)


class Row(NamedTuple):
    """A change; its values follow from `number`. `second`: its event time."""

    number: int
    second: int
    id: int
    operation: str = "upsert"

    @property
    def values(self) -> tuple[int, str, tuple[int, int]]:
        return self.number, f"{self.number}.25", (self.number, -self.number)


class Place:
    """A delta table and its target, with a struct and a decimal; what was sent, for an oracle in plain Python."""

    def __init__(self, spark: SparkSession, namespace: str) -> None:
        self.spark = spark
        self.tables = {"deltas": f"{namespace}.t_deltas", "target": f"{namespace}.t"}
        deltas, target = self.tables["deltas"], self.tables["target"]
        spark.sql(
            f"CREATE TABLE {deltas} ({COLUMNS}, _operation STRING, _agent STRING) USING iceberg "
            "PARTITIONED BY (_agent) TBLPROPERTIES ('format-version' = '3')"
        )
        spark.sql(
            f"CREATE TABLE {target} ({COLUMNS}) USING iceberg PARTITIONED BY (store) "
            f"TBLPROPERTIES ('format-version' = '3', {MERGE_ON_READ})"
        )
        self.job = Job(deltas, target, CONTRACTS, f"{namespace}.system", merge_keys=("store", "id"))
        self.names: dict[str, str] = {}
        self.sent: list[Row] = []

    def send(self, *rows: Row) -> None:
        """One commit, with the names that the columns have now."""
        self.sent += rows
        there = self.spark.table(self.tables["deltas"]).columns
        values: dict[str, Callable[[Row], str]] = {
            "store": lambda _: "1",
            "id": lambda row: str(row.id),
            "amount": lambda row: str(row.number),
            "price": lambda row: f"{row.number}.25",
            "place": lambda row: self._place(row),
            "_event_time": lambda row: f"timestamp_seconds({row.second})",
            "_idempotency_key": lambda row: f"'k{row.number}'",
            "_operation": lambda row: f"'{row.operation}'",
            "_agent": lambda _: "'web'",
        }
        named = {name if name in there else self.names.get(name, name): made for name, made in values.items()}
        named = {name: made for name, made in named.items() if name in there}
        rows_sql = ", ".join(f"({', '.join(made(row) for made in named.values())})" for row in rows)
        self.spark.sql(f"INSERT INTO {self.tables['deltas']} ({', '.join(named)}) VALUES {rows_sql}")

    def _place(self, row: Row) -> str:
        kind: Any = self.spark.table(self.tables["deltas"]).schema["place"].dataType
        of = {"x": str(row.number), "y": str(-row.number)}
        fields = (f"'{each.name}', {of.get(each.name, 'NULL')}" for each in kind.fields)
        return f"named_struct({', '.join(fields)})"

    def expected(self) -> list[tuple[int, int, str, tuple[int, int]]]:
        last: dict[int, Row] = {}
        for row in self.sent:
            if row.id not in last or last[row.id].second <= row.second:
                last[row.id] = row
        return sorted((row.id, *row.values) for row in last.values() if row.operation == "upsert")

    def rows(self, frame: DataFrame) -> list[tuple[Any, ...]]:
        name = {each: each if each in frame.columns else self.names.get(each, each) for each in ("id", "amount")}
        found: list[tuple[Any, ...]] = []
        for row in frame.collect():
            price = str(row.price) if "price" in frame.columns else None
            found.append((row[name["id"]], row[name["amount"]], price, (row.place.x, row.place.y)))
        return sorted(found)

    def run(self, after: Callable[[str], None]) -> str | None:
        return rule_of(lambda: collect(self.spark, self.job, after=after))

    def view(self) -> list[tuple[Any, ...]]:
        job = self.job
        view = merged_view(self.spark, job.target, job.wal, job.merge_keys, contracts=CONTRACTS, system=job.system)
        return self.rows(view)


BOTH = ("{target}", "{deltas}")
CHANGES = {
    "a column more in both": Change(tuple(f"{each} ADD COLUMN more STRING" for each in BOTH)),
    "a column more in the target first": Change(
        ("{target} ADD COLUMN more STRING",), ("{deltas} ADD COLUMN more STRING",), "wal.columns"
    ),
    "a column more in the deltas first": Change(
        ("{deltas} ADD COLUMN more STRING",), ("{target} ADD COLUMN more STRING",), "wal.columns"
    ),
    "a column less in both": Change(tuple(f"{each} DROP COLUMN price" for each in BOTH)),
    "a column less in the target first": Change(
        ("{target} DROP COLUMN price",), ("{deltas} DROP COLUMN price",), "wal.columns"
    ),
    "a column less in the deltas first": Change(
        ("{deltas} DROP COLUMN price",), ("{target} DROP COLUMN price",), "wal.columns"
    ),
    "another name in both": Change(
        tuple(f"{each} RENAME COLUMN amount TO sum" for each in BOTH), names={"amount": "sum"}
    ),
    "another name in the target first": Change(
        ("{target} RENAME COLUMN amount TO sum",),
        ("{deltas} RENAME COLUMN amount TO sum",),
        "wal.columns",
        {"amount": "sum"},
    ),
    "another name in the deltas first": Change(
        ("{deltas} RENAME COLUMN amount TO sum",),
        ("{target} RENAME COLUMN amount TO sum",),
        "wal.columns",
        {"amount": "sum"},
    ),
    "another name of a key": Change(
        tuple(f"{each} RENAME COLUMN id TO item" for each in BOTH), (), "wal.merge-keys", {"id": "item"}
    ),
    "a wider integer": Change(tuple(f"{each} ALTER COLUMN amount TYPE BIGINT" for each in BOTH)),
    "a wider integer in the deltas first": Change(
        ("{deltas} ALTER COLUMN amount TYPE BIGINT",), ("{target} ALTER COLUMN amount TYPE BIGINT",), "wal.columns"
    ),
    "a wider key": Change(tuple(f"{each} ALTER COLUMN id TYPE BIGINT" for each in BOTH)),
    "a wider decimal": Change(tuple(f"{each} ALTER COLUMN price TYPE DECIMAL(18,2)" for each in BOTH)),
    "a column made optional": Change(tuple(f"{each} ALTER COLUMN store DROP NOT NULL" for each in BOTH)),
    "a nested field more in both": Change(tuple(f"{each} ADD COLUMN place.z INT" for each in BOTH)),
    "a nested field more in the target first": Change(
        ("{target} ADD COLUMN place.z INT",), ("{deltas} ADD COLUMN place.z INT",), "wal.columns"
    ),
    "a nested field more in the deltas first": Change(
        ("{deltas} ADD COLUMN place.z INT",), ("{target} ADD COLUMN place.z INT",), "wal.columns"
    ),
    "nested fields in another order": Change(tuple(f"{each} ALTER COLUMN place.y FIRST" for each in BOTH)),
    "columns in another order": Change(tuple(f"{each} ALTER COLUMN price FIRST" for each in BOTH)),
    "a partition field more": Change(("{target} ADD PARTITION FIELD bucket(4, id)",)),
    "a partition field that is no key": Change(
        ("{target} ADD PARTITION FIELD amount",), ("{target} DROP PARTITION FIELD amount",), "wal.merge-keys"
    ),
    "a partition field of the deltas more": Change(("{deltas} ADD PARTITION FIELD bucket(2, id)",)),
    "no partition field of agents": Change(
        ("{deltas} REPLACE PARTITION FIELD _agent WITH bucket(2, _agent)",),
        ("{deltas} REPLACE PARTITION FIELD _agent_bucket_2 WITH _agent",),
        "wal.partitioning",
    ),
    "a sort order": Change(("{target} WRITE ORDERED BY amount", "{deltas} WRITE ORDERED BY amount")),
    "copy-on-write": Change(
        ("{target} SET TBLPROPERTIES ('write.merge.mode' = 'copy-on-write')",),
        ("{target} SET TBLPROPERTIES ('write.merge.mode' = 'merge-on-read')",),
        "collect.target",
    ),
}

FULL = ("another name of a key", BEFORE)
MATRIX = [
    ("a column more in the deltas first", "planned"),
    ("a nested field more in both", BEFORE),
    *((name, step) for name in CHANGES for step in STEPS),
]


@pytest.fixture
def place(spark: SparkSession, fresh: Callable[[], str]) -> Place:
    return Place(spark, fresh())


def hooked(monkeypatch: pytest.MonkeyPatch, step: str, work: Callable[[], object]) -> Callable[[str], None]:
    """At `read` a run has loaded both tables and not read them."""
    hook = once(step, work)
    if step == "read":
        loaded = Fold._next

        def then(run: Fold, *tables: Any) -> Any:
            hook("read")
            return loaded(run, *tables)

        monkeypatch.setattr(Fold, "_next", then)
    return hook


@pytest.mark.parametrize(
    ("name", "step"),
    [FULL, *(pytest.param(*each, marks=pytest.mark.matrix) for each in dict.fromkeys(MATRIX) if each != FULL)],
)
def test_what_changes_under_a_collector_loses_nothing_and_mixes_nothing_up(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str, step: str
) -> None:
    change = CHANGES[name]
    place.send(Row(1, 10, 1), Row(2, 10, 2), Row(3, 30, 3, "delete"))
    assert place.run(lambda _: None) is None
    place.send(Row(4, 20, 1), Row(5, 25, 3), Row(6, 5, 2), Row(7, 20, 4))  # newer, older than a delete, older, new
    if step == BEFORE:
        alter(place.spark, change.under_way, place.tables)
    place.names = dict(change.names)
    rules = {place.run(hooked(monkeypatch, step, lambda: alter(place.spark, change.under_way, place.tables)))}
    if change.refused != "wal.partitioning":  # rows that nothing shows the writer of are rejected for ever
        place.send(Row(8, 40, 4), Row(9, 50, 5))
    rules.add(place.run(lambda _: None))
    assert rules - {None} == {change.refused} - {None} or (step in ("committed", "keys") and not change.refused)
    alter(place.spark, change.after, place.tables)
    keys = tuple(place.names.get(key, key) for key in place.job.merge_keys)
    place.job = replace(place.job, merge_keys=keys)
    place.send(Row(10, 60, 6))
    gone = "price" not in place.spark.table(place.tables["target"]).columns
    expected = [(i, amount, None if gone else price, at) for i, amount, price, at in place.expected()]
    assert place.view() == expected
    for _ in range(3):
        assert place.run(lambda _: None) is None
    assert place.view() == place.rows(place.spark.table(place.tables["target"])) == expected
