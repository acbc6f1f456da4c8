"""An agent that owns one partition tries to reach what is not its own, through real files and a real server."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from icetower.agent import new_key
from icetower.iceberg.avro_files import _joined, _split  # pyright: ignore[reportPrivateUsage]
from icetower.iceberg.manifest_writing import write_manifest_list
from icetower.iceberg.manifests import DATA, DELETED, EXISTING, read_manifest_list
from tests.commit.engine_world import creation
from verify.kit.forger import OWNER, SCHEMA, Forger, added, plain
from verify.kit.tower_process import TowerProcess, error_of

Forge = Callable[..., Forger]
MINE, THEIRS = (1, 2), (2, 1)
ALL = "write_location: table, partitions: all"
EVERYTHING = f"tables:\n  - {{table: NS.*, operations: [create, read, append, alter, drop], {ALL}}}\n"


def register(forger: Forger, location: str, **more: Any) -> httpx2.Response:
    body = {"name": forger.table, "metadata-location": location, **more}
    return forger.http.post(f"/v1/namespaces/{forger.namespace}/register", json=body)


def swapped_header(data: bytes) -> bytes:
    """The partition fields of the header in another order: (2, 1) reads as (1, 2)."""
    header, body = _split(data)
    header["meta"]["partition-spec"] = orjson.dumps(orjson.loads(header["meta"]["partition-spec"])[::-1])
    return _joined(header, body)


def nameless_partition(data: bytes) -> bytes:
    """Partition values without field ids: engines read null, whoever goes by names reads what is written."""
    header, body = _split(data)
    schema = orjson.loads(header["meta"]["avro.schema"])
    for field in schema["fields"]:
        for part in field["type"].get("fields", ()) if isinstance(field["type"], dict) else ():
            if part.get("field-id") == 102:
                for column in part["type"]["fields"]:
                    column["name"] = f"partition_{column.pop('field-id')}"
    header["meta"]["avro.schema"] = orjson.dumps(schema)
    return _joined(header, body)


@pytest.mark.parametrize(
    ("partition", "rewrite", "rule", "words"),
    [
        (THEIRS, None, "contract.partitions", "doesn't own region=2/product=1"),
        (THEIRS, swapped_header, "contract.manifest", "has partition fields [1001, 1000] in its header"),
        (MINE, nameless_partition, "manifest.readable", "there is no partition field 1000"),
    ],
    ids=["honest", "swapped", "nameless"],
)
def test_r5_a_manifests_header_does_not_decide_which_partition_a_file_is_in(
    forge: Forge, partition: tuple[Any, ...], rewrite: Any, rule: str, words: str
) -> None:
    forge().create()
    agent = forge(OWNER)
    assert agent.send(agent.append("mine.parquet")).status_code == 200
    answer = agent.send(agent.append("evil.parquet", partition=partition, rewrite=rewrite))
    assert error_of(answer)["rule"] == rule
    assert words in error_of(answer)["message"]
    assert agent.live() == ["mine.parquet"]


def test_r5_a_deletion_vector_reaches_a_file_wherever_it_is_named_once_more(forge: Forge) -> None:
    admin = forge()
    base = admin.create(3)
    assert admin.send(admin.append("theirs.parquet", partition=(9, 9))).status_code == 200
    agent = forge(OWNER)
    theirs = agent.path(base, "theirs.parquet")
    vector = {"content": 1, "referenced_data_file": theirs, "content_offset": 4, "content_size_in_bytes": 40}
    deletes = (1, [added(agent.path(base, "dv.puffin"), MINE, **vector)])
    pretence = (0, [added(theirs, MINE)])
    in_one_commit = agent.send(agent.snapshot([pretence, deletes], operation="overwrite"))
    assert error_of(in_one_commit)["partitions"] == ["region=9/product=9"]
    assert error_of(agent.send(agent.snapshot([pretence])))["rule"] == "file.exists"
    agent.publish(admin, agent.snapshot([pretence]))  # what a tuple says is believed: a stated limit
    in_two = agent.send(agent.snapshot([deletes], operation="delete"))
    assert error_of(in_two)["partitions"] == ["region=9/product=9"]


@pytest.mark.parametrize("name", ["updates", "updated"])
def test_where_files_are_written_is_not_an_agents_to_say_under_an_early_name_either(
    forge: Forge, tmp_path: Path, name: str
) -> None:
    forge().create()
    agent = forge("tables:\n  - {table: NS.t, operations: [alter], partitions: all}\n")
    update = {"action": "set-properties", name: {"write.metadata.path": f"file://{tmp_path}/evil"}}
    assert error_of(agent.commit([], [update]))["rule"] == "contract.location"
    assert list(tmp_path.iterdir()) == []


def test_a_purge_deletes_no_statistics_that_lie_elsewhere(forge: Forge, tmp_path: Path) -> None:
    """And no file of the table that is something else; an expiry deletes statistics, too."""
    agent = forge(EVERYTHING)
    agent.create()
    assert agent.send(agent.append("live.parquet")).status_code == 200
    base = agent.load()
    live, listed = agent.path(base, "live.parquet"), base["snapshots"][0]["manifest-list"]
    row = agent.rows(base, base["current-snapshot-id"])[0].path
    metadata = agent.http.get(agent.url).json()["metadata-location"]
    for part in ("statistics", "partition-statistics"):
        for path in (f"file://{tmp_path}/precious.stats", live, listed, row, metadata):
            file = {"snapshot-id": base["current-snapshot-id"], "statistics-path": path, "file-size-in-bytes": 1}
            answer = agent.commit([], [{"action": f"set-{part}", part: file}])
            assert (answer.status_code, error_of(answer)["rule"]) == (403, "contract.location"), path
    own = f"{base['location']}/metadata/partition-stats-1.parquet"
    file = {"snapshot-id": base["current-snapshot-id"], "statistics-path": own, "file-size-in-bytes": 1}
    assert agent.commit([], [{"action": "set-partition-statistics", "partition-statistics": file}]).status_code == 200


def test_a_tables_place_is_not_an_agents_to_choose(forge: Forge, tower: TowerProcess, tmp_path: Path) -> None:
    agent = forge(EVERYTHING)
    tables, place = f"/v1/namespaces/{agent.namespace}/tables", f"file://{tmp_path}/evil"
    for choice in ({"location": place}, {"properties": {"write.metadata.path": place}}):
        for staged in (False, True):
            answer = agent.http.post(tables, json={"name": "t", "schema": SCHEMA, "stage-create": staged, **choice})
            assert error_of(answer)["rule"] == "contract.location"
    for change in ({"updates": {"location": place}}, {"removals": ["location"]}):
        answer = agent.http.post(f"/v1/namespaces/{agent.namespace}/properties", json=change)
        assert error_of(answer)["rule"] == "contract.location"
    # No URL reaches a table that is called `.` or `..`: that is refused before anything is asked of its place.
    for name, rule in (("../../../evil", "request.name"), ("..", "shape"), (".", "shape"), ("a/b", "request.name")):
        answer = agent.http.post(tables, json={"name": name, "schema": SCHEMA})
        assert (answer.status_code, error_of(answer)["rule"]) == (400, rule)
    assert list(tmp_path.iterdir()) == []


def test_who_may_register_reads_and_purges_no_other_table(forge: Forge, tmp_path: Path) -> None:
    admin = forge()
    base = admin.create()
    admin.send(admin.append("theirs.parquet")).raise_for_status()
    theirs = admin.http.get(admin.url).json()["metadata-location"]
    agent = forge("tables:\n  - {table: NS.mine, operations: [register, drop]}\n")
    agent.table = "mine"
    register = f"/v1/namespaces/{agent.namespace}/register"
    answer = agent.http.post(register, json={"name": "mine", "metadata-location": theirs})
    assert error_of(answer)["rule"] == "register.location"
    assert base["table-uuid"] not in answer.text.replace(theirs, "")
    copy = plain(base["location"]).parent / "mine-1" / "v1.metadata.json"
    copy.parent.mkdir()
    copy.write_bytes(plain(theirs).read_bytes())  # under my own place, but it says that the table lies at theirs
    answer = agent.http.post(register, json={"name": "mine", "metadata-location": f"file://{copy}"})
    assert error_of(answer)["rule"] == "register.location"


def forged(base: dict[str, Any], **parts: Any) -> str:
    """A metadata file of one's own table that says something else; its location."""
    path = plain(base["location"]) / "metadata" / f"00005-{uuid.uuid4()}.metadata.json"
    path.write_bytes(orjson.dumps({**base, **{name.replace("_", "-"): value for name, value in parts.items()}}))
    return f"file://{path}"


def log_of(*paths: str) -> list[dict[str, Any]]:
    return [{"metadata-file": path, "timestamp-ms": 1} for path in paths]


def test_who_may_register_names_no_file_of_others(forge: Forge, tmp_path: Path) -> None:
    agent = forge("tables:\n  - {table: NS.t, operations: [create, read, register, drop]}\n")
    base = agent.create()
    assert agent.http.delete(agent.url).status_code == 204
    precious = f"file://{tmp_path}/precious.metadata.json"
    snapshot = {"snapshot-id": 1, "sequence-number": 1, "timestamp-ms": 1, "summary": {"operation": "append"}}
    file = {"snapshot-id": 1, "file-size-in-bytes": 1, "statistics-path": precious}
    up = f"{base['location']}/../t/precious.metadata.json"
    for parts in (
        {"metadata_log": log_of(precious)},
        {"metadata_log": log_of(up)},
        {"snapshots": [{**snapshot, "manifest-list": precious}]},
        {"snapshots": [{**snapshot, "manifests": [precious]}]},
        {"statistics": [file]},
        {"partition_statistics": [file]},
        {"snapshots": [{**snapshot, "summary": {"operation": "append", "icetower.group-file": precious}}]},
    ):
        answer = register(agent, forged(base, **parts))
        assert error_of(answer)["rule"] == "register.location", parts
    assert error_of(register(agent, forged(base, metadata_log=[{"timestamp-ms": 1}])))["rule"] == "metadata"
    assert register(agent, forged(base)).status_code == 200


@pytest.mark.parametrize("by", ["manifest", "list"])
def test_who_may_register_names_no_file_of_others_in_manifests_either(forge: Forge, by: str) -> None:
    """Where an administrator has registered such a table, a purge takes nothing that lies where another table does."""
    admin = forge()
    victim = replace(admin, table="victim")
    victim.create(2, None)
    victim.send(victim.append("a.parquet", partition=())).raise_for_status()
    head = victim.load()
    theirs, rows = plain(victim.path(head, "a.parquet")), victim.rows(head, head["current-snapshot-id"])
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_bytes(b"rows")

    agent = forge("tables: [{table: NS.t, operations: [create, read, register, drop]}]\n")
    base = agent.create(2, None)
    own = (agent.path(base, "own.parquet"), str(theirs))
    named = [(DATA, [added(path, ()) for path in own])] if by == "manifest" else []
    _, updates = agent.snapshot(named, manifests=rows if by == "list" else ())
    snapshot = next(update["snapshot"] for update in updates if "snapshot" in update)
    assert agent.http.delete(agent.url).status_code == 204
    place = forged(base, snapshots=[snapshot], current_snapshot_id=snapshot["snapshot-id"], last_sequence_number=1)
    answer = register(agent, place)
    assert (answer.status_code, error_of(answer)["rule"]) == (400, "register.location")
    assert register(admin, place).status_code == 200
    assert admin.http.delete(admin.url, params={"purgeRequested": "true"}).status_code == 204
    assert (theirs.exists(), plain(place).exists(), plain(rows[0].path).exists()) == (True, False, True)
    assert victim.live() == ["a.parquet"]


def test_a_purge_takes_no_file_of_the_tower(tmp_path: Path) -> None:
    tower = TowerProcess(tmp_path / "data")
    try:
        with tower.client() as http:
            http.post("/v1/namespaces", json={"namespace": ["ns"]}).raise_for_status()
            admin = Forger(http, "ns")
            admin.create(2, None)
            secret, other = tmp_path / "data" / "admin.token", tmp_path / "imported.parquet"
            other.write_text("rows")
            admin.send(admin.snapshot([(DATA, [added(str(path), ()) for path in (secret, other)])])).raise_for_status()
            assert http.delete(admin.url, params={"purgeRequested": "true"}).status_code == 204
    finally:
        tower.stop()
    assert (secret.exists(), other.exists()) == (True, False)


def test_only_a_tables_own_metadata_files_are_deleted_after_a_commit(tmp_path: Path) -> None:
    """Whoever wrote the log that the table was registered with, an administrator included."""
    tower = TowerProcess(tmp_path / "data")
    try:
        with tower.client() as http:
            http.post("/v1/namespaces", json={"namespace": ["ns"]}).raise_for_status()
            admin, victim = Forger(http, "ns"), Forger(http, "ns", "victim")
            victim.create()
            theirs = http.get(victim.url).json()["metadata-location"]
            base = admin.create()
            http.delete(admin.url).raise_for_status()
            precious, text = tmp_path / "00001-a.metadata.json", tmp_path / "precious.txt"
            data = plain(base["location"]) / "data" / "a.metadata.json"
            data.parent.mkdir()
            for path in (precious, text, data):
                path.write_text("x")
            own = forged(base)
            log = log_of(theirs, *(f"file://{path}" for path in (precious, text, data)), own)
            asks = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
            assert register(admin, forged(base, metadata_log=log, properties=asks)).status_code == 200
            update = {"action": "set-properties", "updates": {"a": "b"}}
            assert admin.commit([], [update]).status_code == 200
    finally:
        assert tower.stop() == 0  # it has done by then what was left to do after its commits
    assert not plain(own).exists()
    assert all(path.exists() for path in (plain(theirs), precious, text, data))


def test_who_may_register_a_name_does_not_reach_a_table_whose_name_begins_with_it(forge: Forge) -> None:
    victim = forge()
    victim.table = "t-secret"
    victim.create()
    theirs = victim.http.get(victim.url).json()["metadata-location"]
    agent = forge("tables:\n  - {table: NS.t, operations: [read, register, drop]}\n")
    assert error_of(register(agent, theirs))["rule"] == "register.location"
    victim.http.delete(victim.url).raise_for_status()  # nor what it leaves
    assert error_of(register(agent, theirs))["rule"] == "register.location"


CREATE = [{"type": "assert-create"}]
CREATOR = f"tables:\n  - {{table: NS.t, operations: [create, read, append, register, drop], {ALL}}}\n"


def test_a_staged_uuid_is_a_real_one(forge: Forge) -> None:
    victim = forge()
    victim.table = "t-secret"
    base = victim.create()
    agent = forge(CREATOR)
    folder, uuid = base["location"].rsplit("/", 1)[0], base["table-uuid"]
    for sent in (f"secret-{uuid}", "../x", "x", uuid.upper(), uuid.replace("-", ""), f"{uuid}/x", ""):
        answer = agent.commit(CREATE, creation(base, uuid=sent, location=f"{folder}/t-{sent}"))
        assert (answer.status_code, error_of(answer)["rule"]) == (400, "uuid"), sent
    fresh = "12345678-0000-4000-8000-000000000000"
    twice = [{"action": "assign-uuid", "uuid": fresh}, *creation(base, uuid=uuid, location=f"{folder}/t-{fresh}")]
    assert error_of(agent.commit(CREATE, twice))["rule"] == "uuid"
    assert (
        error_of(agent.commit(CREATE, creation(base, uuid=uuid, location=f"{folder}/t-{uuid}")))["rule"]
        == "create.uuid"
    )
    assert error_of(agent.commit(CREATE, creation(base, uuid=fresh)))["rule"] == "contract.location"
    answer = agent.commit(CREATE, creation(base, uuid=fresh, location=f"{folder}/t-{fresh}"))
    assert answer.status_code == 200


def test_no_table_is_put_where_one_lies_that_was_renamed_away(forge: Forge) -> None:
    admin = forge()
    base = admin.create()
    admin.send(admin.append("theirs.parquet")).raise_for_status()
    theirs = admin.http.get(admin.url).json()["metadata-location"]
    names = [{"namespace": [admin.namespace], "name": name} for name in ("t", "vault")]
    rename = {"source": names[0], "destination": names[1]}
    admin.http.post("/v1/tables/rename", json=rename).raise_for_status()
    agent = forge(CREATOR)
    answer = agent.commit(CREATE, creation(base))
    assert (answer.status_code, error_of(answer)["rule"]) == (409, "create.uuid")
    for overwrite in (False, True):
        assert error_of(register(agent, theirs, overwrite=overwrite))["rule"] == "register.location"
    other = forged(base, table_uuid="12345678-0000-4000-8000-000000000000")
    assert error_of(register(agent, other))["rule"] == "register.location"
    assert register(admin, theirs).status_code == 200  # two names of one table: an administrator's to know
    assert error_of(agent.http.delete(f"{agent.url}?purgeRequested=true"))["rule"] == "purge.shared"
    admin.table = "vault"
    assert admin.live() == ["theirs.parquet"]


def test_a_creation_that_is_sent_again_after_a_rename_does_not_hear_that_it_failed(forge: Forge) -> None:
    """Its client would delete the manifests that the table has now (trap A3)."""
    agent, admin = forge(CREATOR), forge()
    body = {"name": "t", "schema": SCHEMA, "stage-create": True}
    staged = agent.http.post(f"/v1/namespaces/{agent.namespace}/tables", json=body).json()["metadata"]
    plain(staged["location"]).joinpath("metadata").mkdir(parents=True)
    _, snapshot = agent.append("a.parquet", base=staged, partition=())
    updates = [*creation(staged), *snapshot]
    assert agent.commit(CREATE, updates).status_code == 200
    assert agent.commit(CREATE, updates).status_code == 200
    names = [{"namespace": [admin.namespace], "name": name} for name in ("t", "vault")]
    rename = {"source": names[0], "destination": names[1]}
    admin.http.post("/v1/tables/rename", json=rename).raise_for_status()
    assert agent.commit(CREATE, updates).status_code >= 500


def test_a_purge_by_an_agent_stays_where_the_table_lies(forge: Forge, tmp_path: Path) -> None:
    admin, precious = forge(), tmp_path / "precious.parquet"
    admin.create()
    precious.write_bytes(b"x")
    admin.send(admin.snapshot([(0, [added(f"file://{precious}", MINE)])])).raise_for_status()
    agent = forge("tables:\n  - {table: NS.t, operations: [drop]}\n")
    assert agent.http.delete(f"{agent.url}?purgeRequested=true").status_code == 204
    assert precious.exists()


def test_a_purge_goes_through_no_link(forge: Forge, tmp_path: Path) -> None:
    admin, elsewhere = forge(), tmp_path / "elsewhere"
    base = admin.create()
    elsewhere.mkdir()
    (elsewhere / "precious.parquet").write_bytes(b"x")
    plain(base["location"]).joinpath("linked").symlink_to(elsewhere)
    path = f"{base['location']}/linked/precious.parquet"
    admin.send(admin.snapshot([(0, [added(path, MINE)])])).raise_for_status()
    assert admin.http.delete(f"{admin.url}?purgeRequested=true").status_code == 204
    assert (elsewhere / "precious.parquet").exists()


def test_an_empty_commit_is_no_way_to_read_a_table(forge: Forge) -> None:
    base = forge().create()
    agent = forge("tables:\n  - {table: NS.*, operations: [create, drop, rename]}\n")
    for answer in (agent.commit([], []), agent.commit([{"type": "assert-table-uuid", "uuid": "x"}], [])):
        assert error_of(answer)["rule"] == "contract.operation"
        assert base["table-uuid"] not in answer.text
    stranger = forge("tables:\n  - {table: NS.other, operations: [append], write_location: table}\n")
    there = stranger.commit([], [])
    stranger.table = "nowhere"
    assert error_of(there)["rule"] == error_of(stranger.commit([], []))["rule"] == "contract.table"


def test_a_key_replays_nothing_to_who_may_no_longer_read(forge: Forge, tower: TowerProcess) -> None:
    forge().create()
    agent = forge("tables:\n  - {table: NS.t, operations: [alter], partitions: all}\n")
    key = {"Idempotency-Key": new_key()}
    update = {"action": "set-properties", "updates": {"a": "b"}}
    assert agent.commit([], [update], **key).status_code == 200
    assert agent.commit([], [update], **key).status_code == 200
    name = agent.http.get("/icetower/v1/me").json()["contract"]
    tower.admin.apply_contract(f"version: 1\nagent: {name}\ntables: []\n")
    assert error_of(agent.commit([], [update], **key))["rule"] == "contract.table"


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [("snapshot-id", 2**63, "json"), ("schema-id", 2**31, "shape"), ("timestamp-ms", 2**63, "json")],
)
def test_no_number_goes_into_metadata_that_java_could_not_read_again(
    forge: Forge, field: str, value: int, rule: str
) -> None:
    forge().create()
    agent = forge(OWNER)
    requirements, updates = agent.snapshot([])
    updates[0]["snapshot"][field] = value
    if field == "snapshot-id":
        updates[1][field] = value
    answer = agent.commit(requirements, updates)
    assert (answer.status_code, error_of(answer)["rule"]) == (400, rule)


def test_who_may_move_refs_cannot_empty_a_table_by_removing_its_head(forge: Forge) -> None:
    admin = forge()
    admin.create()
    admin.send(admin.append("theirs.parquet", partition=(9, 9))).raise_for_status()
    head = admin.load()["refs"]["main"]["snapshot-id"]
    agent = forge(OWNER.replace("delete]", "delete, refs]"))
    remove = {"action": "remove-snapshots", "snapshot-ids": [head]}
    unref = {"action": "remove-snapshot-ref", "ref-name": "main"}
    assert error_of(admin.commit([], [remove]))["rule"] == "commit.refs"
    assert error_of(agent.commit([], [remove]))["rule"] == "contract.history"
    assert error_of(agent.commit([], [unref, remove]))["rule"] == "contract.ref"
    assert admin.live() == ["theirs.parquet"]


@pytest.mark.parametrize("lie", [{"lower": b"\x01\0\0\0", "upper": b"\x01\0\0\0"}, {"lower": None, "upper": None}])
def test_r5_who_rewrites_a_manifest_cannot_hide_the_files_of_others_in_it(forge: Forge, lie: dict[str, Any]) -> None:
    """Readers skip manifests by the partition bounds in the list: too narrow ones make rows vanish."""
    admin = forge()
    admin.create()
    base = admin.load()
    both = [added(admin.path(base, "theirs.parquet"), (9, 9)), added(admin.path(base, "mine.parquet"), MINE)]
    admin.send(admin.snapshot([(0, both)])).raise_for_status()
    agent = forge(OWNER)
    before = agent.load()
    (old,) = agent.rows(before, before["refs"]["main"]["snapshot-id"])
    kept, gone = (
        replace(e, status=status, snapshot_id=old.added_snapshot_id, sequence_number=1, file_sequence_number=1)
        for e, status in zip(both, (EXISTING, DELETED), strict=True)
    )
    request = agent.snapshot([(0, [kept, gone])], drop=[old.path], operation="delete")
    listing = plain(request[1][0]["snapshot"]["manifest-list"])
    honest = listing.read_bytes()
    (row,) = read_manifest_list(honest)
    assert row.partitions is not None
    forged = replace(row, partitions=(replace(row.partitions[0], **lie), row.partitions[1]))
    head = before["refs"]["main"]["snapshot-id"]
    listing.write_bytes(
        write_manifest_list(
            [forged],
            format_version=2,
            snapshot_id=row.added_snapshot_id,
            parent_id=head,
            sequence_number=2,
            first_row_id=None,
        )
    )
    assert error_of(agent.send(request))["rule"] == "contract.manifest"
    assert agent.send(agent.snapshot([(0, [kept, gone])], drop=[old.path], operation="delete")).status_code == 200
    assert agent.live() == ["theirs.parquet"]


@pytest.mark.parametrize("operations", ["alter", "read, append, overwrite, delete, alter"])
def test_who_owns_a_part_does_not_say_how_all_of_a_table_is_partitioned(forge: Forge, operations: str) -> None:
    """Nobody's partitions could be told any more from the files that come after it."""
    admin = forge()
    admin.create()
    agent = forge(OWNER.replace("read, append, overwrite, delete", operations))
    spec = {"action": "add-spec", "spec": {"spec-id": 1, "fields": []}}
    default = {"action": "set-default-spec", "spec-id": -1}
    assert error_of(agent.commit([], [spec, default]))["rule"] == "contract.shared"
    assert error_of(agent.commit([], [spec]))["rule"] == "contract.shared"
    assert admin.load()["default-spec-id"] == 0
    assert len(admin.load()["partition-specs"]) == 1
    assert agent.commit([], [{"action": "set-properties", "updates": {"comment": "mine"}}]).status_code == 200
    assert admin.commit([], [spec, default]).status_code == 200
