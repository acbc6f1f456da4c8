"""Maintenance of a catalog's tables: what is due by their properties and by contracts, done, and recorded.

`maintenance_plan` decides, `maintenance_files` reads what it decides by, `maintenance_tasks` does it with Iceberg's
actions, and `maintenance_record` writes it down. Every task may be done again, or by two at once: what one of them has
rewritten is not due for the other any more, and of two commits that rewrite the same files one is refused.

A run in which nothing is due reads metadata and new manifests. Spark looks up at most what is recorded already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from icetower.ambient import Ambient, SystemAmbient
from icetower.contracts.model import Contract, Operation
from icetower.errors import CommitConflict, IcetowerError, NoSuchTable, UpstreamFailed
from icetower.iceberg.metadata import ancestors, current_snapshot_id
from icetower.pipelines import maintenance_tasks as tasks
from icetower.pipelines.cleanup import Clauses, Disposition, Orphan, clean
from icetower.pipelines.maintenance_files import Catalog, Listed, State
from icetower.pipelines.maintenance_plan import (
    FILES_MIN,
    TASK,
    Due,
    Task,
    allowed,
    due,
    scan_every_ms,
    setting,
    why_not,
)
from icetower.pipelines.maintenance_plan import expiring as going
from icetower.pipelines.maintenance_record import (
    COMMITS_COUNTED,
    COMMITS_READ,
    COSTS_MS,
    NEXT_SCAN,
    RECENT_MS,
    RECORDED,
    RECORDED_ALL,
    Entry,
    Found,
    Record,
    digest,
    of_snapshots,
)
from icetower.pipelines.maintenance_rows import Ages
from icetower.pipelines.own_tables import lacking
from icetower.pipelines.reports import OrphanTower, report_orphans
from icetower.pipelines.tables import private_session, translating_errors
from icetower.protocol.names import Identifier

EVERY_S = 300.0
ORPHANS_OLDER_S = 3 * 86_400.0
"""Files without a contract's clause are orphans if they are older; as in contracts without `older_than`."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a run may do, and by which contracts.

    Attributes:
        catalog: its name in the session.
        system: the namespace of the system tables, with the catalog in front.
        tables: only these, as `namespace.table`; None: all that the principal may see.
        own: the contract under which the job runs; None: an administrator's run.
        contracts: by the principals that they bind; for orphans.
    """

    catalog: str = "tower"
    system: str = "tower.system"
    tables: Collection[Identifier] | None = None
    own: Contract | None = None
    contracts: Mapping[str, Contract] = field(default_factory=dict[str, Contract])

    @property
    def sees_all(self) -> bool:
        """Whether it may read every table, so that it may delete a file that none of them refers to."""
        return self.own is None or any(
            rule.pattern.last == "**" and not rule.pattern.namespace and rule.grants(Operation.READ)
            for rule in self.own.rules
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that failed; it is due again in the next run."""

    table: str
    task: str
    error: IcetowerError

    def to_json(self) -> dict[str, Any]:
        of = {"table": self.table, "task": self.task, "rule": self.error.rule, "message": self.error.message}
        return {"status": "failed", **of}


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A table on which nothing was due but, maybe, the expiry of snapshots and a look for orphans, and why."""

    table: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"status": "left alone", "table": self.table, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Report:
    """One run.

    Attributes:
        entries: what it recorded, also of runs that were killed before.
        orphans: by the tables that it looked through: the orphans that are left there.
    """

    tables: int
    entries: tuple[Entry, ...]
    failures: tuple[Failure, ...]
    left_alone: tuple[LeftAlone, ...] = ()
    orphans: Mapping[str, tuple[Orphan, ...]] = field(default_factory=dict[str, "tuple[Orphan, ...]"])

    def report_orphans(self, tower: OrphanTower) -> None:
        """Tell the tower which orphans are left, where any were looked for."""
        if self.orphans:
            left = self.orphans.items()
            report_orphans(tower, {table: [(o.principal or "", o.size_bytes) for o in found] for table, found in left})


def nothing(_: str) -> None:
    """The hook that does nothing."""


def maintain(
    spark: SparkSession, job: Job, *, ambient: Ambient | None = None, after: Callable[[str], None] = nothing
) -> Report:
    """Do all that is due, once. It may be killed at any point and run again, and two runs at once are safe.

    Args:
        after: is given each step that is done; for tests.

    Raises `IcetowerError` if the catalog cannot be listed, or the record not be written. What fails on one table is in
    the report.
    """
    return Maintainer(spark, job, ambient=ambient, after=after).run()


class Maintainer:
    """Runs of one job; between them it keeps what it has read of manifests."""

    def __init__(
        self,
        spark: SparkSession,
        job: Job,
        *,
        ambient: Ambient | None = None,
        after: Callable[[str], None] = nothing,
    ) -> None:
        self.spark = private_session(spark)
        self.job = job
        self.ambient = ambient or SystemAmbient()
        self.after = after
        self.catalog = Catalog(self.spark, job.catalog)
        self.record = Record(self.spark, job.system)
        self.recorded: set[str] = set()

    def run(self) -> Report:
        """One run, as `maintain`."""
        try:
            return translating_errors(f"maintaining {self.job.catalog}", _Run(self).run)
        except UpstreamFailed:
            self.record.require()  # says so if somebody has changed its tables meanwhile
            raise

    def follow(
        self, jobs: Callable[[], Job], on: Callable[[Report], None], wait: Callable[[float], bool], every_s: float
    ) -> None:
        """Run again and again.

        Args:
            jobs: called before each run, so that contracts that change count from the next one.
            on: is given each report.
            wait: waits for that many seconds; True ends the loop.

        Raises `IcetowerError` only in the first run: later it is a failure like others.
        """
        first = True
        while True:
            began_s = self.ambient.monotonic_s()
            try:
                self.job = jobs()
                report = self.run()
            except IcetowerError as error:
                if first:
                    raise
                report = Report(0, (), (Failure(self.job.catalog, "run", error),))
            first = False
            on(report)
            if wait(max(began_s + every_s - self.ambient.monotonic_s(), 0.0)):
                return


class _Run:
    """One run."""

    def __init__(self, maintainer: Maintainer) -> None:
        self.maintainer = maintainer
        self.spark, self.job, self.record = maintainer.spark, maintainer.job, maintainer.record
        self.now_ms = maintainer.ambient.now_ms()
        self.entries: list[Entry] = []
        self.orphans: dict[str, tuple[Orphan, ...]] = {}
        self.expiries: list[Entry] = []
        self.early: list[Entry] = []
        self.expired = False
        self.failures: list[Failure] = []
        self.states: dict[Identifier, State] = {}
        self.history: dict[str, Entry] = {}
        self.properties: dict[str, str] = {}
        self.left_alone: list[LeftAlone] = []

    def run(self) -> Report:
        listed = self.maintainer.catalog.tables()
        self.record.create()
        for each in listed:
            self._try(each, "load", partial(self._load, each))
        self.maintainer.after("loaded")
        wanted = [state for state in self.states.values() if self._is_wanted(state.listed.identifier)]
        ages = Ages(self.spark, self.job.system, self.states, self.maintainer.ambient)
        expiring: list[tuple[State, int]] = []
        for state in wanted:
            self._try(state.listed, "plan", partial(self._table, state, ages, expiring))
        self._expire(expiring)
        self._scan(wanted)
        written = self._write()
        written += self._count_refused()
        busy = {each.table_name for each in written} | {each.table for each in self.failures}
        left = tuple(each for each in self.left_alone if each.table not in busy)
        return Report(len(wanted), tuple(written), tuple(self.failures), left, self.orphans)

    # -- what there is

    def _load(self, listed: Listed) -> State:
        """The table as it is now. What maintenance did there is noted before its snapshots can go."""
        self.states[listed.identifier] = state = self.maintainer.catalog.load(listed)
        if self._is_wanted(listed.identifier):
            self.history |= {each.entry: each for each in of_snapshots(state.metadata, str(listed.identifier))}
        return state

    def _is_wanted(self, table: Identifier) -> bool:
        return self.job.tables is None or table in self.job.tables

    def _try(self, listed: Listed, task: str, work: Callable[[], object]) -> None:
        try:
            translating_errors(f"{task} of {listed.name}", work)
        except NoSuchTable:  # it was dropped meanwhile
            self.states.pop(listed.identifier, None)
        except IcetowerError as error:
            self.failures.append(Failure(str(listed.identifier), task, self._reason(error)))

    def _reason(self, error: IcetowerError) -> IcetowerError:
        """An error; or that somebody has changed the record's tables, where that may be its cause."""
        if isinstance(error, UpstreamFailed):
            try:
                self.record.require()
            except IcetowerError as changed:
                return changed
        return error

    def _marks(self, name: str) -> str | None:
        """A property of the newest snapshot of `maintenance_runs` that has it."""
        return self._summary_of("maintenance_runs", name)

    def _system(self, name: str) -> State | None:
        return self.states.get(Identifier.parse(f"{self.job.system.partition('.')[2]}.{name}"))

    def _summary_of(self, table: str, name: str) -> str | None:
        state = self._system(table)
        head = None if state is None else current_snapshot_id(state.metadata)
        if state is None or head is None:
            return None
        summaries = (each["summary"] for each in ancestors(state.metadata, head))
        return next((summary[name] for summary in summaries if name in summary), None)

    # -- files, manifests and rows of one table

    def _table(self, state: State, ages: Ages, expiring: list[tuple[State, int]]) -> None:
        may = allowed(self.job.own, state.listed.identifier)
        listed = state.listed
        if (state.metadata.get("properties") or {}).get("maintenance.enabled", "true").lower() == "false":
            self.left_alone.append(LeftAlone(str(listed.identifier), why_not(state.metadata, [], [], may)))
            return
        changed = False
        if Task.PRUNE in may:
            self._try(listed, Task.PRUNE, lambda: ages.prune(state, may_overwrite=self._may_overwrite(listed)))
            changed = listed.identifier in ages.pruned
            if changed:
                self.maintainer.after("prune")
        state = self._load(listed) if changed else state
        is_log = ages.is_log(state)
        wanted = may - ({Task.COMPACT, Task.DELETES} if is_log else set())  # its order and its numbers are needed
        partitions = state.partitions(self.now_ms) if {Task.COMPACT, Task.DELETES} & wanted else []
        files_min = setting(state.metadata, FILES_MIN)
        vectors = any(each.vectors >= files_min and not each.busy for each in partitions)
        found = due(
            state.metadata, partitions, state.manifest_lengths, now_ms=self.now_ms, tasks=wanted - {Task.EXPIRE}
        )
        if not found and not changed:
            reason = why_not(state.metadata, partitions, state.manifest_lengths, may)
            self.left_alone.append(LeftAlone(str(listed.identifier), reason))
        for each in found:
            self._try(listed, each.task, partial(self._perform, listed.identifier, each, vectors))
        state = self.states[listed.identifier]
        if Task.EXPIRE in may:
            unread = ages.unread_since_ms(state) if is_log else None
            only = frozenset({Task.EXPIRE})
            found = due(state.metadata, [], [], now_ms=self.now_ms, tasks=only, unread_since_ms=unread)
            expiring += [(state, each.before_ms or 0) for each in found]

    def _may_overwrite(self, listed: Listed) -> bool:
        own = self.job.own
        return own is None or own.grants_everywhere(frozenset({Operation.OVERWRITE}), listed.identifier)

    def _perform(self, table: Identifier, each: Due, vectors: bool) -> None:
        state = self.states[table]
        conflicts = 0
        try:
            conflicts = tasks.perform(self.spark, state, each, vectors=vectors)
        except CommitConflict:
            conflicts = len(each.partitions or (None,))
        self.maintainer.after(each.task)
        if conflicts:
            entry = f"{state.uuid}/{each.task}/conflict/{self.now_ms}"
            self.entries.append(Entry(entry, self.now_ms, str(table), state.uuid, each.task.value, conflicts=conflicts))
        self._load(state.listed)

    # -- expiry

    def _expire(self, expiring: Sequence[tuple[State, int]]) -> None:
        if not expiring:
            return
        # What a run that was killed was about to expire stands in its row already.
        begun = {each for entry in self.record.unfinished() for each in entry.expiring or ()}
        for state, before_ms in expiring:
            ids = tuple(each for each in going(state.metadata, before_ms) if each not in begun)
            if ids:
                entry = f"{state.uuid}/expire/{self.now_ms}"
                table = str(state.listed.identifier)
                self.expiries.append(Entry(entry, self.now_ms, table, state.uuid, Task.EXPIRE, expiring=ids))
        self.early = self._unrecorded()  # before its snapshots are gone
        self._record([*self.early, *self.expiries], {})
        self.maintainer.after("expiring")
        for state, before_ms in expiring:
            self._try(state.listed, Task.EXPIRE, partial(tasks.expire, self.spark, state, before_ms))
            self.maintainer.after(Task.EXPIRE)
            self._try(state.listed, Task.EXPIRE, partial(self._load, state.listed))
        self.expired = True

    def _ended(self, begun: Entry) -> list[Entry]:
        """An expiry, with how many of its snapshots are gone; nothing, if another run may be at it."""
        its = next((state for state in self.states.values() if state.uuid == begun.table_uuid), None)
        left = set[int]() if its is None else {each["snapshot-id"] for each in its.metadata["snapshots"]}
        gone = sum(each not in left for each in begun.expiring or ())
        own = any(each.entry == begun.entry for each in self.expiries)
        if not own and gone < len(begun.expiring or ()) and begun.at_ms > self.now_ms - RECENT_MS:
            return []
        return [replace(begun, snapshots_expired=gone, expiring=None)]

    # -- orphans

    def _scan(self, wanted: Iterable[State]) -> None:
        next_ms = self._marks(NEXT_SCAN)
        if next_ms is not None and self.now_ms < int(next_ms):
            return
        contracts = self.job.contracts
        last = self.record.scans() if self._system("maintenance_runs") else {}
        due_at: dict[Identifier, int] = {}
        for state in wanted:
            table = state.listed.identifier
            if Task.ORPHANS in allowed(self.job.own, table):
                due_at[table] = last.get(state.uuid, 0) + scan_every_ms(contracts.values(), table)
        todo = [table for table, at_ms in due_at.items() if at_ms <= self.now_ms]
        for table in todo:
            state = self.states.get(table)
            if state is None:
                continue
            failures = len(self.failures)
            self._try(state.listed, Task.ORPHANS, partial(self._orphans, state))
            if len(self.failures) == failures:
                due_at[table] = self.now_ms + scan_every_ms(contracts.values(), table)
        self.properties[NEXT_SCAN] = str(min(due_at.values(), default=self.now_ms))

    def _orphans(self, state: State) -> None:
        name, contracts = state.listed.name, self.job.contracts
        clauses = Clauses(contracts)
        before_ms = self.now_ms - int(clauses.youngest_s(state.listed.identifier, ORPHANS_OLDER_S) * 1000)
        names = {principal: contract.name for principal, contract in contracts.items()}
        context = Found(self.now_ms, {name: (state.uuid, before_ms)}, names)
        ended = clean(
            self.spark,
            [name],
            clauses if self.job.sees_all else Clauses({}),
            older_than_s=ORPHANS_OLDER_S,
            before=lambda found: (self.record.write_found(found, context), self.maintainer.after("found"))[0],
            ambient=self.maintainer.ambient,
        )
        found = [(each, self.maintainer.after("orphan"))[0] for each in ended]
        self.maintainer.after("deleted")
        self.record.write_ends(found, context)
        deleted = sum(each.fate is Disposition.DELETED for each in found)
        entry = f"{state.uuid}/orphans/{self.now_ms}"
        table = str(state.listed.identifier)
        counts = Entry(
            entry, self.now_ms, table, state.uuid, Task.ORPHANS, orphans_found=len(found), orphans_deleted=deleted
        )
        self.entries.append(counts)
        self.orphans[table] = tuple(each for each in found if each.fate is not Disposition.DELETED)

    # -- the record

    def _write(self) -> list[Entry]:
        """Write what is not recorded yet, of this run and of those that were killed."""
        fresh = self._unrecorded()
        unfinished = self.record.unfinished() if fresh or self.expired or self.entries else []
        ended = [entry for each in unfinished for entry in self._ended(each)]
        entries = [*fresh, *ended, *self.entries]
        newest = max((each.at_ms for each in self.history.values()), default=None)
        late = [] if newest is None else [each for each in self.history.values() if each.at_ms > newest - RECENT_MS]
        marks = {} if newest is None else {RECORDED: str(newest), RECORDED_ALL: digest(late)}
        self._record(entries, {**self.properties, **marks})
        self.maintainer.after("recorded")
        return sorted([*self.early, *entries], key=lambda each: (each.table_name, each.at_ms))

    def _unrecorded(self) -> list[Entry]:
        """What the tables' histories have, and the record has not."""
        since_ms = int(self._marks(RECORDED) or 0) - RECENT_MS
        known = self.maintainer.recorded
        late = [each for each in self.history.values() if each.at_ms > since_ms]
        if digest(late) == self._marks(RECORDED_ALL):
            return []
        found = [each for each in late if each.entry not in known]
        if found:
            known |= self.record.known(min(each.at_ms for each in found))
        return [each for each in found if each.entry not in known]

    def _record(self, entries: Sequence[Entry], properties: Mapping[str, str]) -> None:
        self.record.write(entries, properties)
        self.maintainer.recorded |= {each.entry for each in entries if each.snapshot_id is not None}

    def _count_refused(self) -> list[Entry]:
        commits = self._system("iceberg_commits")
        since_ms = self.now_ms - COSTS_MS
        if commits is None or not any(
            each["summary"].get(TASK) and each["timestamp-ms"] > since_ms
            for state in self.states.values()
            for each in state.metadata.get("snapshots") or ()
        ):
            return []
        head = str(current_snapshot_id(commits.metadata))
        if not self.record.may_count(commits.metadata, since_ms, self._marks(COMMITS_READ)):
            return []
        counted: list[Entry] = []

        def count() -> None:
            lacking(commits.metadata, commits.listed.name, COMMITS_COUNTED)
            counted.extend(self.record.count_refused(commits.listed.name, self.now_ms, {COMMITS_READ: head}))

        self._try(commits.listed, "count", count)
        return counted
