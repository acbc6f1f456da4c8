"""What attempts come to, held against the definitions as the export's queries have them, written naively."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.ledger.attempts import Attempt, Outcome
from icetower.ledger.tallies import HOT_KEPT, RELATIVE_ERROR, Counted, Sketch, Tally, bucket_of, is_commit, summed

AT_MS = 1_700_000_000_000

attempts = st.builds(
    Attempt,
    principal=st.just("p"),
    table=st.just("ns.t"),
    operation=st.sampled_from(["append", "read"]),
    outcome=st.sampled_from(list(Outcome)),
    latency_ms=st.floats(0, 1e6),
    partitions=st.lists(st.sampled_from([f"day={n}" for n in range(4)]), max_size=3, unique=True).map(tuple),
    decided_ms=st.none() | st.integers(AT_MS - 10**7, AT_MS + 1_000),
    group_size=st.none() | st.integers(1, 50),
    metadata_bytes=st.none() | st.integers(0, 10**9),
    manifests=st.none() | st.integers(0, 4).map(float),
)


def tally_of(some: list[tuple[Attempt, bool]]) -> Tally:
    tally = Tally()
    for attempt, first in some:
        if is_commit(attempt):
            tally.add(Counted.of(attempt, AT_MS, first=first))
    return tally


def near(found: float | None, expected: float | None) -> bool:
    if found is None or expected is None:
        return found is expected
    return math.isclose(found, expected, rel_tol=RELATIVE_ERROR, abs_tol=0.002)


def percentile(values: list[float], share: float) -> float | None:
    """As Spark's `percentile`: between the two values that are next to the place."""
    if not values:
        return None
    ordered, place = sorted(max(value, 0.0) for value in values), share * (len(values) - 1)
    lower, upper = ordered[math.floor(place)], ordered[math.ceil(place)]
    return lower + (upper - lower) * (place - math.floor(place))


@given(st.lists(st.tuples(attempts, st.booleans()), max_size=60))
def test_a_tally_is_what_the_definitions_say(some: list[tuple[Attempt, bool]]) -> None:
    counted = [each for each in some if each[0].outcome is not Outcome.DONE and each[0].operation != "read"]
    landed = [a for a, _ in counted if a.outcome in (Outcome.DIRECT, Outcome.REBASED, Outcome.APPENDED)]
    again = [a for a, _ in counted if a.outcome in (Outcome.CONFLICT, Outcome.UNKNOWN, Outcome.REPLAYED)]
    row = tally_of(some).to_row()
    first = [a for a, is_first in counted if is_first]
    assert (row["attempts"], row["landed"], row["retries"]) == (len(counted), len(landed), len(again))
    for name in ("refused", "unknown", "replayed", "conflicts"):
        assert row[name] == sum(a.outcome.value == name.removesuffix("s") for a, _ in counted)
    assert (row["first_tries"], row["first_try_landed"]) == (len(first), sum(a in landed for a in first))
    assert row["commit_success_rate"] == (len(landed) / len(counted) if counted else None)
    assert row["retry_rate"] == (len(again) / len(landed) if landed else None)
    versions = [1 / a.group_size for a in landed if a.group_size]
    assert row["metadata_versions"] == (pytest.approx(sum(versions)) if versions else None)
    sizes = [a.metadata_bytes for a in landed if a.metadata_bytes is not None]
    assert row["metadata_bytes"] == (sum(sizes) if sizes else None)
    took = [a.latency_ms for a in landed]
    assert row["latency_max_ms"] == (max(took) if took else None)
    ends = [float(AT_MS - a.decided_ms) for a in landed if a.decided_ms is not None]
    for name, values in (("latency", took), ("end_to_end", ends)):
        for share in (50, 99):
            assert near(row[f"{name}_p{share}_ms"], percentile(values, share / 100))
    names = [name for a, _ in counted for name in a.partitions]
    assert {each["partition"]: each["attempts"] for each in row["hot_partitions"]} == {n: names.count(n) for n in names}


@given(st.lists(st.tuples(attempts, st.booleans()), max_size=40), st.integers(0, 40))
def test_tallies_are_kept_and_added_without_loss(some: list[tuple[Attempt, bool]], cut: int) -> None:
    whole = tally_of(some)
    assert Tally.from_json(whole.to_json()).to_row() == whole.to_row()
    parts = summed([Tally.from_json(tally_of(some[:cut]).to_json()), tally_of(some[cut:])])
    shown, expected = parts.to_row(), whole.to_row()
    assert shown.pop("hot_partitions") == expected.pop("hot_partitions")
    assert shown == pytest.approx(expected)
    parts.merge(tally_of(some[cut:]), sign=-1)
    assert parts.latency.buckets == tally_of(some[:cut]).latency.buckets


@pytest.mark.parametrize("power", [-3, 0, 1, 10, 20])
def test_a_bucket_ends_at_each_power_of_two(power: int) -> None:
    sketch = Sketch()
    for ms in (2.0**power, math.nextafter(2.0**power, math.inf)):
        sketch.add(ms)
    assert sketch.at_most(power) >= 1
    assert bucket_of(2.0**power) == 32 * power
    sketch.add(2.0**power * 1.001)
    assert sketch.at_most(power) < sketch.count


def test_hot_partitions_are_found_among_thousands() -> None:
    """One in ten goes to the same partition, and the others to thousands: it is not pushed out."""
    tally = Tally()
    for number in range(5_000):
        name = "hot" if number % 10 == 0 else f"cold-{number}"
        tally.add(Counted.of(_of(name, Outcome.CONFLICT if number % 100 == 0 else Outcome.DIRECT), AT_MS, first=True))
    assert len(tally.hot) == HOT_KEPT
    shown: dict[str, Any] = tally.hottest()[0]
    assert (shown["partition"], shown["attempts"], shown["conflicts"]) == ("hot", 500, 50)


def _of(partition: str, outcome: Outcome) -> Attempt:
    return Attempt("p", "ns.t", "append", outcome, partitions=(partition,))


def test_a_later_version_s_fields_are_left_out_and_a_text_is_forgotten() -> None:
    tally = Tally.from_json('{"attempts":2,"later":[1],"hot":{"customer=p-4711":[1,1],"day=1":[1,0]}}')
    assert (tally.attempts, tally.forget("p-4711"), tally.forget("p-4711")) == (2, True, False)
    assert list(tally.hot) == ["day=1"]
