"""The metrics of a tower by agent or by table, added up from its rows by agent and table; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

HOT_MAX = 3

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
