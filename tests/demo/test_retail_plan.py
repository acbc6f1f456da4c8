"""The pure parts of the three agents' pipeline: hours, deaths, notes, contracts, and what is reported."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from icetower.contracts import review
from icetower.demo import data
from icetower.demo.retail import agents, inventory, recommendation
from icetower.demo.retail.hours import Hours, by_hour
from icetower.demo.retail.notes import STAGES, Death, Notes, deaths_in, notes_in, read_lines
from icetower.demo.retail.reconcile import Verdict
from icetower.demo.retail.report import AgentFigures, Findings, Mediation, show, to_json
from icetower.demo.retail.run import MEDIATOR, Plan, deaths_of
from icetower.demo.retail.shipped import statements, text_of


def test_every_row_of_the_source_lies_in_one_hour_and_hours_are_in_order() -> None:
    source = data.load_source(2)
    hours = by_hour(source)
    assert pa.concat_tables(hours).select(["row_id"]).equals(source.select(["row_id"]))
    assert [set(hour["hour"].to_pylist()) for hour in hours] == [{number} for number in range(1, len(hours) + 1)]
    assert all(
        len({at.replace(minute=0, second=0, microsecond=0) for at in h["sold_at"].to_pylist()}) == 1 for h in hours
    )


def test_hours_are_seen_whole_in_order_and_to_the_end(tmp_path: Path) -> None:
    hours = Hours(tmp_path / "hours")
    rows = pa.table({"hour": [1]})

    def pause(seconds: float) -> None:
        """While a reader waits, the next file comes, and after the third one the end."""
        number = len(list(hours.folder.glob("*.parquet"))) + 1 if hours.folder.exists() else 1
        if number == 4:
            hours.finish(3)
        else:
            hours.publish(number, rows)

    seen = list(hours.after(0, pause))
    assert [number for number, _ in seen] == [1, 2, 3]
    assert all(pq.read_table(path).equals(rows) for _, path in seen)
    ages = [path.stat().st_mtime for _, path in seen]
    assert ages == sorted(set(ages))
    assert [number for number, _ in hours.after(2)] == [3]
    assert list(hours.after(3)) == []
    assert [path.name for path in hours.folder.iterdir() if path.suffix != ".parquet"] == []


@pytest.mark.parametrize("kills", [0, 1, 4, 12])
def test_deaths_are_of_every_agent_and_stage_in_turn(kills: int) -> None:
    deaths = deaths_of(Plan(days=1, hours_per_s=None, kills=kills, seed=1), 13)
    assert len(deaths) == kills - kills // 4
    assert all(1 <= death.hour <= 13 for death in deaths)
    if kills == 12:
        assert {(death.agent, death.stage) for death in deaths} == {(a, s) for a in agents.NAMES for s in STAGES}


def test_notes_are_taken_and_read_back(tmp_path: Path) -> None:
    notes = Notes(tmp_path, "a", [Death("b", 1, "read"), Death("a", 3, "read")])
    for number in (1, 2):
        with notes.hour(number) as hour:
            for stage in STAGES:
                hour.reached(stage)
    with notes_in(tmp_path, "a").open("a") as stream:
        stream.write('{"hour": 3, "sec')
    assert [note["hour"] for note in read_lines(notes_in(tmp_path, "a"))] == [1, 2]
    assert read_lines(deaths_in(tmp_path)) == []


def test_the_contracts_pass_the_review_and_the_tables_are_theirs() -> None:
    names = (*agents.NAMES, MEDIATOR)
    written = [review.Written.read(text_of(f"contracts/{name}.yaml"), f"{name}.yaml") for name in names]
    found = [*review.alone(written, now_ms=0), *review.together(written, now_ms=0)]
    assert [finding for finding in found if finding.severity is review.Severity.ERROR] == []
    created = set(re.findall(r"CREATE TABLE IF NOT EXISTS tower\.([\w.]+)", "".join(statements())))
    assert created == {str(rule.pattern) for each in written for rule in each.contract.tables} - {"system.*"}
    assert {inventory.TABLE, recommendation.TABLE, recommendation.LOG} <= created


def findings(missing: int) -> Findings:
    verdict = Verdict("a.b", 3 - missing, 3, "1.00", "1.00", missing, 0)
    figures = AgentFigures("x", 0.1, 0.2, 1, 1, 0, 0)
    return Findings(1, 1, 2.0, (verdict,), (figures,), Mediation(1, 0.5, 1.0), ("mediator",), True, 0)


def test_a_difference_is_reported() -> None:
    for missing, said in ((0, "every row and cent is there, once"), (1, "the tables differ from the source")):
        found = findings(missing)
        assert found.good is (missing == 0)
        read = json.loads(to_json(found))
        assert (read["exact"], read["tables"][0]["missing"]) == (found.good, missing)
        console = Console(file=StringIO(), width=140)
        show(found, console)
        assert said in console.file.getvalue()  # type: ignore[attr-defined]
