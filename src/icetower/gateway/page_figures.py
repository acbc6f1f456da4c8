"""The curves of the page, counted from the log of attempts: the newest of them, by five minutes."""

from __future__ import annotations

from collections.abc import Sequence

from icetower.gateway.page_panels import WINDOW_MS, Window
from icetower.ledger.attempts import Outcome
from icetower.service.journal import Journal

ROWS_MAX = 50_000


class LoggedFigures:
    """Figures from the log."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def windows(self, principal: str | None, table: str | None) -> Sequence[Window]:
        """The newest windows, oldest first."""
        ledger = await self._journal.read_through()
        found = await ledger.windows(principal=principal, table=table, window_ms=WINDOW_MS, rows_max=ROWS_MAX)
        return [_window(starts_ms, found[starts_ms]) for starts_ms in sorted(found)]


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
