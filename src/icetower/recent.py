"""A cache with a bound: the most recently used of a kind, by weight."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


class Recent(Mapping[str, T]):
    """The most recently used of a kind, bounded by the sum of the weights that `put` is told."""

    def __init__(self, weight_max: int) -> None:
        self._items: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._weight_max = weight_max
        self._weight = 0

    def __getitem__(self, key: str) -> T:
        found = self._items[key]
        self._items.move_to_end(key)
        return found[0]

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._items))

    def __len__(self) -> int:
        return len(self._items)

    def put(self, key: str, item: T, weight: int) -> None:
        old = self._items.pop(key, None)
        if old is not None:
            self._weight -= old[1]
        self._items[key] = (item, weight)
        self._weight += weight
        while self._weight > self._weight_max and len(self._items) > 1:
            _, (_, gone) = self._items.popitem(last=False)
            self._weight -= gone
