"""The agent processes of one side: started together, watched through their journals, started again when killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from icetower.ambient import SystemAmbient
from icetower.demo import journal, plan
from icetower.demo.agents import Job
from icetower.demo.plan import Agent, Engine
from icetower.errors import IcetowerError
from icetower.pipelines.interrupts import before_leaving

_POLL_S = 0.2
_RESTARTS_MAX = 1
_MODULES: Mapping[Engine, str] = {
    Engine.PYICEBERG: "icetower.demo.agents",
    Engine.SPARK: "icetower.demo.spark_agents",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The journals of one side, summed up.

    Attributes:
        planned: batches that the agents had to write.
        commits: batches acknowledged; each counts once.
        errors: sendings of a batch that ended with an error, after the client's own retries.
        failed: batches that were sent and never acknowledged.
        resent: batches that were acknowledged, but only when their agent sent them anew after an error.
        refused: commits refused by contract.
        strayed: commits outside a contract that were accepted.
        repeated: commits that were sent again on purpose, with the key of one that had been acknowledged.
        landed: acknowledged commits by how they landed; see `Landing`, and `after retries`.
        span_s: from the common start to the last answer that an agent got.
        killed: agents that were killed and started again.
        unfinished: batches that were not begun.
    """

    planned: int
    commits: int
    errors: int
    failed: int
    resent: int
    refused: int
    strayed: int
    repeated: int
    landed: Mapping[str, int]
    latencies_ms: tuple[float, ...]
    span_s: float
    killed: tuple[str, ...]
    unfinished: int

    @property
    def commits_per_s(self) -> float:
        return self.commits / self.span_s if self.span_s > 0 else 0.0


class AgentProcesses:
    """Runs each job in an operating system process of its own; their logs go into `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clock = SystemAmbient()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._go_ms = 0

    def run(self, jobs: Sequence[Job], progress: Callable[[Mapping[str, int]], None]) -> Outcome:
        """Start all, let them begin together when all are ready, and wait. `progress` gets the commits by agent.

        Raises `IcetowerError` when a process ends with an error twice.
        """
        restarts: Counter[str] = Counter()
        killed: list[str] = []
        try:
            for job in jobs:
                self._start(job)
            self._await_ready(jobs)
            Path(jobs[0].go).touch()
            self._go_ms = self._clock.now_ms()
            pause = threading.Event()
            while self._processes:
                pause.wait(_POLL_S)
                progress({job.agent: len(journal.acknowledged_batches(Path(job.journal))) for job in jobs})
                for job in jobs:
                    status = self._reap(job.agent)
                    if status is None or status == 0:
                        continue
                    if restarts[job.agent] == _RESTARTS_MAX:
                        raise IcetowerError(self._failure_text(job, status))
                    if status == -signal.SIGKILL:
                        killed.append(job.agent)
                    restarts[job.agent] += 1
                    self._start(replace(job))
        finally:
            self._end()
        return outcome_of(jobs, self._go_ms, tuple(killed))

    @property
    def go_ms(self) -> int:
        """When the last run's common start was, milliseconds since 1970."""
        return self._go_ms

    def _start(self, job: Job) -> None:
        engine = plan.agent_named(job.agent).engine
        with self._log(job).open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", _MODULES[engine]],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Ten processes on two cores gain nothing from threads of their own.
                env={**os.environ, "PYICEBERG_MAX_WORKERS": "2", "OMP_NUM_THREADS": "1"},
            )
        before_leaving(process.kill)
        assert process.stdin is not None, "stdin is a pipe"
        # The job carries a credential: it is neither an argument nor a file.
        process.stdin.write(job.to_json().encode())
        process.stdin.close()
        self._processes[job.agent] = process

    def _await_ready(self, jobs: Sequence[Job]) -> None:
        pause = threading.Event()
        waiting = {job.agent: job for job in jobs}
        while waiting:
            for name, job in list(waiting.items()):
                if any(entry["event"] == journal.READY for entry in journal.entries(Path(job.journal))):
                    del waiting[name]
                elif (status := self._processes[name].poll()) is not None:
                    raise IcetowerError(self._failure_text(job, status))
            pause.wait(_POLL_S)

    def _reap(self, name: str) -> int | None:
        process = self._processes.get(name)
        status = process.poll() if process is not None else None
        if status is not None:
            del self._processes[name]
        return status

    def _end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._processes.clear()

    def _log(self, job: Job) -> Path:
        return self._folder / f"{job.agent}.log"

    def _failure_text(self, job: Job, status: int) -> str:
        tail = self._log(job).read_text(encoding="utf-8", errors="replace")[-2000:]
        return f"agent {job.agent} ended with status {status}; the end of {self._log(job)}:\n{tail}"


def outcome_of(jobs: Sequence[Job], go_ms: int, killed: tuple[str, ...] = ()) -> Outcome:
    """The journals of `jobs`, summed up."""
    events: Counter[str] = Counter()
    landed: Counter[str] = Counter()
    latencies: list[float] = []
    resent, failed, planned, last_ms = 0, 0, 0, go_ms
    for job in jobs:
        planned += plan.agent_named(job.agent).batches(job.days)
        failing: set[int] = set()
        for entry in journal.entries(Path(job.journal)):
            events[entry["event"]] += 1
            last_ms = max(last_ms, entry.get("at_ms", go_ms))
            if entry["event"] == journal.FAILED:
                failing.add(entry["batch"])
            if entry["event"] != journal.ACKNOWLEDGED:
                continue
            resent += entry["batch"] in failing
            failing.discard(entry["batch"])
            latencies.append(entry["latency_ms"])
            landed["after retries" if entry["retries"] else entry["landed"]] += 1
        failed += len(failing)
    return Outcome(
        planned=planned,
        commits=events[journal.ACKNOWLEDGED],
        errors=events[journal.FAILED],
        failed=failed,
        resent=resent,
        refused=events[journal.REFUSED],
        strayed=events[journal.STRAYED],
        repeated=events[journal.REPEATED],
        landed=dict(landed),
        latencies_ms=tuple(latencies),
        span_s=(last_ms - go_ms) / 1000,
        killed=killed,
        unfinished=max(0, planned - events[journal.ACKNOWLEDGED] - failed),
    )


def make_jobs(
    folder: Path,
    source: Path,
    *,
    days: int,
    seed: int,
    catalogs: Mapping[str, Mapping[str, str]],
    latency: str = "none",
    agents: Sequence[Agent] = plan.AGENTS,
) -> tuple[Job, ...]:
    """One job for each agent; `catalogs` maps its name to the properties of its catalog, credential included."""
    return tuple(
        Job(
            agent=agent.name,
            days=days,
            seed=seed,
            source=str(source),
            journal=str(folder / f"{agent.name}.jsonl"),
            go=str(folder / "go"),
            catalog=catalogs[agent.name],
            latency=latency,
            latency_seed=seed * 1000 + number,
        )
        for number, agent in enumerate(agents)
    )
