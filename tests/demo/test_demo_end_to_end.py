"""The main job on one day of real data: ten processes and two engines, without a tower and with a real one."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from icetower.demo import java_classes, journal, plan
from tools import chromium

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


def up(demo: subprocess.Popen[str], log: Path) -> tuple[str, str]:
    """The address of the tower that the demo leaves up, and the administrator's token."""
    pause = threading.Event()
    while "Ctrl-C" not in log.read_text():
        assert demo.poll() is None, log.read_text()[-4000:]
        pause.wait(0.1)
    said = log.read_text()
    uri, file = re.search(r"is up: (\S+)", said), re.search(r"token is in (.+)", said)
    assert uri is not None
    assert file is not None
    return uri[1], Path(file[1]).read_text().strip()


def walk(uri: str, secret: str) -> None:
    """What the page alone says: who was killed and what it left, who is refused and why, and where it is contended.

    And the escalation is closed there.
    """
    dies = next(agent.name for agent in plan.AGENTS if agent.behaviour is plan.Behaviour.DIES)
    strays = next(agent for agent in plan.AGENTS if agent.behaviour is plan.Behaviour.STRAYS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(chromium.find()), args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(30_000)
        page.goto(uri)
        page.get_by_label("Secret").fill(secret)
        page.get_by_role("button", name="Sign in").click()
        stopped = page.get_by_role("region", name="Stopped, until somebody has looked")
        assert f"{strays.name} is stopped at {strays.table}" in stopped.inner_text()
        assert "contract.partitions" in page.get_by_role("region", name="Refused lately, by rule").inner_text()

        page.get_by_role("link", name="Operations").click()
        left = page.get_by_role("region", name="Rows of: Orphaned files").get_by_role("row", name=dies)
        assert int(left.get_by_role("cell").nth(2).inner_text().replace(",", "")) > 0

        page.goto(f"{uri}/ui/tables/{strays.table}")
        contended = page.get_by_role("row", name=re.compile("contended"))
        assert "product_id_bucket=" in contended.first.inner_text()
        page.locator("tbody tr", has_text="contract.partitions").first.get_by_role("link").first.click()
        assert "product_id_bucket=" in page.get_by_role("region", name="Why").inner_text()

        page.get_by_role("link", name=strays.name).first.click()
        page.get_by_role("link", name=re.compile(f"{strays.name} is stopped")).click()
        page.get_by_role("button", name="Close the escalation…").click()
        page.get_by_label("Note: what was found, and what was done").fill("It went on into its neighbour's bucket.")
        page.get_by_role("button", name="Yes, close it").click()
        page.get_by_text("closed by", exact=False).first.wait_for()
        page.get_by_role("link", name="Icetower").click()
        assert page.get_by_role("region", name="Stopped, until somebody has looked").count() == 0
        browser.close()


@pytest.mark.sharp
@pytest.mark.spark
def test_a_day_is_written_and_reconciled_to_the_cent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from icetower.cli import main; main()", "demo", "--days", "1", "--json", "--look"]
    log = tmp_path / "demo.log"
    with log.open("w") as stderr:
        demo = subprocess.Popen(
            [*command, "--keep", str(tmp_path / "kept")], stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        assert demo.stdout is not None
        line = demo.stdout.readline()
        assert line, log.read_text()[-4000:]
        report = json.loads(line)
        walk(*up(demo, log))
    finally:
        demo.send_signal(signal.SIGINT)
        status = demo.wait(120)
    assert status == 0, log.read_text()[-4000:]
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
