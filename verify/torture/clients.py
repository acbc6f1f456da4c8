"""Clients of a simulation: they do what real ones do, and keep a ledger of what they were told.

On 409 a client deletes the manifests that it wrote, reads the table anew and tries again. When nobody can tell, it
sends the very same commit again, or a new one under the same key, or looks for its snapshot; without a key, it never
writes anew what may have landed. Some hang up, some send everything twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from icetower.errors import (
    BadRequest,
    CommitConflict,
    CommitStateUnknown,
    Forbidden,
    IcetowerError,
    KeyMisused,
    NotAuthenticated,
    NotFound,
    UpstreamFailed,
)
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.lineage import Lineage
from icetower.table.head import HeadState
from verify.torture.ledger import Attempt, Intent
from verify.torture.towers import Down, Lost, Tower
from verify.torture.world import World
from verify.torture.writing import Gone, Pen

Prepare = Callable[[Intent, HeadState], Attempt | None]
ATTEMPTS_MAX = 5
RESENDS_MAX = 6


class Client:
    """One client process.

    Attributes:
        name: of its principal.
    """

    def __init__(
        self, world: World, towers: Sequence[Tower], name: str, stream: random.Random, *, patience_s: float
    ) -> None:
        self.world = world
        self.name = name
        self.stream = stream
        self.pen = Pen(world.files, world.judge.written)
        self._towers = towers
        self._home = stream.randrange(len(towers))
        self._patience_s = patience_s

    async def pause(self, most_s: float) -> None:
        await asyncio.sleep(self.stream.random() * most_s)

    # -- a commit, until it is done or given up -------------------------------------------------------------------

    async def perform(self, intents: Sequence[Intent], prepare: Prepare) -> None:
        """Do one thing; several intents are a transaction."""
        for intent in intents:
            self.world.judge.wanted(intent)
        state = await self._try(intents, prepare)
        for intent in intents:
            intent.state = state
        self.world.counts[f"commits {state}"] += 1
        self.world.tell(self.name, f"{' + '.join(map(str, intents))} ends {state}")

    async def _try(self, intents: Sequence[Intent], prepare: Prepare) -> str:
        doubt = False
        for _ in range(ATTEMPTS_MAX):
            heads = [await self.load(intent) for intent in intents]
            attempts: list[Attempt] = []
            try:
                for intent, head in zip(intents, heads, strict=True):
                    attempt = None if head is None else prepare(intent, head)
                    attempts += [attempt] if attempt is not None else []
            except Gone:
                self._forget(attempts)
                continue
            if len(attempts) < len(intents):
                self._forget(attempts)
                return "maybe" if doubt else "skipped"
            for attempt in attempts:
                self.world.judge.sent(attempt)
            outcome = await self._send(attempts)
            self.world.counts[f"answers {outcome}"] += 1
            if outcome in ("acked", "misused"):
                return "acked" if outcome == "acked" else "maybe"
            if outcome == "unknown":
                doubt = True
                if not intents[0].known_again:  # to write again without a key could write twice
                    return "maybe"
            elif outcome == "refused":
                self._forget(attempts)
            else:  # 400, 403: to try again is pointless
                return "maybe" if doubt else "refused"
            await self.pause(0.4)
        return "maybe" if doubt else "refused"

    def _forget(self, attempts: Sequence[Attempt]) -> None:
        """What every client of Iceberg does after a 409: its manifests go."""
        for attempt in attempts:
            for path in attempt.own:
                self.world.judge.before_delete(self.name, path)
                self.world.files.pop(path, None)

    async def load(self, intent: Intent) -> HeadState | None:
        """The table, from whichever tower answers."""
        for _ in range(30):
            tower = self._towers[self._home]
            try:
                return await tower.call(lambda t=tower: t.load(intent.table), patience_s=20, hang_up=False)
            except (Down, Lost, UpstreamFailed):
                self._home = (self._home + 1) % len(self._towers)
                await self.pause(0.5)
            except NotFound:  # the head that it has read of was superseded, and deleted, before it could be read
                self.world.counts["404 while loading"] += 1
                await self.pause(0.5)
        return None

    # -- one attempt, sent until somebody says what became of it --------------------------------------------------

    async def _send(self, attempts: Sequence[Attempt]) -> str:
        tower = self._towers[self._home]
        if not attempts[0].steps and not attempts[0].files:
            return await self._send_once(tower, attempts[0])
        sends = 2 if self.stream.random() < 0.12 else 1
        calls = [asyncio.ensure_future(self._request(tower, attempts)) for _ in range(sends)]
        answers = [await call for call in calls]
        if len(answers) > 1:
            self.world.counts["duplicates sent"] += 1
            if "acked" in answers and "refused" in answers:
                self.world.judge.found("answers.agree", f"{attempts[0].intent}: two equal requests got {answers}")
        outcome = min(answers, key=("acked", "refused", "final", "misused", "unknown", "busy").index)
        for _ in range(RESENDS_MAX):
            if outcome == "busy":  # nobody listened: it was not sent
                self._home = (self._home + 1) % len(self._towers)
            elif outcome != "unknown":
                break
            await self.pause(0.8)
            if outcome == "unknown" and self.stream.random() < 0.3 and await self._look(attempts):
                outcome = "acked"
                break
            if outcome == "unknown" and attempts[0].intent.known_again and self.stream.random() < 0.3:
                return "unknown"  # its caller writes again, under the same key
            # What an earlier tower still has in hand is asked for there; only if it died, anywhere.
            same = tower.up and outcome == "unknown"
            tower = tower if same else self._towers[self._home]
            self.world.counts["resends"] += 1
            outcome = await self._request(tower, attempts)
        if outcome == "busy":
            outcome = "unknown" if any(attempt.unknown for attempt in attempts) else "refused"
        self._note(attempts, outcome)
        return outcome

    async def _send_once(self, tower: Tower, attempt: Attempt) -> str:
        """A commit without a snapshot has nothing to be known by: it is not sent again, its effect is looked for."""
        outcome = await self._request(tower, [attempt])
        if outcome == "unknown":
            head = await self.load(attempt.intent)
            if head is not None and attempt.effect is not None and attempt.effect(head.metadata):
                outcome = "acked"
        if outcome == "busy":
            outcome = "refused"
        if outcome == "acked":
            self.world.judge.acked(attempt)
        return outcome

    def _note(self, attempts: Sequence[Attempt], outcome: str) -> None:
        for attempt in attempts:
            if outcome == "acked":
                self.world.judge.acked(attempt)
            elif outcome == "refused":
                self.world.judge.refused(attempt)

    async def _look(self, attempts: Sequence[Attempt]) -> bool:
        """Whether the snapshots are in the tables, as a client sees them."""
        for attempt in attempts:
            head = await self.load(attempt.intent)
            if head is None or not attempt.steps:
                return False
            at = table_metadata.ref_head(head.metadata, attempt.intent.ref)
            found = at is not None and attempt.steps[-1].snapshot_id in Lineage.of(head.snapshots.get, at).ids
            if not found:
                return False
        return True

    async def _request(self, tower: Tower, attempts: Sequence[Attempt]) -> str:
        label = "+".join(f"{a.intent.kind}#{a.intent.number}" for a in attempts)
        hang_up = self.stream.random() < 0.5
        for attempt in attempts:
            attempt.intent.in_flight += 1

        async def work() -> str:
            try:
                return await tower.commit(attempts)
            finally:
                for attempt in attempts:
                    attempt.intent.in_flight -= 1

        self.world.tell(self.name, f"sends {label} to {tower.actor}")
        try:
            outcome = await tower.call(work, patience_s=self._patience_s, hang_up=hang_up)
        except Down:
            for attempt in attempts:
                attempt.intent.in_flight -= 1
            return "busy"
        except Lost:
            outcome = "unknown"
            for attempt in attempts:
                attempt.intent.loose |= tower.up
        except IcetowerError as error:
            outcome = _outcome(error)
            self.world.counts[f"{error.status} {error.rule}"] += 1
            self.world.tell(self.name, f"{label}: {error.status} {error.rule}")
        else:
            self.world.counts[f"committed {outcome.split()[0]}"] += 1
            self.world.tell(self.name, f"{label}: {outcome}")
            return "acked"
        if outcome == "unknown":
            for attempt in attempts:
                attempt.unknown = True
        return outcome


def _outcome(error: IcetowerError) -> str:
    """What a client makes of an answer: 5xx may have landed, 409 has not, the rest is final."""
    match error:
        case CommitConflict():
            return "refused"
        case KeyMisused():
            return "misused"
        case CommitStateUnknown() | UpstreamFailed():
            return "unknown"
        case NotAuthenticated():  # its token has expired: it takes another, and sends again
            return "busy"
        case BadRequest() | Forbidden():
            return "final"
        case _ if error.status >= 500:
            return "unknown"
        case _:
            return "final"


__all__ = ["Client", "Prepare"]
