"""Random jobs by PyIceberg on Icetower and on its own SQL catalog: the same verdicts, the same rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from verify.kit.tower_process import TowerProcess
from verify.wire import pyiceberg_jobs

JOBS = 20


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    place: Path = tmp_path_factory.mktemp("plain")
    catalog = SqlCatalog("plain", uri=f"sqlite:///{place}/catalog.db", warehouse=place.as_uri())
    catalog.create_namespace("jobs")
    return catalog


@pytest.mark.sharp
def test_random_jobs_end_as_they_do_on_pyicebergs_own_catalog(
    plain: Catalog, catalog: Catalog, tower: TowerProcess, namespace: str
) -> None:
    """What the tower rebases, PyIceberg's own retry would have committed; and every total is what a scan counts."""
    outcomes: list[str] = []
    for seed in range(JOBS):
        job = pyiceberg_jobs.job(seed)
        name = f"{namespace}.t{seed}"
        ours = pyiceberg_jobs.run(job, catalog, name)
        theirs = pyiceberg_jobs.run(job, plain, f"jobs.t{seed}")
        assert (ours.verdicts, ours.rows) == (theirs.verdicts, theirs.rows), (seed, job)
        assert [told for _, told, _ in ours.totals] == [counted for _, _, counted in ours.totals], (seed, ours.totals)
        outcomes += tower.outcomes(name)
    assert outcomes.count("rebased") >= 5, outcomes
    assert "conflict" in outcomes
