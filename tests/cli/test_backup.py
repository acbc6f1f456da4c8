"""`icetower backup` of a running tower, and `icetower restore` into an empty place."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from icetower.agent import keyed, new_key
from verify.kit.tower_process import SCHEMA, TowerProcess, command

ROWS = pa.table({"id": pa.array([1], pa.int64()), "region": ["eu"]})


def type_it(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*map(str, words)), capture_output=True, text=True, cwd=cwd, timeout=120, check=False)


def test_what_was_acknowledged_before_the_backup_is_there_after_the_restore(tmp_path: Path) -> None:
    config = tmp_path / "tower.toml"
    config.write_text(f'[upstream]\nwarehouse = "file://{tmp_path}/warehouse"\n')
    kept, lost = new_key(), new_key()
    tower = TowerProcess(tmp_path / "data", "--config", str(config))
    try:
        client = tower.client()
        assert client.post("/v1/namespaces", json={"namespace": ["db"], "properties": {}}).is_success
        assert client.post("/v1/namespaces/db/tables", json={"name": "t", "schema": SCHEMA}).is_success
        client.close()
        table = tower.catalog().load_table("db.t")
        table.append(ROWS, snapshot_properties=keyed(kept, blind=True))
        done = type_it("backup", "kept", "--data", tower.data, "--config", config, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        table.append(ROWS, snapshot_properties=keyed(lost, blind=True))
    finally:
        tower.stop()
    folder = tmp_path / "kept"
    assert {path.name for path in folder.iterdir()} == {"control.db", "catalog.db", "admin.token"}
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())

    again = type_it("restore", "kept", "--data", tower.data, "--config", config, cwd=tmp_path)
    assert again.returncode == 2
    assert f"{tower.data}/control.db exists already" in again.stderr
    done = type_it("restore", "kept", "--data", tmp_path / "new", "--config", config, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    restored = TowerProcess(tmp_path / "new", "--config", str(config))
    try:
        assert restored.secret == tower.secret
        table = restored.catalog().load_table("db.t")
        assert table.scan().to_arrow().num_rows == 1
        # What the table has is done; what came after the backup is done now.
        table.append(ROWS, snapshot_properties=keyed(kept, blind=True))
        table.append(ROWS, snapshot_properties=keyed(lost, blind=True))
        assert restored.catalog().load_table("db.t").scan().to_arrow().num_rows == 2
    finally:
        restored.stop()


def test_a_catalog_elsewhere_is_copied_and_put_back_where_it_was(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.db"
    connection = sqlite3.connect(theirs)
    connection.execute("CREATE TABLE iceberg_tables (x TEXT)")
    connection.close()
    (tmp_path / "data").mkdir()
    sqlite3.connect(tmp_path / "data/control.db").close()
    (tmp_path / "icetower.toml").write_text(f'[server]\ndata = "data"\n[upstream]\nuri = "sqlite:///{theirs}"\n')
    assert type_it("backup", "kept", cwd=tmp_path).returncode == 0
    shutil.rmtree(tmp_path / "data")
    stopped = type_it("restore", "kept", cwd=tmp_path)
    assert stopped.returncode == 2
    assert f"{theirs} exists already" in stopped.stderr
    assert not (tmp_path / "data").exists()
    theirs.rename(tmp_path / "moved.db")
    theirs.with_name("theirs.db-wal").touch()
    assert f"{theirs}-wal exists already" in type_it("restore", "kept", cwd=tmp_path).stderr
    theirs.with_name("theirs.db-wal").unlink()
    assert type_it("restore", "kept", cwd=tmp_path).returncode == 0
    connection = sqlite3.connect(theirs)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("iceberg_tables",)]
    connection.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("backup", "kept", "--data", "nowhere"), "there is no tower in"),
        (("restore", "nowhere"), "nowhere is not a backup"),
        (("restore", "damaged"), "damaged/control.db is damaged"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/control.db").write_bytes(b"SQLite format 3\0" + b"\1" * 5000)
    done = type_it(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / ".icetower").exists()
