"""What jobs tell the tower, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from icetower.errors import Forbidden, IcetowerError, NotFound, Unavailable
from icetower.pipelines.reports import AGAIN_S, LagReports, report_orphans
from verify.kit.clock import Clock

JOB = SimpleNamespace(target="tower.shop.sales")


class FakeTower:
    """Hears reports; answers each with the next of `answers`, and then with none."""

    def __init__(self, *answers: IcetowerError) -> None:
        self.answers = list(answers)
        self.heard: list[tuple[str, dict[str, float]]] = []

    def __enter__(self) -> FakeTower:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def report_lag(self, kind: str, lags_s: Mapping[str, float]) -> None:
        self.heard.append((kind, dict(lags_s)))
        if self.answers:
            raise self.answers.pop(0)


def reports(tower: Any, clock: Clock, refused: list[str]) -> LagReports:
    return LagReports(lambda: tower, "wal", lambda error: refused.append(error.rule), clock)


def test_what_changes_is_said_at_once_and_what_does_not_now_and_then() -> None:
    tower, clock = FakeTower(), Clock()
    said = reports(tower, clock, [])
    for lag_s in (3.0, 0.0, 0.0, 0.0):
        said(JOB, lag_s)
    clock.time_ms += int(AGAIN_S * 1000)
    said(JOB, 0.0)
    assert tower.heard == [("wal", {"shop.sales": lag_s}) for lag_s in (3.0, 0.0, 0.0)]


@pytest.mark.parametrize(
    ("answer", "heard", "told"),
    [(Unavailable("away"), 3, []), (NotFound("no such route"), 1, []), (Forbidden("no", rule="x"), 1, ["x"])],
    ids=["a tower that is away", "another catalog", "a job that may not"],
)
def test_a_report_that_does_not_arrive_stops_no_job(answer: IcetowerError, heard: int, told: list[str]) -> None:
    tower, refused = FakeTower(answer), list[str]()
    said = reports(tower, Clock(), refused)
    for lag_s in (1.0, 2.0, 3.0):
        said(JOB, lag_s)
    assert (len(tower.heard), refused) == (heard, told)


def test_each_batch_of_a_single_run_is_said_and_the_end_too() -> None:
    tower = FakeTower()
    batches = [SimpleNamespace(status="applied", lag_max_ms=ms) for ms in (2500, None)]
    batches.append(SimpleNamespace(status="idle", lag_max_ms=None))
    batch = reports(tower, Clock(), []).after(lambda: batches.pop(0), JOB)
    assert [batch().status for _ in range(3)] == ["applied", "applied", "idle"]
    assert [lags_s["shop.sales"] for _, lags_s in tower.heard] == [2.5, 0.0]


def test_orphans_are_summed_by_table_and_by_who_left_them() -> None:
    heard: list[Any] = []
    tower: Any = SimpleNamespace(report_orphans=lambda tables, orphans: heard.append((tables, orphans)))
    report_orphans(tower, {"s.t": [("ann", 3), ("", 1), ("ann", 4)], "s.clean": []})
    assert heard == [
        (
            ["s.t", "s.clean"],
            [
                {"table": "s.t", "principal": "ann", "files": 2, "bytes": 7},
                {"table": "s.t", "principal": "", "files": 1, "bytes": 1},
            ],
        )
    ]
