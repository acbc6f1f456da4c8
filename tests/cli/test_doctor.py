"""`icetower doctor`: what is broken on a machine is found, with the command that mends it; nothing is left behind."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from icetower.cli import checkup
from icetower.cli.checkup import State
from tests.cli.conftest import Run
from verify.kit.tower_process import TowerProcess

Looked = Callable[..., tuple[int, dict[str, dict[str, Any]]]]


@pytest.fixture
def looked(run: Run) -> Looked:
    """The exit status, and the checks by name; of several of one name the worst."""

    def look(*words: str) -> tuple[int, dict[str, dict[str, Any]]]:
        status, out, err = run("doctor", *words, "--json")
        assert err == ""
        found: dict[str, dict[str, Any]] = {}
        answer = json.loads(out)
        for each in answer["checks"]:
            worse = ["ok", "warn", "fail"].index
            if each["name"] not in found or worse(each["state"]) >= worse(found[each["name"]]["state"]):
                found[each["name"]] = each
            assert each["state"] == "ok" or each["mend"], each
        assert answer["well"] == (status == 0)
        return status, found

    return look


def write(tmp_path: Path, text: str) -> None:
    port = 1
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "icetower.toml").write_text(f'[server]\ndata = "{tmp_path}/data"\nport = {port}\n{text}')


def test_a_machine_that_is_well(looked: Looked, tmp_path: Path) -> None:
    write(tmp_path, "")
    (tmp_path / "data" / "warehouse").mkdir(parents=True)
    status, found = looked()
    assert status == 0, found
    assert found["configuration"]["state"] == found["disk"]["state"] == found["upstream"]["state"] == "ok"
    assert found["storage"]["said"].endswith("a file was written, read and deleted")
    assert found["pyiceberg"]["state"] == "ok"
    assert (found["port"]["state"], found["port"]["mend"]) == ("warn", "icetower serve")
    assert list((tmp_path / "data" / "warehouse").iterdir()) == []


def test_a_running_tower_is_ready_and_its_clock_agrees(looked: Looked, tmp_path: Path, untouched: TowerProcess) -> None:
    port = untouched.uri.rpartition(":")[2]
    (tmp_path / "icetower.toml").write_text(f'[server]\ndata = "{untouched.data}"\nport = {port}\n')
    status, found = looked()
    assert status == 0, found
    assert found["tower"]["state"] == found["clock of the tower"]["state"] == "ok"
    assert found["administrator's token"]["state"] == "ok"


S3 = """[upstream]
warehouse = "s3://b/w"
[storage]
"s3.endpoint" = "http://127.0.0.1:1"
"s3.secret-access-key" = "hunter2"
"s3.access-key-id" = "x"
"s3.region" = "eu-west-1"
"""


@pytest.mark.parametrize(
    ("text", "name", "state", "said"),
    [
        ("[server]\nprot = 1", "configuration", "fail", "TOML"),
        ("[upstraem]\nuri = 'x'", "configuration", "fail", "did you mean upstream?"),
        ("[upstream]\nuri = 'sqlite:////nowhere/none.db'", "upstream", "fail", "no folder /nowhere"),
        ("[upstream]\nuri = 'postgresql+psycopg://u:hunter2@127.0.0.1:1/x'", "upstream", "fail", "cannot be read"),
        ("[upstream]\nuri = 'nonsense:hunter2'", "upstream", "fail", "cannot be used"),
        ("[upstream]\nuri = 'sqlite:///{here}/other.db'\ncatalog = 'prod'", "upstream", "warn", "'prod'"),
        ("[upstream]\nwarehouse = '{here}/other.db/w'", "storage", "fail", "other.db is a file"),
        (S3, "storage", "fail", "s3://b/w"),
        ("disk_min_bytes = 1000000000000000", "disk", "fail", "disk_min_bytes"),
        ("[escalations.webhooks]\npager = {url = 'https://e.example.com/x', secret_env = 'NOT_SET'}",
         "configuration", "fail", "NOT_SET"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(looked: Looked, tmp_path: Path, text: str, name: str, state: str, said: str) -> None:
    with sqlite3.connect(tmp_path / "other.db") as database:
        database.execute(
            "create table iceberg_tables (catalog_name text, table_namespace text, table_name text, "
            "metadata_location text, previous_metadata_location text, iceberg_type text)"
        )
        database.execute("insert into iceberg_tables values ('lake', 'a', 'b', 'file:///x', null, 'TABLE')")
    write(tmp_path, text.replace("{here}", str(tmp_path)))
    status, found = looked()
    assert found[name]["state"] == state, found
    assert said in found[name]["said"]
    assert status == (1 if state == "fail" else 0)
    assert "hunter2" not in json.dumps(found)


def test_permissions(looked: Looked, tmp_path: Path) -> None:
    write(tmp_path, "[storage]\n's3.secret-access-key' = 'x'\n")
    os.chmod(tmp_path / "icetower.toml", 0o644)
    (tmp_path / "data").mkdir()
    for name in ("control.db", "admin.token"):
        (tmp_path / "data" / name).write_text("x")
        os.chmod(tmp_path / "data" / name, 0o644)
    status, found = looked()
    assert status == 1
    assert found["permissions"]["mend"] == f"chmod 600 {tmp_path}/data/admin.token"
    assert found["configuration"]["mend"] == "chmod 600 icetower.toml"


def test_a_data_directory_that_is_a_file(looked: Looked, tmp_path: Path) -> None:
    write(tmp_path, "")
    (tmp_path / "data").write_text("x")
    assert looked()[1]["data directory"]["state"] == "fail"


def test_another_program_at_the_port(looked: Looked, tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        (tmp_path / "icetower.toml").write_text(f"[server]\nport = {listener.getsockname()[1]}\n")
        monkey = pytest.MonkeyPatch()
        monkey.setattr(checkup, "TIMEOUT_S", 0.5)
        try:
            status, found = looked()
        finally:
            monkey.undo()
    assert (status, found["port"]["state"]) == (1, "fail")
    assert "--port" in found["port"]["mend"]


def test_java_and_versions(looked: Looked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    versions = {"pyiceberg": "0.11.0", "pyspark": "4.0.1"}
    monkeypatch.setattr(checkup, "_version", versions.get)
    status, found = looked()
    assert status == 1
    assert found["java"]["said"].endswith("is version 11, and Spark needs 17")
    assert found["pyiceberg"]["mend"] == "pip install 'pyiceberg==0.12.0'"
    assert found["spark"]["state"] == "fail"


@pytest.mark.parametrize(
    ("ahead_ms", "state"),
    [(0, State.OK), (1_500, State.OK), (2_500, State.WARN), (-2_500, State.WARN), (40_000, State.FAIL)],
)
def test_clocks_are_compared(ahead_ms: int, state: State) -> None:
    assert checkup._skew("clock", 100_000 + ahead_ms, 100_000, 100_000).state is state
    assert checkup._skew("clock", 100_500, 100_000, 101_000).state is State.OK  # while it was asked


def test_for_people_each_line_is_followed_by_what_mends_it(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "")
    status, out, _ = run("doctor")
    assert status == 0
    lines = out.splitlines()
    assert any(line.startswith("warn  port: ") for line in lines)
    assert "      icetower serve" in lines
    assert lines[-1].startswith("nothing fails, and something wants a look: ")
