"""The names of commits that landed last: bounded by number and in real bytes."""

from __future__ import annotations

import gc
import tracemalloc

from icetower.commit.landed import LANDED_MAX, Landed


def test_the_newest_names_are_known_and_the_oldest_forgotten() -> None:
    landed = Landed(3)
    for name in ("a", "b", "b", "c", "d"):
        landed.add(name)
    assert [name in landed for name in "abcd"] == [False, True, True, True]
    assert len(landed) == 3


def test_they_take_little_memory_when_there_are_as_many_as_may_be() -> None:
    gc.collect()
    tracemalloc.start()
    landed = Landed()
    for number in range(LANDED_MAX + 10_000):
        landed.add(f"namespace.table\n('an-agent-{number % 100}', 'main', '{number:036d}')")
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(landed) == LANDED_MAX
    assert taken < 16 * 1024 * 1024
