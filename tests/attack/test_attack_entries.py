"""An agent names a file of others in its own partition, and removes "it": only its own naming may go (R5)."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import fastavro
import orjson
import pytest

from icetower.iceberg.manifests import DATA, DELETED, Entry, read_manifest
from verify.kit.forger import OWNER, SPEC, Forger, added, plain
from verify.kit.tower_process import error_of

Forge = Callable[..., Forger]
MINE, THEIRS = (1, 2), (9, 9)
ID = 4_000_000_000_000_000


def named_twice(forge: Forge, **properties: str) -> tuple[Forger, Forger, dict[str, Any]]:
    """An administrator's file, which an agent has named in its own partition once more: both, and the table then."""
    admin = forge()
    admin.create(2, **properties)
    assert admin.send(admin.append("theirs.parquet", partition=THEIRS)).status_code == 200
    agent = forge(OWNER)
    agent.publish(admin, agent.append("theirs.parquet", partition=MINE))
    assert agent.live() == ["theirs.parquet"] * 2
    return admin, agent, agent.load()


def removal(agent: Forger, base: dict[str, Any], *tombstones: tuple[Any, ...], drop: int, **summary: str) -> Any:
    """Drops manifests, newest first, with DELETED entries of these partitions."""
    rows = agent.rows(base, base["refs"]["main"]["snapshot-id"])
    found = {
        entry.file.partition: Entry(DELETED, ID, row.sequence_number, row.sequence_number, entry.file)
        for row in rows
        for entry in read_manifest(plain(row.path).read_bytes()).entries
    }
    return agent.snapshot(
        [(DATA, [found[partition] for partition in tombstones])],
        base=base,
        drop=[row.path for row in rows[:drop]],
        operation="delete",
        snapshot_id=ID,
        summary=summary,
    )


@pytest.mark.parametrize(
    ("tombstones", "rule"), [([MINE], "contract.manifest"), ([MINE, THEIRS], "contract.partitions")]
)
def test_r5_one_naming_of_a_file_does_not_stand_for_that_of_its_owner(
    forge: Forge, tombstones: list[tuple[Any, ...]], rule: str
) -> None:
    _, agent, base = named_twice(forge)
    assert error_of(agent.send(removal(agent, base, *tombstones, drop=2)))["rule"] == rule
    assert agent.live() == ["theirs.parquet"] * 2
    assert agent.send(removal(agent, base, MINE, drop=1)).status_code == 200
    head = agent.load()
    (row,) = [row for row in agent.rows(head, head["current-snapshot-id"]) if not row.deleted_files]
    assert read_manifest(plain(row.path).read_bytes()).entries[0].file.partition == THEIRS
    assert head["snapshots"][-1]["summary"]["total-data-files"] == "1"


def test_r5_a_removal_done_again_in_merged_manifests_leaves_the_naming_of_others(forge: Forge) -> None:
    admin, agent, base = named_twice(forge, **{"commit.manifest.min-count-to-merge": "10"})
    parts = [{"type": "eq", "term": "region", "value": 1}, {"type": "eq", "term": "product", "value": 2}]
    where = orjson.dumps({"type": "and", "left": parts[0], "right": parts[1]}).decode()
    reads = {"icetower.isolation-level": "serializable", "icetower.filter": where}
    stale = removal(agent, base, MINE, drop=1, **reads)
    for n in range(14):
        request = admin.append(f"{n}.parquet", partition=(5, 5), base=base, summary={"icetower.blind": "true"})
        assert admin.send(request).status_code == 200
    before = agent.load()
    paths = {row.path for row in agent.rows(before, before["current-snapshot-id"])}
    assert not paths & {row.path for row in agent.rows(base, base["current-snapshot-id"])}, "nothing was merged"
    assert agent.send(stale).status_code == 200
    after = agent.load()
    rows = agent.rows(after, after["current-snapshot-id"])
    live = [e.file for r in rows for e in read_manifest(plain(r.path).read_bytes()).entries if e.status != DELETED]
    assert [file.partition for file in live if file.path.endswith("theirs.parquet")] == [THEIRS]
    assert after["snapshots"][-1]["summary"]["total-data-files"] == str(len(live)) == "15"


def marked_deleted(by: int) -> Callable[[bytes], bytes]:
    """A manifest whose DELETED entries say that another snapshot removed their files."""

    def forgery(data: bytes) -> bytes:
        reader = fastavro.reader(io.BytesIO(data))
        rows: list[Any] = [{**row, "snapshot_id": by} if row["status"] == DELETED else row for row in reader]
        written = io.BytesIO()
        metadata = {name: value for name, value in reader.metadata.items() if not name.startswith("avro.")}
        fastavro.writer(written, reader.writer_schema, rows, codec="deflate", metadata=metadata)
        return written.getvalue()

    return forgery


def test_r5_no_agent_marks_a_file_of_another_table_as_deleted(forge: Forge) -> None:
    """A purge, or an expiry by Java's core, deletes what such an entry names."""
    admin, agent = forge(), forge(OWNER)
    theirs = admin.path(replace(admin, table="other").create(2), "a.parquet")
    admin.create(2)
    named = Entry(DELETED, ID, 1, 1, added(theirs, MINE).file)
    new = added(agent.path(agent.load(), "b.parquet"), MINE)
    answer = agent.send(agent.snapshot([(DATA, [new, named])], rewrite=marked_deleted(777)))
    assert (answer.status_code, error_of(answer)["rule"]) == (400, "contract.manifest")
    assert "is marked DELETED by snapshot 777" in error_of(answer)["message"]
    assert agent.live() == []


def test_r5_a_commit_of_two_vectors_for_one_data_file_is_refused(forge: Forge) -> None:
    admin = forge()
    base = admin.create(3, None)
    assert admin.send(admin.append("a.parquet", partition=())).status_code == 200
    target = admin.path(base, "a.parquet")
    two = [admin.vector(base, f"{n}.puffin", target, [n]) for n in range(2)]
    refused = error_of(admin.send(admin.snapshot([(1, two)], operation="delete")))
    assert (refused["rule"], "has 2 deletion vectors" in refused["message"]) == ("contract.manifest", True)
    assert admin.live() == ["a.parquet"]


@pytest.mark.parametrize(("spec", "place"), [(None, ()), (SPEC, MINE)])
def test_r5_a_second_vector_beside_one_in_a_manifest_that_is_kept_is_refused(
    forge: Forge, spec: dict[str, Any] | None, place: tuple[Any, ...]
) -> None:
    admin = forge()
    base = admin.create(3, spec)
    assert admin.send(admin.append("a.parquet", "b.parquet", partition=place)).status_code == 200
    writer = forge(OWNER) if spec else admin
    target, other = admin.path(base, "a.parquet"), admin.path(base, "b.parquet")
    first = writer.vector(base, "1.puffin", target, [1], place)
    assert writer.send(writer.snapshot([(1, [first])], operation="delete")).status_code == 200
    second = writer.vector(base, "2.puffin", target, [1, 2], place)
    answer = writer.send(writer.snapshot([(1, [second])], operation="delete"))
    assert (answer.status_code, error_of(answer)["rule"]) == (400, "contract.manifest")
    assert "has a deletion vector in manifest" in error_of(answer)["message"]
    assert writer.live() == ["1.puffin", "a.parquet", "b.parquet"]

    beside = writer.vector(base, "3.puffin", other, [1], place)
    assert writer.send(writer.snapshot([(1, [beside])], operation="delete")).status_code == 200
    now = writer.load()
    rows = [row for row in writer.rows(now, now["current-snapshot-id"]) if row.content]
    (drop,) = [row for row in rows if row.sequence_number == 2]
    gone = Entry(DELETED, ID, 2, 2, first.file)
    instead = writer.snapshot([(1, [second, gone])], drop=[drop.path], operation="delete", snapshot_id=ID)
    assert writer.send(instead).status_code == 200
    assert writer.live() == ["2.puffin", "3.puffin", "a.parquet", "b.parquet"]


def test_r5_no_second_vector_of_one_commit_hides_in_the_manifest_of_its_first_snapshot(forge: Forge) -> None:
    admin = forge()
    base = admin.create(3, None)
    assert admin.send(admin.append("a.parquet", partition=())).status_code == 200
    target = admin.path(base, "a.parquet")
    requirements, updates = admin.snapshot([(1, [admin.vector(base, "1.puffin", target, [1])])], operation="delete")
    first = updates[0]["snapshot"]
    seen = admin.load()
    seen["snapshots"].append(first)
    seen["refs"]["main"]["snapshot-id"] = first["snapshot-id"]
    seen["last-sequence-number"], seen["next-row-id"] = 2, first["first-row-id"] + first["added-rows"]
    second = admin.vector(base, "2.puffin", target, [2])
    _, more = admin.snapshot([(1, [second])], base=seen, operation="delete")
    assert error_of(admin.commit(requirements, updates + more))["rule"] == "contract.manifest"
    assert admin.live() == ["a.parquet"]
    assert admin.commit(requirements, updates).status_code == 200


def test_r5_a_vector_is_listed_where_its_data_file_is(forge: Forge) -> None:
    """Elsewhere readers refuse it, and a second one for the same file would not be found beside the first."""
    admin = forge()
    base = admin.create(3)
    agent = forge(OWNER.replace("product: 2", "product: [2, 3]"))
    assert agent.send(agent.append("a.parquet")).status_code == 200
    target = agent.path(base, "a.parquet")
    for place, status in (((1, 3), 400), (MINE, 200)):
        vector = agent.vector(base, f"{place[1]}.puffin", target, [1], place)
        answer = agent.send(agent.snapshot([(1, [vector])], operation="delete"))
        assert answer.status_code == status, answer.text
        assert status == 200 or error_of(answer)["rule"] == "contract.manifest"
    assert admin.live() == ["2.puffin", "a.parquet"]


@pytest.mark.parametrize("lie", [{"rows": 0}, {"rows": 3}, {"content_offset": 5}, {"content_size_in_bytes": 8}])
def test_r5_a_vector_with_other_rows_than_its_entry_says_is_refused(forge: Forge, lie: dict[str, int]) -> None:
    """No reader would take it, and by a wrong count of rows an overwrite could pass for a rewrite."""
    admin = forge()
    base = admin.create(3, None)
    assert admin.send(admin.append("a.parquet", partition=())).status_code == 200
    target = admin.path(base, "a.parquet")
    vectors = [admin.vector(base, f"{n}.puffin", target, [3, 4], **told) for n, told in enumerate((lie, {}))]
    answers = [admin.send(admin.snapshot([(1, [vector])], operation="delete")) for vector in vectors]
    assert [answer.status_code for answer in answers] == [400, 200]
    assert error_of(answers[0])["rule"] == "vector.readable"
    assert admin.live() == ["1.puffin", "a.parquet"]


def test_r5_a_vector_that_is_not_there_is_refused_and_told_of_to_nobody_who_may_not_write_it(forge: Forge) -> None:
    admin = forge()
    base = admin.create(3)
    agent = forge(OWNER)
    assert agent.send(agent.append("a.parquet")).status_code == 200
    vector = agent.vector(base, "v.puffin", agent.path(base, "a.parquet"), [1], MINE)
    plain(vector.file.path).unlink()
    answer = agent.send(agent.snapshot([(1, [vector])], operation="delete"))
    assert (answer.status_code, error_of(answer)["rule"]) == (400, "vector.readable")
    elsewhere = agent.vector(base, "../../../elsewhere", agent.path(base, "a.parquet"), [1], MINE)
    plain(elsewhere.file.path).unlink()
    answer = agent.send(agent.snapshot([(1, [elsewhere])], operation="delete"))
    assert error_of(answer)["rule"] == "contract.location"


TYPED = {
    "schema": {
        "type": "struct",
        "fields": [
            {"id": 1, "name": "at", "type": "timestamp", "required": False},
            {"id": 2, "name": "price", "type": "decimal(9, 2)", "required": False},
        ],
    },
    "partition-spec": {
        "spec-id": 0,
        "fields": [
            {"name": "at", "transform": "identity", "source-id": 1, "field-id": 1000},
            {"name": "price", "transform": "identity", "source-id": 2, "field-id": 1001},
        ],
    },
}


@pytest.mark.parametrize(
    ("written", "forged"),
    [(b"timestamp-micros", b"timestamp-millis"), (b'"scale":2', b'"scale":1')],
)
def test_r5_partition_values_in_another_unit_are_no_values_of_the_table(
    forge: Callable[..., Forger], namespace: str, written: bytes, forged: bytes
) -> None:
    """Readers go by the type that a manifest says it is written with: these deletes would reach another partition."""
    admin = forge()
    body = {"name": "typed", **TYPED, "properties": {"format-version": "2"}}
    assert admin.http.post(f"/v1/namespaces/{namespace}/tables", json=body).status_code == 200
    writer = replace(admin, table="typed")
    base = writer.load()
    entry = added(writer.path(base, "a.parquet"), (1_485_905_460_000, Decimal("-2.40")))

    def forgery(data: bytes) -> bytes:
        assert len(written) == len(forged)
        assert written in data
        return data.replace(written, forged)

    answer = writer.send(writer.snapshot([(DATA, [entry])], base=base, rewrite=forgery))
    assert (answer.status_code, error_of(answer)["rule"]) == (400, "contract.manifest")
    assert writer.live() == []
    assert writer.send(writer.snapshot([(DATA, [entry])], base=base)).status_code == 200


def test_r5_a_deletion_vector_that_is_older_than_its_file_is_refused(forge: Forge) -> None:
    """Readers refuse a table with one: whoever owns a single file could take all rows from everybody."""
    forge().create(3)
    agent = forge(OWNER)
    assert agent.send(agent.append("first.parquet")).status_code == 200
    assert agent.send(agent.append("a.parquet")).status_code == 200
    base = agent.load()
    vector = agent.vector(base, "v.puffin", agent.path(base, "a.parquet"), [0], MINE)

    older = agent.snapshot([(1, [replace(vector, sequence_number=1)])], base=base, operation="delete")
    answer = agent.send(older)
    assert (answer.status_code, error_of(answer)["rule"]) == (400, "contract.manifest")
    assert "sequence number 1" in answer.text
    assert agent.live() == ["a.parquet", "first.parquet"]
    assert agent.send(agent.snapshot([(1, [vector])], base=base, operation="delete")).status_code == 200
    assert agent.live() == ["a.parquet", "first.parquet", "v.puffin"]
