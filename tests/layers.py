"""The layer of each test: what it needs, and so which command runs it.

    quick   pure and in memory: starts no process (but git), opens no connection: `make quick`, after `make setup` alone
    full    real servers, clients, engines and databases, and all that takes long: `make test`, after the quick ones
    sharp   whether the tests are sharp (mutation hunts), and what takes long and repeats what others test: random runs,
            kills at every point, the whole demo, the blocks of code of the documents: `make verify`
    matrix  the whole of a matrix that the full tests run a part of: changes of tables at the steps of each job:
            `make matrix`, an hour

A folder has a layer, and so has each module that stands in no folder; `MODULES` names those that differ. A test that
carries a layer's marker has that one. A test that asks for a server by its fixture, or that runs Java or Spark, is full
without more. `Watch` holds a quick test to what it is.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest

LAYERS = ("quick", "full", "sharp", "matrix")

FOLDERS = {
    "admission": "quick",
    "agent": "quick",
    "alerts": "quick",
    "attack": "full",
    "audit": "quick",
    "cli": "full",
    "client_model": "quick",
    "commit": "quick",
    "contracts": "quick",
    "crash": "full",
    "demo": "quick",
    "escalations": "quick",
    "files": "quick",
    "gateway": "quick",
    "grants": "full",
    "iceberg": "quick",
    "intents": "quick",
    "ledger": "quick",
    "mcp": "quick",
    "observe": "quick",
    "oracle": "quick",
    "page": "quick",
    "pages": "full",
    "parquet": "quick",
    "pipelines": "full",
    "protocol": "quick",
    "rebase": "quick",
    "publish": "quick",
    "registry": "quick",
    "revert": "quick",
    "rows": "quick",
    "simulation": "full",
    "simulator": "quick",
    "storage": "quick",
    "table": "quick",
    "tests": "quick",
    "upstream": "quick",
    "wire": "full",
}
"""By the name of the folder; `tests` stands for the modules that are in none."""

MODULES = dict.fromkeys(
    (
        "test_connections", "test_full_disk", "test_hostile_requests", "test_kept_answers", "test_unknown_callers",
        "test_bench", "test_bench_isolation", "test_bench_page", "test_bench_rewriters", "test_bench_rows", "test_soak",
        "test_scan_planning",
        "test_agent_appends", "test_agent_transport", "test_notifier", "test_sending",
        "test_audit_serial", "test_experiments", "test_gate_oracle", "test_walkthrough",
        "test_calibration", "test_planner", "test_optimistic", "test_simulate_cli", "test_bench_simulator", "test_sums",
        "test_served", "test_choosing", "test_page_wire", "test_page_sessions", "test_page_browser",
        "test_mcp_day", "test_mcp_fuzz", "test_mcp_http", "test_mcp_shown", "test_mcp_untrusted", "test_mcp_publish",
        "test_mcp_attacks", "test_mcp_apart", "test_mcp_summing",
        "test_demo_data", "test_demo_plan", "test_demo_reconcile", "test_retail_plan",
    ),
    "full",
)  # fmt: skip
"""By the name of the module, where it differs from its folder."""

PURE = (
    "protocol", "iceberg", "table", "contracts", "client_model", "parquet", "registry", "admission", "rebase",
    "publish", "commit",
)  # fmt: skip
"""Where a broken function shows soonest."""

SPARK = frozenset({"test_cli", "test_demo_end_to_end", "test_retail_run", "test_interrupts", "test_jvm"})
"""Modules with Spark jobs in processes of their own, which carry no marker."""

STARTERS = frozenset({"pages", "pipelines", "wire", "cli", "demo", "crash", "attack", "simulation", "simulator"})
"""Where files take longest. Shared out file by file, the longest must not come last."""

FULL_FIXTURES = frozenset({"postgres_server", "postgres_url", "s3_properties", "spark"})
FULL_MARKERS = frozenset({"java", "spark"})


def layer_of(item: pytest.Item) -> str:
    """The layer of a test. Raises `pytest.UsageError` where it has none, or two."""
    marks = {mark.name for mark in item.iter_markers()} & set(LAYERS)
    if len(marks) > 1:
        raise pytest.UsageError(f"{item.nodeid} has the markers {', '.join(sorted(marks))}: a test has one layer")
    path = item.path
    if "quick" in marks and without_quick(path.parent):
        raise pytest.UsageError(f"{item.nodeid} is marked quick, and tests/{path.parent.name} has no quick tests")
    if marks:
        return marks.pop()
    layer = MODULES.get(path.stem) or FOLDERS.get(path.parent.name)
    if layer is None:
        raise pytest.UsageError(f"tests/{path.parent.name} has no layer: name it in FOLDERS of tests/layers.py")
    return "full" if layer == "quick" and _needs_more(item) else layer


def _needs_more(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
    return (
        not FULL_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
        or any(map(item.get_closest_marker, FULL_MARKERS))
        or any(isinstance(each, str) and each == "postgres" for each in parameters)
    )


_OTHERS = re.compile(
    rf"\bmark\.({'|'.join((*LAYERS[1:], *sorted(FULL_MARKERS)))})\b"
    rf"|\b({'|'.join(sorted(FULL_FIXTURES))})\b|(?i:postgres)"
)
"""In the text of each module of quick tests that has others, too: a marker, a fixture, or the name of PostgreSQL."""


def only_quick(module: Path) -> bool:
    """Does this module have quick tests alone? Then the commands of the other layers need not import it.

    It is told by the module's text. `marked` holds it to that, which `make quick` asks of all modules.
    """
    if (MODULES.get(module.stem) or FOLDERS.get(module.parent.name)) != "quick":
        return False
    return not _OTHERS.search(module.read_text(encoding="utf-8"))


def without_quick(folder: Path) -> bool:
    """Has this folder of tests none that is quick? Its modules need not be read for them."""
    return FOLDERS.get(folder.name, "quick") != "quick"


def marked(items: Iterable[pytest.Item]) -> None:
    """Give each test the marker of its layer.

    Raises:
        pytest.UsageError: `make test` would not find it, since its module's text seems to have quick tests alone.
    """
    alone = lru_cache(only_quick)
    for item in items:
        layer = layer_of(item)
        if layer != "quick" and alone(item.path):
            raise pytest.UsageError(f"{item.nodeid} is {layer} by what its module imports: mark it {layer} there")
        item.add_marker(layer)


def rank(item: pytest.Item) -> tuple[int, int, int]:
    """The order of a run: the quick ones first, the pure folders before all; of the others the longest files."""
    layer, folder = layer_of(item), item.path.parent.name
    if layer == "quick":
        return (0, PURE.index(folder) if folder in PURE else len(PURE), 0)
    spark = item.path.stem in SPARK or item.get_closest_marker("spark") is not None
    return (LAYERS.index(layer), 0 if spark else 1, 0 if folder in STARTERS else 1)


class LeftItsLayer(BaseException):
    """A quick test started a process or opened a connection; nothing that it runs may catch this."""


class Watch:
    """Fails the quick test that starts a process or connects to anything.

    Python reports both to audit hooks (PEP 578), whichever module does them, but for what `multiprocessing` spawns.
    `git` may be run: a clone has it.
    """

    def __init__(self) -> None:
        self.quick: str | None = None
        self._process = os.getpid()
        sys.addaudithook(self._heard)
        spawn = util.spawnv_passfds

        def watched(path: bytes, args: Any, passfds: Any) -> int:
            self._heard("multiprocessing.spawn", (path,))
            return spawn(path, args, passfds)

        util.spawnv_passfds = watched

    def _heard(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.quick is None or os.getpid() != self._process:
            return
        if event == "subprocess.Popen" and Path(os.fsdecode(str(arguments[0]))).name == "git":
            return
        if event in {
            "subprocess.Popen",
            "os.system",
            "os.posix_spawn",
            "os.fork",
            "os.forkpty",
            "pty.spawn",
            "multiprocessing.spawn",
        }:
            what = "starts a process"
        elif event == "socket.connect":
            what = "opens a connection"
        else:
            return
        raise LeftItsLayer(f"{self.quick} is quick and {what} ({event} {arguments!r:.200}): mark it `full`")
