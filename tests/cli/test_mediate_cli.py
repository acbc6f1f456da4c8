"""`icetower mediate` before Spark starts, and what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from icetower.agent import Tower
from icetower.cli import pipelines
from icetower.cli.app import app
from icetower.errors import Forbidden
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
