"""The main job on one day of real data: ten processes, two engines, a real tower."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
}


@pytest.mark.spark
def test_a_day_is_written_and_reconciled_to_the_cent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from icetower.cli import main; main()", "demo", "--days", "1", "--json"]
    done = subprocess.run([*command, "--keep", str(tmp_path / "kept")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert set(said) >= ISSUE_KEYS
    assert said["promises_broken"] == []
    assert (said["rows_expected"], said["rows_found"]) == (3 * 3098, 3 * 3098)
    assert said["quantity_found"] == said["quantity_expected"] == 3 * 114_609
    assert said["sales_found"] == said["sales_expected"] == "26279.70"
    assert (said["lost"], said["duplicated"], said["unexpected"], said["altered"]) == (0, 0, 0, 0)
    # Ten agents, four commits each; one refused, one killed once and started again, four sent twice.
    assert (said["commits"], said["commits_failed"], said["refused"], said["commits_repeated"]) == (40, 0, 1, 4)
    assert said["commits_rebased"] > 0
    assert said["first_try_success"] == 1.0
    assert said["orphans_reported"] > 0
