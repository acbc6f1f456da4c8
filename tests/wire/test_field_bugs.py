"""Bugs that others have met in the field, each replayed by name against a real tower: nothing lost, nothing twice.

The clients here do what the clients in the reports do, mistakes included: they send again, delete their files, forget
what they were told, or are two where there should be one. What they commit are real files, and in the end a stranger
reads the table with PyIceberg. What the tower cannot see, and so cannot mend, the scenario says.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icetower.agent import new_key
from icetower.iceberg.manifests import DATA, Entry, read_manifest_list
from verify.kit.forger import Forger, added, plain
from verify.kit.tower_process import TowerProcess, error_of
from verify.torture.kill import Launcher, Point

JSON = dict[str, Any]
Request = tuple[list[JSON], list[JSON]]
Marks = Mapping[str, str]
NO_MARKS: Marks = {}


class Client(Forger):
    """A client that writes real files. Its rows are numbers."""

    def file(self, name: str, *numbers: int) -> Entry:
        """A data file with some rows."""
        fields = [pa.field("region", pa.int32(), metadata={"PARQUET:field_id": "1"})]
        out = io.BytesIO()
        pq.write_table(pa.table({"region": pa.array(numbers, pa.int32())}, schema=pa.schema(fields)), out)
        path = self.path(self.load(), f"{name}.parquet")
        plain(path).parent.mkdir(parents=True, exist_ok=True)
        plain(path).write_bytes(out.getvalue())
        return added(path, (), rows=len(numbers), size_bytes=len(out.getvalue()))

    def adding(self, files: Sequence[Entry], marks: Marks = NO_MARKS, *, base: JSON | None = None) -> Request:
        """A commit that adds files, as Iceberg's library puts it together."""
        counts = {
            "added-data-files": str(len(files)),
            "added-records": str(sum(each.file.record_count for each in files)),
            "added-files-size": str(sum(each.file.size_bytes for each in files)),
        }
        return self.snapshot([(DATA, files)], base=base, summary={**counts, **marks})


def own_files(request: Request) -> list[Path]:
    """What a client has written for a commit, and may think that it has to clean up."""
    snapshot = request[1][0]["snapshot"]
    rows = read_manifest_list(plain(snapshot["manifest-list"]).read_bytes())
    own = [row.path for row in rows if row.added_snapshot_id == snapshot["snapshot-id"]]
    return [plain(path) for path in (snapshot["manifest-list"], *own)]


def delete(request: Request) -> None:
    """A client that takes an answer for a failure deletes what it has written."""
    for path in own_files(request):
        path.unlink()


def numbers(tower: TowerProcess, name: str) -> list[int]:
    """The rows of a table, as a stranger reads them."""
    return sorted(tower.catalog().load_table(name).scan().to_arrow()["region"].to_pylist())


class Place:
    """A table of the test's own, and clients of it."""

    def __init__(self, tower: TowerProcess, namespace: str) -> None:
        self.tower = tower
        self.namespace = namespace
        self.client = Client(tower.client(), namespace)
        self.client.create(spec=None)

    def another(self, token: str) -> Client:
        return Client(self.tower.client(token), self.namespace)

    @property
    def rows(self) -> list[int]:
        return numbers(self.tower, f"{self.namespace}.t")


@pytest.fixture
def place(tower: TowerProcess, namespace: str) -> Place:
    return Place(tower, namespace)


# ── Redpanda Connect #4591: an answer is lost, and the files are committed once more ─────────────────────────────────


def test_redpanda_connect_4591_a_post_that_the_transport_sends_again(place: Place) -> None:
    """The transport replays a POST on a connection that was dropped. Elsewhere the second one is a conflict with the
    first, upon which the committer reads the table anew and adds the same files again."""
    client = place.client
    request = client.adding([client.file("a", 1, 2), client.file("b", 3)])
    assert client.send(request).status_code == 200  # nobody hears it
    place.client.send(client.adding([client.file("other", 9)])).raise_for_status()
    again = client.send(request)
    assert again.status_code == 200, again.text
    assert place.rows == [1, 2, 3, 9]


def test_redpanda_connect_4591_the_same_files_in_a_second_snapshot(place: Place) -> None:
    """A timeout is no answer: the committer reads the table anew, and adds the same files in a new snapshot."""
    client = place.client
    files = [client.file("a", 1, 2), client.file("b", 3)]
    client.send(client.adding(files)).raise_for_status()  # nobody hears it
    again = client.send(client.adding(files))
    assert again.status_code == 200, again.text  # all of its files are there: it is done
    assert place.rows == [1, 2, 3]
    mixed = client.send(client.adding([*files, client.file("c", 4)]))
    assert (mixed.status_code, error_of(mixed)["rule"]) == (422, "file.exists")
    assert place.rows == [1, 2, 3]
    client.send(client.adding([client.file("c2", 4)])).raise_for_status()
    assert place.rows == [1, 2, 3, 4]


# ── DuckDB #786, ClickHouse #115390: a client that deletes what it has written ───────────────────────────────────────


def test_duckdb_786_files_are_deleted_when_a_commit_fails(place: Place) -> None:
    """The transaction is rolled back upon each answer that is no success, and its files go. So no such answer may come
    to what has landed: not when others have written since, nor when its writer may not write any more."""
    tower, namespace = place.tower, place.namespace
    grants = f"owner: o@example.com\ntables:\n  - {{table: {namespace}.t, operations: [append], partitions: all}}\n"
    name = f"duck_{namespace}"
    duck = place.another(tower.principal(name, grants))
    request = duck.adding([own_file(duck, "a", 1, 2)])
    assert duck.send(request).status_code == 200  # nobody hears it
    place.client.send(place.client.adding([place.client.file("other", 9)])).raise_for_status()
    answers = [duck.send(request)]
    tower.admin.revoke_contract(name)
    answers.append(duck.send(request))
    for answer in answers:
        if 400 <= answer.status_code < 500:
            delete(request)
    assert [answer.status_code for answer in answers] == [200, 504]
    assert "it has landed" in answers[1].json()["error"]["message"]
    assert place.rows == [1, 2, 9]


def own_file(client: Client, name: str, *rows: int) -> Entry:
    """A file in the client's own place: where its table says that its files go."""
    base = client.load()
    folder = base["properties"]["write.data.path"]
    entry = client.file(name, *rows)
    path = f"{folder}/{name}.parquet"
    plain(path).parent.mkdir(parents=True, exist_ok=True)
    shutil.move(plain(entry.file.path), plain(path))
    return added(path, (), rows=len(rows), size_bytes=entry.file.size_bytes)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [1, 2])
def test_clickhouse_115390_the_answer_of_the_swap_is_lost(tmp_path: Path, step: int, when: str) -> None:
    """The swap is done, and its answer lost: ClickHouse took that for another writer's success, and deleted its files.

    Here the tower dies right before or after it has written the metadata, and before or after the swap. Its client
    deletes upon a refusal, and sends the same again to the tower that comes after.
    """
    with Launcher(tmp_path) as launcher:
        data = tmp_path / "data"
        served = launcher.start(data)
        with httpx2.Client(base_url=served.uri or "", timeout=30) as http:
            http.post("/v1/namespaces", json={"namespace": ["db"]}).raise_for_status()
            client = Client(http, "db")
            client.create(spec=None)
            client.send(client.adding([client.file("first", 1)])).raise_for_status()
            request = client.adding([client.file("second", 2)])
        served.stop()
        served = launcher.start(data, Point(step, when))
        with httpx2.Client(base_url=served.uri or "", timeout=30) as http, pytest.raises(httpx2.TransportError):
            Client(http, "db").send(request)
        assert launcher.ended()[0] == -9
        served = launcher.start(data)
        with httpx2.Client(base_url=served.uri or "", timeout=30) as http:
            answer = Client(http, "db").send(request)
            if 400 <= answer.status_code < 500:
                delete(request)
            assert answer.status_code == 200, answer.text
            assert Client(http, "db").live() == ["first.parquet", "second.parquet"]
        assert served.stop()[0] == 0


# ── Iceberg #14583: the manifest list of the live snapshot is removed ────────────────────────────────────────────────


def test_iceberg_14583_a_retry_removes_the_manifest_list_of_the_live_snapshot(place: Place) -> None:
    """A commit lands, its answer is lost, and the transport sends it again. The catalog says that the table was
    modified. So Iceberg writes the same snapshot with a new manifest list, finds that it is there, and removes all
    lists but the newest: the live one goes. No conflict may be the answer to what has landed.
    """
    client = place.client
    request = client.adding([client.file("a", 1, 2)])
    client.send(request).raise_for_status()  # nobody hears it
    for _ in range(3):
        again = client.send(request)
        assert again.status_code == 200, again.text
        client.send(client.adding([client.file(new_key(), 9)])).raise_for_status()
    # What Iceberg does after a success: of its attempts' lists it keeps the one that the table names.
    saved = {each["snapshot-id"]: each["manifest-list"] for each in client.load()["snapshots"]}
    written = request[1][0]["snapshot"]
    assert saved[written["snapshot-id"]] == written["manifest-list"]
    # Its second attempt, were it sent: the same snapshot with another list. No answer upon which it would clean up.
    second = client.adding([client.file("a2", 1, 2)])
    second[1][0]["snapshot"]["snapshot-id"] = second[1][1]["snapshot-id"] = written["snapshot-id"]
    assert client.send(second).status_code == 422
    assert place.rows == [1, 2, 9, 9, 9]


# ── Iceberg #17340, #17551: Kafka Connect ────────────────────────────────────────────────────────────────────────────


def offsets(position: int, commit_id: str) -> dict[str, str]:
    """The summary of a commit of Kafka Connect's coordinator (Iceberg 1.12, `Coordinator.commitToTable`)."""
    return {
        "kafka.connect.offsets.control-iceberg.connect-sink": json.dumps({"0": position}),
        "kafka.connect.commit-id": commit_id,
        "kafka.connect.task-id": "sink-0",
        "engine-name": "kafka-connect",
    }


def test_iceberg_17340_files_are_committed_twice_after_a_restart(place: Place) -> None:
    """The consumer of the control topic goes back, and the position of the next commit with it. What was committed is
    read again, passes the filter by offsets, and comes once more: 19 of 24 files, in the report.

    Both commits are honest by their offsets. What gives the second away are its files.
    """
    coordinator = place.client
    files = [coordinator.file(f"f{n}", n) for n in range(24)]
    coordinator.send(coordinator.adding(files[:19], offsets(38_584_300, "c1"))).raise_for_status()
    again = coordinator.send(coordinator.adding(files, offsets(38_584_378, "c2")))
    assert (again.status_code, error_of(again)["rule"]) == (422, "file.exists")
    assert place.rows == list(range(19))
    # The coordinator ends with this error, which deletes nothing. The one that follows reads the control topic from
    # where the table is, by then without what was committed.
    coordinator.send(coordinator.adding(files[19:], offsets(38_584_378, "c3"))).raise_for_status()
    assert place.rows == list(range(24))


def test_iceberg_17551_a_zombie_coordinator(place: Place) -> None:
    """Two coordinators are at work. The zombie's position in the control topic stands still, and what it commits was
    committed by the other one. (That it sets back the offsets of its consumer group, which is the report's loss, is
    between it and Kafka; since Iceberg's #17552 it does not.)"""
    zombie, healthy = place.client, place.another(place.tower.secret)
    before = zombie.load()
    stale = zombie.adding([zombie.file("by-zombie", 1, 2)], offsets(100, "zombie"), base=before)
    healthy.send(healthy.adding([healthy.file("by-healthy", 1, 2)], offsets(105, "healthy"))).raise_for_status()
    answers = [zombie.send(stale)]
    # Older coordinators don't look again, and write the same on the head; newer ones say the table's own offsets.
    answers.append(zombie.send(zombie.adding([zombie.file("again", 1, 2)], offsets(100, "zombie"))))
    answers.append(zombie.send(zombie.adding([zombie.file("merged", 1, 2)], offsets(105, "zombie"))))
    # And one that has read on, but not the table since.
    ahead = zombie.adding([zombie.file("ahead", 1, 2, 3)], offsets(106, "zombie"), base=before)
    answers.append(zombie.send(ahead))
    heard = [(answer.status_code, error_of(answer)["rule"]) for answer in answers]
    assert heard == [(422, "sink.behind"), (422, "sink.behind"), (422, "sink.differs"), (422, "sink.behind")]
    assert place.rows == [1, 2]
    healthy.send(healthy.adding([healthy.file("next", 3)], offsets(106, "next"))).raise_for_status()
    assert place.rows == [1, 2, 3]


# ── Iceberg #10892: Flink from an older savepoint ────────────────────────────────────────────────────────────────────


def checkpoint(number: int) -> dict[str, str]:
    """The summary of a commit of Flink's sink (Iceberg 1.12, `IcebergCommitter.commitOperation`)."""
    return {
        "flink.max-committed-checkpoint-id": str(number),
        "flink.job-id": "00000000000000000000000000000000",  # as in a cluster for one job: it never changes
        "flink.operator-id": "e5d14f1a2b7c4a0c9f0d6c7b8a9e0f1d",
        "engine-name": "flink",
    }


def test_iceberg_10892_a_job_that_goes_on_from_an_older_savepoint(place: Place) -> None:
    """The job has committed checkpoints 1 to 5, and is started again from a savepoint at 2. It passes over what comes
    with checkpoints 3 to 5, since the table says that these are done, but they hold other rows by now.

    Flink decides so by itself where it finds its marks in the table, and sends nothing; the tower cannot know. Where it
    does send them, they are refused loudly, and never taken for done. And with the table set back to the savepoint's
    checkpoint, as docs/clients.md says, nothing is passed over.
    """
    job = place.client
    for number in range(1, 6):
        job.send(job.adding([job.file(f"c{number}", number)], checkpoint(number))).raise_for_status()
    for number in (3, 4):
        answer = job.send(job.adding([job.file(f"again{number}", number, 10 + number)], checkpoint(number)))
        assert (answer.status_code, error_of(answer)["rule"]) == (422, "sink.behind")
    assert place.rows == [1, 2, 3, 4, 5]
    savepoint = next(
        each["snapshot-id"]
        for each in job.load()["snapshots"]
        if each["summary"].get("flink.max-committed-checkpoint-id") == "2"
    )
    head = job.load()["refs"]["main"]["snapshot-id"]
    asserted = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": head}
    move = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": savepoint}
    job.commit([asserted], [move]).raise_for_status()
    assert place.rows == [1, 2]
    for number in (3, 4, 5):
        request = job.adding([job.file(f"back{number}", number, 10 + number)], checkpoint(number))
        job.send(request).raise_for_status()
        assert job.send(request).status_code == 200  # its answer was lost
    assert place.rows == [1, 2, 3, 4, 5, 13, 14, 15]


# ── Two runs of a stream, which nobody has given a name ──────────────────────────────────────────────────────────────


def epoch(query: str, number: int) -> dict[str, str]:
    return {"spark.sql.streaming.queryId": query, "spark.sql.streaming.epochId": str(number)}


@pytest.mark.parametrize(
    "marks",
    [
        lambda n: epoch("b1946ac9-2492-4d23-a0f5-0c1a2c5d5e51", n),
        checkpoint,
        lambda n: {"txnAppId": "prices", "txnVersion": str(n)},
    ],
    ids=["spark", "flink", "delta"],
)
def test_k6_two_runs_of_one_sink_land_each_number_once(place: Place, marks: Callable[[int], dict[str, str]]) -> None:
    """Both have looked at the table before either commits."""
    first, second = place.client, place.another(place.tower.secret)
    kept: list[Path] = []
    for number in range(1, 4):
        base = first.load()
        one = first.adding([first.file(f"first{number}", number)], marks(number), base=base)
        other = second.adding([second.file(f"other{number}", number)], marks(number), base=base)
        assert [first.send(one).status_code, second.send(other).status_code] == [200, 200]
        kept += own_files(one)
    assert place.rows == [1, 2, 3]
    late = second.send(second.adding([second.file("late", 2)], marks(2)))
    assert (late.status_code, error_of(late)["rule"]) == (422, "sink.behind")
    assert (error_of(late)["next_step"], "retry-after" in late.headers) == ("ask_owner", False)
    assert all(path.exists() for path in kept)
    assert place.rows == [1, 2, 3]
