"""A log and its target, and mediators that crash or are overtaken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from icetower.contracts.document import load
from icetower.contracts.model import Contract
from icetower.pipelines.tables import iceberg_table, load_metadata
from icetower.pipelines.wal_mediator import Job, Mediation, mediate


def contract(agent: str, *buckets_of_days: str) -> Contract:
    days = ", ".join(buckets_of_days)
    return load(
        f"version: 1\nagent: {agent}\ntables:\n  - table: '**'\n    operations: [append, overwrite]\n"
        f"    partitions:\n      - d_day: [{days}]\n",
        source="test",
    )


CONTRACTS = {"web": contract("web", "2017-01-01", "2017-01-02"), "till": contract("till", "2017-01-02", "2017-01-03")}
COLUMNS = "id BIGINT, at TIMESTAMP, amount DECIMAL(9,2), _idempotency_key STRING"


class World:
    """A log and its target in a namespace of their own."""

    def __init__(self, spark: SparkSession, namespace: str, properties: str = "", *, log_version: int = 2) -> None:
        self.spark = spark
        self.wal, self.target, self.system = f"{namespace}.wal", f"{namespace}.target", f"{namespace}.system"
        self.create_log(log_version)
        spark.sql(
            f"CREATE TABLE {self.target} ({COLUMNS}) USING iceberg PARTITIONED BY (days(at)) "
            f"TBLPROPERTIES ('commit.retry.num-retries' = '2'{properties})"
        )
        spark.sql(f"ALTER TABLE {self.target} REPLACE PARTITION FIELD days(at) WITH days(at) AS d_day")
        self.job = Job(self.wal, self.target, CONTRACTS, self.system)

    def create_log(self, version: int = 2) -> None:
        self.spark.sql(
            f"CREATE TABLE {self.wal} ({COLUMNS}, _agent STRING, _written_at TIMESTAMP) USING iceberg "
            f"PARTITIONED BY (_agent) TBLPROPERTIES ('format-version' = '{version}')"
        )

    def append(self, *rows: tuple[int, int, str | None, str]) -> None:
        """(id, day of January 2017, key, agent)."""
        keyed = [(i, day, "NULL" if key is None else repr(key), agent) for i, day, key, agent in rows]
        self._insert(
            f"({i}, timestamp'2017-01-0{day} 05:00:00', {i}.10, {key}, '{agent}', NULL)" for i, day, key, agent in keyed
        )

    def versions(self, *amounts: int, written: bool = True) -> None:
        """One row of the target, again and again: a commit for each amount. Its key is k and the amount."""
        for amount in amounts:
            at = f"timestamp'2017-02-01 00:00:{amount:02}'" if written else "NULL"
            self._insert([f"(1, timestamp'2017-01-01 05:00:00', {amount}, 'k{amount}', 'web', {at})"])

    def _insert(self, rows: Iterable[str]) -> None:
        self.spark.sql(f"INSERT INTO {self.wal} VALUES {', '.join(rows)}")

    def compact(self) -> None:
        """The log into one file a partition, the newest amount first."""
        self.spark.sql(
            f"CALL tower.system.rewrite_data_files(table => '{self.wal.partition('.')[2]}', strategy => 'sort', "
            "sort_order => 'amount DESC', options => map('rewrite-all', 'true'))"
        )

    def expire(self) -> None:
        """All snapshots of the log but its head."""
        expire = iceberg_table(self.spark, self.wal).expireSnapshots()
        for snapshot in load_metadata(self.spark, self.wal)["snapshots"][:-1]:
            expire = expire.expireSnapshotId(snapshot["snapshot-id"])
        expire.cleanExpiredFiles(False).commit()

    def amounts(self) -> list[int]:
        return sorted(int(row.amount) for row in self.spark.table(self.target).select("amount").collect())

    def ids(self) -> list[int]:
        return sorted(row.id for row in self.spark.table(self.target).select("id").collect())

    def log(self, name: str) -> list[Any]:
        return self.spark.table(f"{self.system}.{name}").collect()

    def run(self, after: Callable[[str], None] | None = None, **changes: Any) -> Mediation:
        job = replace(self.job, **changes)
        return mediate(self.spark, job) if after is None else mediate(self.spark, job, after=after)

    def summaries(self) -> list[dict[str, str]]:
        return [snapshot["summary"] for snapshot in load_metadata(self.spark, self.target)["snapshots"]]


class Crash(Exception):
    pass


def crash_at(step: str) -> Callable[[str], None]:
    def hook(name: str) -> None:
        if name == step:
            raise Crash(step)

    return hook


def once(step: str, work: Callable[[], object]) -> Callable[[str], None]:
    done: list[str] = []

    def hook(name: str) -> None:
        if name == step and not done:
            done.append(name)
            work()

    return hook
