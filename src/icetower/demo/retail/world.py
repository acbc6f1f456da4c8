"""The processes of a run: the agents' and the jobs', killed as planned and started again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from icetower.ambient import SystemAmbient
from icetower.demo.retail import agents, inventory, jobs
from icetower.demo.retail.agents import AgentsJob, checkpoint_of
from icetower.demo.retail.hours import Hours
from icetower.demo.retail.jobs import Jobs, end_of
from icetower.demo.retail.notes import STAGES, Death, deaths_in, notes_in, read_lines
from icetower.demo.serving import Serving
from icetower.errors import IcetowerError
from icetower.pipelines.interrupts import before_leaving
from icetower.pipelines.wal_mediator import SNAPSHOTS_MAX

FAILURES_MAX = 12
"""Of processes that end without being killed: they are started again, and not for ever."""
STALLED_S = 900.0
"""How long nobody has to finish an hour before the run is given up."""
_LOOK_S = 0.2
_STOP_S = 20.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to do.

    Attributes:
        days: of the source.
        hours: only the first ones of these days in which anything was sold; None: all.
        hours_per_s: how many hours of the source are published in a second; None: all at once.
        kills: how often a process is killed, the agents' and the jobs' in turn, each time at another stage of another
            agent or job.
    """

    days: int
    hours: int | None
    hours_per_s: float | None
    kills: int
    seed: int


def deaths_of(plan: Plan, hours: int) -> list[Death]:
    """Where processes are killed: the agents' and the jobs' in turn, in ever later hours.

    Those of the jobs are in the first half of the hours: for each there must be work left.
    """
    random = Random(plan.seed)  # noqa: S311 - no secret
    turns = (_turns(dict.fromkeys(agents.NAMES, STAGES)), _turns(jobs.STAGES))
    width = max(1, (hours - 1) // max(1, -(-plan.kills // 2)))
    found: list[Death] = []
    for at in range(plan.kills):
        nth, of_jobs = divmod(at, 2)
        name, stage = turns[of_jobs][nth % len(turns[of_jobs])]
        hour = 1 + nth * width // 2 if of_jobs else 1 + nth * width + random.randrange(width)
        found.append(Death(name, min(hours, hour), stage))
    return found


def _turns(stages: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Every pair of a name and one of its stages, in an order in which both change from one to the next."""
    most = max(map(len, stages.values()))
    return [
        (name, its[(number + turn) % most])
        for turn in range(most)
        for number, (name, its) in enumerate(stages.items())
        if (number + turn) % most < len(its)
    ]


@dataclass
class World:
    """The processes of a run.

    Attributes:
        secrets: by principal, and that of the export.
        killed: the deaths that were died.
        failures: ends of processes that were not planned.
    """

    folder: Path
    serving: Serving
    secrets: Mapping[str, str]
    plan: Plan
    source: Hours
    killed: list[Death] = field(default_factory=list[Death])
    checkpoint_lost: bool = False
    failures: int = 0

    def run(self, hours: int, progress: Callable[[Mapping[str, int]], None]) -> None:
        """Run until the agents are done, and the jobs have done what was left."""
        left = deaths_of(self.plan, hours)
        pause, clock = threading.Event(), SystemAmbient()
        moved_s, seen = clock.monotonic_s(), ""
        working, helping = self._agents(left), self._jobs(left, hours)
        try:
            while True:
                notes = {name: read_lines(notes_in(self.folder, name)) for name in agents.NAMES}
                done = {name: max((note["hour"] for note in its), default=0) for name, its in notes.items()}
                progress(done)
                if (now := f"{done} {self._reported()}") != seen:
                    moved_s, seen = clock.monotonic_s(), now
                elif clock.monotonic_s() > moved_s + STALLED_S:
                    raise IcetowerError(
                        f"no agent finished an hour for {STALLED_S:.0f} s; {self.folder} has their logs"
                    )
                if not end_of(self.folder).exists() and (status := working.poll()) is not None:
                    if status == 0:
                        progress(dict.fromkeys(agents.NAMES, hours))
                        end_of(self.folder).touch()
                    else:
                        left = self._ended("agents", left)
                        working = self._agents(left)
                if (status := helping.poll()) is not None:
                    if status == 0:
                        break
                    left = self._ended("jobs", left)
                    helping = self._jobs(left, hours)
                pause.wait(_LOOK_S)
        finally:
            for process in (working, helping):
                _end(process)

    def _reported(self) -> int:
        """How much the jobs have reported."""
        files = (notes_in(self.folder, name) for name in jobs.STAGES)
        return sum(path.stat().st_size for path in files if path.exists())

    def _ended(self, process: str, left: Sequence[Death]) -> list[Death]:
        """The deaths that are left after a process ended."""
        died = [Death(**each) for each in read_lines(deaths_in(self.folder))]
        new = [each for each in died if each in left and (each.name in agents.NAMES) is (process == "agents")]
        self.killed += new
        if not new:
            self._failed(process)
        if not self.checkpoint_lost and any(death.name == inventory.NAME for death in new):
            shutil.rmtree(checkpoint_of(self.folder), ignore_errors=True)
            self.checkpoint_lost = True
        return [death for death in left if death not in new]

    def _failed(self, name: str) -> None:
        """Count a process that ended by itself. Raises `IcetowerError` if there are too many."""
        self.failures += 1
        if self.failures > FAILURES_MAX:
            log = self.folder / f"{name}.log"
            tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise IcetowerError(
                f"the processes of the run ended {self.failures} times by themselves; {log} ends:\n{tail}"
            )

    def _agents(self, deaths: Sequence[Death]) -> subprocess.Popen[bytes]:
        secrets = {name: self.secrets[name] for name in agents.NAMES}
        job = AgentsJob(self.serving.uri, secrets, str(self.folder), str(self.source.folder), tuple(deaths))
        return self._started("agents", job.to_json())

    def _jobs(self, deaths: Sequence[Death], hours: int) -> subprocess.Popen[bytes]:
        """With many deaths batches are small, so that there is one for each of them."""
        secrets = {name: self.secrets[name] for name in (*jobs.PRINCIPALS, jobs.EXPORT)}
        most = max(sum(death.name == name for death in deaths_of(self.plan, hours)) for name in jobs.STAGES)
        snapshots_max = max(1, hours // (2 * most)) if most > 1 else SNAPSHOTS_MAX
        job = Jobs(self.serving.uri, secrets, str(self.folder), snapshots_max, tuple(deaths))
        return self._started("jobs", job.to_json())

    def _started(self, name: str, job: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - our own programs
                [sys.executable, "-m", f"icetower.demo.retail.{name}"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ,
            )
        before_leaving(process.terminate)
        assert process.stdin is not None
        process.stdin.write(job.encode())
        process.stdin.close()
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, and its JVM with it."""
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
