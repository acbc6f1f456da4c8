"""Java's JdbcCatalog and the tower on one SQLite file: what one commits, the other reads and builds on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from tower_process import TowerProcess

pytestmark = pytest.mark.spark


def java(data: Path, *statements: str) -> list[list[list[object]]]:
    done = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("jdbc_catalog.py")),
            str(data / "java.db"),
            (data / "warehouse").as_uri(),
        ],
        input="\n".join(statements),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_catalog_that_java_has_made_is_served_and_shared(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    settings = tmp_path / "icetower.toml"
    settings.write_text(f'[upstream]\nuri = "sqlite:///{data / "java.db"}"\ncatalog = "java"\n')
    java(
        data,
        "CREATE NAMESPACE java.shop",
        "CREATE TABLE java.shop.t (id BIGINT) USING iceberg",
        "INSERT INTO java.shop.t VALUES (1), (2)",
    )
    tower = TowerProcess(data, "--config", str(settings))
    try:
        table = tower.catalog(tower.secret).load_table("shop.t")
        table.append(pa.table({"id": [3]}))
        read, _, listed = java(
            data,
            "SELECT id FROM java.shop.t ORDER BY id",
            "INSERT INTO java.shop.t VALUES (4)",
            "SHOW TABLES IN java.shop",
        )
        assert read == [[1], [2], [3]]
        assert [row[1] for row in listed] == ["t"]
        assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]
        table.append(pa.table({"id": [5]}))
        assert java(data, "SELECT count(*), sum(id) FROM java.shop.t") == [[[5, 15]]]
    finally:
        tower.stop()
