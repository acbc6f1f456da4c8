"""Calls that block, in a bounded number of threads."""

from __future__ import annotations

import asyncio
import threading
import weakref

import pytest

from icetower.threads import Threads


def test_calls_run_side_by_side_in_as_many_threads_as_there_may_be_and_no_more() -> None:
    threads = Threads(3, "test")
    together, seen = threading.Barrier(3), set[str]()

    def work() -> None:
        together.wait(10)  # passes only while three are in here at once
        seen.add(threading.current_thread().name)

    async def story() -> None:
        await asyncio.gather(*(threads.run(work) for _ in range(30)))

    asyncio.run(story())
    assert seen == {"test-0", "test-1", "test-2"}
    threads.close(wait=True)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(2)])
def test_what_a_call_raises_is_raised_to_whoever_asked(error: BaseException) -> None:
    threads = Threads(1, "test")

    def work() -> None:
        raise error

    async def story() -> str:
        with pytest.raises(type(error)) as caught:
            await threads.run(work)
        assert caught.value is error
        return await threads.run(lambda: "alive")

    assert asyncio.run(story()) == "alive"
    threads.close(wait=True)


def test_a_stop_iteration_hangs_nobody() -> None:
    threads = Threads(1, "test")
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(threads.run(lambda: next(iter(()))))
    threads.close(wait=True)


def test_a_call_that_takes_too_long_is_given_up_and_its_thread_comes_back() -> None:
    threads, go_on = Threads(1, "test"), threading.Event()

    async def story() -> str:
        with pytest.raises(TimeoutError):
            await threads.run(go_on.wait, 0.01)
        go_on.set()
        return await threads.run(lambda: "alive", 10)

    assert asyncio.run(story()) == "alive"
    threads.close(wait=True)


def test_a_call_that_nobody_waits_for_any_more_is_not_begun() -> None:
    threads, go_on, begun = Threads(1, "test"), threading.Event(), list[str]()

    async def story() -> None:
        first = asyncio.create_task(threads.run(lambda: go_on.wait(10)))
        second = asyncio.create_task(threads.run(lambda: begun.append("second")))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        go_on.set()
        assert await first
        await threads.run(lambda: begun.append("third"))

    asyncio.run(story())
    assert begun == ["third"]
    threads.close(wait=True)


def test_closed_threads_take_no_calls() -> None:
    threads = Threads(1, "test")
    asyncio.run(threads.run(lambda: None))
    threads.close(wait=True)
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(threads.run(lambda: None))


def test_threads_that_hang_are_replaced_up_to_a_bound_and_end_when_their_calls_return() -> None:
    threads, go_on = Threads(2, "test", lost_max=2), threading.Event()

    async def story() -> None:
        while threads.lost < 4:  # two of them are replaced, and their replacements hang too
            with pytest.raises(TimeoutError):
                await threads.run(go_on.wait, 0.01)
        with pytest.raises(TimeoutError):
            await threads.run(lambda: "alive", 0.05)
        assert threads.lost == 4
        go_on.set()
        assert await threads.run(lambda: "alive", 10) == "alive"
        assert await asyncio.gather(*(threads.run(lambda: "alive", 10) for _ in range(20))) == ["alive"] * 20

    asyncio.run(story())
    threads.close(wait=True)
    assert threads.lost == 0


def test_a_call_that_has_not_begun_when_its_time_is_over_loses_no_thread() -> None:
    threads, began, go_on = Threads(1, "test"), threading.Event(), threading.Event()

    def work() -> bool:
        began.set()
        return go_on.wait()

    async def story() -> None:
        first = asyncio.ensure_future(threads.run(work))
        await asyncio.to_thread(began.wait, 10)
        with pytest.raises(TimeoutError):
            await threads.run(lambda: "late", 0.01)
        assert threads.lost == 0
        go_on.set()
        assert await first

    asyncio.run(story())
    threads.close(wait=True)


def test_a_call_that_hangs_is_lost_though_nobody_waits_for_it_any_more() -> None:
    """As where several files are read at once, and one of them is refused: the others are cancelled."""
    threads, began, go_on = Threads(1, "test", lost_max=1), threading.Event(), threading.Event()

    def hang() -> bool:
        began.set()
        return go_on.wait()

    async def story() -> None:
        asked = asyncio.ensure_future(threads.run(hang, 1))
        await asyncio.to_thread(began.wait, 10)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert await threads.run(lambda: "alive", 10) == "alive"
        assert threads.lost == 1
        go_on.set()
        assert await threads.run(lambda: "alive", 10) == "alive"

    asyncio.run(story())
    threads.close(wait=True)
    assert threads.lost == 0


def test_after_many_have_waited_and_hung_there_are_as_many_threads_as_ever() -> None:
    threads, go_on = Threads(3, "test", lost_max=3), threading.Event()

    async def story() -> set[str]:
        for _ in range(3):
            await asyncio.gather(*(threads.run(lambda: None, 10) for _ in range(50)))  # most of them wait
            hung = [threads.run(go_on.wait, 0.01) for _ in range(6)]
            assert {type(each) for each in await asyncio.gather(*hung, return_exceptions=True)} == {TimeoutError}
            go_on.set()
            while threads.lost:  # noqa: ASYNC110 - a thread says nothing of its end
                await asyncio.sleep(0)
            go_on.clear()
        together, seen = threading.Barrier(3), set[str]()

        def work() -> None:
            together.wait(10)  # passes only while three are in here at once
            seen.add(threading.current_thread().name)

        await asyncio.gather(*(threads.run(work, 20) for _ in range(30)))
        return seen

    assert len(asyncio.run(story())) == 3
    threads.close(wait=True)


def test_what_a_call_holds_is_let_go_with_its_end_though_it_was_cancelled() -> None:
    threads, go_on = Threads(1, "test"), threading.Event()

    class Held:
        def work(self) -> bool:
            began.set()
            return go_on.wait(10)

    began, gone = threading.Event(), threading.Event()

    async def story() -> None:
        held = Held()
        weakref.finalize(held, gone.set)
        asked = asyncio.ensure_future(threads.run(held.work, 60))
        del held
        await asyncio.to_thread(began.wait, 10)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        del asked
        go_on.set()
        assert await asyncio.to_thread(gone.wait, 10)

    asyncio.run(story())
    threads.close(wait=True)
