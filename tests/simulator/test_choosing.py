"""docs/choosing.md and the planner agree: what the page chooses holds its workload, and what it rejects does not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from icetower_simulator.choosing import QUESTIONS, choose
from icetower_simulator.planner import (
    Assessment,
    Workload,
    assess,
    candidates,
    plan,
    workload_from,
    workload_of,
)
from icetower_simulator.pool import run_one

ROOT = Path(__file__).parent.parent.parent
WORKLOADS = ROOT / "examples" / "workloads"


@dataclass(frozen=True)
class Row:
    """A workload; which question it answers with yes (0: none), what the page chooses in words and as the plan names
    it, and what it says does not hold."""

    file: str
    question: int
    words: str
    chosen: tuple[str, ...]
    rejected: tuple[str, ...]

    @property
    def workload(self) -> Workload:
        return workload_from((WORKLOADS / self.file).read_text(encoding="utf-8"), self.file)


def page() -> str:
    return (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")


def rows() -> list[Row]:
    table = page().partition("<!-- choices: begin -->")[2].partition("<!-- choices: end -->")[0]
    found: list[Row] = []
    for line in table.strip().splitlines()[2:]:
        about, number, words, chosen, rejected = (cell.strip() for cell in line.strip("|").split("|"))
        (file,) = re.findall(r"`(\w+\.toml)`", about)
        names = (tuple(re.findall(r"`(\w+)`", cell)) for cell in (chosen, rejected))
        found.append(Row(file, 0 if number == "none" else int(number), words, *names))
    return found


def questions() -> list[str]:
    """The page's questions, in order."""
    table = page().partition("| question |")[2].split("\n\n")[0]
    return [line.strip("|").split("|")[0].strip() for line in table.splitlines()[2:]]


def assessed(workload: Workload, name: str) -> Assessment:
    """A pattern at today's load."""
    (candidate,) = [each for each in candidates(workload) if each.name == name]
    return assess(workload, candidate, 1.0, run_one(workload.setup(1.0, **candidate.overrides), 1))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.file)
def test_what_the_page_chooses_holds_the_workload(row: Row) -> None:
    workload = row.workload
    assert row.chosen
    assert {name: assessed(workload, name).holds(workload) for name in row.chosen} == dict.fromkeys(row.chosen, True)
    rejected = {name: assessed(workload, name).holds(workload) for name in row.rejected}
    assert rejected == dict.fromkeys(row.rejected, False)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.file)
def test_the_planner_chooses_what_the_page_chooses(row: Row) -> None:
    found = choose(row.workload)
    assert (found.question, found.patterns) == (row.question, row.chosen)
    assert ", or ".join(found.ways) == row.words


def test_the_planner_asks_the_questions_of_the_page_in_their_order() -> None:
    assert [words for words, _, _ in QUESTIONS] == questions()
    assert {row.question for row in rows()} == {*range(len(QUESTIONS) + 1)}  # each has a workload, and so has none


@pytest.mark.parametrize(
    ("changes", "question", "ways"),
    [
        ({}, 0, ("a contract",)),
        ({"conflicts": 0.2}, 5, ("an intent",)),
        ({"conflicts": 0.2, "checked_first": True}, 5, ("a branch", "an intent")),
        ({"appends": 1.0, "checked_first": True}, 5, ("a branch",)),
        ({"own_partitions": True, "checked_first": True}, 5, ("a branch",)),
        ({"own_partitions": True, "by_the_clock": True}, 3, ("a contract with its own partitions",)),
        ({"by_the_clock": True}, 4, ("a slot",)),
        ({"conflicts": 1.0, "writes_per_hour": 3600.0}, 2, ("the collector", "the write-ahead log")),
    ],
)
def test_the_first_question_that_is_answered_with_yes_decides(
    changes: dict[str, Any], question: int, ways: tuple[str, ...]
) -> None:
    found = choose(workload_of({"appends": 0.0, "partitions": 4, "work_s": 10.0, **changes}, "test"))
    assert (found.question, found.ways) == (question, ways)


def test_the_plan_says_what_is_chosen_and_whether_it_holds() -> None:
    row = next(each for each in rows() if each.file == "rewriters.toml")
    done = plan(row.workload)
    said = choose(row.workload)
    assert said.as_json(done) == {"question": 5, "ways": ["an intent"], "patterns": {"intents": True}}
    assert said.text(done).startswith("docs/choosing.md chooses an intent (question 5: Does it think for long")
    assert said.text(done).endswith("intents holds this load")


def test_every_way_of_the_page_is_in_its_table() -> None:
    assert {name for row in rows() for name in row.chosen} >= {
        "appends", "wal", "collector", "isolated", "slots", "intents",
    }  # fmt: skip
    assert {"a slot", "an intent", "a branch"} <= {row.words for row in rows()}
