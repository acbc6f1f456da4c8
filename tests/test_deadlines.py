"""Many deadlines with one timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from icetower.deadlines import Deadline, Deadlines
from verify.torture.clock import VirtualLoop


class Counting(VirtualLoop):
    """A loop whose clock jumps to its next timer, and which counts them."""

    timers = 0

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        self.timers += 1
        return super().call_at(when, callback, *args, context=context)


def run(story: Callable[[Counting], Any]) -> Any:
    loop = Counting()
    try:
        return loop.run_until_complete(story(loop))
    finally:
        loop.close()


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=300))
def test_each_comes_at_its_time_and_in_order_but_for_those_that_are_cancelled(asked: list[tuple[int, bool]]) -> None:
    async def story(loop: Counting) -> list[tuple[int, float]]:
        deadlines, came = Deadlines(), list[tuple[int, float]]()
        made: list[Deadline] = []
        for number, (seconds, _) in enumerate(asked):
            made.append(deadlines.after(seconds, lambda number=number: came.append((number, loop.time()))))
        for deadline, (_, kept) in zip(made, asked, strict=True):
            if not kept:
                deadline.cancel()
                deadline.cancel()
        await asyncio.sleep(60)
        return came

    wanted = [(number, float(seconds)) for number, (seconds, kept) in enumerate(asked) if kept]
    assert run(story) == sorted(wanted, key=lambda each: (each[1], each[0]))


def test_a_thousand_that_never_come_take_one_timer_and_are_not_all_kept() -> None:
    async def story(loop: Counting) -> tuple[int, int]:
        deadlines = Deadlines()
        first = deadlines.after(60, lambda: None)
        for _ in range(1000):
            deadlines.after(60, lambda: None).cancel()
        timers, kept = loop.timers, sum(len(heap) for heap in deadlines.heaps)
        first.cancel()
        return timers, kept

    timers, kept = run(story)
    assert timers == 1
    assert kept < 200


def test_one_that_is_cancelled_at_the_moment_of_its_time_does_nothing() -> None:
    async def story(loop: Counting) -> list[str]:
        deadlines, came = Deadlines(), list[str]()
        deadlines.after(1, lambda: second.cancel())
        second = deadlines.after(1, lambda: came.append("second"))
        deadlines.after(1, lambda: came.append("third"))
        await asyncio.sleep(2)
        return came

    assert run(story) == ["third"]


def test_one_that_is_set_when_another_comes_and_one_that_raises_stop_nobody() -> None:
    async def story(loop: Counting) -> list[tuple[str, float]]:
        deadlines, came = Deadlines(), list[tuple[str, float]]()
        loop.set_exception_handler(lambda _loop, context: came.append((str(context["exception"]), loop.time())))

        def bad() -> None:
            raise ValueError("no")

        def again() -> None:
            deadlines.after(0.5, lambda: came.append(("again", loop.time())))

        deadlines.after(1, bad)
        deadlines.after(1, again)
        deadlines.after(5, lambda: came.append(("late", loop.time())))
        await asyncio.sleep(6)
        return came

    assert run(story) == [("no", 1.0), ("again", 1.5), ("late", 5.0)]


def test_each_loop_has_its_own() -> None:
    deadlines, came = Deadlines(), list[str]()

    async def story(loop: Counting, name: str) -> None:
        deadlines.after(1, lambda: came.append(name))
        await asyncio.sleep(2)

    run(lambda loop: story(loop, "first"))
    run(lambda loop: story(loop, "second"))
    assert came == ["first", "second"]
    assert len(deadlines.heaps) == 1, "that of a closed loop is forgotten"
