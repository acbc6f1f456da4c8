"""The model against Iceberg itself: the listed interleavings, divergences of the past, and random cases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from icetower_client_model.checks import RULES
from icetower_client_model.figures import LISTED
from icetower_client_model.producer import EFFECTS
from icetower_client_model.replay import replay
from verify.differential import generate, run
from verify.differential.compare import difference
from verify.differential.oracle import Oracle
from verify.differential.run import COUNT, SEED, Coverage

CHUNK = 100
SAVED = sorted(run.SAVED.glob("*.json"))


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as oracle:
        yield oracle


@pytest.fixture(scope="module")
def coverage() -> Coverage:
    """What the random cases of this module reached."""
    return Coverage()


@pytest.mark.parametrize("path", SAVED, ids=lambda path: path.stem)
def test_a_divergence_of_the_past_is_mended(path: Path) -> None:
    """Needs no Java: what Iceberg answered was saved."""
    saved = json.loads(path.read_text())
    assert difference(saved["outcome"], replay(saved["case"])) is None


@pytest.mark.java
@pytest.mark.parametrize("path", SAVED, ids=lambda path: path.stem)
def test_iceberg_still_answers_what_was_saved(oracle: Oracle, path: Path) -> None:
    saved = json.loads(path.read_text())
    assert difference(saved["outcome"], oracle.run(saved["case"])) is None


@pytest.mark.java
@pytest.mark.parametrize("name", LISTED)
def test_a_listed_interleaving(oracle: Oracle, name: str) -> None:
    listed = LISTED[name]
    answer = run.judge(name, dict(listed.case), oracle.run(listed.case))
    assert answer.problem is None, run.told(answer)


@pytest.mark.java
@pytest.mark.parametrize("start", range(0, COUNT, CHUNK))
def test_random_cases(oracle: Oracle, coverage: Coverage, start: int) -> None:
    cases = run.random_cases(SEED, start, CHUNK)
    wrong = [answer for answer in run.answers(oracle, cases, coverage) if answer.problem is not None]
    assert not wrong, "\n\n".join(map(run.told, wrong[:3]))


@pytest.mark.java
def test_random_cases_reach_every_rule_and_effect(coverage: Coverage) -> None:
    """Runs after the random cases, whose coverage it looks at."""
    assert coverage.verdicts
    assert coverage.unreached() == []
    assert set(coverage.evaluated) <= set(RULES)
    assert set(coverage.effects) <= set(EFFECTS)


@pytest.mark.java
def test_random_writers_are_refused_about_as_often_as_not(coverage: Coverage) -> None:
    """Appends aside, which nothing can refuse and which set the tables up."""
    counts = {"committed": 0, "refused": 0, "exhausted": 0}
    for (kind, verdict), number in coverage.verdicts.items():
        counts[verdict] += 0 if "append" in kind else number
    assert 0.3 <= counts["refused"] / sum(counts.values()) <= 0.6
    assert counts["exhausted"] >= 10


@pytest.mark.java
def test_the_program_runs_and_reports(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "LISTED", dict(islice(LISTED.items(), 3)))
    assert run.main(["--count", "3", "--json", "--save", str(tmp_path)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["cases"] == 6
    assert set(report["rules"]) == set(RULES)
    assert report["divergences"] == report["unreached"] == []


def test_a_model_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that commits what Iceberg refuses, or that fails, does not pass."""
    case = generate.case(SEED)
    outcome = replay(case)
    assert run.judge("right", case, outcome).problem is None
    monkeypatch.setattr(run, "replay", lambda case, trace: replay(case) | {"main": 99})
    assert run.judge("wrong", case, outcome).problem == f"main: {outcome['main']} != 99"
    monkeypatch.setattr(run, "replay", lambda case, trace: 1 / 0)
    assert "ZeroDivisionError" in str(run.judge("failing", case, outcome).problem)
