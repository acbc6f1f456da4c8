"""What only its client can validate is never rebased, whoever declares what (traps R1, R10)."""

from __future__ import annotations

from typing import Any

import pytest

from icetower.contracts.document import load
from icetower.errors import IcetowerError
from icetower.files.changes import read_changes
from icetower.protocol.updates import Updates
from icetower.rebase.blindness import known_blind
from icetower.registry.principals import Principal
from tests.commit.engine_world import World, judged, outcomes, run
from tests.commit.iceberg_client import SNAPSHOT, Client, create, data

SPARK = {"engine-name": "spark", "engine-version": "4.1.4", "spark.app.id": "local-1"}
PICKED = {"source-snapshot-id": "7"}
PUBLISHED = {"source-snapshot-id": "7", "published-wap-id": "w1"}
MEDIATED = {"icetower.wal.table-uuid": "w", "icetower.wal.sequence": "4"}
MERGED = {"spark.merge-into.num-target-rows-inserted": "3", "spark.merge-into.num-target-rows-updated": "0"}
UPDATED = {"spark.merge-into.num-target-rows-inserted": "0", "spark.merge-into.num-target-rows-updated": "3"}
FLINK = {"flink.job-id": "j", "flink.operator-id": "o", "flink.max-committed-checkpoint-id": "5"}

NOTHING: dict[str, Any] = {}
"""Each declaration by which a commit may be rebased: by the table, by a contract, by the summary."""
BY_TABLE_LEVELS = {"properties": SNAPSHOT}
BY_TABLE_BLIND = {"properties": {"icetower.blind-appends": "true"}}
BY_CONTRACT_BLIND = {"rules": "blind_appends: true"}
BY_CONTRACT_LEVEL = {"rules": "isolation: snapshot"}
BY_CONTRACT_SCOPE = {"rules": "read_scope: owned"}
BY_SUMMARY_BLIND = {"summary": {"icetower.blind": "true"}}
BY_SUMMARY_LEVEL = {"summary": {"icetower.isolation-level": "snapshot"}}
BY_SUMMARY_FILTER = {
    "summary": {"icetower.isolation-level": "serializable", "icetower.filter": '{"type":"eq","term":"id","value":-1}'}
}
DECLARATIONS = {name: value for name, value in globals().items() if name.startswith("BY_") or name == "NOTHING"}


async def stale(
    marks: dict[str, str],
    *,
    properties: dict[str, str] | None = None,
    rules: str = "strict: false",
    summary: dict[str, str] | None = None,
    theirs: dict[str, str] | None = None,
    category: str = "a",
) -> tuple[str, list[str]]:
    """Ann appends to a base on which Bob has appended meanwhile: what becomes of Ann's commit, and the live files."""
    world = World()
    await create(world, **{"write.data.path": "file:///w/db/t/data", **(properties or {})})
    ann, bob = await Client(world, "ann").refresh(), Client(world, "bob")
    assert await outcomes(await ann.append(data("old", "a"), **{"icetower.blind": "true"})) == ["direct"]
    await ann.refresh()
    await bob.refresh()
    request = await ann.append(data("ours", category), **{**SPARK, **(summary or {}), **marks})
    head = await world.head()
    changes = await read_changes(world.manifests, head.metadata, Updates(request.updates))
    assert await outcomes(await bob.append(data("theirs", "a"), **(theirs or {}))) == ["direct"]
    text = (
        "version: 1\nagent: ann\ntables:\n"
        f"- {{table: db.t, operations: [append], write_location: table, partitions: all, {rules}}}\n"
    )
    ann = Principal("ann", load(text, source="test"), 1)
    member = judged(ann, request.table, head.metadata, changes, request.requirements, request.updates)
    try:
        outcome = (await world.engine.submit(member)).outcome
    except IcetowerError as error:
        outcome = f"{error.status} {error.rule}"
    names = [e.file.path.rsplit("/", 1)[-1] for e in await world.live_entries(await world.head())]
    return outcome, sorted(names)


@pytest.mark.parametrize("declared", DECLARATIONS.values(), ids=DECLARATIONS)
@pytest.mark.parametrize(
    ("marks", "rule"),
    [
        (PICKED, "rebase.picked"),
        (PUBLISHED, "rebase.picked"),
        ({"published-wap-id": "w1"}, "rebase.picked"),
        (MEDIATED, "rebase.progress"),
        ({**MEDIATED, **MERGED}, "rebase.progress"),
        ({"kafka.connect.commit-id": "c"}, "rebase.offsets"),
        ({"icetower.blind": "false"}, "rebase.not-blind"),
    ],
)
def test_r10_what_only_its_client_validates_is_rebased_by_no_declaration(
    marks: dict[str, str], rule: str, declared: dict[str, Any]
) -> None:
    assert run(stale(marks, **declared)) == (f"409 {rule}", ["old", "theirs"])


@pytest.mark.parametrize(
    ("name", "marks", "outcome"),
    [
        # Iceberg lets two MERGEs that insert the same rows land at the table's snapshot isolation, and only there.
        ("NOTHING", MERGED, "409 rebase.reads"),
        ("BY_TABLE_LEVELS", MERGED, "rebased"),
        ("BY_TABLE_BLIND", MERGED, "409 rebase.reads"),
        ("BY_CONTRACT_BLIND", MERGED, "409 rebase.reads"),
        ("BY_CONTRACT_LEVEL", MERGED, "409 rebase.reads"),
        ("BY_CONTRACT_LEVEL", UPDATED, "rebased"),
        ("BY_CONTRACT_SCOPE", MERGED, "409 conflict.C1"),
        ("BY_SUMMARY_BLIND", MERGED, "409 rebase.reads"),
        ("BY_SUMMARY_LEVEL", MERGED, "rebased"),  # its own writer's, as an option of the statement
    ],
)
def test_r1_a_merge_is_blind_by_no_declaration(name: str, marks: dict[str, str], outcome: str) -> None:
    live = ["old", "ours", "theirs"] if outcome == "rebased" else ["old", "theirs"]
    assert run(stale(marks, **DECLARATIONS[name])) == (outcome, live)


READS = {**BY_SUMMARY_FILTER["summary"], "icetower.filter": "true"}


@pytest.mark.parametrize("name", ["BY_TABLE_BLIND", "BY_CONTRACT_BLIND", "BY_SUMMARY_BLIND"])
@pytest.mark.parametrize(
    ("reads", "outcome"),
    [
        (READS, "409 conflict.C1"),
        (BY_SUMMARY_LEVEL["summary"], "rebased"),
        ({"icetower.filter": "true"}, "409 rebase.not-blind"),  # it has read, and does not say what it is owed
        ({"icetower.read-snapshot": "none"}, "409 rebase.not-blind"),
        ({}, "rebased"),
    ],
)
def test_r1_who_says_what_it_has_read_is_blind_by_no_declaration(
    name: str, reads: dict[str, str], outcome: str
) -> None:
    """An upsert that finds no row to update is an append, and depends on what it looked for."""
    # Without Spark's marks, which would say that it is blind.
    marks = dict.fromkeys(SPARK, "")
    live = ["old", "ours", "theirs"] if outcome == "rebased" else ["old", "theirs"]
    assert run(stale(marks | reads, **DECLARATIONS[name])) == (outcome, live)


@pytest.mark.parametrize(
    ("declared", "outcome"),
    [
        (BY_TABLE_BLIND, "409 rebase.not-blind"),
        (BY_CONTRACT_BLIND, "409 rebase.not-blind"),
        (BY_SUMMARY_BLIND, "rebased"),
        ({"summary": {**BY_SUMMARY_BLIND["summary"], **READS}}, "409 conflict.C1"),
    ],
)
def test_r1_a_contract_that_says_serializable_takes_the_writers_own_declaration_alone(
    declared: dict[str, Any], outcome: str
) -> None:
    rules = ", ".join(filter(None, ["isolation: serializable", declared.get("rules")]))
    assert run(stale(dict.fromkeys(SPARK, ""), **{**declared, "rules": rules}))[0] == outcome


@pytest.mark.parametrize("declared", [BY_TABLE_LEVELS, BY_TABLE_BLIND, BY_CONTRACT_BLIND, BY_SUMMARY_BLIND])
@pytest.mark.parametrize(
    ("theirs", "outcome"),
    [
        (FLINK, "422 sink.differs"),  # the same checkpoint, by another run: it commits other files
        ({**FLINK, "flink.max-committed-checkpoint-id": "4"}, "409 rebase.progress"),
        ({**FLINK, "flink.job-id": "another"}, "rebased"),
        ({**FLINK, "flink.operator-id": "another"}, "rebased"),
        ({}, "rebased"),
    ],
)
def test_r10_a_sink_that_has_stated_progress_meanwhile_looks_again(
    theirs: dict[str, str], outcome: str, declared: dict[str, Any]
) -> None:
    assert run(stale(FLINK, theirs=theirs, **declared))[0] == outcome


def test_r10_progress_of_one_group_is_seen_by_the_next_member() -> None:
    async def story() -> None:
        world = World()
        await create(world, **{"icetower.blind-appends": "true"})
        clients = [await Client(world, name).refresh() for name in ("ann", "bob", "cid")]
        later = {**FLINK, "flink.max-committed-checkpoint-id": "6"}
        marks = (FLINK, later)
        requests = [await c.append(data(c.name, "a"), **told) for c, told in zip(clients, marks, strict=False)]
        requests.append(await clients[2].append(data("cid", "a")))
        assert await outcomes(*requests) == ["direct", "409 rebase.progress", "rebased"]

    run(story())


def test_what_an_audit_takes_for_blind_is_what_the_engine_does() -> None:
    for marks in (PICKED, PUBLISHED, MEDIATED, MERGED, READS, {"kafka.connect.offsets.a.b": "{}"}):
        assert not known_blind({"operation": "append", **SPARK, **marks}, declared=True)
    assert known_blind({"operation": "append", **SPARK}, declared=False)
