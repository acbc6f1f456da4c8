"""What an agent does to have its rows in a table once: requests, pauses and calls, and what follows from each answer.

Nothing here sends, waits or blocks: each method is a generator of `Step`s, which a transport takes. The way of the rows
is asked for first (`GET /icetower/v1/me/delivery`). Then they go in requests of the rows door, each under a key that
follows from the call's; the tower writes them to the table, its log or its delta table. What the agent has to commit
itself goes by PyIceberg.

A request without an answer is sent again under its key. Where the contract has its rows go to another table by then,
the tower is asked first whether it has landed in the one before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from icetower.agent.asking import DOUBTFUL, Asker, refusal_in, table_path
from icetower.agent.deliveries import AGENT, CHANGE, EVENT_TIME, GRANTS, KEY, WRITTEN, Delivery, require_taken
from icetower.agent.direct import Change, Direct, Where
from icetower.agent.journal import Journal, Pending
from icetower.agent.keys import new_key, request_key
from icetower.agent.known import Known, known_of
from icetower.agent.recovery import Patience, Recovery
from icetower.agent.rows import Piece, Rows, rows_of, together
from icetower.agent.steps import Lost, Request, Steps, Work
from icetower.agent.transport import retry_after_s
from icetower.agent.written import LandedRequest, Operation, Outcome, Written
from icetower.errors import (
    CommitStateUnknown,
    IcetowerError,
    KeyMisused,
    NotAuthenticated,
    TooManyRequests,
    Unavailable,
    UsageError,
)
from icetower.protocol.names import Identifier
from icetower.protocol.row_limits import ROWS_MAX

WAYS_MAX = 4
"""So often the rows of a call may change their way."""

_GRANTED = {**GRANTS, "overwrite_partition": "overwrite"}


@dataclass(slots=True)
class _Call:
    """The state of one call.

    Attributes:
        pieces: the rows, with what is done with each.
        key: None until one is made.
        pending: the journal's entry.
        requests: the rows by request, once the way is known.
        landed: of these, those that have landed; the next one is at hand.
        kept: the table that the request at hand was written to last, so far as is known.
        doubtful: whether the request at hand may have landed.
        ever_doubtful: whether any request of the call was.
        least_s: what the last answer asked to wait.
        ways: how often the way has changed.
        young: whether the tower is known to remember the journal's key still.
        whole: whether the rows of an upsert are known to be whole.
        read: what the caller says that the rows were computed from.
    """

    operation: Operation
    table: str
    pieces: tuple[Piece, ...]
    keys: tuple[str, ...]
    key: str | None
    ref: str
    where: Where
    pending: Pending | None = None
    requests: list[tuple[Piece, ...]] = field(default_factory=list[tuple[Piece, ...]])
    landed: list[LandedRequest] = field(default_factory=list[LandedRequest])
    kept: str | None = None
    doubtful: bool = False
    ever_doubtful: bool = False
    least_s: float = 0.0
    ways: int = 0
    young: bool = False
    whole: bool = False
    read: Known | None = None

    @property
    def count(self) -> int:
        return sum(rows.count for _, rows in self.pieces)

    @property
    def acts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(act for act, _ in self.pieces))

    @property
    def request_key(self) -> str:
        """Of the request at hand, as it was made first."""
        assert self.key is not None
        return request_key(self.key, len(self.landed), len(self.requests))

    def by_door(self, to: str) -> bool:
        """Whether the rows go to a table by the rows door, or the agent commits them itself."""
        return to != self.table or self.acts == ("append",)

    def committed(self, to: str, key: str, snapshot_id: int | None, *, again: bool) -> Written:
        """What came of rows that the agent has committed itself."""
        assert self.key is not None
        outcome: Outcome = "replayed" if again else "committed"
        landed = LandedRequest(key, snapshot_id, None, outcome, self.count, 1)
        return Written(self.operation, self.table, to, outcome, snapshot_id, self.key, self.count, (landed,))

    def doubt(self) -> None:
        self.doubtful = self.ever_doubtful = True

    def turn_to_next(self) -> None:
        """The next request is at hand. It was sent before if an earlier call had the journal's key."""
        again = self.pending is not None and self.pending.again
        self.doubtful, self.ever_doubtful = again, self.ever_doubtful or again
        self.kept = self.pending.way(len(self.landed)) if self.pending is not None and again else None


class _GivenUp(Exception):
    """A refusal after which all was tried that there is to try. `error`: the refusal."""

    def __init__(self, error: IcetowerError) -> None:
        super().__init__(error.message)
        self.error = error


class Writer:
    """An agent without its transport. Threads may share it.

    Args:
        leases: what writes say of the leases that the agent believes to hold.
        known: what the agent is taken to have seen of a table by these leases.
        reason: for the person who is asked for partitions.
        rows_max: the most rows of a request. Which rows go together depends on it, so it must stay the same while rows
            may be sent again.
    """

    def __init__(
        self,
        asker: Asker,
        direct: Direct,
        leases: Callable[[], str],
        known: Callable[[str], Known | None],
        *,
        reason: str,
        patience: Patience,
        journal: Journal | None,
        rows_max: int = ROWS_MAX,
    ) -> None:
        self._asker = asker
        self._direct = direct
        self._leases = leases
        self._known = known
        self._reason = reason
        self._patience = patience
        self._journal = journal
        self._rows_max = rows_max

    # -- calls ----------------------------------------------------------------------------------------------------

    def write(
        self,
        operation: Operation,
        table: str,
        given: Any,
        *,
        keys: Sequence[str] = (),
        key: str | None = None,
        ref: str = "main",
        where: Where = "",
        read: Any = None,
    ) -> Steps[Written]:
        """Do one thing with rows. Arguments and errors as of `Agent`'s methods."""
        Identifier.parse(table)
        rows = yield Work(partial(rows_of, given))
        call = _Call(operation, table, ((operation, rows),), tuple(keys), key, ref, where, read=known_of(read))
        return (yield from self._written(call))

    def write_together(self, table: str, given: Sequence[tuple[str, Any]], key: str | None) -> Steps[Written]:
        """Do several things with rows of one table, in one request."""
        Identifier.parse(table)
        pieces: list[Piece] = []
        for act, each in given:
            pieces.append((act, (yield Work(partial(rows_of, each)))))
        call = _Call("transaction", table, tuple(piece for piece in pieces if piece[1].count), (), key, "main", "")
        if call.count and len((yield Work(partial(_whole_of(call.pieces).requests, self._rows_max)))) > 1:
            raise UsageError(
                f"the {call.count} rows of the transaction do not fit into one request, and only a request lands as a "
                "whole; leave some out, or append them without a transaction"
            )
        return (yield from self._written(call))

    def _written(self, call: _Call) -> Steps[Written]:
        if not call.count and call.operation != "overwrite_partition":
            key = call.key or new_key(self._patience.ambient)
            return Written(call.operation, call.table, call.table, "empty", None, key, 0)
        fingerprint = ""
        if self._journal is not None:
            fingerprint = yield Work(partial(_fingerprint, call))
            # Not a step: no cancellation may come between the claim and its release.
            call.pending = self._journal.claim(call.operation, call.table, fingerprint, call.key)
        try:
            if call.pending is not None and call.key is None:
                call.key = call.pending.key
            return (yield from self._carried_out(call, fingerprint))
        finally:
            if call.pending is not None and self._journal is not None:
                self._journal.release(call.pending)

    def _carried_out(self, call: _Call, fingerprint: str) -> Steps[Written]:
        while True:
            call.turn_to_next()
            done = yield from self._tried(call, fingerprint)
            if isinstance(done, LandedRequest):
                call.landed.append(done)
                if len(call.landed) < len(call.requests):
                    continue
                done = self._summed_up(call)
            if call.pending is not None and self._journal is not None:
                yield Work(partial(self._journal.ended, call.pending))
            return done

    def _tried(self, call: _Call, fingerprint: str) -> Steps[LandedRequest | Written]:
        """Send the request at hand until it has landed, or, where the agent commits itself, do the whole call."""
        recovery, attempts, failures = self._recovery(call), 0, 0
        while True:
            try:
                yield from self._require_young(call)
                to = yield from self._destination(call)
                if call.doubtful and call.kept not in (None, to):
                    there = yield from self._there_before(call, recovery)
                    if there is not None:
                        return there
                    call.doubtful = False
                yield from self._begun(call, to, fingerprint)
                if not call.by_door(to):
                    return (yield from self._directly(call))
                yield from self._parted(call, recovery)
                attempts += 1
                return (yield from self._land(call, to, recovery.key, attempts))
            except _GivenUp as given:
                yield from self._refused(call)
                raise self._last(call, given.error) from given
            except IcetowerError as refusal:
                failures += not isinstance(refusal, TooManyRequests)
                if not (yield from self._may_retry(call, refusal, recovery, failures)):
                    yield from self._refused(call)
                    raise self._last(call, refusal) from refusal.__cause__

    def _summed_up(self, call: _Call) -> Written:
        assert call.key is not None
        assert call.kept is not None
        new = any(each.outcome != "replayed" for each in call.landed)
        return Written(
            call.operation,
            call.table,
            call.kept,
            "appended" if new else "replayed",
            call.landed[-1].snapshot_id,
            call.key,
            call.count,
            tuple(call.landed),
        )

    # -- before the first request ---------------------------------------------------------------------------------

    def _require_young(self, call: _Call) -> Steps[None]:
        """Raises `KeyMisused` (``key.gone``) where the tower may have forgotten the journal's key by now."""
        pending = call.pending
        if pending is None or self._journal is None or call.young or not pending.again:
            return
        age_s = (self._patience.ambient.now_ms() - pending.at_ms) / 1000
        lifetime_s = yield from self._asker.key_lifetime_s()
        if lifetime_s is not None and age_s >= lifetime_s:
            raise KeyMisused(
                f"{self._journal.path}: these rows were sent to {pending.table} {age_s / 3600:.0f} hours ago under the "
                f"key {pending.key}, and no answer came; the tower remembers keys for {lifetime_s / 3600:.0f} hours. "
                "Look for the rows in the table, then forget the key (`journal.forget`)",
                rule="key.gone",
                next_step="ask_owner",
            )
        call.young = True

    def _begun(self, call: _Call, to: str, fingerprint: str) -> Steps[None]:
        """The key is made, and the journal has it, and the table that the rows go to."""
        journal, number = self._journal, len(call.landed)
        if journal is not None and call.pending is None:
            # Held before the step in which it is written.
            call.pending = journal.fresh(call.operation, call.table, fingerprint, self._rows_max, to, call.key)
            yield Work(partial(journal.begin, call.pending))
        elif journal is not None and call.pending is not None and call.pending.way(number) != to:
            call.pending = yield Work(partial(journal.moved, call.pending, number, to))
        if call.key is None:
            call.key = new_key(self._patience.ambient) if call.pending is None else call.pending.key
        call.kept = to

    def _parted(self, call: _Call, recovery: Recovery) -> Steps[None]:
        """The rows are parted into requests, and the one at hand has its key."""
        if not call.requests:
            most = self._rows_max if call.pending is None else call.pending.most
            call.requests = yield Work(partial(_requests_of, call, most))
        recovery.key = recovery.key or call.request_key

    def _destination(self, call: _Call) -> Steps[str]:
        """The table that the contract has the rows written to, once they may be."""
        if call.doubtful:
            self._asker.forget(call.table)
        found: Delivery | None = None
        for granted in dict.fromkeys(_GRANTED[act] for act in call.acts):
            delivery = yield from self._asker.delivery(call.table, granted)
            for act in call.acts:
                require_taken(delivery, act)
            if found is not None and found.written != delivery.written:
                raise UsageError(
                    f"contract {delivery.agent} has the rows of the transaction go to {found.written} and to "
                    f"{delivery.written}, and only what goes into one table lands as a whole"
                )
            found = delivery
        assert found is not None
        to = found.written
        if to != call.table and call.ref != "main":
            raise UsageError(f"the rows of {call.table} go through {to}, which has no branch {call.ref}")
        if call.operation == "transaction" and not call.by_door(to):
            raise UsageError(
                f"a transaction on {call.table} takes appends alone: this agent commits each upsert and delete itself. "
                "Through a delta table (pattern: collector) all of them go into one request"
            )
        if call.read is not None and call.by_door(to):
            raise UsageError(
                f"the rows of {call.table} go through {to}, whose job sees what is there by then; leave read= out"
            )
        if to != call.table and "upsert" in call.acts and not call.whole:
            _require_whole(call, (yield from self._asker.columns(to)))
            call.whole = True
        return to

    def _there_before(self, call: _Call, recovery: Recovery) -> Steps[LandedRequest | Written | None]:
        """Whether the request at hand has landed in the table that it was written to before."""
        assert call.kept is not None
        assert call.key is not None
        if call.by_door(call.kept):
            yield from self._parted(call, recovery)
            snapshot_id = yield from self._asker.landed(call.kept, recovery.key, call.ref)
            count = sum(rows.count for _, rows in call.requests[len(call.landed)])
            landed = LandedRequest(recovery.key, snapshot_id, None, "replayed", count, 0)
            return None if snapshot_id is None else landed
        snapshot_id = yield from self._asker.landed(call.kept, call.key, call.ref)
        return None if snapshot_id is None else call.committed(call.kept, call.key, snapshot_id, again=True)

    # -- sending --------------------------------------------------------------------------------------------------

    def _land(self, call: _Call, to: str, key: str, attempts: int) -> Steps[LandedRequest]:
        """Send the request at hand once. Raises its refusal."""
        pieces = call.requests[len(call.landed)]
        kind, body = yield Work(partial(_encoded, pieces))
        params = {"operation": pieces[0][0]} | ({} if call.ref == "main" else {"ref": call.ref})
        if leases := self._leases():
            params["leases"] = leases
        if key != call.request_key:  # the rows keep their own keys
            params["seed"] = call.request_key
        headers = {"Content-Type": kind, "Idempotency-Key": key}
        call.least_s = 0.0
        try:
            response = yield from self._asker.sent(
                Request("POST", f"{table_path(call.table)}/rows", params, headers, body)
            )
        except Lost as lost:
            if lost.sent:
                call.doubt()
            raise lost.error from lost
        if response.status != 200:
            call.least_s = retry_after_s(response, self._patience.ambient.now_ms())
            if response.status in DOUBTFUL:
                call.doubt()
            raise refusal_in(response)
        try:
            answer = json.loads(response.body)
            outcome: Outcome = "replayed" if answer["outcome"] == "replayed" else "appended"
            call.kept = str(answer["table"])
            landed = LandedRequest(
                key, answer["snapshot-id"], answer["sequence-number"], outcome, answer["rows"], attempts
            )
        except (ValueError, KeyError, TypeError) as error:
            call.doubt()
            raise Unavailable(f"the answer is none of a tower's ({error!r})", rule="client.connection") from error
        if call.kept != to:  # the contract has changed since it was asked for
            self._asker.forget(call.table)
        known = self._known(call.kept)
        if known is not None and landed.snapshot_id is not None and call.ref == "main":
            known.appended.add(landed.snapshot_id)
        return landed

    def _directly(self, call: _Call) -> Steps[Written]:
        """Commit by PyIceberg, whose refusals `send` has dealt with before it raises one."""
        assert call.key is not None
        rows: Rows = call.pieces[0][1]
        yield Work(self._direct.require_installed)
        known = call.read or self._known(call.table)
        change = Change(call.table, (yield Work(rows.as_arrow)), call.key, call.keys, self._leases(), known)
        if call.operation == "overwrite_partition":
            work = partial(self._direct.overwrite, change, call.where)
        else:
            work = partial(self._direct.write, change, _act(call.operation))
        call.doubt()
        credentials, renewed = self._asker.credentials, False
        while True:
            try:
                if credentials.token is None and credentials.renewable:
                    yield Work(credentials.renew)
                sent = yield Work(partial(work, credentials.token))
                break
            except IcetowerError as refusal:
                if isinstance(refusal, NotAuthenticated) and credentials.renewable and not renewed:
                    yield Work(credentials.renew)
                    renewed = True
                    continue
                # Of what has landed, the tower says none of these.
                call.ever_doubtful = not (isinstance(refusal, UsageError) or refusal.status in (400, 403, 404))
                raise _GivenUp(refusal) from refusal
        return call.committed(sent.table, sent.key, sent.snapshot_id, again=sent.again)

    # -- refusals -------------------------------------------------------------------------------------------------

    def _recovery(self, call: _Call) -> Recovery:
        """Of the request at hand. Its key is not known yet."""
        operations = sorted({_GRANTED[act] for act in call.acts})
        renew = self._asker.credentials.renew if self._asker.credentials.renewable else None
        return Recovery(self._asker, call.table, operations, self._reason, "", self._patience, renew)

    def _may_retry(self, call: _Call, refusal: IcetowerError, recovery: Recovery, failures: int) -> Steps[bool]:
        if not _says_nothing(refusal):
            self._asker.forget(call.table, *(() if call.kept is None else (call.kept,)))
        if refusal.rule in ("contract.pattern", "rows.operation") and call.ways < WAYS_MAX:
            call.ways += 1  # the contract has changed since it was asked for
            return True
        if failures >= self._patience.attempts_max or self._asker.nobody_there:
            return False
        return (yield from recovery.after(refusal, least_s=call.least_s))

    def _refused(self, call: _Call) -> Steps[None]:
        """The call fails. Where nothing of it can be in the table, the journal need not keep its key."""
        if call.pending is not None and self._journal is not None and not (call.ever_doubtful or call.landed):
            yield Work(partial(self._journal.ended, call.pending))

    def _last(self, call: _Call, refusal: IcetowerError) -> IcetowerError:
        """What the caller hears: never that it failed, where that cannot be told."""
        if call.doubtful and _says_nothing(refusal):
            return CommitStateUnknown(
                f"{refusal.message}; the rows may be in {call.table}. Send the same rows again under the key {call.key}"
            )
        if call.landed:
            refusal.message += (
                f"; {len(call.landed)} of the {len(call.requests)} requests with these rows have landed. Send the same "
                f"rows again under the key {call.key}"
            )
            refusal.args = (refusal.message,)
        return refusal


def _act(operation: Operation) -> Literal["upsert", "delete"]:
    return "delete" if operation == "delete" else "upsert"


def _says_nothing(refusal: IcetowerError) -> bool:
    """Whether it tells nothing of whether an earlier attempt has landed."""
    doubtful = refusal.status in DOUBTFUL and not isinstance(refusal, UsageError)
    return doubtful or isinstance(refusal, TooManyRequests)


def _requests_of(call: _Call, rows_max: int) -> list[tuple[Piece, ...]]:
    if call.operation == "transaction":
        return [call.pieces]
    ((act, rows),) = call.pieces
    return [((act, part),) for part in rows.requests(rows_max)]


def _encoded(pieces: tuple[Piece, ...]) -> tuple[str, bytes]:
    return _whole_of(pieces).body()


def _whole_of(pieces: tuple[Piece, ...]) -> Rows:
    """Rows as those of one request, each with what is done with it where that differs."""
    if len({act for act, _ in pieces}) == 1:
        return together([rows for _, rows in pieces])
    changes = {"append": "upsert", "upsert": "upsert", "delete": "delete"}
    return together([rows.with_text(CHANGE, changes[act]) for act, rows in pieces])


def _require_whole(call: _Call, columns: Sequence[str]) -> None:
    """Raises `UsageError` for an upsert that would leave columns of its rows empty."""
    wanted = [name for name in columns if name not in (EVENT_TIME, AGENT, CHANGE, WRITTEN, KEY)]
    missing = {name for act, rows in call.pieces if act == "upsert" for name in rows.lacking(wanted)}
    if missing:
        names = ", ".join(name for name in wanted if name in missing)
        raise UsageError(f"an upsert replaces whole rows, and these lack {names} of {call.table}")


def _fingerprint(call: _Call) -> str:
    """Stands for the rows, and for what is to be done with them."""
    named = call.where if isinstance(call.where, str) else sorted((name, str(it)) for name, it in call.where.items())
    asked = [call.keys, call.ref, named, [(act, rows.fingerprint()) for act, rows in call.pieces]]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()
