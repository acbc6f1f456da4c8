"""What is kept of each attempt: a row in the ledger's log, and, where it was refused, a line on the server's log.

Both carry the id of the request, and so does the error that the client gets.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from icetower.ambient import Ambient
from icetower.commit.engine import Committed
from icetower.commit.steps import Step
from icetower.errors import (
    AlreadyExists,
    CommitConflict,
    CommitStateUnknown,
    Conflict,
    IcetowerError,
    NotAuthenticated,
    TooManyRequests,
)
from icetower.iceberg.partitions import partition_key, partition_name
from icetower.ledger.attempts import (
    MESSAGE_CHARACTERS_MAX,
    PARTITION_CHARACTERS_MAX,
    PARTITIONS_MAX,
    Attempt,
    Outcome,
)
from icetower.observe.events import Event, Events, one_line
from icetower.observe.traces import CommitTrace, Traces
from icetower.protocol.names import Identifier
from icetower.protocol.snapshots import Snapshot
from icetower.protocol.updates import Updates
from icetower.service.tracing import trace_attempt, trace_group
from icetower.table.head import HeadState
from icetower.texts import clipped

ABOUT_CHARACTERS_MAX = 1_000
"""Of the name of a table or a namespace."""

REFUSED_TABLES_MAX = 5
"""Tables of one refused transaction that are logged: one agent must not push others out of the log."""

FILES_LOOKED_AT_MAX = 2_000
"""Files of one commit whose partitions are looked at for the log."""
SAME_AGAIN_S = 60.0
"""Of a principal's refused reads of one table by one rule, one in this time is kept."""
READS_KEPT_MAX = 10_000
REQUEST_ID_CHARACTERS = 16
READ = "read"
STAGED = "stage-create"
"""The first half of a creation: done, it has changed nothing."""
SLOW_SWAP_S = 1.0
_METADATA_LOST = "upstream.metadata"
_TOO_MANY_GUESSES = "oauth.rate"


@dataclass(frozen=True, slots=True)
class Known:
    """What else is known of an attempt; see the fields of the log with these names.

    Attributes:
        request_id: of the request, where it has one already.
        trace: of the request; None: nobody traces.
        updates: as its client sent them; None of an append by the fast path, and of what is no commit.
        requests: how many attempts the request is.
        identifier: the table of a commit.
        change: of what is no commit, and was made: the operation as an event has it.
    """

    contract: str | None = None
    key_hash: str | None = None
    work: str | None = None
    base: int | None = None
    decided_ms: int | None = None
    judge_ms: float | None = None
    request_id: str | None = None
    trace: CommitTrace | None = None
    updates: Updates | None = None
    requests: int = 1
    identifier: Identifier | None = None
    change: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt that has ended, for whoever hears of all of them.

    Attributes:
        kept: as the log keeps it.
        started_s: when it came, monotonic.
    """

    kept: Attempt
    known: Known
    started_s: float
    committed: Committed | None
    error: IcetowerError | None


Heard = Callable[[Ended], None]
"""Is called with each attempt; it does not wait."""


log = logging.getLogger("icetower")


class Attempts:
    """Where every attempt ends.

    Args:
        keep: takes what is to be written to the ledger.
        slow_s: a swap that takes longer is a line on the log.
        heard: hear of each attempt.
        traces: hear of each group that is swapped; None: nobody traces.
    """

    def __init__(
        self,
        ambient: Ambient,
        events: Events,
        keep: Callable[[Attempt], None],
        *,
        slow_s: float = SLOW_SWAP_S,
        heard: Sequence[Heard] = (),
        traces: Traces | None = None,
    ) -> None:
        self._ambient = ambient
        self._events = events
        self._keep = keep
        self._slow_s = slow_s
        self.swaps = 0
        self.swap_s = 0.0
        """How many swaps there were, and how long they took together, in seconds."""
        self._heard = tuple(heard)
        self._traces = traces
        self._reads_s: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    def ended(
        self,
        principal: str,
        about: str,
        operation: str,
        started_s: float,
        result: Committed | IcetowerError | None,
        *,
        known: Known = Known(),
        partitions: tuple[str, ...] = (),
        left_out: int = 0,
    ) -> None:
        """One attempt. `result` None: a change that is no commit was made.

        This is where texts of clients are cut, for all logs. An error gets the id of the request here, before it is
        answered.

        Args:
            left_out: tables of the same refused request that are not logged.
        """
        error = result if isinstance(result, IcetowerError) else None
        about = clipped(about, ABOUT_CHARACTERS_MAX)
        request_id = self.named(error, known.request_id)
        if error is not None:
            error.logged = True
        if error is not None and operation == READ and self._said_lately(principal, about, error.rule):
            return
        committed = result if isinstance(result, Committed) else None
        touched = partitions if error is None else tuple(map(one_line, error.partitions[:PARTITIONS_MAX]))
        attempt = Attempt(
            principal=principal,
            table=about,
            operation=operation,
            outcome=_outcome_of(committed, error),
            rule=None if error is None else error.rule,
            queue_wait_ms=0.0 if committed is None else committed.queue_wait_ms,
            latency_ms=(self._ambient.monotonic_s() - started_s) * 1000,
            snapshots=() if committed is None else committed.snapshots,
            key_hash=known.key_hash,
            at_ms=self._ambient.now_ms(),
            request_id=request_id,
            partitions=tuple(clipped(name, PARTITION_CHARACTERS_MAX) for name in touched[:PARTITIONS_MAX]),
            message=None if error is None else _kept_message(error, left_out),
            contract=known.contract,
            work=known.work,
            base=known.base,
            decided_ms=known.decided_ms,
            judge_ms=known.judge_ms,
        )
        if committed is not None:
            attempt = replace(attempt, **_of_commit(committed))
        self._keep(attempt)
        if error is not None:
            self._say(attempt, error)
        elif self._events.writes(logging.INFO):
            self._say_landed(attempt)
        if known.trace is not None or self._heard:
            self._hear(Ended(attempt, known, started_s, committed, error))

    def _hear(self, ended: Ended) -> None:
        try:
            if ended.known.trace is not None:
                trace_attempt(ended.known.trace, ended.kept, ended.started_s, ended.committed)
            for heard in self._heard:
                heard(ended)
        except Exception:  # it has landed, or it has not: whoever only listens changes nothing about that
            log.exception("request %s: what became of it could not be told to all that follow", ended.kept.request_id)

    def new_id(self) -> str:
        """The id of a new request."""
        return self._ambient.uuid4().replace("-", "")[-REQUEST_ID_CHARACTERS:]

    def named(self, error: IcetowerError | None, request_id: str | None = None) -> str:
        """The id of a request: the error's, or the one that it has already, or a new one.

        Two equal requests at once may share an error.
        """
        if error is not None and error.request_id is not None:
            return error.request_id
        request_id = request_id or self.new_id()
        if error is not None:
            error.request_id = request_id
        return request_id

    def failed(self, method: str, path: str, error: IcetowerError, **fields: object) -> None:
        """A request that is in no log of attempts: what was wrong on the server's side, who was not let in, and
        who asked too often.

        Args:
            fields: more of the line.
        """
        if error.logged:
            return
        if error.rule == _METADATA_LOST:
            event = Event.METADATA_LOST
        elif isinstance(error, NotAuthenticated) or error.rule == _TOO_MANY_GUESSES:
            event = Event.NOT_AUTHENTICATED
        elif isinstance(error, TooManyRequests):
            event = Event.REFUSED
        elif error.status >= 500:
            event = Event.FAILED
        else:
            return
        error.logged = True
        self._events.say(
            event,
            request=self.named(error),
            method=method,
            path=path,
            status=error.status,
            rule=error.rule,
            **fields,
            message=error.message,
        )

    def swapped(self, steps: Sequence[Step], took_s: float) -> None:
        """A group of commits was swapped in, or was not, after a while."""
        self.swaps += 1
        self.swap_s += took_s
        if self._traces is not None:
            try:
                trace_group(self._traces, steps)
            except Exception:  # this is called between the swap and its answers
                log.exception("a group of commits could not be traced")
        if took_s < self._slow_s:
            return
        self._events.say(
            Event.SWAP_SLOW,
            requests=list(dict.fromkeys(waiting.request for step in steps for waiting in step.waiting)),
            principals=list(dict.fromkeys(waiting.member.principal for step in steps for waiting in step.waiting)),
            tables=[str(step.identifier) for step in steps],
            metadata=[step.new.head.location for step in steps],
            snapshots=[
                snapshot for step in steps for accepted in step.plan.accepted for snapshot in accepted.snapshots
            ],
            commits=sum(len(step.waiting) for step in steps),
            took_ms=took_s * 1000,
        )

    def _said_lately(self, principal: str, about: str, rule: str) -> bool:
        """Whether such a read was kept a moment ago: one agent in a loop must not push others out of the log."""
        now_s, name = self._ambient.monotonic_s(), (principal, about, rule)
        before_s = self._reads_s.get(name)
        if before_s is not None and now_s < before_s + SAME_AGAIN_S:
            return True
        self._reads_s[name] = now_s
        self._reads_s.move_to_end(name)
        if len(self._reads_s) > READS_KEPT_MAX:
            self._reads_s.popitem(last=False)
        return False

    def _say_landed(self, attempt: Attempt) -> None:
        self._events.say(
            Event.LANDED,
            logging.INFO,
            request=attempt.request_id,
            principal=attempt.principal,
            table=attempt.table,
            operation=attempt.operation,
            outcome=attempt.outcome.value,
            snapshots=attempt.snapshots,
            partitions=attempt.partitions,
            group_size=attempt.group_size,
            queue_wait_ms=attempt.queue_wait_ms,
            latency_ms=attempt.latency_ms,
        )

    def _say(self, attempt: Attempt, error: IcetowerError) -> None:
        in_conflict = attempt.outcome is Outcome.CONFLICT
        stale = in_conflict and isinstance(error, CommitConflict) and not error.rule.startswith("conflict")
        # Clients expect these, and go on by themselves.
        expected = stale or isinstance(error, AlreadyExists)
        self._events.say(
            _event_of(attempt.outcome, error),
            logging.INFO if expected else logging.WARNING,
            request=attempt.request_id,
            principal=attempt.principal,
            table=attempt.table,
            operation=attempt.operation,
            status=error.status,
            rule=error.rule,
            partitions=attempt.partitions,
            snapshot=error.snapshot,
            latency_ms=attempt.latency_ms,
            message=attempt.message,
        )


def _kept_message(error: IcetowerError, left_out: int) -> str:
    tail = f" (and for {left_out} more tables)" if left_out > 0 else ""
    return clipped(error.message, MESSAGE_CHARACTERS_MAX - len(tail)) + tail


def _of_commit(committed: Committed) -> dict[str, Any]:
    """What is logged of a commit that has landed."""
    cost = committed.cost
    found: dict[str, Any] = {"head": _parent(committed.head, committed.snapshots)}
    if committed.outcome != Outcome.REPLAYED:
        found["group_size"] = committed.group_size
    if cost is not None:
        found |= {"metadata_bytes": cost.metadata_bytes, "manifests": cost.manifests}
        found |= {"plan_ms": cost.plan_ms, "write_ms": cost.write_ms, "swap_ms": cost.swap_ms}
    return found


def _parent(head: HeadState, snapshots: Sequence[int]) -> int | None:
    """The snapshot before the first of some."""
    first = head.snapshots.get(snapshots[0]) if snapshots else None
    return None if first is None else Snapshot(first).parent_id


def partitions_of(head: HeadState, places: Iterable[tuple[int, tuple[Any, ...]]]) -> tuple[str, ...]:
    """The names of partitions, a few of many.

    Args:
        places: spec and partition of each file.
    """
    names: dict[object, str] = {}
    for spec_id, partition in islice(places, FILES_LOOKED_AT_MAX):
        key = (spec_id, partition_key(partition))
        if key not in names and spec_id in head.specs:
            names[key] = one_line(partition_name(head.specs[spec_id], partition))
            if len(names) == PARTITIONS_MAX:
                break
    return tuple(names.values())


def _outcome_of(committed: Committed | None, error: IcetowerError | None) -> Outcome:
    if committed is not None:
        return Outcome(committed.outcome)
    if error is None:
        return Outcome.DONE
    if isinstance(error, CommitStateUnknown):
        return Outcome.UNKNOWN
    # A 409 that asks its client to wait is about no other commit: a quota has refused it.
    return Outcome.CONFLICT if isinstance(error, Conflict) and error.next_step != "wait_until" else Outcome.REFUSED


def _event_of(outcome: Outcome, error: IcetowerError) -> Event:
    if error.rule == _METADATA_LOST:
        return Event.METADATA_LOST
    if outcome is Outcome.UNKNOWN:
        return Event.UNKNOWN
    if error.status >= 500:
        return Event.FAILED
    return Event.CONFLICT if outcome is Outcome.CONFLICT else Event.REFUSED
