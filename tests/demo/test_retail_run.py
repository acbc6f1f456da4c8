"""docs/pipeline.md, run: three agents and the mediator on a day of real data, killed on the way, exact to the cent."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icetower.demo.retail import agents, inventory
from icetower.demo.retail.run import MEDIATOR
from tests.pages.page_blocks import blocks_of


@pytest.mark.sharp
@pytest.mark.spark
def test_a_day_is_exact_whoever_is_killed(tmp_path: Path) -> None:
    run, query = (block.text for block in blocks_of("docs/pipeline.md") if block.kind == "in")
    words = run.split()[1:]
    command = [sys.executable, "-c", "from icetower.cli import main; main()", *words, "--json"]
    done = subprocess.run([*command, "--keep", str(tmp_path / "kept")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["exact"]
    assert [(table["rows"], table["sales"], table["missing"], table["unexpected"]) for table in report["tables"]] == [
        (3062, "8759.90", 0, 0),
        (3098, "8759.90", 0, 0),
        (3098, "8759.90", 0, 0),
    ]
    # Every agent was killed once, each at another stage, and the mediator.
    killed = [re.findall(r"\w+", each) for each in report["killed"]]
    assert sorted(each[0] for each in killed) == sorted([*agents.NAMES, "mediator"])
    assert sorted(each[-1] for each in killed if each != ["mediator"]) == ["committed", "read", "writing"]
    assert report["checkpoint_lost"]
    assert report["failures"] == 0
    assert [agent["landed"] for agent in report["agents"]] == [report["hours"]] * 3
    # What the page queries is there.
    (catalog_file,) = (tmp_path / "kept").rglob("catalog.db")
    warehouse = SqlCatalog("icetower", uri=f"sqlite:///{catalog_file}", warehouse=str(tmp_path))
    metrics = warehouse.load_table("system.agent_write_metrics").scan().to_arrow()
    assert set(query.split("SELECT ")[1].split("\n")[0].split(", ")) <= set(metrics.column_names)
    assert {*agents.NAMES, MEDIATOR} <= set(metrics["principal"].to_pylist())
    assert inventory.TABLE in metrics["table_name"].to_pylist()
