"""Many runs in a few processes. A run depends on its setup and seed alone, so it is the same in every process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import active_children, get_context

from icetower_simulator.latencies import PROVIDERS, Provider
from icetower_simulator.optimistic import simulate
from icetower_simulator.served import serve
from icetower_simulator.setup import Setup
from icetower_simulator.tallies import Outcome

Job = tuple[Setup, int]
"""A setup and a seed."""


def run_one(setup: Setup, seed: int, providers: Mapping[str, Provider] | None = None) -> Outcome:
    """One run of any pattern. The same setup and seed give the same result. Raises `ConfigurationError`."""
    return (simulate if setup.pattern == "optimistic" else serve)(setup, seed, providers or PROVIDERS)


def run_all(
    jobs: Sequence[Job], workers: int | None = None, providers: Mapping[str, Provider] | None = None
) -> Iterator[tuple[int, Outcome]]:
    """Do all jobs; yields each one's position and outcome as soon as it is done.

    Args:
        providers: all that setups may name; None: those of the package.
        workers: processes; None: one for each processor. With one, everything happens in this process.
    """
    count = min(workers or os.cpu_count() or 1, len(jobs))
    if count <= 1:
        for position, (setup, seed) in enumerate(jobs):
            yield position, run_one(setup, seed, providers)
        return
    compile_now({setup.pattern for setup, _ in jobs})  # once, before every worker would do it
    # Long jobs first, so that none keeps a single worker busy at the end.
    order = sorted(range(len(jobs)), key=lambda position: (_gap_ms(jobs[position][0]), position))
    others = active_children()
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        try:
            with _without_interrupts():  # these start the workers
                under_way = {pool.submit(run_one, *jobs[position], providers): position for position in order[:count]}
            under_way |= {pool.submit(run_one, *jobs[position], providers): position for position in order[count:]}
            for done in as_completed(under_way):
                yield under_way.pop(done), done.result()
        except BaseException:
            for worker in active_children():  # nobody waits for what they are doing
                if worker not in others:
                    worker.terminate()
            raise


@contextmanager
def _without_interrupts() -> Generator[None]:
    """What is started within does not hear Ctrl-C, which a terminal sends to all processes: who has started it ends it.

    A process that hears it while Python is being set up in it prints a fatal error, and so does one whose parent goes
    while it starts. So this one hears it afterwards.
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    # Some thread of a library takes the signal where this one blocks it, and has the handler called all the same.
    handler = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if heard:
        signal.raise_signal(signal.SIGINT)


def _gap_ms(setup: Setup) -> float:
    return setup.mean_gap_ms / setup.duration_s


def compile_now(patterns: Collection[str]) -> None:
    """Compile the code for some patterns, or load what was compiled before."""
    for pattern in {"optimistic" if pattern == "optimistic" else "group" for pattern in patterns}:
        run_one(Setup(duration_s=1.0, inter_arrival_ms=500.0, pattern=pattern), 0)


def outcomes_of(
    jobs: Sequence[Job],
    workers: int | None,
    on_done: Callable[[], None] = lambda: None,
    providers: Mapping[str, Provider] | None = None,
) -> list[Outcome]:
    """The outcomes in the order of their jobs. `on_done` is called after each job."""
    found: dict[int, Outcome] = {}
    for position, outcome in run_all(jobs, workers, providers):
        found[position] = outcome
        on_done()
    return [found[position] for position in range(len(jobs))]
