"""Every job on a standalone cluster of two workers, by `spark-submit` and by `--master`, as docs/operations.md says.

The workers' Python has no Icetower: what runs in executors is in the archive that the page makes.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pyarrow as pa
import pyarrow.compute as pc
import pyspark
import pytest

from tests.pages.page_blocks import blocks_of
from verify.kit.tower_process import TowerProcess, command

pytestmark = pytest.mark.spark
WITHIN_S = 480.0
FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SPARK = Path(pyspark.__file__).parent
SITE = Path(pyspark.__file__).parents[1]
SOURCE = Path(__file__).parents[2] / "src"
PYTHON = """#!/bin/sh
# Python as on a machine where somebody has installed all that Icetower needs, but not Icetower.
PYTHONPATH="$PYTHONPATH:{site}" exec {python} -S "$@"
"""
PAGE = {
    block.text.split()[0]: block.text
    for block in blocks_of("docs/operations.md")
    if block.kind == "in" and "test_cluster.py" in block.more
}
"""The page's blocks, by their first word: `pip`, `#` (job.py), `spark-submit`."""
CONTRACT = """version: 1
agent: till
tables:
  - {table: shop.sales, operations: [append], partitions: [{store: [1]}], pattern: mediator}
  - {table: shop.stock, operations: [append, overwrite, delete], partitions: all, pattern: collector}
"""
EXPERIMENT = """model = "client"
seeds = 2
[setup]
duration_s = 5
runtime_s = 2
runtime_floor_s = 0
[sweep]
fast_append_ratio = [1.0, 0.5]
"""


MERGE_ON_READ = {f"write.{kind}.mode": "merge-on-read" for kind in ("delete", "update", "merge")}
FILES = 5
AT_REST = {"maintenance.quiet-ms": "1"}

SMALL = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": FAST_START,
    "spark.ui.enabled": "false",
}
SMALL_WORDS = [word for name, value in SMALL.items() for word in ("--conf", f"{name}={value}")]


class Daemon:
    """A master or a worker, as Spark's own scripts start it."""

    def __init__(self, folder: Path, *words: str, environment: Mapping[str, str]) -> None:
        self.log = folder / f"{words[0].rpartition('.')[2]}-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(SPARK / "bin" / "spark-class"), *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def says(self, pattern: str) -> re.Match[str]:
        end_s = time.monotonic() + WITHIN_S
        while (found := re.search(pattern, self.log.read_text(errors="replace"))) is None:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end_s, self.log.read_text()
            time.sleep(0.05)
        return found

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass(frozen=True)
class Cluster:
    """`uri` is that of the master, `page` that of its web page."""

    uri: str
    page: str
    folder: Path
    environment: Mapping[str, str]

    def finished(self) -> list[str]:
        """The names of the applications that have run on it."""
        page: Any = httpx2.get(f"{self.page}/json/", timeout=30).json()
        return [each["name"] for each in page["completedapps"]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    python = folder / "python"
    python.write_text(PYTHON.format(site=SITE, python=sys.executable))
    python.chmod(0o755)
    environment = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": str(python),
        "SPARK_DAEMON_JAVA_OPTS": FAST_START,
    }
    package = "org.apache.spark.deploy"
    ports = ("--host", "127.0.0.1", "--webui-port", "0")
    started: list[Daemon] = []
    try:
        master = Daemon(folder, f"{package}.master.Master", "--port", "0", *ports, environment=environment)
        started.append(master)
        uri = master.says(r"Starting Spark master at (spark://\S+)")[1]
        page = "http://127.0.0.1:" + master.says("Successfully started service 'MasterUI' on port ([0-9]+)")[1]
        for number in (1, 2):
            work = ("--cores", "1", "--memory", "700m", "--work-dir", str(folder / f"work{number}"), *ports)
            started.append(Daemon(folder, f"{package}.worker.Worker", uri, *work, environment=environment))
        for worker in started[1:]:
            worker.says("Successfully registered with master")
        yield Cluster(uri, page, folder, environment)
    finally:
        for each in started[::-1]:
            each.kill()


@pytest.fixture(scope="module")
def packed(cluster: Cluster) -> Path:
    """The page's archive, without the dependencies that `pip install` would put in."""
    for name in ("icetower", "icetower_simulator"):
        target = cluster.folder / "packed" / name
        shutil.copytree(SOURCE / name, target, ignore=shutil.ignore_patterns("__pycache__"))
    (tar,) = (line for line in PAGE["pip"].splitlines() if line.startswith("tar "))
    subprocess.run(shlex.split(tar), cwd=cluster.folder, check=True, timeout=WITHIN_S)
    return cluster.folder / "packed.tar.gz"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TowerProcess]:
    """A tower with a table, its log and a file that nothing refers to; one with deltas; two of small files."""
    tower = TowerProcess(tmp_path_factory.mktemp("shop") / "data")
    try:
        catalog = tower.catalog()
        for namespace in ("shop", "system"):
            catalog.create_namespace(namespace)
        columns = pa.schema([("store", pa.int64()), ("amount", pa.int64()), ("_idempotency_key", pa.string())])
        target = catalog.create_table("shop.sales", columns)
        with target.update_spec() as spec:
            spec.add_identity("store")
        log = catalog.create_table("shop.sales_log", columns.append(pa.field("_agent", pa.string())))
        with log.update_spec() as spec:
            spec.add_identity("_agent")
        rows = [{"store": store, "amount": 5, "_idempotency_key": f"k{store}", "_agent": "till"} for store in (1, 2)]
        log.append(pa.Table.from_pylist(rows, log.schema().as_arrow()))
        stock = pa.schema(
            [("item", pa.int64()), ("_event_time", pa.timestamp("us", tz="UTC")), ("_idempotency_key", pa.string())]
        )
        catalog.create_table("shop.stock", stock, properties={"format-version": "3", **MERGE_ON_READ})
        more = [pa.field("_operation", pa.string()), pa.field("_agent", pa.string())]
        deltas = catalog.create_table("shop.stock_deltas", pa.schema([*stock, *more]))
        with deltas.update_spec() as spec:
            spec.add_identity("_agent")
        change = {"item": 1, "_event_time": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "_idempotency_key": "c1"}
        change |= {"_operation": "upsert", "_agent": "till"}
        deltas.append(pa.Table.from_pylist([change], deltas.schema().as_arrow()))
        for name, keys in (("copies", ["k1"] * FILES), ("small", [f"k{number}" for number in range(FILES)])):
            table = catalog.create_table(f"shop.{name}", columns, properties=AT_REST)
            for key in keys:
                table.append(pa.Table.from_pylist([{"store": 1, "_idempotency_key": key}], columns))
        lost = Path(target.location().removeprefix("file:")) / "data" / "lost.parquet"
        lost.parent.mkdir(parents=True, exist_ok=True)
        lost.write_bytes(b"lost")
        os.utime(lost, (1_000_000_000, 1_000_000_000))
        yield tower
    finally:
        tower.stop()


def words(text: str, cluster: Cluster, packed: Path) -> list[str]:
    """A command of the page, for this cluster."""
    text = text.replace("spark://master:7077", cluster.uri).replace("packed.tar.gz", str(packed))
    return shlex.split(text.replace("\\\n", " "))


def words_of(job: str, shop: TowerProcess, folder: Path) -> list[str]:
    contracts = folder / "contracts"
    contracts.mkdir(exist_ok=True)
    (contracts / "till.yaml").write_text(CONTRACT)
    (folder / "small.toml").write_text(EXPERIMENT)
    return {
        "mediate": ["mediate", "--wal", "shop.sales_log", "--target", "shop.sales", "--contracts", str(contracts)],
        "orphans": ["orphans", "shop.sales"],
        "audits": ["audits", "shop.sales", "shop.sales_log"],
        "export": ["export"],
        "collect": [
            *["collect", "--deltas", "shop.stock_deltas", "--target", "shop.stock", "--keys", "item", "--contracts"],
            str(contracts),
        ],
        "dedup": ["dedup", "--target", "shop.copies"],
        "maintain": ["maintain", "shop.small"],
        "sweep": ["simulate", "sweep", str(folder / "small.toml")],
    }[job] + ["--uri", shop.uri, *([] if job in ("audits", "sweep") else ["--json"])]


def holds(job: str, shop: TowerProcess, said: str) -> bool:
    """Whether the job did its work, by what it printed and by the tables."""
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    match job:
        case "mediate":
            rows = shop.catalog().load_table("shop.sales").scan().to_arrow().to_pylist()
            counts = [(line["applied"], line["rejected"]) for line in lines]
            return counts == [(1, 1)] and [row["store"] for row in rows] == [1]
        case "orphans":
            return [Path(line["path"]).name for line in lines] == ["lost.parquet"]
        case "audits":
            return sorted((line["table"], line["error"], line["violations"]) for line in lines) == [
                ("shop.sales", None, []),
                ("shop.sales_log", None, []),
            ]
        case "collect":
            rows = shop.catalog().load_table("shop.stock").scan().to_arrow().to_pylist()
            return [line["applied"] for line in lines] == [1] and [row["item"] for row in rows] == [1]
        case "dedup":
            rows = shop.catalog().load_table("shop.copies").scan().to_arrow().to_pylist()
            return [line["removed"] for line in lines] == [FILES - 1] and len(rows) == 1
        case "maintain":
            return [(line["files_before"], line["files_after"]) for line in lines if line.get("task") == "compact"] == [
                (FILES, 1)
            ]
        case "export":
            rows = shop.catalog().load_table("system.iceberg_commits").scan().to_arrow().num_rows
            return rows > 0 and [line["attempts"] for line in lines] == [rows]
        case _:
            return shop.catalog().load_table("simulator.sweeps").scan().to_arrow().num_rows == 4


@pytest.mark.parametrize(
    "job",
    [
        *(pytest.param(job, marks=pytest.mark.sharp) for job in ("mediate", "export", "collect")),
        *(pytest.param(job, marks=pytest.mark.matrix) for job in ("orphans", "audits", "dedup", "maintain", "sweep")),
    ],
)
def test_a_job_runs_on_a_cluster(cluster: Cluster, packed: Path, shop: TowerProcess, job: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PAGE["#"])
    submit = words(PAGE["spark-submit"], cluster, packed)
    submit = [str(SPARK / "bin" / submit[0]), *submit[1 : submit.index("job.py")], *SMALL_WORDS, "job.py"]
    environment = {
        **os.environ,
        **cluster.environment,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "ICETOWER_TOKEN": shop.secret,
    }
    submit += words_of(job, shop, tmp_path)
    done = subprocess.run(
        submit, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert holds(job, shop, done.stdout), (done.stdout, done.stderr[-3000:])
    assert f"icetower-{job}" in cluster.finished()
    assert shop.secret not in done.stderr + done.stdout


@pytest.mark.sharp
def test_a_command_takes_a_master_and_settings(cluster: Cluster, packed: Path, shop: TowerProcess) -> None:
    """Without spark-submit: the driver is the command itself."""
    before = cluster.finished().count("icetower-audits")
    page = words(PAGE["pip"].partition("SECRET\n")[2], cluster, packed)
    done = subprocess.run(
        [*command(*page[1:]), "--uri", shop.uri, *SMALL_WORDS],
        env={**os.environ, **cluster.environment, "ICETOWER_TOKEN": shop.secret},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert json.loads(done.stdout)["error"] is None
    assert cluster.finished().count("icetower-audits") == before + 1


KILLING = """
import os
import signal
import sys

from icetower.cli import main
from icetower.pipelines import wal_mediator

mediate = wal_mediator.mediate


def of_an_executor(spark):
    for each in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{each}/cmdline").read()
        except OSError:
            continue
        if "CoarseGrainedExecutorBackend" in words and spark.sparkContext.applicationId in words:
            yield int(each)


def mediate_and_kill(spark, job, **more):
    def after(step):
        if step == os.environ["KILL_AFTER"]:
            os.kill(next(of_an_executor(spark)), signal.SIGKILL)
            print("killed an executor", file=sys.stderr)

    return mediate(spark, job, after=after, **more)


wal_mediator.mediate = mediate_and_kill
main()
"""


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param("planned", marks=pytest.mark.sharp),
        *(pytest.param(stage, marks=pytest.mark.matrix) for stage in ("rejections", "committed", "keys", "closed")),
    ],
)
def test_an_executor_may_be_killed_at_every_stage(
    cluster: Cluster, shop: TowerProcess, tmp_path: Path, stage: str
) -> None:
    """Spark does again what was lost with it, or the job fails and is run again: each row is there once."""
    catalog = shop.catalog()
    namespace = f"hit_{stage}"
    catalog.create_namespace(namespace)
    columns = pa.schema([("store", pa.int64()), ("_idempotency_key", pa.string())])
    target = catalog.create_table(f"{namespace}.sales", columns)
    log = catalog.create_table(f"{namespace}.sales_log", columns.append(pa.field("_agent", pa.string())))
    with log.update_spec() as spec:
        spec.add_identity("_agent")
    (tmp_path / "contracts").mkdir()
    granted = CONTRACT.replace("shop.sales", f"{namespace}.sales").replace("[{store: [1]}]", "all")
    (tmp_path / "contracts" / "till.yaml").write_text(granted)
    (tmp_path / "killing.py").write_text(KILLING)
    words = ["mediate", "--wal", f"{namespace}.sales_log", "--target", f"{namespace}.sales", "--contracts", "contracts"]
    run = [sys.executable, "killing.py", *words, "--uri", shop.uri, "--master", cluster.uri, *SMALL_WORDS, "--json"]
    keys = [f"{stage}-{row:03}" for row in range(100)]
    for half in (keys[:50], keys[50:]):  # two files, so that both executors have rows
        rows = [{"store": 1, "_idempotency_key": key, "_agent": "till"} for key in half]
        log.append(pa.Table.from_pylist(rows, log.schema().as_arrow()))
    said: list[str] = []
    for kill_after in (stage, "", ""):
        done = subprocess.run(
            run,
            cwd=tmp_path,
            env={**os.environ, **cluster.environment, "ICETOWER_TOKEN": shop.secret, "KILL_AFTER": kill_after},
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        said.append(done.stderr[-5000:])
        assert ("killed an executor" in done.stderr) is bool(kill_after), said
        if done.returncode == 0:
            break
    else:
        pytest.fail("\n\n".join(said))
    found = target.refresh().scan().to_arrow()
    logged = catalog.load_table("system.agent_dedup_log").scan().to_arrow()
    logged = logged.filter(pc.field("table_name") == f"{namespace}.sales")
    assert sorted(found["_idempotency_key"].to_pylist()) == sorted(logged["idempotency_key"].to_pylist()) == keys
