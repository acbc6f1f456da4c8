"""A binary heap of what is to happen: ties go by who was put in first, so that a run has one order of events."""

from __future__ import annotations

from typing import Any

import numpy as np

from icetower_simulator.compiled import compiled

ENTRY = np.dtype([("time", np.float64), ("order", np.int64), ("item", np.int64)])
"""Entry 0 of a heap says in `order` how many there are; they stand from 1 on."""


@compiled
def push(heap: Any, time: float, order: int, item: int) -> None:
    """There must be room."""
    heap[0].order += 1
    place = heap[0].order
    while place > 1:
        parent = place >> 1
        if heap[parent].time < time or (heap[parent].time == time and heap[parent].order < order):
            break
        _copy(heap, parent, place)
        place = parent
    _write(heap, place, time, order, item)


@compiled
def pop(heap: Any) -> None:
    """Take the first entry out; there must be one."""
    length = heap[0].order
    heap[0].order = length - 1
    if length > 1:
        _sink(heap, heap[length].time, heap[length].order, heap[length].item)


@compiled
def put_off(heap: Any, time: float, order: int) -> None:
    """What was to happen first is to happen later."""
    _sink(heap, time, order, heap[1].item)


@compiled
def _sink(heap: Any, time: float, order: int, item: int) -> None:
    """Put an entry in the place of the first, and set things right below it."""
    length = heap[0].order
    place = 1
    while True:
        child = place << 1
        if child > length:
            break
        if child < length and (
            heap[child + 1].time < heap[child].time
            or (heap[child + 1].time == heap[child].time and heap[child + 1].order < heap[child].order)
        ):
            child += 1
        if time < heap[child].time or (time == heap[child].time and order < heap[child].order):
            break
        _copy(heap, child, place)
        place = child
    _write(heap, place, time, order, item)


@compiled
def _copy(heap: Any, source: int, target: int) -> None:
    _write(heap, target, heap[source].time, heap[source].order, heap[source].item)


@compiled
def _write(heap: Any, place: int, time: float, order: int, item: int) -> None:
    heap[place].time = time
    heap[place].order = order
    heap[place].item = item
