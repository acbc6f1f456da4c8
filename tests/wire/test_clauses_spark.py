"""The clauses of a contract, with Spark over the wire: one session, and a catalog for each principal in it."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icetower.agent import new_key
from icetower.contracts.document import load
from icetower.errors import BadRequest
from icetower.pipelines.session import spark_session
from icetower.pipelines.wal_logs import Logs
from icetower.pipelines.wal_mediator import Job, mediate
from tests.wire.clauses import SNAPSHOT_LEVELS, Agent, in_bucket
from verify.kit.light_spark import LIGHT
from verify.kit.tower_process import TowerProcess

pytestmark = pytest.mark.spark

KEEPER = "keeper"
"""The administrator's catalog."""
COLUMNS = "(id BIGINT, at TIMESTAMP_NTZ, region STRING)"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def spark(tower: TowerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session(
        "clauses",
        catalog_uri=tower.uri,
        catalog_name=KEEPER,
        token=tower.secret,
        settings={
            "spark.master": "local[4]",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark")),
            **LIGHT,
        },
    )
    yield session
    session.stop()


class Keeper:
    """Who made the table `NS.t`. In SQL `{ns}` stands for the namespace in its catalog, and `{t}` for the table."""

    def __init__(self, session: SparkSession, namespace: str, catalog: str = KEEPER) -> None:
        self.session = session
        self.place = f"{catalog}.{namespace}"

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        filled = text.replace("{t}", "{ns}.t").replace("{ns}", self.place)
        return [tuple(row) for row in self.session.sql(filled).collect()]

    def create(self, partitioned: str = "PARTITIONED BY (region)", name: str = "t", **properties: str) -> None:
        given = {"format-version": "2", "commit.retry.num-retries": "0"} | properties
        listed = ", ".join(f"'{key}'='{value}'" for key, value in given.items())
        self.sql(f"CREATE TABLE {{ns}}.{name} {COLUMNS} USING iceberg {partitioned} TBLPROPERTIES ({listed})")

    def ids(self, table: str = "{t}") -> list[int]:
        return sorted(row[0] for row in self.sql(f"SELECT id FROM {table}"))

    def insert(self, *ids: int, day: float = 0, region: str = "north", table: str = "{t}") -> None:
        at = dt.datetime(2017, 1, 1) + dt.timedelta(days=day)  # noqa: DTZ001
        values = ", ".join(f"({id_}, TIMESTAMP_NTZ '{at}', '{region}')" for id_ in ids)
        self.sql(f"INSERT INTO {table} VALUES {values}")


class SparkAgent(Agent, Keeper):
    """A principal with a catalog of its own in the session."""

    def __init__(
        self, session: SparkSession, tower: TowerProcess, namespace: str, contract: str, *, name: str = "agent"
    ) -> None:
        Agent.__init__(self, tower, namespace, contract, name=name)
        catalog = f"agent_{next(_numbers)}"
        Keeper.__init__(self, session, namespace, catalog)
        with self.sdk() as sdk:
            properties = sdk.spark_properties(catalog)
        for key, value in {**properties, f"spark.sql.catalog.{catalog}.cache-enabled": "false"}.items():
            session.conf.set(key, value)


Make = Callable[..., SparkAgent]


@pytest.fixture
def keeper(spark: SparkSession, namespace: str) -> Keeper:
    return Keeper(spark, namespace)


@pytest.fixture
def agent(spark: SparkSession, tower: TowerProcess, namespace: str) -> Make:
    return lambda contract, name="agent": SparkAgent(spark, tower, namespace, contract, name=name)


APPENDS = "tables: [{table: T, operations: [append], partitions: all}]\n"


def test_clause_tables(agent: Make, keeper: Keeper, namespace: str) -> None:
    keeper.create()
    keeper.create(name="other")
    bound = agent(APPENDS)
    assert [row[1] for row in bound.sql("SHOW TABLES IN {ns}")] == ["t"]
    bound.insert(1)
    bound.refused("contract.operation", lambda: bound.sql("DELETE FROM {t} WHERE id = 1"), "doesn't grant")
    for statement in ("SELECT * FROM {ns}.other", "INSERT INTO {ns}.other VALUES (1, NULL, 'a')", "DROP TABLE {t}"):
        with pytest.raises(Exception, match=r"doesn't (name|grant)"):
            bound.sql(statement)
    bound.ends(lambda: bound.insert(2))
    assert (keeper.ids(), keeper.ids("{ns}.other")) == ([1, 2], [])


def test_clause_partitions(agent: Make, keeper: Keeper) -> None:
    """Days and buckets, exceptions, what is removed, and a table that is partitioned otherwise later."""
    keeper.create("PARTITIONED BY (days(at), bucket(4, id))", **{"write.merge.mode": "merge-on-read"})
    mine, theirs = in_bucket(1), in_bucket(2)
    bound = agent(
        "tables:\n  - table: NS.t\n    operations: [overwrite]\n    partitions:\n"
        "      - {at_day: {from: 2017-01-01, to: 2017-02-01}, 'bucket(4, id)': [0, 1]}\n"
        "      - {day(at): {from: now, to: now+1d}, 'bucket(4, id)': 3}\n"
        "    except: [{day(at): 2017-01-15}]\n"
    )
    bound.insert(mine)
    bound.sql(f"INSERT INTO {{t}} VALUES ({in_bucket(3)}, localtimestamp(), 'north')")
    for id_, day, told in ((theirs, 0, "id_bucket=2"), (mine, 31, "2017-02-01"), (mine, 14, "at_day=2017-01-15")):
        bound.refused("contract.partitions", lambda id_=id_, day=day: bound.insert(id_, day=day), told)
    keeper.insert(theirs)
    # Its rows are in other partitions, and so are those that it deletes.
    merge = "MERGE INTO {t} t USING (SELECT {id} AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET region = 'moved'"
    bound.sql(merge.replace("{id}", str(mine)))
    bound.refused("contract.partitions", lambda: bound.sql(merge.replace("{id}", str(theirs))), "id_bucket=2")
    bound.refused("contract.partitions", lambda: bound.sql(f"DELETE FROM {{t}} WHERE id = {theirs}"), "id_bucket=2")
    keeper.sql("ALTER TABLE {t} REPLACE PARTITION FIELD at_day WITH hours(at)")
    bound.refused("contract.partitions", lambda: bound.insert(mine, day=31), "at_hour=2017-02-01-00")
    keeper.sql("ALTER TABLE {t} DROP PARTITION FIELD at_hour")
    bound.refused("contract.undecided", lambda: bound.insert(mine), "no field of the column at")
    keeper.sql("ALTER TABLE {t} ADD PARTITION FIELD days(at)")
    bound.ends(lambda: bound.insert(in_bucket(0), day=1))
    assert keeper.ids() == sorted([mine, theirs, in_bucket(3), in_bucket(0)])


def test_clause_escalation(agent: Make, keeper: Keeper) -> None:
    """Two refusals in a row, and nothing goes until a person has looked."""
    keeper.create()
    bound = agent(
        "tables: [{table: T, operations: [append], partitions: [{region: north}]}]\n"
        "escalation: {after_failures: 2, within: 10m, to: Dana Ito <dana.ito@example.com>}\n"
    )
    bound.insert(1)
    for _ in range(2):
        bound.refused("contract.partitions", lambda: bound.insert(2, region="south"), "region=south")
    bound.refused("contract.escalated", lambda: bound.insert(2), "until Dana Ito")
    (escalation,) = bound.tower.admin.escalations(state="open")
    bound.tower.admin.close_escalation(escalation["id"], "the south is not ours")
    bound.ends(lambda: bound.insert(3))
    assert keeper.ids() == [1, 3]


def test_clause_idempotency(agent: Make, keeper: Keeper, spark: SparkSession) -> None:
    """Java sends the header by itself; a key of one's own stands in the options of a write."""
    keeper.create()
    bound = agent(APPENDS + "idempotency: {required: true, how: [header]}\n")
    bound.insert(1)
    bound.change(APPENDS + "idempotency: {required: true, how: [summary]}\n")
    bound.refused("contract.key", lambda: bound.insert(2), "icetower.idempotency-key")
    row = spark.createDataFrame([(3, None, "north")], "id BIGINT, at TIMESTAMP_NTZ, region STRING")

    def send(key: str) -> None:
        option = "snapshot-property.icetower.idempotency-key"
        row.writeTo(f"{bound.place}.t").option(option, key).append()

    key = new_key()
    send(key)
    with pytest.raises(Exception, match="per write"):  # the same application again: not what a key is for
        send(key)
    bound.ends(lambda: send(new_key()))
    assert keeper.ids() == [1, 3, 3]


def places(keeper: Keeper, table: str) -> set[str]:
    """The first directories below the table's data, of its live files, deletes included."""
    located = [row[0] for row in keeper.sql(f"SELECT file_path FROM {table}.all_files")]
    return {path.split("/data/")[-1].split("/")[0] for path in located}


def properties_of(keeper: Keeper, table: str) -> dict[str, str]:
    return dict(keeper.sql(f"SHOW TBLPROPERTIES {table}"))


GIVEN = ("write.data.path", "commit.retry.num-retries", "write.distribution-mode")
"""What each principal is given with a table by its contract, and what Spark sends back when it replaces the table."""


@pytest.mark.parametrize("version", ["2", "3"])
def test_clause_write_location(agent: Make, keeper: Keeper, version: str) -> None:
    """Data files, position deletes and deletion vectors go to one's own place, which the table does not know of."""
    keeper.create(**{"format-version": version, "write.delete.mode": "merge-on-read"})
    bound = agent(
        "tables:\n  - {table: T, operations: [overwrite], partitions: all}\n"
        "  - {table: NS.made, operations: [create, overwrite, alter, refs], partitions: all}\n"
        "retries: {attempts: 7, min_wait: 50ms, max_wait: 2s}\n"
    )
    bound.insert(1, 2, 3)
    bound.sql("DELETE FROM {t} WHERE id = 2")
    assert keeper.sql("SELECT count(*) FROM {t}.delete_files") == [(1,)]
    assert places(keeper, "{t}") == {bound.name}
    # With its rows, a table is created and replaced.
    for query in ("SELECT 1 AS id", "SELECT id, 'x' AS name FROM range(2)"):
        bound.sql(f"CREATE OR REPLACE TABLE {{ns}}.made USING iceberg TBLPROPERTIES ('a'='{len(query)}') AS {query}")
        kept = properties_of(keeper, "{ns}.made")
        assert (kept["a"], {*GIVEN} & {*kept}) == (str(len(query)), set())
    assert keeper.ids("{ns}.made") == [0, 1]
    assert places(keeper, "{ns}.made") == {bound.name}
    given = properties_of(bound, "{ns}.made")
    assert given["write.data.path"].endswith(f"/data/{bound.name}")
    assert (given["commit.retry.num-retries"], given["write.distribution-mode"]) == ("7", "hash")
    bound.ends(lambda: bound.insert(4))


def test_clause_write_location_a_file_elsewhere(agent: Make, keeper: Keeper, spark: SparkSession) -> None:
    """What somebody else has written is not added."""
    mapping = '[{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["at"]}]'
    keeper.create("", **{"schema.name-mapping.default": mapping})
    bound = agent(APPENDS)
    bound.insert(1)
    (own,) = {row[0].rpartition("/")[0] for row in keeper.sql("SELECT file_path FROM {t}.files")}
    row = spark.createDataFrame([(7, None)], "id BIGINT, at TIMESTAMP_NTZ").coalesce(1)
    catalog, namespace = bound.place.split(".")

    def add(place: str) -> None:
        row.write.mode("overwrite").parquet(place)
        bound.sql(f"CALL {catalog}.system.add_files(table => '{namespace}.t', source_table => '`parquet`.`{place}`')")

    bound.refused("contract.location", lambda: add(f"{own}-beside"), "its own")
    add(f"{own}/mine")
    assert keeper.ids() == [1, 7]
    bound.ends(lambda: bound.insert(9))


def test_clause_revocation(agent: Make, keeper: Keeper) -> None:
    keeper.create()
    oncall = agent("reads: [nothing.*]\n", "oncall")
    wild = agent(APPENDS + f"revocation: {{by: [{oncall.name}]}}\n", "wild")
    good = agent(APPENDS, "good")
    wild.insert(1)
    with oncall.sdk() as person:
        person.revoke_contract(wild.name)
    with pytest.raises(Exception, match="was revoked"):
        wild.insert(2)
    good.insert(3)
    assert keeper.ids() == [1, 3]


WORDS = [
    # the clause, the table's levels, how MERGEs of other rows may end
    # A MERGE that inserts is sent back to its client, which validates: another may have inserted the same rows (R1).
    (", isolation: snapshot", {}, {"direct", "conflict"}),
    (", read_scope: owned", {}, {"direct", "rebased"}),
    (", isolation: serializable", SNAPSHOT_LEVELS, {"direct", "conflict"}),
    (", strict: true", SNAPSHOT_LEVELS, {"direct", "conflict"}),
]


@pytest.mark.parametrize(
    ("clause", "properties", "outcomes"), WORDS, ids=["snapshot", "owned", "serializable", "strict"]
)
def test_clauses_isolation_read_scope_and_strict(
    agent: Make, keeper: Keeper, clause: str, properties: dict[str, str], outcomes: set[str]
) -> None:
    """Four MERGEs at once, each into a region of its own, each by an agent that owns it."""
    keeper.create(**{"commit.retry.num-retries": "20"}, **properties)
    keeper.insert(0, region="nobodys")
    rule = "tables:\n  - {table: T, operations: [append], partitions: [{region: r%d}]%s}\n"
    agents = [agent(rule % (number, clause), f"agent{number}") for number in range(4)]
    start = Barrier(4)

    def merge(number: int) -> None:
        start.wait(60)
        agents[number].sql(
            f"MERGE INTO {{t}} t USING (SELECT {number} AS id, 'r{number}' AS region) s "
            f"ON t.region = 'r{number}' AND t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET at = NULL "
            "WHEN NOT MATCHED THEN INSERT (id, at, region) VALUES (s.id, NULL, s.region)"
        )

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(merge, range(4)))
    assert sorted(keeper.sql("SELECT id, region FROM {t} WHERE region LIKE 'r%'")) == [(n, f"r{n}") for n in range(4)]
    ended = {outcome for each in agents for outcome, _ in each.attempts()}
    assert ended <= outcomes
    bound = agents[0]
    bound.refused("contract.partitions", lambda: bound.insert(5, region="r1"), "region=r1")
    bound.ends(lambda: bound.insert(6, region="r0"))


def test_clause_pattern(agent: Make, keeper: Keeper, spark: SparkSession, namespace: str) -> None:
    """What an agent may not commit itself lands through the log, judged by its contract there."""
    columns = "(id BIGINT, region STRING, _idempotency_key STRING"
    keeper.sql(f"CREATE TABLE {{ns}}.wal {columns}, _agent STRING) USING iceberg PARTITIONED BY (_agent)")
    keeper.sql(f"CREATE TABLE {{t}} {columns}) USING iceberg PARTITIONED BY (region)")
    name = f"{namespace}-agent"
    rules = (
        "tables:\n  - {table: T, operations: [append], partitions: [{region: north}], pattern: mediator}\n"
        f"  - {{table: NS.wal, operations: [append], partitions: [{{_agent: {name}}}]}}\n"
    )
    bound = agent(rules)
    assert bound.name == name
    bound.refused("contract.pattern", lambda: bound.sql("INSERT INTO {t} VALUES (1, 'north', 'k1')"), "mediator")

    def log(row: str) -> None:
        bound.sql(f"INSERT INTO {{ns}}.wal VALUES ({row}, '{name}')")

    log("1, 'north', 'k1'")
    log("2, 'south', 'k2'")
    contracts = {name: load(bound.tower.admin.contract(name)["text"], source="test")}
    job = Job(f"{keeper.place}.wal", f"{keeper.place}.t", contracts, f"{keeper.place}_system")
    done = mediate(spark, job)
    assert (done.applied, done.rejected) == (1, 1)
    assert keeper.ids() == [1]
    bound.ends(lambda: log("3, 'north', 'k3'"))


def test_r10_two_mediators_at_once_insert_a_row_once(
    agent: Make, keeper: Keeper, spark: SparkSession, namespace: str
) -> None:
    """Trap R10: two logs have one key, and both contracts and the table call every append blind."""
    columns = "(id BIGINT, _idempotency_key STRING"
    keeper.sql(f"CREATE TABLE {{t}} {columns}) USING iceberg")
    Logs(spark, f"{keeper.place}_system").create()
    rules = (
        "tables:\n  - {table: NS.*, operations: [append, overwrite], partitions: all, blind_appends: true, "
        f"isolation: snapshot}}\n  - {{table: {namespace}_system.*, operations: [overwrite], partitions: all}}\n"
    )
    mediators = [agent(rules, name=f"mediator-{at}") for at in (1, 2)]
    text = "version: 1\nagent: web\ntables: [{table: '**', operations: [append], partitions: all}]\n"
    contracts = {"web": load(text, source="test")}

    def declare() -> None:
        keeper.sql("ALTER TABLE {t} SET TBLPROPERTIES ('icetower.blind-appends' = 'true')")

    side_by_side = Barrier(2, action=declare)

    def run(at: int) -> None:
        keeper.sql(f"CREATE TABLE {{ns}}.wal{at} {columns}, _agent STRING) USING iceberg PARTITIONED BY (_agent)")
        keeper.sql(f"INSERT INTO {{ns}}.wal{at} VALUES (1, 'k1', 'web')")
        place, met = mediators[at].place, list[str]()

        def meet(step: str) -> None:
            if step == "rejections" and not met:
                met.append(step)
                side_by_side.wait(60)

        job = Job(f"{place}.wal{at}", f"{place}.t", contracts, f"{place}_system")
        with suppress(BadRequest):  # the slower one looks again, and the table calls its appends blind by now
            mediate(spark, job, after=meet)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run, range(2)))
    assert keeper.ids() == [1]


def test_clause_quotas(agent: Make, keeper: Keeper) -> None:
    keeper.create()
    granted = "tables: [{table: T, operations: [append], partitions: all, quotas: {%s}}]\n"
    bound = agent(granted % "files_per_commit: 2")
    three = "INSERT INTO {t} SELECT id, NULL, cast(id AS STRING) FROM range(3)"
    bound.refused("contract.quota", lambda: bound.sql(three), "files_per_commit")
    bound.sql(three.replace("3", "2"))
    bound.change(granted % "commits_per_minute: 2")
    bound.insert(5)
    bound.insert(6)
    bound.refused("contract.quota", lambda: bound.insert(7), "commits_per_minute")
    bound.change(granted % "files_per_commit: 2")
    bound.ends(lambda: bound.insert(8))
    assert keeper.ids() == [0, 1, 5, 6, 8]


def test_clause_prove_partitions(agent: Make, keeper: Keeper) -> None:
    """What Spark writes proves its day and its region; of a bucket with two ids nothing can."""
    keeper.create("PARTITIONED BY (days(at), region)")
    granted = "tables: [{table: T, operations: [append], partitions: all, prove_partitions: true}]\n"
    bound = agent(granted)
    bound.insert(1, 2, day=0.5)
    keeper.sql("ALTER TABLE {t} ADD PARTITION FIELD bucket(4, id)")
    bound.insert(in_bucket(1))
    bound.refused("append.unproven", lambda: bound.insert(in_bucket(1), in_bucket(1, nth=1)), "id_bucket")
    bound.ends(lambda: bound.insert(in_bucket(2)))
    assert len(keeper.ids()) == 4


def test_k2_a_mediator_applies_anew_what_was_rolled_back(keeper: Keeper, spark: SparkSession, namespace: str) -> None:
    """Trap K2: no replay, though the log holds the same rows; and a table is the same under another name."""
    columns = "(id BIGINT, v INT, _idempotency_key STRING"
    keeper.sql(f"CREATE TABLE {{ns}}.wal {columns}, _agent STRING) USING iceberg PARTITIONED BY (_agent)")
    keeper.sql(f"CREATE TABLE {{t}} {columns}) USING iceberg")
    text = "version: 1\nagent: web\ntables: [{table: '**', operations: [overwrite], partitions: all}]\n"
    contracts = {"web": load(text, source="test")}
    job = Job(f"{keeper.place}.wal", f"{keeper.place}.t", contracts, f"{keeper.place}_system", merge_keys=("id",))

    def log(*versions: int) -> None:
        for v in versions:
            keeper.sql(f"INSERT INTO {{ns}}.wal VALUES (1, {v}, 'k{v}', 'web')")

    log(1)
    first = mediate(spark, job)
    log(2, 3)
    second = mediate(spark, job)
    keeper.sql(f"CALL {KEEPER}.system.rollback_to_snapshot('{namespace}.t', {first.committed_snapshot})")
    again = mediate(spark, job)
    assert (again.applied, again.superseded, again.duplicates) == (1, 1, 0)
    assert again.batch != second.batch
    assert keeper.sql("SELECT v FROM {t}") == [(3,)]

    keeper.sql(f"ALTER TABLE {{t}} RENAME TO {namespace}.renamed")
    log(2)  # sent again: superseded, so that no row shows its key
    done = mediate(spark, replace(job, target=f"{keeper.place}.renamed"))
    assert (done.applied, done.duplicates) == (0, 1)
    assert keeper.sql("SELECT v FROM {ns}.renamed") == [(3,)]
