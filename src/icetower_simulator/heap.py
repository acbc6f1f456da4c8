"""A binary heap of pending events. Of two events at one time the one pushed first comes first: a run has one order."""

from __future__ import annotations

from typing import Any

import numpy as np

from icetower_simulator.compiled import compiled

ENTRY = np.dtype([("time", np.float64), ("order", np.int64), ("item", np.int64)])
"""The `order` of entry 0 is the number of entries; they begin at 1."""


@compiled
def push(heap: Any, time: float, order: int, item: int) -> None:
    """Add an entry; there must be room."""
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
    """Remove the first entry; there must be one."""
    length = heap[0].order
    heap[0].order = length - 1
    if length > 1:
        _sink(heap, heap[length].time, heap[length].order, heap[length].item)


@compiled
def put_off(heap: Any, time: float, order: int) -> None:
    """Postpone the first entry."""
    _sink(heap, time, order, heap[1].item)


@compiled
def _sink(heap: Any, time: float, order: int, item: int) -> None:
    """Replace the first entry, and restore the heap's order below it."""
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
