"""The metrics of a tower by agent or by table, added up from its rows by agent, table and window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from icetower.agent import Tower

HOT_MAX = 3
ROWS_MAX = 20_000
"""Rows of windows that figures are made of, newest first; further ones are left out."""
PAGE_MAX = 1_000

_COUNTS = ("attempts", "landed", "refused", "conflicts", "unknown", "retries", "first_tries", "first_try_landed")


@dataclass(slots=True)
class Figures:
    """The figures of one agent, or of one table, over a time.

    Attributes:
        counts: by the names of `system.agent_write_metrics`.
        p50_ms: of all rows the longest median latency, as percentiles cannot be added up; likewise `p99_ms`.
        hot: the partitions with most conflicts, and how many.
    """

    name: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    p50_ms: float | None = None
    p99_ms: float | None = None
    hot: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, row: Mapping[str, Any]) -> None:
        for name in _COUNTS:
            self.counts[name] += int(row.get(name) or 0)
        self.p50_ms = _longer(self.p50_ms, row.get("latency_p50_ms"))
        self.p99_ms = _longer(self.p99_ms, row.get("latency_p99_ms"))
        for each in row.get("hot_partitions") or ():
            partition = str(each["partition"])
            self.hot[partition] = self.hot.get(partition, 0) + int(each["conflicts"])

    @property
    def first_try_rate(self) -> float | None:
        """Of the writes, the fraction whose first attempt landed; None without one."""
        tries = self.counts["first_tries"]
        return self.counts["first_try_landed"] / tries if tries else None

    @property
    def hottest(self) -> list[tuple[str, int]]:
        """A few partitions with conflicts, most first."""
        ordered = sorted(self.hot.items(), key=lambda each: (-each[1], each[0]))
        return [each for each in ordered if each[1]][:HOT_MAX]

    def to_json(self, seconds: float) -> dict[str, Any]:
        return {
            "name": self.name,
            "commits_per_s": self.counts["landed"] / seconds,
            **self.counts,
            "first_try_success_rate": self.first_try_rate,
            "latency_p50_ms": self.p50_ms,
            "latency_p99_ms": self.p99_ms,
            "hot_partitions": [{"partition": name, "conflicts": count} for name, count in self.hottest],
        }


def by(key: str, rows: Iterable[Mapping[str, Any]]) -> list[Figures]:
    """Figures by ``principal`` or ``table``, the busiest first."""
    found: dict[str, Figures] = {}
    for row in rows:
        name = str(row[key])
        found.setdefault(name, Figures(name)).add(row)
    return sorted(found.values(), key=lambda each: (-each.counts["attempts"], each.name))


def _longer(known: float | None, other: float | None) -> float | None:
    return known if other is None else other if known is None else max(known, other)


@dataclass(frozen=True, slots=True)
class Windows:
    """The rows of the windows that a time touches: from the beginning of the first one, `since_ms`, until `now_ms`."""

    rows: list[dict[str, Any]]
    since_ms: int
    now_ms: int

    @property
    def seconds(self) -> float:
        return max(self.now_ms - self.since_ms, 1) / 1000


def windows(tower: Tower, last_s: float, now_ms: int, principal: str | None = None) -> Windows:
    """What attempts came to lately, in whole windows. Raises `NotFound` of a tower that has no metrics."""
    since_ms = now_ms - round(last_s * 1000)
    page = tower.metrics(since_ms=since_ms, principal=principal, limit=PAGE_MAX)
    width_ms = int(page["window_s"]) * 1000
    first_ms = since_ms - since_ms % width_ms
    if first_ms < since_ms:  # a window that began before counts, too
        page = tower.metrics(since_ms=first_ms, principal=principal, limit=PAGE_MAX)
    rows: list[dict[str, Any]] = list(page["windows"])
    while page["next_page_token"] is not None and len(rows) < ROWS_MAX:
        token = str(page["next_page_token"])
        page = tower.metrics(since_ms=first_ms, principal=principal, limit=PAGE_MAX, page_token=token)
        rows += page["windows"]
    return Windows([row for row in rows if row["window_ms"] >= first_ms], first_ms, int(page["now_ms"]))
