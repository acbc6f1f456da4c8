"""What `make bench-isolation` and `make bench-gate` count, and short runs of what they run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from bench.commits import acts, claims, crashes, gate, isolation, pages, verify
from bench.commits.claims import ALIGNED, HERD, ORPHAN, RATE, TOGETHER, TUG, Case
from bench.commits.operations import Operation, Spread
from bench.commits.plots import isolation_plot
from bench.commits.pyiceberg_writers import IDS_PER_WRITER
from bench.commits.shapes import FLAT, TIMED, values_of
from bench.commits.sides import DIRECT, TOWER
from icetower.contracts.document import load
from icetower.demo import slow_io


def operation(
    writer: int, number: int, start_s: float = 0.0, lasted_s: float = 0.1, outcome: str = "ok", retries: int = 0
) -> Operation:
    row_id = (writer + 1) * IDS_PER_WRITER + number
    return Operation(row_id, start_s, start_s + lasted_s, outcome, retries, writer)


# -- figures ----------------------------------------------------------------------------------------------------------


def test_a_commit_is_retried_if_it_was_sent_again_or_never_landed() -> None:
    operations = [
        operation(0, 1, 0.0, 0.1),
        operation(0, 2, 1.0, 0.3, retries=2),
        operation(1, 1, 2.0, 0.2, "conflict", retries=5),
        operation(1, 2, 3.0, 1.0),
    ]
    found = claims.figures_of(operations, metadata_files=12)
    assert (found["tried"], found["acknowledged"], found["success"]) == (4, 3, 0.75)
    assert (found["retried"], found["first"], found["retries_each"]) == (0.5, 0.5, 1.75)
    assert found["failures"] == {"conflict": 1}
    assert (round(found["p50_ms"]), round(found["p99_ms"])) == (300, 1000)
    assert (found["metadata_each"], found["metadata_per_s"]) == (4.0, 3.0)


def test_nothing_done_divides_by_nothing() -> None:
    found = claims.figures_of([], 3)
    assert (found["tried"], found["retried"], found["success"], found["failures"]) == (0, 0.0, 0.0, {})


def test_the_same_seed_gives_all_sides_the_same_times() -> None:
    drawn = claims.poisson(1001, 8, 2.0, 500.0)
    assert drawn == claims.poisson(1001, 8, 2.0, 500.0) != claims.poisson(1002, 8, 2.0, 500.0)
    assert all(list(times) == sorted(times) and times[-1] < 500.0 for times in drawn)
    assert sum(map(len, drawn)) == pytest.approx(1000, rel=0.1)


# -- are the rows right? ----------------------------------------------------------------------------------------------

APPENDED = [operation(0, 1), operation(0, 2), operation(3, 1), operation(3, 2, outcome="conflict")]


def rows(*ids: int, shift: int = 0) -> pa.Table:
    several = [values_of(row_id, row_id // IDS_PER_WRITER - 1) for row_id in ids]
    return TIMED.rows([{**values, "writer": values["writer"] + shift} for values in several])


ONE, TWO, THREE, REFUSED = (op.row_id for op in APPENDED)


@pytest.mark.parametrize(
    ("found", "right"),
    [
        (rows(THREE, ONE, TWO), True),
        (rows(ONE, TWO), False),  # one is lost
        (rows(ONE, TWO, THREE, THREE), False),  # one is doubled
        (rows(ONE, TWO, THREE, REFUSED), False),  # one was refused, and is there
        (rows(ONE, TWO, THREE, shift=1), False),  # all are there, with other values
    ],
)
def test_appended_rows_are_compared_with_what_their_writers_were_told(found: pa.Table, right: bool) -> None:
    assert claims.rows_are_right(found, APPENDED) is right


def test_each_price_is_as_high_as_it_was_raised() -> None:
    operations = [operation(0, 1), operation(0, 2), operation(1, 1), operation(1, 2, outcome="conflict")]
    told = [{**row, "price": 2 if row["category"] == acts.CATEGORIES[0] else 1} for row in acts.catalogue().to_pylist()]
    assert claims.prices_are_right(told, operations)
    assert not claims.prices_are_right(told[1:], operations)
    assert not claims.prices_are_right([*told, told[0]], operations)
    assert not claims.prices_are_right([{**told[0], "price": 1}, *told[1:]], operations)


@pytest.mark.parametrize(("landed", "share"), [((5, 5), 1.0), ((1, 9), 0.2), ((0, 4), 0.0), ((0, 0), 0.0)])
def test_the_worse_served_of_two_has_a_share_of_what_would_be_fair(landed: Sequence[int], share: float) -> None:
    operations = [operation(writer, number) for writer, count in enumerate(landed) for number in range(count)]
    assert claims.worse_off([*operations, operation(0, 99, outcome="conflict")], 2) == share


def test_an_orphan_is_found_and_attributed_or_counted_as_neither() -> None:
    left = verify.Litter(("/t/data/agent-4/a.parquet", "/t/data/agent-4/b.parquet"), ("/t/metadata/m0.avro",))
    told = {"/t/data/agent-4/a.parquet": "agent-4", "/t/data/agent-4/b.parquet": None, "/t/data/live.parquet": None}
    found = crashes.accounted(left, told, "agent-4")
    assert found == {"found_data": 2, "found_metadata": 0, "attributed": 1, "false_finds": 1}
    assert set(crashes.accounted(left, None, "agent-4").values()) == {None}


def test_litter_is_what_no_snapshot_names(tmp_path: Path) -> None:
    database = tmp_path / "catalog.db"
    catalog = load_catalog("bench", type="sql", uri=f"sqlite:///{database}", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("bench")
    table = catalog.create_table("bench.t", schema=FLAT.schema)
    for row_id in (1, 2):
        table.append(FLAT.rows([{"id": row_id}]))
    table.delete("id = 1")  # its file is in older snapshots still
    assert verify.litter(database) == verify.Litter((), ())
    place = Path(verify.plain(table.location()))
    (place / "data" / "lost.parquet").write_bytes(b"x")
    (place / "metadata" / "snap-lost.avro").write_bytes(b"x")
    found = verify.litter(database)
    assert [path.rpartition("/")[2] for path in (*found.data, *found.metadata)] == ["lost.parquet", "snap-lost.avro"]


def test_metadata_counts_when_it_is_written_whatever_becomes_of_it(tmp_path: Path) -> None:
    tally = tmp_path / "tally"
    tally.touch()
    io = slow_io.SlowFileIO({**slow_io.properties("s3", 1, tally), "latency.profile": "none"})
    for name in ("m0.avro", "v1.metadata.json", "data.parquet"):
        with io.new_output(f"file://{tmp_path}/{name}").create() as stream:
            stream.write(b"x")
    io.delete(f"file://{tmp_path}/m0.avro")
    assert slow_io.metadata_written(tally) == 2


# -- what it comes to -------------------------------------------------------------------------------------------------


def record(claim: str, side: str, number: int, layout: str = ALIGNED, **more: Any) -> dict[str, Any]:
    usual = claims.figures_of([operation(0, 1), operation(0, 2)], 6) | {
        "claim": claim, "side": side, "round": number, "layout": layout, "per_s": 0.0, "exact": True,
        "orphaned_data": 0, "orphaned_metadata": 0,
    }  # fmt: skip
    if claim == RATE:
        usual["per_s"] = isolation.LOAD_PER_S
    if claim == HERD:
        usual["herd_s"] = 2.0
    if claim == TUG:
        usual["worse_off"] = 1.0
    if claim == ORPHAN:
        part = claims.figures_of([operation(0, 1)])
        usual |= {"killed": 4, "doubled": 0, "calm": part, "crashing": part}
        usual |= crashes.accounted(verify.Litter((), ()), None if side == DIRECT else {}, "agent-4")
    return usual | more


def records(sides: Sequence[str] = (DIRECT, TOWER)) -> list[dict[str, Any]]:
    return [
        record(claim, side, number, layout) for number in (1, 2) for claim, layout in isolation.CLAIMS for side in sides
    ]


def test_every_round_runs_every_claim_on_every_side_both_layouts_at_once() -> None:
    turns = list(isolation.course(2))
    first, second = ([turn for turn in turns if turn[0].round == number] for number in (1, 2))
    assert [turn[0].side for turn in first] != [turn[0].side for turn in second]
    every = {(*claim, side) for claim in isolation.CLAIMS for side in isolation.SIDES}
    made = [{(case.claim, case.layout, case.side) for turn in turns for case in turn} for turns in (first, second)]
    assert made == [every, {each for each in every if each[0] != ORPHAN}]
    assert {len(turn) for turn in turns if turn[0].claim == RATE} == {2}
    seeds = {(case.claim, case.round): case.seed for turn in turns for case in turn}
    assert all(case.seed == seeds[case.claim, case.round] for turn in turns for case in turn)
    more = [turn[0] for turn in isolation.course(1, full=True) if turn not in first]
    assert len(more) == 1 + (len(isolation.LOADS_PER_S) - 1) * len(isolation.SIDES)
    assert [case.claim for case in more if case.side == claims.SILENT] == [TUG]


def test_tables_tell_what_was_not_run_and_whose_rows_are_wrong() -> None:
    several = records()
    several[0]["exact"] = False
    said, figures, orphaned = isolation.tables(several)
    assert {row[3] for row in said.rows} == {"–"}  # no run of the reference server
    assert [row[-1] for row in figures.rows[:2]] == ["NO", "yes"]
    assert [row[0] for row in orphaned.rows] == [DIRECT, TOWER]
    assert orphaned.rows[0][3:5] == ("–", "–")
    page = "<!-- bench-isolation: begin -->\n<!-- bench-isolation: end -->"
    assert "| partition tug of war | PyIceberg, Icetower | 4 |" in pages.between(
        page, "bench-isolation", [said, figures, orphaned]
    )


def test_what_is_said_of_the_retry_rate_is_of_the_load_that_is_spoken_of() -> None:
    several = [record(RATE, DIRECT, n, TOGETHER, retried=share) for n, share in ((1, 0.25), (2, 0.5), (3, 0.3))]
    several.append(record(RATE, DIRECT, 1, TOGETHER, retried=0.9, per_s=99.0))
    assert isolation.said_table(several).rows[0][1:3] == ("30", "25 / 30 / 50")
    assert {row[0] for row in isolation.figure_table(several).rows} == {
        "retry rate, not partitioned, 1.25 a second",
        "retry rate, not partitioned, 99 a second",
    }


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, None),
        ({"exact": False}, "missing, doubled or wrong"),
        ({"orphaned_data": 2, "found_data": 2, "attributed": 2}, None),
        ({"orphaned_data": 2, "found_data": 1, "attributed": 1}, "of 2 orphaned data files 1 are found"),
        ({"orphaned_data": 2, "found_data": 2, "attributed": 0}, "0 attributed"),
        ({"false_finds": 1}, "1 files are no orphans"),
    ],
)
def test_what_breaks_a_promise_of_the_orphans(more: dict[str, Any], said: str | None) -> None:
    found = isolation.broken([record(ORPHAN, TOWER, 1, **more), record(ORPHAN, DIRECT, 1, exact=False)])
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


@pytest.mark.parametrize(("shares", "broken"), [((0.0, 0.1, 0.02), False), ((0.0, 0.03, 0.1), True)])
def test_the_claim_is_judged_by_the_median_of_the_partitioned(shares: Sequence[float], broken: bool) -> None:
    several = [record(RATE, TOWER, at, retried=share) for at, share in enumerate(shares)]
    several += [record(RATE, TOWER, 1, TOGETHER, retried=0.5), record(RATE, DIRECT, 1, retried=0.5)]
    assert bool(isolation.broken(several)) is broken


def test_the_same_figures_draw_the_same_plot() -> None:
    drawn = [isolation_plot(records(), isolation.SIDES, isolation.CLAIMS[:-1], isolation.LOAD_PER_S) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0].startswith("<?xml")


# -- the gate ---------------------------------------------------------------------------------------------------------


def gated(side: str, number: int, gate_ms: float, server_ms: float = 5.0) -> dict[str, Any]:
    return {
        "side": side, "round": number, "writers": 256, "commits_per_s": 200.0, "server_cpu_ms": server_ms,
        "gate_cpu_ms": gate_ms, "observation_cpu_ms": server_ms / 25, "exact": True,
    }  # fmt: skip


def test_the_gate_costs_what_it_takes_beyond_an_administrators_in_the_same_round() -> None:
    several = [gated(gate.ADMINISTRATORS, 1, 0.25, 4.0), gated(gate.OWN, 1, 0.75), gated(gate.OWN, 3, 9.9)]
    several += [gated(gate.ADMINISTRATORS, 2, 0.25), gated(gate.OWN, 2, 0.5)]
    cost = gate.cost(several, gate.OWN)
    assert cost == Spread(0.05, pytest.approx(0.075), 0.1)
    assert gate.cost(several, gate.WHOLE) is None
    assert gate.ratio(several, gate.OWN, "server_cpu_ms") == Spread(1.0, 1.125, 1.25)
    (table,) = gate.tables(several)
    assert [row[0] for row in table.rows] == [gate.ADMINISTRATORS, gate.OWN]
    assert table.rows[1][5] == "5 / 7.50 / 10"
    assert gate.observed(several, gate.OWN) == Spread(0.04, pytest.approx(0.04), 0.04)
    assert gate.observed(several, gate.WHOLE) is None
    assert table.rows[1][8] == "4 / 4 / 4"


def test_every_other_round_of_the_gate_goes_from_the_back() -> None:
    sides = [case.side for case in gate.course(2, 256, 1.0)]
    assert sides == [*gate.SIDES, *reversed(gate.SIDES)]


@pytest.mark.parametrize("text", [gate.contract(3), gate.EVERYTHING, claims.appender(1), claims.repricer(0)])
def test_the_contracts_of_the_benchmarks_are_contracts(text: str) -> None:
    assert load(text, source="here").rules


# -- short runs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "HERD_AGENTS", 3)
    monkeypatch.setattr(claims, "TUG_S", 2.0)
    monkeypatch.setattr(crashes, "CALM_S", 1.0)
    monkeypatch.setattr(crashes, "CRASHING_S", 1.0)
    monkeypatch.setattr(crashes, "POINTS", (crashes.BEFORE, crashes.AFTER))


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("side", [DIRECT, TOWER])
@pytest.mark.parametrize("claim", [HERD, TUG, RATE])
def test_a_short_run_of_a_claim_finds_all_rows_as_they_should_be(claim: str, side: str, tmp_path: Path) -> None:
    case = Case(claim, side, 1, per_s=3.0 if claim == RATE else 0.0, seconds=1.5)
    found = claims.run(case, tmp_path / "run")
    assert found["acknowledged"] > 0
    assert found["exact"], found
    assert found["metadata_each"] >= 3  # manifest, list, metadata file


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("side", "doubled", "left"), [(DIRECT, 1, 1), (TOWER, 0, 2)])
def test_killed_writers_leave_files_and_double_rows_where_nobody_knows_their_key(
    side: str, doubled: int, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tower the life after the commit writes its row for nothing: that file is left, too."""
    monkeypatch.setattr(crashes, "orphans", lambda _: {})
    found = crashes.run(Case(ORPHAN, side, 1), tmp_path / "run")
    assert (found["doubled"], found["orphaned_data"], found["exact"]) == (doubled, left, doubled == 0)
