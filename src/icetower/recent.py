"""What caches are made of: the most recently used of a kind, by weight; and keys that need no look inside."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from operator import is_
from typing import Any, TypeVar

T = TypeVar("T")


class Same:
    """Stands for some objects themselves: equal to what stands for the very same ones, whatever they hold.

    A key for what is derived from objects that are replaced and never changed. It keeps them, so that no others can
    come to lie in their place.
    """

    __slots__ = ("_hash", "parts")

    def __init__(self, *parts: Any) -> None:
        self.parts = parts
        self._hash = hash(tuple(map(id, parts)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Same) and len(self.parts) == len(other.parts) and all(map(is_, self.parts, other.parts))
        )


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
