"""`icetower mediate` before Spark starts, and what it prints."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from icetower.agent import Tower
from icetower.cli import pipelines
from icetower.cli.app import app
from icetower.errors import Forbidden
from icetower.pipelines import wal_mediator
from icetower.pipelines.wal_mediator import Mediation

PAGE = (Path(__file__).parents[2] / "docs" / "mediator.md").read_text()


def test_whoever_may_not_see_all_contracts_is_asked_for_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_tower: Tower) -> list[object]:
        raise Forbidden("mediator-1 is not an administrator", rule="permission.administrator")

    monkeypatch.setattr(Tower, "contracts", refuse)
    monkeypatch.setattr(pipelines, "need_spark", lambda: None)
    done = CliRunner().invoke(
        app, ["mediate", "--wal", "shop.log", "--target", "shop.sales", "--uri", "http://[::1]:1"]
    )
    assert isinstance(done.exception, Forbidden)
    assert "mediator-1 is not an administrator" in done.exception.message
    assert "give --contracts FOLDER" in done.exception.message


def test_every_row_that_was_read_is_in_the_printed_table() -> None:
    done = Mediation("applied", "t", "w", "b", read=10, applied=4, superseded=3, duplicates=2, rejected=1)
    row = dict(zip(pipelines.COLUMNS, pipelines.cells(done), strict=True))
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

    monkeypatch.setattr(pipelines, "need_spark", lambda: None)
    monkeypatch.setattr(pipelines, "job_session", lambda *_: Mock())
    monkeypatch.setattr(pipelines, "_own_contract", lambda _: None)
    monkeypatch.setattr(wal_mediator, "mediate", mediate)
    wanted = ["mediate", "--wal", "shop.log", "--target", "shop.sales", "--contracts", str(tmp_path)]
    done = CliRunner().invoke(app, [*wanted, *(["--reread"] if reread else [])])
    assert done.exit_code == 0, done.output
    assert [job.reread for job in jobs] == [reread]
