"""Java's JdbcCatalog and the tower on one SQLite file: what one commits, the other reads and builds on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from verify.kit.tower_process import TowerProcess

pytestmark = pytest.mark.spark


@contextmanager
def java(data: Path) -> Iterator[Callable[[str], list[list[object]]]]:
    """Java on a tower's database: answers statements with their rows."""
    program = [sys.executable, str(Path(__file__).with_name("jdbc_catalog.py"))]
    with subprocess.Popen(
        [*program, str(data / "java.db"), (data / "warehouse").as_uri()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        assert process.stdin
        assert process.stdout
        asked, answers = process.stdin, process.stdout

        def ask(statement: str) -> list[list[object]]:
            asked.write(f"{statement}\n")
            line = answers.readline()
            assert line, "Java has ended; what it said is above"
            return json.loads(line)

        try:
            yield ask
        finally:
            process.kill()


def test_a_catalog_that_java_has_made_is_served_and_shared(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    settings = tmp_path / "icetower.toml"
    settings.write_text(f'[upstream]\nuri = "sqlite:///{data / "java.db"}"\ncatalog = "java"\n')
    with java(data) as ask:
        ask("CREATE NAMESPACE java.shop")
        ask("CREATE TABLE java.shop.t (id BIGINT) USING iceberg")
        ask("INSERT INTO java.shop.t VALUES (1), (2)")
        tower = TowerProcess(data, "--config", str(settings))
        try:
            table = tower.catalog(tower.secret).load_table("shop.t")
            table.append(pa.table({"id": [3]}))
            ask("REFRESH TABLE java.shop.t")
            assert ask("SELECT id FROM java.shop.t ORDER BY id") == [[1], [2], [3]]
            ask("INSERT INTO java.shop.t VALUES (4)")
            assert [row[1] for row in ask("SHOW TABLES IN java.shop")] == ["t"]
            assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]
            table.append(pa.table({"id": [5]}))
            ask("REFRESH TABLE java.shop.t")
            assert ask("SELECT count(*), sum(id) FROM java.shop.t") == [[5, 15]]
        finally:
            tower.stop()
