"""Agents that write at the same times on every side, each in a thread, and try again as their orchestrator would."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.patterns.records import CUT_OFF, Attempted
from bench.patterns.rows import Write

TRIES = 4
"""An orchestrator runs a failed task again, three times."""
BACKOFF_S = 1.0
CUT_OFF_EVERY_S = 0.2

NO_TURN = "no turn in time"
"""The failure of a write that waited for a turn when the run ended."""

Worker = Callable[[Sequence[Attempted]], None]
"""Writes once, one write or several together, and raises what the engine raises."""

Turn = Callable[[threading.Event], bool]
"""Waits for an agent's turn. False: the event was set before."""


@dataclass(frozen=True, slots=True)
class Timing:
    """When agents write.

    Attributes:
        seconds: for so long writes begin.
        period_s: between the beginnings of an agent's writes; a write that comes late begins when the last one ends.
        grace_s: for so much longer they may end; then they are cut off.
    """

    seconds: float
    period_s: float
    grace_s: float

    @property
    def writes(self) -> int:
        """Of each agent, if none comes late."""
        return max(1, round(self.seconds / self.period_s))


def run_agents(
    workers: Sequence[Worker],
    writes: Sequence[Sequence[Write]],
    timing: Timing,
    kind_of: Callable[[Exception], str],
    cut_off: Callable[[], None],
    turns: Mapping[int, Turn] | None = None,
) -> tuple[int, list[Attempted]]:
    """Let all agents write; returns when they began, and what they began.

    Args:
        workers: one for each agent.
        writes: of each agent.
        kind_of: names a failure.
        cut_off: ends what still runs; called until all agents have ended.
        turns: of agents that must wait for theirs, by number. Such an agent then writes all that it has decided as one.
    """
    waits = turns or {}
    attempts: list[list[Attempted]] = [[] for _ in workers]
    stop = threading.Event()
    start_s = time.monotonic() + 0.1
    began_ms = round((time.time() + start_s - time.monotonic()) * 1000)

    def agent(number: int) -> None:
        draws = random.Random(number)
        for at, write in enumerate(writes[number]):
            due_s = start_s + (number / len(workers) + at) * timing.period_s
            stop.wait(max(0.0, due_s - time.monotonic()))
            if stop.is_set() or time.monotonic() >= start_s + timing.seconds:
                return
            attempt = Attempted(write, round(time.time() * 1000))
            attempts[number].append(attempt)
            _write(workers[number], attempt, kind_of, stop, draws)

    def agent_in_turns(number: int) -> None:
        its = attempts[number]
        dues_s = [start_s + (number / len(workers) + at) * timing.period_s for at in range(len(writes[number]))]
        pending: list[Attempted] = []

        def decide() -> None:
            for at in range(len(its), sum(due_s <= time.monotonic() for due_s in dues_s)):
                its.append(Attempted(writes[number][at], began_ms + round((dues_s[at] - start_s) * 1000)))
                pending.append(its[-1])

        while not stop.is_set() and (pending or len(its) < len(dues_s)):
            if not pending:
                stop.wait(max(0.0, dues_s[len(its)] - time.monotonic()))
            if not waits[number](stop):
                break
            decide()
            if pending:
                _try(workers[number], pending, kind_of, stop)
                pending = [each for each in pending if not each.answered and len(each.tries_ms) < TRIES]
        decide()
        for each in pending:
            if not each.tries_ms:
                each.failures.append(NO_TURN)

    threads = [
        threading.Thread(target=agent_in_turns if number in waits else agent, args=(number,))
        for number in range(len(workers))
    ]
    for thread in threads:
        thread.start()
    end_s = start_s + timing.seconds + timing.grace_s
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    stop.set()
    for thread in threads:
        while thread.is_alive():
            cut_off()
            thread.join(CUT_OFF_EVERY_S)
    return began_ms, [attempt for its in attempts for attempt in its]


def _write(
    worker: Worker, attempt: Attempted, kind_of: Callable[[Exception], str], stop: threading.Event, draws: random.Random
) -> None:
    for again in range(TRIES):
        if _try(worker, [attempt], kind_of, stop) or stop.wait(draws.uniform(0.0, BACKOFF_S * 2**again)):
            return


def _try(worker: Worker, its: Sequence[Attempted], kind_of: Callable[[Exception], str], stop: threading.Event) -> bool:
    """Write once, all of these together; they share the time that it takes."""
    began_s = time.monotonic()
    failure = ""
    try:
        worker(its)
    except Exception as error:  # noqa: BLE001 - whatever it is, the writes were not acknowledged
        failure = CUT_OFF if stop.is_set() else kind_of(error)
    for each in its:
        each.answered = not failure
        each.failures += [failure] if failure else []
        each.tries_ms.append((time.monotonic() - began_s) * 1000 / len(its))
    return not failure
