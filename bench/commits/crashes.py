"""The orphaned writer: an agent is killed again and again while others write, and somebody has to find what it left.

It dies by SIGKILL at one of two points, in turns. Before its commit: its data file, manifest and list are written, and
the catalog has heard of nothing. Or after it: its row is in the table, and the agent has not noted it. Either way it
is started anew and writes its row again, with a tower under the key that it had. The others begin their commits at the
same times on all sides, half of them before the first kill.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.commits import pyiceberg_writers, servers, verify
from bench.commits.acts import append_in_own_hour
from bench.commits.claims import FULL_NAME, Case, Scene, appending, figures_of, jobs, poisson, record_of, rows_are_right
from bench.commits.operations import Operation
from bench.commits.pyiceberg_writers import IDS_PER_WRITER
from bench.commits.sides import Java
from icetower.agent import keyed, new_key

OTHERS, OTHERS_PER_S = 4, 2.0
CALM_S, CRASHING_S = 5.0, 8.0
BEFORE, AFTER = "before its commit", "after its commit"
POINTS = (BEFORE, AFTER) * 3
VICTIM = OTHERS
"""Its number, and so its hour: the one after the others'."""
GAVE_UP = 3
"""Exit status of a life whose commit lost all of its attempts."""
LIFE_MAX_S = 60.0
COMMAND_MAX_S = 180.0


def run(case: Case, folder: Path, java: Java | None = None) -> dict[str, Any]:
    """Run it in an empty folder; its figures as a JSON object. Raises `Trouble` where it cannot be run."""
    with appending(case, folder, java, OTHERS + 1) as (ready, before):
        starts_s = poisson(case.seed, OTHERS, OTHERS_PER_S, CALM_S + CRASHING_S)
        victims = _Victims(ready)
        load = pyiceberg_writers.run(jobs(ready, append_in_own_hour, starts_s=starts_s), begun=victims.begin)
        victims.end()
        rows = ready.rows()
        exact = rows_are_right(rows, [*load.operations, *victims.operations])
        counted = Counter(rows["id"].to_pylist())
        left = verify.litter(ready.database)
        tower = ready.server is not None and ready.server.token is not None
        found = orphans(ready.server) if ready.server is not None and tower else None
        calm = [op for op in load.operations if op.start_s < victims.first_s]
        return (
            record_of(case, ready, load.operations, before, exact=exact)
            | accounted(left, found, f"agent-{VICTIM}")
            | {
                "killed": len(POINTS),
                "doubled": sum(counted[op.row_id] > 1 for op in victims.operations),
                "calm": figures_of(calm),
                "crashing": figures_of([op for op in load.operations if op.start_s >= victims.first_s]),
            }
        )


def accounted(left: verify.Litter, found: Mapping[str, str | None] | None, agent: str) -> dict[str, Any]:
    """What was found of what is left, and what of it is said to be the agent's.

    Args:
        left: with a tower, nothing but the agent's where data files are concerned: the others' commits all land.
        found: path → whose it is; None where there is nobody to ask.
    """
    if found is None:
        return {"found_data": None, "found_metadata": None, "attributed": None, "false_finds": None}
    there = {*left.data, *left.metadata}
    return {
        "found_data": sum(path in found for path in left.data),
        "found_metadata": sum(path in found for path in left.metadata),
        "attributed": sum(found.get(path) == agent for path in left.data),
        "false_finds": sum(path not in there for path in found),
    }


def orphans(server: servers.Server) -> dict[str, str | None]:
    """What `icetower orphans` finds: path → the agent that it names. Raises `Trouble`."""
    program = [servers.ROOT / ".venv" / "bin" / "icetower", "orphans", FULL_NAME]
    asked = [*program, "--uri", server.uri, "--older-than-s", "0", "--json"]
    done = subprocess.run(
        asked,
        env={**os.environ, "ICETOWER_TOKEN": server.token or ""},
        capture_output=True,
        text=True,
        timeout=COMMAND_MAX_S,
    )
    if done.returncode != 0:
        raise servers.Trouble(f"icetower orphans ended with {done.returncode}:\n{done.stderr[-2000:]}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {verify.plain(line["path"]): line["agent"] for line in lines}


# -- who is killed ---------------------------------------------------------------------------------------------------


class _Victims:
    """One agent's lives, one after the other, in a thread of their own beside the others' work.

    Attributes:
        operations: of the lives in which it was let live: the row that the life before had died with, written again.
        first_s: when the first was begun that is killed, on the monotonic clock.
    """

    def __init__(self, ready: Scene) -> None:
        self._properties = dict(ready.agents[VICTIM])
        self._keyed = ready.server is not None and ready.server.token is not None
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self.operations: list[Operation] = []
        self.first_s = float("inf")

    def begin(self, from_s: float) -> None:
        """From `CALM_S` after the others' beginning."""
        self._thread = threading.Thread(target=self._all, args=(from_s + CALM_S,))
        self._thread.start()

    def end(self) -> None:
        """Wait until all of it is done. Raises what went wrong with it."""
        assert self._thread is not None
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _all(self, from_s: float) -> None:
        time.sleep(max(0.0, from_s - time.monotonic()))
        self.first_s = time.monotonic()
        try:
            for number, point in enumerate(POINTS):
                self._die_and_rise((VICTIM + 1) * IDS_PER_WRITER + number, point)
        except Exception as error:  # noqa: BLE001 - raised again by `end`, in the thread that waits
            self._error = error

    def _die_and_rise(self, row_id: int, point: str) -> None:
        summary = keyed(new_key()) if self._keyed else {}
        code = self._live(row_id, summary, point)
        if code != -signal.SIGKILL:
            raise servers.Trouble(f"a writer that was to be killed {point} ended with {code}")
        start_s = time.monotonic()
        code = self._live(row_id, summary, None)
        outcome = {0: "ok", GAVE_UP: "conflict"}.get(code or 0, f"ended with {code}")
        self.operations.append(Operation(row_id, start_s, time.monotonic(), outcome, writer=VICTIM))

    def _live(self, row_id: int, summary: Mapping[str, str], point: str | None) -> int | None:
        process = pyiceberg_writers.forks().Process(
            target=_write_once, args=(self._properties, row_id, summary, point), daemon=True
        )
        process.start()
        process.join(LIFE_MAX_S)
        if process.is_alive():
            process.kill()
            raise servers.Trouble(f"a writer did not end within {LIFE_MAX_S:g} s")
        return process.exitcode


def _write_once(properties: Mapping[str, str], row_id: int, summary: Mapping[str, str], point: str | None) -> None:
    """One row of the agent's, and its death, where it is to die, in a process of its own."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import CommitFailedException

    logging.disable(logging.WARNING)  # every retry is one
    catalog: Any = load_catalog("bench", **properties)
    table = catalog.load_table(FULL_NAME)
    commit = catalog.commit_table

    def last(*arguments: Any, **more: Any) -> Any:
        answer = commit(*arguments, **more) if point != BEFORE else None
        if point is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    catalog.commit_table = last
    try:
        append_in_own_hour(table, VICTIM, row_id, summary)
    except CommitFailedException:
        sys.exit(GAVE_UP)
