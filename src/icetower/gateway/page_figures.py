"""The curves of the page, counted from the log of attempts: the newest of them, by five minutes."""

from __future__ import annotations

from collections.abc import Sequence

from icetower.gateway.page_panels import WINDOW_MS, Window
from icetower.ledger.attempts import Outcome
from icetower.service.journal import Journal

ROWS_MAX = 50_000
WINDOWS_MIN, WINDOWS_MAX = 12, 288
"""An hour, and a day."""


class LoggedFigures:
    """Figures from the log."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def windows(self, principal: str | None, table: str | None) -> Sequence[Window]:
        """The newest windows, oldest first."""
        ledger = await self._journal.read_through()
        found = await ledger.windows(principal=principal, table=table, window_ms=WINDOW_MS, rows_max=ROWS_MAX)
        if not found:
            return []
        newest = max(found)
        # Quiet times are a part of the curve, too.
        first = max(min(min(found), newest - (WINDOWS_MIN - 1) * WINDOW_MS), newest - (WINDOWS_MAX - 1) * WINDOW_MS)
        return [_window(starts_ms, found.get(starts_ms, {})) for starts_ms in range(first, newest + 1, WINDOW_MS)]


def _window(starts_ms: int, counted: dict[Outcome, tuple[int, float]]) -> Window:
    def count(*outcomes: Outcome) -> int:
        return sum(counted[each][0] for each in outcomes if each in counted)

    landed = count(Outcome.DIRECT, Outcome.REBASED, Outcome.APPENDED)
    return Window(
        starts_ms,
        sum(times for times, _ in counted.values()),
        landed,
        count(Outcome.REFUSED),
        count(Outcome.CONFLICT),
        count(Outcome.UNKNOWN),
        max((slowest for _, slowest in counted.values()), default=None),
    )
