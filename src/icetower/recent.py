"""A cache with a bound: the most recently used of a kind, by weight."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """The most recently used of a kind, bounded by the sum of the weights that `put` is told."""

    def __init__(self, weight_max: int) -> None:
        self._items: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._weight_max = weight_max
        self._weight = 0

    def get(self, key: str) -> T | None:
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def put(self, key: str, item: T, weight: int) -> None:
        old = self._items.pop(key, None)
        if old is not None:
            self._weight -= old[1]
        self._items[key] = (item, weight)
        self._weight += weight
        while self._weight > self._weight_max and len(self._items) > 1:
            _, (_, gone) = self._items.popitem(last=False)
            self._weight -= gone
