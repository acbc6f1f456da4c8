"""Partitions of a table as a heat map: who owns each, who writes to it, and where they meet. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from icetower.ledger.attempts import NOT_LANDED, Attempt, Outcome

PARTITIONS_MAX = 40
PRINCIPALS_MAX = 10
STEPS = 5
"""Shades of a cell that is not empty."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One principal at one partition. `heat` 0: nothing; else 1 to `STEPS`, by the share of the most that there is."""

    times: int = 0
    failed: int = 0
    heat: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One partition.

    Attributes:
        owners: the contracts that own it, none where nobody does; None where it is not known.
        contended: more than one principal came there, and something did not land.
    """

    partition: str
    owners: tuple[str, ...] | None
    cells: tuple[Cell, ...]
    times: int
    conflicts: int
    contended: bool


@dataclass(frozen=True, slots=True)
class Heat:
    """The map; `left_out`: partitions and principals that had less."""

    principals: tuple[str, ...]
    rows: tuple[Row, ...]
    left_out: tuple[int, int]

    def owned(self, owners: Callable[[str], tuple[str, ...] | None]) -> Heat:
        """The same, with the owners of the partitions that it shows."""
        return replace(self, rows=tuple(replace(row, owners=owners(row.partition)) for row in self.rows))


def heat_of(attempts: Sequence[Attempt]) -> Heat:
    """The map of some attempts at one table; whose the partitions are is not known yet."""
    times: Counter[tuple[str, str]] = Counter()
    failed: Counter[tuple[str, str]] = Counter()
    conflicts: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for attempt in attempts:
        for partition in attempt.partitions:
            times[partition, attempt.principal] += 1
            failed[partition, attempt.principal] += attempt.outcome in NOT_LANDED
            conflicts[partition] += attempt.outcome is Outcome.CONFLICT
            lost[partition] += attempt.outcome in NOT_LANDED
    by_partition: Counter[str] = Counter()
    by_principal: Counter[str] = Counter()
    for (partition, principal), count in times.items():
        by_partition[partition] += count
        by_principal[principal] += count
    principals = tuple(sorted(name for name, _ in by_principal.most_common(PRINCIPALS_MAX)))
    # Where something did not land is what somebody looks for.
    hottest = sorted(by_partition, key=lambda name: (-lost[name], -by_partition[name], name))[:PARTITIONS_MAX]
    most = max(times.values(), default=1)
    rows = tuple(
        Row(
            partition,
            None,
            tuple(_cell(times[partition, name], failed[partition, name], most) for name in principals),
            by_partition[partition],
            conflicts[partition],
            lost[partition] > 0 and sum(1 for each, _ in times if each == partition) > 1,
        )
        for partition in hottest
    )
    return Heat(principals, rows, (len(by_partition) - len(rows), len(by_principal) - len(principals)))


def _cell(times: int, failed: int, most: int) -> Cell:
    return Cell(times, failed, 0 if not times else 1 + (STEPS - 1) * (times - 1) // max(1, most - 1))
