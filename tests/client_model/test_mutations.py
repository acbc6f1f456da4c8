"""The differential test notices when the model is wrong: every mutation of every rule is caught."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from icetower.table.head import HeadState
from icetower_client_model import checks, history
from icetower_client_model.checks import RULES
from icetower_client_model.producer import EFFECTS
from icetower_client_model.replay import replay
from verify.differential import mutations, run
from verify.differential.compare import difference
from verify.differential.mutations import HAND_MADE, MUTATIONS, Bench, Mutation
from verify.differential.oracle import Oracle
from verify.mutants import Stale

CASES = sorted(HAND_MADE.glob("*.json"))


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as oracle:
        yield oracle


@pytest.fixture(scope="module")
def bench(oracle: Oracle) -> Bench:
    """All cases of the differential test, with the model's own answers."""
    return Bench(oracle, mutations.all_cases(run.SEED, run.COUNT))


@pytest.mark.sharp
@pytest.mark.java
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation.rule}: {mutation.name}")
def test_a_mutation_is_caught(bench: Bench, mutation: Mutation) -> None:
    assert bench.attempt(mutation).case is not None


def test_every_rule_and_effect_has_mutations() -> None:
    """Two at least where there are two ways to get it wrong: to drop it, and to weaken or overdo it."""
    count = Counter(mutation.rule for mutation in MUTATIONS)
    assert set(count) == {*RULES, *EFFECTS}
    assert {rule for rule in count if count[rule] < 2} == {"merge-cache-hit"}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_hand_made_case(path: Path) -> None:
    """Needs no Java: what Iceberg answered was saved."""
    saved = json.loads(path.read_text())
    assert saved["why"]
    assert difference(saved["outcome"], replay(saved["case"])) is None


@pytest.mark.java
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_iceberg_still_answers_a_hand_made_case_so(oracle: Oracle, path: Path) -> None:
    saved = json.loads(path.read_text())
    assert difference(saved["outcome"], oracle.run(saved["case"])) is None


# ── The machinery ────────────────────────────────────────────────────────────────────────────────────────────────────

OFF = Mutation("ancestry", "checks.start_is_ancestor", "off", "if start is None or parent is None:", "if True:")
SAME = Mutation("ancestry", "checks.start_is_ancestor", "same", "return Clear(1)", "return Clear(0)")


@pytest.mark.java
def test_a_mutation_that_nobody_can_see_survives_and_is_reported(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutations, "MUTATIONS", (OFF, SAME))
    assert mutations.main(["--count", "0", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["survivors"] == ["same"]
    assert [each["caught_by"] for each in report["mutations"]] == ["B1-row-delta", None]
    assert mutations.main(["--count", "0", "--rule", "C1"]) == 1, "nothing was tried"


def test_the_mutant_is_seen_by_all_who_hold_the_function() -> None:
    """Rules stand in tuples, and functions are imported by name: both have the mutant."""
    held = dict(checks.RULES_OF[checks.Kind.ROW_DELTA])["ancestry"]
    assert held is checks.start_is_ancestor
    head = HeadState("v1.json", {"snapshots": [{"snapshot-id": 7}], "current-snapshot-id": 7})
    with Mutation("history", "history.branch_head", "none", "found in (None, -1)", "True").applied():
        assert history.branch_head(head, "main") is None
    assert history.branch_head(head, "main") == head.snapshots[7]


def test_the_list_is_read_as_written() -> None:
    lines = ["# nothing", "C1 checks.one", "  first", "  - a", "  + b", "", "  second", "  - c", "  +   d", "      e"]
    assert mutations.parsed(lines) == (
        Mutation("C1", "checks.one", "first", "a", "b"),
        Mutation("C1", "checks.one", "second", "c", "  d\n    e"),
    )


@pytest.mark.parametrize(
    ("mutation", "said"),
    [
        (Mutation("C1", "checks.none", "x", "a", "b"), "icetower_client_model has no function checks.none"),
        (Mutation("C1", "checks.no_added_data", "x", "no such text", ""), "holds 'no such text' 0 times, not once"),
        (Mutation("C1", "checks.no_added_data", "x", "attempt", ""), "times, not once"),
    ],
)
def test_a_mutation_that_no_longer_fits_says_so(mutation: Mutation, said: str) -> None:
    with pytest.raises(Stale, match=said), mutation.applied():
        pass


def test_a_list_that_is_malformed_says_so() -> None:
    with pytest.raises(Stale, match="belongs to nothing"):
        mutations.parsed(["  - no rule above it"])
