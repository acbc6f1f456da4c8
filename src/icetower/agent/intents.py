"""An agent's intents: a lease on rows that it is going to change, renewed while it works.

with agent.intent("shop.prices", partitions=[{"day": "2017-01-02"}]) as lease:
    rows = compute()
    table.overwrite(rows, overwrite_filter=…, snapshot_properties=lease.properties)

`Agent.next_slot` is such a lease on the rows of a slot, which the tower hands out; it ends with the slot.

The lease is kept by a thread, or a task of the event loop. It hears of commits that land in the rows meanwhile, and
whether the lease was lost: then the work is in vain, and its commit would be refused.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import quote

from icetower.agent.asking import Asker, table_path
from icetower.agent.deliveries import Slot
from icetower.agent.keys import new_key
from icetower.agent.known import Known
from icetower.agent.recovery import Patience
from icetower.agent.steps import Pause, Step, Steps, driven, driven_async
from icetower.agent.transport import AsyncTransport, Transport
from icetower.errors import Conflict, Forbidden, IcetowerError, NotFound, Unavailable, UsageError
from icetower.protocol.leases import LEASES_MAX
from icetower.protocol.marks import INTENT, INTENT_FENCE

log = logging.getLogger("icetower")

WAIT_S = 20.0
"""So long one request waits for a grant or a warning."""
TTL_S = 60.0
TRIED_AGAIN_S = 1.0

Heard = Callable[[Mapping[str, Any]], object]
_PATH = "/icetower/v1/intents"
_NEXT_SLOT = "/icetower/v1/slots/next"


@dataclass(frozen=True, slots=True)
class IntentWish:
    """What is to be held.

    Attributes:
        tables: as the control API has them: `table`, `partitions` or `filter`, `operations`, `exclusive`.
        ttl_s: it ends unless it is renewed within this time.
        wait_s: how long to stand in line where others hold some of the rows; 0: be refused.
    """

    tables: Sequence[Mapping[str, Any]]
    ttl_s: float = TTL_S
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SlotWish:
    """The next slot of a table.

    Attributes:
        ttl_s: it ends unless it is renewed within this time.
        wait_s: how long to wait for it.
        least_s: so much must be left of the slot; else it is the next one.
    """

    table: str
    ttl_s: float = TTL_S
    wait_s: float = 0.0
    least_s: float = 0.0


def wish_of(
    tables: str | Sequence[Mapping[str, Any]],
    partitions: Sequence[Mapping[str, Any]] | None,
    where: Any,
    operations: Sequence[str],
    exclusive: bool,
    ttl_s: float,
    wait_s: float,
) -> IntentWish:
    """The wish of `Agent.intent`'s arguments."""
    if not isinstance(tables, str):
        return IntentWish(tables, ttl_s, wait_s)
    one: dict[str, Any] = {"table": tables, "operations": list(operations), "exclusive": exclusive}
    if partitions is not None:
        one["partitions"] = [dict(each) for each in partitions]
    if where is not None:
        one["filter"] = where
    return IntentWish([one], ttl_s, wait_s)


@dataclass(slots=True)
class Lease:
    """An intent that is held.

    Attributes:
        id, fence: what a commit says to be known as its.
        until_s: when it has ended unless it was renewed, by the agent's own monotonic clock.
        warnings: commits of others that have landed in its rows, as they came.
        lost: why it is held no more; None while it is, as far as is known.
        slot: the slot whose rows they are, where it is one: its `value` is what to write into its `column`.
        known: what the agent is taken to have seen of each table: the snapshot at the grant, and its own since.
    """

    id: str
    fence: int
    ttl_s: float
    expires_ms: int
    until_s: float = 0.0
    warnings: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    lost: IcetowerError | None = None
    slot: Slot | None = None
    known: dict[str, Known] = field(default_factory=dict[str, Known])

    @property
    def properties(self) -> dict[str, str]:
        """Snapshot properties of the commits that are made under it."""
        return {INTENT: self.id, INTENT_FENCE: str(self.fence)}

    def check(self) -> None:
        """Raises the refusal by which the lease was lost; nothing while it is held."""
        if self.lost is not None:
            raise self.lost

    def take(self, answer: Mapping[str, Any], heard: Heard | None) -> None:
        """What the tower says of it by now."""
        new = list(answer["warnings"])[len(self.warnings) :]
        self.warnings += new
        self.expires_ms = int(answer["expires_ms"])
        if answer["state"] != "held" and self.lost is None:
            self.lost = Forbidden(
                f"intent {self.id} is held no more ({answer.get('ended') or answer['state']}); declare another one, "
                "read the table again, and write anew",
                rule="intent.fenced",
                next_step="fix_request",
            )
        for each in new:
            try:
                if heard is not None:
                    heard(each)
            except Exception:  # the lease is kept, whatever is made of its warnings
                log.exception("what was to be done about a warning of intent %s has failed", self.id)


class Holder:
    """What an agent does about its intents, as steps."""

    def __init__(self, asker: Asker, patience: Patience) -> None:
        self._asker = asker
        self._patience = patience
        self._held: dict[str, Lease] = {}

    def said(self) -> str:
        """What writes say of the leases whose blocks have not ended, those that are lost among them.

        Raises `UsageError` where these are more than a write can name.
        """
        held = list(self._held.values())
        if len(held) > LEASES_MAX:
            raise UsageError(
                f"this agent holds {len(held)} leases, and a write names {LEASES_MAX} at most; declare several tables "
                "and partitions in one intent, or write by another Agent"
            )
        return " ".join(f"{lease.id}:{lease.fence}" for lease in held)

    def enter(self, lease: Lease) -> Lease:
        """Its block begins: whatever the agent writes from now on names it."""
        self._held[lease.id] = lease
        return lease

    def known(self, table: str) -> Known | None:
        """What the agent is taken to have seen of a table: by the oldest of its leases on it; None without one."""
        return next((lease.known[table] for lease in list(self._held.values()) if table in lease.known), None)

    def leave(self, lease: Lease) -> None:
        self._held.pop(lease.id, None)

    def begin(self, wish: IntentWish | SlotWish) -> Steps[Lease]:
        """The lease of a wish, of either kind."""
        return self.declare(wish) if isinstance(wish, IntentWish) else self.take_slot(wish)

    def declare(self, wish: IntentWish) -> Steps[Lease]:
        """Declare it, and wait until it is granted.

        Raises:
            Conflict: others hold the rows, for as long as was waited (``intent.held``).
            IcetowerError: what else refuses it.
        """
        clock_s = self._patience.ambient.monotonic_s
        until_s, id_ = clock_s() + wish.wait_s, new_key(self._patience.ambient)
        body: dict[str, Any] = {
            "intent": id_,
            "tables": [dict(each) for each in wish.tables],
            "ttl_s": wish.ttl_s,
            "wait_s": min(WAIT_S, max(0.0, wish.wait_s)),
            "queue": wish.wait_s > 0,
        }
        answer = yield from self._certain("POST", _PATH, body=body)
        while answer["state"] == "queued":
            left_s = until_s - clock_s()
            if left_s <= 0:
                yield from self.release(id_)
                others = ", ".join(str(each["principal"]) for each in answer["waits_for"]) or "others"
                raise Conflict(
                    f"the rows are held by {others}, and {wish.wait_s:g} s have passed; come back later",
                    rule="intent.held",
                    next_step="wait_until",
                )
            answer = yield from self.look(id_, min(WAIT_S, left_s), 0, "queued")
        return self._lease(id_, (yield from self._as_granted(answer)))

    def _as_granted(self, answer: Mapping[str, Any]) -> Steps[Mapping[str, Any]]:
        """An intent with the snapshots at its grant.

        The tower names those at its declaration, and whoever held the rows until then may have changed them.
        """
        if answer.get("granted_ms") == answer.get("declared_ms"):
            return answer
        tables: list[Mapping[str, Any]] = []
        for each in answer["tables"]:
            loaded = yield from self._asker.json("GET", table_path(each["table"]), params={"snapshots": "refs"})
            main = (loaded["metadata"].get("refs") or {}).get("main") or {}
            tables.append({**each, "base_snapshot": main.get("snapshot-id")})
        return {**answer, "tables": tables}

    def take_slot(self, wish: SlotWish) -> Steps[Lease]:
        """Take the next slot, and wait for it.

        Raises:
            Conflict: there was none to take for as long as was waited (``slot.waiting``).
            IcetowerError: what else refuses it.
        """
        clock_s = self._patience.ambient.monotonic_s
        until_s = clock_s() + wish.wait_s
        id_ = new_key(self._patience.ambient)
        body = {
            "intent": id_,
            "table": wish.table,
            "ttl_s": wish.ttl_s,
            "least_s": wish.least_s,
        }
        while True:
            left_s = max(0.0, until_s - clock_s())
            try:
                answer = yield from self._certain("POST", _NEXT_SLOT, body={**body, "wait_s": min(WAIT_S, left_s)})
            except Conflict as refusal:
                if refusal.rule != "slot.waiting" or left_s <= WAIT_S:
                    raise
                continue
            slot = answer["slot"]
            times = int(slot["starts_ms"]), int(slot["ends_ms"]), int(slot["until_ms"])
            return self._lease(id_, answer, Slot(slot["column"], *times, int(answer["now_ms"]), clock_s, clock_s()))

    def _lease(self, id_: str, answer: Mapping[str, Any], slot: Slot | None = None) -> Lease:
        """What was granted. Raises `Forbidden` where it has ended already."""
        ttl_s, expires_ms = float(answer["ttl_s"]), int(answer["expires_ms"])
        until_s = self._patience.ambient.monotonic_s() + ttl_s
        known = {str(each["table"]): Known(each["base_snapshot"], id_) for each in answer.get("tables", ())}
        lease = Lease(id_, int(answer["fence"] or 0), ttl_s, expires_ms, until_s, slot=slot, known=known)
        lease.take(answer, None)
        lease.check()
        return lease

    def keep(self, lease: Lease, heard: Heard | None) -> Steps[None]:
        """Wait for a third of its time or a warning, then renew it."""
        try:
            answer = yield from self.look(lease.id, min(WAIT_S, lease.ttl_s / 3), len(lease.warnings), "held")
            lease.take(answer, heard)
            if lease.lost is None:
                asked_s = self._patience.ambient.monotonic_s()
                lease.take((yield from self._asker.json("POST", f"{_of(lease.id)}/renew", body={})), heard)
                lease.until_s = asked_s + lease.ttl_s
        except (Forbidden, NotFound) as refusal:
            lease.lost = refusal
        except IcetowerError:  # the tower is away: the lease lives until its time has passed
            if self._patience.ambient.monotonic_s() >= lease.until_s:
                lease.lost = Unavailable(f"no tower has answered for as long as intent {lease.id} may live")
            yield Pause(min(TRIED_AGAIN_S, lease.ttl_s / 6))

    def look(self, id_: str, wait_s: float, seen: int, state: str) -> Steps[Mapping[str, Any]]:
        """The intent, as soon as there is news of it: another state, or more warnings than were seen."""
        params = {"wait_s": f"{wait_s:.3f}", "seen": str(seen), "state": state}
        return (yield from self._asker.json("GET", _of(id_), params=params))

    def release(self, id_: str) -> Steps[Mapping[str, Any]]:
        """Let others have the rows."""
        return (yield from self._asker.json("DELETE", _of(id_)))

    def _certain(self, method: str, path: str, *, body: Any) -> Steps[Mapping[str, Any]]:
        """The answer to a request that may be sent again: it names its intent by the same id."""
        for _ in range(self._patience.attempts_max - 1):
            try:
                return (yield from self._asker.json(method, path, body=body))
            except Unavailable:
                if self._asker.nobody_there:
                    raise
                yield Pause(TRIED_AGAIN_S)
        return (yield from self._asker.json(method, path, body=body))


class Held:
    """See `Agent.intent`."""

    def __init__(
        self, holder: Holder, transport: Transport, wish: IntentWish | SlotWish, heard: Heard | None = None
    ) -> None:
        self._holder = holder
        self._transport = transport
        self._wish = wish
        self._heard = heard
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._lease: Lease | None = None

    def __enter__(self) -> Lease:
        lease = self._lease = self._holder.enter(driven(self._holder.begin(self._wish), self._transport.take))
        self._thread = threading.Thread(target=self._keep, args=(lease,), name=f"intent {lease.id}", daemon=True)
        self._thread.start()
        return lease

    def _keep(self, lease: Lease) -> None:
        while not self._ending.is_set() and lease.lost is None:
            driven(self._holder.keep(lease, self._heard), self._take)

    def _take(self, step: Step) -> Any:
        if isinstance(step, Pause):
            return self._ending.wait(step.seconds)
        return self._transport.take(step)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending.set()
        assert self._lease is not None
        self._holder.leave(self._lease)
        if self._lease.lost is None:
            _quietly(lambda: driven(self._holder.release(_id(self._lease)), self._transport.take))
        if self._thread is not None:
            self._thread.join(WAIT_S)


class AsyncHeld:
    """See `AsyncAgent.intent`."""

    def __init__(
        self, holder: Holder, transport: AsyncTransport, wish: IntentWish | SlotWish, heard: Heard | None = None
    ) -> None:
        self._holder = holder
        self._transport = transport
        self._wish = wish
        self._heard = heard
        self._task: asyncio.Task[None] | None = None
        self._lease: Lease | None = None

    async def __aenter__(self) -> Lease:
        begun = await driven_async(self._holder.begin(self._wish), self._transport.take)
        lease = self._lease = self._holder.enter(begun)
        self._task = asyncio.create_task(self._keep(lease))
        return lease

    async def _keep(self, lease: Lease) -> None:
        while lease.lost is None:
            await driven_async(self._holder.keep(lease, self._heard), self._transport.take)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        assert self._lease is not None
        self._holder.leave(self._lease)
        if self._lease.lost is None:
            try:
                await driven_async(self._holder.release(self._lease.id), self._transport.take)
            except IcetowerError:
                return  # it ends by itself


def _of(id_: str) -> str:
    return f"{_PATH}/{quote(id_, safe='')}"


def _id(lease: Lease | None) -> str:
    assert lease is not None
    return lease.id


def _quietly(call: Callable[[], object]) -> None:
    """What is not released ends by itself."""
    try:
        call()
    except IcetowerError:
        return
