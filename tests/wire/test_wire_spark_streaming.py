"""Spark's Structured Streaming through the tower, by two drivers where there should be one: each epoch is there once.

The job is any user's, without a word about keys. Spark passes over an epoch that it finds in the table before it
commits. What lies between that look and the commit, and where it does not look, is for the tower to see.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog

from verify.exchanges.recorder import recording
from verify.kit.tower_process import TowerProcess
from verify.wire.counting import counting

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parent.parent.parent
COLUMNS = pa.schema([pa.field("id", pa.int64())])
ENDS_WITHIN_S = 240
EPOCHS = 3


class Driver:
    """A driver: a process in Python, and its JVM."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self._jvm = process.stdout.readline()

    def ended(self) -> tuple[int, str]:
        """Exit status, and what it says."""
        try:
            _, said = self._process.communicate(timeout=ENDS_WITHIN_S)
        finally:
            self._process.kill()
        return self._process.returncode, said

    def kill(self) -> None:
        """The JVM first: what it was about to do, it does not."""
        os.killpg(int(self._jvm), signal.SIGKILL)
        self._process.kill()


class Stream:
    """A table, a source with a file for each epoch, and drivers of one query."""

    def __init__(self, tower: TowerProcess, catalog: Catalog, namespace: str, home: Path) -> None:
        self.tower = tower
        self.home = home
        self.table = f"{namespace}.t"
        self.source = home / "source"
        self.checkpoint = home / "checkpoint"
        catalog.create_table(self.table, COLUMNS)
        self.source.mkdir()
        for epoch in range(EPOCHS):
            pq.write_table(pa.table({"id": [2 * epoch, 2 * epoch + 1]}), self.source / f"{epoch}.parquet")

    def start(self, uri: str, *, checkpoint: Path | None = None, branch: str = "") -> Driver:
        """A driver whose Spark runs."""
        table = f"{self.table}.branch_{branch}" if branch else self.table
        where = str(checkpoint or self.checkpoint)
        arguments = ("tests.wire.streaming_driver", uri, self.tower.secret, table, str(self.source), where)
        command = [sys.executable, "-m", *arguments]
        pipe = subprocess.PIPE
        return Driver(subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True))

    def ids(self, branch: str = "main") -> list[int]:
        table = self.tower.catalog().load_table(self.table)
        snapshot = table.metadata.refs[branch].snapshot_id
        return sorted(table.scan(snapshot_id=snapshot).to_arrow()["id"].to_pylist())


@pytest.fixture
def stream(tower: TowerProcess, catalog: Catalog, namespace: str, tmp_path: Path) -> Stream:
    return Stream(tower, catalog, namespace, tmp_path)


def test_k6_a_driver_is_killed_before_it_hears_that_its_epoch_has_landed(stream: Stream, catalog: Catalog) -> None:
    """The next driver makes the epoch anew, with other files. Of a branch Spark does not see that it is there: it looks
    at the table's main line, whatever it writes to."""
    table = catalog.load_table(stream.table)
    table.append(pa.table({"id": pa.array([], pa.int64())}))
    first = table.refresh().metadata.current_snapshot_id
    assert first is not None
    table.manage_snapshots().create_branch(snapshot_id=first, branch_name="b").commit()
    drivers: list[Driver] = []
    commits: list[int] = []

    def seen(_headers: Mapping[str, str], body: bytes, status: int) -> bool:
        commits.append(status)
        if len(commits) < 2:
            return False
        drivers[0].kill()
        return True

    with counting(stream.tower.uri, seen) as proxy:
        drivers.append(stream.start(proxy.uri, branch="b"))
        status, said = drivers[0].ended()
    assert (status, commits) == (-9, [200, 200]), said
    status, said = stream.start(stream.tower.uri, branch="b").ended()
    assert status == 0, said
    assert stream.ids("b") == list(range(2 * EPOCHS))
    assert stream.tower.outcomes(stream.table).count("replayed") == 1


def test_k6_a_driver_that_everybody_has_given_up_wakes_up_again(stream: Stream) -> None:
    """It has looked at the table, and its commit is on its way, when another driver goes on from its checkpoint. What
    it sends then is refused, in a way upon which Spark deletes nothing."""
    held, released = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        released.wait(ENDS_WITHIN_S)

    with recording(stream.tower.uri) as proxy:
        for hook in (lambda: None, hold):  # the first epoch lands
            proxy.before_commit("t", hook)
        zombie = stream.start(proxy.uri)
        try:
            assert held.wait(ENDS_WITHIN_S)
            copy = shutil.copytree(stream.checkpoint, stream.home / "copy")
            status, said = stream.start(stream.tower.uri, checkpoint=copy).ended()
            assert status == 0, said
            assert stream.ids() == list(range(2 * EPOCHS))
        finally:
            released.set()
            status, said = zombie.ended()
    assert status == 3
    assert "rule sink.behind" in said
    assert stream.ids() == list(range(2 * EPOCHS))
    location = stream.tower.catalog().load_table(stream.table).location().removeprefix("file://")
    assert len([*Path(location, "data").rglob("*.parquet")]) == EPOCHS + 1  # what it wrote may have been live


def test_a3_java_sends_again_by_itself_under_one_key(stream: Stream) -> None:
    """Iceberg's client, from 1.12 on, where a server says for how long it knows keys: the connection breaks before the
    answer, and the very same request comes again. The job hears of nothing."""
    keys: list[str] = []
    statuses: list[int] = []

    def seen(headers: Mapping[str, str], _body: bytes, status: int) -> bool:
        keys.append({name.lower(): text for name, text in headers.items()}["idempotency-key"])
        statuses.append(status)
        return len(keys) == 1

    with counting(stream.tower.uri, seen) as proxy:
        status, said = stream.start(proxy.uri).ended()
    assert status == 0, said
    assert statuses == [200] * (EPOCHS + 1)
    assert keys[0] == keys[1]
    assert len(set(keys)) == EPOCHS
    assert stream.ids() == list(range(2 * EPOCHS))
