"""An upstream with faults on request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from icetower.upstream.port import Swap, SwapUnknown
from icetower.upstream.sql import SqlUpstream


class FaultyUpstream:
    """The real SQL upstream, with one thing that may happen to each swap: an entry of `script` is taken by each."""

    def __init__(self, inner: SqlUpstream) -> None:
        self.inner = inner
        self.script: list[Callable[[Sequence[Swap]], Awaitable[None]]] = []
        self.swaps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def swap(self, swaps: Sequence[Swap]) -> None:
        self.swaps += 1
        if self.script:
            await self.script.pop(0)(swaps)
            return
        await self.inner.swap(swaps)

    async def landed_but_unknown(self, swaps: Sequence[Swap]) -> None:
        await self.inner.swap(swaps)
        raise SwapUnknown

    async def lost_on_the_way(self, swaps: Sequence[Swap]) -> None:
        del swaps
        raise SwapUnknown

    async def plain(self, swaps: Sequence[Swap]) -> None:
        await self.inner.swap(swaps)
