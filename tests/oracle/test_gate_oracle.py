"""The gate against an oracle that knows every row: no commit passes that touches a row which is not its to touch.

`make gate-oracle COUNT=100000` runs more cases; a case is replayed by ``python -m verify.oracle.run --case N``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from icetower.contracts.document import load
from verify.oracle import generate
from verify.oracle.cases import Case, Extent, Region
from verify.oracle.judge import Reason, judge
from verify.oracle.mutations import CASES_MAX, CAUGHT, MUTATIONS, Caught, hunt, hunt_again
from verify.oracle.run import Report, main, smallest, verdicts
from verify.oracle.wording import described
from verify.oracle.world import Gate, contract_of

COUNT = 1_500
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def report() -> Report:
    found = Report()
    for verdict in verdicts(0, COUNT):
        found.add(verdict)
    return found


def test_no_commit_passes_that_touches_a_row_which_is_not_its_to_touch(report: Report) -> None:
    assert report.cases == COUNT
    assert not report.wrong, "\n".join(
        f"{described(each.case)}\n  {each.wrong}" for each in map(smallest, report.wrong[:1])
    )


def test_the_gate_passes_and_refuses_commits_of_every_kind(report: Report) -> None:
    """A gate that refuses everything would never be wrong."""
    assert report.unmet() == []
    kinds = {kind for kind, _ in report.kinds} - {"nothing"}
    for kind in kinds:
        for verdict in ("passed", "refused"):
            assert report.kinds[kind, verdict], f"{kind} {verdict}"
    honest = {verdict: number for (is_honest, verdict), number in report.verdicts.items() if is_honest}
    assert honest["passed"] > honest["refused"] > honest["false refusal"]


def test_false_refusals_are_explained_on_their_page(report: Report) -> None:
    page = (ROOT / "docs" / "contracts-gate.md").read_text()
    for reason in Reason:
        assert f"| {reason} |" in page, reason
    assert {reason for _, reason in report.reasons} <= {*Reason}


KNOWN: dict[str, int] = json.loads(CAUGHT.read_text())
"""Mutations, each with the case that caught it."""
NAMED = {mutation.name: mutation for mutation in MUTATIONS}


@pytest.mark.sharp
@pytest.mark.parametrize("name", KNOWN)
def test_a_gate_that_looks_away_is_caught(name: str) -> None:
    caught: Caught = hunt_again(NAMED[name])
    assert caught.case is not None, f"{name}: survived {CASES_MAX} cases"


def test_a_case_is_its_number_whatever_the_process() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", _SPELLED],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert len(said.pop().splitlines()) == 40


_SPELLED = """
import dataclasses, json
from verify.oracle import generate

def plain(value):
    return sorted(value) if isinstance(value, frozenset) else repr(value)

for number in range(40):
    print(json.dumps(dataclasses.asdict(generate.case(number)), default=plain))
"""
"""Cases as texts that tell sets in one order, whatever the process hashes by."""


def test_what_is_wrong_is_shrunk_and_told() -> None:
    mutation = NAMED["files that come are not looked at"]
    caught = hunt(mutation, KNOWN[mutation.name])
    assert caught.case is not None
    with mutation.applied(), Gate() as gate:
        verdict = judge(gate, generate.case(caught.case))
        least = smallest(verdict)
    assert (least.wrong or "").startswith("a false pass")
    assert len(described(least.case)) < len(described(verdict.case))


def test_one_case_is_told_with_both_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--case", "3"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("case 3: ")
    assert "oracle: " in said
    assert "gate: " in said


def test_a_run_reports_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "20", "--seed", "7", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["first"], said["cases"], said["wrong"]) == (7, 20, [])
    assert sum(number for verdict in said["verdicts"].values() for number in verdict.values()) == 20


# ------------------------------------------------------------------------------------------- the contracts of the cases


def _written(case: Case) -> str:
    """The case's contract as a person would write it (JSON is YAML)."""

    def extent(given: Extent) -> Any:
        bounds = {"from": given.start, "to": given.end}
        return list(given.values) if given.values is not None else {k: v for k, v in bounds.items() if v is not None}

    def regions(some: tuple[Region, ...]) -> list[dict[str, Any]]:
        return [{str(term): extent(given) for term, given in region} for region in some]

    tables = [
        {
            "table": "ns.t",
            "operations": sorted(rule.operations),
            "write_location": "table",
            "prove_partitions": rule.prove,
            **({} if rule.regions == () else {"partitions": "all" if rule.regions is None else regions(rule.regions)}),
            **({"except": regions(rule.excluded)} if rule.excluded else {}),
        }
        for rule in case.rules
    ]
    return json.dumps({"version": 1, "agent": "agent", "tables": tables}, ensure_ascii=False)


def _contracts() -> Iterator[Case]:
    for number in range(150):
        case = generate.case(number)
        extents = (given for rule in case.rules for g in (*(rule.regions or ()), *rule.excluded) for _, given in g)
        # A range that holds nothing is refused by whoever reads contracts; none is written here.
        if not any(given.start is not None and given.end is not None for given in extents):
            yield case


def test_the_contracts_are_what_the_tower_reads_of_their_text() -> None:
    cases = list(_contracts())
    assert len(cases) > 40
    for case in cases:
        assert load(_written(case), source="case").tables == contract_of(case.rules).tables
