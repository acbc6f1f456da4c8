"""Sums of reads are distributed as if each read were drawn: the shortcut of `sums.py` is no approximation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from icetower_simulator.compiled import compiled
from icetower_simulator.latencies import GET, PROVIDERS, Latency, duration_of
from icetower_simulator.randoms import generator
from icetower_simulator.sums import IO, deviation_ms, durations, shared_by, sum_of

NEVER = Latency(1.0)
LATENCIES = [
    PROVIDERS["s3"].get,
    PROVIDERS["azurex"].get,
    PROVIDERS["gcp"].get,
    Latency(20.0, 1.2, 0.0),
    Latency(10.0, 0.9, 12.0),
]
KS_FAR = 2.7
"""Two samples of one distribution are farther apart than this times sqrt(2/n) once in a million."""


def io_of(latency: Latency, seed: int) -> np.ndarray:
    found = np.zeros(1, IO)
    found[0] = durations([latency, *[NEVER] * 6], generator(seed), with_sums=True)
    return found


@compiled
def sums(io: np.ndarray, count: int, samples: int) -> np.ndarray:
    found = np.empty(samples)
    for i in range(samples):
        found[i] = sum_of(count, io[0])
    return found


@compiled
def one_by_one(io: np.ndarray, count: int, samples: int) -> np.ndarray:
    found = np.zeros(samples)
    for i in range(samples):
        for _ in range(count):
            found[i] += duration_of(io[0], GET)
    return found


@compiled
def shared(io: np.ndarray, workers: int, count: int, samples: int) -> np.ndarray:
    found = np.empty(samples)
    for i in range(samples):
        found[i] = shared_by(workers, count, io[0])
    return found


@compiled
def shared_one_by_one(io: np.ndarray, workers: int, count: int, samples: int) -> np.ndarray:
    found = np.empty(samples)
    free = np.zeros(workers)
    for i in range(samples):
        for worker in range(workers):
            free[worker] = 0.0
        for _ in range(count):
            first = 0
            for worker in range(1, workers):
                if free[worker] < free[first]:
                    first = worker
            free[first] += duration_of(io[0], GET)
        found[i] = free.max()
    return found


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Kolmogorov and Smirnov's, of two samples."""
    both = np.sort(np.concatenate([one, other]))
    below = np.searchsorted(np.sort(one), both, side="right") / len(one)
    return float(np.abs(below - np.searchsorted(np.sort(other), both, side="right") / len(other)).max())


@pytest.mark.parametrize("latency", LATENCIES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 15, 16, 33, 100, 255, 1000])
def test_a_sum_is_distributed_as_its_reads(latency: Latency, count: int) -> None:
    samples = min(100_000, 8_000_000 // count)
    found = sums(io_of(latency, 1), count, samples)
    expected = one_by_one(io_of(latency, 2), count, samples)
    assert distance(found, expected) < KS_FAR * math.sqrt(2 / samples)


@pytest.mark.parametrize("latency", LATENCIES, ids=str)
@pytest.mark.parametrize("count", [8, 64, 100, 1000, 8191, 50_000, 131_072, 262_144, 600_001])
def test_a_sum_has_its_exact_moments(latency: Latency, count: int) -> None:
    """Mean, variance and skewness, within what so many samples can tell."""
    samples = 200_000
    mean, deviation = latency.mean_ms * count, deviation_ms(latency) * math.sqrt(count)
    standard = (sums(io_of(latency, 3), count, samples) - mean) / deviation
    # A single read's cumulants, by summing up its quantiles.
    single = one_by_one(io_of(latency, 4), 1, 1_000_000)
    third, fourth = (float((((single - single.mean()) / single.std()) ** power).mean()) for power in (3, 4))
    skewness, kurtosis = third / math.sqrt(count), 3 + (fourth - 3) / count
    assert abs(standard.mean()) < 5 / math.sqrt(samples)
    assert abs(standard.var() - 1) < 5 * math.sqrt((kurtosis - 1) / samples)
    assert abs((standard**3).mean() - skewness) < 0.1 * skewness + 5 * math.sqrt(15 * kurtosis / samples)


@pytest.mark.parametrize("latency", [*LATENCIES, Latency(5.0)], ids=str)
def test_the_mean_and_deviation_of_a_latency_are_exact(latency: Latency) -> None:
    single = one_by_one(io_of(latency, 6), 1, 1_000_000)
    assert single.mean() == pytest.approx(latency.mean_ms, rel=0.006)
    assert single.std() == pytest.approx(deviation_ms(latency), rel=0.03)


@pytest.mark.parametrize("workers", [2, 4, 16])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 100, 500, 2000])
def test_reads_that_are_shared_end_as_if_each_were_drawn(workers: int, count: int) -> None:
    latency = PROVIDERS["s3"].get
    samples = min(100_000, 5_000_000 // count)
    found = shared(io_of(latency, 1), workers, count, samples)
    expected = shared_one_by_one(io_of(latency, 2), workers, count, samples)
    assert distance(found, expected) < KS_FAR * math.sqrt(2 / samples)


def test_constant_reads_sum_up_exactly() -> None:
    io = io_of(Latency(5.0), 1)
    for count in (0, 1, 7, 8, 100, 131_072, 1_000_001):
        assert sums(io, count, 3).tolist() == pytest.approx([5.0 * count] * 3)
    assert shared(io, 4, 10, 1).tolist() == [15.0]
    assert shared(io, 4, 4001, 1).tolist() == [5005.0]


@pytest.mark.parametrize(
    ("provider", "part", "get_ms", "put_ms"),
    [
        ("s3", 0.05, 10, 37),
        ("s3", 0.10, 12, 42),
        ("s3", 0.25, 18, 50),
        ("s3", 0.50, 27, 60),
        ("s3", 0.75, 41, 73),
        ("s3", 0.90, 60, 87),
        ("s3", 0.95, 75, 97),
        ("s3", 0.99, 114, 118),
    ],
)
def test_the_published_percentiles_of_s3(provider: str, part: float, get_ms: float, put_ms: float) -> None:
    s3 = PROVIDERS[provider]
    for latency, expected in ((s3.get, get_ms), (s3.put(0), put_ms)):
        values = one_by_one(io_of(latency, 5), 1, 1_000_000)
        assert round(float(np.quantile(values, part))) == pytest.approx(expected, abs=1)
