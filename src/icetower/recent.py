"""`Recent`, a cache of the most recently used by weight; `Budget`, the memory that caches share; and identity keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from operator import is_
from threading import Lock
from typing import Any, Generic, TypeVar

from pydantic_core import to_json

T = TypeVar("T")
K = TypeVar("K")

CACHE_MAX_BYTES = 512 * 1024 * 1024
"""What all caches of a server take together, unless its configuration says otherwise (`server.cache_max_bytes`)."""

_SCHEMA_FACTOR = 8
"""Parsed JSON takes about five times its length; maps of its columns take more."""

ENTRY_BYTES = 420
"""What a cache takes for an entry besides the item and the characters of its key."""


class IdentityKey:
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
            isinstance(other, IdentityKey)
            and len(self.parts) == len(other.parts)
            and all(map(is_, self.parts, other.parts))
        )


def bounded_cache(max_bytes: int, weigh: Callable[[K], int]) -> Callable[[Callable[[K], T]], Callable[[K], T]]:
    """Keep the newest results of a pure function, bounded by bytes: `functools.lru_cache` counts entries only.

    The result that was made last stays, however heavy it is.

    Args:
        weigh: about how many bytes a key and its result hold.
    """

    def wrap(function: Callable[[K], T]) -> Callable[[K], T]:
        found: OrderedDict[K, tuple[T, int]] = OrderedDict()
        lock = Lock()
        size_bytes = 0

        @wraps(function)
        def remembered(key: K) -> T:
            nonlocal size_bytes
            with lock:
                if key in found:
                    found.move_to_end(key)
                    return found[key][0]
            result, weight = function(key), weigh(key)
            with lock:
                if key not in found:
                    found[key] = result, weight
                    size_bytes += weight
                while size_bytes > max_bytes and len(found) > 1:
                    size_bytes -= found.popitem(last=False)[1][1]
            return result

        return remembered

    return wrap


def weight_of_schemas(schemas: IdentityKey) -> int:
    """About what the schemas of a table, and the columns that are made of them, take in memory."""
    return ENTRY_BYTES + _SCHEMA_FACTOR * sum(len(to_json(schema)) for schema in schemas.parts)


class Budget:
    """Memory that several caches share, in bytes. When it is used up, the entry that was used longest ago goes first,
    whichever cache holds it.

        budget = Budget(512 * 1024 * 1024)
        lists = budget.cache[Listing]("manifest lists", share=0.5)
        lists.put(path, listing, bytes_of(listing))

    Every cache states its weights in real bytes: what an entry takes in memory, not the length of its file. Work in
    progress may hold memory of the same budget (`Reservation`); caches make room for it.

    Attributes:
        used_bytes: what caches and work hold now.
    """

    def __init__(self, max_bytes: int = CACHE_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self.held_bytes = 0
        self._caches: list[tuple[str, Recent[Any]]] = []
        self._now = 0

    def cache(self, name: str, *, share: float = 1.0, most_bytes: int | None = None) -> Recent[Any]:
        """A new cache of this budget.

        Args:
            name: what it holds, for `by_cache`.
            share: the part of the budget that it may take for itself.
            most_bytes: a limit of its own, besides.
        """
        limit = int(self.max_bytes * share)
        made: Recent[Any] = Recent(limit if most_bytes is None else min(limit, most_bytes), self)
        self._caches.append((name, made))
        return made

    def by_cache(self) -> dict[str, int]:
        """What each cache holds now, in bytes. Caches of one name are added up."""
        found: dict[str, int] = {}
        for name, cache in self._caches:
            found[name] = found.get(name, 0) + cache.weight
        return found

    def next_use(self) -> int:
        """A number that is higher than all before it."""
        self._now += 1
        return self._now

    def take(self, size_bytes: int, newest: Recent[Any] | None = None) -> None:
        """Count bytes, or give them back (negative), and evict what has no room any more.

        Args:
            newest: the cache whose last entry was just put, and stays.
        """
        self.used_bytes += size_bytes
        # What is given back makes room for nobody else: it comes from evictions, too, and those would nest.
        while size_bytes > 0 and self.used_bytes > self.max_bytes:
            oldest = min(
                (cache for _, cache in self._caches if len(cache) > (cache is newest)),
                key=lambda cache: cache.oldest_use,
                default=None,
            )
            if oldest is None:
                return
            oldest.evict()


class Reservation:
    """Memory of a budget that work in progress holds: it is counted, and never evicted."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.size_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Hold so much more."""
        self.size_bytes += size_bytes
        self.budget.held_bytes += size_bytes
        self.budget.take(size_bytes)

    def release(self) -> None:
        """Give all of it back."""
        self.take(-self.size_bytes)


class _Entry(Generic[T]):
    __slots__ = ("item", "used", "weight")

    def __init__(self, item: T, weight: int, used: int) -> None:
        self.item = item
        self.weight = weight
        self.used = used


class Recent(Mapping[str, T]):
    """The most recently used of a kind, bounded by the sum of the weights that `put` is given.

    The entry that was put last stays, however heavy it is.

    Args:
        budget: the memory that it shares with other caches. Its weights are bytes then, and an entry's own overhead is
            added to them.
    """

    def __init__(self, weight_max: int, budget: Budget | None = None) -> None:
        self._items: OrderedDict[str, _Entry[T]] = OrderedDict()
        self._weight_max = weight_max
        self._budget = budget
        self.weight = 0

    def __getitem__(self, key: str) -> T:
        found = self._items[key]
        self._items.move_to_end(key)
        if self._budget is not None:
            found.used = self._budget.next_use()
        return found.item

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._items))

    def __len__(self) -> int:
        return len(self._items)

    @property
    def oldest_use(self) -> int:
        """When the entry was used that goes next (`Budget.next_use`)."""
        return next(iter(self._items.values())).used

    def peek(self, key: str) -> T | None:
        """An item, if it is there. It is not used by that."""
        found = self._items.get(key)
        return None if found is None else found.item

    def weight_of(self, key: str) -> int:
        """What an item takes; 0 where it is not there."""
        found = self._items.get(key)
        return 0 if found is None else found.weight

    def put(self, key: str, item: T, weight: int) -> None:
        """Keep an item; it replaces the one of the same key."""
        self.forget(key)
        budget = self._budget
        if budget is not None:
            weight += ENTRY_BYTES + len(key)
        self._items[key] = _Entry(item, weight, 0 if budget is None else budget.next_use())
        self._count(weight)

    def reweigh(self, key: str, weight: int) -> None:
        """An item takes another weight than it did. It is not used by that."""
        entry = self._items.get(key)
        if entry is not None:
            weight += 0 if self._budget is None else ENTRY_BYTES + len(key)
            change, entry.weight = weight - entry.weight, weight
            self._count(change)

    def forget(self, key: str) -> None:
        """Let go of an item, if it is there."""
        old = self._items.pop(key, None)
        if old is not None:
            self._count(-old.weight)

    def evict(self) -> None:
        """Let go of the item that was used longest ago."""
        _, gone = self._items.popitem(last=False)
        self._count(-gone.weight)

    def _count(self, change: int) -> None:
        self.weight += change
        if self._budget is not None:
            self._budget.take(change, self if change > 0 else None)
        while change > 0 and self.weight > self._weight_max and len(self._items) > 1:
            self.evict()
