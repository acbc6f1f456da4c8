"""The pure parts of the three agents' pipeline: hours, deaths, notes, contracts, and what is reported."""

from __future__ import annotations

import datetime as dt
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
from icetower.demo.retail import agents, inventory, jobs, promotions, recommendation, tills
from icetower.demo.retail.hours import Hours, by_hour
from icetower.demo.retail.notes import STAGES, Death, Notes, deaths_in, notes_in, read_lines
from icetower.demo.retail.reconcile import Verdict
from icetower.demo.retail.report import AgentFigures, Batches, Findings, Reads, show, to_json
from icetower.demo.retail.shipped import statements, text_of
from icetower.demo.retail.world import Plan, deaths_of


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


ALL = {(name, stage) for name in agents.NAMES for stage in STAGES} | {
    (name, stage) for name, stages in jobs.STAGES.items() for stage in stages
}


@pytest.mark.parametrize("kills", [0, 1, 4, 12, 40])
def test_deaths_are_of_every_agent_and_job_at_every_stage_in_turn(kills: int) -> None:
    deaths = deaths_of(Plan(days=1, hours=None, hours_per_s=None, kills=kills, seed=1), 13)
    assert len(deaths) == kills
    assert all(1 <= death.hour <= 13 for death in deaths)
    places = [(death.name, death.stage) for death in deaths]
    assert set(places) <= ALL
    assert [name in agents.NAMES for name, _ in places] == [at % 2 == 0 for at in range(kills)]
    if kills == 12:
        assert len(set(places)) == 12
        assert {name for name, _ in places} == {*agents.NAMES, *jobs.STAGES}
    if kills == 40:
        assert set(places) == ALL


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
    names = (*agents.NAMES, *jobs.PRINCIPALS)
    written = [review.Written.read(text_of(f"contracts/{name}.yaml"), f"{name}.yaml") for name in names]
    found = [*review.alone(written, now_ms=0), *review.together(written, now_ms=0)]
    assert [finding for finding in found if finding.severity is review.Severity.ERROR] == []
    created = set(re.findall(r"CREATE TABLE IF NOT EXISTS tower\.([\w.]+)", "".join(statements())))
    named = {str(rule.pattern) for each in written for rule in each.contract.tables}
    assert created == {name for name in named if not name.startswith("system.")}
    assert {inventory.TABLE, recommendation.TABLE, recommendation.LOG, promotions.TABLE, promotions.DELTAS} <= created
    assert all("_idempotency_key STRING" in statement for statement in statements() if "CREATE TABLE" in statement)


def test_a_change_is_the_same_whichever_agent_reports_it(tmp_path: Path) -> None:
    """Half of the baskets are reported by Spark, the other half by PyIceberg; none by both."""
    rows = by_hour(data.load_source(1))[3]
    path = tmp_path / "hour.parquet"
    pq.write_table(rows, path)
    found = tills.changes(path).to_pylist()
    baskets = [row for row in rows.to_pylist() if row["basket_id"] % 2]
    assert 0 < len(found) == len(baskets) < rows.num_rows
    for change, row in zip(found, baskets, strict=True):
        assert change["_idempotency_key"] == f"promotion-{row['row_id']}"
        assert change["_event_time"] == row["sold_at"] + dt.timedelta(microseconds=row["row_id"])
        assert change["_operation"] == ("upsert" if row["retail_disc"] > 0 else "delete")
        assert (change["discount"], change["_agent"]) == (row["retail_disc"], tills.NAME)
    assert {change["_operation"] for change in found} == {"upsert", "delete"}


def findings(missing: int, wrong: int = 0) -> Findings:
    verdict = Verdict("a.b", 3 - missing, 3, "1.00", "1.00", missing, 0)
    figures = AgentFigures("x", 0.1, 0.2, 1, 1, 0, 0)
    batches = (Batches("mediator", 1, 0, 0.5, 1.0), Batches("collector", 0, 0, None, None))
    killed = (Death("mediator", 2, "planned"),)
    maintained = {"compact": 2}
    return Findings(1, 1, 2.0, (verdict,), (figures,), batches, maintained, Reads(3, 1, wrong), killed, True, 0)


def test_a_difference_is_reported() -> None:
    for missing, said in ((0, "every row and cent is there, once"), (1, "the tables differ from the source")):
        found = findings(missing)
        assert found.good is (missing == 0)
        read = json.loads(to_json(found))
        assert (read["exact"], read["tables"][0]["missing"]) == (found.good, missing)
        console = Console(file=StringIO(), width=140)
        show(found, console)
        assert "mediator (planned); the stream's checkpoint was deleted" in console.file.getvalue()  # type: ignore[attr-defined]
        assert "maintenance: compact 2" in console.file.getvalue()  # type: ignore[attr-defined]
        assert said in console.file.getvalue()  # type: ignore[attr-defined]
    assert not findings(0, wrong=1).good
