"""What the engine asks just before a swap; the gateway answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from icetower.commit.plan import Member
from icetower.errors import IcetowerError
from icetower.protocol.names import Identifier
from icetower.table.head import HeadState


class Gatekeeper(Protocol):
    """Asked once more, just before the swap: contracts, principals and keys may have changed since (trap K4)."""

    async def still_admits(self, members: Sequence[Member]) -> Mapping[int, IcetowerError]:
        """The members that may no longer go on: position → why."""
        ...

    async def keep_keys(
        self, identifier: Identifier, old: HeadState, new: HeadState, snapshot_ids: Collection[int]
    ) -> None:
        """Make the keys of snapshots that are about to expire durable somewhere else (trap K1).

        Args:
            old: the version that still has them.
            new: the one that will not have them, if the swap lands.

        Raises:
            IcetowerError: they could not be kept; then the snapshots stay.
        """
        ...

    async def landed_meanwhile(self, old: HeadState, members: Sequence[Member]) -> Mapping[int, IcetowerError]:
        """The members whose keys have landed since they were admitted, and have gone again: position → what to say.

        Asked after `keep_keys`: the table does not tell of them any more.

        Args:
            old: the version on which they were planned.
        """
        ...
