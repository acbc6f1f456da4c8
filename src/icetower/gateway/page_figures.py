"""The curves of the page: what attempts came to, by five minutes, as the figures in the control database have it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from icetower.ambient import Ambient
from icetower.gateway.page_panels import WINDOW_MS, Window
from icetower.gateway.page_reading import Briefly
from icetower.ledger.measures import Measures
from icetower.ledger.metrics import Wanted
from icetower.ledger.tallies import Tally, ratio, summed, window_of
from icetower.service.journal import Journal

WINDOWS_MIN, WINDOWS_MAX = 12, 288
"""An hour, and a day."""
ROWS_MAX, ROWS_AT_ONCE = 20_000, 2_000
"""Rows of figures that one look adds up; where there are more, the curve begins later."""
COUNTED_S = 0.05
"""So long a page waits until the newest attempts are counted. At hundreds of commits a second that may take longer, and
the next look has them."""


class MeasuredFigures:
    """Figures of one principal, of one table, of both, or of all."""

    def __init__(self, measures: Measures, journal: Journal, ambient: Ambient, briefly: Briefly) -> None:
        self._measures = measures
        self._journal = journal
        self._ambient = ambient
        self._briefly = briefly

    async def windows(self, principal: str | None, table: str | None) -> Sequence[Window]:
        """The newest windows, oldest first."""
        counting = asyncio.ensure_future(self._briefly.get("counted", self._count))
        counting.add_done_callback(lambda task: task.cancelled() or task.exception())
        done, _ = await asyncio.wait({counting}, timeout=COUNTED_S)
        for counted in done:
            counted.result()
        found = await self._tallies(principal, table)
        if not found:
            return []
        newest = max(found)
        # Quiet times are a part of the curve, too.
        first = min(min(found), newest - (WINDOWS_MIN - 1) * WINDOW_MS)
        return [_window(start_ms, summed(found.get(start_ms, ()))) for start_ms in range(first, newest + 1, WINDOW_MS)]

    async def _count(self) -> None:
        await self._journal.flush()
        await self._measures.count()

    async def _tallies(self, principal: str | None, table: str | None) -> dict[int, list[Tally]]:
        since_ms = window_of(self._ambient.now_ms()) - (WINDOWS_MAX - 1) * WINDOW_MS
        if principal is None:  # there is one row for all of them, and one for all at a table
            principal, table = "", table or ""
        wanted = Wanted(since_ms, principal, table)
        found: dict[int, list[Tally]] = {}
        rows, before = 0, None
        while rows < ROWS_MAX:
            page = await self._measures.windows(wanted, limit=ROWS_AT_ONCE, before=before)
            for row in page.rows:
                found.setdefault(row.window_ms or 0, []).append(row.tally)
            rows, before = rows + len(page.rows), page.next
            if before is None:
                return found
        del found[min(found)]  # a part of it was not read
        return found


def _window(start_ms: int, tally: Tally) -> Window:
    return Window(
        start_ms,
        tally.attempts,
        tally.landed,
        tally.refused,
        tally.conflicts,
        tally.unknown,
        tally.latency_max_ms,
        tally.latency.percentile(0.5),
        tally.latency.percentile(0.99),
        ratio(tally.retries, tally.landed),
        ratio(tally.first_try_landed, tally.first_tries),
    )
