"""The same load without Icetower: the same agents and batches, PyIceberg straight to its SQL catalog on SQLite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pyiceberg.catalog import load_catalog

from icetower.demo import plan, tables
from icetower.demo.crew import Crew, Outcome, make_jobs

DEADLINE_S = 35.0


def run_baseline(
    folder: Path,
    source: Path,
    *,
    days: int,
    seed: int,
    progress: Callable[[Mapping[str, int]], None],
    deadline_s: float | None = DEADLINE_S,
) -> Outcome:
    """Every agent writes with PyIceberg, retrying as the guide sets it; what the retries don't save has failed.

    Batches that were not begun by `deadline_s` are counted as unfinished, neither as commits nor as failures.
    """
    folder.mkdir(parents=True)
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder / 'catalog.db'}",
        "warehouse": f"file://{folder / 'warehouse'}",
    }
    (folder / "warehouse").mkdir()
    tables.create_tables(load_catalog("tower", **properties))
    catalogs = {agent.name: properties for agent in plan.AGENTS}
    jobs = make_jobs(folder, source, days=days, seed=seed, catalogs=catalogs, baseline=True, deadline_s=deadline_s)
    return Crew(folder, spark=False).run(jobs, progress)
