"""Questions to a database that are asked together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from icetower.database import Together


class Oracle:
    """Answers a question by itself and the number of the round; a round waits until it is let go."""

    def __init__(self) -> None:
        self.rounds: list[list[str]] = []
        self.gates: list[asyncio.Event] = []
        self.error: Exception | None = None

    async def answer(self, questions: Sequence[str]) -> dict[str, str]:
        self.rounds.append(list(questions))
        self.gates.append(asyncio.Event())
        number = len(self.rounds)
        await self.gates[-1].wait()
        if self.error is not None:
            raise self.error
        return {question: f"{question}{number}" for question in questions}

    async def round(self, number: int) -> None:
        """Wait until so many rounds have begun."""
        for _ in range(100):
            if len(self.rounds) == number:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"{len(self.rounds)} rounds began, not {number}")


def test_no_answer_is_older_than_its_question() -> None:
    """Who asks while a round is under way is not answered by it, though it was asked the same."""

    async def story() -> None:
        oracle = Oracle()
        together = Together(oracle.answer)
        first = asyncio.create_task(together.ask("a"))
        await oracle.round(1)
        late = [asyncio.create_task(together.ask(question)) for question in ("a", "b", "a")]
        await asyncio.sleep(0)
        oracle.gates[0].set()
        await oracle.round(2)
        oracle.gates[1].set()
        assert await first == "a1"
        assert await asyncio.gather(*late) == ["a2", "b2", "a2"]
        assert oracle.rounds == [["a"], ["a", "b"]]

    asyncio.run(story())


def test_who_gives_up_does_not_take_the_answer_from_the_others() -> None:
    async def story() -> None:
        oracle = Oracle()
        together = Together(oracle.answer)
        askers = [asyncio.create_task(together.ask("a")) for _ in range(3)]
        await oracle.round(1)
        askers[0].cancel()
        oracle.gates[0].set()
        assert await asyncio.gather(*askers[1:]) == ["a1", "a1"]
        assert isinstance((await asyncio.gather(askers[0], return_exceptions=True))[0], asyncio.CancelledError)

    asyncio.run(story())


def test_a_failed_round_fails_those_in_it_and_the_next_one_is_asked_anew() -> None:
    async def story() -> None:
        oracle = Oracle()
        together = Together(oracle.answer)
        oracle.error = RuntimeError("no database")
        asked = [asyncio.create_task(together.ask(question)) for question in ("a", "b")]
        await oracle.round(1)
        oracle.gates[0].set()
        assert [str(error) for error in await asyncio.gather(*asked, return_exceptions=True)] == ["no database"] * 2
        oracle.error = None
        again = asyncio.create_task(together.ask("a"))
        await oracle.round(2)
        oracle.gates[1].set()
        assert await again == "a2"

    asyncio.run(story())


def test_an_end_leaves_nobody_waiting() -> None:
    async def story() -> None:
        oracle = Oracle()
        together = Together(oracle.answer)
        asked = asyncio.create_task(together.ask("a"))
        await oracle.round(1)
        assert together._asking is not None
        together._asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(story())
