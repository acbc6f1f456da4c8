"""Which rows of logs and system tables go by age, and from where others still read.

Logs and delta tables lose what every target has merged (`wal_pruning`), if they have `maintenance.keep-ms`. Their
snapshots stay from the least progress of a target on. The log of mediations keeps each batch that a target's history
still has, and the newest one of each target and log: by them the mediator knows what is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from icetower.ambient import Ambient
from icetower.iceberg.metadata import snapshot
from icetower.pipelines import maintenance_tasks as tasks
from icetower.pipelines.maintenance_files import State
from icetower.pipelines.maintenance_plan import AGING, DAY_MS, TASK, Task, keep_ms, old_files
from icetower.pipelines.own_tables import lacking, telling
from icetower.pipelines.tables import load_metadata, translating_errors
from icetower.pipelines.wal_logs import Logs
from icetower.pipelines.wal_plan import history
from icetower.pipelines.wal_pruning import prune
from icetower.protocol.marks import MEDIATOR
from icetower.protocol.names import Identifier

OPERATION = "_operation"
"""A delta table has this column."""
TOMBSTONES_MS = 7 * DAY_MS
"""A delta table keeps its rows at least so long: a delete in it wins over an older upsert that comes later."""
_MEDIATION = "batch STRING, table_uuid STRING, wal_uuid STRING, committed_snapshot BIGINT, committed_at TIMESTAMP"
"""The columns of the log of mediations that tell who needs what."""
_LOG = MEDIATOR + "table-uuid"


class Ages:
    """Prunes tables of one catalog, as they were when the run began.

    Attributes:
        pruned: the tables that lost rows.
    """

    def __init__(self, spark: SparkSession, system: str, states: Mapping[Identifier, State], ambient: Ambient) -> None:
        self.spark = spark
        self.system = system
        self.states = states
        self.ambient = ambient
        self.now_ms = ambient.now_ms()
        self.pruned: set[Identifier] = set()

    # -- logs and delta tables

    @cached_property
    def _readers(self) -> Mapping[str, set[str]]:
        """By the uuid of a log: the uuids of the tables that tell how far they have read it."""
        found: dict[str, set[str]] = {}
        for state in self.states.values():
            for each in state.metadata.get("snapshots") or ():
                # What a table tells of itself is how far it was deduplicated, and makes no log of it.
                if each["summary"].get(_LOG, state.uuid) != state.uuid:
                    found.setdefault(each["summary"][_LOG], set()).add(state.uuid)
        return found

    def is_log(self, state: State) -> bool:
        """Whether a mediator or a collector reads it."""
        return state.uuid in self._readers

    def _targets(self, log: State) -> list[State] | None:
        """The tables into which a log is merged; None if one of them cannot be seen."""
        uuids = set(self._readers.get(log.uuid, ()))
        mediations = self._named("wal_mediations")
        if mediations is not None:
            distinct = self._batches(mediations, lambda rows: rows.where(f.col("wal_uuid") == log.uuid), "table_uuid")
            if distinct is None:
                return None
            uuids |= {row.table_uuid for row in distinct}
        by_uuid = {state.uuid: state for state in self.states.values()}
        return [by_uuid[each] for each in uuids] if uuids <= by_uuid.keys() else None

    def unread_since_ms(self, log: State) -> int:
        """The time of the snapshot up to which the slowest target has read; 0 if it is not known."""
        targets = self._targets(log)
        if not targets:
            return 0
        times: list[int] = []
        for target in targets:
            merged = next(history(target.metadata, log.uuid), None)
            through = None if merged is None else snapshot(log.metadata, merged.through)
            times.append(0 if through is None else through["timestamp-ms"])
        return min(times)

    # -- pruning

    def prune(self, state: State, *, may_overwrite: bool) -> None:
        """Remove the rows that are old enough, if the table has any that may go by age.

        Args:
            may_overwrite: whether files may be written anew without these rows.
        """
        table = state.listed.identifier
        namespace = self.system.partition(".")[2]
        aging = AGING.get(table.name) if ".".join(table.namespace) == namespace else None
        keeps_ms = keep_ms(state.metadata, None if aging is None else aging.keep_ms)
        if keeps_ms is None:
            return
        if aging is None:
            if self.is_log(state):
                self._prune_log(state, keeps_ms)
            return
        if table.name == "wal_mediations":
            keys = self._named("agent_dedup_log")
            key_ms = None if keys is None else keep_ms(keys.metadata, AGING["agent_dedup_log"].keep_ms)
            if keys is not None and key_ms is None:
                return  # its batches are needed as long as their keys
            keeps_ms = max(keeps_ms, (key_ms or 0) + 2 * DAY_MS)
        before_ms = self.now_ms - keeps_ms
        files = state.times(aging.column)
        if aging.whole_files:
            paths = old_files(files, before_ms)
            if paths:
                tasks.remove_files(state, paths)
                self.pruned.add(table)
        elif may_overwrite and any(each.least_ms < before_ms for each in files):
            self._prune_rows(state, aging.column, before_ms)

    def _prune_rows(self, state: State, column: str, before_ms: int) -> None:
        if state.listed.identifier.name == "wal_mediations":
            going = self._mediations(state, before_ms)
            if going:
                tasks.remove_rows(self.spark, state, "batch", going)
                self.pruned.add(state.listed.identifier)
            return
        rows = self.spark.table(state.listed.sql).where(f.col(column) < f.timestamp_millis(f.lit(before_ms)))
        ended = f.col("fate").isin("deleted", "gone")
        if not translating_errors(f"reading {state.listed.name}", rows.where(ended).isEmpty):
            statement = (
                f"DELETE FROM {state.listed.sql} WHERE {column} < timestamp_millis({before_ms}) "  # noqa: S608 - quoted
                "AND fate IN ('deleted', 'gone')"
            )
            tasks.remove_where(self.spark, state, statement)
            self.pruned.add(state.listed.identifier)

    def _mediations(self, state: State, before_ms: int) -> list[str]:
        """The batches that nobody needs: old, not in a target's history, and not the newest of a target and a log."""
        columns = ("batch", "table_uuid", "wal_uuid", "committed_snapshot", "unix_millis(committed_at) at_ms")
        found = self._batches(state, lambda rows: rows, *columns) or ()
        newest: dict[tuple[str, str], int] = {}
        timed = [row for row in found if row.at_ms is not None]
        for row in timed:
            pair = row.table_uuid, row.wal_uuid
            newest[pair] = max(newest.get(pair, 0), row.at_ms)
        there = {each["snapshot-id"] for each in _snapshots([*self.states.values()])}
        return [
            row.batch
            for row in timed
            if row.at_ms < before_ms
            and row.committed_snapshot not in there
            and row.at_ms < newest[row.table_uuid, row.wal_uuid]
        ]

    def _batches(
        self, mediations: State, among: Callable[[DataFrame], DataFrame], *columns: str
    ) -> Sequence[Row] | None:
        """What the log of mediations has; None if it is of an earlier version, whose batches nobody knows by uuids."""
        listed = mediations.listed
        if lacking(mediations.metadata, listed.name, _MEDIATION):
            return None

        def read() -> list[Row]:
            return among(self.spark.table(listed.sql)).selectExpr(*columns).distinct().collect()

        rows = partial(translating_errors, f"reading {listed.name}", read)
        return telling(rows, listed.name, _MEDIATION, lambda: load_metadata(self.spark, listed.sql))

    def _prune_log(self, log: State, keeps_ms: int) -> None:
        # Under whatever name: while the column is called otherwise, the collector waits.
        if any(column["name"] == OPERATION for schema in log.metadata["schemas"] for column in schema["fields"]):
            keeps_ms = max(keeps_ms, TOMBSTONES_MS)
        if not self._has_old_files(log, self.now_ms - keeps_ms):
            return
        targets = self._targets(log)
        if not targets:
            return
        logs = Logs(self.spark, self.system)
        names = [each.listed.sql for each in targets]
        done = prune(
            self.spark,
            log.listed.sql,
            names,
            logs,
            keep_s=keeps_ms / 1000,
            properties={TASK: Task.PRUNE.value},
            ambient=self.ambient,
        )
        if done.snapshot is not None:
            self.pruned.add(log.listed.identifier)

    def _has_old_files(self, log: State, before_ms: int) -> bool:
        """Whether a file may be as old as that, by the sequence numbers of the manifests."""
        old = [s.get("sequence-number", 0) for s in log.metadata["snapshots"] if s["timestamp-ms"] <= before_ms]
        live = [row for row in log.manifests if row.content == 0 and (row.added_files or row.existing_files)]
        return bool(old) and any(row.min_sequence_number <= max(old) for row in live)

    def _named(self, name: str) -> State | None:
        return self.states.get(Identifier.parse(f"{self.system.partition('.')[2]}.{name}"))


def _snapshots(states: Sequence[State]) -> list[Mapping[str, object]]:
    return [each for state in states for each in state.metadata.get("snapshots") or ()]
