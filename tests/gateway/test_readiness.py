"""`/readyz` asks each component once at a time, within a limit, and no more often than it must."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from icetower.ambient import SystemAmbient
from icetower.errors import UpstreamFailed
from icetower.gateway.readiness import KEPT_S, Readiness, State


class Clock(SystemAmbient):
    def __init__(self) -> None:
        super().__init__()
        self.s = 0.0

    def monotonic_s(self) -> float:
        return self.s


def states(found: Mapping[str, State]) -> dict[str, str]:
    return {name: each.state for name, each in found.items()}


def test_a_failure_is_told_and_an_answer_is_kept_for_a_moment() -> None:
    clock, asked = Clock(), 0

    async def check() -> Mapping[str, Any]:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise UpstreamFailed("the catalog is away")
        return {"free_bytes": 7}

    async def story() -> None:
        readiness = Readiness({"upstream": check}, clock)
        answers = await asyncio.gather(*(readiness.states() for _ in range(100)))
        assert asked == 1
        assert {tuple(states(each).items()) for each in answers} == {(("upstream", "ok"),)}
        clock.s += KEPT_S
        failed = (await readiness.states())["upstream"]
        assert (failed.state, failed.details) == ("failed", {"cause": "the catalog is away"})
        clock.s += KEPT_S
        assert (await readiness.states())["upstream"].details == {"free_bytes": 7}

    asyncio.run(story())


def test_a_check_that_hangs_is_a_timeout_and_is_not_started_again() -> None:
    clock, begun, hangs = Clock(), 0, asyncio.Event()

    async def check() -> Mapping[str, Any]:
        nonlocal begun
        begun += 1
        await hangs.wait()
        return {}

    async def well() -> Mapping[str, Any]:
        return {}

    async def story() -> None:
        readiness = Readiness({"warehouse": check, "registry": well}, clock, limit_s=0.0)
        for _ in range(5):
            assert states(await readiness.states())["warehouse"] == "timeout"
            clock.s += KEPT_S
        assert begun == 1
        await readiness.close()

    asyncio.run(story())
