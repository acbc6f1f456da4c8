"""What a history says of its writers before any contract, and the first contracts that are made of it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from icetower.audit import advice as advices
from icetower.audit.advice import WRITERS_MAX, Advice, advise, agent_name
from icetower.audit.auditor import Options as AuditOptions
from icetower.audit.auditor import Walk
from icetower.cli import main
from icetower.contracts import review
from icetower.contracts.document import load
from icetower.contracts.findings import Severity, Written
from icetower.contracts.model import Operation, Role
from icetower.contracts.regions import Range, Values
from icetower.iceberg.partitions import PartitionField, PartitionSpec, spec_of
from icetower.protocol.marks import CLIENT_LIST
from icetower.protocol.names import Identifier
from icetower_client_model.sketch import append, begin, case, commit, data, op, write
from verify.histories.driver import HistoryDriver
from verify.histories.serial import CATEGORIES, World

TABLE = Identifier.parse("shop.sales")


def advice(world: World, writer_key: str | None = None) -> Advice:
    table = world.table()
    walk = Walk(table.head, table.files, AuditOptions())
    asyncio.run(walk.run())
    return advise(TABLE, walk.line.commits, spec_of(table.head.metadata, 0), writer_key)


def shop(*writes: tuple[str, str | None], world: World | None = None) -> World:
    """Appends: (who, category)."""
    world = world or World(1, 2, declared=0)
    for who, category in writes:
        world.author = who
        world.commit("append", [world.data(range(3), (0, (category,)))])
    return world


def test_who_writes_where_and_who_owns_it() -> None:
    found = advice(shop(("ann", "red"), ("ann", "red"), ("bob", "red"), ("bob", "blue"), ("bob", None)))
    ann, bob = sorted(found.writers, key=lambda writer: writer.name)
    assert (ann.name, dict(ann.commits), ann.files, ann.rows) == ("ann", {"append": 2}, 2, 6)
    assert dict(bob.places) == {("red",): 1, ("blue",): 1, (None,): 1}
    assert dict(found.owners) == {("red",): "ann", ("blue",): "bob", (None,): "bob"}
    assert (ann.shared, bob.shared) == ({}, {("red",): "ann"})
    assert found.fields == ("category",)


def test_of_two_that_write_alike_the_first_owns() -> None:
    assert dict(advice(shop(("bob", "red"), ("ann", "red"))).owners) == {("red",): "bob"}


def test_first_contracts() -> None:
    found = advice(shop(("ann", "red"), ("bob", "blue"), ("bob", None), ("cy", "red")))
    ann, bob, cy = (load(found.contracts[name], source=name) for name in ("ann", "bob", "cy"))
    assert [rule.partitions[0].fields for rule in ann.tables if rule.partitions] == [(("category", Values(("red",))),)]
    assert bob.tables[0].partitions is not None
    assert bob.tables[0].partitions[0].fields == (("category", Values(("blue", None))),)
    assert (cy.tables, len(cy.reads)) == ((), 1)
    assert {contract.shadow for contract in (ann, bob, cy)} == {True}
    assert ann.tables[0].operations == frozenset({Operation.APPEND})
    assert "1 append" in ann.description


@pytest.mark.parametrize("changes", ["append", "overwrite"])
def test_first_contracts_pass_the_check_together_also_when_they_are_enforced(changes: str) -> None:
    world = shop(("ann", "red"), ("bob", "blue"), ("bob", None), ("cy", "red"))
    for who, at in (("ann", 0), ("bob", 1)) if changes == "overwrite" else ():
        world.author = who
        category = "red" if who == "ann" else "blue"
        world.commit("overwrite", [world.data(range(2), (0, (category,)))], [world.of(0)[at]])
    texts = advice(world).contracts.values()
    for mode in ("mode: shadow", "mode: enforce"):
        found = [Written.read(text.replace("mode: shadow", mode), "x") for text in texts]
        severe = [each for each in review.alone(found, now_ms=0) if each.severity is not Severity.NOTE]
        # Who sends keys, and who is called, is for people to say.
        assert {each.rule for each in severe} <= {"retries.key", "escalation.none"}


def test_operations_of_a_contract() -> None:
    world = shop(("ann", "red"))
    world.author = "ann"
    file = world.of(0)[0]
    world.commit("overwrite", [world.data(range(2), (0, ("red",)))], [file])
    world.author = "maintenance"
    world.commit("replace", [world.data(range(2), (0, ("red",)))], [world.of(0)[0]])
    found = advice(world)
    assert load(found.contracts["ann"], source="ann").tables[0].operations == frozenset({Operation.OVERWRITE})
    maintenance = load(found.contracts["maintenance"], source="m")  # ann owns what it compacts
    assert maintenance.role is Role.MAINTENANCE
    assert maintenance.grants_everywhere(frozenset({Operation.REPLACE}), Identifier(("shop",), "sales"))
    assert not maintenance.grants(Operation.APPEND, Identifier(("shop",), "sales"))


def test_one_writer_owns_all() -> None:
    found = advice(shop(("ann", "red"), ("ann", "blue")))
    assert load(found.contracts["ann"], source="ann").tables[0].partitions is None


def test_whole_numbers_that_follow_each_other_are_a_range() -> None:
    from icetower.audit.advice import _extent
    from icetower.iceberg.partitions import PartitionField

    number = PartitionField(1000, "shop", "identity", "shop", "int", "int", 1)
    assert _extent(number, ["3", "4", "5", "6"]) == Range("3", "7")
    assert _extent(number, ["3", "4", "6", "7"]) == Values(("3", "4", "6", "7"))
    bucket = PartitionField(1000, "shop", "bucket[8]", "shop", "int", "int", 1)
    assert _extent(bucket, ["0", "1", "2", "3"]) == Values(("0", "1", "2", "3"))


def test_writers_by_application_by_engine_or_by_a_word_of_their_own() -> None:
    world = World(1, 2, declared=0)
    for at in range(WRITERS_MAX + 5):
        words = {"engine-name": "spark", "spark.app.id": f"app-{at}", "etl.job": "ab"[at % 2]}
        world.commit("append", [world.data(range(3))], summary=words)
    assert [writer.name for writer in advice(world).writers] == ["spark"]
    assert sorted(writer.name for writer in advice(world, "etl.job").writers) == ["a", "b"]
    few = World(1, 2, declared=0)
    for at in (1, 2):
        few.commit("append", [few.data(range(3))], summary={"spark.app.id": f"app-{at}"})
    assert sorted(writer.name for writer in advice(few).writers) == ["app-1", "app-2"]


@pytest.mark.parametrize(
    ("writer", "name"),
    [
        ("ann", "ann"),
        ("Jane Doe/prod", "Jane-Doe-prod"),
        ("../x", "x"),
        ("", "writer"),
        ("administrator", "administrator-agent"),
    ],
)
def test_names_that_contracts_can_have(writer: str, name: str) -> None:
    assert agent_name(writer) == name


def test_no_two_writers_have_one_contract() -> None:
    """Names that contracts can't have may come to the same one; and there are file systems without case."""
    writers = ("a b", "a-b", "a/b", "A-B-2", "a-b-3", "...")
    found = advice(shop(*((writer, "red") for writer in writers)))
    names = [load(text, source=writer).name for writer, text in found.contracts.items()]
    assert names == [writer.agent for writer in found.writers]
    assert names == ["a-b", "a-b-2", "a-b-3", "A-B-2-2", "a-b-3-2", "writer"]
    assert set(found.contracts) == set(writers)


@pytest.mark.parametrize("name", ["sales?*", "*", "**"])
def test_a_table_that_contracts_cannot_name_alone_gets_none(name: str) -> None:
    found = advise(Identifier(("shop",), name), (), PartitionSpec(0, ()))
    assert found.contracts == {}
    world = shop(("ann", "red"))
    table = world.table()
    walk = Walk(table.head, table.files, AuditOptions())
    asyncio.run(walk.run())
    found = advise(Identifier(("shop",), name), walk.line.commits, spec_of(table.head.metadata, 0))
    assert ([writer.name for writer in found.writers], found.contracts) == (["ann"], {})


def test_the_word_null_is_not_null() -> None:
    found = advice(shop(("ann", "null"), ("bob", None)))
    assert dict(found.owners) == {("null",): "ann", (None,): "bob"}
    owned = {writer: load(text, source=writer).tables[0].partitions for writer, text in found.contracts.items()}
    assert {writer: regions and dict(regions[0].fields) for writer, regions in owned.items()} == {
        "ann": {"category": Values(("null",))},
        "bob": {"category": Values((None,))},
    }


@pytest.mark.java
def test_lost_swaps_are_counted_by_the_names_of_manifest_lists(driver: HistoryDriver) -> None:
    files = {name: data() for name in "ABC"}
    steps = (append(1, "A"), begin(3, op("append", add=["C"])), commit(3, [write(2, op("append", add=["B"]))]))
    table = driver.history(case(files, *steps))
    walk = Walk(table.head, table.files, AuditOptions())
    asyncio.run(walk.run())
    found = advise(TABLE, walk.line.commits, spec_of(table.head.metadata, 0))
    assert (found.savings.lost_swaps, found.savings.swaps, found.savings.counted) == (1, 3, 3)
    assert sum(writer.retried for writer in found.writers) == 1


def test_what_grouping_would_have_saved_and_numbers_that_are_missing() -> None:
    world = shop(*[("ann", "red")] * 6)
    snapshots = world.metadata["snapshots"]
    for at, offset_ms in enumerate((0, 100, 900, 1_100, 1_200, 60_000)):
        snapshots[at]["timestamp-ms"] = 1_000_000 + offset_ms
    snapshots[5]["sequence-number"] += 3
    saved = advice(world).savings
    assert (saved.swaps, saved.grouped, saved.missing) == (6, 3, 3)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setenv("COLUMNS", "160")

    def type_it(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["icetower", *words])
        try:
            main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return type_it


@pytest.mark.parametrize("seed", range(6))
def test_the_contracts_pass_their_check(run: Callable[..., tuple[int, str, str]], tmp_path: Path, seed: int) -> None:
    world = World(seed, 1 + seed % 3, partitioned=seed != 4, declared=0)
    for at in range(40):
        world.author = ("ann", "bob", "cy", "dee")[at % (1 + seed)] if seed < 4 else f"w{at % 3}"
        world.commit_any()
    file = str(world.table().spill(tmp_path / "table"))
    folder = tmp_path / "contracts"
    status, out, err = run("advise", file, "--copied", "--contracts", str(folder))
    assert status == 0, err
    assert "likely owner" in out or seed == 4
    written = sorted(folder.glob("*.yaml"))
    assert written
    assert all(yaml.safe_load(path.read_text())["mode"] == "shadow" for path in written)
    status, out, err = run("contracts", "check", *map(str, written))
    assert status == 0, out + err
    status, _, err = run("advise", file, "--copied", "--contracts", str(folder))
    assert (status, "not overwritten" in err) == (2, True)


def test_json(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    world = shop(*(("ann" if at % 2 else "bob", category) for at, category in enumerate(CATEGORIES)))
    status, out, _ = run("advise", str(world.table().spill(tmp_path)), "--copied", "--json")
    found = json.loads(out)
    assert status == 0
    assert {writer["name"] for writer in found["writers"]} == {"ann", "bob"}
    assert len(found["owners"]) == 4
    assert set(found["contracts"]) == {"ann", "bob"}
    assert found["savings"]["swaps"] == found["commits"] == 4


def test_what_is_not_known_is_not_called_nothing(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    """Of clients that don't count their attempts; and of a table without commits."""
    world = World(1, 2, declared=0)
    world.commit("append", [world.data()], summary={CLIENT_LIST: "snap-1-0-as-pyiceberg-names-it.avro"})
    file = str(world.table().spill(tmp_path / "one"))
    said = run("advise", file, "--copied")[1]
    assert "The attempts of 1 commit are not known" in said
    assert "lost by" not in said
    said = run("advise", str(World(1).table().spill(tmp_path / "none")), "--copied")
    assert (said[0], "has no commits" in said[1]) == (0, True)


def test_writers_with_long_names_are_told_apart(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    world = shop(("interactions-mediator-1", "red"), ("interactions-mediator-2", "blue"))
    said = run("advise", str(world.table().spill(tmp_path)), "--copied")[1]
    assert {"interactions-mediator-1", "interactions-mediator-2"} <= set(said.split())


@pytest.mark.parametrize(
    ("transform", "minutes", "others", "turn"),
    [
        ("identity", (0, 2, 4, 8), (1, 3, 5), "from 0s to 1m of every 2m"),
        ("identity", (1, 3, 5, 7), (0, 2, 4), "from 1m to 2m of every 2m"),
        ("identity", (10, 40, 70, 130), (20, 60), "from 10m to 20m of every 30m"),
        ("identity", (0, 1, 2, 3), (4, 5), "None"),  # no turns: one comes after the other
        ("identity", (0, 2, 4), (1, 3, 5), "None"),  # too few to tell
        ("identity", (0, 2, 4, 8), (), "None"),  # nobody to take turns with
        ("hour", (0, 2, 4, 8), (1, 3, 5), "None"),
    ],
)
def test_writers_that_take_turns_by_the_clock_are_advised_slots(
    transform: str, minutes: tuple[int, ...], others: tuple[int, ...], turn: str
) -> None:
    part = PartitionField(1000, "slot", transform, "slot", "timestamptz", "timestamptz", 1)
    mine, rest = ([f"2026-01-01T{9 + m // 60:02}:{m % 60:02}:00+00:00" for m in some] for some in (minutes, others))
    assert str(advices._turn(part, mine, {*mine, *rest, None})) == turn
