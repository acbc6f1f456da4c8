"""Eight threads MERGE into one table under snapshot isolation, while its files are compacted beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from verify.kit.light_spark import LIGHT
from verify.kit.tower_process import TowerProcess
from verify.wire.counting import Answers, counting
from verify.wire.spark_merge import SHAPES, add_catalog, merge_run, wire_session

pytestmark = pytest.mark.spark

REASONS = (
    r"Cannot commit, missing data files",  # C4: the file whose rows a MERGE deletes was compacted
    r"Missing required files to delete",  # C6: the file that a MERGE or a compaction replaces is gone
    r"found new (position )?delete for replaced data file",  # C3b: a MERGE deleted rows of a file being compacted
    r"Found concurrently added DV",  # C5
)
"""What Iceberg says when one file is written by two."""


@pytest.fixture(scope="module")
def answers(tower: TowerProcess) -> Iterator[Answers]:
    with counting(tower.uri) as answers:
        yield answers


@pytest.fixture(scope="module")
def session(answers: Answers, tower: TowerProcess, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """The session of this process; the other modules' tests may have started it, and share it."""
    session = wire_session("spark-merge", answers.uri, tower.secret, tmp_path_factory.mktemp("spark"), LIGHT)
    add_catalog(session, "merging", answers.uri, token=tower.secret)
    return session


@pytest.mark.parametrize("shape", SHAPES)
def test_merges_beside_compaction_of_other_partitions_neither_fail_nor_retry(
    session: SparkSession, answers: Answers, tower: TowerProcess, shape: str
) -> None:
    """Trap R4 among them: copy-on-write removes entries of manifests that others have merged meanwhile."""
    name = f"merges.{re.sub('-', '_', shape)}"
    result = merge_run(session, f"merging.{name}", answers, shape=shape, rounds=2)
    assert (result.failed, result.compactions_failed, result.wrong) == ([], [], [])
    assert result.merges == 16
    assert set(result.statuses) == {200}, result.refusals
    assert "rebased" in tower.outcomes(name)


def test_merges_beside_compaction_of_the_same_partitions_lose_no_row(
    session: SparkSession, answers: Answers, tower: TowerProcess
) -> None:
    shape = "v3-merge-on-read"
    result = merge_run(session, "merging.merges.same", answers, shape=shape, threads=4, rounds=2, same_partitions=True)
    assert result.wrong == []
    assert result.merges + len(result.failed) == 8
    for line in (*result.failed, *result.compactions_failed):
        assert re.search("|".join(REASONS), line), line
    assert set(result.statuses) <= {200, 409}
