"""`icetower audit` as a person types it: metadata files, catalogs, checkpoints, pages and exit statuses."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog

from icetower.audit.auditor import AT_ONCE
from icetower.audit.page import LANES_MAX
from icetower.cli import main
from icetower.iceberg.records import DATA
from verify.histories.serial import File, World


@dataclass(frozen=True)
class Said:
    status: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """The output as one line, as far as lines were broken to fit."""
        return " ".join(self.out.split())


Run = Callable[..., Said]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "160")

    def type_it(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["icetower", "audit", *words])
        try:
            main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        return Said(status, *capsys.readouterr())

    return type_it


def sound(commits: int = 30) -> World:
    world = World(3, declared=1.0)
    for _ in range(commits):
        world.commit_any()
    return world


def double(world: World) -> File:
    """A commit adds a file that is there."""
    file = world.of(DATA)[0]
    twin = File(replace(file.entry, sequence_number=None), file.spec_id, file.rows)
    world.commit("append", [twin], summary={"engine-name": "spark", "spark.app.id": "app-1"})
    return file


def test_a_sound_table(run: Run, tmp_path: Path) -> None:
    said = run(str(sound().table().spill(tmp_path)), "--copied")
    assert said.status == 0, said.err
    assert "30 snapshots of main checked: nothing is wrong" in said.words


def test_what_is_wrong_is_told_with_its_witness(run: Run, tmp_path: Path) -> None:
    world = sound()
    file = double(world)
    said = run(str(world.table().spill(tmp_path)), "--copied")
    assert said.status == 3
    assert "file-twice definite" in said.words
    assert "append by spark app-1" in said.words
    assert file.path in said.words
    assert "31 snapshots of main checked: 1 definite" in said.words


def test_json(run: Run, tmp_path: Path) -> None:
    world = sound()
    double(world)
    said = run(str(world.table().spill(tmp_path)), "--copied", "--json")
    assert said.status == 3
    found: dict[str, Any] = json.loads(said.out)
    (violation,) = found["violations"]
    assert {"rule", "verdict", "snapshots", "witness"} <= violation.keys()
    assert (violation["rule"], violation["verdict"]) == ("file-twice", "definite")
    assert violation["snapshots"] == [found["checked"]["head"]]
    assert (found["checked"]["snapshots"], found["checked"]["expired"]) == (31, False)


@pytest.mark.parametrize(
    ("harm", "fail_on", "status"),
    [
        ("none", "definite", 0),
        ("none", "possible", 0),
        ("definite", "definite", 3),
        ("definite", "possible", 3),
        ("definite", "never", 0),
        ("possible", "definite", 0),
        ("possible", "possible", 3),
        ("possible", "never", 0),
    ],
)
def test_exit_statuses(run: Run, tmp_path: Path, harm: str, fail_on: str, status: int) -> None:
    world = sound(5)
    if harm == "definite":
        double(world)
    elif harm == "possible":
        deletes = world.equality([1], world.of(DATA)[0].place)
        world.commit("delete", [deletes])
        world.commit("delete", (), [deletes])
    said = run(str(world.table().spill(tmp_path)), "--copied", "--fail-on", fail_on)
    assert said.status == status, said.out + said.err


def test_a_checkpoint_is_gone_on_from(run: Run, tmp_path: Path) -> None:
    world, checkpoint = sound(), tmp_path / "checkpoint.json"
    asked = ("--copied", "--json", "--checkpoint", str(checkpoint))
    first = json.loads(run(str(world.table().spill(tmp_path)), *asked).out)
    assert first["checked"]["snapshots"] == 30
    again = json.loads(run(str(world.table().spill(tmp_path)), *asked).out)
    assert (again["checked"]["snapshots"], again["checked"]["resumed"]) == (0, True)
    double(world)
    world.commit_any()
    unseen = run(str(world.table().spill(tmp_path)), "--copied", "--json", "--checkpoint", str(checkpoint) + ".copy")
    assert unseen.status == 3  # by a checkpoint of its own it has looked at everything
    said = run(str(world.table().spill(tmp_path)), *asked, "--whole")
    found = json.loads(said.out)
    assert said.status == 3
    assert [each["rule"] for each in found["violations"]] == ["file-twice"]
    assert found["checked"]["snapshots"] == 2
    kept = json.loads(checkpoint.read_text())
    assert (kept["snapshots"], kept["violations"], kept["snapshot_id"]) == (32, 1, found["checked"]["head"])
    people = run(str(world.table().spill(tmp_path)), "--copied", "--checkpoint", str(checkpoint))
    assert people.status == 0  # each is told once
    assert "0 snapshots of main checked (32 before, with 1 violation): nothing is wrong" in people.words


def test_what_was_found_and_could_not_be_told_is_told_by_the_next_run(run: Run, tmp_path: Path) -> None:
    world, checkpoint = sound(), tmp_path / "checkpoint.json"
    double(world)
    asked = (str(world.table().spill(tmp_path)), "--copied", "--checkpoint", str(checkpoint))
    page = tmp_path / "nowhere" / "page.html"
    failed = run(*asked, "--html", str(page))
    assert (failed.status, failed.out) == (2, "")
    assert f"{page} cannot be written: No such file or directory" in failed.err
    assert not checkpoint.exists()
    assert run(*asked).status == 3
    assert run(*asked).status == 0
    unkept = run(*asked[:2], "--checkpoint", str(page))
    assert (unkept.status, f"{page} cannot be written" in unkept.err) == (2, True)
    assert "file-twice definite" in unkept.words


def test_a_checkpoint_that_was_rolled_back_begins_anew(run: Run, tmp_path: Path) -> None:
    world, checkpoint = sound(), tmp_path / "checkpoint.json"
    asked = ("--copied", "--json", "--checkpoint", str(checkpoint))
    run(str(world.table().spill(tmp_path)), *asked)
    table = world.table()
    table.head.metadata["snapshots"].pop()
    head = table.head.metadata["snapshots"][-1]["snapshot-id"]
    metadata = {
        **table.head.metadata,
        "current-snapshot-id": head,
        "refs": {"main": {"type": "branch", "snapshot-id": head}},
    }
    said = run(str(replace(table, head=replace(table.head, metadata=metadata)).spill(tmp_path)), *asked)
    assert said.status == 0
    assert "the whole history is audited again" in said.err
    assert json.loads(said.out)["checked"]["snapshots"] == 29


def test_checkpoints_that_are_none_or_anothers(run: Run, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.json"
    file = str(sound(3).table().spill(tmp_path))
    run(file, "--copied", "--checkpoint", str(checkpoint))
    other = World(4)
    other.commit_any()
    said = run(str(other.table().spill(tmp_path / "other")), "--copied", "--checkpoint", str(checkpoint))
    assert (said.status, "name another file" in said.err) == (2, True)
    for text in ("nonsense", "[]", '{"version": 7}', '{"version": 1, "uuid": "x"}'):
        checkpoint.write_text(text)
        said = run(file, "--copied", "--checkpoint", str(checkpoint))
        assert (said.status, "is no checkpoint of an audit" in said.err) == (1, True)


class Tags(HTMLParser):
    """Whether every tag that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.seen.add(tag)
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_says_what_others_wrote_as_text(run: Run, tmp_path: Path) -> None:
    world = sound(AT_ONCE)
    file = world.data()
    world.commit("append", [file])
    world.commit("delete", [world.deletes({file.path: frozenset({0})})], summary={"engine-name": "<script>alert(1)"})
    world.commit("replace", [world.data(file.rows, file.place)], [file])
    for at in range(LANES_MAX + 3):
        world.commit("append", [world.data()], summary={"engine-name": f"engine {at}"})
    page = tmp_path / "page.html"
    said = run(str(world.table().spill(tmp_path)), "--copied", "--html", str(page))
    assert said.status == 3
    text = page.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert {"svg", "circle", "path", "article", "ol"} <= tags.seen
    assert "script" not in tags.seen
    assert "&lt;script&gt;" in text
    assert "… " in text
    assert 'class="edge ww definite"' in text
    assert text.count('marker-end="url(#to)"') == 1
    assert not re.search(r"(src|href)=", text)


def test_a_table_of_a_pyiceberg_catalog(run: Run, tmp_path: Path) -> None:
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    catalog = SqlCatalog("c", **properties)
    catalog.create_namespace("shop")
    rows = pa.table({"id": [1, 2, 3]})
    table = catalog.create_table("shop.sales", schema=rows.schema)
    for _ in range(3):
        table.append(rows)
    table.delete("id = 2")
    table.overwrite(rows)
    asked = [
        word for name, value in {"type": "sql", **properties}.items() for word in ("--property", f"{name}={value}")
    ]
    said = run("shop.sales", "--catalog", "c", *asked, "--json")
    assert said.status == 0, said.err
    checked = json.loads(said.out)["checked"]
    assert checked["snapshots"] == len(load_catalog("c", type="sql", **properties).load_table("shop.sales").snapshots())
    assert json.loads(said.out)["violations"] == []
    missing = run("shop.nothing", "--catalog", "c", *asked)
    assert (missing.status, "has no table shop.nothing" in missing.err) == (1, True)


def test_s8_a_table_does_not_choose_what_code_is_loaded(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "burglar.py").write_text("from pyiceberg.io.pyarrow import PyArrowFileIO as FileIO\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    catalog = SqlCatalog("c", **properties)
    catalog.create_namespace("shop")
    evil = {"py-io-impl": "burglar.FileIO"}
    catalog.create_table("shop.sales", schema=pa.schema([("id", pa.int64())]), properties=evil)
    assert catalog.load_table("shop.sales").properties == evil
    assert sys.modules.pop("burglar", None) is not None
    asked = [
        word for name, value in {"type": "sql", **properties}.items() for word in ("--property", f"{name}={value}")
    ]
    assert run("shop.sales", "--catalog", "c", *asked).status == 0
    assert "burglar" not in sys.modules


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("t.metadata.json",), 1, "does not exist"),
        (("shop.sales", "--copied"), 2, "--copied is for a metadata file"),
        (("shop.sales", "--property", "secret"), 2, "is not shown"),
        (("shop.sales", "--catalog", "no-such-catalog"), 2, "configure it in .pyiceberg.yaml"),
        (("shop.sales", "--catalog", "http://127.0.0.1:9"), 1, "the connection was refused; check host and port"),
        (("sales", "--catalog", "http://127.0.0.1:9"), 1, "write namespace.table"),
        (("shop.sales", "--level", "none"), 2, "--level must be snapshot or serializable"),
    ],
)
def test_used_wrongly(run: Run, words: tuple[str, ...], status: int, told: str) -> None:
    said = run(*words)
    assert said.status == status, said.err
    assert told in said.err
    assert "Traceback" not in said.err


def test_an_unknown_branch(run: Run, tmp_path: Path) -> None:
    said = run(str(sound(3).table().spill(tmp_path)), "--copied", "--branch", "dev")
    assert said.status == 1
    assert "has no branch or tag 'dev'; it has main" in said.err
