"""After a lost answer: has the write landed, and will it never? With two towers, and with kills in between."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import RESTError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import StaticTable, Table

from icetower.agent import DataFile, Landed, Tower, keyed, new_key
from icetower.errors import BadRequest, Forbidden, IcetowerError, KeyMisused, NotFound, TooManyRequests, UsageError
from icetower.protocol.marks import FENCE
from verify.kit.tower_process import SCHEMA, TowerProcess, command
from verify.torture.kill import Launcher, Point

ROWS = pa.table({"id": pa.array([1], pa.int64()), "region": ["eu"]})
CONTRACT = "owner: a@example.com\ntables: [{{table: {0}.t, operations: [{1}], partitions: all}}]"
WITHIN_S = 60.0


@pytest.fixture
def table(tower: TowerProcess, catalog: Catalog, namespace: str) -> Table:
    return made(tower.admin, catalog, namespace)


def made(tower: Tower, catalog: Catalog, namespace: str) -> Table:
    path = f"/v1/namespaces/{namespace}/tables"
    tower._http.ask("POST", path, json={"name": "t", "schema": SCHEMA})  # pyright: ignore[reportPrivateUsage]
    return catalog.load_table((namespace, "t"))


def name_of(table: Table) -> str:
    return ".".join(table.name())


def write(table: Table, name: str = "a.parquet", *ids: int) -> DataFile:
    folder = Path(table.location().removeprefix("file://")) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    ids = ids or (1,)
    rows = pa.table({"id": ids, "region": ["eu"] * len(ids)}, schema=schema_to_pyarrow(table.schema()))
    pq.write_table(rows, folder / name)
    return DataFile.of_parquet(folder / name)


def told(found: Landed) -> tuple[bool | None, bool, str | None]:
    return found.landed, found.fenced, None if found.error is None else found.error.rule


def ids(table: Table) -> list[int]:
    return sorted(table.refresh().scan().to_arrow()["id"].to_pylist())


# -- one tower --------------------------------------------------------------------------------------------------------


def test_by_its_key_its_number_and_its_snapshot(tower: TowerProcess, table: Table) -> None:
    name, key = name_of(table), new_key()
    assert told(tower.admin.landed(name, key)) == (False, False, None)
    table.append(ROWS, snapshot_properties=keyed(key))
    (snapshot,) = table.refresh().snapshots()
    appended = tower.admin.append(name, [write(table)], application=("ingest", 7))
    for found, wanted in (
        (tower.admin.landed(name, key), snapshot.snapshot_id),
        (tower.admin.landed(name, snapshot_id=snapshot.snapshot_id), snapshot.snapshot_id),
        (tower.admin.landed(name, application=("ingest", 7)), appended.snapshot_id),
        (tower.admin.landed(name, application=("ingest", 6)), appended.snapshot_id),
        (tower.admin.fence(name, key), snapshot.snapshot_id),
    ):
        assert (found.landed, found.snapshot, found.fenced, found.error) == (True, wanted, False, None)
    for found in (
        tower.admin.landed(name, key, ref="dev"),
        tower.admin.landed(name, application=("ingest", 8)),
        tower.admin.landed(name, snapshot_id=17),
    ):
        assert told(found) == (False, False, None)
    table.refresh().manage_snapshots().rollback_to_snapshot(snapshot.snapshot_id).commit()
    assert told(tower.admin.landed(name, application=("ingest", 7))) == (None, False, "key.rolled-back")
    assert appended.snapshot_id is not None
    assert told(tower.admin.landed(name, snapshot_id=appended.snapshot_id)) == (None, False, "snapshot.rolled-back")


def test_what_is_fenced_never_lands(tower: TowerProcess, table: Table) -> None:
    name, key = name_of(table), new_key()
    assert told(tower.admin.fence(name, key)) == (False, True, None)
    assert told(tower.admin.fence(name, key)) == (False, True, None)
    assert told(tower.admin.landed(name, key)) == (False, True, "key.fenced")
    with pytest.raises(RESTError, match="fenced"):
        table.append(ROWS, snapshot_properties=keyed(key))
    with pytest.raises(KeyMisused) as refused:
        tower.admin.append(name, [write(table)], key=key)
    assert (refused.value.rule, refused.value.next_step) == ("key.fenced", "none")
    assert ids(table) == []
    path = f"/v1/namespaces/{table.name()[0]}/tables/t/check"
    with tower.client() as http:
        checked = http.post(path, json={"landed": {"key": key}}).json()
    assert (checked["allowed"], checked["outcome"], checked["error"]["rule"]) == (False, "refused", "key.fenced")
    table.refresh().append(ROWS, snapshot_properties=keyed(new_key()))
    assert ids(table) == [1]
    # Another's key of the same name is its own.
    other = tower.principal(f"{table.name()[0]}_other", CONTRACT.format(table.name()[0], "append"))
    with Tower(tower.uri, other) as theirs:
        assert told(theirs.landed(name, key)) == (False, False, None)


def test_only_a_tower_sets_fences_and_its_owner_may_lift_one(tower: TowerProcess, table: Table) -> None:
    name, key = name_of(table), new_key()
    tower.admin.fence(name, key)
    fences = [each for each in table.refresh().properties if each.startswith(FENCE)]
    assert len(fences) == 2  # of the key, and of the first request of rows under it
    with pytest.raises(Exception, match=r"property\.unknown"):
        table.transaction().set_properties({f"{FENCE}x": "1"}).commit_transaction()
    table.transaction().remove_properties(*fences).commit_transaction()
    assert told(tower.admin.landed(name, key)) == (False, False, None)


def test_who_may_ask(tower: TowerProcess, table: Table) -> None:
    namespace, _ = table.name()
    name, key = name_of(table), new_key()
    writer = tower.principal(f"{namespace}_writer", CONTRACT.format(namespace, "append"))
    reader = tower.principal(f"{namespace}_reader", f"owner: a@example.com\ntables: []\nreads: ['{namespace}.*']")
    stranger = tower.principal(f"{namespace}_stranger", "owner: a@example.com\ntables: []")
    with Tower(tower.uri, writer) as mine, Tower(tower.uri, reader) as theirs, Tower(tower.uri, stranger) as nobody:
        mine.append(name, [DataFile.of_parquet(put(mine, name, table))], key=key)
        assert mine.landed(name, key).landed
        assert theirs.landed(name, key).landed is False, "of its own writes"
        for asks in (
            lambda: theirs.landed(name, key, principal=f"{namespace}_writer"),
            lambda: theirs.fence(name, key),
            lambda: nobody.landed(name, key),
            lambda: nobody.fence(name, key),
        ):
            with pytest.raises(Forbidden):
                asks()
        assert tower.admin.landed(name, key, principal=f"{namespace}_writer").landed
        assert tower.admin.landed(name, key).landed is False
        lost = new_key()
        assert tower.admin.fence(name, lost, principal=f"{namespace}_writer").fenced
        with pytest.raises(KeyMisused, match="fenced"):
            mine.append(name, [DataFile.of_parquet(put(mine, name, table))], key=lost)
    with pytest.raises(NotFound):
        tower.admin.landed(f"{namespace}.none", key)


def put(tower: Tower, name: str, table: Table) -> str:
    """A file where the principal's own are."""
    path = tower.new_data_file(name)
    place = Path(path.removeprefix("file://"))
    place.parent.mkdir(parents=True, exist_ok=True)
    rows = pa.table({"id": [1], "region": ["eu"]}, schema=schema_to_pyarrow(table.schema()))
    pq.write_table(rows, place)
    return path


@pytest.mark.parametrize(
    "query",
    [
        "",
        "key=",
        "key=a&snapshot-id=1",
        "key=a&application=b&sequence=1",
        "application=b",
        "sequence=1",
        "application=b&sequence=-1",
        "snapshot-id=x",
        "snapshot-id=-1",
        f"snapshot-id={2**63}",
        "key=a&unknown=1",
        f"key={'a' * 1025}",
    ],
)
def test_a_question_that_names_no_write_is_400(tower: TowerProcess, table: Table, query: str) -> None:
    with tower.client() as http:
        assert http.get(f"/v1/namespaces/{table.name()[0]}/tables/t/landed?{query}").status_code == 400


@pytest.mark.parametrize(
    "body", [{}, {"key": ""}, {"key": "a", "application": {"id": "b", "sequence": 1}}, {"ref": "b"}]
)
def test_a_fence_that_names_no_write_is_400(tower: TowerProcess, table: Table, body: dict[str, Any]) -> None:
    with tower.client() as http:
        assert http.post(f"/v1/namespaces/{table.name()[0]}/tables/t/fence", json=body).status_code == 400
    with pytest.raises((UsageError, BadRequest)):
        tower.admin.fence("a.t")


def test_fences_are_bounded_and_so_are_questions(tower: TowerProcess, table: Table) -> None:
    namespace, _ = table.name()
    token = tower.principal(f"{namespace}_writer", CONTRACT.format(namespace, "append"))
    with Tower(tower.uri, token) as mine:

        def many() -> None:
            for _ in range(1_000):
                mine.landed(name_of(table), "k")

        with pytest.raises(TooManyRequests) as refused:
            many()
        assert (refused.value.rule, refused.value.next_step) == ("check.rate", "wait_until")
        assert (
            mine.append(name_of(table), [DataFile.of_parquet(put(mine, name_of(table), table))]).outcome == "appended"
        )


def test_from_the_command_line(tower: TowerProcess, table: Table) -> None:
    name, key, lost = name_of(table), new_key(), new_key()
    table.append(ROWS, snapshot_properties=keyed(key))
    (snapshot,) = table.refresh().snapshots()

    def ran(*words: str) -> tuple[int, Any]:
        environment = {**os.environ, "ICETOWER_URI": tower.uri, "ICETOWER_TOKEN": tower.secret}
        done = subprocess.run(
            command(*words, "--json"), capture_output=True, text=True, env=environment, timeout=WITHIN_S, check=False
        )
        lines = (done.stdout or done.stderr).splitlines()
        return done.returncode, json.loads(lines[-1])

    yes = {"landed": True, "partly": False, "snapshot": snapshot.snapshot_id, "fenced": False, "error": None}
    assert ran("landed", name, "--key", key) == (0, yes)
    assert ran("fence", name, "--key", key) == (3, yes)
    assert ran("landed", name, "--snapshot-id", str(snapshot.snapshot_id))[0] == 0
    assert ran("landed", name, "--key", lost) == (3, {**yes, "landed": False, "snapshot": None})
    fenced = {"landed": False, "partly": False, "snapshot": None, "fenced": True, "error": None}
    assert ran("fence", name, "--key", lost) == (0, fenced)
    status, answer = ran("landed", name, "--key", lost)
    assert (status, answer["fenced"], answer["error"]["rule"]) == (3, True, "key.fenced")
    assert ran("landed", name, "--key", new_key(), "--agent", "nobody")[0] == 1
    assert ran("fence", name, "--key", new_key(), "--agent", "nobody")[0] == 1
    assert ran("landed", name)[0] == 2
    assert ran("fence", name, "--application", "a")[0] == 2


# -- two towers -------------------------------------------------------------------------------------------------------


class Pair:
    """Two towers on one catalog, each with a control database of its own, open to all on loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.one = TowerProcess(folder / "one", "--open")
        self.towers = [self.one]
        self.catalog_file = folder / "one" / "catalog.db"
        self.catalog = load_catalog("one", type="rest", uri=self.one.uri)
        self.catalog.create_namespace("db")
        self.first = Tower(self.one.uri)
        self.table = made(self.first, self.catalog, "db")
        self.two = self.another("two")
        self.second = Tower(self.two.uri)

    def another(self, data: str) -> TowerProcess:
        """A tower that has never heard of anything: what a lost control database leaves."""
        config = self.folder / "same.toml"
        config.write_text(
            f'[upstream]\nuri = "sqlite:///{self.catalog_file}"\nwarehouse = "file://{self.folder}/one/warehouse"\n'
        )
        self.towers.append(TowerProcess(self.folder / data, "--open", "--config", str(config)))
        return self.towers[-1]

    def metadata_files(self) -> set[str]:
        return {path.name for path in (self.place / "metadata").glob("*.metadata.json")}

    @property
    def place(self) -> Path:
        return Path(self.table.location().removeprefix("file://"))

    def locked(self) -> sqlite3.Connection:
        """The catalog, which nobody else can write to until this is rolled back."""
        connection = sqlite3.connect(self.catalog_file, isolation_level=None, check_same_thread=False)
        connection.execute("BEGIN IMMEDIATE")
        return connection

    def halt(self) -> None:
        """Stop the first tower where it is. The signal alone returns before all of its threads stand still."""
        self.one.process.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self.one.process.pid}/task")
        until(lambda: all("T (stopped)" in (one / "status").read_text() for one in threads.iterdir()))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.first.close()
    pair.second.close()
    assert {tower.stop() for tower in pair.towers} <= {0, -signal.SIGKILL}


class Sent(threading.Thread):
    """A request on its way."""

    def __init__(self, uri: str, path: str, body: dict[str, Any], key: str) -> None:
        super().__init__(daemon=True)
        self.answer: httpx2.Response | None = None
        self._ask = uri + path, body, {"Idempotency-Key": key}
        self.start()

    def run(self) -> None:
        uri, body, headers = self._ask
        try:
            self.answer = httpx2.post(uri, json=body, headers=headers, timeout=WITHIN_S)
        except httpx2.TransportError:
            self.answer = None


def append_of(file: DataFile, key: str) -> dict[str, Any]:
    described = {"file-path": file.path, "file-format": "PARQUET", "record-count": file.record_count}
    return {"files": [described | {"file-size-in-bytes": file.size_bytes, "partition": {}}], "key": key}


def until(what: Callable[[], object]) -> None:
    """Wait for something that is about to be so."""
    ends_s = time.monotonic() + WITHIN_S
    while not what():
        assert time.monotonic() < ends_s, "it was never so"
        time.sleep(0.01)


def test_a_request_that_is_under_way_is_said_to_be_and_a_fence_waits_for_it(pair: Pair) -> None:
    key, known = new_key(), pair.metadata_files()
    catalog = pair.locked()
    sent = Sent(pair.one.uri, "/v1/namespaces/db/tables/t/append", append_of(write(pair.table), key), key)
    until(lambda: pair.metadata_files() - known)
    assert told(pair.first.landed("db.t", key)) == (None, False, "commit.under-way")
    assert told(pair.second.landed("db.t", key)) == (False, False, None), "another tower cannot know"
    catalog.rollback()
    found = pair.first.fence("db.t", key)  # behind it in the queue
    sent.join(WITHIN_S)
    assert sent.answer is not None
    assert (sent.answer.status_code, found.landed) == (200, True)
    assert found.snapshot == sent.answer.json()["snapshot-id"]
    assert pair.second.landed("db.t", key).snapshot == found.snapshot
    assert ids(pair.table) == [1]


@pytest.mark.parametrize("then", ["goes on", "is killed"])
def test_k4_a_zombie_at_one_tower_never_lands_after_the_fence_of_another(pair: Pair, then: str) -> None:
    """It has written all its files, and stands before its swap."""
    key, known = new_key(), pair.metadata_files()
    body = append_of(write(pair.table), key)
    catalog = pair.locked()
    sent = Sent(pair.one.uri, "/v1/namespaces/db/tables/t/append", body, key)
    until(lambda: pair.metadata_files() - known)
    pair.halt()
    catalog.rollback()
    assert told(pair.second.fence("db.t", key)) == (False, True, None)
    if then == "is killed":
        pair.one.process.kill()
    pair.one.process.send_signal(signal.SIGCONT)
    sent.join(WITHIN_S)
    if then == "goes on":
        assert sent.answer is not None
        assert (sent.answer.status_code, sent.answer.json()["error"]["rule"]) == (422, "key.fenced")
    else:
        assert sent.answer is None
        pair.one.process.wait()
    # Sent again, anywhere: also to a tower that has lost its control database.
    third = pair.another("three")
    for uri in (pair.two.uri, third.uri):
        again = httpx2.post(f"{uri}/v1/namespaces/db/tables/t/append", json=body, timeout=WITHIN_S)
        assert (again.status_code, again.json()["error"]["rule"]) == (422, "key.fenced")
    with Tower(third.uri) as stranger:
        assert told(stranger.landed("db.t", key)) == (False, True, "key.fenced")
    assert StaticTable.from_metadata(head_of(pair.catalog_file)).scan().to_arrow().num_rows == 0


def head_of(catalog: Path, table: str = "t") -> str:
    with sqlite3.connect(catalog) as connection:
        found = connection.execute("SELECT metadata_location FROM iceberg_tables WHERE table_name = ?", (table,))
        return str(found.fetchone()[0])


# -- a kill at every point --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", ["the writer's tower", "the fence's tower"])
def test_k4_whichever_tower_is_killed_wherever_what_is_said_holds(
    killed: str, tmp_path: Path, start_tower: Callable[..., TowerProcess]
) -> None:
    """Killed before and after each write and swap of an append, or a fence; then one is asked that knows nothing."""
    with Launcher(tmp_path) as launcher:
        served = launcher.start(tmp_path / "one")
        assert served.uri is not None
        catalog = load_catalog("one", type="rest", uri=served.uri)
        catalog.create_namespace("db")
        with Tower(served.uri) as tower:
            table = made(tower, catalog, "db")
        served.stop()
        config = tmp_path / "same.toml"
        config.write_text(
            f'[upstream]\nuri = "sqlite:///{tmp_path}/one/catalog.db"\nwarehouse = "file://{tmp_path}/one/warehouse"\n'
        )
        stranger = start_tower("--open", "--config", str(config), data="two")
        outcomes: set[tuple[str, str]] = set()
        for when in ("before", "after"):
            at, missed = 0, 0
            while missed < 2:
                at += 1
                shutil.rmtree(tmp_path / "three", ignore_errors=True)
                key, name = new_key(), f"{when}{at}.parquet"
                file = write(table, name, 100 * at + (when == "after"))
                died = one_killed(launcher, tmp_path, config, Point(at, when), killed, file, key)
                missed = 0 if died else missed + 1
                outcomes.add((when, what_holds(stranger, file, key)))
        # Before its swap nothing of it is there; after it, it is.
        assert {("before", "fenced"), ("after", "landed" if killed.startswith("the writer") else "fenced")} <= outcomes
        with Tower(stranger.uri) as tower:
            landed = {int(each) for each in ids(load_catalog("two", type="rest", uri=stranger.uri).load_table("db.t"))}
        assert len(landed) == len(ids(load_catalog("two", type="rest", uri=stranger.uri).load_table("db.t")))


def one_killed(
    launcher: Launcher, folder: Path, config: Path, point: Point, killed: str, file: DataFile, key: str
) -> bool:
    """Whether the tower died of it, to which the append was sent, or the fence."""
    served = launcher.start(folder / "one", point)
    if served.uri is None:
        served.stop()
        return True
    body = append_of(file, key)
    path = (
        "/v1/namespaces/db/tables/t/append" if killed.startswith("the writer") else "/v1/namespaces/db/tables/t/fence"
    )
    with suppress(httpx2.TransportError):
        httpx2.post(served.uri + path, json=body if path.endswith("append") else {"key": key}, timeout=WITHIN_S)
    status, _ = served.stop()
    return status == -signal.SIGKILL


def what_holds(stranger: TowerProcess, file: DataFile, key: str) -> str:
    """Fence it at a tower that has heard of nothing, and send the write again: both tell the same."""
    with Tower(stranger.uri) as tower:
        asked = tower.landed("db.t", key)
        found = tower.fence("db.t", key)
        assert found.landed is not None
        assert found.landed == asked.landed
        assert found.fenced != found.landed
        try:
            again = tower.append("db.t", [file], key=key).outcome
        except IcetowerError as error:
            again = error.rule
        assert again == ("replayed" if found.landed else "key.fenced")
        return "landed" if found.landed else "fenced"
