"""docs/choosing.md and the planner agree: what the page chooses holds its workload, and what it rejects does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from icetower_simulator.planner import Assessment, Workload, assess, candidates, workload_from
from icetower_simulator.pool import run_one

ROOT = Path(__file__).parent.parent.parent
WORKLOADS = ROOT / "examples" / "workloads"


def rows() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """File, what the page chooses, and what it says does not hold, as the plan names them."""
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    table = page.partition("<!-- choices: begin -->")[2].partition("<!-- choices: end -->")[0]
    found: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []
    for line in table.strip().splitlines()[2:]:
        about, _, chosen, rejected = (cell.strip() for cell in line.strip("|").split("|"))
        (file,) = re.findall(r"`(\w+\.toml)`", about)
        found.append((file, *(tuple(re.findall(r"`(\w+)`", cell)) for cell in (chosen, rejected))))
    return found


def assessed(workload: Workload, name: str) -> Assessment:
    """A pattern at today's load."""
    (candidate,) = [each for each in candidates(workload) if each.name == name]
    return assess(workload, candidate, 1.0, run_one(workload.setup(1.0, **candidate.overrides), 1))


@pytest.mark.parametrize(("file", "chosen", "rejected"), rows(), ids=[row[0] for row in rows()])
def test_what_the_page_chooses_holds_the_workload(
    file: str, chosen: tuple[str, ...], rejected: tuple[str, ...]
) -> None:
    workload = workload_from((WORKLOADS / file).read_text(encoding="utf-8"), file)
    assert chosen
    assert {name: assessed(workload, name).holds(workload) for name in chosen} == dict.fromkeys(chosen, True)
    assert {name: assessed(workload, name).holds(workload) for name in rejected} == dict.fromkeys(rejected, False)


def test_every_way_of_the_page_is_in_its_table() -> None:
    assert {name for _, chosen, _ in rows() for name in chosen} >= {
        "appends", "wal", "collector", "isolated", "slots", "intents",
    }  # fmt: skip
