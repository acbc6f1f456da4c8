"""The benchmark's own machinery: its arithmetic, its latencies, its verdicts, and a short run of every cheap side."""

from __future__ import annotations

import random
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from bench.commits import curve, gate, pages, report, schedule, sides
from bench.commits.operations import Operation, Spread, figures, judge, percentile, unattributed
from bench.commits.raw_client import Connection
from bench.commits.shapes import FLAT, HOURLY, SPREAD, Shape, values_of
from bench.commits.sides import Case
from icetower.demo.latency import NONE, S3, Latency
from icetower.demo.slow_io import SlowFileIO, properties

# -- arithmetic -------------------------------------------------------------------------------------------------------


def operation(row_id: int, end_s: float, outcome: str = "ok", *, lasted_s: float = 0.1, retries: int = 0) -> Operation:
    return Operation(row_id, end_s - lasted_s, end_s, outcome, retries, row_id)


def test_figures_count_what_ended_within_the_window() -> None:
    operations = [
        operation(1, 0.9),
        operation(2, 1.0),
        operation(3, 2.0, lasted_s=0.5, retries=2),
        operation(4, 2.5, "conflict", retries=4),
        operation(5, 3.1),
    ]
    found = figures(operations, from_s=1.0, to_s=3.0)
    assert (found.commits, found.tried, found.commits_per_s, found.success) == (2, 3, 1.0, 2 / 3)
    assert (found.retries, found.failures) == (6, {"conflict": 1})
    assert [round(found.p50_ms), round(found.p99_ms)] == [100, 500]


def test_a_window_ends_with_the_last_operation_where_there_was_no_more_to_send() -> None:
    assert figures([operation(1, 1.5), operation(2, 2.0)], from_s=1.0, to_s=9.0).commits_per_s == 2.0


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (50, 2), (75, 3), (99, 4), (100, 4)])
def test_percentiles_are_values_that_occurred(percent: int, expected: int) -> None:
    assert percentile([1, 2, 3, 4], percent) == expected


@pytest.mark.parametrize(("values", "expected"), [([3], (3, 3, 3)), ([5, 1], (1, 3, 5)), ([9, 1, 2], (1, 2, 9))])
def test_spread(values: Sequence[float], expected: tuple[float, float, float]) -> None:
    spread = Spread.of(values)
    assert (spread.least, spread.median, spread.greatest) == expected


def test_a_verdict_names_what_is_lost_doubled_and_there_against_a_refusal() -> None:
    operations = [operation(n, 1.0) for n in (1, 2, 3)]
    operations += [operation(4, 1.0, "conflict"), operation(5, 1.0, "CommitStateUnknownException")]
    assert judge(operations, [1, 2, 3, 5, 9], before=[9]).exact
    assert judge(operations, [1, 2, 3, 9], before=[9]).exact  # nobody was told that the fifth is there
    verdict = judge(operations, [1, 1, 2, 4, 7])
    assert (verdict.missing, verdict.doubled, verdict.unexpected) == ((3,), (1,), (4, 7))


def test_an_append_is_attributed_once_with_its_principal_and_key() -> None:
    operations = [operation(n, 1.0) for n in (1, 2, 3)] + [operation(4, 1.0, "conflict")]
    keys = {1: "a", 2: "b", 3: "c", 4: "d"}
    told = [("writer-1", "a"), ("writer-2", "b"), ("writer-2", "b"), ("writer-1", "c")]
    assert unattributed(operations, keys, told) == (2, 3)


def test_the_curve_takes_a_rate_each_thousand_commits() -> None:
    operations = [operation(n, n / 100) for n in range(1, 2_001)] + [operation(9_999, 1.0, "conflict")]
    assert [(at, round(rate)) for at, rate in curve.rates(operations, 0.0)] == [(1_000, 100), (2_000, 100)]


def test_a_curve_is_told_by_the_medians_of_its_rounds() -> None:
    points: list[list[float]] = []
    for rates in ((100.0, 90.0), (110.0, 30.0), (120.0, 100.0)):
        points = curve.together(points, list(zip((1_000, 2_000), rates, strict=True)))
    assert points == [[1_000, 100, 110, 120], [2_000, 90, 30, 100]]
    assert curve.medians(points) == [(1_000, 110), (2_000, 90)]
    promised = {promise.name: promise for promise in schedule.promises([], {curve.WITH: points})}
    (lowest,) = (promise for name, promise in promised.items() if name.startswith("history with retention"))
    assert lowest.found is not None
    assert round(lowest.found.median) == 82
    assert lowest.kept


# -- what is promised -------------------------------------------------------------------------------------------------


def record(side: str, writers: int, profile: str, number: int, **figures: Any) -> dict[str, Any]:
    usual = {
        "commits_per_s": 1.0, "success": 1.0, "p50_ms": 10.0, "p99_ms": 20.0, "retries": 0, "tried": 10,
        "server_cpu_ms": None, "metadata_files_per_s": 1.0, "unattributed": 0, "exact": True, "failures": {},
    }  # fmt: skip
    return {"side": side, "writers": writers, "profile": profile, "round": number} | usual | figures


def test_promises_are_judged_by_ratios_within_a_round() -> None:
    """Each round's own ratio is 60 or 40: the machine was slower in the second, for both sides."""
    records = [
        record(schedule.PREPARED, 256, "s3", 1, commits_per_s=600.0),
        record(schedule.OPTIMISTIC, 256, "s3", 1, commits_per_s=10.0),
        record(schedule.PREPARED, 256, "s3", 2, commits_per_s=200.0),
        record(schedule.OPTIMISTIC, 256, "s3", 2, commits_per_s=5.0),
    ]
    found = {promise.name: promise for promise in schedule.promises(records, {})}
    ratio = found["… against plain OCC"]
    assert ratio.found == Spread(40.0, 50.0, 60.0)
    assert ratio.kept
    rate = found["S3, 256 protocol writers"]
    assert rate.kept
    assert not found["S3, 512 agents' SDK appends"].kept
    assert report.verdict(found["S3, 512 agents' SDK appends"]) == "not run"


@pytest.mark.parametrize(
    ("value", "at_most", "said"),
    [(290.0, False, "short by 10 x"), (310.0, True, "short by 10 x"), (300.0, True, "PASS")],
)
def test_a_broken_promise_says_by_how_much(value: float, at_most: bool, said: str) -> None:
    promise = schedule.Promise("p", 300, Spread(value, value, value), "x", at_most=at_most)
    assert report.verdict(promise) == said


def test_a_wrong_table_breaks_a_promise() -> None:
    records = [record(schedule.TOWER, 16, "none", 1), record(schedule.TOWER, 16, "none", 2, exact=False)]
    assert [p.kept for p in schedule.promises(records, {}) if p.name.startswith("runs whose")] == [False]


def test_tables_go_between_the_markers_and_nowhere_else() -> None:
    records = [record(side, 256, "s3", 1) for side in (schedule.PREPARED, schedule.OPTIMISTIC)]
    results = {"runs": {"headlines": records}, "history": {"Icetower": [[1_000, 400.0], [20_000, 300.0]]}}
    page = "before\n<!-- bench-commit: begin -->\nold\n<!-- bench-commit: end -->\nafter\n"
    tables = report.all_tables(results)
    told = pages.between(page, "bench-commit", tables, "on this machine\n")
    assert told.startswith("before\n<!-- bench-commit: begin -->\non this machine\n\n")
    assert told.endswith("\nafter\n")
    assert "old" not in told
    assert "| protocol, plain OCC | S3 | 256 |" in told
    assert "300 (75 %)" in told
    assert pages.between(told, "bench-commit", tables, "on this machine\n") == told
    with pytest.raises(ValueError, match="begin"):
        pages.between("a page without a place", "bench-commit", tables)


def test_every_round_of_the_headlines_makes_all_runs() -> None:
    runs = list(schedule.headlines(2))
    assert [case.side for number, case in runs if number == 1] == [case.side for number, case in runs if number == 2]
    assert {case.seed for number, case in runs if number == 2} == {2}


# -- latency ----------------------------------------------------------------------------------------------------------


def test_the_s3_profile_has_the_percentiles_of_simulating_catalog_and_table_conflicts() -> None:
    latency = Latency(S3, 1)
    gets = sorted(latency.get_s() * 1000 for _ in range(20_000))
    puts = sorted(latency.put_s(10 * 1024) * 1000 for _ in range(20_000))
    for drawn, told in ((gets, {25: 18, 50: 27, 75: 41, 95: 75}), (puts, {5: 37, 50: 60, 75: 73, 95: 97})):
        for percent, expected_ms in told.items():
            assert percentile(drawn, percent) == pytest.approx(expected_ms, rel=0.05)
    assert gets[0] == 10.0
    assert median(latency.put_s(4 * 1024 * 1024) for _ in range(5_000)) == pytest.approx(0.140, rel=0.05)


def test_the_same_seed_draws_the_same_latencies_and_no_profile_none() -> None:
    drawn = [[Latency(S3, seed).get_s() for _ in range(3)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert Latency(NONE, 1).put_s(10**9) == 0.0


def test_the_slow_io_keeps_files_whole_and_never_replaces_one(tmp_path: Path) -> None:
    io = SlowFileIO({**properties("none", 0), "latency.profile": "none"})
    place = f"file://{tmp_path}/deep/f"
    with io.new_output(place).create() as stream:
        stream.write(b"ab")
        assert not (tmp_path / "deep" / "f").exists()
        stream.write(b"c")
    assert io.new_input(place).open().read() == b"abc"
    assert (len(io.new_input(place)), io.new_input(place).exists()) == (3, True)
    with pytest.raises(FileExistsError), io.new_output(place).create() as stream:
        stream.write(b"other")
    with io.new_output(place).create(overwrite=True) as stream:
        stream.write(b"other")
    io.delete(place)
    assert not io.new_input(place).exists()


# -- what is prepared, and what is heard ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [FLAT, HOURLY, SPREAD])
def test_prepared_files_hold_the_row_that_they_are_named_for(shape: Shape) -> None:
    values = values_of(random.Random(1).randrange(2**40), 7)
    data = BytesIO(shape.parquet(values))
    expected = shape.rows([{name: values[name] for name in shape.numbers}])
    assert pq.read_table(data).replace_schema_metadata().to_pylist() == expected.to_pylist()
    group = pq.read_metadata(data).row_group(0)
    bounds = [(s.min, s.max) for s in (group.column(at).statistics for at in range(group.num_columns))]
    assert bounds[:2] == [(values["id"],) * 2, (7, 7)]


def test_a_prepared_file_is_described_as_pyiceberg_would(tmp_path: Path) -> None:
    """Bounds and partition of a file that PyIceberg writes from the same row."""
    catalog = load_catalog("bench", type="sql", uri="sqlite:///:memory:", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("bench")
    table = catalog.create_table("bench.t", schema=SPREAD.schema, partition_spec=SPREAD.spec())
    values = values_of(12_345, 3)
    table.append(SPREAD.rows([values]))
    (task,) = table.scan().plan_files()
    made = SPREAD.file("there", values, 1)
    assert tuple(task.file.partition) == made.partition
    for side, told in (("lower_bounds", task.file.lower_bounds), ("upper_bounds", task.file.upper_bounds)):
        assert {pair["key"]: pair["value"] for pair in made.record[side]} == dict(told)


@pytest.mark.parametrize("pieces", [1, 2, 7, 200])
def test_the_raw_client_hears_an_answer_in_any_pieces(pieces: int) -> None:
    answer = b"HTTP/1.1 409 Conflict\r\ncontent-type: x\r\nContent-Length: 11\r\n\r\nhello world"
    heard: list[tuple[int, bytes]] = []

    class Answer:
        def done(self) -> bool:
            return bool(heard)

        def set_result(self, result: tuple[int, bytes]) -> None:
            heard.append(result)

    connection = Connection()
    connection._answer = Answer()  # type: ignore[assignment]
    step = -(-len(answer) // pieces)
    for start in range(0, len(answer), step):
        connection.data_received(answer[start : start + step])
    assert heard == [(409, b"hello world")]


# -- short runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [sides.OPTIMISTIC, sides.LOCKED, sides.DIRECT, sides.TOWER, sides.PREPARED])
def test_a_short_run_commits_and_finds_all_of_it_in_the_table(side: str, tmp_path: Path) -> None:
    found = sides.run(Case(side, 2, "s3", 2.0, rate_max=60), tmp_path / "run")
    assert found["acknowledged"] > 0
    assert found["exact"], found
    assert found["metadata_files_per_s"] > 0
    assert found["snapshots"] >= 2


@pytest.mark.parametrize("commits", [0, 50])
def test_a_generated_history_is_one_that_pyiceberg_appends_to(commits: int, tmp_path: Path) -> None:
    assert curve._peer(commits, tmp_path / "run", seconds=4.0) > 0


def test_a_short_run_under_contracts_times_the_gate(tmp_path: Path) -> None:
    found = gate.run(gate.Case(gate.OWN, 2, 2.0, 1), tmp_path / "run")
    assert found["acknowledged"] > 0
    assert found["exact"], found
    timed = {name for name, took_ms in found["gate_cpu_ms_by"].items() if took_ms > 0}
    assert timed >= {"judge", "without_client_properties", "wait_s", "answer_parts"}, found
    assert {name for name, took_ms in found["observation_cpu_ms_by"].items() if took_ms > 0} >= {
        "ended", "write_attempts", "write_watched"
    }, found  # fmt: skip
    assert not found["gate_cpu_ms_by"].keys() & found["observation_cpu_ms_by"].keys()
