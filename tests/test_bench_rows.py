"""What `make bench-rows` counts and promises, and its shortest form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.commits import pages, servers
from bench.commits.operations import Operation
from bench.commits.protocol_writers import Load
from bench.rows import cases, ducklake, plots, report, run, sides
from bench.rows.cases import DOOR, DUCKLAKE, SIDES, Case
from bench.rows.reading import Found, by_row
from verify.kit.postgres_cluster import NoPostgres


def record(side: str, agents: int, rows: int = 1, profile: str = "none", **more: Any) -> dict[str, Any]:
    usual = {
        "requests_per_s": 1_500.0, "success": 1.0, "p50_ms": 20.0, "p99_ms": 300.0, "server_cpu_ms": 0.5,
        "clients_cpu_ms": 0.2, "files_per_s": 19.0, "exact": True, "round": 1,
    }  # fmt: skip
    found = usual | {"side": side, "agents": agents, "rows": rows, "profile": profile} | more
    return {"rows_per_s": found["requests_per_s"] * rows, **found}


def kept(records: Sequence[dict[str, Any]]) -> list[bool]:
    return [promise.kept for promise in cases.promises(records)]


GOOD = [
    *(record(DOOR, agents) for agents in (1, 64, 128, 256)),
    *(record(DUCKLAKE, agents, requests_per_s=rate) for agents, rate in ((64, 250.0), (128, 150.0), (256, 100.0))),
    record(DOOR, 256, 1, "s3", requests_per_s=1_000.0),
    record(DOOR, 256, 100, "s3", requests_per_s=300.0),
]


def test_every_promise_of_the_door_is_held_to_its_runs() -> None:
    assert kept(GOOD) == [True] * len(cases.promises(GOOD))
    assert not any(kept([]))


@pytest.mark.parametrize(
    ("worse", "promise"),
    [
        (record(DUCKLAKE, 64, requests_per_s=251.0), "64 agents of one row, against DuckLake"),
        (record(DUCKLAKE, 128, requests_per_s=151.0), "128 agents of one row, against DuckLake"),
        (record(DOOR, 1, p50_ms=25.1), "one agent, no latency: p50"),
        (record(DOOR, 256, 1, "s3", requests_per_s=999.0), "S3, 256 agents of one row"),
        (record(DOOR, 256, 100, "s3", requests_per_s=299.0), "S3, 256 agents of 100 rows"),
        (record(DOOR, 256, 100, "s3", requests_per_s=300.0, success=0.99), "requests to the door that succeed"),
        (record(DOOR, 128, files_per_s=20.1), "data files of the door, from 32 agents"),
        (record(DOOR, 64, exact=False), "runs whose table is not exactly what was acknowledged"),
    ],
)
def test_a_promise_that_is_not_kept_is_named(worse: dict[str, Any], promise: str) -> None:
    records = [worse if cases.key(each) == cases.key(worse) else each for each in GOOD]
    assert [each.name for each in cases.promises(records) if not each.kept] == [promise]


def test_files_are_counted_from_32_agents_on() -> None:
    assert kept([*GOOD, record(DOOR, 8, files_per_s=50.0)]) == kept(GOOD)


def test_every_round_makes_all_runs_and_the_grid_has_every_side() -> None:
    runs = list(cases.headlines(2))
    first, second = ([case for number, case in runs if number == each] for each in (1, 2))
    assert {(c.side, c.agents, c.rows, c.profile) for c in first} == {
        (c.side, c.agents, c.rows, c.profile) for c in second
    }
    assert [each.name for each in cases.promises([_as_record(case) for case in first]) if each.found is None] == []
    full = [case for _, case in cases.grid(full=True)]
    assert {case.agents for case in full} == {1, 8, 32, 64, 128, 256}
    assert {(case.side, case.rows, case.profile) for case in full} == {
        (side, rows, profile)
        for side in SIDES
        for rows in (1, 100)
        for profile in ("none", "s3")
        if side != DUCKLAKE or profile == "none"
    }


def _as_record(case: Case) -> dict[str, Any]:
    return record(case.side, case.agents, case.rows, case.profile)


def test_the_figures_of_a_run_are_of_rows_and_judge_each() -> None:
    case = Case(DOOR, 2, 10, seconds=4.0)
    operations = [
        Operation(1, 100.2, 100.9, "ok"),  # in the first second
        Operation(2, 101.5, 101.6, "ok"),
        Operation(3, 103.0, 109.0, "ok"),  # it began in time, and ended late
        Operation(4, 103.0, 103.5, "conflict"),
    ]
    load = Load(operations, 100.0, 0.3)
    ids = [*range(10, 40)]
    told = sides._record(case, load, 0.6, Found(ids, 18))
    assert told["requests_per_s"] == pytest.approx(1 / 3)
    assert told["rows_per_s"] == pytest.approx(10 / 3)
    assert (told["p50_ms"], told["p99_ms"]) == (pytest.approx(100), pytest.approx(6_000))
    assert (told["server_cpu_ms"], told["clients_cpu_ms"]) == (pytest.approx(200), pytest.approx(100))
    assert told["files_per_s"] == pytest.approx(2)
    assert told["failures"] == {"conflict": 1}
    assert told["exact"]
    for wrong in (ids[:-1], [*ids, 39], [*ids, 40], [*ids, 7]):
        assert not sides._record(case, load, None, Found(wrong, 1))["exact"], wrong
    assert [op.row_id for op in by_row([Operation(2, 0, 0, "ok")], 3)] == [6, 7, 8]


def test_results_become_tables_and_the_same_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [*GOOD, record(sides.DIRECT, 1, server_cpu_ms=None, p50_ms=float("nan"))]
    results = {"runs": {"headlines": records, "grid": records}, "machines": {}}
    shown = report.all_tables(results)
    assert [len(table.rows) for table in shown] == [len(cases.promises(records)), len(records), len(records)]
    assert all(len(row) == len(report.COLUMNS) for row in shown[1].rows)
    assert plots.by_agents(records) == plots.by_agents(records)

    page, place = tmp_path / "page.md", tmp_path / "plots"
    place.mkdir()
    page.write_text("a\n<!-- bench-rows: begin -->\n<!-- bench-rows: end -->\nz\n")
    monkeypatch.setattr(pages, "PAGE", page)
    monkeypatch.setattr(pages, "PLOTS", place)
    monkeypatch.setattr(run, "RESULTS", place / "bench-rows.json")
    (place / "bench-rows.json").write_text(json.dumps(results))
    assert run.main(["--tables"]) == 0
    assert "| rows door | none | 64 | 1 |" in page.read_text()
    assert "(plots/bench-rows-agents.svg)" in page.read_text()
    assert (place / "bench-rows-agents.svg").exists()


def test_a_short_run_of_every_side_finds_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        with ducklake.postgres():
            pass
    except servers.Trouble as error:
        if isinstance(error.__cause__, NoPostgres):
            pytest.skip(str(error))
        raise
    assert run.main(["--short"]) == 0
    said = capsys.readouterr().out
    assert all(f"{side}, " in said for side in SIDES)
    assert "exact True" in said
    assert "exact False" not in said
