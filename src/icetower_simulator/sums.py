"""The time that k reads take, one after the other or several at a time, without drawing each of them.

An overwrite that lost its swap reads the manifest list of every snapshot that it missed: thousands of equal draws. The
distribution of a sum of 8, 16, 32, … reads is computed once, by the discrete Fourier transform of the single read's,
and kept as quantiles; a sum of k reads is one draw for each binary digit of k, and the last few reads one by one. This
does not approximate by a normal distribution: skewness and tails are those of the sum. The tests compare it with sums
that are drawn read by read, and with exact moments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from icetower_simulator.compiled import PROGRAM, compiled, kept
from icetower_simulator.latencies import GET, LATENCIES, Latency, duration_of, normal_below, table
from icetower_simulator.randoms import STATE, normal

_CELLS = 1 << 17
_FIRST, _LAST = 3, 17
"""Sums of 2^3 to 2^17 reads are tabulated; longer ones are made of several, shorter ones are drawn."""
_SHORT = (1 << _FIRST) - 1
_Z_MAX = 6.5
"""Quantiles are kept for standard normal values up to this; beyond, once in 10^10, they are extrapolated linearly."""
_STEPS = 1024
_TAIL_Z = 8.0
"""A single read is cut off here: once in 6e-16."""


_WORKERS_MAX = 64
IO = np.dtype(
    [
        ("latencies", LATENCIES),
        ("state", STATE),
        ("spread", np.float64),
        ("quantiles", np.float64, (_LAST - _FIRST + 1, _STEPS + 1)),
        ("free", np.float64, _WORKERS_MAX),
    ]
)
"""The record that durations are drawn from: latencies, a generator, the standard deviation of a read over its mean,
quantiles of sums of reads in milliseconds (a row for each power of two, a column for each step of z), and space for the
times at which workers are free."""


def durations(latencies: Sequence[Latency], state: Any, *, with_sums: bool) -> Any:
    """A record that durations are drawn from. Without sums it is made faster, and `sum_of` must not be used with it."""
    io = np.zeros(1, IO)[0]
    io["latencies"] = table(latencies)
    io["state"] = state
    if with_sums:
        io["spread"] = deviation_ms(latencies[GET]) / latencies[GET].mean_ms
        io["quantiles"] = sums_of(latencies[GET])
    return io


@lru_cache(maxsize=32)
def sums_of(latency: Latency) -> Any:
    """The quantiles of sums of a latency. Takes about a second, once for each process and latency."""
    mean, deviation = latency.mean_ms, deviation_ms(latency)
    powers = range(_FIRST, _LAST + 1)
    if deviation == 0:
        return np.array([[(1 << power) * mean] * (_STEPS + 1) for power in powers])
    return np.array([_quantiles(latency, 1 << power, mean, deviation) for power in powers])


def deviation_ms(latency: Latency) -> float:
    """The standard deviation of a latency, exact, the floor included."""
    if latency.sigma == 0:
        return 0.0
    squares = latency.median_ms**2 * math.exp(2 * latency.sigma**2)
    if latency.floor_ms > 0:
        z = math.log(latency.floor_ms / latency.median_ms) / latency.sigma
        squares = latency.floor_ms**2 * normal_below(z) + squares * (1 - normal_below(z - 2 * latency.sigma))
    return math.sqrt(max(squares - latency.mean_ms**2, 0.0))


def _quantiles(latency: Latency, count: int, mean: float, deviation: float) -> Any:
    """Quantiles of the sum of `count` reads at the steps of z.

    The grid starts at the floor and is as wide as the sum spreads; the transform wraps around, so the sum is shifted
    back to its mean. The cells' width adds a little variance: the last step restores the sum's exact moments.
    """
    longest = latency.median_ms * math.exp(_TAIL_Z * latency.sigma)
    width = longest + 26 * math.sqrt(count) * deviation
    step = width / _CELLS
    edges = latency.floor_ms + (np.arange(_CELLS) + 0.5) * step
    below = _normal_below((np.log(edges) - math.log(latency.median_ms)) / latency.sigma)
    below[-1] = 1.0
    cells = np.diff(below, prepend=0.0)
    summed = np.fft.irfft(np.fft.rfft(cells) ** count, _CELLS)
    # Cell i is now the sum count * floor + i * step, give or take whole turns of the grid: start well below the mean.
    lowest = (count * (mean - latency.floor_ms) - min(13 * math.sqrt(count) * deviation, count * mean)) / step
    start = math.floor(max(lowest, 0.0))
    summed = np.roll(summed, -(start % _CELLS))
    cumulated = np.maximum.accumulate(np.cumsum(summed))
    remaining = np.maximum.accumulate(np.cumsum(summed[::-1]))
    right = count * latency.floor_ms + (start + np.arange(_CELLS) + 0.5) * step
    z = np.linspace(-_Z_MAX, _Z_MAX, _STEPS + 1)
    below_z = _normal_below(z)
    lower = np.interp(below_z, cumulated, right)
    upper = np.interp(below_z[::-1], remaining, (right - step)[::-1])
    quantiles = np.where(z < 0, lower, upper)
    middle = right - step / 2
    found = float(np.dot(summed, middle))
    found_deviation = math.sqrt(float(np.dot(summed, (middle - found) ** 2)))
    exact = count * mean + (quantiles - found) * (math.sqrt(count) * deviation / found_deviation)
    # All reads may take the floor: with some probability the sum is that very value.
    lowest_ms = count * latency.floor_ms
    return np.where(below_z <= below[0] ** count, lowest_ms, np.maximum(exact, lowest_ms))


def _entry(program: int) -> Any:
    @kept
    def normal_below(values: Any) -> Any:
        """The fractions of a standard normal distribution below each value."""
        shares = np.empty(values.shape[0])
        for place in range(values.shape[0]):
            shares[place] = 0.5 * math.erfc(-values[place] / math.sqrt(2.0)) if program >= 0 else 0.0
        return shares

    return normal_below


_normal_below = _entry(PROGRAM)


@compiled
def sum_of(count: int, io: Any) -> float:
    """How long `count` reads take, one after the other."""
    total = 0.0
    for _ in range(count & _SHORT):
        total += duration_of(io, GET)
    rest = count >> _FIRST
    row = 0
    while rest > 0 and row < _LAST - _FIRST:
        if rest & 1:
            total += _drawn(io, row)
        rest >>= 1
        row += 1
    for _ in range(rest):
        total += _drawn(io, row)
    return total


@compiled
def _drawn(io: Any, row: int) -> float:
    place = (normal(io.state) + _Z_MAX) * (_STEPS / (2.0 * _Z_MAX))
    left = min(max(math.floor(place), 0), _STEPS - 1)
    return io.quantiles[row, left] + (place - left) * (io.quantiles[row, left + 1] - io.quantiles[row, left])


@compiled
def shared_by(workers: int, count: int, io: Any) -> float:
    """How long `count` reads take if each of `workers` takes the next one as soon as it is free.

    Each worker's first `sure` reads are drawn as one sum. That changes nothing as long as each worker does that many:
    its progress depends on its own reads alone. The margin fails to ensure that once in 10^12.
    """
    if workers == 1 or count == 1:
        return sum_of(count, io)
    fair = count / workers
    sure = int(fair - 7.0 * io.spread * math.sqrt(fair)) - 8
    if sure <= _SHORT:
        sure = 0
    for worker in range(workers):
        io.free[worker] = sum_of(sure, io)
    for _ in range(count - sure * workers):
        first = 0
        for worker in range(1, workers):
            if io.free[worker] < io.free[first]:
                first = worker
        io.free[first] += duration_of(io, GET)
    last = 0.0
    for worker in range(workers):
        last = max(last, io.free[worker])
    return last
