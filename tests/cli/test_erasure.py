"""docs/erasure.md, block by block, at a tower: afterwards no file of the warehouse has anything of the person."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest

from icetower.pipelines.session import spark_session
from verify.kit.light_spark import LIGHT
from verify.kit.tower_process import TowerProcess, command

pytestmark = [pytest.mark.spark, pytest.mark.sharp]

PERSON, OTHER = "p-4711", "p-1"
PAGE = Path(__file__).parents[2] / "docs" / "erasure.md"
TABLES = ("shop.sales", "shop.sales_log", "system.wal_rejections", "system.iceberg_commits")
COLUMNS = "id BIGINT, customer STRING, store INT, _idempotency_key STRING"
VERSION_3 = "TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read')"
TILL = """\
version: 1
agent: till
tables:
  - {table: shop.sales, operations: [append], partitions: [{store: [1]}], pattern: mediator}
  - {table: shop.sales_log, operations: [append], partitions: [{_agent: [till]}]}
"""


def texts(path: Path) -> str:
    """What a file of the warehouse says, unpacked."""
    if path.suffix == ".parquet":
        return str(pq.read_table(path).to_pylist())
    if path.suffix == ".avro":
        with path.open("rb") as file:
            return str(list(fastavro.reader(file)))
    return path.read_bytes().decode("latin-1")


def with_the_person(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".") and PERSON in texts(path)
    )


def test_nothing_of_a_person_is_left_after_the_steps_of_the_page(untouched: TowerProcess, tmp_path: Path) -> None:
    tower = untouched
    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts" / "till.yaml").write_text(TILL)

    def run(*words: str) -> str:
        environment = os.environ | {"ICETOWER_URI": tower.uri, "ICETOWER_TOKEN": tower.secret, "COLUMNS": "200"}
        done = subprocess.run(
            command(*words), capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=600, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def sql(*statements: str) -> Any:
        spark = spark_session("icetower-erasure", catalog_uri=tower.uri, token=tower.secret, settings=LIGHT)
        spark.sql("USE tower")
        try:
            return [spark.sql(statement).collect() for statement in statements]
        finally:
            spark.stop()

    run("contracts", "apply", "contracts/till.yaml")
    sql(
        "CREATE NAMESPACE IF NOT EXISTS shop",
        f"CREATE TABLE shop.sales ({COLUMNS}) USING iceberg PARTITIONED BY (store) {VERSION_3}",
        f"CREATE TABLE shop.sales_log ({COLUMNS}, _agent STRING) USING iceberg PARTITIONED BY (_agent) {VERSION_3}",
        f"INSERT INTO shop.sales_log VALUES (1, '{PERSON}', 1, 'a', 'till'), (2, '{OTHER}', 1, 'b', 'till'), "
        f"(3, '{PERSON}', 2, 'c', 'till'), (4, '{OTHER}', 2, 'd', 'till')",  # store 2 is not till's
    )
    run("mediate", "--wal", "shop.sales_log", "--target", "shop.sales", "--contracts", "contracts/")
    run("export")
    warehouse = tower.data / "warehouse"
    assert with_the_person(warehouse)
    blocks = re.findall(r"^```(sh|sql)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for language, block in blocks:
        if language == "sh":
            for line in block.splitlines():
                run(*line.split()[1:])
            continue
        statements = [each for each in block.split(";") if each.strip()]
        if "expire_snapshots" in block:
            statements = [each.replace("shop.sales", table) for table in TABLES for each in statements]
        sql(*statements)
    assert with_the_person(warehouse) == []
    log = json.loads(run("commits", "--json", "--limit", "1000"))
    assert [row for row in log if PERSON in f"{row['message']}{row['partitions']}"] == []
    # The mediator goes on, and what stays is all there.
    sql(f"INSERT INTO shop.sales_log VALUES (5, '{OTHER}', 1, 'e', 'till'), (2, '{OTHER}', 1, 'b', 'till')")
    batch = json.loads(
        run(
            "mediate", "--wal", "shop.sales_log", "--target", "shop.sales", "--contracts", "contracts/", "--json"
        ).splitlines()[0]
    )
    ((rows,), (rejected,)) = (
        sql("SELECT id FROM shop.sales ORDER BY id"),
        sql("SELECT get_json_object(row, '$.id') AS id FROM system.wal_rejections"),
    )
    assert [row.id for row in rows] == [2, 5]
    assert {row.id for row in rejected} == {"4"}  # refused again, since the mediator has read the log anew
    assert batch["applied"] == 1
