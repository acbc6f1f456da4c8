"""Which rows the table must have, worked out from the writes that landed. Pure.

Of each product the newest price: by the time of the sale where the side goes by that, or by the order of the commits
to the log. Prices of one second, or of one commit, are equally new; each of them may be the one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.patterns.records import Attempted
from bench.patterns.rows import KEYS, NAMES, Row

Place = tuple[Any, ...]


def by_event(_attempt: Attempted, row: Row) -> Any:
    return row["_event_time"]


def by_commit(attempt: Attempted, _row: Row) -> Any:
    assert attempt.sequence is not None, f"write {attempt.write.key} has no place in the log"
    return attempt.sequence


def differences(
    attempts: Iterable[Attempted], found: Sequence[Row], order: Callable[[Attempted, Row], Any]
) -> list[str]:
    """What is wrong with the rows that were found; nothing if they are exact.

    Args:
        attempts: those that landed.
        order: of two rows of a product the one with the higher value is the newer one.
    """
    newest: dict[Place, tuple[Any, list[Place]]] = {}
    for attempt in attempts:
        for row in attempt.write.rows:
            place, at, values = _of(row, KEYS), order(attempt, row), _of(row, NAMES)
            best = newest.get(place)
            if best is None or at > best[0]:
                newest[place] = (at, [values])
            elif at == best[0]:
                best[1].append(values)
    wrong: list[str] = []
    seen: set[Place] = set()
    for row in found:
        place = _of(row, KEYS)
        if place in seen:
            wrong.append(f"{place} is there twice")
        elif place not in newest:
            wrong.append(f"{place} was never written")
        elif _of(row, NAMES) not in newest[place][1]:
            wrong.append(f"{place} is {_of(row, NAMES)}, newest is {newest[place][1]}")
        seen.add(place)
    wrong += [f"{place} is missing" for place in newest.keys() - seen]
    return wrong


def _of(row: Row, names: Sequence[str]) -> Place:
    return tuple(row[name] for name in names)
