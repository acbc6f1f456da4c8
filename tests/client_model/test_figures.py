"""Every figure and every interleaving whose outcome is known: on the model, and on Iceberg itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from icetower_client_model import cases
from icetower_client_model.figures import FIGURES, LISTED
from icetower_client_model.interleavings import COMMITTED, Listed
from icetower_client_model.picture import Figure
from icetower_client_model.replay import Replay
from verify.differential.compare import difference, live, message
from verify.differential.oracle import Oracle

ASKED_FOR = {"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "undelete"}
FIGURE_ROWS = ("Fig1", "Fig2", "Fig3", "Fig4", "Fig5", "Fig6", "Fig7", "Fig8", "Fig9", "Fig10", "Fig11", "Fig12")
ROWS = (
    "U1",
    "U2",
    "U3",
    "D1",
    "D5",
    "D6",
    "D7",
    "K1",
    "K2",
    "K3",
    "K4",
    "P1",
    "P2",
    "W1",
    "W2",
    "R1",
    "M1",
    "B1",
    "B2",
)
WORDLESS = "NullPointerException"
"""Its text is the JVM's, not Iceberg's."""
ALL: tuple[Listed | Figure, ...] = (
    *LISTED.values(),
    *(FIGURES[name] for name in FIGURES if f"Fig{name}" not in LISTED),
)


def named(item: Listed | Figure) -> str:
    return item.name


def said(verdict: Mapping[str, Any]) -> str:
    """What became of a writer, as `expected` has it."""
    if verdict["verdict"] != "refused":
        return verdict["verdict"]
    return WORDLESS if verdict["error"] == WORDLESS else message(verdict["message"])


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as running:
        yield running


def test_every_figure_of_vanlightly_has_its_case() -> None:
    assert set(FIGURES) >= ASKED_FOR


def test_every_row_of_the_table_is_listed() -> None:
    assert {item.row for item in LISTED.values()} == {*FIGURE_ROWS, *ROWS, "fact"}
    assert all(name == item.name == item.case["name"] for name, item in LISTED.items())


@pytest.mark.parametrize("item", ALL, ids=named)
def test_the_model_says_what_is_listed(item: Listed | Figure) -> None:
    run = Replay(cases.parse(item.case))
    outcome = run.run()
    assert {int(writer): said(verdict) for writer, verdict in outcome["verdicts"].items()} == {
        writer: message(text) for writer, text in item.expected.items()
    }
    assert [conflict.rule for conflict in run.conflicts.values()] == ([item.rule] if item.rule else [])
    assert outcome["failures"] == []


@pytest.mark.java
@pytest.mark.parametrize("item", ALL, ids=named)
def test_iceberg_says_what_is_listed(item: Listed | Figure, oracle: Oracle) -> None:
    outcome = oracle.run(item.case)
    assert {int(writer): said(verdict) for writer, verdict in outcome["verdicts"].items()} == {
        writer: message(text) for writer, text in item.expected.items()
    }
    ours = Replay(cases.parse(item.case)).run()
    for verdict in (*outcome["verdicts"].values(), *ours["verdicts"].values()):
        if verdict.get("error") == WORDLESS:
            del verdict["message"]
    assert difference(outcome, ours) is None


@pytest.mark.parametrize("figure", FIGURES.values(), ids=named)
def test_a_figure_tells_of_its_own_people_and_files(figure: Figure) -> None:
    assert set(figure.people) == set(figure.expected)
    assert set(figure.rows) | set(figure.strikes) == set(figure.case["files"])
    assert all(who in figure.rows[name] for name, who in figure.strikes.values())
    assert all(1 <= len(step) <= 300 for step in figure.story)
    assert len(figure.story) >= 2
    assert (figure.rule != "") == (set(figure.expected.values()) != {COMMITTED})


@pytest.mark.parametrize(
    ("name", "data", "deletes"),
    [
        ("2", ["data-3", "data-4"], []),
        ("5", ["data-2"], []),
        ("8", ["data-2", "data-3"], []),
        ("9", ["data-1", "data-3"], []),
        ("11", ["data-2"], []),
        ("12", ["data-2", "data-3"], ["delete-1"]),
        ("undelete", ["data-1", "data-2"], ["delete-1", "delete-2"]),
    ],
)
def test_what_a_figure_leaves_behind(name: str, data: list[str], deletes: list[str]) -> None:
    outcome = Replay(cases.parse(FIGURES[name].case)).run()
    assert live(outcome) == tuple([f"mem://t/data/{each}.parquet" for each in names] for names in (data, deletes))
