"""The index finds all that may meet, whatever was added and removed before."""

from __future__ import annotations

import random

import pytest

from icetower.contracts.boxes import HIGHEST, LOWEST, Box, Spans, before, span
from icetower.intents.occupied import CHUNK, Occupied, Stretches
from icetower.intents.regions import meet
from tests.intents.world import BUCKET, DAY, numbers


@pytest.mark.parametrize("seed", range(20))
def test_stretches_are_found_by_what_they_overlap(seed: int) -> None:
    dice = random.Random(seed)
    stretches, naive = Stretches(), dict[str, tuple[int, int]]()
    for number in range(4 * CHUNK):
        if naive and dice.random() < 0.3:
            name = dice.choice(list(naive))
            start, end = naive.pop(name)
            stretches.remove((before(start), before(end)), name)
        start = dice.randrange(1000)
        end = start + dice.choice((1, 1, 1, 5, 400))
        naive[str(number)] = start, end
        stretches.add((before(start), before(end)), str(number))
        if number % 16 == 0:
            low, high = sorted((dice.randrange(1000), dice.randrange(1000) + 1))
            if low == high:
                continue
            expected = {each for each, (first, last) in naive.items() if first < high and last > low}
            assert set(stretches.overlapping((before(low), before(high)))) == expected
    assert set(stretches) == naive.keys()
    assert len(stretches) == len(naive)
    for name, (start, end) in naive.items():
        stretches.remove((before(start), before(end)), name)
    assert not len(stretches)
    assert not list(stretches.overlapping((LOWEST, HIGHEST)))


def _box(dice: random.Random) -> Box:
    box: dict[object, Spans] = {}
    if dice.random() < 0.8:
        box[DAY] = numbers(dice.sample(range(40), dice.choice((1, 2, 20))))
    if dice.random() < 0.4:
        box[BUCKET] = numbers([dice.randrange(4)])
    if dice.random() < 0.1:
        box[DAY] = Spans((), null=True)
    if dice.random() < 0.1:
        box[DAY] = span(before(dice.randrange(40)), HIGHEST)
    return box


@pytest.mark.parametrize("seed", range(30))
def test_nothing_that_meets_is_missed(seed: int) -> None:
    dice = random.Random(seed)
    occupied, naive = Occupied(), dict[str, list[Box]]()
    for number in range(120):
        if naive and dice.random() < 0.4:
            name = dice.choice(list(naive))
            del naive[name]
            occupied.remove(name)
        naive[str(number)] = [_box(dice) for _ in range(dice.choice((1, 1, 3)))]
        occupied.add(str(number), naive[str(number)])
        wanted = [_box(dice)]
        assert {name for name, boxes in naive.items() if meet(boxes, wanted)} <= occupied.near(wanted)
    assert len(occupied) == len(naive)
    for name in naive:
        assert name in occupied
        occupied.remove(name)
    occupied.remove("never there")
    assert not occupied.near([{}])


def test_ten_thousand_partitions_are_told_apart() -> None:
    """By day and bucket, as agents declare them: near each is nobody but those of its own day, or of its bucket."""
    occupied = Occupied()
    for day in range(625):
        for bucket in range(16):
            occupied.add(f"{day}/{bucket}", [{DAY: numbers([day]), BUCKET: numbers([bucket])}])
    assert len(occupied) == 10_000
    near = occupied.near([{DAY: numbers([300]), BUCKET: numbers([7])}])
    assert "300/7" in near
    assert len(near) < 700
