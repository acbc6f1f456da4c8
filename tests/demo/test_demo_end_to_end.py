"""The main job on one day of real data: ten processes and two engines, without a tower and with a real one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from icetower.demo import java_classes, journal, plan

ISSUE_KEYS = {
    "rows_expected",
    "rows_found",
    "quantity_expected",
    "quantity_found",
    "sales_expected",
    "sales_found",
    "lost",
    "duplicated",
    "refused",
    "orphans_reported",
    "commits",
    "commits_per_s",
    "first_try_success",
    "baseline_commits_per_s",
    "baseline_failed",
    "baseline_lost",
    "baseline_duplicated",
    "baseline_wall_s",
}


@pytest.mark.sharp
@pytest.mark.spark
def test_a_day_is_written_and_reconciled_to_the_cent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from icetower.cli import main; main()", "demo", "--days", "1", "--json"]
    done = subprocess.run([*command, "--keep", str(tmp_path / "kept")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert set(report) >= ISSUE_KEYS
    assert report["promises_broken"] == []
    assert (report["rows_expected"], report["rows_found"]) == (3 * 3098, 3 * 3098)
    assert report["quantity_found"] == report["quantity_expected"] == 3 * 114_609
    assert report["sales_found"] == report["sales_expected"] == "26279.70"
    assert (report["lost"], report["duplicated"], report["unexpected"], report["altered"]) == (0, 0, 0, 0)
    # Ten agents, four commits each; one refused, one killed once and started again, four sent twice.
    assert (report["commits"], report["commits_failed"], report["refused"], report["commits_repeated"]) == (40, 0, 1, 4)
    assert report["commits_rebased"] > 0
    assert report["first_try_success"] == 1.0
    assert report["orphans_reported"] > 0
    # The same batches without the tower, at the same storage latency. Every batch that is sent lands or has failed.
    assert report["storage_latency"] == "s3"
    assert (report["baseline_commits"] + report["baseline_failed"], report["baseline_unfinished"]) == (40, 0)
    assert report["baseline_lost"] == 0
    # One agent sends every batch twice there, too, and nothing drops the second copy.
    assert report["baseline_duplicated"] > 0
    # Iceberg's Java client counted its attempts on both sides: it used the demo's Java classes, the slow FileIO too.
    for agents in (tmp_path / "kept" / "plain" / "agents", tmp_path / "kept" / "agents"):
        for agent in plan.AGENTS:
            if agent.engine is plan.Engine.SPARK:
                acknowledged = journal.acknowledged_batches(agents / f"{agent.name}.jsonl")
                assert len(java_classes.attempts_counted(agents / f"{agent.name}.attempts")) == len(acknowledged)
