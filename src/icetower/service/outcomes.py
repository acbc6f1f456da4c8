"""How attempts end: each is logged, and a refusal is explained, and counted towards a stop of its principal."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from icetower.commit.engine import Committed
from icetower.errors import CommitConflict, IcetowerError
from icetower.escalations.escalations import Escalations
from icetower.ledger.ledger import key_hash
from icetower.observe.undeclared import Undeclared
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal
from icetower.service.attempts import REFUSED_TABLES_MAX, Attempts
from icetower.service.owners import Owners


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
    """

    principal: Principal
    tables: Sequence[Identifier]
    operation: str
    started_s: float
    key: str | None = None
    work: Hashable = None
    partitions: tuple[str, ...] = ()
    looking_at: Identifier | None = None


class Outcomes:
    """One a tower."""

    def __init__(self, escalations: Escalations, owners: Owners, attempts: Attempts, undeclared: Undeclared) -> None:
        self._undeclared = undeclared
        self._escalations = escalations
        self._owners = owners
        self._attempts = attempts

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
        self._attempts.ended(
            attempt.principal.name,
            str(table),
            attempt.operation,
            attempt.started_s,
            result,
            key_hash=key_hash(key),
            partitions=attempt.partitions if isinstance(result, Committed) else (),
            left_out=left_out,
        )
