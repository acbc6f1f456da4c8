"""Every command: help that reads well, and failures that say what was wrong, why, and what to do; no traceback."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from icetower.cli.app import COMMANDS, app
from icetower.cli.summaries import SUMMARIES
from tests.cli.conftest import Run

COMMANDS_PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()


def leaves(command: typer.core.TyperGroup, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in command.commands:
        found = command.commands[name]
        inner = getattr(found, "commands", None)
        if inner is None:
            yield (*words, name)
        else:
            yield from leaves(found, (*words, name))


ROOT = get_command(app)
assert isinstance(ROOT, typer.core.TyperGroup)
LEAVES = sorted(leaves(ROOT))


def test_every_command_is_found() -> None:
    assert {words[0] for words in LEAVES} == {name.split()[0] for name in COMMANDS}
    assert len(LEAVES) > 35


def test_the_lines_of_the_programs_help_are_those_of_its_commands() -> None:
    said = {name: " ".join((ROOT.commands[name].help or "").split("\n\n")[0].split()) for name in ROOT.commands}
    assert said == SUMMARIES


@pytest.mark.parametrize("asked", ["--help", "--version", "completion", "mispelt"])
def test_what_needs_no_command_imports_none(asked: str) -> None:
    """Whoever asks what there is, as a shell does at every press of the tab key, waits for no library of a command."""
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        f"sys.argv = ['icetower'] + ([] if {asked!r} == 'completion' else [{asked!r}])\n"
        "from icetower.cli import main\n"
        "main()\n"
    )
    asking = (
        {"_ICETOWER_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "icetower "} if asked == "completion" else {}
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **asking}, capture_output=True, text=True, check=False
    )
    shown = {"--help": SUMMARIES["serve"], "completion": SUMMARIES["serve"], "--version": "icetower ", "mispelt": ""}
    assert shown[asked] in done.stdout, done.stderr
    imported = done.stderr.splitlines()[-1].split()
    assert "icetower.cli.app" in imported
    named = {module.split(".")[0] for module in imported}
    heavy = "numpy orjson prometheus_client pyarrow pyiceberg pyspark sqlalchemy starlette strictyaml uvicorn"
    assert not named & set(heavy.split())
    own = {f"icetower.cli.{each.partition(':')[0]}" for each in COMMANDS.values()}
    assert not own & set(imported)


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_help_has_a_sentence_and_an_example(run: Run, words: tuple[str, ...]) -> None:
    status, out, _ = run(*words, "--help")
    assert status == 0
    assert f"Usage: icetower {' '.join(words)}" in out
    _, _, example = out.partition("Example:")
    assert f"icetower {' '.join(words)}" in example.split("Options:")[0], "no example"
    assert not re.search(r"\bwords?\b|\btold\b|\bwho you are\b", out), "a help text not in the field's language"


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_is_documented(words: tuple[str, ...]) -> None:
    assert f"`icetower {' '.join(words)}`" in COMMANDS_PAGE


def refused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


CONTRACT = "version: 1\nagent: a\nowner: a@example.com\ntables:\n  - table: a.b\n    operations: [append]\n"
OVER_THE_WIRE = {
    ("status",): (),
    ("top",): (),
    ("agents", "list"): (),
    ("agents", "show"): ("a",),
    ("alerts", "list"): (),
    ("alerts", "silence"): ("--rule", "r", "--reason", "x"),
    ("alerts", "unsilence"): ("--rule", "r"),
    ("tables", "list"): (),
    ("commits",): (),
    ("fence",): ("shop.sales", "--key", "k"),
    ("leases", "list"): (),
    ("slots",): (),
    ("leases", "break"): ("01a1fe03-73b8-78ac-b3d5-6bcc4d844630",),
    ("landed",): ("shop.sales", "--key", "k"),
    ("publish",): ("shop.sales", "b"),
    ("branches",): ("shop.sales",),
    ("report-check",): ("shop.sales", "1", "c", "--passed"),
    ("send",): ("shop.sales", "rows.json", "--key", "k"),
    ("bypasses",): (),
    ("forget",): ("p-4711",),
    ("tables", "show"): ("a.b",),
    ("tables", "set"): ("a.b", "--blind-appends"),
    ("principals", "list"): (),
    ("principals", "create"): ("p", "--contract", "c"),
    ("principals", "rotate"): ("p",),
    ("principals", "revoke"): ("p",),
    ("contracts", "list"): (),
    ("contracts", "show"): ("c",),
    ("contracts", "history"): ("c",),
    ("contracts", "revoke"): ("c",),
    ("contracts", "restore"): ("c",),
    ("contracts", "diff"): ("c.yaml",),
    ("contracts", "apply"): ("c.yaml",),
    ("contracts", "shadow-report"): (),
    ("escalations", "list"): (),
    ("escalations", "show"): ("e",),
    ("escalations", "close"): ("e", "--note", "n"),
    ("requests", "list"): (),
    ("requests", "show"): ("r",),
    ("requests", "make"): ("a.b", "--operation", "append", "--reason", "why"),
    ("requests", "close"): ("r", "--note", "n", "--denied"),
    ("plan",): ("--log", "a.b"),
}
"""Commands that ask a running tower, each with what else it must be given."""


@pytest.mark.parametrize("words", OVER_THE_WIRE, ids=" ".join)
def test_a_tower_that_is_not_there(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "c.yaml").write_text(CONTRACT)
    (tmp_path / "rows.json").write_text('[{"a": 1}]')
    uri = f"http://127.0.0.1:{refused_port()}"
    status, _, err = run(*words, *OVER_THE_WIRE[words], "--uri", uri)
    assert status == 1
    assert err.startswith("icetower: ")
    assert uri in err
    assert "the connection was refused; check host and port" in err


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("http://tower.invalid:1", "the host name cannot be resolved"),
        ("ftp://127.0.0.1", "is not an address of a tower; write it like http://127.0.0.1:8181"),
        ("http://[::1", "is not an address of a tower"),
        ("http://me:hunter2@127.0.0.1:1", "refused"),
    ],
)
def test_an_address_that_is_wrong(run: Run, uri: str, said: str) -> None:
    status, _, err = run("commits", "--uri", uri)
    assert status == 1
    assert said in err
    assert "hunter2" not in err


HOSTILE = [
    (("serve", "--data", "file"), 2, ("file", "it is a file", "--data")),
    (("serve", "--data", "corrupt"), 2, ("control.db", "not a database", "restore it")),
    (("serve", "--config", "none.toml"), 2, ("none.toml", "no such file", "--config")),
    (("serve", "--config", "prot.toml"), 2, ("prot.toml", "[server] prot", "did you mean port?")),
    (("serve", "--config", "sectoin.toml"), 2, ("sectoin.toml", "[upstraem]", "did you mean upstream?")),
    (("serve", "--config", "port.toml"), 2, ("port.toml", "[server] port: is 'many'", "integer")),
    (("serve", "--config", "secret.toml"), 2, ("secret.toml", "[storage] s3.secret-access-key", "string")),
    (("serve", "--config", "broken.toml"), 2, ("broken.toml", "TOML", "line 1")),
    (("serve", "--config", "latin.toml"), 2, ("latin.toml", "TOML")),
    (("serve", "--config", "."), 2, ("cannot be read", "is a directory")),
    (("serve", "--port", "99999"), 2, ("[server] port", "65535")),
    (("serve", "--log-format", "xml"), 2, ("log_format", "'logfmt' or 'json'")),
    (("audit", "a.b", "--catalog", "nosuch"), 2, ("'nosuch'", ".pyiceberg.yaml")),
    (("audit", "a.b", "--catalog", "p", *("--property", "type=sql", "--property", "uri=sqlite:///missing.db")), 2,
     ("'p'", "missing.db", "check its uri")),
    (("advise", "none.metadata.json"), 1, ("none.metadata.json", "does not exist")),
    (("audit", "empty.metadata.json"), 1, ("metadata",)),
    (("explain", "--catalog", "nosuch", "--table", "a.b", "1", "2"), 2, ("'nosuch'", ".pyiceberg.yaml")),
    (("explain", "--case", "none.json"), 2, ("none.json", "no such file")),
    (("explain", "--case", "broken.toml"), 2, ("broken.toml", "JSON")),
    (("explain", "--figure", "77"), 2, ("'77'", "the figures are")),
    (("revert", "a.b", "--agent", "x", "--since", "soon", "--catalog", "http://127.0.0.1:1"), 2, ("'soon'", "2h")),
    (("revert", "a.b", "--agent", "x", "--since", "2h", "--catalog", "prod"), 2, ("REST catalog", "--catalog")),
    (("commits", "--since", "yesterday"), 2, ("'yesterday'", "2h")),
    (("plan", "none.toml"), 2, ("none.toml", "cannot be read")),
    (("plan", "broken.toml"), 2, ("broken.toml", "TOML")),
    (("simulate", "run", "nosuch"), 2, ("nosuch",)),
    (("simulate", "calibrate", "x", "--property", "type"), 2, ("--property", "key=value")),
    (("contracts", "check", "none.yaml"), 2, ("none.yaml", "no such file")),
    (("contracts", "check", "latin.toml"), 2, ("latin.toml", "UTF-8")),
    (("requests", "close", "r", "--note", "n"), 2, ("--granted", "--denied")),
    (("nosuch",), 2, ("nosuch",)),
]  # fmt: skip


@pytest.mark.parametrize(("words", "expected", "named"), HOSTILE, ids=[" ".join(each[0]) for each in HOSTILE])
def test_what_is_wrong_is_named_with_its_cause_and_the_way_out(
    run: Run, tmp_path: Path, words: tuple[str, ...], expected: int, named: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "corrupt").mkdir()
    (tmp_path / "corrupt" / "control.db").write_text("not a database at all, " * 10)
    (tmp_path / "prot.toml").write_text("[server]\nprot = 1\n")
    (tmp_path / "sectoin.toml").write_text("[upstraem]\nuri = 'x'\n")
    (tmp_path / "port.toml").write_text("[server]\nport = 'many'\n")
    (tmp_path / "secret.toml").write_text("[storage]\n's3.secret-access-key' = 31337\n")
    (tmp_path / "broken.toml").write_text("nothing = = here")
    (tmp_path / "latin.toml").write_bytes("höhe = 1".encode("latin-1"))
    (tmp_path / "empty.metadata.json").write_text("")
    status, _, err = run(*words)
    assert status == expected, err
    for each in named:
        assert each.lower() in err.lower(), err
    assert "31337" not in err
    assert not (tmp_path / "missing.db").exists()
    assert len(err.strip().splitlines()) <= 6


def test_a_port_that_is_taken(run: Run) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        status, _, err = run("serve", "--port", port)
    assert status == 2
    assert f"127.0.0.1:{port}" in err
    assert "--port" in err


@pytest.mark.parametrize(
    ("words", "environment", "named"),
    [
        (("mediate", "--wal", "a.b", "--target", "a.c"), {"JAVA_HOME": "/nonexistent"}, ("JAVA_HOME", "/nonexistent")),
        (
            ("collect", "--deltas", "a.b", "--target", "a.c", "--keys", "id"),
            {"JAVA_HOME": "/nonexistent"},
            ("JAVA_HOME", "/nonexistent"),
        ),
        (("dedup", "--target", "a.b"), {"JAVA_HOME": "/nonexistent"}, ("JAVA_HOME", "/nonexistent")),
        (("orphans", "a.b"), {"PATH": "/nonexistent"}, ("Java", "PATH", "install Java 17")),
        (("simulate", "sweep", "1a"), {"PATH": "/nonexistent"}, ("Java", "PATH")),
    ],
)
def test_without_java(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    environment: dict[str, str],
    named: tuple[str, ...],
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    status, _, err = run(*words)
    assert status == 2
    for each in named:
        assert each in err
    assert len(err.strip().splitlines()) == 1


def test_an_answer_that_is_no_towers(run: Run) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            uri = f"http://127.0.0.1:{server.server_port}"
            plain = run("commits", "--uri", uri)
            secure = run("commits", "--uri", uri.replace("http", "https"))
            audited = run("audit", "a.b", "--catalog", uri)
        finally:
            server.shutdown()
    assert plain[0] == 1
    assert f"{uri} answers, but not with JSON, so it is not a tower" in plain[2]
    assert secure[0] == 1
    assert "does not use TLS" in secure[2]
    assert audited[0] == 1
    assert "is that an Iceberg REST catalog?" in audited[2]


def test_what_nobody_expected_is_one_line_unless_it_is_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("first\nsecond")

    monkeypatch.setattr("icetower.cli.commits.connect", broken)
    status, _, err = run("commits")
    assert (status, len(err.splitlines())) == (1, 1)
    assert "RuntimeError: first" in err
    assert "ICETOWER_TRACEBACK=1" in err
    monkeypatch.setenv("ICETOWER_TRACEBACK", "1")
    with pytest.raises(RuntimeError):
        run("commits")


def test_tables_are_whole_when_they_are_piped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "s3://bucket/" + "x" * 300
    row = {"at_ms": 0, "principal": "p", "table": path, "operation": "append", "outcome": "refused"}
    row |= {"latency_ms": 1.0}
    row |= {
        "rule": "contract.partitions",
        "partitions": ["ts_day=2017-01-02"] * 3,
        "snapshots": [2**62],
        "message": "m",
    }
    row |= {"request_id": "9915ed55a0cc6f48"}

    class Fake:
        def __enter__(self) -> Fake:
            return self

        def __exit__(self, *_: object) -> None: ...

        def commits(self, **_: object) -> list[dict[str, object]]:
            return [row]

    monkeypatch.setattr("icetower.cli.commits.connect", lambda _uri: Fake())
    monkeypatch.setenv("COLUMNS", "40")
    _, out, _ = run("commits", "--request", "99")
    line = next(line for line in out.splitlines() if path in line)
    for each in ("contract.partitions", "ts_day=2017-01-02, ts_day=2017-01-02", str(2**62), "9915ed55a0cc6f48"):
        assert each in line
    assert "9915ed55a0cc6f48: m" in out
