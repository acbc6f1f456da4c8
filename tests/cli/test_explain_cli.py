"""`icetower explain` as a person types it: figures, interleavings, cases of one's own, and snapshots of real tables."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from icetower.cli import main
from icetower.cli.registry import token_for
from icetower.cli.snapshots import place_in_catalog
from icetower.cli.tables import pairs
from icetower.errors import UsageError
from icetower_client_model.figures import FIGURES, LISTED
from verify.kit.tower_process import TowerProcess

FIXTURES = Path(__file__).parent.parent / "iceberg" / "fixtures"


@dataclass(frozen=True)
class Said:
    """What the program said and how it ended."""

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
        monkeypatch.setattr(sys, "argv", ["icetower", "explain", *words])
        try:
            main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        return Said(status, *capsys.readouterr())

    return type_it


@pytest.mark.parametrize("name", list(FIGURES))
def test_every_figure_is_replayed_by_name(run: Run, name: str) -> None:
    said = run("--figure", name)
    figure = FIGURES[name]
    assert (said.status, said.err) == (0, "")
    for words in (figure.title, figure.source, *figure.story, *figure.people.values(), *figure.expected.values()):
        assert words in said.words
    assert (f"refused by {figure.rule}" in said.words) == bool(figure.rule)


def test_a_figure_shows_the_rows_that_are_left(run: Run) -> None:
    assert "jack, banana" in run("--figure", "undelete").out
    assert "sarah, black ← sarah is there 2 times" in run("--figure", "8").words


def test_what_the_readme_types_is_understood(run: Run) -> None:
    readme = (Path(__file__).parent.parent.parent / "README.md").read_text()
    typed = re.findall(r"icetower explain (--.*)", readme)
    assert len(typed) == 4
    known = run("--help").out
    assert all(option in known for line in typed for option in re.findall(r"--[a-z]+", line))


def test_a_figure_for_machines(run: Run) -> None:
    said = json.loads(run("--figure", "5", "--json").out)
    assert said["case"]["files"].keys() == {"data-1", "data-2", "data-3"}
    assert said["end"] == {"data": ["data-2"], "deletes": [], "rows": ["jack, pink", "sarah, blue"]}
    refused = said["lanes"][2]
    assert (refused["verdict"], refused["conflict"]["rule"], refused["attempts"]) == ("refused", "C6", 2)
    assert refused["explanation"]["iceberg"] == FIGURES["5"].expected[3]


def test_all_variants_of_an_interleaving(run: Run) -> None:
    said = run("--interleaving", "k2")
    assert said.status == 0
    assert "K2-with: " in said.out
    assert "K2-without: " in said.out
    assert [each["name"] for each in json.loads(run("--interleaving", "K2", "--json").out)] == ["K2-with", "K2-without"]


def test_everything_that_has_a_name_is_listed(run: Run) -> None:
    shown = {(row["kind"], row["name"]) for row in json.loads(run("--list", "--json").out)}
    assert {("figure", name) for name in FIGURES} <= shown
    others = {name for name in LISTED if not name.startswith("Fig") or name.removeprefix("Fig") not in FIGURES}
    assert {name for kind, name in shown if kind == "interleaving"} == others
    plain = run("--list").out
    assert all(name in plain for _, name in shown)


def test_a_case_of_ones_own(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"name": "mine", **FIGURES["2"].case}))
    assert run("--case", str(path)).status == 0
    path.write_text(json.dumps(FIGURES["10"].case))
    said = run("--case", str(path))
    assert said.status == 3
    assert "mine.json" in said.out
    assert "refused by C6" in said.out
    assert json.loads(run("--case", str(path), "--json").out)["lanes"][1]["name"] == "writer 3"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name one thing to explain: --figure 7"),
        (("--figure", "7", "--list"), "name one thing to explain"),
        (("--figure", "13"), "there is no figure '13'; the figures are introduction-rebase"),
        (("--interleaving", "K"), "there is no interleaving 'K'; did you mean"),
        (("--interleaving", "zzz"), "`icetower explain --list` shows all"),
        (("--case", "nowhere.json"), "nowhere.json cannot be read: No such file"),
        (("--metadata", "m.json", "1"), "name two snapshots, the earlier one first; 1 are given"),
        (("--catalog", "http://127.0.0.1:9", "1", "2"), "--catalog and --table belong together"),
        (
            ("--catalog", "http://127.0.0.1:9", "--table", "t", "1", "2"),
            "'t' is not a table's name: write namespace.table",
        ),
        (("--metadata", "m.json", "--storage", "x", "1", "2"), "--storage has a property without `=`"),
    ],
)
def test_what_is_used_wrongly_is_told(run: Run, words: tuple[str, ...], message: str) -> None:
    said = run(*words)
    assert said.status != 0
    assert message in said.err
    assert said.out == ""


@pytest.mark.parametrize(("content", "message"), [("[1]", "is not a case"), ("{", "is not JSON"), ("{}", "case")])
def test_a_case_that_is_none(run: Run, tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "case.json"
    path.write_text(content)
    said = run("--case", str(path))
    assert said.status in (1, 2)
    assert message in said.err


# ── Snapshots of real tables ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def by_java(tmp_path: Path) -> Callable[[str], tuple[str, list[str]]]:
    """A table that Iceberg's Java library wrote: its metadata file, and its snapshot ids, oldest first."""

    def unpack(name: str) -> tuple[str, list[str]]:
        with zipfile.ZipFile(FIXTURES / f"{name}.zip") as archive:
            archive.extractall(tmp_path)
        path = tmp_path / "metadata.json"
        snapshots = json.loads(path.read_text())["snapshots"]
        snapshots.sort(key=lambda each: each["sequence-number"])
        return str(path), [str(each["snapshot-id"]) for each in snapshots]

    return unpack


@pytest.mark.parametrize("version", [2, 3])
def test_two_snapshots_that_iceberg_has_written(run: Run, by_java: Any, version: int) -> None:
    path, ids = by_java(f"java_v{version}_mor")
    said = run("--metadata", path, "--copied", ids[3], ids[4])
    assert said.status == 3
    assert f"snapshot {ids[3]} (append)" in said.words
    assert "delete: it adds delete files and no data: a DELETE, merge-on-read" in said.words
    assert "serializable ← asked conflict C1" in said.words
    assert "snapshot may coexist" in said.words
    assert "Found conflicting files that can contain records matching true" in said.words
    assert run("--metadata", path, "--copied", "--level", "snapshot", ids[3], ids[4]).status == 0
    assert run("--metadata", path, "--copied", "--filter", "partitions", ids[3], ids[4]).status == 0


def test_two_snapshots_for_machines(run: Run, by_java: Any) -> None:
    path, ids = by_java("java_v2_cow")
    where = {"type": "eq", "term": "day", "value": "2017-01-03"}
    said = run("--metadata", path, "--copied", "--json", "--filter", json.dumps(where), ids[2], ids[3])
    assert said.status == 3
    answer = json.loads(said.out)
    assert answer["command"] == "copy-on-write"
    assert answer["prepared_on"] == int(ids[1])
    assert answer["coexist"] is False
    assert [level["conflict"] and level["conflict"]["rule"] for level in answer["levels"]] == [None, None, "C1"]
    elsewhere = json.dumps({**where, "value": "2017-01-01"})
    assert run("--metadata", path, "--copied", "--filter", elsewhere, ids[2], ids[3]).status == 0


def test_a_change_that_builds_on_the_other(run: Run, by_java: Any) -> None:
    path, ids = by_java("java_v3_mor")
    said = run("--metadata", path, "--copied", ids[1], ids[2])
    assert said.status == 3
    assert "builds on it" in said.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("1", "2"), "the table has no snapshot 1 (it has expired or never existed)"),
        (("FIRST", "FIRST"), "is one change, not two"),
        (("SECOND", "FIRST"), "swap the two"),
        (("--filter", "day = 3", "FIRST", "SECOND"), "is neither `partitions` nor JSON"),
        (("--filter", '{"type": "eq"}', "FIRST", "SECOND"), "the filter"),
    ],
)
def test_snapshots_that_cannot_be_held_together(run: Run, by_java: Any, words: tuple[str, ...], message: str) -> None:
    path, ids = by_java("java_v2_cow")
    named = [{"FIRST": ids[0], "SECOND": ids[1]}.get(word, word) for word in words]
    said = run("--metadata", path, "--copied", *named)
    assert said.status == 1
    assert message in said.err


def test_a_table_from_before_manifest_lists(run: Run, by_java: Any) -> None:
    path, ids = by_java("java_v2_cow")
    metadata = json.loads(Path(path).read_text())
    for snapshot in metadata["snapshots"]:
        del snapshot["manifest-list"]
    Path(path).write_text(json.dumps(metadata))
    said = run("--metadata", path, "--copied", ids[0], ids[1])
    assert said.status == 1
    assert "lists its manifests inside the metadata" in said.err


def test_manifests_that_are_not_there(run: Run, by_java: Any) -> None:
    path, ids = by_java("java_v2_cow")
    said = run("--metadata", path, ids[0], ids[1])
    assert said.status == 1
    assert "File does not exist: " in said.err


def test_a_table_of_a_running_tower(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tower = TowerProcess(tmp_path / "data")
    try:
        catalog = load_catalog("tower", type="rest", uri=tower.uri, token=tower.secret)
        catalog.create_namespace("shop")
        rows = pa.table({"id": pa.array([1, 2], pa.int64())})
        table = catalog.create_table("shop.sales", rows.schema)
        table.append(rows)
        table.append(rows)
        table.overwrite(rows, overwrite_filter="id = 1")
        ids = [str(snapshot.snapshot_id) for snapshot in table.metadata.snapshots]
        monkeypatch.setenv("ICETOWER_TOKEN", tower.secret)
        said = run("--catalog", tower.uri, "--table", "shop.sales", ids[0], ids[1])
        assert (said.status, said.err) == (0, "")
        assert "append: it only adds data files" in said.words
        assert "builds on it" in run("--catalog", tower.uri, "--table", "shop.sales", ids[1], ids[2]).words
        gone = run("--catalog", tower.uri, "--table", "shop.nothing", ids[0], ids[1])
        assert (gone.status, "check the table's name (shop.nothing)" in gone.err) == (1, True)
        monkeypatch.setenv("ICETOWER_TOKEN", "wrong")
        refused = run("--catalog", tower.uri, "--table", "shop.sales", ids[0], ids[1])
        assert (refused.status, "set ICETOWER_TOKEN" in refused.err) == (1, True)
    finally:
        tower.stop()
    away = run("--catalog", tower.uri, "--table", "shop.sales", ids[0], ids[1])
    assert (away.status, "check host and port" in away.err) == (1, True)


# ── Hostile words ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_words_of_a_case_do_not_command_the_terminal(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    files = {"A": {"path": "mem://t/\x1b[2JA"}}
    gone = {"kind": "delete", "remove_paths": ["A"], "validate": ["files-exist"]}
    path.write_text(
        json.dumps({"name": "\x1b]0;a\x07", "files": files, "steps": [{"do": "write", "id": 1, "op": gone}]})
    )
    said = run("--case", str(path))
    assert said.status == 3
    assert "Missing required files to delete: mem://t/[2JA" in said.words
    assert "\x1b" not in said.out
    assert "\x07" not in said.out


def test_a_case_that_is_too_deep(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_text("[" * 100_000)
    assert "is not JSON" in run("--case", str(path)).err


def test_a_snapshot_of_no_known_time(run: Run, by_java: Any) -> None:
    path, ids = by_java("java_v2_cow")
    metadata = json.loads(Path(path).read_text())
    metadata["snapshots"][0]["timestamp-ms"] = 10**18
    Path(path).write_text(json.dumps(metadata))
    assert "at no known time" in run("--metadata", path, "--copied", ids[0], ids[1]).words


def test_a_secret_of_an_option_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSH", "4711=")
    assert pairs(["s3.secret-access-key=env:HUSH", "s3.region=north"], "--storage") == {
        "s3.secret-access-key": "4711=",
        "s3.region": "north",
    }
    with pytest.raises(UsageError, match="the environment variable NOT_SET is not set"):
        pairs(["s3.secret-access-key=env:NOT_SET"], "--storage")


def test_a_secret_in_a_storage_property_is_not_shown(run: Run) -> None:
    said = run("--metadata", "x", "--storage", "s3.secret-access-key:hush", "1", "2")
    assert (said.status, "hush" in said.err) == (2, False)


@pytest.fixture
def answering() -> Iterator[Callable[[Any], tuple[str, list[str]]]]:
    """Starts a catalog that gives one answer to everything: its address, and the Authorization of every request."""
    servers: list[HTTPServer] = []

    def start(answer: Any) -> tuple[str, list[str]]:
        seen: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append(self.headers.get("Authorization", ""))
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"127.0.0.1:{servers[-1].server_port}", seen

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"<html>", "without a JSON object: is that an Iceberg REST catalog?"),
        (b"[" * 100_000, "without a JSON object: is that an Iceberg REST catalog?"),
        ([], "without a JSON object: is that an Iceberg REST catalog?"),
        ({"defaults": None, "overrides": []}, "Cannot parse table metadata"),
        ({"metadata": None, "config": None}, "Cannot parse table metadata"),
    ],
)
def test_a_catalog_that_answers_nonsense(run: Run, answering: Any, answer: Any, message: str) -> None:
    address, _ = answering(answer)
    said = run("--catalog", f"http://me:hush@{address}", "--table", "a.b", "1", "2")
    assert said.status == 1
    assert message in said.err
    assert "hush" not in said.err


def test_a_catalog_does_not_choose_what_code_is_loaded(answering: Any, by_java: Any) -> None:
    path, _ = by_java("java_v2_cow")
    config = {"py-io-impl": "antigravity.FileIO", "s3.retry-strategy-impl": "antigravity.X", "s3.region": "north"}
    address, _ = answering({"metadata": json.loads(Path(path).read_text()), "config": config})
    assert place_in_catalog(f"http://{address}", "a.b", None, {}).storage == {"s3.region": "north"}


def test_the_administrators_secret_stays_on_this_machine(
    run: Run, answering: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ICETOWER_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    Path(".icetower").mkdir()
    Path(".icetower/admin.token").write_text("hush\n")
    address, seen = answering({})
    run("--catalog", f"http://{address}", "--table", "a.b", "1", "2")
    assert set(seen) == {""}, "what listens there has not proved that it is this machine's tower"
    assert token_for(f"http://{address}") is None
    here = "localhost"
    for elsewhere in ("http://tower.example:8181", "https://localhost.example.org", f"http://{here}@tower.example/"):
        assert token_for(elsewhere) is None
    monkeypatch.setenv("ICETOWER_TOKEN", "mine")
    assert token_for("https://localhost.example.org") == "mine"
