"""A clock that is ahead, so that files just written are old."""

from __future__ import annotations

from icetower.ambient import SystemAmbient


class Later(SystemAmbient):
    """The system's clock, so many seconds ahead."""

    def __init__(self, ahead_s: int) -> None:
        super().__init__()
        self._ahead_ms = ahead_s * 1000

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms
