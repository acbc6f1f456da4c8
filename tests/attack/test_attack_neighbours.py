"""What one agent may do to others at the same table, or learn of them, without touching a partition of theirs."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from icetower.iceberg.manifests import DATA
from verify.kit.forger import SCHEMA, SPEC, Forger, added, plain
from verify.kit.tower_process import TowerProcess, error_of

Forge = Callable[..., Forger]
PART = """tables:
  - table: NS.t
    operations: [read, append, overwrite, alter, refs, create, register]
    write_location: table
    partitions: [{region: 1, product: 2}]
  - {table: NS.t, operations: [drop]}
"""
OTHER_PART = "tables: [{table: NS.t, operations: [append], write_location: table, partitions: [{region: 2}]}]\n"
WHOLE = "tables: [{table: NS.t, operations: [append], write_location: table, partitions: all}]\n"


# ------------------------------------------------------------------------------- properties that lead clients elsewhere

ELSEWHERE = {
    "s3.endpoint": "http://evil.example",
    "s3.signer.uri": "http://evil.example",
    "encryption.key-id": "evil",
    "rest.client.proxy.hostname": "evil.example",
    "uri": "http://evil.example",
    "gcs.service.host": "http://evil.example",
    "client.region": "evil",
    "header.X-Evil": "yes",
}


def test_a_tables_properties_go_before_pyicebergs_own_settings(forge: Forge, tower: TowerProcess) -> None:
    """Why nobody below administrators sets them."""
    admin = forge()
    admin.create(2, SPEC, **{"s3.endpoint": "http://storage.example"})
    table = tower.catalog(**{"s3.endpoint": "http://mine.example"}).load_table(f"{admin.namespace}.t")
    assert table.io.properties["s3.endpoint"] == "http://storage.example"


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_no_agent_leads_the_clients_of_a_table_elsewhere(forge: Forge, name: str, mode: str) -> None:
    forge().create()
    agent = forge(f"mode: {mode}\n{PART.replace('partitions: [{region: 1, product: 2}]', 'partitions: all')}")
    tables, evil = f"/v1/namespaces/{agent.namespace}/tables", {name: ELSEWHERE[name]}
    new = {"name": "t2" if mode == "shadow" else "t", "schema": SCHEMA, "properties": evil}
    for answer in (
        agent.commit([], [{"action": "set-properties", "updates": evil}]),
        agent.commit([], [{"action": "set-properties", "updated": evil}]),
        agent.commit([], [{"action": "remove-properties", "removals": [name]}]),
        agent.http.post(tables, json=new),
        agent.http.post(tables, json={**new, "stage-create": True}),
    ):
        assert (answer.status_code, error_of(answer)["rule"]) == (403, "contract.location")
    assert name not in agent.load()["properties"]


def test_what_an_administrator_has_set_may_be_sent_again_as_it_is(forge: Forge) -> None:
    forge().create(2, SPEC, **{"s3.endpoint": "http://storage.example"})
    agent = forge(PART)
    same = {"s3.endpoint": "http://storage.example", "comment": "prices"}
    assert agent.commit([], [{"action": "set-properties", "updates": same}]).status_code == 200


def test_no_agent_registers_a_table_that_leads_its_clients_elsewhere(forge: Forge) -> None:
    agent = forge(PART)
    base = agent.create()
    assert agent.http.delete(agent.url).status_code == 204
    path = plain(base["location"]) / "metadata" / "00001-forged.metadata.json"
    register = f"/v1/namespaces/{agent.namespace}/register"
    wanted = {"name": "t", "metadata-location": f"file://{path}"}
    path.write_bytes(orjson.dumps({**base, "properties": {"s3.endpoint": "http://evil.example"}}))
    answer = agent.http.post(register, json=wanted)
    assert (answer.status_code, error_of(answer)["rule"]) == (400, "register.properties")
    assert forge().http.post(register, json=wanted).status_code == 200


# ------------------------------------------------------------------------------------------------- progress of sinks

SPARK = {"spark.sql.streaming.queryId": "q", "spark.sql.streaming.epochId": "3"}
FLINK = {"flink.job-id": "j", "flink.operator-id": "o", "flink.max-committed-checkpoint-id": "3"}
KAFKA = {"kafka.connect.offsets.control.group": "{}"}
FORGED = [
    (SPARK, SPARK | {"spark.sql.streaming.epochId": "999999"}),
    (FLINK, FLINK | {"flink.max-committed-checkpoint-id": "999999"}),
    (FLINK, {"flink.job-id": "j", "flink.max-committed-checkpoint-id": "999999"}),  # to Flink, of any operator
    (KAFKA, {"kafka.connect.offsets.control.group": '{"0": 999999}'}),
]


@pytest.mark.parametrize(("told", "forged"), FORGED)
@pytest.mark.parametrize("mode", ["enforce", "shadow"])
def test_nobody_tells_the_progress_of_anothers_sink(
    forge: Forge, told: dict[str, str], forged: dict[str, str], mode: str
) -> None:
    forge().create()
    sink, agent = forge(OTHER_PART), forge(f"mode: {mode}\n{PART}")
    sink.send(sink.append("1.parquet", partition=(2, 1), summary=told)).raise_for_status()
    answer = agent.send(agent.append("evil.parquet", summary=forged))
    error = error_of(answer)
    assert (answer.status_code, error["rule"], error["next_step"]) == (403, "contract.summary", "ask_owner")
    sink.send(sink.append("2.parquet", partition=(2, 1), summary=later(told, 1))).raise_for_status()
    own = {name.replace("group", "own"): "own" for name in told}
    assert agent.send(agent.append("3.parquet", summary=own)).status_code == 200


def later(told: dict[str, str], by: int) -> dict[str, str]:
    """What a sink tells with a commit after that."""
    counts = ("spark.sql.streaming.epochId", "flink.max-committed-checkpoint-id")
    return {name: str(int(text) + by) if name in counts else text for name, text in told.items()}


def test_a_sink_goes_on_under_the_same_contract_and_after_whoever_is_gone(forge: Forge, tower: TowerProcess) -> None:
    forge().create()
    first, stranger = forge(OTHER_PART), forge(OTHER_PART)
    first_name = f"{first.namespace}-1"
    colleague = Forger(tower.client(tower.admin.create_principal(f"{first_name}-b", first_name)), first.namespace)

    def tells(who: Forger, name: str) -> Any:
        return who.send(who.append(name, partition=(2, 1), summary=later(SPARK, int(name[0]))))

    assert tells(first, "1.parquet").status_code == 200
    assert tells(colleague, "2.parquet").status_code == 200
    assert tells(stranger, "3.parquet").status_code == 403
    tower.admin.revoke_principal(f"{first_name}-b")
    assert tells(stranger, "4.parquet").status_code == 200
    assert tells(first, "5.parquet").status_code == 403
    assert tells(forge(WHOLE), "6.parquet").status_code == 200
    colleague.http.close()


# ------------------------------------------------------------------------------------------------ branches, namespaces


def test_who_owns_a_part_makes_no_tag_of_a_branch(forge: Forge) -> None:
    admin = forge()
    admin.create()
    admin.send(admin.append("1.parquet")).raise_for_status()
    head = admin.load()["refs"]["main"]["snapshot-id"]
    branch = {"action": "set-snapshot-ref", "ref-name": "audit", "type": "branch", "snapshot-id": head}
    admin.commit([], [branch]).raise_for_status()
    agent = forge(PART)
    requirements, updates = agent.append("2.parquet", ref="audit")
    answer = agent.commit(requirements, [updates[0], {**updates[1], "type": "tag"}])
    assert (answer.status_code, error_of(answer)["rule"]) == (403, "contract.ref")
    assert agent.commit(requirements, updates).status_code == 200


def test_whether_a_namespace_is_there_is_told_to_nobody_whom_it_does_not_concern(forge: Forge) -> None:
    agent = forge("tables: [{table: theirs.t, operations: [read]}]\n")
    answers = [agent.http.get("/v1/namespaces", params={"parent": each}) for each in (agent.namespace, "nowhere")]
    assert [(answer.status_code, error_of(answer)["rule"]) for answer in answers] == [(403, "contract.namespace")] * 2


# --------------------------------------------------------------------------------------- files of others, and elsewhere


def test_a_purge_reaches_no_file_at_a_place_that_tables_share(forge: Forge, tmp_path: Path) -> None:
    admin, shared = forge(), f"file://{tmp_path}/shared"
    admin.create(2, SPEC, **{"write.data.path": shared})
    theirs = Forger(admin.http, admin.namespace, "theirs")
    theirs.create(2, SPEC, **{"write.data.path": shared})
    file = tmp_path / "shared" / "x.parquet"
    file.parent.mkdir()
    file.write_bytes(b"x")
    theirs.send(theirs.snapshot([(DATA, [added(f"file://{file}", (1, 2))])])).raise_for_status()
    agent = forge(PART)
    agent.send(agent.snapshot([(DATA, [added(f"file://{file}", (1, 2))])])).raise_for_status()
    answer = agent.http.delete(f"{agent.url}?purgeRequested=true")
    assert (answer.status_code, error_of(answer)["rule"]) == (400, "purge.shared")
    assert file.exists()
    assert agent.http.delete(agent.url).status_code == 204


def test_who_creates_a_table_hears_nothing_of_files_elsewhere(forge: Forge, tmp_path: Path) -> None:
    agent = forge(PART)
    (tmp_path / "there").write_bytes(b"no manifest list")
    spec = {"spec-id": 0, "fields": []}
    told: list[str] = []
    for name in ("there", "nowhere"):
        path = f"file://{tmp_path}/{name}"
        snapshot = {"snapshot-id": 1, "timestamp-ms": 1, "manifest-list": path, "summary": {"operation": "append"}}
        updates = [
            {"action": "assign-uuid", "uuid": str(uuid.uuid4())},
            {"action": "upgrade-format-version", "format-version": 2},
            {"action": "set-location", "location": f"file://{tmp_path}"},
            {"action": "add-schema", "schema": {"schema-id": 0, **SCHEMA}},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": spec},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-snapshot", "snapshot": {**snapshot, "sequence-number": 1}},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1},
        ]
        answer = agent.commit([{"type": "assert-create"}], updates)
        told.append(f"{answer.status_code} {error_of(answer)['rule']}")
    assert told == ["400 manifest.location"] * 2


def test_a_link_to_anothers_manifest_list_tells_nothing_of_it(forge: Forge) -> None:
    admin = forge()
    own = admin.create()["location"]
    theirs = Forger(admin.http, admin.namespace, "theirs")
    place = theirs.create()["location"]
    file = added(f"{place}/data/secret.parquet", (1, 2))
    theirs.send(theirs.snapshot([(DATA, [file])])).raise_for_status()
    [listed] = theirs.load()["snapshots"]
    agent = forge(PART)
    path = plain(listed["manifest-list"])
    link = f"{own}/metadata/linked/{path.name}"
    plain(link).parent.symlink_to(path.parent)
    summary = {"operation": "append"}
    snapshot = {**listed, "snapshot-id": 5, "manifest-list": link, "sequence-number": 1, "summary": summary}
    answer = agent.commit([], [{"action": "add-snapshot", "snapshot": snapshot}])
    assert (answer.status_code, error_of(answer)["rule"]) == (400, "manifest.location")
    assert f"manifest 1 of the manifest list {link}" in error_of(answer)["message"]
    assert place not in answer.text


# ------------------------------------------------------------------------------------------------- words of contracts

BLIND_IN_PART = """tables:
  - {table: NS.t, operations: [append], partitions: [{region: 1}], blind_appends: true, write_location: table}
  - {table: NS.t, operations: [OPERATION], partitions: [{region: 2}], FLAG, write_location: table}
"""


@pytest.mark.parametrize("operation", ["append", "overwrite"])
@pytest.mark.parametrize(("flag", "status"), [("blind_appends: false", 409), ("blind_appends: true", 200)])
def test_r1_the_blind_word_of_one_entry_says_nothing_of_the_appends_of_another(
    forge: Forge, operation: str, flag: str, status: int
) -> None:
    """A MERGE that only inserts is recorded as an append: put on a newer head unchecked, its rows are there twice."""
    admin = forge()
    admin.create()
    agent = forge(BLIND_IN_PART.replace("OPERATION", operation).replace("FLAG", flag))
    merged = agent.append("merged.parquet", partition=(2, 1))
    admin.send(admin.append("the-same-rows.parquet", partition=(2, 1))).raise_for_status()
    answer = agent.send(merged)
    assert answer.status_code == status
    assert status == 200 or error_of(answer)["rule"] == "rebase.not-blind"
