"""The figures are what wrapped PyIceberg clients counted: conflicts, lost answers, restarts, kills, two towers."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from pyiceberg.exceptions import CommitFailedException, ForbiddenError
from pyspark.sql.functions import lit
from requests import ConnectionError as LostAnswer

from icetower.errors import IcetowerError
from icetower.pipelines.session import spark_session
from tests.wire.counting_client import KEY, Wire, wrapped
from tests.wire.receivers import hook
from verify.kit.light_spark import LIGHT
from verify.kit.tower_process import SCHEMA, TowerProcess
from verify.wire.counting import counting

ROWS = pa.table({"id": pa.array([1], pa.int64()), "region": ["eu"]})
AGENTS, WRITES = 3, 4
TABLE = "exact.t"
CONTRACT = "owner: eve@example.com\ntables:\n  - {table: exact.t, operations: [append], partitions: all}\n"
NAMES = (
    "attempts", "landed", "refused", "conflicts", "unknown", "replayed", "retries", "first_tries", "first_try_landed",
)  # fmt: skip


@pytest.fixture
def towers(tmp_path: Path) -> Iterator[Callable[..., TowerProcess]]:
    """Starts towers on one data directory, and so on one control database."""
    with ExitStack() as running:

        def start(*arguments: str) -> TowerProcess:
            tower = TowerProcess(tmp_path / "data", *arguments)
            running.callback(lambda: tower.process.poll() is not None or tower.stop())
            return tower

        yield start


def prepared(tower: TowerProcess) -> dict[str, str]:
    """A table that says nothing of rebasing, and agents that may append to it: their secrets."""
    tower.catalog().create_namespace("exact")
    with tower.client() as http:
        http.post("/v1/namespaces/exact/tables", json={"name": "t", "schema": SCHEMA}).raise_for_status()
    return {f"exact-{n}": tower.principal(f"exact-{n}", CONTRACT) for n in range(AGENTS)}


def work(towers: list[TowerProcess], secrets: Mapping[str, str], wires: Mapping[str, Wire]) -> None:
    """Each agent appends several times, all at once; every second answer to the first one is lost."""
    start = Barrier(len(secrets))

    def agent(number: int, name: str) -> None:
        tower, wire = towers[number % len(towers)], wires[name]
        table = wrapped(tower.catalog(secrets[name]), tower.uri, wire).load_table(TABLE)
        start.wait(60)
        for write in range(WRITES):
            key = str(uuid4())
            wire.lose = int(number == 0 and write % 2 == 0)
            done = False
            for _ in range(30):
                try:
                    table.append(ROWS, snapshot_properties={KEY: key})
                    done = True
                    break
                except (CommitFailedException, LostAnswer):
                    table.refresh()
            assert done
        with pytest.raises(ForbiddenError):
            table.delete("id = 1", snapshot_properties={KEY: str(uuid4())})

    with ThreadPoolExecutor(len(secrets)) as pool:
        for each in [pool.submit(agent, number, name) for number, name in enumerate(secrets)]:
            each.result()


def figures(tower: TowerProcess) -> dict[str, dict[str, Any]]:
    return {row["principal"]: row for row in tower.admin.metrics(table=TABLE)["totals"]}


def agree(tower: TowerProcess, wires: Mapping[str, Wire]) -> None:
    shown = figures(tower)
    for name, wire in wires.items():
        assert {each: shown[name][each] for each in NAMES} == {each: wire.counts[each] for each in NAMES}, name
    windows = tower.admin.metrics(table=TABLE)["windows"]
    for name, wire in wires.items():
        assert sum(row["attempts"] for row in windows if row["principal"] == name) == wire.counts["attempts"]


@pytest.mark.parametrize("count", [1, 2])
def test_the_figures_are_what_the_clients_counted(towers: Callable[..., TowerProcess], count: int) -> None:
    running = [towers() for _ in range(count)]
    secrets = prepared(running[0])
    wires = {name: Wire() for name in secrets}
    work(running, secrets, wires)
    for tower in running:
        agree(tower, wires)
    together = sum((wire.counts for wire in wires.values()), wires["exact-0"].__class__().counts)
    assert together["replayed"] >= 1
    assert together["refused"] == AGENTS
    assert together["landed"] == AGENTS * WRITES

    # A tower that is asked to stop writes what waits; one that is killed has lost nothing that was written before.
    assert running[0].stop() == 0
    running[0] = towers()
    work(running, secrets, wires)
    agree(running[0], wires)  # it reads through what waits, so that the kill takes nothing
    agree(running[-1], wires)
    os.kill(running[0].process.pid, signal.SIGKILL)
    running[0].process.wait(60)
    running[0] = towers()
    agree(running[0], wires)
    work(running, secrets, wires)
    for tower in running:
        agree(tower, wires)
    with running[0].client() as http:
        text = http.get("/metrics").raise_for_status().text
    whole = {
        outcome: sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "icetower_write_attempts_total" and sample.labels["outcome"] == outcome
        )
        for outcome in ("direct", "conflict", "refused", "replayed")
    }
    sums = {name: sum(wire.counts[name] for wire in wires.values()) for name in NAMES}
    assert whole == {
        "direct": sums["landed"],
        "conflict": sums["conflicts"],
        "refused": sums["refused"],
        "replayed": sums["replayed"],
    }


@pytest.mark.spark
@pytest.mark.parametrize("count", [1, 2])
def test_the_figures_are_what_spark_s_clients_counted(towers: Callable[..., TowerProcess], count: int) -> None:
    """Each agent is a catalog of one Spark, whose commits a proxy counts, and now and then loses the answer of."""
    running = [towers() for _ in range(count)]
    secrets = prepared(running[0])
    wires = {name: Wire() for name in secrets}
    by_token = {f"Bearer {secrets[name]}": wire for name, wire in wires.items()}

    def seen(headers: Mapping[str, str], body: bytes, status: int) -> bool:
        return by_token[headers["Authorization"]].count(body, status)

    with ExitStack() as stack:
        uris = [stack.enter_context(counting(tower.uri, seen)).uri for tower in running]
        spark = spark_session("exactness", settings={"spark.master": "local[2]", **LIGHT})
        stack.callback(spark.stop)
        for number, (name, secret) in enumerate(secrets.items()):
            spark = spark_session("exactness", catalog_uri=uris[number % count], catalog_name=name, token=secret)
        start = Barrier(len(secrets))

        def agent(number: int, name: str) -> None:
            rows = spark.createDataFrame([(1, "eu")], "id BIGINT, region STRING")
            start.wait(60)
            for write in range(WRITES):
                option, key = f"snapshot-property.{KEY}", str(uuid4())
                wires[name].lose = int(number == 0 and write % 2 == 0)
                for _ in range(30):
                    try:
                        rows.writeTo(f"`{name}`.{TABLE}").option(option, key).append()
                        break
                    except Exception as error:
                        if not re.search("CommitFailed|CommitStateUnknown", str(error)):
                            raise
                else:
                    raise AssertionError("thirty tries were not enough")
            with pytest.raises(Exception, match="may not commit"):
                rows.writeTo(f"`{name}`.{TABLE}").option(option, str(uuid4())).overwrite(lit(True))

        with ThreadPoolExecutor(len(secrets)) as pool:
            for each in [pool.submit(agent, number, name) for number, name in enumerate(secrets)]:
                each.result()
    for tower in running:
        agree(tower, wires)
    assert wires["exact-0"].counts["replayed"] >= 1
    assert [wire.counts["landed"] for wire in wires.values()] == [WRITES] * AGENTS


def test_two_towers_send_one_notification_of_an_alert(towers: Callable[..., TowerProcess], tmp_path: Path) -> None:
    with hook([503]) as receiver:
        settings = tmp_path / "icetower.toml"
        settings.write_text(
            '[alerts]\nevery_s = 1\nwebhook = "ops"\n'
            "[alerts.rules]\n"
            'refusals = {metric = "commit_first_try_success", below = 0.9, at_least = 5, advice = "Look at it."}\n'
            f'[escalations.webhooks]\nops = {{url = "{receiver.url}"}}\n'
        )
        first, second = towers("--config", str(settings)), towers("--config", str(settings))
        secret = prepared(first)["exact-0"]
        table = first.catalog(secret).load_table(TABLE)
        table.append(ROWS, snapshot_properties={KEY: str(uuid4())})
        for _ in range(4):
            with pytest.raises(ForbiddenError):
                table.delete("id = 1", snapshot_properties={KEY: str(uuid4())})
        refused, arrived = receiver.next(), receiver.next()
        assert arrived.json == refused.json  # the first was answered 503
        said = arrived.json
        assert (said["event"], said["principal"], said["table"]) == ("alert.opened", "exact-0", TABLE)
        assert (said["rule"], said["value"], said["advice"]) == ("refusals", 0.2, "Look at it.")
        (shown,) = [each for each in second.admin.alerts()["alerts"] if each["rule"] == "refusals"]
        assert (shown["state"], shown["ticket"]) == ("firing", said["id"])
        second.admin.silence(id_=shown["id"], for_s=60, reason="known")
        assert {each["id"]: each["state"] for each in first.admin.alerts()["alerts"]}[shown["id"]] == "silenced"
        first.admin.end_silence(id_=shown["id"])
        with pytest.raises(IcetowerError, match="is not silenced"):
            second.admin.end_silence(id_=shown["id"])
        assert [tower.stop() for tower in (first, second)] == [0, 0]
        assert receiver.posts.empty()
