"""The generator, its normals, and the heap."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower_simulator.compiled import compiled
from icetower_simulator.heap import ENTRY, pop, push, put_off
from icetower_simulator.randoms import STATE, chosen, draw, generator, normal, uniform

MASK = (1 << 64) - 1


def states(seed: int, stream: int = 0) -> np.ndarray:
    found = np.zeros(1, STATE)
    found[0] = generator(seed, stream)
    return found


@compiled
def draws(state: np.ndarray, count: int) -> np.ndarray:
    found = np.empty(count, np.uint64)
    for i in range(count):
        found[i] = draw(state[0])
    return found


@compiled
def normals(state: np.ndarray, count: int) -> np.ndarray:
    found = np.empty(count)
    for i in range(count):
        found[i] = normal(state[0])
    return found


@compiled
def uniforms(state: np.ndarray, count: int) -> np.ndarray:
    found = np.empty(count)
    for i in range(count):
        found[i] = uniform(state[0])
    return found


@compiled
def choices(shares: np.ndarray, state: np.ndarray, count: int) -> np.ndarray:
    found = np.empty(count, np.int64)
    for i in range(count):
        found[i] = chosen(shares, state[0])
    return found


def test_the_generator_is_xoshiro256_plus_plus() -> None:
    """Against the published algorithm, in Python's own integers."""
    words = [int(word) for word in states(7)[0].item()]

    def rotated(value: int, by: int) -> int:
        return ((value << by) | (value >> (64 - by))) & MASK

    expected: list[int] = []
    for _ in range(1000):
        expected.append((rotated((words[0] + words[3]) & MASK, 23) + words[0]) & MASK)
        shifted = (words[1] << 17) & MASK
        words[2] ^= words[0]
        words[3] ^= words[1]
        words[1] ^= words[2]
        words[0] ^= words[3]
        words[2] ^= shifted
        words[3] = rotated(words[3], 45)
    assert [int(word) for word in draws(states(7), 1000)] == expected


def test_seeds_and_streams_differ() -> None:
    first = {tuple(draws(states(seed, stream), 4).tolist()) for seed in range(20) for stream in range(5)}
    assert len(first) == 100


def test_normals_are_normal() -> None:
    """Kolmogorov and Smirnov's distance at 1 in 1,000,000, the tails beyond the ziggurat's edge, and four moments."""
    count = 2_000_000
    values = np.sort(normals(states(1), count))
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in values[::100].tolist()])
    assert np.abs(below - np.arange(0, count, 100) / count).max() < 2.7 / math.sqrt(count)
    for edge in (2.0, 3.0, 3.7, 4.2):
        expected = count * math.erfc(edge / math.sqrt(2))
        assert abs(float((np.abs(values) > edge).sum()) - expected) < 5 * math.sqrt(expected)
    for power, moment, variance in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        assert abs(float((values**power).mean()) - moment) < 5 * math.sqrt(variance / count)


def test_uniforms_lie_in_the_unit_interval() -> None:
    values = uniforms(states(3), 1_000_000)
    assert values.min() >= 0
    assert values.max() < 1
    counts = np.histogram(values, bins=100, range=(0, 1))[0]
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 99 + 6 * math.sqrt(2 * 99)


@pytest.mark.parametrize("shares", [[1.0], [0.5, 1.0], [0.6, 0.9, 1.0], [0.0, 1.0], [0.25, 0.25, 1.0]])
def test_places_are_chosen_by_their_shares(shares: list[float]) -> None:
    found = choices(np.array(shares), states(5), 100_000)
    counts = np.bincount(found, minlength=len(shares))
    for place, share in enumerate(np.diff(shares, prepend=0.0).tolist()):
        assert abs(counts[place] - 100_000 * share) <= 5 * math.sqrt(100_000 * share * (1 - share))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.integers(0, 5)),
            st.tuples(st.just("pop"), st.just(0)),
            st.tuples(st.just("put off"), st.integers(0, 5)),
        ),
        max_size=60,
    )
)
def test_a_heap_keeps_the_order_of_pythons(steps: list[tuple[str, int]]) -> None:
    """Times tie often; then the number decides."""
    heap = np.zeros(100, ENTRY)
    expected: list[tuple[float, int, int]] = []
    for number, (step, time) in enumerate(steps):
        if step == "push":
            push(heap, float(time), number, 1000 + number)
            heapq.heappush(expected, (float(time), number, 1000 + number))
        elif expected and step == "pop":
            pop(heap)
            heapq.heappop(expected)
        elif expected:
            later = expected[0][0] + time
            put_off(heap, later, number)
            heapq.heapreplace(expected, (later, number, expected[0][2]))
        assert int(heap[0]["order"]) == len(expected)
        if expected:
            assert heap[1].item() == expected[0]
