"""What a call's key tells of the requests in which its rows went."""

from __future__ import annotations

from math import log2

import pytest

from icetower.agent.keys import new_key, request_key
from icetower.agent.landings import Landed, of_names


class Tower:
    """Knows which keys have landed, and sets fences at the others where it is asked for one."""

    def __init__(self, landed: list[str], *, fences: bool = False) -> None:
        self.landed = {key: number for number, key in enumerate(landed)}
        self.fences = fences
        self.asked: list[str | None] = []

    def ask(self, key: str | None) -> Landed:
        self.asked.append(key)
        if key in self.landed:
            return Landed(True, self.landed[key], False, None)
        return Landed(False, None, self.fences, None)


@pytest.mark.parametrize("key", ["readings of 2026-01-09", new_key()], ids=["text", "UUID"])
@pytest.mark.parametrize("fences", [False, True], ids=["landed", "fence"])
@pytest.mark.parametrize("of", [1, 2, 3, 4, 7, 1000])
def test_any_part_of_a_call_is_told_in_few_questions(key: str, fences: bool, of: int) -> None:
    keys = [request_key(key, number, of) for number in range(of)]
    for count in {0, 1, 2, of // 2, of - 1, of} & set(range(of + 1)):
        tower = Tower(keys[:count], fences=fences)
        found = of_names(tower.ask, key)
        assert (found.landed, found.partly) == (count == of, 0 < count < of)
        assert found.snapshot == (count - 1 if count else None)
        assert len(tower.asked) <= (5 + 2 * log2(of) if count else 3)
        assert len(set(tower.asked)) == len(tower.asked)
        if count < of:
            assert keys[count] in tower.asked, "the call can go on at the first that is not there"
            assert found.fenced is fences


def test_what_cannot_be_told_is_not_taken_for_a_part() -> None:
    key = new_key()
    for unknown in (key, request_key(key, 0, 2), request_key(key, 1, 2), request_key(key, 1, 3)):
        tower = Tower([request_key(key, 0, 2)] if unknown not in (key, request_key(key, 0, 2)) else [])

        def ask(name: str | None, tower: Tower = tower, unknown: str = unknown) -> Landed:
            return Landed(None, None, False, None) if name == unknown else tower.ask(name)

        found = of_names(ask, key)
        assert (found.landed, found.partly) == (None, False)
