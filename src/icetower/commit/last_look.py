"""`LastLook`: is a commit in the table after all that is refused without a plan? And the refusals that it is for.

This tower may not be the first that the client has asked. Another tower may have sent the commit's swap and died, and
the client has come here since it got no answer. While the commit waits here, that swap may land, or may have landed. A
client that gets 409 then deletes manifests that the table names (trap A3). A swap of this tower finds what has landed,
and so does a plan on a head that still stands. A commit that is refused without either is looked for in the head.

So that none lands after the look, it waits for those that are under way, whoever sent them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from icetower.admission.admitted import Admitted
from icetower.commit.head import Heads
from icetower.commit.live_files import LiveFiles
from icetower.commit.plan import Member, landed
from icetower.commit.queue import Committed
from icetower.commit.resolution import half_known
from icetower.commit.twice import already_there, brought, is_picked
from icetower.counting import counted
from icetower.errors import CommitConflict, CommitStateUnknown, IcetowerError, KeyMisused, ValidationFailed
from icetower.protocol.names import Identifier
from icetower.table.head import HeadState

SENT_BACK = ("queue.deadline", "queue.full", "database.busy")
"""Rules of refusals that say nothing of the commit itself: where it is under way by another request, it may wait on."""


class LastLook:
    """Looks for commits in the heads of their tables.

    Args:
        live: knows the data files of their branches.
        look_s: how long a look may take.
    """

    def __init__(self, heads: Heads, live: LiveFiles, *, look_s: float) -> None:
        self._heads = heads
        self._live = live
        self._look_s = look_s

    async def answer(self, member: Member, refusal: IcetowerError) -> Committed | IcetowerError:
        """The answer to a commit that is refused: the refusal, unless the head has it, or cannot be read."""
        if refusal.status >= 500:  # no client deletes its files upon these
            return refusal
        try:
            async with asyncio.timeout(self._look_s):
                head = await self._heads.load(member.identifier, settled=True)
                again = await self._added_again(head, member)
        except (IcetowerError, TimeoutError) as error:
            unknown = CommitStateUnknown(
                f"{refusal.message}. But whether another server had committed it before is unknown, since the head "
                f"of {member.identifier} cannot be read now: look for its snapshot before writing again, or send the "
                "very same again"
            )
            unknown.__cause__ = error
            return unknown
        try:
            snapshots = landed(head, member)
        except (KeyMisused, ValidationFailed) as error:  # it is there, but not as it was sent
            return error
        if snapshots is not None:
            return Committed("replayed", head, snapshots, 0.0, 1)
        return already_there(again, str(member.identifier)) if again else refusal

    async def _added_again(self, head: HeadState, member: Member) -> list[str]:
        """The data files that a commit adds, and that are live on its branch: its client may not delete these."""
        if not isinstance(member, Admitted) or not member.ref or any(is_picked(c.snapshot) for c in member.changes):
            return []
        return sorted(await self._live.named(head, member.ref, brought(member)))

    async def answers(self, members: Sequence[Member], refusal: IcetowerError) -> list[Committed] | IcetowerError:
        """Likewise for a transaction: its answers, where all of it is in the tables."""
        answers = await asyncio.gather(*(self.answer(member, refusal) for member in members))
        there = [each for each in answers if isinstance(each, Committed)]
        if len(there) == len(answers):
            return there
        other = next((each for each in answers if isinstance(each, IcetowerError) and each is not refusal), None)
        if other is None and there:
            return half_known()
        return other or refusal


def draining() -> CommitConflict:
    # Not 503: that ends a PyIceberg job, and leaves Java wondering whether it landed (trap A4).
    return CommitConflict(
        "the server is shutting down; nothing of the commit was committed; try again",
        rule="queue.draining",
        next_step="retry",
    )


def lost_for_good(rounds: int) -> CommitConflict:
    return CommitConflict(
        f"{counted(rounds, 'swap')} in a row lost to other writers of the catalog; try again",
        rule="swap.lost",
        next_step="retry",
    )


def withdrawn(deadline_s: float, identifier: Identifier) -> CommitConflict:
    return CommitConflict(
        f"the commit waited {deadline_s:g} s for its turn on {identifier} and was withdrawn; nothing of it was "
        "committed; try again",
        rule="queue.deadline",
        next_step="retry",
    )


def as_error(raised: Exception) -> IcetowerError:
    """The error that the clients of a group get for an exception; one that was not foreseen leaves the outcome open."""
    if isinstance(raised, IcetowerError):
        return raised
    error = CommitStateUnknown(f"the commit engine failed: {type(raised).__name__}")
    error.__cause__ = raised
    return error
