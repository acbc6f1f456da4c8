"""Mediates logs, or folds delta tables, for as long as it runs: one session, several targets, a batch of what is new.

It is a loop of its own and not Structured Streaming. A streaming query keeps its progress in a checkpoint, beside the
table; the mediator's progress is in the table's own history, committed with the rows, and moves back with a rollback.
Two of them would disagree after a crash or a rollback. And a stream of an Iceberg table ends at the first snapshot that
removes rows, which a log that is pruned has all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from icetower.ambient import Ambient, SystemAmbient
from icetower.errors import IcetowerError
from icetower.iceberg.metadata import current_snapshot_id
from icetower.pipelines.tables import load_metadata, private_session
from icetower.pipelines.wal_logs import Logs
from icetower.pipelines.wal_mediator import Job, Mediation, mediate
from icetower.pipelines.wal_pruning import Pruned, prune

EVERY_S = 5.0
BACK_OFF_MAX_S = 60.0
PRUNE_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Failure:
    """A job that did not succeed, and is tried again after `again_in_s` seconds."""

    job: Job
    error: IcetowerError
    again_in_s: float

    def to_json(self) -> dict[str, Any]:
        of = {"wal": self.job.wal, "target": self.job.target, "rule": self.error.rule, "message": self.error.message}
        return {"status": "failed", **of, "again_in_s": self.again_in_s}


@dataclass(slots=True)
class _State:
    """What is known of one job.

    Attributes:
        heads: of the log and the target, when there was nothing to do.
        failures: in a row.
        not_before_s: by the monotonic clock, when it may be tried again.
    """

    heads: tuple[int | None, int | None] | None = None
    failures: int = 0
    not_before_s: float = 0.0


@dataclass(slots=True)
class Follower:
    """Mediates jobs in turn, one batch of each.

    Args:
        spark: the session of all jobs; a private one of it is used for all batches.
        jobs: called before each round, so that contracts that change count from the next one.
        on: hears of each batch, pruning and failure.
        every_s: the time between the beginnings of two rounds, if none of the jobs has more to do. So it is the longest
            time for which rows of a log are collected into a batch.
        keep_s: prune rows that landed in the log longer ago; None: never.
        on_lag: hears how far a job's target is behind its log by now, in seconds: after each batch, and 0 where there
            is nothing new. Of a job that fails it hears nothing.
        work: takes the next batch of a job, with the clock as its argument `ambient`.
        ambient: the clock.
    """

    spark: SparkSession
    jobs: Callable[[], Sequence[Job]]
    on: Callable[[Mediation | Pruned | Failure], None]
    every_s: float = EVERY_S
    keep_s: float | None = None
    on_lag: Callable[[Job, float], None] | None = None
    work: Callable[..., Any] = mediate
    ambient: Ambient = field(default_factory=SystemAmbient)
    _states: dict[tuple[str, str], _State] = field(default_factory=dict[tuple[str, str], _State])
    _pruned_s: dict[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        self.spark = private_session(self.spark)

    def follow(self, wait: Callable[[float], bool]) -> None:
        """Run until `wait` says so.

        Args:
            wait: waits for that many seconds; True ends the loop.

        Raises `IcetowerError` only if `jobs` does so the first time: later it is a failure like others.
        """
        jobs = self.jobs()
        while True:
            began_s = self.ambient.monotonic_s()
            busy = [self._turn(job) for job in jobs]
            if self.keep_s is not None:
                self._prune(jobs, self.keep_s)
            rest_s = 0.0 if any(busy) else max(began_s + self.every_s - self.ambient.monotonic_s(), 0.0)
            if wait(rest_s):
                return
            try:
                jobs = self.jobs()
            except IcetowerError as error:
                for job in jobs:
                    self.on(Failure(job, error, self.every_s))

    def _turn(self, job: Job) -> bool:
        """One batch of a job, if it has one; whether it may have another one at once."""
        state = self._states.setdefault((job.wal, job.target), _State())
        if self.ambient.monotonic_s() < state.not_before_s:
            return False
        try:
            heads = self._heads(job)
            if heads == state.heads:
                self._lags(job, 0.0)
                return False
            done = self.work(self.spark, job, ambient=self.ambient)
        except IcetowerError as error:
            again_in_s = min(2.0**state.failures, BACK_OFF_MAX_S)
            state.failures += 1
            state.not_before_s = self.ambient.monotonic_s() + again_in_s
            self.on(Failure(job, error, again_in_s))
            return False
        state.failures = 0
        if done.status == "idle":
            state.heads = heads
            self._lags(job, 0.0)
            return False
        state.heads = None
        self.on(done)
        if done.lag_max_ms is not None:
            self._lags(job, done.lag_max_ms / 1000)
        # Rows that landed during the batch can wait for the next round, what its bounds left cannot.
        return done.through_snapshot != heads[0]

    def _lags(self, job: Job, lag_s: float) -> None:
        if self.on_lag is not None:
            self.on_lag(job, lag_s)

    def _heads(self, job: Job) -> tuple[int | None, int | None]:
        wal, target = (current_snapshot_id(load_metadata(self.spark, name)) for name in (job.wal, job.target))
        return wal, target

    def _prune(self, jobs: Sequence[Job], keep_s: float) -> None:
        now_s = self.ambient.monotonic_s()
        for wal in dict.fromkeys(job.wal for job in jobs):
            if now_s < self._pruned_s.get(wal, now_s):
                continue
            self._pruned_s[wal] = now_s + PRUNE_EVERY_S
            of_it = [job for job in jobs if job.wal == wal]
            logs = Logs(self.spark, of_it[0].logs_in)
            try:
                done = prune(self.spark, wal, [job.target for job in of_it], logs, keep_s=keep_s, ambient=self.ambient)
            except IcetowerError as error:
                self.on(Failure(of_it[0], error, PRUNE_EVERY_S))
                continue
            if done.snapshot is not None:
                self.on(done)
