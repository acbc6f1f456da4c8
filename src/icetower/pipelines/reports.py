"""What jobs tell the tower of what they have found: for its page, its metrics and its alerts (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from icetower.ambient import Ambient, SystemAmbient
from icetower.errors import IcetowerError, NotAuthenticated, NotFound


class LagTower(Protocol):
    """A tower that hears of lags, such as the SDK's."""

    def report_lag(self, kind: Literal["wal", "collector"], lags_s: Mapping[str, float]) -> None: ...


class OrphanTower(Protocol):
    """A tower that hears of orphans, such as the SDK's."""

    def report_orphans(self, tables: Sequence[str], orphans: Sequence[Mapping[str, Any]]) -> None: ...


REPORTED_MAX = 1_000
"""Tables, and rows, of one report of orphans."""
AGAIN_S = 30.0
"""What has not changed is said again after this time: a lag of which nothing is heard grows."""


class LagReports:
    """Reports lags to a tower, now and then. Whether they arrive changes nothing of the job.

    Args:
        connect: opens the tower.
        kind: rows come from a write-ahead log, or from a delta table.
        refused: hears of an error upon which no more is reported.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[LagTower]],
        kind: Literal["wal", "collector"],
        refused: Callable[[IcetowerError], None] = lambda _: None,
        ambient: Ambient | None = None,
    ) -> None:
        self._connect = connect
        self._kind: Literal["wal", "collector"] = kind
        self._on_refusal = refused
        self._ambient = ambient or SystemAmbient()
        self._said: dict[str, tuple[float, float]] = {}
        self._refused = False

    def __call__(self, job: Any, lag_s: float) -> None:
        """Of a job (`wal_mediator.Job`), in seconds."""
        table, now_s = job.target.partition(".")[2], self._ambient.monotonic_s()
        before = self._said.get(table)
        if self._refused or (before is not None and before[0] == lag_s and now_s < before[1] + AGAIN_S):
            return
        self._said[table] = (lag_s, now_s)
        try:
            with self._connect() as tower:
                tower.report_lag(self._kind, {table: lag_s})
        except (NotFound, NotAuthenticated):  # another catalog, or one whose credential only the session has
            self._refused = True
        except IcetowerError as error:
            if error.status < 500:
                self._refused = True
                self._on_refusal(error)

    def after(self, batch: Callable[[], Any], job: Any) -> Callable[[], Any]:
        """The same work, with a report of the lag after each batch, and of none where nothing is new."""

        def done_and_said() -> Any:
            done = batch()
            if done.status != "applied":
                self(job, 0.0)
            elif done.lag_max_ms is not None:
                self(job, done.lag_max_ms / 1000)
            return done

        return done_and_said


def report_orphans(tower: OrphanTower, left: Mapping[str, Iterable[tuple[str, int]]]) -> None:
    """Say which orphaned files are left, those of whom most is left first.

    Args:
        left: by each table that was looked through, `namespace.table`: of each file that is left there the principal
            that left it, empty where nobody knows, and its bytes.
    """
    sums: dict[tuple[str, str], list[int]] = {}
    for table, files in left.items():
        for principal, size_bytes in files:
            counts = sums.setdefault((table, principal), [0, 0])
            counts[0] += 1
            counts[1] += size_bytes
    most = sorted(sums.items(), key=lambda each: -each[1][0])[:REPORTED_MAX]
    found = [
        {"table": table, "principal": principal, "files": files, "bytes": size_bytes}
        for (table, principal), (files, size_bytes) in most
    ]
    tower.report_orphans([*left][:REPORTED_MAX], found)
