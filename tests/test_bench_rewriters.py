"""The bench of rewriters: its workload, figures, oracle and promises as tables, and every side in short."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException, ValidationException

from bench.rewriters import agents, report, run, sides, ways, work
from bench.rewriters.agents import Appended, Rewrite
from bench.rewriters.seats import Seat, Think
from bench.rewriters.work import ALONE, BRANCHES, INTENTS, PLAIN, RETRIES, TOWER, Case


def test_agents_think_as_long_as_those_of_the_report_but_for_the_scale() -> None:
    case, chance = Case(PLAIN, 8, scale=20.0), random.Random(1)
    drawn = sorted(work.thinking_s(case, chance) * case.scale for _ in range(2_000))
    assert 1 <= drawn[0] < 1.1
    assert 55 < drawn[-1] <= 60
    assert 6 < drawn[1_000] < 9.5  # the geometric mean of both is 7.7


def test_half_of_the_agents_rewrite() -> None:
    assert [(Case(PLAIN, n).rewriters, Case(PLAIN, n).appenders) for n in (8, 9, 32)] == [(4, 4), (4, 5), (16, 16)]
    wanted = list(work.cases((8, 32), (PLAIN, TOWER), 2, 20.0, "s3"))
    assert [(each.agents, each.side, each.seed) for each in wanted[:4]] == [
        (8, PLAIN, 1), (8, TOWER, 1), (32, PLAIN, 1), (32, TOWER, 1),
    ]  # fmt: skip
    assert {each.profile for each in wanted} == {"s3"}


def seat() -> Seat:
    return Seat(PLAIN, 3, {})


@pytest.mark.parametrize(
    ("ends", "landed", "attempts"),
    [
        ([None], True, 1),
        ([CommitFailedException(), ValidationException(), None], True, 3),
        ([CommitFailedException()] * (RETRIES + 1), False, RETRIES + 1),
    ],
)
def test_a_rewriter_thinks_again_five_times_and_then_gives_up(
    monkeypatch: pytest.MonkeyPatch, ends: Sequence[Exception | None], landed: bool, attempts: int
) -> None:
    left = list(ends)

    def way(seat: Seat, partition: int, think: Think) -> None:
        think()
        if (error := left.pop(0)) is not None:
            raise error

    monkeypatch.setitem(ways.WAYS, PLAIN, way)  # type: ignore[arg-type]
    slept: list[float] = []
    (done,) = agents.rewrites(seat(), Case(PLAIN, 2, rewrites=1), slept.append)
    assert (done.landed, len(done.thought_s), sum(done.failures.values())) == (landed, attempts, attempts - landed)
    assert done.thought_s == slept
    assert left == []


def test_what_a_rewriter_did_not_expect_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def way(seat: Seat, partition: int, think: Think) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(ways.WAYS, PLAIN, way)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        agents.rewrites(seat(), Case(PLAIN, 2, rewrites=1), lambda _: None)


REWRITTEN = [
    Rewrite(0, True, 4.0, [1.0, 2.0, 1.0], Counter({"ValidationException": 2})),
    Rewrite(1, True, 1.0, [1.0]),
    Rewrite(0, False, 9.0, [1.0] * 6, Counter({"CommitFailedException": 6})),
]
APPENDED = [Appended([7, 8], Counter(), [0.5, 3.0]), Appended([9], Counter({"CommitFailedException": 1}), [1.0])]


def test_work_is_wasted_that_came_to_no_commit() -> None:
    found = sides.record(Case(TOWER, 4), REWRITTEN, APPENDED, 12.0)
    assert (found["due"], found["failed"], found["attempts"]) == (3, 1, 10)
    assert found["thought_s"] == 11.0
    assert found["wasted"] == pytest.approx(9 / 11)
    assert (found["done_p50_s"], found["done_max_s"]) == (1.0, 4.0)
    assert (found["appended_rows"], found["append_tries"], found["appends_failed"]) == (3, 4, 1)
    assert (found["append_p50_s"], found["append_max_s"]) == (1.0, 3.0)
    assert found["failures"] == {"ValidationException": 2, "CommitFailedException": 6}


SEEDS = {1: 0, 2: 1}
WHOLE = [(1, 1), (2, 1), (7, 0), (8, 3), (9, 0)]
WRONG = [
    ("all there", WHOLE, 0),
    ("an append was undone", WHOLE[:-1], 1),
    ("a row is there twice", [*WHOLE, (8, 3)], 1),
    ("a row that nobody wrote", [*WHOLE, (5, 0)], 1),
    ("a rewrite was undone", [(1, 0), *WHOLE[1:]], 1),
    ("a rewrite that failed has landed", [(1, 2), *WHOLE[1:]], 1),
]


@pytest.mark.parametrize(("what", "found", "wrong"), WRONG, ids=[each[0] for each in WRONG])
def test_the_table_is_held_to_what_the_agents_were_answered(
    what: str, found: Sequence[tuple[int, int]], wrong: int
) -> None:
    assert sides.wrong(SEEDS, REWRITTEN, APPENDED, found) == wrong, what


def record(side: str, **more: Any) -> dict[str, Any]:
    return sides.record(Case(side, 4), REWRITTEN[1:2], APPENDED, 1.0) | {"wrong": 0} | more


@pytest.mark.parametrize(
    ("given", "broken"),
    [
        (record(PLAIN, failed=1, wasted=0.8, wrong=3), 0),
        (record(TOWER, failed=1, wasted=0.8), 0),
        (record(TOWER, wrong=1), 1),
        (record(ALONE, failed=1, wasted=0.8), 0),
        (record(INTENTS), 0),
        (record(INTENTS, failed=1), 1),
        (record(BRANCHES, wasted=0.05), 1),
        (record(BRANCHES, wasted=0.049), 0),
    ],
)
def test_intents_and_branches_are_held_to_no_failure_and_little_waste(given: dict[str, Any], broken: int) -> None:
    assert len(report.broken([given])) == broken


def test_a_row_of_the_table_for_each_side_and_number_of_agents() -> None:
    shown = report.figure_table([record(TOWER), record(PLAIN), record(TOWER, failed=1), record(PLAIN, agents=8)])
    assert [row[:4] for row in shown.rows] == [
        ("plain", "4", "none", "1"), ("tower", "4", "none", "2"), ("plain", "8", "none", "1"),
    ]  # fmt: skip
    assert all(len(row) == len(shown.columns) for row in shown.rows)


def test_what_was_measured_of_other_cases_stays(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    old, other, new = record(TOWER, wrong=3), record(PLAIN, agents=8), record(TOWER)
    assert run.with_others(path, [old]) == [old]
    path.write_text(json.dumps({"runs": [old, other]}))
    assert run.with_others(path, [new]) == [other, new]


def test_its_shortest_form_runs_every_side_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    page = run.pages.PAGE.read_bytes()
    assert run.main(["--short"]) == 0, capsys.readouterr().out
    out = capsys.readouterr().out
    assert all(f"{side}, 4 agents" in out for side in work.SIDES)
    assert run.pages.PAGE.read_bytes() == page


def test_every_side_has_its_way() -> None:
    assert tuple(ways.WAYS) == work.SIDES
