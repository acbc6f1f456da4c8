"""How attempts end: each is logged, and a refusal is explained, and counted towards a stop of its principal."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from icetower.admission.identity import Identity
from icetower.commit.engine import Committed
from icetower.errors import CommitConflict, IcetowerError
from icetower.escalations.escalations import Escalations
from icetower.ledger.attempts import NUMBERED, numbered_name
from icetower.ledger.hashes import key_hash, text_hash
from icetower.observe.traces import CommitTrace
from icetower.observe.undeclared import Undeclared
from icetower.protocol.names import Identifier
from icetower.protocol.updates import Updates
from icetower.registry.principals import Principal
from icetower.service.attempts import REFUSED_TABLES_MAX, Attempts, Known
from icetower.service.owners import Owners

TIME_DIGITS_MAX = 14
"""Of milliseconds since 1970: until the year 5138, as far as Spark and PyIceberg show times."""


@dataclass(slots=True)
class Write:
    """One table's share of an attempt: see the fields of the log with these names."""

    work: str | None = None
    base: int | None = None
    decided_ms: int | None = None

    def identified(self, identity: Identity, fingerprint: str | None = None) -> None:
        """Note by what it is known when it is tried again, unless by its key, which is logged in any case.

        Args:
            fingerprint: of its files, if it has any.
        """
        if identity.key is not None:
            return
        if identity.application is not None:
            self.work = NUMBERED + text_hash(numbered_name(identity.application))
        elif fingerprint is not None:
            self.work = "files:" + fingerprint
        elif identity.snapshots:
            self.work = "snapshots:" + text_hash(repr(identity.snapshot_ids))


@dataclass(slots=True)
class Attempt:
    """One request to commit, until it has ended.

    Attributes:
        tables: all that it is about.
        operation: as the log has it; more exact once the commit was read.
        started_s: when it came, monotonic.
        key: its idempotency key, as far as it is known.
        work: what identifies it from one try of its client to the next.
        looking_at: the one of its tables that is being judged, if one is.
        writes: of each table, what is known of what is written to it.
        judged_s: when it was admitted, monotonic.
        request_id: under which all logs have it.
        trace: of its request; None: nobody traces.
        updates: of each table, as they were sent.
    """

    principal: Principal
    tables: Sequence[Identifier]
    operation: str
    started_s: float
    key: str | None = None
    work: Hashable = None
    partitions: tuple[str, ...] = ()
    looking_at: Identifier | None = None
    writes: dict[Identifier, Write] = field(default_factory=dict["Identifier", "Write"])
    judged_s: float | None = None
    request_id: str | None = None
    trace: CommitTrace | None = None
    updates: dict[Identifier, Updates] = field(default_factory=dict["Identifier", "Updates"])

    def write(self, table: Identifier) -> Write:
        """What is known of what is written to a table, to be filled in."""
        return self.writes.setdefault(table, Write())


class Outcomes:
    """One a tower."""

    def __init__(self, escalations: Escalations, owners: Owners, attempts: Attempts, undeclared: Undeclared) -> None:
        self._undeclared = undeclared
        self._escalations = escalations
        self._owners = owners
        self._attempts = attempts

    def begin(self, attempt: Attempt) -> Attempt:
        """Give an attempt its id, under which all logs have it, and its trace."""
        attempt.request_id = self._attempts.new_id()
        if attempt.trace is not None:
            attempt.trace.begins(attempt.request_id)
        return attempt

    @asynccontextmanager
    async def watched(self, attempt: Attempt) -> AsyncGenerator[None]:
        """What refuses the attempt within is explained, counted for each of its tables, and logged for a few of them.

        Raises:
            IcetowerError: the refusal, or that its principal is stopped by now.
        """
        try:
            yield
        except IcetowerError as refusal:
            if isinstance(refusal, CommitConflict) and refusal.missing is not None:
                self._undeclared.refused(attempt.principal.name, refusal.missing)
            error = answer = await self._owners.explained(attempt.principal, refusal)
            # The one that is being judged comes first: it is what refuses the rest.
            tables = sorted(attempt.tables, key=lambda table: table != attempt.looking_at)
            for position, table in enumerate(tables):
                failure = await self._escalations.failed(attempt.principal, table, error, work=attempt.work)
                if position < REFUSED_TABLES_MAX:
                    self._log(attempt, table, failure, attempt.key, left_out=len(tables) - REFUSED_TABLES_MAX)
                answer = failure if answer is error else answer
            if answer is not error:
                raise answer from error
            raise

    def landed(self, attempt: Attempt, table: Identifier, done: Committed, *, key: str | None = None) -> None:
        """Log that the attempt has landed in a table. `key`: where the table's own is another than the attempt's."""
        if done.outcome != "replayed":
            self._escalations.succeeded(attempt.principal.name, table)
        self._log(attempt, table, done, key or attempt.key)

    def _log(
        self,
        attempt: Attempt,
        table: Identifier,
        result: Committed | IcetowerError,
        key: str | None,
        *,
        left_out: int = 0,
    ) -> None:
        write, judged_s = attempt.write(table), attempt.judged_s
        known = Known(
            attempt.principal.contract.name,
            key_hash(key),
            write.work,
            write.base,
            write.decided_ms,
            None if judged_s is None else (judged_s - attempt.started_s) * 1000,
            attempt.request_id,
            attempt.trace,
            attempt.updates.get(table),
            len(attempt.tables),
            table,
        )
        self._attempts.ended(
            attempt.principal.name,
            str(table),
            attempt.operation,
            attempt.started_s,
            result,
            known=known,
            partitions=attempt.partitions if isinstance(result, Committed) else (),
            left_out=left_out,
        )


def time_of(text: object) -> int | None:
    """Milliseconds since 1970, as a summary says them; None for what is no such time."""
    said = str(text)
    return int(said) if said.isascii() and said.isdecimal() and len(said) <= TIME_DIGITS_MAX else None
