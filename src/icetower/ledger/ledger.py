"""Keys, answers and attempts, kept in the control database.

What has expired is removed by a sweep: each write goes a little further along the primary keys than it adds, and so
passes by everything in turn, in bounded pieces. Nothing that is live is ever removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import (
    Connection,
    LargeBinary,
    Row,
    Table,
    and_,
    case,
    cast,
    delete,
    literal_column,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from icetower.ambient import Ambient
from icetower.database import Database
from icetower.ledger import histories, watching
from icetower.ledger.activity import ACTIVITY_ROWS_MAX, Activity, read_activity
from icetower.ledger.answers import BEGUN, Answer
from icetower.ledger.attempts import (
    SCANNED_MAX,
    Attempt,
    Numbered,
    NumberedPage,
    Outcome,
    Page,
    Search,
    Summary,
    read_after,
    read_attempts,
    read_counts,
    read_numbered_page,
    read_page,
    read_summary,
    write_attempts,
)
from icetower.ledger.door import LedgerDoor
from icetower.ledger.forgetting import forget
from icetower.ledger.hashes import ANSWER, APPLICATION, GROUP, KEY, hashed
from icetower.ledger.histories import Fate, TableName
from icetower.ledger.lookups import ASKED_AT_ONCE, Lookups
from icetower.ledger.metrics import COUNT_EVERY, Report, count_logged, note_once
from icetower.ledger.putting import Put
from icetower.ledger.schema import answers, expired, groups, keys
from icetower.ledger.shadow import Ended, ShadowCount, Shadowed, read_endings, read_shadowed, write_shadowed
from icetower.ledger.watching import EVENTS_MAX, Changed, Changes, Reported
from icetower.ledger.writers import Writer
from icetower.registry.sql import migrate
from icetower.table.keys import Names

LIFETIME_S = 24 * 3600
ATTEMPTS_MAX = 1_000_000
SEQUENCE_LIFETIMES = 30
"""Applications that number their commits are few, and may stand still for days."""

SWEPT_PER_ROW = 4
"""A pass of the sweep takes a quarter of the time in which as many rows are added as there are: a seventh is dead."""

SWEPT_MIN = 64


@dataclass(frozen=True, slots=True)
class CommitKey:
    """The owner of a key (trap K2). A table that is dropped and created again has another `table_uuid`: a new start.

    `numbered`: the key is the name of an application that numbers its commits.
    """

    table_uuid: str
    ref: str
    principal: str
    key: str
    numbered: bool = False

    @classmethod
    def of(cls, table_uuid: str, names: Names) -> tuple[CommitKey | None, CommitKey | None]:
        """A write's key, and its application; None for what it does not have."""
        at = table_uuid, names.ref, names.principal
        key = None if names.key is None else cls(*at, names.key)
        return key, None if names.application is None else cls(*at, names.application[0], numbered=True)

    @property
    def id(self) -> bytes:
        """Under which it is stored."""
        kind = APPLICATION if self.numbered else KEY
        return hashed(kind, self.table_uuid, self.ref, self.principal, self.key)


@dataclass(frozen=True, slots=True)
class Commit:
    """What was committed under a key, or last by an application.

    Attributes:
        application_id, fingerprint: who wrote it, and a hash (hex) of what (trap K3), where it is known.
        sequence: the number that the application gave it.
        sequence_number: the lowest one of its snapshots, where the table counts them (formats 2 and 3).
        registration: how often the table's uuid had been registered when this was kept; the ledger sets it.
        mark: what a sink's number comes with (`table.sinks.Mark.kept`).
    """

    owner: CommitKey
    snapshots: tuple[int, ...]
    application_id: str | None = None
    fingerprint: str | None = None
    sequence: int | None = None
    landed_ms: int = 0
    expires_ms: int = 0
    sequence_number: int | None = None
    registration: int = 0
    mark: str | None = None


def commits_of(
    table_uuid: str,
    names: Names,
    snapshots: tuple[int, ...],
    sequence_number: int | None,
    *,
    application_id: str | None = None,
    fingerprint: str | None = None,
    mark: str | None = None,
) -> list[Commit]:
    """A commit as it is kept: under its key, and as the last of its application. Arguments as in `Commit`."""
    about: dict[str, Any] = {"application_id": application_id, "fingerprint": fingerprint}
    about |= {"snapshots": snapshots, "sequence_number": sequence_number or None}
    key, application = CommitKey.of(table_uuid, names)
    commits = [] if key is None else [Commit(key, **about)]
    if application is not None and names.application is not None:
        commits.append(Commit(application, sequence=names.application[1], mark=mark, **about))
    return commits


@dataclass(frozen=True, slots=True)
class Group:
    """A snapshot with a group file, and all keys and numbers that the file holds."""

    table_uuid: str
    snapshot_id: int
    commits: tuple[Commit, ...]

    @property
    def id(self) -> bytes:
        """Under which it is stored."""
        return group_id(self.table_uuid, self.snapshot_id)


def group_id(table_uuid: str, snapshot_id: int) -> bytes:
    """Under which a snapshot's group is stored."""
    return hashed(GROUP, table_uuid, str(snapshot_id))


@dataclass(frozen=True, slots=True)
class Expired:
    """Snapshots with keys that expire while their branch has them.

    Also snapshots that another ref keeps, but that cannot be reached any more from their own branch.

    Attributes:
        torn: surviving snapshots of commits with several snapshots, the others of which were rolled back and expire.
    """

    table: TableName
    snapshots: tuple[int, ...]
    torn: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """What is written at once, in one transaction. `answers`: each with its principal and key."""

    attempts: Sequence[Attempt] = ()
    commits: Sequence[Commit] = ()
    groups: Sequence[Group] = ()
    expired: Sequence[Expired] = ()
    answers: Sequence[tuple[str, str, Answer]] = ()
    shadowed: Sequence[Shadowed] = ()
    writers: Collection[Writer] = ()
    noticed: Sequence[Report] = ()
    changed: Sequence[Changed] = ()
    reported: Sequence[Reported] = ()


class Ledger:
    """Open it once; its tables are made or brought up to date then.

    Args:
        lifetime_s: how long keys and answers are kept. A live one is never evicted.
        attempts_max: how many attempts the log keeps; the oldest give way.
        events_max: how many events it keeps; 0: none.
    """

    def __init__(
        self,
        database: Database,
        ambient: Ambient,
        *,
        lifetime_s: int = LIFETIME_S,
        attempts_max: int = ATTEMPTS_MAX,
        events_max: int = EVENTS_MAX,
    ) -> None:
        self._database = LedgerDoor(database)
        self._ambient = ambient
        self._lifetime_ms = lifetime_s * 1000
        self._attempts_max = attempts_max
        self._events_max = events_max
        migrate(database, Path(__file__).parent / "migrations", version_table="ledger_version")
        self._keys = Lookups(self._database, keys)
        self._answers = Lookups(self._database, answers)
        self._writers = Lookups(self._database, groups)
        self._upserts: dict[str, Put] = {}
        self._counted = 0
        """Up to here the figures are counted for certain; maybe further, by another tower."""
        # Anywhere: a tower that restarts often must not sweep the same beginning again and again.
        start = int(ambient.uniform() * 256).to_bytes(1, "big")
        self._swept: dict[str, bytes] = {table.name: start for table in (keys, groups, expired, answers)}

    @property
    def lifetime_ms(self) -> int:
        """How long a key is kept after it was used last."""
        return self._lifetime_ms

    async def write(self, batch: Batch) -> None:
        """Keep a batch, all or nothing; it is durable when this returns.

        A live key keeps its first content, and an application its highest number; their window begins anew. A key that
        was used again since its table was registered anew has both contents.
        """
        now = self._ambient.now_ms()
        commits = [*batch.commits, *(commit for group in batch.groups for commit in group.commits)]
        answered = {hashed(ANSWER, *name): answer for *name, answer in reversed(batch.answers) if answer.status < 500}
        long_ms = now + self._window_ms(numbered=True)
        rows = [
            (keys, [self._commit_row(commit, now) for commit in commits]),
            (groups, [{"id": each.id, "expires_ms": long_ms} for each in (*batch.groups, *batch.writers)]),
            (answers, [self._answer_row(name, answer, now) for name, answer in answered.items()]),
        ]
        brief = [name for name, answer in answered.items() if answer.brief_s is not None]
        logged, counted = batch.attempts, self._counted

        def count(connection: Connection, newest: int) -> None:
            nonlocal counted
            if newest - counted >= min(COUNT_EVERY, self._attempts_max):
                counted = count_logged(connection)

        def work(connection: Connection) -> None:
            numbers = histories.numbers_of(connection, {commit.owner.table_uuid for commit in commits})
            for row, commit in zip(rows[0][1], commits, strict=True):
                row["registration"] = numbers.get(commit.owner.table_uuid, 0)
            for some in _pieces(sorted(brief)):  # `_upsert` takes a row's age from its expiry
                connection.execute(delete(answers).where(answers.c.id.in_(some), answers.c.expires_ms <= now))
            gone = self._expired_rows(connection, batch.expired, now)
            for table, some in (*rows, (expired, gone)):
                if some:
                    # In the order of the tree that they go into; two writers in one order cannot deadlock.
                    self._upsert(connection, table, sorted(some, key=lambda row: row["id"]))
                    self._sweep(connection, table, SWEPT_MIN + SWEPT_PER_ROW * len(some), now)
            write_shadowed(connection, batch.shadowed)
            note_once(connection, batch.noticed)
            if logged:
                write_attempts(connection, logged, now, self._attempts_max, lambda newest: count(connection, newest))
            watching.write_watched(connection, batch.changed, batch.reported, self._events_max)

        watched = bool(batch.changed or batch.reported or batch.noticed)
        if logged or watched or batch.shadowed or batch.expired or any(some for _, some in rows):
            await self._database.run(work, write=True)
        self._counted = counted

    def _window_ms(self, *, numbered: bool) -> int:
        return self._lifetime_ms * (SEQUENCE_LIFETIMES if numbered else 1)

    def _commit_row(self, commit: Commit, now_ms: int) -> dict[str, Any]:
        return {
            "id": commit.owner.id,
            "snapshots": b"".join(i.to_bytes(8, "big", signed=True) for i in commit.snapshots),
            "sequence": commit.sequence,
            "application_id": commit.application_id,
            "fingerprint": bytes.fromhex(commit.fingerprint) if commit.fingerprint else None,
            "landed_ms": now_ms,
            "expires_ms": now_ms + self._window_ms(numbered=commit.sequence is not None),
            "sequence_number": commit.sequence_number,
            "mark": commit.mark,
        }

    def _expired_rows(self, connection: Connection, gone: Sequence[Expired], now_ms: int) -> list[dict[str, Any]]:
        ids: set[bytes] = set()
        for each in gone:
            history = histories.history_of(connection, each.table)
            ids |= {history.expired_id(each.table, snapshot_id) for snapshot_id in each.snapshots}
            ids |= {histories.torn_id(each.table.uuid, snapshot_id) for snapshot_id in each.torn}
        return [{"id": name, "expires_ms": now_ms + self._window_ms(numbered=True)} for name in ids]

    def _answer_row(self, name: bytes, answer: Answer, now_ms: int) -> dict[str, Any]:
        return {
            "id": name,
            "endpoint": answer.endpoint,
            "fingerprint": answer.fingerprint,
            "status": answer.status,
            "body": answer.body,
            "expires_ms": now_ms + self._answer_ms(answer),
        }

    def _answer_ms(self, answer: Answer) -> int:
        brief_ms = self._lifetime_ms if answer.brief_s is None else answer.brief_s * 1000
        return min(brief_ms, self._lifetime_ms)

    def _upsert(self, connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
        """Insert rows; what is live already stays, but for a longer life; of an application, the higher number wins."""
        if table.name not in self._upserts:
            upsert = _upsert(table, self._lifetime_ms, sqlite if self._database.is_sqlite else postgresql)
            self._upserts[table.name] = Put.of(upsert, connection.dialect, [column.name for column in table.c])
        self._upserts[table.name].rows(connection, rows)

    def _sweep(self, connection: Connection, table: Table, rows: int, now_ms: int) -> None:
        """Remove what has expired among the next rows after those that were swept last."""
        start = self._swept[table.name]
        ids = select(table.c.id).where(table.c.id > start).order_by(table.c.id)
        end = connection.execute(ids.offset(rows - 1).limit(1)).scalar()
        piece = table.c.id > start if end is None else (table.c.id > start) & (table.c.id <= end)
        connection.execute(delete(table).where(piece, table.c.expires_ms <= now_ms))
        self._swept[table.name] = b"" if end is None else end

    # ------------------------------------------------------------------------------------------------ keys of commits

    async def find_commit(self, owner: CommitKey) -> Commit | None:
        """What was committed under a live key."""
        return (await self.find_commits([owner])).get(owner)

    async def find_commits(self, owners: Sequence[CommitKey]) -> Mapping[CommitKey, Commit]:
        """What was committed under those of some keys that are live."""
        now = self._ambient.now_ms()
        rows = await asyncio.gather(*(self._keys.row(owner.id) for owner in owners))
        together = zip(owners, rows, strict=True)
        return {owner: _commit(owner, row) for owner, row in together if row is not None and row.expires_ms > now}

    async def remember_commits(self, commits: Sequence[Commit]) -> None:
        """Keep what was committed; see `write`."""
        await self.write(Batch(commits=commits))

    async def forget_commits(
        self, owners: Sequence[CommitKey], table_uuid: str = "", snapshot_ids: Iterable[int] = ()
    ) -> None:
        """Let go of keys whose commits are no longer part of their branch.

        Of the snapshots' group files it does not count any more as known that all their keys are here.
        """
        gone = (
            (keys, sorted(owner.id for owner in owners)),
            (groups, sorted(group_id(table_uuid, snapshot_id) for snapshot_id in snapshot_ids)),
        )

        def work(connection: Connection) -> None:
            for table, ids in gone:
                for some in _pieces(ids):
                    connection.execute(delete(table).where(table.c.id.in_(some)))

        if any(ids for _, ids in gone):
            await self._database.run(work, write=True)

    async def kept_groups(self, table_uuid: str, snapshot_ids: Iterable[int]) -> frozenset[int]:
        """Those snapshots of a table whose group files need not be read: what is live of their keys is here."""
        now = self._ambient.now_ms()
        by_id = {group_id(table_uuid, snapshot_id): snapshot_id for snapshot_id in snapshot_ids}

        def work(connection: Connection) -> frozenset[int]:
            found: set[int] = set()
            for some in _pieces(sorted(by_id)):
                live = select(groups.c.id).where(groups.c.id.in_(some), groups.c.expires_ms > now)
                found |= {by_id[name] for name in connection.execute(live).scalars()}
            return frozenset(found)

        return await self._database.run(work) if by_id else frozenset()

    async def keep_writers(self, these: Collection[Writer]) -> None:
        """Keep who is about to commit where; it is durable when this returns."""
        await self.write(Batch(writers=these))

    async def find_writers(self, these: Collection[Writer]) -> frozenset[Writer]:
        """Those that were kept, and are live."""
        asked, now = list(these), self._ambient.now_ms()
        rows = await asyncio.gather(*(self._writers.row(writer.id) for writer in asked))
        together = zip(asked, rows, strict=True)
        return frozenset(writer for writer, row in together if row is not None and row.expires_ms > now)

    # --------------------------------------------------------------------------------- histories of tables (histories)

    async def begin_history(self, table: TableName) -> int:
        """A table is about to be registered: what was said of its name counts no more. The registration's number.

        It is durable when this returns; the catalog's pointer may be set then.
        """
        return await self._database.run(lambda connection: histories.begin(connection, table), write=True)

    async def confirm_history(self, table: TableName, number: int, sequence_number: int) -> None:
        """The catalog's pointer was set, at a file with this last sequence number."""
        await self._database.run(
            lambda connection: histories.confirm(connection, table, number, sequence_number), write=True
        )

    async def registered(self, table_uuid: str) -> bool:
        """Whether a table with this uuid was ever registered, under any name."""
        return bool(await self._database.run(lambda connection: histories.numbers_of(connection, [table_uuid])))

    async def fate(self, table: TableName, commit: Commit) -> Fate:
        """What became of a commit that was found here, and none of whose snapshots is in the table."""

        def work(connection: Connection) -> Fate:
            history = histories.history_of(connection, table)
            seen = histories.seen_to_expire(connection, table, history, commit.snapshots)
            # Of a number, only the last is kept: where that lies says nothing of those below it.
            at = None if commit.owner.numbered else commit.sequence_number
            return history.fate(seen=seen, registration=commit.registration, sequence_number=at)

        return await self._database.run(work)

    async def saw_leave(self, table: TableName, snapshot_id: int) -> bool:
        """Whether a snapshot left its branch by expiry, and not by a rollback: see `Expired`."""
        return await self._database.run(
            lambda c: histories.seen_to_expire(c, table, histories.history_of(c, table), [snapshot_id])
        )

    async def torn(self, table_uuid: str, snapshot_ids: Iterable[int]) -> frozenset[int]:
        """Those snapshots that are only a part of their commit: the rest of it was rolled back, and has gone."""
        by_id = {histories.torn_id(table_uuid, snapshot_id): snapshot_id for snapshot_id in snapshot_ids}

        def work(connection: Connection) -> frozenset[int]:
            found: set[int] = set()
            for some in _pieces(sorted(by_id)):
                rows = connection.execute(select(expired.c.id).where(expired.c.id.in_(some))).scalars()
                found |= {by_id[bytes(name)] for name in rows}
            return frozenset(found)

        return await self._database.run(work) if by_id else frozenset()

    # ----------------------------------------------------------------------------------------- answers of other routes

    async def find(self, principal: str, key: str, endpoint: str, fingerprint: str | None = None) -> Answer | None:
        """The answer that was given under a live key. Raises `KeyMisused` if it stands for another request."""
        row = await self._answers.row(hashed(ANSWER, principal, key))
        if row is None or row.expires_ms <= self._ambient.now_ms():
            return None
        return Answer(row.endpoint, row.status, bytes(row.body), row.fingerprint).to(endpoint, fingerprint)

    async def remember(self, principal: str, key: str, answer: Answer) -> None:
        """Keep a final answer (2xx or a final 4xx; never 5xx). The first one under a live key stays."""
        await self.write(Batch(answers=[(principal, key, answer)]))

    # ------------------------------------------------------------------------------------------------------- attempts

    async def shadowed(self, contract: str | None = None) -> list[ShadowCount]:
        """What contracts in shadow mode would have refused; of one contract, or of all."""
        return await self._database.run(lambda connection: read_shadowed(connection, contract))

    async def endings(self, principals: Collection[str], *, since_ms: int) -> list[Ended]:
        """How the attempts of some principals have ended since a time."""
        return await self._database.run(lambda connection: read_endings(connection, principals, since_ms))

    async def recent(
        self, *, limit: int = 100, table: str | None = None, principal: str | None = None
    ) -> list[Attempt]:
        """The newest attempts, newest first."""
        page = await self.search(Search(table=table, principal=principal), limit=limit)
        return list(page.attempts)

    async def search(self, wanted: Search, *, limit: int, before: int | None = None) -> Page:
        """A page of the attempts that are wanted, newest first; `before`: where the page before it ended."""
        return await self._database.run(lambda connection: read_page(connection, wanted, limit, before))

    async def search_numbered(
        self, wanted: Search, *, limit: int, before: int | None = None, scanned_max: int = SCANNED_MAX
    ) -> NumberedPage:
        """As `search`, with the numbers of the attempts; `scanned_max` of them are looked at."""
        return await self._database.run(
            lambda connection: read_numbered_page(connection, wanted, limit, before, scanned_max=scanned_max)
        )

    async def attempts_of(self, numbers: Sequence[int]) -> dict[int, Attempt]:
        """Attempts by their numbers; those that the log has."""
        return await self._database.run(lambda connection: read_attempts(connection, numbers))

    async def activity(self, *, principal: str | None = None, rows_max: int = ACTIVITY_ROWS_MAX) -> Activity:
        """What the newest `rows_max` attempts come to, by principal, table, outcome and rule; of one principal's."""
        return await self._database.run(lambda connection: read_activity(connection, principal, rows_max))

    async def attempts_after(self, after: int, *, limit: int) -> Numbered:
        """The first attempts that were logged after the one with this number."""
        return await self._database.run(lambda connection: read_after(connection, after, limit))

    async def changes_after(self, after: int, *, since_ms: int = 0, limit: int) -> Changes:
        """The first events after the one with this number, from a time on."""
        return await self._database.run(lambda connection: watching.read_changes(connection, after, since_ms, limit))

    async def reports(self, *, since_ms: int = 0, limit: int) -> tuple[Reported, ...]:
        """What clients have reported of their commits since a time, newest first."""
        return await self._database.run(lambda connection: watching.read_reports(connection, since_ms, limit))

    async def forget(self, text: str) -> int:
        """Take a text out of the log: see `forgetting`. How many attempts had it."""
        return await self._database.run(lambda connection: forget(connection, text), write=True)

    async def counts(
        self, *, since_ms: int = 0, table: str | None = None, principal: str | None = None
    ) -> dict[Outcome, int]:
        """How many attempts ended how, since a time."""
        wanted = Search(since_ms=since_ms, table=table, principal=principal)
        return await self._database.run(lambda connection: read_counts(connection, wanted))

    async def summary(
        self,
        by: Literal["table", "principal"],
        *,
        since_ms: int = 0,
        percentiles: Sequence[int] = (50, 95, 99),
        sample_max: int = 100_000,
    ) -> list[Summary]:
        """Outcomes and percentiles for each table or principal, from the newest `sample_max` attempts since a time."""
        return await self._database.run(
            lambda connection: read_summary(connection, by, since_ms, percentiles, sample_max)
        )


def _upsert(table: Table, lifetime_ms: int, dialect: Any) -> Any:
    statement = dialect.insert(table)
    old, new = table.c, statement.excluded
    now_ms = new.landed_ms if "landed_ms" in old else new.expires_ms - literal_column(str(lifetime_ms))
    gives_way = old.expires_ms <= now_ms
    if "sequence" in old:
        gives_way |= new.sequence > old.sequence
    if "status" in old:
        gives_way |= old.status == literal_column(str(BEGUN))
    united = _united(table, new, dialect) if "snapshots" in old else {}
    changed = {
        c.name: case((gives_way, new[c.name]), *united.get(c.name, ()), else_=c)
        for c in old
        if c.name not in ("id", "expires_ms")
    }
    expires_ms = case((new.expires_ms > old.expires_ms, new.expires_ms), else_=old.expires_ms)
    return statement.on_conflict_do_update(index_elements=[old.id], set_={**changed, "expires_ms": expires_ms})


def _united(table: Table, new: Any, dialect: Any) -> dict[str, list[Any]]:
    """By column, when and how a key is kept with both of its contents: the table has one or the other."""
    old = table.c
    inside = "instr({0}, {1}) > 0" if dialect is sqlite else "position({1} in {0}) > 0"
    again: Any = literal_column(f"NOT ({inside.format(f'{table.name}.snapshots', 'excluded.snapshots')})")
    when = and_(old.sequence.is_(None), new.registration > old.registration, again)
    both = cast(old.snapshots.op("||")(new.snapshots), LargeBinary)
    lowest = case((new.sequence_number < old.sequence_number, new.sequence_number), else_=old.sequence_number)
    known = new.sequence_number.is_not(None)
    return {
        "snapshots": [(when, both)],
        "registration": [(when, new.registration)],
        "sequence_number": [(and_(when, known), lowest), (when, new.sequence_number)],
    }


def _pieces(ids: Sequence[bytes]) -> Iterable[Sequence[bytes]]:
    return (ids[start : start + ASKED_AT_ONCE] for start in range(0, len(ids), ASKED_AT_ONCE))


def _commit(owner: CommitKey, row: Row[Any]) -> Commit:
    ids = bytes(row.snapshots)
    return Commit(
        owner,
        tuple(int.from_bytes(ids[at : at + 8], "big", signed=True) for at in range(0, len(ids), 8)),
        row.application_id,
        None if row.fingerprint is None else bytes(row.fingerprint).hex(),
        row.sequence,
        row.landed_ms,
        row.expires_ms,
        row.sequence_number,
        row.registration,
        row.mark,
    )
