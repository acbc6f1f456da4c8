"""Time and chance under a test's control."""

from __future__ import annotations

import asyncio
import itertools


class Clock:
    """Time that stands still until it is told to go on; everything random is counted."""

    def __init__(self) -> None:
        self.time_ms = 1_700_000_000_000
        self.counter = itertools.count(1)
        self.slept_s: list[float] = []

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_s(self) -> float:
        return self.time_ms / 1000

    def uuid4(self) -> str:
        return f"{next(self.counter):08d}-0000-4000-8000-000000000000"

    uuid7 = uuid4

    def snapshot_id(self) -> int:
        return 1_000 + next(self.counter)

    def secret(self) -> str:
        return "secret"

    def uniform(self) -> float:
        return 0.5

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.time_ms += int(seconds * 1000)
        await asyncio.sleep(0)
