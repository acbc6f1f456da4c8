"""The manifest of invariants and the code agree: every id that is cited stands in it, and tests hold each that does."""

from __future__ import annotations

import pytest

from tools.reference.citations import cited, id_of_test, ids
from tools.reference.invariants import cites, held_by, read
from tools.reference.tests import all_tests, node_exists

KNOWN = {invariant.id for invariant in read()}


def test_every_id_that_the_code_cites_is_in_the_manifest_and_every_id_there_is_cited() -> None:
    found = list(cited())
    assert [f"{path}: {id_}" for id_, path in found if id_ not in KNOWN] == []
    assert KNOWN - {id_ for id_, _ in found} == set()


def test_every_invariant_is_held_by_tests_that_exist() -> None:
    for invariant in read():
        assert [name for name in invariant.tests if not node_exists(name)] == [], invariant.id
        holding = held_by(invariant)
        assert holding, f"{invariant.id} has no test"
        empty = [name for name in invariant.tests if not any(test.node.split("::")[0] in name for test in holding)]
        assert empty == [], f"{invariant.id}: no test of these names it"


def test_every_test_that_names_an_invariant_is_listed_with_it() -> None:
    listed = {(invariant.id, test.node) for invariant in read() for test in held_by(invariant)}
    missing = [f"{id_}: {test.module}" for test in all_tests().values() for id_ in cites(test)
               if (id_, test.node) not in listed]  # fmt: skip
    assert missing == [], "add the module to these entries of tools/reference/invariants.toml"


def test_every_invariant_says_what_holds_why_and_whence() -> None:
    for invariant in read():
        assert invariant.id.startswith(invariant.area)
        assert all((invariant.holds, invariant.why, invariant.source)), invariant.id


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("once more (trap K2)", {"K2"}),
        ("traps S1 to S4 are met; and R4, where", {"S1", "S2", "S3", "S4", "R4"}),
        ("keys (traps A3, K1,\n    K2)", {"A3", "K1", "K2"}),
        ("trap S3", {"S3"}),
        ("S3 takes 300 ms (S3)", set()),
        ("the interleaving `K2`, ``K2-with`` and figures/R1.svg", set()),
    ],
)
def test_what_counts_as_a_citation(text: str, found: set[str]) -> None:
    assert ids(text) == found


def test_a_tests_name_may_begin_with_an_id() -> None:
    assert id_of_test("test_k2_a_key") == id_of_test("test_trap_k2_a_key") == "K2"
    assert id_of_test("test_the_k2_key") is None
