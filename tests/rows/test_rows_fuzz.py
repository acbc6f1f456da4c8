"""A small part of `python -m verify.torture.rows_fuzz`, and whether it would notice."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from icetower.errors import UpstreamFailed
from icetower.rows.schemas import RowSchema
from verify.torture.row_bodies import BIG_EVERY, KINDS, TABLE, Body, body
from verify.torture.rows_fuzz import MIB, RSS_MAX_BYTES, SEED, look, run, some

COUNT = 1_200


def test_hostile_bodies_are_refused_as_their_senders_fault() -> None:
    found = some(range(COUNT), SEED)
    assert found.faults == {}
    assert found.inputs == COUNT
    by_kind = Counter(outcome.split()[0] for outcome in found.outcomes.elements())
    assert by_kind == dict.fromkeys(KINDS, COUNT // len(KINDS))
    for kind in KINDS:  # both ends: what gets through, and what the last check refuses
        assert found.outcomes[f"{kind} taken"] > 10
        assert found.outcomes[f"{kind} rows.values"] > 10


def test_the_same_number_is_the_same_body_and_some_are_large() -> None:
    assert [body(number, 1) for number in range(30)] == [body(number, 1) for number in range(30)]
    assert body(3, 1) != body(3, 2)
    assert all(len(body(number, 1).data) > 10_000 for number in range(BIG_EVERY, BIG_EVERY + len(KINDS)))
    assert {column["name"] for column in TABLE["schemas"][0]["fields"]} >= {"wide", "inner", "pairs", "free"}


@pytest.mark.parametrize(
    ("raised", "told"),
    [(ValueError("no refusal"), "ValueError: no refusal"), (UpstreamFailed("no storage"), "Fault: it is answered 502")],
)
def test_what_is_no_refusal_is_a_fault(monkeypatch: pytest.MonkeyPatch, raised: Exception, told: str) -> None:
    def fails(*_: object) -> None:
        raise raised

    monkeypatch.setattr("verify.torture.rows_fuzz.decoded", fails)
    found = some(range(30), SEED)
    assert found.faults
    assert all(fault.startswith(told) for fault in found.faults.values())


def dies_of_16(given: Body, schema: RowSchema) -> str:
    """For a process of its own."""
    if given == body(16, SEED):
        os.abort()
    return look(given, schema)


def keeps_memory(given: Body, schema: RowSchema) -> str:
    """For a process of its own."""
    if given == body(5, SEED):
        _ = bytearray(b"x") * (RSS_MAX_BYTES + MIB)
    return look(given, schema)


@pytest.mark.full
def test_a_process_for_them_alone_stays_within_its_memory() -> None:
    assert run(range(COUNT), SEED, 1, tell=lambda _: None).faults == {}


@pytest.mark.full
def test_the_memory_of_the_process_that_started_it_is_not_counted() -> None:
    ours_bytes = RSS_MAX_BYTES // 2
    held = bytearray(b"x") * ours_bytes
    found = run(range(10), SEED, 1, tell=lambda _: None)
    del held
    assert found.rss_bytes < ours_bytes


@pytest.mark.full
def test_a_process_over_its_memory_is_a_fault() -> None:
    found = run(range(10), SEED, 1, look=keeps_memory, tell=lambda _: None)
    assert list(found.faults) == [9]
    assert "MiB until this body" in found.faults[9]


@pytest.mark.full
def test_a_body_that_ends_the_process_is_named_and_the_next_ones_are_looked_at() -> None:
    found = run(range(90), SEED, 2, look=dies_of_16, tell=lambda _: None)
    assert list(found.faults) == [16]
    assert "died of it, with status -6" in found.faults[16]
    assert found.inputs == 90
