"""Who holds which rows, and who waits for them. Pure.

An intent is granted when none that conflicts with it holds, and none that conflicts with it was declared before and
still waits. So the queue is fair, an intent over several tables is granted as a whole or not at all, and two that are
granted at once never conflict. Both held and waiting intents end when they have not been renewed for their time to
live, and nobody renews for ever: whoever waits gets its turn.

A fence is a number that is given with each grant, from one counter over all tables. It says which of two holders came
later, whatever their clocks say.

The book is changed in drafts: `begin`, some changes, then `keep` or `undo`.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from icetower.contracts.boxes import Box
from icetower.contracts.deliveries import moment_text
from icetower.errors import Conflict, Forbidden, KeyMisused, NotFound, TooManyRequests
from icetower.intents.model import REVOCATION, Claim, End, Intent, News, Size, State, Wanted
from icetower.intents.occupied import Occupied
from icetower.intents.regions import bound_of, meet, within

OF_PRINCIPAL_MAX = 1_000
"""Intents that one principal has at once, those that wait included."""
WAITING_MAX = 100
"""Those of one principal that wait. Each is kept with all that it waits for."""
TEXT_MAX = 256 * 1024
"""Characters in which all intents of one principal say what they are about. They are listed, and kept."""
PIECES_MAX = 5_000
"""Stretches of values of which all intents of one principal are made. Every commit near them is compared with them."""
HELD_MAX_MS = 6 * 3600 * 1000
"""How long an intent may be renewed, from its grant on."""
SKEW_MS_MAX = 5_000
"""So far apart the clocks of towers may be. A time that lies farther ahead is of a clock that has gone back since."""
NAMED_MAX = 3
"""Of so many intents a refusal says who has them."""
WARNINGS_MAX = 100
"""Of one intent; whoever has not looked by then has had its work overtaken often enough."""
ENDED_MAX = 2_000
"""Ended intents that are remembered, to say how each has ended."""


@dataclass(slots=True)
class _Draft:
    """What was changed since `begin`: each intent as it was before, the counters, and the warnings that came.

    Attributes:
        barred: principals that have no intents in it.
    """

    barred: frozenset[str] = frozenset()
    warnings: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    before: dict[str, Intent | None] = field(default_factory=dict[str, "Intent | None"])
    granted: dict[str, int | None] = field(default_factory=dict[str, "int | None"])
    fence: int = 0
    order: int = 0


class Book:
    """All intents that are live, and the last of those that have ended.

    Attributes:
        number: how many changes it knows of.
        fence, order: the last number that was given.
        granted: by the uuid of a table, the highest fence that was given for it.
    """

    def __init__(self) -> None:
        self.number, self.fence, self.order = 0, 0, 0
        self.granted: dict[str, int] = {}
        self._live: dict[str, Intent] = {}
        self._ended: OrderedDict[str, Intent] = OrderedDict()
        self._sharing: dict[str, Occupied] = {}
        self._alone: dict[str, Occupied] = {}
        self._blockers: dict[str, set[str]] = {}
        self._blocks: dict[str, set[str]] = {}
        self._of: dict[str, Size] = {}
        self._waiting: dict[str, set[str]] = {}
        self._warnings: dict[str, list[str]] = {}
        self._due: list[tuple[int, str]] = []
        self._latest_ms = 0
        self._marks: dict[str, object] = {}
        self._ready: set[str] = set()
        self._draft = _Draft()

    # -- what it says ---------------------------------------------------------------------------------------------

    def find(self, id_: str) -> Intent | None:
        """An intent, also one that has ended a while ago."""
        return self._live.get(id_) or self._ended.get(id_)

    def live(self) -> list[Intent]:
        """All that are held or wait, in the order in which they were declared."""
        return sorted(self._live.values(), key=lambda intent: intent.number)

    def ended(self) -> list[Intent]:
        return list(self._ended.values())

    def is_free(self, uuid: str) -> bool:
        """Whether nobody has an intent on a table."""
        return uuid not in self._alone and uuid not in self._sharing

    def mark(self, uuid: str) -> object:
        """Stands for the intents on a table as they are, those that have ended included: another one once they change.

        A change that is undone may change it, too.
        """
        return self._marks.setdefault(uuid, object())

    def waits_for(self, id_: str) -> list[Intent]:
        """The intents that one waits for, held ones first."""
        found = [self._live[each] for each in self._blockers.get(id_, ())]
        return sorted(found, key=lambda intent: (intent.state is not State.HELD, intent.number))

    def near(self, uuid: str, boxes: Sequence[Box]) -> list[Intent]:
        """The live intents on a table that have a row in common with some boxes, in order."""
        found: set[str] = set()
        for side in (self._alone, self._sharing):
            if uuid in side:
                found |= side[uuid].near(boxes)
        # A commit may touch hundreds of partitions, and hundreds of boxes may be near it of which none meets it.
        bound = bound_of(boxes)
        claims = ((claim, self._live[id_]) for id_ in found for claim in self._live[id_].claims if claim.uuid == uuid)
        met = {intent.id: intent for claim, intent in claims if meet(within(claim.boxes, bound), boxes)}
        return sorted(met.values(), key=lambda intent: intent.number)

    def warnings(self, id_: str) -> Sequence[str]:
        """What the holder of an intent was warned of, as JSON, oldest first."""
        return self._warnings.get(id_, ())

    def due_ms(self) -> int | None:
        """When the next intent ends that is not renewed; None where there is none."""
        self._drop_stale_dues()
        return self._due[0][0] if self._due else None

    # -- what changes it ------------------------------------------------------------------------------------------

    def declare(self, wanted: Wanted, now_ms: int) -> Intent:
        """Grant an intent, or let it wait.

        Raises:
            Conflict: others hold, or wait for, some of the rows, and it does not want to wait (``intent.held``).
            KeyMisused: another intent has its id (``intent.id``).
            TooManyRequests: its principal has as many as it may have (``intent.limit``).
            Forbidden: its principal is barred (``contract.revoked``).
        """
        self._require_unbarred(wanted.principal)
        known = self.find(wanted.id)
        if known is not None:
            if known.principal != wanted.principal or _asked(known) != _asked(wanted):
                raise KeyMisused(
                    f"the id {wanted.id} is another intent's; declare this one under a new id", rule="intent.id"
                )
            return known
        self._require_room(wanted)
        intent = Intent(
            wanted.id,
            self.order + 1,
            wanted.principal,
            wanted.contract,
            wanted.claims,
            wanted.ttl_ms,
            State.QUEUED,
            declared_ms=now_ms,
            renewed_ms=now_ms,
        )
        in_the_way = [self._live[id_] for id_ in self._conflicting(intent)]
        if in_the_way and not wanted.queue:
            raise refused_for(in_the_way, wanted.claims)
        if in_the_way and len(self._waiting.get(wanted.principal, ())) >= WAITING_MAX:
            raise _too_many(f"{wanted.principal} has {WAITING_MAX} intents that wait")
        self.order += 1
        self._change(intent)
        if not in_the_way:
            self._grant(intent, now_ms)
        return self._live[intent.id]

    def renew(self, id_: str, principal: str, now_ms: int, ttl_ms: int | None = None) -> Intent:
        """Let an intent live for its time from now on.

        Raises:
            Forbidden: it has ended, or has been renewed for as long as it may be (``intent.fenced``); or its principal
                is barred (``contract.revoked``).
            NotFound: the principal has none of that id.
        """
        self._require_unbarred(principal)
        intent = self.require(id_, principal)
        if not intent.live:
            raise fenced(intent)
        if not intent.slot and intent.granted_ms is not None and now_ms >= intent.granted_ms + HELD_MAX_MS:
            raise Forbidden(
                f"intent {id_} is held for more than {HELD_MAX_MS // 3_600_000} hours and is renewed no more; commit, "
                "and declare another one",
                rule="intent.fenced",
                next_step="fix_request",
            )
        return self._change(replace(intent, renewed_ms=now_ms, ttl_ms=ttl_ms or intent.ttl_ms))

    def end(self, id_: str, end: End, now_ms: int, by: str) -> Intent:
        """End an intent, if it has not ended, and grant what waited for it. Raises `NotFound`."""
        intent = self.find(id_)
        if intent is None:
            raise no_intent(id_)
        if not intent.live:
            return intent
        freed: set[str] = set()
        ended = self._end(intent, end, now_ms, by, freed)
        self._grant_freed(freed, now_ms)
        return ended

    def settle(self, now_ms: int) -> None:
        """End what has not been renewed in time, and grant what waited for it, or for what another tower has ended.

        A clock that has gone back would leave what it has written to live for too long: it is taken back, too.
        """
        if self._latest_ms > now_ms + SKEW_MS_MAX:
            for intent in [each for each in self._live.values() if each.renewed_ms > now_ms + SKEW_MS_MAX]:
                granted_ms = None if intent.granted_ms is None else min(intent.granted_ms, now_ms)
                self._change(replace(intent, renewed_ms=now_ms, granted_ms=granted_ms))
            self._latest_ms = now_ms + SKEW_MS_MAX
        freed: set[str] = set()
        while (due_ms := self.due_ms()) is not None and due_ms <= now_ms:
            self._end(self._live[self._due[0][1]], End.EXPIRED, now_ms, "", freed)
        # Once all have ended: a waiter that nobody has asked for is not let in by what ends beside it.
        self._grant_freed(freed | self._ready, now_ms)

    def overtake(self, uuid: str, fence: int, now_ms: int) -> None:
        """A table knows of a fence that was not given here: all intents on it end, and the counter goes above it."""
        if self.granted.get(uuid, 0) >= fence:
            return
        self._draft.granted.setdefault(uuid, self.granted.get(uuid))
        self.granted[uuid] = fence
        self.fence = max(self.fence, fence)
        freed: set[str] = set()
        for intent in [each for each in self.live() if each.claims_on(uuid)]:
            self._end(intent, End.OVERTAKEN, now_ms, "", freed)
        self._grant_freed(freed, now_ms)

    def bar(self, principals: frozenset[str], now_ms: int) -> None:
        """In this draft some principals, which may not act any more, have no intents and declare none."""
        self._draft.barred = principals
        freed: set[str] = set()
        for intent in [each for each in self.live() if each.principal in principals]:
            self._end(intent, End.BROKEN, now_ms, REVOCATION, freed)
        self._grant_freed(freed, now_ms)

    def warn(self, id_: str, warning: str) -> None:
        """Note, for its holder, what has happened to the rows of a live intent."""
        known = len(self._warnings.get(id_, ())) + sum(each == id_ for each, _ in self._draft.warnings)
        if id_ in self._live and known < WARNINGS_MAX:
            self._draft.warnings.append((id_, warning))

    def require(self, id_: str, principal: str) -> Intent:
        """An intent of a principal. Raises `NotFound`."""
        intent = self.find(id_)
        if intent is None or intent.principal != principal:
            raise no_intent(id_)
        return intent

    def _require_unbarred(self, principal: str) -> None:
        if principal in self._draft.barred:
            raise Forbidden(
                f"{principal} or its contract was revoked while the request was under way; it holds no rows and waits "
                "for none. Ask the contract's owner",
                rule="contract.revoked",
                next_step="ask_owner",
            )

    def _require_room(self, wanted: Wanted) -> None:
        own = self._of.get(wanted.principal, Size())
        more = Size.of(wanted.claims)
        if own.intents >= OF_PRINCIPAL_MAX:
            raise _too_many(f"{wanted.principal} has {OF_PRINCIPAL_MAX} intents")
        if own.intents and (own.pieces + more.pieces > PIECES_MAX or own.text + more.text > TEXT_MAX):
            raise _too_many(
                f"the intents of {wanted.principal} name {own.pieces} values and ranges in {own.text} characters, this "
                f"one {more.pieces} in {more.text}, and {PIECES_MAX} in {TEXT_MAX} are the most; name ranges in place "
                "of values"
            )

    # -- drafts ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """From here on it is noted what changes."""
        self._draft = _Draft(fence=self.fence, order=self.order)

    @property
    def changed(self) -> list[Intent]:
        """What has changed since `begin`."""
        found = (self.find(id_) for id_ in self._draft.before)
        return [intent for intent in found if intent is not None]

    @property
    def changed_grants(self) -> Mapping[str, int]:
        """By table, the highest fence, where that has changed since `begin`."""
        return {uuid: self.granted[uuid] for uuid in self._draft.granted}

    @property
    def new_warnings(self) -> Sequence[tuple[str, str]]:
        """Intent and warning, of each that came since `begin`."""
        return self._draft.warnings

    @property
    def has_changed(self) -> bool:
        return bool(self._draft.before or self._draft.granted or self._draft.warnings)

    def was_there(self, id_: str) -> bool:
        """Whether an intent was there when the draft was begun."""
        return self._draft.before.get(id_) is not None

    def keep(self, number: int) -> None:
        """What has changed since `begin` stands, as the change of that number."""
        if self.has_changed:
            self.number = number
        self._add_warnings(self._draft.warnings)
        self._ready = {id_ for id_ in self._ready if self._is_ready(id_)}
        self.begin()
        self._forget_ended()

    def undo(self) -> None:
        """All is as it was at `begin`."""
        draft = self._draft
        for id_ in draft.before:
            self._take_out(id_)
        for intent in draft.before.values():
            if intent is not None:
                self._put_in(intent)
        for uuid, fence in draft.granted.items():
            if fence is None:
                self.granted.pop(uuid, None)
            else:
                self.granted[uuid] = fence
        self.fence, self.order = draft.fence, draft.order
        self.begin()

    def learn(self, news: News) -> None:
        """What another tower has changed."""
        intents = list(news.intents)
        for intent in intents:
            self._take_out(intent.id)
        for intent in intents:
            self._put_in(intent)
        self.granted |= news.granted
        self._add_warnings(news.warnings)
        self.number, self.fence, self.order = news.number, news.fence, news.order
        # A revocation ends intents in the database alone: whoever learns of it grants what waited for them.
        self._ready = {id_ for waiting in self._waiting.values() for id_ in waiting if self._is_ready(id_)}
        self.begin()
        self._forget_ended()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _add_warnings(self, warnings: Iterable[tuple[str, str]]) -> None:
        for id_, warning in warnings:
            self._warnings.setdefault(id_, []).append(warning)

    def _forget_ended(self) -> None:
        while len(self._ended) > ENDED_MAX:
            id_, intent = self._ended.popitem(last=False)
            self._unmark(intent)
            self._warnings.pop(id_, None)

    def _grant(self, intent: Intent, now_ms: int) -> None:
        self.fence += 1
        for uuid in {claim.uuid for claim in intent.claims}:
            self._draft.granted.setdefault(uuid, self.granted.get(uuid))
            self.granted[uuid] = self.fence
        self._change(replace(intent, state=State.HELD, fence=self.fence, granted_ms=now_ms, renewed_ms=now_ms))

    def _end(self, intent: Intent, end: End, now_ms: int, by: str, freed: set[str]) -> Intent:
        """End an intent. `freed`: gets those that wait for it."""
        freed |= self._blocks.get(intent.id, set())
        claims = tuple(claim.ended() for claim in intent.claims)
        return self._change(replace(intent, claims=claims, state=State.ENDED, ended=end, ended_ms=now_ms, ended_by=by))

    def _grant_freed(self, freed: Iterable[str], now_ms: int) -> None:
        """Grant those that wait for nobody any more."""
        ready = (self._live[id_] for id_ in freed if self._is_ready(id_))
        for each in sorted(ready, key=lambda waiter: waiter.number):
            self._grant(each, now_ms)

    def _is_ready(self, id_: str) -> bool:
        """Whether an intent is in line, and waits for nobody."""
        return id_ in self._live and self._live[id_].state is State.QUEUED and not self._blockers.get(id_)

    def _change(self, intent: Intent) -> Intent:
        """An intent is from now on as this one says."""
        intent = replace(intent, changed=self.number + 1)
        before = self.find(intent.id)
        self._draft.before.setdefault(intent.id, before)
        if before is not None and before.live and intent.live:  # neither its rows nor its place change
            self._live[intent.id] = intent
            self._unmark(intent)
            self._note_waiting(intent)
            self._note_due(intent)
        else:
            self._take_out(intent.id)
            self._put_in(intent)
        return intent

    def _unmark(self, intent: Intent) -> None:
        for claim in intent.claims:
            self._marks.pop(claim.uuid, None)

    def _put_in(self, intent: Intent) -> None:
        self._unmark(intent)
        if not intent.live:
            self._ended[intent.id] = intent
            return
        for other in self._conflicting(intent):
            first, second = (other, intent.id) if self._live[other].number < intent.number else (intent.id, other)
            self._blockers.setdefault(second, set()).add(first)
            self._blocks.setdefault(first, set()).add(second)
        self._live[intent.id] = intent
        self._of[intent.principal] = self._of.get(intent.principal, Size()) + Size.of(intent.claims)
        self._note_waiting(intent)
        for (uuid, shares), boxes in _by_side(intent).items():
            (self._sharing if shares else self._alone).setdefault(uuid, Occupied()).add(intent.id, boxes)
        self._note_due(intent)

    def _take_out(self, id_: str) -> None:
        ended = self._ended.pop(id_, None)
        intent = self._live.pop(id_, None)
        if ended is not None:
            self._unmark(ended)
        if intent is None:
            return
        self._unmark(intent)
        for waiter in self._blocks.pop(id_, ()):
            self._blockers[waiter].discard(id_)
            if not self._blockers[waiter]:
                del self._blockers[waiter]
        for blocker in self._blockers.pop(id_, ()):
            self._blocks[blocker].discard(id_)
            if not self._blocks[blocker]:
                del self._blocks[blocker]
        self._of[intent.principal] -= Size.of(intent.claims)
        if not self._of[intent.principal].intents:
            del self._of[intent.principal]
        self._waiting.get(intent.principal, set()).discard(id_)
        for uuid, shares in _by_side(intent):
            side = self._sharing if shares else self._alone
            side[uuid].remove(id_)
            if not len(side[uuid]):
                del side[uuid]

    def _conflicting(self, intent: Intent) -> set[str]:
        """The live intents of which each, with this one, may not be held at once."""
        found: set[str] = set()
        for claim in intent.claims:
            for side in (self._alone,) if claim.shares else (self._alone, self._sharing):
                for id_ in side[claim.uuid].near(claim.boxes) if claim.uuid in side else ():
                    if id_ not in found and any(claim.conflicts(other) for other in self._live[id_].claims):
                        found.add(id_)
        found.discard(intent.id)
        return found

    def _note_waiting(self, intent: Intent) -> None:
        waiting = self._waiting.setdefault(intent.principal, set())
        (waiting.add if intent.state is State.QUEUED else waiting.discard)(intent.id)
        if not waiting:
            del self._waiting[intent.principal]

    def _note_due(self, intent: Intent) -> None:
        self._latest_ms = max(self._latest_ms, intent.renewed_ms)
        heapq.heappush(self._due, (intent.expires_ms, intent.id))

    def _drop_stale_dues(self) -> None:
        """Let go of times that were renewed since."""
        while self._due:
            at_ms, id_ = self._due[0]
            intent = self._live.get(id_)
            if intent is not None and intent.expires_ms == at_ms:
                return
            heapq.heappop(self._due)


def _by_side(intent: Intent) -> dict[tuple[str, bool], list[Box]]:
    """The boxes of an intent, by table and by whether others may append beside them."""
    found: dict[tuple[str, bool], list[Box]] = {}
    for claim in intent.claims:
        found.setdefault((claim.uuid, claim.shares), []).extend(claim.boxes)
    return found


def _asked(intent: Intent | Wanted) -> object:
    """What was asked for. Regions that are relative to now mean something else a moment later, and are the same."""
    return [(claim.uuid, claim.said, claim.operations, claim.exclusive) for claim in intent.claims]


# ── Refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def refused_for(in_the_way: Sequence[Intent], claims: Sequence[Claim]) -> Conflict:
    """The refusal of an intent, for which others stand in the way."""
    tables = ", ".join(dict.fromkeys(claim.table for claim in claims))
    return Conflict(
        f"rows of {tables} are held: {held_text(in_the_way)}. Declare it with queue: true to wait in line, or come "
        "back later",
        rule="intent.held",
        next_step="wait_until",
        wait_until_ms=max(intent.expires_ms for intent in in_the_way),
        owner=in_the_way[0].contract,
    )


def held_text(intents: Sequence[Intent]) -> str:
    """Who holds, or waits, and until when."""
    ordered = sorted(intents, key=lambda intent: (intent.state is not State.HELD, intent.number))
    texts = [
        f"{intent.principal} {'holds' if intent.state is State.HELD else 'waits for'} them by intent {intent.id} until "
        f"{moment_text(intent.expires_ms)} UTC, unless it renews"
        for intent in ordered[:NAMED_MAX]
    ]
    more = len(ordered) - NAMED_MAX
    return "; ".join([*texts, *([f"and {more} more"] if more > 0 else [])])


def _too_many(what: str) -> TooManyRequests:
    return TooManyRequests(f"{what}; release some first", rule="intent.limit", next_step="fix_request")


def fenced(intent: Intent) -> Forbidden:
    """The refusal of what comes by an intent that has ended."""
    how = f" by {intent.ended_by}" if intent.ended is End.BROKEN else ""
    when = "" if intent.ended_ms is None else f" at {moment_text(intent.ended_ms)} UTC"
    return Forbidden(
        f"intent {intent.id} has ended{when} ({intent.ended or 'not renewed'}{how}): others may hold its rows since. "
        "Nothing was committed; declare another intent, read the table again, and write anew",
        rule="intent.fenced",
        next_step="fix_request",
    )


def no_intent(id_: str) -> NotFound:
    return NotFound(f"there is no intent {id_[:100]}, or it has ended long ago", rule="intent.exists")
