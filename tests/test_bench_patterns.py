"""The bench of patterns: its figures and its oracle as tables, and all sides in short on Spark."""

from __future__ import annotations

import datetime as dt
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.patterns import advice, oracle, report, rows, run
from bench.patterns.agents import NO_TURN, TRIES, Timing, Turn, Worker, run_agents
from bench.patterns.places import SCHEDULER, Lake, contract
from bench.patterns.records import Attempted, Figures, Stored, figures
from bench.patterns.rows import DISJOINT, HOT, NAMES, Write
from bench.patterns.sides import COLLECTOR, SIDES, WAL
from icetower.contracts.document import load
from icetower.demo import data

ROOT = Path(__file__).parent.parent


def price(product: int, at: int, *, region: int = 0, row_id: int = 0) -> dict[str, Any]:
    values = dict.fromkeys(NAMES)
    when = dt.datetime(2017, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=at)
    return values | {"region": region, "product_id": product, "_event_time": when, "row_id": row_id}


def landed(*its: dict[str, Any], sequence: int | None = None) -> Attempted:
    return Attempted(Write(0, 0, its), 0, answered=True, sequence=sequence, visible_ms=1)


OLD, NEW, OTHER = price(1, 5, row_id=1), price(1, 9, row_id=2), price(2, 7, row_id=3)


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ([NEW, OTHER], ""),
        ([OLD, OTHER], "newest is"),
        ([NEW], "(0, 2) is missing"),
        ([NEW, NEW, OTHER], "twice"),
        ([NEW, OTHER, price(3, 1)], "never written"),
        ([{**NEW, "store_id": 4}, OTHER], "newest is"),
    ],
)
def test_the_newest_price_of_each_product_must_be_there_and_nothing_else(
    found: list[dict[str, Any]], wrong: str
) -> None:
    attempts = [landed(NEW, OTHER), landed(OLD)]
    differences = oracle.differences(attempts, found, oracle.by_event)
    assert len(differences) == (1 if wrong else 0)
    assert wrong in "".join(differences)


def test_a_log_goes_by_the_order_of_its_commits() -> None:
    attempts = [landed(NEW, sequence=1), landed(OLD, sequence=2)]
    assert not oracle.differences(attempts, [OLD], oracle.by_commit)
    assert oracle.differences(attempts, [NEW], oracle.by_commit)


def test_prices_of_one_second_are_equally_new() -> None:
    twin = {**NEW, "row_id": 9}
    for found in (NEW, twin):
        assert not oracle.differences([landed(NEW), landed(twin)], [found], oracle.by_event)


def prices(count: int) -> pa.Table:
    start = dt.datetime(2017, 1, 1, tzinfo=dt.UTC)
    return pa.table(
        {
            "row_id": range(count),
            "observed_at": pa.array([start + dt.timedelta(seconds=at) for at in range(count)], data.TIME),
            "store_id": [at % 7 for at in range(count)],
            "product_id": [at % 30 for at in range(count)],
            "unit_price": data.money(pa.array(range(count)).to_numpy()),
            "quantity": [1] * count,
            "sales_value": data.money(pa.array(range(count)).to_numpy()),
        }
    )


@pytest.mark.parametrize("shape", rows.SHAPES)
def test_rows_are_dealt_once_in_time_order(shape: str) -> None:
    dealt = rows.deal(prices(1000), shape, agents=3, writes=4)
    assert [len(its) for its in dealt] == [4, 4, 4]
    every = [row for its in dealt for write in its for row in write.rows]
    assert len({row["_idempotency_key"] for row in every}) == len(every)
    for agent, its in enumerate(dealt):
        assert {row["region"] for write in its for row in write.rows} == {0 if shape == HOT else agent}
        for write in its:
            assert len({row["product_id"] for row in write.rows}) == len(write.rows)
        assert [write.rows[-1]["_event_time"] for write in its] == sorted(w.rows[-1]["_event_time"] for w in its)


def test_stores_of_very_different_sizes_leave_nobody_without_rows() -> None:
    sizes = [400, 350, 300, *[40] * 10, *[1] * 50]
    stores = np.repeat(np.arange(len(sizes)), sizes)
    shuffled = prices(len(stores)).set_column(2, "store_id", pa.array(np.random.default_rng(1).permutation(stores)))
    dealt = rows.deal(shuffled, DISJOINT, agents=6, writes=5)
    of_agent = [{row["store_id"] for write in its for row in write.rows} for its in dealt]
    assert [len(its) for its in dealt] == [5] * 6
    assert sum(map(len, of_agent)) == len(set[int]().union(*of_agent))


def test_too_few_rows_are_an_error() -> None:
    with pytest.raises(ValueError, match="it needs 2000"):
        rows.deal(prices(100), HOT, agents=2, writes=100)


def figures_of(
    side: str, shape: str = HOT, *, landed_of_ten: int = 10, rate: float = 1.0, lag_s: float = 1.0
) -> Figures:
    write = Write(0, 0, (NEW,))
    attempts = [Attempted(write, 0, [10.0], visible_ms=round(lag_s * 1000)) for _ in range(landed_of_ten)]
    attempts += [Attempted(write, 0, [30.0], failures=["lost"]) for _ in range(10 - landed_of_ten)]
    return figures(
        (side, shape, 32, 1),
        attempts,
        Stored(1, 2, 3, 4.0),
        began_ms=0,
        seconds=10.0 / rate,
        due=10,
        offered_rows_per_s=1.0,
        batches_ms=[],
        exact=True,
    )


def test_the_figures_of_a_run() -> None:
    found = figures_of("direct", landed_of_ten=7)
    assert (found.begun, found.landed, found.rows) == (10, 7, 7)
    assert found.rows_per_s == 0.7
    assert found.success_pct == 70.0
    assert found.wasted_pct == pytest.approx(100 * 90 / 160, abs=0.1)
    assert found.failures == {"lost": 3}
    assert math.isnan(found.batch_ms)


def test_a_rate_lasts_until_the_last_row_is_visible() -> None:
    assert figures_of("wal", lag_s=20.0).rows_per_s == 0.5


def test_a_promise_is_kept_or_short() -> None:
    direct = figures_of("direct", landed_of_ten=1)
    table = report.promise_table([direct, figures_of("wal"), figures_of("collector", landed_of_ten=9)])
    assert [row[-1] for row in table.rows] == ["PASS", "PASS", "short", "short by 1"]
    assert len(report.figure_table([direct, figures_of("wal")]).rows) == 2


def test_kept_runs_are_read_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RESULTS", tmp_path / "runs.json")
    kept = run.Kept({"patterns": {"cpu": "one"}}, [figures_of("direct", landed_of_ten=0)])
    kept.write()
    again = run.Kept.read()
    assert str(again.runs) == str(kept.runs)
    assert list(again.machines) == ["patterns", "patterns, added 1"]


def test_a_machine_that_ended_no_merge_has_no_speed() -> None:
    none = figures_of("direct", landed_of_ten=0)
    assert run.speeds([replace(none, tries=0)]) == (1.0, 5.0, None)
    assert run.speeds([figures_of("direct")]) == (0.01, 5.0, 1.0)


@pytest.mark.parametrize("shape", rows.SHAPES)
@pytest.mark.parametrize("pattern", ["", SCHEDULER, "mediator", "collector"])
def test_every_pattern_has_a_contract_that_can_be_applied(shape: str, pattern: str) -> None:
    lake = Lake("lake", "shop", {}, [])
    through = {"mediator": lake.log, "collector": lake.deltas}.get(pattern, "")
    text = contract(3, lake, shape, pattern, through, (3, 32))
    assert load(text, source="agent3").tables
    assert ("from: 9000ms, to: 12000ms" in text) == (pattern == SCHEDULER)
    assert "every: 96000ms" in text or pattern != SCHEDULER


def in_turns(worker: Worker, turn: Turn, grace_s: float) -> list[Attempted]:
    its = [Write(0, number, (NEW,)) for number in range(5)]
    timing = Timing(0.05, 0.01, grace_s)
    return run_agents([worker], [its], timing, lambda error: type(error).__name__, lambda: None, {0: turn})[1]


def test_an_agent_writes_in_its_turn_all_that_it_has() -> None:
    statements: list[list[int]] = []

    def write(its: Sequence[Attempted]) -> None:
        statements.append([each.write.number for each in its])

    found = in_turns(write, lambda stop: not stop.is_set(), 60.0)
    assert [number for each in statements for number in each] == [0, 1, 2, 3, 4]
    assert all(each.answered and len(each.tries_ms) == 1 for each in found)


def test_a_write_is_given_up_after_its_tries() -> None:
    def refuse(its: Sequence[Attempted]) -> None:
        raise ValueError

    found = in_turns(refuse, lambda stop: not stop.is_set(), 60.0)
    assert [each.failures for each in found] == [["ValueError"] * TRIES] * 5


def test_a_write_without_a_turn_counts_as_one_that_failed() -> None:
    found = in_turns(lambda its: None, lambda stop: not stop.wait(), 0.0)
    assert [each.failures for each in found] == [[NO_TURN]] * 5
    assert not any(each.answered for each in found)


@pytest.mark.full
@pytest.mark.parametrize(
    ("conflicting", "best"), [(HOT, {"wal", "collector"}), (DISJOINT, {"icetower"})], ids=["hot", "disjoint"]
)
def test_the_planner_is_right_if_its_first_choice_is_among_the_best(conflicting: str, best: set[str]) -> None:
    asked = advice.workload(conflicting, 32, period_s=2.0, work_s=1.0, job_s=3.0, interval_s=1.0, slot_s=3.0)
    fair = {name: figures_of(name, conflicting, lag_s=3.0) for name in ("wal", "collector")}
    poor = {name: figures_of(name, conflicting, landed_of_ten=3) for name in ("direct", "icetower")}
    agreed = {**poor, **fair} if conflicting == HOT else {**poor, **fair, "icetower": figures_of("icetower", DISJOINT)}
    verdict = advice.verdict(asked, conflicting, list(agreed.values()))
    assert verdict.advised_hold[0] in best
    assert set(verdict.best) == best
    assert verdict.agrees
    turned = [figures_of(name, conflicting, landed_of_ten=10 if name == "direct" else 3) for name in agreed]
    assert not advice.verdict(asked, conflicting, turned).agrees


@pytest.mark.spark
@pytest.mark.sharp
def test_every_side_is_exact_in_short() -> None:
    """Hot rows: two agents for two seconds on each side, without the latency of storage."""
    command = [sys.executable, "-m", "bench.patterns.run", "--agents", "2", "--shapes", HOT, "--seconds", "2"]
    options = ["--latency", "none", "--cold", "--no-page", "--json"]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.stdout, done.stderr[-4000:]
    found = json.loads(done.stdout)["runs"]
    assert [each["side"] for each in found] == list(SIDES)
    for each in found:
        assert each["exact"]
    for each in found:
        if each["side"] not in (WAL, COLLECTOR):  # of a MERGE, a slow machine may not end any in time
            continue
        assert (each["success_pct"], each["landed"], each["wasted_pct"]) == (100.0, each["due"], 0.0)
        assert each["batches"] > 0
