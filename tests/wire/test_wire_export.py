"""`icetower export` as a shell runs it, from a real tower, read as docs/system-tables.md says."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from typer.testing import CliRunner

from icetower.agent import Tower
from icetower.cli.app import app
from icetower.errors import Forbidden
from verify.kit.tower_process import TowerProcess, command

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).parents[2] / "docs" / "system-tables.md").read_text()
CONTRACT = """\
owner: pricing@example.com
reads: ['{0}_system_pricing.*']
tables: [{{table: '{0}.t', operations: [append], partitions: all}}]
"""


def words_of(tower: TowerProcess, namespace: str, nth: int) -> list[str]:
    """A command of the page, with this test's tower and namespace."""
    _, *words = re.findall(r"```sh\n(.*?)\n```", PAGE, re.DOTALL)[nth].split()
    return [*words, "--uri", tower.uri, "--system", f"{namespace}_system", "--json", "--master", "local[2]"]


def exported_by_a_shell(tower: TowerProcess, namespace: str, tmp_path: Path) -> dict[str, Any]:
    """For all and for a team."""
    done = subprocess.run(
        command(*words_of(tower, namespace, 1)),
        env={**os.environ, "ICETOWER_TOKEN": tower.secret},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def exported_here(tower: TowerProcess, namespace: str) -> dict[str, Any]:
    """The same command in this process, which has a JVM for all its tests."""
    done = CliRunner().invoke(app, words_of(tower, namespace, 0), env={"ICETOWER_TOKEN": tower.secret})
    assert done.exit_code == 0, done.output[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_log_of_a_tower_is_in_its_tables(
    tower: TowerProcess, catalog: Catalog, namespace: str, tmp_path: Path
) -> None:
    rows = pa.table({"id": pa.array([1], pa.int64())})
    table = catalog.create_table(f"{namespace}.t", rows.schema)
    table.append(rows)
    secret = tower.principal(f"{namespace}-agent", CONTRACT.format(namespace))
    theirs = tower.catalog(secret).load_table(f"{namespace}.t")
    theirs.append(rows)
    with pytest.raises(Exception, match="delete"):
        theirs.delete("id == 1")
    decided, refused = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(decided.replace("shop.prices", f"{namespace}.t"), {"catalog": catalog})
    other = tower.principal("price-checks", "reads: ['other_system_pricing.*']\n")
    last = tower.admin.commits_after(0)["newest"]
    done = exported_by_a_shell(tower, namespace, tmp_path)
    assert done["attempts"] > 0
    assert not any(exported_here(tower, namespace).values())

    logged = [each for each in tower.admin.commits_after(0)["attempts"] if each["id"] <= last]
    found = (
        catalog.load_table(f"{namespace}_system.iceberg_commits").scan().to_arrow().sort_by("attempt_id").to_pylist()
    )
    names = ("principal", "outcome", "rule", "request_id", "snapshots", "partitions", "operation")
    assert [(row["attempt_id"], *(row[name] for name in names)) for row in found[: len(logged)]] == [
        (row["id"], *(row[name] for name in names)) for row in logged
    ]
    assert "refused" in {row["outcome"] for row in found if row["principal"] == f"{namespace}-agent"}
    metrics = catalog.load_table(f"{namespace}_system.agent_write_metrics").scan().to_arrow().to_pylist()
    own = [row for row in metrics if row["principal"] == f"{namespace}-agent"]
    assert (sum(row["attempts"] for row in own), sum(row["landed"] for row in own)) == (2, 1)
    versions = catalog.load_table(f"{namespace}_system.contract_history").scan().to_arrow().to_pylist()
    assert [row["version"] for row in versions if row["contract"] == f"{namespace}-agent"] == [1]

    exec(refused.replace('"system.', f'"{namespace}_system.'), {"catalog": catalog})
    assert [row["decided_at"] is not None for row in found if row["table_name"] == f"{namespace}.t"].count(True) == 1

    ours = tower.catalog(secret).load_table(f"{namespace}_system_pricing.iceberg_commits").scan().to_arrow()
    assert {*ours["principal"].to_pylist()} == {f"{namespace}-agent"}
    for secret_of, name in ((secret, f"{namespace}_system"), (other, f"{namespace}_system_pricing")):
        with pytest.raises(Exception, match="may not read"):
            tower.catalog(secret_of).load_table(f"{name}.iceberg_commits")

    with pytest.raises(Forbidden):
        Tower(tower.uri, secret).commits_after(0)
