"""`icetower mediate` before Spark starts, and what it prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from icetower.agent import Tower
from icetower.cli import collect as collecting
from icetower.cli import mediate as mediating
from icetower.cli.app import app
from icetower.cli.mediate import Wanted, read_jobs
from icetower.errors import ConfigurationError, Forbidden, UsageError
from icetower.pipelines import collector, wal_follow, wal_mediator
from icetower.pipelines.wal_mediator import Mediation
from tests.pages.page_blocks import blocks_of

PAGE = (Path(__file__).parents[2] / "docs" / "mediator.md").read_text()


def test_whoever_may_not_see_all_contracts_is_asked_for_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_tower: Tower) -> list[object]:
        raise Forbidden("mediator-1 is not an administrator", rule="permission.administrator")

    monkeypatch.setattr(Tower, "contracts", refuse)
    monkeypatch.setattr(mediating, "need_spark", lambda: None)
    done = CliRunner().invoke(
        app, ["mediate", "--wal", "shop.log", "--target", "shop.sales", "--uri", "http://[::1]:1"]
    )
    assert isinstance(done.exception, Forbidden)
    assert "mediator-1 is not an administrator" in done.exception.message
    assert "give --contracts FOLDER" in done.exception.message


def test_every_row_that_was_read_is_in_the_printed_table() -> None:
    done = Mediation("applied", "t", "w", "b", read=10, applied=4, superseded=3, duplicates=2, rejected=1)
    row = dict(zip(mediating.COLUMNS, mediating.cells(done), strict=True))
    assert int(row["read"]) == sum(int(row[name]) for name in ("applied", "superseded", "duplicates", "rejected"))
    assert row["superseded"] == "3"


def test_the_page_says_what_pyiceberg_needs() -> None:
    assert "Cannot write manifest for table version: 3" in PAGE
    assert "ADD COLUMN _idempotency_key" in PAGE


@pytest.mark.parametrize("reread", [False, True])
def test_a_log_is_taken_whole_where_that_is_asked_for(
    reread: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`wal.expired` and `wal.append-only` ask for `--reread`."""
    jobs: list[wal_mediator.Job] = []

    def mediate(_spark: object, job: wal_mediator.Job) -> Mediation:
        jobs.append(job)
        return Mediation("idle", "t", "w")

    monkeypatch.setattr(mediating, "need_spark", lambda: None)
    monkeypatch.setattr(mediating, "job_session", lambda *_: Mock())
    monkeypatch.setattr(mediating, "own_contract", lambda _: None)
    monkeypatch.setattr(wal_mediator, "mediate", mediate)
    wanted = ["mediate", "--wal", "shop.log", "--target", "shop.sales", "--contracts", str(tmp_path)]
    done = CliRunner().invoke(app, [*wanted, *(["--reread"] if reread else [])])
    assert done.exit_code == 0, done.output
    assert [job.reread for job in jobs] == [reread]


def test_a_collector_runs_on_as_a_mediator_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its batches are folds, and the contracts are read anew before each round."""
    folded: list[collector.Changes] = []

    def collect(_spark: object, changes: collector.Changes, **_more: object) -> Mediation:
        folded.append(changes)
        return Mediation("idle", "t", "w")

    class Rounds:
        def __init__(self, spark: object, jobs: Callable[[], list[wal_mediator.Job]], on: object, **more: Any) -> None:
            assert more["every_s"] == 3
            self.work = lambda: [more["work"](spark, job) for _ in range(2) for job in jobs()]

        def follow(self, _wait: object) -> None:
            self.work()

    monkeypatch.setattr(collecting, "need_spark", lambda: None)
    monkeypatch.setattr(collecting, "job_session", lambda *_: Mock())
    monkeypatch.setattr(collecting, "own_contract", lambda _: None)
    monkeypatch.setattr(collector, "collect", collect)
    monkeypatch.setattr(wal_follow, "Follower", Rounds)
    wanted = ["collect", "--deltas", "a.d", "--target", "a.t", "--keys", "x,y", "--contracts", str(tmp_path)]
    done = CliRunner().invoke(app, [*wanted, "--follow", "--every-s", "3"])
    assert done.exit_code == 0, done.output
    assert [each.merge_keys for each in folded] == [("x", "y")] * 2
    done = CliRunner().invoke(app, [*wanted, "--follow", "--compact"])
    assert isinstance(done.exception, UsageError)


def test_the_file_of_the_page_names_several_logs(tmp_path: Path) -> None:
    (block,) = (block for block in blocks_of("docs/mediator.md") if block.language == "toml")
    path = tmp_path / "mediate.toml"
    path.write_text(block.text)
    first, second = read_jobs(path)
    assert first == Wanted("shop.sales_log", "shop.sales")
    assert second == Wanted("shop.prices_log", "shop.prices", ("store", "sale"), "at", 86400, "_written_at")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"must have tables \[\[mediate\]\]"),
        ("[[mediate]]\nwal = 'a.b'\n", "number 1 lacks target"),
        ("[[mediate]]\nwal = 'a.b'\ntarget = 'a.c'\nkeys = ['x']\n", "has 'keys'; known are wal, target"),
        ("[[mediate]]\nwal = 'a.b'\ntarget = 'a.c'\nmerge_keys = 'x'\n", "merge_keys = 'x' must be a list"),
        ("[[mediate]]\nwal = 'a.b'\ntarget = 'a.c'\nwindow_s = true\n", "must be a whole number of seconds"),
        ("[[mediate]]\nwal = 5\ntarget = 'a.c'\n", "wal = 5 must be a text"),
        ("[mediate]\n", r"must have tables"),
        ("mediate = [1]\n", "number 1 is no table"),
        ("[[mediate]\n", "cannot be read"),
    ],
)
def test_a_file_of_jobs_is_read_strictly(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mediate.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=says):
        read_jobs(path)


def test_a_log_is_named_by_options_or_by_a_file() -> None:
    for words in (["--wal", "a.b"], [], ["--jobs", "x.toml", "--wal", "a.b", "--target", "a.c"]):
        done = CliRunner().invoke(app, ["mediate", *words])
        assert isinstance(done.exception, UsageError), (words, done.output)
