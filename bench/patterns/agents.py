"""Agents that write at the same times on every side, each in a thread, and try again as their orchestrator would."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.patterns.records import CUT_OFF, Attempted
from bench.patterns.rows import Write

TRIES = 4
"""An orchestrator runs a failed task again, three times."""
BACKOFF_S = 1.0

Worker = Callable[[Attempted], None]
"""Writes once, and raises what the engine raises."""


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
) -> tuple[int, list[Attempted]]:
    """Let all agents write; returns when they began, and what they began.

    Args:
        workers: one for each agent.
        writes: of each agent.
        kind_of: names a failure.
        cut_off: ends what still runs; called until all agents have ended.
    """
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

    threads = [threading.Thread(target=agent, args=(number,)) for number in range(len(workers))]
    for thread in threads:
        thread.start()
    end_s = start_s + timing.seconds + timing.grace_s
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    stop.set()
    while any(thread.is_alive() for thread in threads):
        cut_off()
        time.sleep(0.2)
    return began_ms, [attempt for its in attempts for attempt in its]


def _write(
    worker: Worker, attempt: Attempted, kind_of: Callable[[Exception], str], stop: threading.Event, draws: random.Random
) -> None:
    for again in range(TRIES):
        began_s = time.monotonic()
        try:
            worker(attempt)
            attempt.answered = True
        except Exception as error:  # noqa: BLE001 - whatever it is, the write was not acknowledged
            attempt.failures.append(CUT_OFF if stop.is_set() else kind_of(error))
        attempt.tries_ms.append((time.monotonic() - began_s) * 1000)
        if attempt.answered or stop.wait(draws.uniform(0.0, BACKOFF_S * 2**again)):
            return
