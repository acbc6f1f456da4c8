"""`icetower maintain` under a contract of its own, through a real tower, beside writers that started before it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyspark.sql import SparkSession

from icetower.agent import Tower
from icetower.contracts.document import load
from icetower.pipelines.export import Source, export
from icetower.pipelines.maintenance import Job, Maintainer, Report
from icetower.spark import add_tower, tower_session
from tests.pages.page_blocks import blocks_of
from tests.pipelines.clocks import Later
from tests.wire.clauses import BY_REGION, NO_RETRY, SCHEMA, rows
from verify.kit.tower_process import TowerProcess, command

pytestmark = pytest.mark.spark

OWN = """tables:
  - {table: NS.*, operations: [replace, refs], partitions: all}
  - {table: NS_system.*, operations: [create, append, overwrite, refs], partitions: all}
reads: [NS.**, NS_system.**]
idempotency: {required: true, how: [header], window: 24h}
"""
AGENT = """tables:
  - table: NS.t
    operations: [append, overwrite]
    partitions: [{region: REGION}]
    read_scope: owned
    blind_appends: true
"""


@pytest.fixture(scope="module")
def spark(tower: TowerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = {
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark")),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "1",
    }
    session = tower_session("maintenance", tower.admin, catalog="keeper", master="local[2]", settings=settings)
    yield session
    session.stop()


class Maintenance:
    """A principal under a contract of its own, and its job."""

    def __init__(self, spark: SparkSession, tower: TowerProcess, namespace: str) -> None:
        self.spark = spark
        self.name = f"{namespace}-maintenance"
        text = f"version: 1\nagent: {self.name}\nrole: maintenance\n{OWN.replace('NS', namespace)}"
        tower.admin.apply_contract(text)
        secret = tower.admin.create_principal(self.name, self.name)
        self.tower = Tower(tower.uri, secret)
        add_tower(spark, "keeper2", self.tower)
        self.system = f"{namespace}_system"
        self.job = Job("keeper2", f"keeper2.{self.system}", None, load(text, source="test"))

    def run(self, hours: float = 1.0) -> Report:
        report = Maintainer(self.spark, self.job, ambient=Later(int(hours * 3600))).run()
        assert not report.failures, report.failures
        return report


@pytest.fixture
def maintenance(spark: SparkSession, tower: TowerProcess, namespace: str) -> Iterator[Maintenance]:
    made = Maintenance(spark, tower, namespace)
    yield made
    made.tower.close()


def tasks(report: Report) -> list[tuple[str, str]]:
    return [(each.table_name.rpartition(".")[2], each.task) for each in report.entries]


def test_writers_that_began_before_it_land_and_what_it_cost_one_over_the_same_files_is_counted(
    spark: SparkSession, tower: TowerProcess, catalog: Catalog, namespace: str, maintenance: Maintenance
) -> None:
    catalog.create_table(
        f"{namespace}.t", SCHEMA, partition_spec=BY_REGION,
        properties={**NO_RETRY, "maintenance.quiet-ms": "1"},
    )  # fmt: skip
    north, south = (
        tower.catalog(tower.principal(f"{namespace}-{name}", AGENT.replace("NS", namespace).replace("REGION", name)))
        for name in ("north", "south")
    )
    table = north.load_table(f"{namespace}.t")
    for number in range(6):
        table.append(rows(number, region="north"))
    south.load_table(f"{namespace}.t").append(rows(10, 11, region="south"))
    # Each of these has read the table as it is now.
    appends, deletes_there, deletes_here = (each.load_table(f"{namespace}.t") for each in (north, south, north))
    compacted = maintenance.run()
    assert ("t", "compact") in tasks(compacted)
    head = catalog.load_table(f"{namespace}.t")
    assert len(head.inspect.files()) == 2
    appends.append(rows(6, region="north"))
    deletes_there.delete("id == 10")
    with pytest.raises(CommitFailedException):
        deletes_here.delete("id == 3")
    left = sorted(head.refresh().scan().to_arrow()["id"].to_pylist())
    assert left == [0, 1, 2, 3, 4, 5, 6, 11]
    attempts = tower.admin.commits(limit=100, table=f"{namespace}.t")
    refused = [each for each in attempts if each["outcome"] in ("refused", "conflict")]
    assert [each["principal"] for each in refused] == [f"{namespace}-north"]
    assert any(each["outcome"] == "rebased" for each in attempts)

    export(spark, f"keeper.{maintenance.system}", Source.of(tower.admin))
    costs = [each for each in maintenance.run(1.1).entries if each.writers_refused]
    (snapshot,) = (each.snapshot_id for each in compacted.entries if each.task == "compact")
    assert [(each.task, each.snapshot_id, each.writers_refused) for each in costs] == [("compact", snapshot, 1)]
    with head.transaction() as change:
        change.set_properties({"history.expire.max-snapshot-age-ms": "1800000"})
    (expired,) = (each for each in maintenance.run(1.2).entries if each.table_name.endswith(".t"))
    assert expired.task == "expire"
    assert expired.snapshots_expired > 5
    assert sorted(head.refresh().scan().to_arrow()["id"].to_pylist()) == left


def test_the_command_does_as_its_page_says(
    tower: TowerProcess, catalog: Catalog, namespace: str, tmp_path: Path, spark: SparkSession
) -> None:
    spark.stop()  # another process starts one
    properties = {"maintenance.quiet-ms": "1", "maintenance.files-min": "3"}
    table = catalog.create_table(f"{namespace}.t", SCHEMA, properties=properties)
    for number in range(3):
        table.append(rows(number))
    once, follow = (shlex.split(block.text) for block in blocks_of("docs/maintenance.md") if "wire" in block.more)
    options = [
        f"{namespace}.t",
        "--uri",
        tower.uri,
        "--system",
        f"{namespace}_system",
        "--json",
        "--master",
        "local[2]",
    ]
    environment = {**os.environ, "ICETOWER_TOKEN": tower.secret}
    (tmp_path / "contracts").mkdir()
    with (tmp_path / "stderr").open("wb") as errors:
        running = subprocess.Popen(
            command(*follow[1:], *options),
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            cwd=tmp_path,
            text=True,
        )
        assert running.stdout is not None
        lines = [running.stdout.readline() for _ in range(2)]
        running.send_signal(signal.SIGINT)
        rest, _ = running.communicate(timeout=60)
    said = (tmp_path / "stderr").read_text()
    assert (running.returncode, rest) == (130, ""), said
    last = json.loads(said.splitlines()[-1])["error"]
    assert last["message"] == "interrupted; what is committed stays, and the next run goes on from there"
    first = sorted((json.loads(line) for line in lines), key=lambda each: each["task"])
    assert [(each["task"], each.get("files_before"), each.get("files_after")) for each in first] == [
        ("compact", 3, 1),
        ("orphans", None, None),
    ]
    done = subprocess.run(
        command(*once[1:], *options), env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=280,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (left,) = [json.loads(line) for line in done.stdout.splitlines()]  # nothing is due, and it says why
    assert (left["status"], "no partition has 3 small" in left["reason"]) == ("left alone", True)
    recorded = catalog.load_table(f"{namespace}_system.maintenance_runs").scan().to_arrow().to_pylist()
    assert sorted(each["task"] for each in recorded) == ["compact", "orphans"]


@pytest.mark.sharp
def test_killed_with_9_as_soon_as_it_has_committed_the_next_run_records_it_once(
    tower: TowerProcess, catalog: Catalog, namespace: str, tmp_path: Path, spark: SparkSession
) -> None:
    spark.stop()
    properties = {"maintenance.quiet-ms": "1", "maintenance.files-min": "3"}
    table = catalog.create_table(f"{namespace}.t", SCHEMA, properties=properties)
    for number in range(3):
        table.append(rows(number))
    options = [f"{namespace}.t", "--uri", tower.uri, "--system", f"{namespace}_system", "--master", "local[2]"]
    environment = {**os.environ, "ICETOWER_TOKEN": tower.secret}
    with (tmp_path / "stderr").open("wb") as errors:
        two = [
            subprocess.Popen(command("maintain", *options), stdout=errors, stderr=errors, env=environment, cwd=tmp_path)
            for _ in range(2)
        ]
        while not any("maintenance.task" in repr(each.summary) for each in table.refresh().metadata.snapshots):
            assert any(each.poll() is None for each in two), (tmp_path / "stderr").read_text()
        for each in two:
            each.kill()
            each.wait()
    for _ in range(2):
        subprocess.run(command("maintain", *options), env=environment, cwd=tmp_path, timeout=280, check=True)
    assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == [0, 1, 2]
    recorded = catalog.load_table(f"{namespace}_system.maintenance_runs").scan().to_arrow().to_pylist()
    compacted = [each for each in recorded if each["task"] == "compact" and each["snapshot_id"] is not None]
    assert [(each["files_before"], each["files_after"]) for each in compacted] == [(3, 1)]
