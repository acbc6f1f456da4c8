"""Random commits, one after the other: nothing is wrong with them, however the history is looked at."""

from __future__ import annotations

import pytest

from icetower.audit.auditor import Options
from icetower.audit.findings import Report
from tests.audit.audit_world import audited, said
from verify.histories.serial import World

COMMITS, SEEDS = 125, 80


def serial(seed: int, commits: int = COMMITS) -> World:
    world = World(seed, 1 + seed % 3, partitioned=seed % 5 > 0)
    for _ in range(commits):
        world.commit_any()
    return world


@pytest.mark.parametrize("seed", range(SEEDS))
def test_serial_commits_are_never_blamed(seed: int) -> None:
    """Ten thousand commits over the seeds."""
    world = serial(seed)
    report = audited(world.table())
    assert said(report) == []
    assert report.checked.snapshots == COMMITS
    assert not report.checked.expired


def test_the_commits_are_of_every_kind() -> None:
    """What the test above stands on: the worlds do what writers do."""
    operations: set[str] = set()
    contents: set[tuple[int, str]] = set()
    specs: set[int] = set()
    for seed in range(SEEDS):
        world = serial(seed, 40)
        operations |= {snapshot["summary"]["operation"] for snapshot in world.metadata["snapshots"]}
        contents |= {(file.content, file.entry.file.file_format) for file in world.by_path.values()}
        specs |= {file.spec_id for file in world.by_path.values()}
    assert operations == {"append", "overwrite", "delete", "replace"}
    assert contents == {(0, "PARQUET"), (1, "PARQUET"), (1, "PUFFIN"), (2, "PARQUET")}
    assert specs == {0, 1}


@pytest.mark.parametrize("seed", range(30))
def test_an_audit_that_goes_on_finds_nothing_either(seed: int) -> None:
    """From anywhere on, with nothing known of what was there before."""
    world = serial(seed, 60)
    snapshots = world.metadata["snapshots"]
    table = world.table()
    for at in (0, 7, 31, len(snapshots) - 1):
        report = audited(table, Options(after=snapshots[at]["snapshot-id"]))
        assert said(report) == []
        assert report.checked.snapshots == len(snapshots) - 1 - at
        assert report.checked.resumed


@pytest.mark.parametrize("seed", range(30))
def test_expired_history_is_told_and_the_rest_is_checked(seed: int) -> None:
    world = serial(seed, 50)
    del world.metadata["snapshots"][:20]
    report = audited(world.table())
    assert said(report) == []
    assert report.checked.expired
    assert report.checked.snapshots == 30
    assert "has expired" in report.checked.undeterminable[0]


def test_only_what_changed_is_opened() -> None:
    """Each manifest is read once, and of what was there before none that stays as it is."""
    world = serial(1, 80)
    table = world.table()
    report = audited(table)
    own = {path for path in table.files.files if "/m" in path and "snap-" not in path}
    assert {path for path, count in table.files.reads.items() if count > 1} == set()
    assert report.checked.manifests_read == len(own & table.files.reads.keys())
    before = serial(2, 60)
    before.commit("append", [before.data()], merge=False)
    later = before.table()
    last = before.metadata["snapshots"][-2]["snapshot-id"]
    audited(later, Options(after=last))
    assert len(later.files.reads) == 3  # two lists, and the manifest of the append


def test_an_empty_table_is_fine() -> None:
    report: Report = audited(World(1).table())
    assert said(report) == []
    assert (report.checked.snapshots, report.checked.head) == (0, None)
