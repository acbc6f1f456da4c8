"""What clients report of a commit (specification: rest-catalog-open-api.yaml, `ReportMetricsRequest`, `CommitReport`).

A report says how often its client sent the commit until it landed, and how long that took: the server sees requests,
and not which of them are tries of one write.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from icetower.protocol.wire import LONG_MAX, LONG_MIN, read_object
from icetower.texts import printable

ATTEMPTS_MAX = 1_000_000
OPERATION_CHARACTERS_MAX = 32
NANOSECONDS = {"nanoseconds": 1, "microseconds": 1_000, "milliseconds": 1_000_000, "seconds": 1_000_000_000}
"""Of Java's time units, those in which clients report."""


class Report(NamedTuple):
    """What is kept of a `CommitReport`.

    Attributes:
        attempts: requests that it took, the last one included.
        total_ms: None where the report does not say, or says nonsense.
    """

    snapshot_id: int
    operation: str
    attempts: int
    total_ms: float | None


def parse_report(body: bytes) -> Report | None:
    """The report; None where it is about no commit, such as a scan's, or does not count attempts.

    Raises `BadRequest` where it is no JSON object. What else may be wrong with it is of no use to anybody, and no fault
    that a client should hear of: it would only fail a job that has done its work.
    """
    report = read_object(body, "metrics report")
    metrics, snapshot = report.get("metrics"), _whole(report.get("snapshot-id"))
    if report.get("report-type") != "commit-report" or not isinstance(metrics, dict) or snapshot is None:
        return None
    counter: Any = metrics.get("attempts")
    attempts = _whole(counter.get("value")) if isinstance(counter, dict) else None
    if attempts is None or not 1 <= attempts <= ATTEMPTS_MAX:
        return None
    operation = printable(str(report.get("operation")))[:OPERATION_CHARACTERS_MAX]
    return Report(snapshot, operation, attempts, _total_ms(metrics))


def _total_ms(metrics: dict[str, Any]) -> float | None:
    timer: Any = metrics.get("total-duration")
    if not isinstance(timer, dict):
        return None
    total, unit = _whole(timer.get("total-duration")), NANOSECONDS.get(str(timer.get("time-unit")).lower())
    return total * unit / 1e6 if total is not None and total >= 0 and unit is not None else None


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if LONG_MIN <= value <= LONG_MAX else None
