"""`icetower.spark`: an agent with PySpark, one session, and what it does about real refusals of a real tower."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions

from icetower.agent import Patience, Tower, keyed, new_key
from icetower.ambient import SystemAmbient
from icetower.errors import BadRequest, IcetowerError, UsageError
from icetower.pipelines.export import Source, export
from icetower.pipelines.system_teams import Team
from icetower.spark import add_tower, carry_out, declaring, last_number, numbered, options, refusal_of, tower_session
from tests.pages.page_blocks import blocks_of
from tests.wire.clauses import Agent
from verify.kit.light_spark import LIGHT
from verify.kit.tower_process import TowerProcess

pytestmark = pytest.mark.spark

NORTH = "tables: [{table: T, operations: [append, overwrite], partitions: [{region: north}]%s}]\n"


class Clock(SystemAmbient):
    """It goes on when the agent waits."""

    ahead_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + int(self.ahead_s * 1000)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


@pytest.fixture(scope="module")
def spark(tower: TowerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = {
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark")),
        **LIGHT,
    }
    session = tower_session("agents", tower.admin, catalog="keeper", master="local[2]", settings=settings)
    yield session
    session.stop()


class SparkAgent(Agent):
    """A principal with a catalog of its own in the session, and a table `t` by region."""

    def __init__(self, spark: SparkSession, tower: TowerProcess, namespace: str, contract: str) -> None:
        super().__init__(tower, namespace, contract)
        self.spark = spark
        self.clock = Clock()
        self.waits_s: list[float] = []
        self.meanwhile: list[Callable[[], object]] = []
        self.tower_client = self.sdk()
        add_tower(spark, self.name, self.tower_client)
        self.table_name = f"{self.name}.{namespace}.t"
        self.at = f"`{self.name}`.{namespace}.t"
        spark.sql(
            f"CREATE TABLE keeper.{namespace}.t (id BIGINT, region STRING) USING iceberg PARTITIONED BY (region) "
            "TBLPROPERTIES ('format-version'='2', 'commit.retry.num-retries'='0')"
        )

    def pause(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        self.clock.ahead_s += seconds
        if self.meanwhile:
            self.meanwhile.pop(0)()

    def insert(self, id_: int, region: str = "north") -> Callable[[Tower, str], None]:
        def work(tower: Tower, key: str) -> None:
            with declaring(self.spark, keyed(key)):
                self.spark.sql(f"INSERT INTO {self.at} VALUES ({id_}, '{region}')")

        return work

    def carry_out(self, work: Callable[[Tower, str], Any], **given: Any) -> Any:
        patience = Patience(pause=self.pause, ambient=self.clock)
        table = f"{self.namespace}.t"
        operations = ["append"]
        return carry_out(
            work, self.tower_client, table, operations=operations, reason="its rows", patience=patience, **given
        )

    def ids(self) -> list[int]:
        return sorted(row[0] for row in self.spark.sql(f"SELECT id FROM keeper.{self.namespace}.t").collect())


@pytest.fixture
def agent(spark: SparkSession, tower: TowerProcess, namespace: str) -> Iterator[Callable[[str], SparkAgent]]:
    made: list[SparkAgent] = []

    def make(contract: str) -> SparkAgent:
        made.append(SparkAgent(spark, tower, namespace, contract))
        return made[-1]

    yield make
    for each in made:
        each.tower_client.close()


Make = Callable[[str], SparkAgent]


def test_it_asks_for_partitions_and_waits_for_people_and_times(agent: Make, tower: TowerProcess) -> None:
    bound = agent(NORTH % "")

    def decide() -> None:
        (asked,) = (each for each in tower.admin.requests(state="open") if each["principal"] == bound.name)
        assert (asked["partitions"], asked["reason"]) == (["region=south"], "its rows")
        bound.change(NORTH.replace("north", "[north, south]") % "")
        tower.admin.close_request(asked["id"], "granted", "for this month")

    def decide_once_asked() -> None:
        if any(each["principal"] == bound.name for each in tower.admin.requests(state="open")):
            decide()
        else:  # it still looks its partitions up
            bound.meanwhile.insert(0, decide_once_asked)

    bound.meanwhile.append(decide_once_asked)
    bound.carry_out(bound.insert(1, "south"))
    assert bound.attempts() == [("refused", "contract.partitions"), ("direct", None)]
    bound.waits_s.clear()
    bound.change(NORTH % ", quotas: {commits_per_minute: 1}")
    bound.meanwhile.append(lambda: bound.change(NORTH % ", quotas: {commits_per_minute: 9}"))
    for id_ in (2, 3):
        bound.carry_out(bound.insert(id_))
    assert 30 < bound.waits_s[0] <= 60.1
    assert bound.ids() == [1, 2, 3]


def test_a_key_is_of_one_write(agent: Make, spark: SparkSession) -> None:
    """Trap K3: in SQL and for frames, the refusal is understood, and nothing is doubled."""
    bound = agent(NORTH % "")
    key = new_key()
    frame = spark.createDataFrame([(1, "north")], "id BIGINT, region STRING")
    frame.writeTo(bound.at).options(**options(keyed(key))).append()
    with pytest.raises(IcetowerError) as refused:
        bound.carry_out(bound.insert(1), key=key)
    assert (refused.value.status, refused.value.rule, refused.value.next_step) == (422, "key.per-write", "fix_request")
    assert refused.value.request_id is not None
    with (
        declaring(spark, keyed(new_key())),
        pytest.raises(UsageError, match="a block of its own"),
        declaring(spark, {}),
    ):
        pass
    assert not [name for name in spark.conf.getAll if "snapshot-property" in name]
    assert bound.ids() == [1]


def test_numbers_of_an_application_are_written_once(agent: Make, spark: SparkSession) -> None:
    bound = agent(NORTH % "")
    assert last_number(spark, bound.table_name, "tills") is None
    for number, id_ in ((1, 1), (3, 2), (2, 9), (3, 9)):
        frame = spark.createDataFrame([(id_, "north")], "id BIGINT, region STRING")
        frame.writeTo(bound.at).options(**options(numbered("tills", number))).append()
    assert last_number(spark, bound.table_name, "tills") == 3
    assert bound.ids() == [1, 2]


def test_a_conflict_that_iceberg_finds_itself_is_run_again(agent: Make, spark: SparkSession) -> None:
    """An overwrite of a region that was read before somebody added to it: done anew, on what is there by now."""
    bound = agent(NORTH % "")
    table = f"keeper.{bound.namespace}.t"
    spark.sql(f"INSERT INTO {table} VALUES (1, 'north')")
    tried: list[str] = []

    def move(tower: Tower, key: str) -> None:
        head = spark.sql(f"SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at DESC LIMIT 1").collect()[0][
            0
        ]
        moved = spark.createDataFrame(spark.sql(f"SELECT id + 10 AS id, region FROM {table}").collect())
        if not tried:
            spark.sql(f"INSERT INTO {table} VALUES (2, 'north')")
        tried.append(key)
        checked = {"isolation-level": "serializable", "validate-from-snapshot-id": str(head)}
        moved.writeTo(bound.at).options(**options(keyed(key)), **checked).overwrite(functions.expr("region = 'north'"))

    bound.carry_out(move)
    assert len(tried) == 2
    assert len(set(tried)) == 1
    assert bound.ids() == [11, 12]


def test_what_is_no_commit_is_understood_too(agent: Make, spark: SparkSession) -> None:
    bound = agent(NORTH % "")
    add_tower(spark, "stranger", Tower(bound.tower.uri, "unknown"))
    add_tower(spark, "nobody", Tower("http://127.0.0.1:9"))
    for catalog, status, step in (("stranger", 401, "authenticate"), ("nobody", 503, "retry")):
        with pytest.raises(Exception) as raised:  # noqa: PT011 - Spark's own
            spark.sql(f"SELECT * FROM {catalog}.{bound.namespace}.t").collect()
        refusal = refusal_of(raised.value)
        assert refusal is not None
        assert (refusal.status, refusal.next_step) == (status, step)
    assert refusal_of(ValueError("its own")) is None


def test_the_page_works(tower: TowerProcess, spark: SparkSession, namespace: str) -> None:
    """The blocks of docs/sdk.md for PySpark."""
    del namespace
    blocks = [block for block in blocks_of("docs/sdk.md") if "test_spark_agents" in block.more]
    contract = "tables: [{table: shelves.*, operations: [create, append, overwrite], partitions: all}]\n"
    secret = tower.principal("shelves-agent", contract)
    tower.catalog().create_namespace("shelves")
    names: dict[str, Any] = {}
    for block in blocks:
        code = block.text.replace("http://127.0.0.1:8181", tower.uri).replace("SECRET", secret)
        exec(compile(code, block.place, "exec"), names)
    rows = spark.sql("SELECT product_id, price FROM keeper.shelves.prices ORDER BY product_id").collect()
    assert [(row[0], str(row[1])) for row in rows] == [(7, "8.99"), (8, "2.50"), (9, "1.00")]


def test_a_team_reads_its_own_system_tables_and_no_others(
    agent: Make, spark: SparkSession, tower: TowerProcess
) -> None:
    """docs/system-tables.md, "Who may read": its own rows, in a namespace of its own."""
    bound = agent(f"owner: north@example.com\n{NORTH % ''}reads: [NS_system_north.*]\n")
    south = tower.principal(f"{bound.namespace}-south", f"reads: [{bound.namespace}_system_south.*]\n")
    add_tower(spark, "south", Tower(tower.uri, south))
    frame = spark.createDataFrame([(1, "north")], "id BIGINT, region STRING")
    frame.writeTo(bound.at).options(**options(keyed("order-17"))).append()
    with pytest.raises(Exception, match="contract"):
        bound.insert(2, "south")(bound.tower_client, new_key())
    source, system = Source.of(tower.admin), f"keeper.{bound.namespace}_system"
    specs = (f"north=north@example.com,{bound.name}", f"south={bound.namespace}-south")
    teams = [Team.of(spec, source.contracts(), source.bindings()) for spec in specs]
    with pytest.raises(BadRequest, match="no contract has this name or owner"):
        Team.of("east=east@example.com", source.contracts(), source.bindings())
    assert export(spark, system, source, teams=teams).keys >= 1

    own = f"`{bound.name}`.{bound.namespace}_system_north"
    metrics = spark.sql(
        f"SELECT principal, sum(first_tries), sum(first_try_landed) FROM {own}.agent_write_metrics GROUP BY 1"
    )
    assert [tuple(row) for row in metrics.collect()] == [(bound.name, 2, 1)]
    phases = "judge_ms > 0 AND plan_ms > 0 AND write_ms > 0 AND swap_ms > 0 AND metadata_bytes > 0 AND manifests = 1"
    commits = spark.sql(f"SELECT outcome, retries, contract, group_size FROM {own}.iceberg_commits WHERE {phases}")
    assert [tuple(row) for row in commits.collect()] == [("direct", 0, bound.name, 1)]
    (asked,) = (each for each in blocks_of("docs/system-tables.md") if "sha2(" in each.text)
    assert [row[0] for row in spark.sql(asked.text.replace("tower.system", own)).collect()] == [bound.name]
    for forbidden in (f"`{bound.name}`.{bound.namespace}_system", f"south.{bound.namespace}_system_north"):
        with pytest.raises(Exception, match="may not read"):
            spark.table(f"{forbidden}.iceberg_commits").collect()
    assert spark.table(f"south.{bound.namespace}_system_south.iceberg_commits").where("principal IS NULL").count() == 0
