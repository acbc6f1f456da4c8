"""Random numbers of a run: xoshiro256++ (Blackman and Vigna), seeded by splitmix64, and normals by the ziggurat.

A run owns its generator, so its numbers depend on its seed alone, not on runs beside it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from icetower_simulator.compiled import compiled

_MASK = (1 << 64) - 1
_LAYERS = 256
_EDGE = 3.6541528853610088
"""Where the ziggurat's tail begins, for 256 layers, and the area of each layer (Doornik, 2005)."""
_AREA = 0.00492867323399
_R11, _R17, _R19, _R23, _R41, _R45 = (np.uint64(n) for n in (11, 17, 19, 23, 41, 45))
_LAYER = np.uint64(_LAYERS - 1)
_UNIT = 2.0**-53
STATE = np.dtype([("a", np.uint64), ("b", np.uint64), ("c", np.uint64), ("d", np.uint64)])
"""The state of a generator, a record that compiled code changes in place."""


def generator(seed: int, stream: int = 0) -> Any:
    """The state of a generator. Streams of one seed are independent of each other."""
    word = (seed * 0x9E3779B97F4A7C15 + stream * 0xD1B54A32D192ED03) & _MASK
    words: list[int] = []
    for _ in range(4):
        word = (word + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        words.append(mixed ^ (mixed >> 31))
    return np.array([tuple(words)], dtype=STATE)[0]


def _layers() -> Any:
    """The right edges of the layers, from the widest to the peak; layer 0 is the one with the tail."""
    edges = np.zeros(_LAYERS + 1)
    height = math.exp(-0.5 * _EDGE * _EDGE)
    edges[0] = _AREA / height
    edges[1] = _EDGE
    for i in range(2, _LAYERS):
        edges[i] = math.sqrt(-2.0 * math.log(_AREA / edges[i - 1] + height))
        height = math.exp(-0.5 * edges[i] * edges[i])
    return edges


_EDGES = _layers()
_INNER = _EDGES[1:] / _EDGES[:-1]


@compiled
def draw(state: Any) -> Any:
    """64 random bits."""
    total = state.a + state.d
    result = ((total << _R23) | (total >> _R41)) + state.a
    shifted = state.b << _R17
    state.c ^= state.a
    state.d ^= state.b
    state.b ^= state.c
    state.a ^= state.d
    state.c ^= shifted
    state.d = (state.d << _R45) | (state.d >> _R19)
    return result


@compiled
def uniform(state: Any) -> float:
    """In [0, 1)."""
    return float(draw(state) >> _R11) * _UNIT


@compiled
def exponential(state: Any) -> float:
    """With mean 1."""
    return -math.log(1.0 - uniform(state))


@compiled
def normal(state: Any) -> float:
    """Mean 0, standard deviation 1."""
    while True:
        bits = draw(state)
        layer = int(bits & _LAYER)
        side = 2.0 * (float(bits >> _R11) * _UNIT) - 1.0
        if abs(side) < _INNER[layer]:
            return side * _EDGES[layer]
        if layer == 0:
            return math.copysign(_tail(state), side)
        value = side * _EDGES[layer]
        below = math.exp(-0.5 * (_EDGES[layer] * _EDGES[layer] - value * value))
        above = math.exp(-0.5 * (_EDGES[layer + 1] * _EDGES[layer + 1] - value * value))
        if above + uniform(state) * (below - above) < 1.0:
            return value


@compiled
def _tail(state: Any) -> float:
    """Beyond the edge (Marsaglia, 1964)."""
    while True:
        beyond = exponential(state) / _EDGE
        if 2.0 * exponential(state) > beyond * beyond:
            return _EDGE + beyond


@compiled
def chosen(cumulated: Any, state: Any) -> int:
    """An index, by cumulated weights that end with 1."""
    low, high = 0, cumulated.shape[0] - 1
    if high == 0:
        return 0
    share = uniform(state)
    while low < high:
        middle = (low + high) >> 1
        if cumulated[middle] <= share:
            low = middle + 1
        else:
            high = middle
    return low
