"""`Swaps`: the files of a step are written side by side, then one compare-and-swap, and its outcome is settled.

A swap can end in three ways. *Landed*, *lost* (an outside writer was faster, and nothing was changed), or *unknown*:
then the very same swap is repeated until it lands or the head has moved, and the group's snapshots, or its metadata
file in the head's log, show which it was. That it did not land shows only in a log that goes back to before it. While
the outcome is unknown, nothing that it wrote is deleted (trap A3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from icetower.ambient import Ambient
from icetower.commit.head import Heads
from icetower.commit.steps import Step
from icetower.errors import AlreadyExists, CommitStateUnknown, IcetowerError, NotFound, Unavailable, UpstreamFailed
from icetower.storage.port import Storage
from icetower.table.head import HeadState
from icetower.upstream.port import SwapLost, SwapUnknown, Upstream

Timed = Callable[[Sequence[Step], float], None]
_LARGE_BYTES = 256 * 1024
"""Metadata of this size takes long enough to compress for other requests to notice."""


class Swaps:
    """Args:
    settle_s: how long an unknown swap is repeated.
    timed: hears of every swap how long it took, in seconds.
    """

    def __init__(
        self,
        upstream: Upstream,
        storage: Storage,
        heads: Heads,
        ambient: Ambient,
        *,
        settle_s: float,
        timed: Timed | None = None,
    ) -> None:
        self._upstream = upstream
        self._storage = storage
        self._heads = heads
        self._ambient = ambient
        self._settle_s = settle_s
        self._timed = timed

    async def write(self, steps: Sequence[Step]) -> Exception | None:
        """Write all files of some steps side by side. The error of one that could not be written, if any."""
        began_s = self._ambient.monotonic_s()
        writes: dict[str, bytes] = {}
        for step in steps:
            writes |= step.plan.files
            writes[step.new.head.location] = document = await _file_bytes(step.new.head)
            step.took.written_bytes = sum(map(len, step.plan.files.values())) + len(document)
        results = await asyncio.gather(
            *(self._storage.write(path, data) for path, data in writes.items()), return_exceptions=True
        )
        for step in steps:
            step.took.write_s, step.took.write_ms = began_s, (self._ambient.monotonic_s() - began_s) * 1000
        # Only now that all have ended: a write that is still under way must not outlive the clean-up.
        for result in results:
            if isinstance(result, AlreadyExists):
                return IcetowerError(f"a new file has the name of an old one: {result.message}")
            if isinstance(result, Exception):
                return result
        return None

    async def discard(self, steps: Sequence[Step]) -> None:
        """Delete the files of a swap that certainly did not happen. What cannot be deleted is an orphan."""
        paths = [path for step in steps for path in (*step.plan.files, step.new.head.location)]
        with suppress(IcetowerError):
            await self._storage.delete_many(paths)

    async def expire(self, steps: Sequence[Step]) -> None:
        """Delete metadata files that fell out of the tables' logs. Nothing depends on whether it works."""
        paths = [path for step in steps for path in step.expired_metadata]
        with suppress(IcetowerError):
            if paths:
                await self._storage.delete_many(paths)

    async def stale(self, steps: Sequence[Step]) -> bool:
        """Whether a table has moved on since the steps were planned, swaps included that were under way by others.

        Raises `NoSuchTable`; `UpstreamFailed` where one stays under way.
        """
        for step in steps:
            if await self._upstream.settled_location(step.identifier) != step.old.head.location:
                return True
        return False

    async def swap(self, steps: Sequence[Step]) -> bool:
        """Whether it landed. Raises as `_swap` does."""
        began_s = self._ambient.monotonic_s()
        landed: bool | None = None
        try:
            landed = await self._swap(steps)
            return landed
        finally:
            took_s = self._ambient.monotonic_s() - began_s
            for step in steps:
                step.took.swap_s, step.took.swap_ms, step.took.landed = began_s, took_s * 1000, landed
            if self._timed is not None:
                self._timed(steps, took_s)

    async def _swap(self, steps: Sequence[Step]) -> bool:
        """Whether it landed.

        Raises:
            CommitStateUnknown: the outcome stayed unknown for `settle_s`.
            IcetowerError: it failed, and certainly changed nothing.
        """
        swaps = [step.swap for step in steps]
        until_s = self._ambient.monotonic_s() + self._settle_s
        in_doubt = False
        attempt = 0
        while True:
            try:
                await self._upstream.swap(swaps)
            except SwapLost as lost:
                if not in_doubt:
                    return False
                # While the head cannot be read, the outcome is unknown: what may be in the table must not be deleted.
                with suppress(UpstreamFailed, NotFound, Unavailable):
                    return await self._landed_before(steps, lost)
            except SwapUnknown:
                in_doubt = True
            except IcetowerError:  # certainly nothing was changed, this time
                if not in_doubt:
                    raise
            except Exception as error:
                raise CommitStateUnknown(
                    f"the swap of {', '.join(str(swap.identifier) for swap in swaps)} failed in a way that does not "
                    f"tell whether it landed ({type(error).__name__}); look for its snapshot before writing again"
                ) from error
            else:
                return True
            if self._ambient.monotonic_s() >= until_s:
                raise CommitStateUnknown(
                    f"the catalog did not say within {self._settle_s:g} s whether the commit to "
                    f"{', '.join(str(swap.identifier) for swap in swaps)} landed; look for its snapshot before "
                    "writing again"
                )
            await self._ambient.sleep(min(0.05 * 2**attempt, 2.0) * (0.5 + self._ambient.uniform() / 2))
            attempt += 1

    async def _landed_before(self, steps: Sequence[Step], lost: SwapLost) -> bool:
        """Settle a swap in doubt: the head has moved, by us or by somebody else?"""
        step = next(step for step in steps if step.identifier == lost.identifier)
        if lost.found is None:
            raise CommitStateUnknown(f"the table {lost.identifier} went away while a commit to it was in doubt")
        if lost.found == step.new.head.location:
            return True
        found = await self._heads.at(lost.found)
        logged = {entry["metadata-file"] for entry in found.metadata.get("metadata-log", ())}
        if step.new.head.location in logged:
            return True
        if step.old.head.location in logged:  # whatever came after that is logged too, and is somebody else's
            return False
        # A member that was sent again may have landed elsewhere: of one without a snapshot that says nothing.
        if all(a.snapshots and all(i in found.snapshots for i in a.snapshots) for a in step.plan.accepted):
            return True
        raise CommitStateUnknown(
            f"the head of {lost.identifier} has moved on so far, while a commit to it was in doubt, that its log no "
            "longer tells whether it landed; look for its rows before writing again"
        )


async def _file_bytes(head: HeadState) -> bytes:
    if ".gz." in head.location and head.size_bytes > _LARGE_BYTES:
        return await asyncio.to_thread(lambda: head.file_bytes)
    return head.file_bytes
