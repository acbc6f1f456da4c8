"""`Agent` and `AsyncAgent`: rows into tables, once, by the way that the contract says.

with Agent("http://127.0.0.1:8181", token=secret, journal="prices.journal") as agent:
    agent.append("shop.prices", [{"sku": "a", "price": Decimal("9.99")}])
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from icetower.agent.asking import Asker, Credentials
from icetower.agent.branches import AsyncBranch, Branch, created, published
from icetower.agent.direct import Direct, Where
from icetower.agent.intents import TTL_S, AsyncHeld, Heard, Held, Holder, Lease, SlotWish, wish_of
from icetower.agent.journal import Journal
from icetower.agent.publishing import Keep, PublishedBranch
from icetower.agent.recovery import Patience
from icetower.agent.steps import driven, driven_async
from icetower.agent.transport import AsyncTransport, Transport
from icetower.agent.writing import Writer
from icetower.agent.written import Written
from icetower.errors import UsageError
from icetower.protocol.row_limits import ROWS_MAX

ANSWER_WITHIN_S = 60.0
REASON = "rows of an agent"
Token = str | Callable[[], str] | None
JournalPath = str | os.PathLike[str] | None
Read = Any
"""The id of a snapshot, or a table or snapshot of PyIceberg's; None where nothing is said."""


class _Parts:
    """What an agent of either kind consists of, but for its transport."""

    def __init__(
        self, uri: str, token: Token, journal: JournalPath, reason: str, patience: Patience, rows_max: int
    ) -> None:
        if not 0 < rows_max <= ROWS_MAX:
            raise UsageError(f"rows_max is {rows_max}; a request takes 1 to {ROWS_MAX} rows")
        asker = Asker(Credentials(token), patience)
        self.asker, self.patience = asker, patience
        self.holder = Holder(asker, patience)
        self.direct = Direct(uri, reason=reason, patience=patience)
        # Last, for nobody closes it where something else is wrong.
        self.journal = None if journal is None else Journal(journal, ambient=patience.ambient)
        self.writer = Writer(
            asker,
            self.direct,
            self.holder.said,
            self.holder.known,
            reason=reason,
            patience=patience,
            journal=self.journal,
            rows_max=rows_max,
        )

    def close(self) -> None:
        self.direct.close()
        if self.journal is not None:
            self.journal.close()


class _Transaction:
    """What is to be done with rows of one table, together.

    Attributes:
        written: what came of it, after its block.
    """

    def __init__(self, key: str | None) -> None:
        self.written: Written | None = None
        self._key = key
        self._table: str | None = None
        self._given: list[tuple[str, Any]] = []

    def append(self, table: str, rows: Any) -> None:
        """Add rows. Raises `UsageError` for another table than the first one."""
        self._take("append", table, rows)

    def upsert(self, table: str, rows: Any) -> None:
        """Put rows in place of those with the same keys; where the table's rows go through a delta table."""
        self._take("upsert", table, rows)

    def delete(self, table: str, rows: Any) -> None:
        """Remove the rows with the same keys; where the table's rows go through a delta table."""
        self._take("delete", table, rows)

    def _take(self, act: str, table: str, rows: Any) -> None:
        if self._table not in (None, table):
            raise UsageError(
                f"a transaction has rows of one table: {self._table}, and not {table}. Rows of several tables do not "
                "land as a whole; use a transaction for each"
            )
        self._table = table
        self._given.append((act, rows))


class Agent:
    """An agent of a tower. Threads may share it.

    Rows are an Arrow table, batch or reader, a pandas or Polars frame, a mapping, a dataclass or a Pydantic model, or
    several of these three. Each method returns when they are in the table, or in its log or delta table where the
    contract says so, and does meanwhile what refusals ask for: it waits and sends again, and asks for partitions.

    Args:
        uri: as `icetower serve` prints it.
        token: the principal's secret or access token, or a function that returns one; None for an open tower.
        journal: a file that keeps the keys of rows that have no answer yet. With it the same call with the same rows
            goes under the same key after a crash, so that they are there once.
        reason: for the person who is asked for partitions.
        patience: limits on time and attempts for each request.
        rows_max: the most rows of a request. Rows are parted by it, so keep it while rows may be sent again.
        answer_within_s: how long a request may wait for its answer, in seconds.

    Every method raises:
        IcetowerError: a refusal from which there is no way on, with `rule`, `partitions`, `snapshot`, `files`,
            `next_step`, `owner`, `wait_until_ms` and `escalated_to`.
        CommitStateUnknown: no answer came. The same rows, sent again under the key that it names, are there once.
        UsageError: the rows cannot be sent, or the pattern does not take the operation.
    """

    def __init__(
        self,
        uri: str,
        token: Token = None,
        *,
        journal: JournalPath = None,
        reason: str = REASON,
        patience: Patience | None = None,
        rows_max: int = ROWS_MAX,
        answer_within_s: float = ANSWER_WITHIN_S,
    ) -> None:
        address, limits = uri.rstrip("/"), patience or Patience()
        self._transport = Transport(address, answer_within_s=answer_within_s, patience=limits)
        self._parts = _Parts(address, token, journal, reason, limits, rows_max)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()
        self._parts.close()

    @property
    def journal(self) -> Journal | None:
        """The journal: `pending` shows what has no answer yet, `forget` ends a part of it."""
        return self._parts.journal

    def append(self, table: str, rows: Any, *, key: str | None = None, ref: str = "main") -> Written:
        """Add rows.

        Args:
            table: ``namespace.table``.
            key: of these rows; keep it with the work, and send it again with the same rows. By default a new one.
            ref: the branch.
        """
        return driven(self._parts.writer.write("append", table, rows, key=key, ref=ref), self._transport.take)

    def upsert(
        self, table: str, rows: Any, *, keys: Sequence[str] = (), key: str | None = None, read: Read = None
    ) -> Written:
        """Put whole rows in place of those with the same keys, and add those that there are none of.

        Args:
            keys: the columns that identify a row; by default the identifier fields of the table's schema.
            table, key: as of `append`.
            read: as of `overwrite_partition`, where the agent commits the rows itself.
        """
        steps = self._parts.writer.write("upsert", table, rows, keys=keys, key=key, read=read)
        return driven(steps, self._transport.take)

    def delete(
        self, table: str, rows: Any, *, keys: Sequence[str] = (), key: str | None = None, read: Read = None
    ) -> Written:
        """Remove the rows with the same keys as these, whose other columns do not matter. Arguments as of `upsert`."""
        steps = self._parts.writer.write("delete", table, rows, keys=keys, key=key, read=read)
        return driven(steps, self._transport.take)

    def overwrite_partition(
        self, table: str, rows: Any, where: Where, *, key: str | None = None, read: Read = None
    ) -> Written:
        """Put rows in the place of all rows of a partition; none leave it empty.

        It replaces whatever is there when it is called. If you computed the rows from a read, pass that read's
        snapshot, or hold an intent: then it is refused (``conflict.*``) where others have changed these rows since.

        Args:
            where: the partition: values by column, such as ``{"region": "eu"}``, or a filter of PyIceberg's, such as
                ``"ts >= '2017-01-02T00:00:00' and ts < '2017-01-03T00:00:00'"``. All rows lie in it.
            table, key: as of `append`.
            read: what the rows were computed from: the id of a snapshot, or a table or snapshot of PyIceberg's. By
                default within the block of an intent on the table the snapshot at its grant, and the agent's own
                commits since; of several intents on the table, the oldest's. Elsewhere what is there.
        """
        steps = self._parts.writer.write("overwrite_partition", table, rows, where=where, key=key, read=read)
        return driven(steps, self._transport.take)

    def branch(self, table: str, name: str, *, start: str = "main") -> Branch:
        """A branch of a table, which is created where there is none.

        Args:
            table: ``namespace.table``.
            start: the branch at whose last snapshot it begins.
        """
        driven(created(self._parts.asker, table, name, start), self._transport.take)
        return Branch(table, name, self.append, self.publish)

    def publish(
        self,
        table: str,
        branch: str,
        *,
        to: str = "main",
        keep: Keep = "each",
        key: str | None = None,
        isolation: str | None = None,
        read: Mapping[str, Any] | None = None,
        blind: bool = False,
        lease: Lease | None = None,
    ) -> PublishedBranch:
        """Put all that a branch has, and another lacks, on that other branch, in one commit.

        Args:
            table: ``namespace.table``.
            to: the other branch.
            keep: where the snapshots cannot keep their ids: ``each``, one for each of them, or ``squash``, one for all.
            key: of this publication; send it again after a lost answer. By default a new one.
            isolation: what the branch's writes are owed where they don't say it: ``snapshot`` or ``serializable``.
            read: what they have read, as Iceberg's expression (JSON); needed for ``serializable``.
            blind: snapshots that only add rows depend on nothing that was read.
            lease: under which it is published: refused once the lease is lost (``intent.fenced``). By default the only
                one of the principal that covers all of it.

        Raises `PublishConflict`, with what stands against each snapshot in `conflicts`.
        """
        steps = published(
            self._parts.asker,
            self._parts.patience,
            table,
            branch,
            to=to,
            keep=keep,
            key=key,
            isolation=isolation,
            read=read,
            blind=blind,
            lease=lease,
        )
        return driven(steps, self._transport.take)

    def intent(
        self,
        tables: str | Sequence[Mapping[str, Any]],
        *,
        partitions: Sequence[Mapping[str, Any]] | None = None,
        where: Any = None,
        operations: Sequence[str] = ("overwrite",),
        exclusive: bool = False,
        ttl_s: float = TTL_S,
        wait_s: float = 0.0,
        on_warning: Heard | None = None,
    ) -> Held:
        """A lease on rows, for a ``with`` block: it is renewed within the block and released at its end.

        Commits in the block carry `Lease.properties`. They are refused once the lease is lost (``intent.fenced``).

        Args:
            tables: ``namespace.table``; or several tables, as the control API has them, which are held together or not
                at all.
            partitions: regions, as contracts have them; without them and `where`, all that the contract owns.
            where: a filter in Iceberg's expression JSON, in place of partitions.
            operations: what is to be done to the rows.
            exclusive: nothing of others comes into the rows, blind appends included; for tables that require intents.
            ttl_s: how long the lease lives when the agent does not renew it any more.
            wait_s: how long to stand in line where others hold some of the rows; 0: be refused (``intent.held``).
            on_warning: is called, in a thread of the lease, for each commit of others that lands in the rows.
        """
        wish = wish_of(tables, partitions, where, operations, exclusive, ttl_s, wait_s)
        return Held(self._parts.holder, self._transport, wish, on_warning)

    def next_slot(self, table: str, *, wait_s: float = 0.0, least_s: float = 0.0, ttl_s: float = TTL_S) -> Held:
        """The next slot of a table that the contract's calendar gives, for a ``with`` block: a lease as of `intent`.

        It ends with the slot and its grace: who overruns is refused (``intent.fenced``). `Lease.slot` says when that
        is, and what to write into which column. `append` within the block writes into the slot.

        Args:
            table: ``namespace.table``.
            wait_s: how long to wait for it; 0: be refused where none may be taken now (``slot.waiting``).
            least_s: so much must be left of the slot; else it is the next one.
            ttl_s: how long the slot is held when the agent does not renew it any more; then others may take the rest.
        """
        return Held(self._parts.holder, self._transport, SlotWish(table, ttl_s, wait_s, least_s))

    def transaction(self, *, key: str | None = None) -> Transaction:
        """Several appends to one table that land together, or not at all, when the block ends.

        They go in one request, so they have its bounds. Upserts and deletes may be among them where the rows of the
        table go through a delta table.
        """
        return Transaction(self._commit, key)

    def _commit(self, table: str, given: Sequence[tuple[str, Any]], key: str | None) -> Written:
        return driven(self._parts.writer.write_together(table, given, key), self._transport.take)


class Transaction(_Transaction):
    """See `Agent.transaction`. An exception in its block leaves everything undone."""

    def __init__(
        self, commit: Callable[[str, Sequence[tuple[str, Any]], str | None], Written], key: str | None
    ) -> None:
        super().__init__(key)
        self._commit = commit

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None and self._table is not None:
            self.written = self._commit(self._table, self._given, self._key)


class AsyncAgent:
    """An agent in an event loop: arguments, results and errors as of `Agent`.

    What blocks is done in threads: encoding, the journal, and PyIceberg. A call that is cancelled may have sent its
    rows; with a journal the same call, made again, goes under the same key.
    """

    def __init__(
        self,
        uri: str,
        token: Token = None,
        *,
        journal: JournalPath = None,
        reason: str = REASON,
        patience: Patience | None = None,
        rows_max: int = ROWS_MAX,
        answer_within_s: float = ANSWER_WITHIN_S,
    ) -> None:
        address, limits = uri.rstrip("/"), patience or Patience()
        self._transport = AsyncTransport(address, answer_within_s=answer_within_s, patience=limits)
        self._parts = _Parts(address, token, journal, reason, limits, rows_max)

    async def __aenter__(self) -> AsyncAgent:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()
        self._parts.close()

    @property
    def journal(self) -> Journal | None:
        """See `Agent.journal`."""
        return self._parts.journal

    async def append(self, table: str, rows: Any, *, key: str | None = None, ref: str = "main") -> Written:
        """See `Agent.append`."""
        steps = self._parts.writer.write("append", table, rows, key=key, ref=ref)
        return await driven_async(steps, self._transport.take)

    async def upsert(
        self, table: str, rows: Any, *, keys: Sequence[str] = (), key: str | None = None, read: Read = None
    ) -> Written:
        """See `Agent.upsert`."""
        steps = self._parts.writer.write("upsert", table, rows, keys=keys, key=key, read=read)
        return await driven_async(steps, self._transport.take)

    async def delete(
        self, table: str, rows: Any, *, keys: Sequence[str] = (), key: str | None = None, read: Read = None
    ) -> Written:
        """See `Agent.delete`."""
        steps = self._parts.writer.write("delete", table, rows, keys=keys, key=key, read=read)
        return await driven_async(steps, self._transport.take)

    async def overwrite_partition(
        self, table: str, rows: Any, where: Where, *, key: str | None = None, read: Read = None
    ) -> Written:
        """See `Agent.overwrite_partition`."""
        steps = self._parts.writer.write("overwrite_partition", table, rows, where=where, key=key, read=read)
        return await driven_async(steps, self._transport.take)

    async def branch(self, table: str, name: str, *, start: str = "main") -> AsyncBranch:
        """See `Agent.branch`."""
        await driven_async(created(self._parts.asker, table, name, start), self._transport.take)
        return AsyncBranch(table, name, self.append, self.publish)

    async def publish(
        self,
        table: str,
        branch: str,
        *,
        to: str = "main",
        keep: Keep = "each",
        key: str | None = None,
        isolation: str | None = None,
        read: Mapping[str, Any] | None = None,
        blind: bool = False,
        lease: Lease | None = None,
    ) -> PublishedBranch:
        """See `Agent.publish`."""
        steps = published(
            self._parts.asker,
            self._parts.patience,
            table,
            branch,
            to=to,
            keep=keep,
            key=key,
            isolation=isolation,
            read=read,
            blind=blind,
            lease=lease,
        )
        return await driven_async(steps, self._transport.take)

    def intent(
        self,
        tables: str | Sequence[Mapping[str, Any]],
        *,
        partitions: Sequence[Mapping[str, Any]] | None = None,
        where: Any = None,
        operations: Sequence[str] = ("overwrite",),
        exclusive: bool = False,
        ttl_s: float = TTL_S,
        wait_s: float = 0.0,
        on_warning: Heard | None = None,
    ) -> AsyncHeld:
        """See `Agent.intent`; for an ``async with`` block."""
        wish = wish_of(tables, partitions, where, operations, exclusive, ttl_s, wait_s)
        return AsyncHeld(self._parts.holder, self._transport, wish, on_warning)

    def next_slot(self, table: str, *, wait_s: float = 0.0, least_s: float = 0.0, ttl_s: float = TTL_S) -> AsyncHeld:
        """See `Agent.next_slot`; for an ``async with`` block."""
        return AsyncHeld(self._parts.holder, self._transport, SlotWish(table, ttl_s, wait_s, least_s))

    def transaction(self, *, key: str | None = None) -> AsyncTransaction:
        """See `Agent.transaction`. Only the end of its block is awaited."""
        return AsyncTransaction(self._commit, key)

    async def _commit(self, table: str, given: Sequence[tuple[str, Any]], key: str | None) -> Written:
        return await driven_async(self._parts.writer.write_together(table, given, key), self._transport.take)


class AsyncTransaction(_Transaction):
    """See `AsyncAgent.transaction`."""

    def __init__(
        self, commit: Callable[[str, Sequence[tuple[str, Any]], str | None], Awaitable[Written]], key: str | None
    ) -> None:
        super().__init__(key)
        self._commit = commit

    async def __aenter__(self) -> AsyncTransaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if error is None and self._table is not None:
            self.written = await self._commit(self._table, self._given, self._key)
