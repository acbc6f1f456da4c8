"""The sides: how the same writes reach a table of the same layout.

direct      MERGE by Spark into a plain SQL catalog: what people have
icetower    the same MERGE through a tower, with a key for each write and a contract for each agent
wal         appends to a log by the fast path, and the mediator upserts them
slots       the MERGE of `icetower`, in turns that the contracts give: an agent writes all that it has as one
collector   appends of changes to a delta table by the fast path, and the collector folds them in
hybrid      both for one table: of each eight agents one MERGEs in turns, and the others append to the delta table
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from pyiceberg.io import load_file_io
from pyspark.sql import SparkSession

from bench.patterns import oracle
from bench.patterns.agents import Timing, Turn, Worker, run_agents
from bench.patterns.places import (
    JOB,
    SCHEDULER,
    SEED,
    SLOT_MS,
    Lake,
    Place,
    contract,
    create_table,
    job_contract,
    stored,
)
from bench.patterns.records import Attempted, Figures, figures
from bench.patterns.rows import KEYS, NAMES, Row, Write, agent_name, arrow, region_of
from icetower.agent import DataFile, Patience, keyed, wait_for_slot
from icetower.ambient import Ambient
from icetower.contracts.model import Contract
from icetower.demo import slow_io
from icetower.errors import CommitConflict
from icetower.pipelines.collector import collect
from icetower.pipelines.tables import SNAPSHOT_PROPERTY, load_metadata
from icetower.pipelines.wal_follow import Failure, Follower
from icetower.pipelines.wal_mediator import Job, Mediation, mediate
from icetower.pipelines.wal_pruning import Pruned
from icetower.spark import declaring, refusal_of
from icetower.spark.recovery import java_causes

parquet: Any = pyarrow.parquet

DIRECT, ICETOWER, SLOTS, WAL, COLLECTOR, HYBRID = "direct", "icetower", "slots", "wal", "collector", "hybrid"
SIDES = (DIRECT, ICETOWER, SLOTS, WAL, COLLECTOR, HYBRID)
BY_MERGE_EVERY = 8
"""Of so many agents of the side `hybrid`, one MERGEs."""
EVERY_S = 1.0
_WRITE = "bench.write"
_DRAINED_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    side: str
    shape: str
    agents: int
    round: int = 1


@dataclass(slots=True)
class Ended:
    """What a side's agents and its job have done."""

    began_ms: int
    attempts: list[Attempted]
    order: Callable[[Attempted, Row], Any] = oracle.by_event
    batches_ms: Sequence[float] = ()
    failures: list[str] = field(default_factory=list[str])


def run(place: Place, case: Case, writes: Sequence[Sequence[Write]], timing: Timing) -> Figures:
    """Run one side, and hold the table to what the landed writes leave. Raises `AssertionError` if rows are wrong."""
    ended, lake, reader = _RUNS[case.side](place, case, writes, timing)
    table = place.session(lake).table(lake.table).select(*NAMES)
    found: list[Row] = table.toArrow().to_pylist()
    landed = [each for each in ended.attempts if each.visible_ms is not None]
    wrong = oracle.differences(landed, found, ended.order)
    lost = [each for each in ended.attempts if each.answered and each.visible_ms is None]
    wrong += [f"write {each.write.key} was acknowledged, and is not in the table" for each in lost]
    wrong += ended.failures
    assert not wrong, f"{case}: {len(wrong)} differences, such as {wrong[:3]}"
    return figures(
        (case.side, case.shape, case.agents, case.round),
        ended.attempts,
        stored(place, lake, reader),
        began_ms=ended.began_ms,
        seconds=timing.seconds,
        due=case.agents * timing.writes,
        offered_rows_per_s=sum(len(write.rows) for its in writes for write in its) / timing.seconds,
        batches_ms=ended.batches_ms,
        exact=not wrong,
    )


# ---------------------------------------------------------------------------------------------------------- by MERGE


def _direct(place: Place, case: Case, writes: Sequence[Sequence[Write]], timing: Timing) -> tuple[Ended, Lake, str]:
    lake = place.plain(case.agents)
    create_table(place.session(lake), lake.table, {}, "region")
    return _by_merge(place, lake, case, writes, timing, keys=False)


def _icetower(place: Place, case: Case, writes: Sequence[Sequence[Write]], timing: Timing) -> tuple[Ended, Lake, str]:
    lake, _ = _registered(place, case, "")
    create_table(place.session(lake), lake.table, {}, "region")
    return _by_merge(place, lake, case, writes, timing, keys=True)


def _slots(place: Place, case: Case, writes: Sequence[Sequence[Write]], timing: Timing) -> tuple[Ended, Lake, str]:
    lake, _ = _registered(place, case, SCHEDULER)
    create_table(place.session(lake), lake.table, {}, "region")
    turns = {agent: _turn(place, lake, agent) for agent in range(case.agents)}
    return _by_merge(place, lake, case, writes, timing, keys=True, turns=turns)


class _Stopped(Exception):
    """The run ended while an agent waited for its turn."""


def _turn(place: Place, lake: Lake, agent: int) -> Turn:
    tower, table = place.tower(agent_name(agent)), lake.table.partition(".")[2]

    def wait(stop: threading.Event) -> bool:
        def pause(seconds: float) -> None:
            if stop.wait(seconds):
                raise _Stopped

        try:
            wait_for_slot(tower, table, "overwrite", least_s=SLOT_MS / 2000, patience=Patience(pause=pause))
        except _Stopped:
            return False
        return not stop.is_set()

    return wait


def _by_merge(
    place: Place,
    lake: Lake,
    case: Case,
    writes: Sequence[Sequence[Write]],
    timing: Timing,
    *,
    keys: bool,
    turns: Mapping[int, Turn] | None = None,
) -> tuple[Ended, Lake, str]:
    workers = [
        _merging(place.session(lake, agent_name(agent)), lake, case, agent, keys) for agent in range(case.agents)
    ]
    context = place.spark.sparkContext
    began_ms, attempts = run_agents(workers, writes, timing, _kind_of, context.cancelAllJobs, turns)
    _see_merges(place, lake, attempts)
    return Ended(began_ms, attempts), lake, agent_name(0)


def _see_merges(place: Place, lake: Lake, attempts: Sequence[Attempted]) -> None:
    """When each write became visible: with the first snapshot that names it."""
    times = {
        key: snapshot["timestamp-ms"]
        for snapshot in reversed(load_metadata(place.session(lake), lake.table)["snapshots"])
        for key in snapshot["summary"].get(_WRITE, "").split(",")
    }
    for each in attempts:
        # A write that was cut off, or whose outcome is unknown, may have landed.
        each.visible_ms = times.get(each.write.key)


def _merging(spark: SparkSession, lake: Lake, case: Case, agent: int, keys: bool) -> Worker:
    """An agent that MERGEs: of each product the newest price stays."""
    region = region_of(case.shape, agent)

    def write(its: Sequence[Attempted]) -> None:
        names = ", ".join(NAMES)
        newest = {row["product_id"]: row for each in its for row in each.write.rows}  # they come in time order
        values = ", ".join(_values(row) for row in newest.values())
        statement = (
            f"MERGE INTO {lake.table} t USING (SELECT * FROM VALUES {values} AS v({names})) s "
            f"ON t.region = {region} AND t.region = s.region AND t.product_id = s.product_id "
            "WHEN MATCHED AND t._event_time <= s._event_time THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        written = ",".join(each.write.key for each in its)
        spark.conf.set(SNAPSHOT_PROPERTY + _WRITE, written)
        if not keys:
            spark.sql(statement)
            return
        with declaring(spark, keyed(written)):
            spark.sql(statement)

    return write


def _values(row: Row) -> str:
    price = "CAST(NULL AS DECIMAL(9,2))" if row["unit_price"] is None else f"CAST({row['unit_price']} AS DECIMAL(9,2))"
    return (
        f"({row['region']}, {row['product_id']}L, {row['store_id']}L, {price}, {row['quantity']}L, "
        f"CAST({row['sales_value']} AS DECIMAL(9,2)), {row['row_id']}L, "
        f"TIMESTAMP'{row['_event_time']:%Y-%m-%d %H:%M:%S.%f}', '{row['_idempotency_key']}')"
    )


def _kind_of(error: Exception) -> str:
    refusal = refusal_of(error)
    if refusal is not None:
        return refusal.rule or type(refusal).__name__
    causes = java_causes(error)
    return causes[-1][0].rpartition(".")[2] if causes else type(error).__name__


# -------------------------------------------------------------------------------------------------- through a job


def _wal(place: Place, case: Case, writes: Sequence[Sequence[Write]], timing: Timing) -> tuple[Ended, Lake, str]:
    lake, contracts = _registered(place, case, "mediator")
    _create_staged(place, lake, lake.log, {})
    ended = _through(place, lake, case, writes, timing, contracts, lake.log, {}, None)
    ended.order = oracle.by_commit
    return ended, lake, JOB


def _collector(place: Place, case: Case, writes: Sequence[Sequence[Write]], timing: Timing) -> tuple[Ended, Lake, str]:
    lake, contracts = _registered(place, case, "collector")
    _create_staged(place, lake, lake.deltas, {"_operation": "STRING"})
    more = {"_operation": (pa.string(), "upsert")}
    return _through(place, lake, case, writes, timing, contracts, lake.deltas, more, _collect), lake, JOB


def _hybrid(place: Place, case: Case, writes: Sequence[Sequence[Write]], timing: Timing) -> tuple[Ended, Lake, str]:
    merging = range(0, case.agents, BY_MERGE_EVERY)
    lake, contracts = _registered(place, case, "collector", merging)
    _create_staged(place, lake, lake.deltas, {"_operation": "STRING"})
    more = {"_operation": (pa.string(), "upsert")}
    turns = {agent: _turn(place, lake, agent) for agent in merging}
    return _through(place, lake, case, writes, timing, contracts, lake.deltas, more, _collect, turns), lake, JOB


def _collect(spark: SparkSession, job: Job, *, ambient: Ambient) -> Mediation:
    return collect(spark, job, ambient=ambient)


def _registered(
    place: Place, case: Case, pattern: str, merging: Sequence[int] = ()
) -> tuple[Lake, dict[str, Contract]]:
    """A lake behind the tower, and contracts of the agents and the job. `merging`: agents with turns instead."""
    lake = place.behind_tower(case.agents)
    through = {"mediator": lake.log, "collector": lake.deltas}.get(pattern, "")
    turns = merging or range(case.agents)
    texts = {
        agent_name(agent): contract(agent, lake, case.shape, SCHEDULER, "", (turns.index(agent), len(turns)))
        if agent in merging or pattern == SCHEDULER
        else contract(agent, lake, case.shape, pattern, through)
        for agent in range(case.agents)
    }
    contracts = place.register(texts | {JOB: job_contract(lake)})
    lake.catalogs = {
        name: {**its, "token": place.secrets[name]} if name else its for name, its in lake.catalogs.items()
    }
    return lake, contracts


def _create_staged(place: Place, lake: Lake, staged: str, more: Mapping[str, str]) -> None:
    spark = place.session(lake)
    create_table(spark, lake.table, {}, "region")
    create_table(spark, staged, {**more, "_agent": "STRING"}, "_agent")
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {lake.system}")


def _through(
    place: Place,
    lake: Lake,
    case: Case,
    writes: Sequence[Sequence[Write]],
    timing: Timing,
    contracts: Mapping[str, Contract],
    staged: str,
    more: Mapping[str, tuple[pa.DataType, Any]],
    apply: Callable[..., Mediation] | None,
    turns: Mapping[int, Turn] | None = None,
) -> Ended:
    """Agents that append, and the job that follows them, until it has nothing more to do. Those with turns MERGE."""
    job = Job(staged, lake.table, dict(contracts), lake.system, merge_keys=KEYS, own=contracts[JOB])
    following = _Following(place.session(lake, JOB), job, apply)
    workers = [
        _merging(place.session(lake, agent_name(agent)), lake, case, agent, keys=True)
        if agent in (turns or {})
        else _appending(place, staged, agent, more)
        for agent in range(case.agents)
    ]
    thread = threading.Thread(target=following.run)
    thread.start()
    try:
        began_ms, attempts = run_agents(workers, writes, timing, _kind_of, lambda: None, turns)
    finally:
        following.stopping.set()
        thread.join(_DRAINED_WITHIN_S)
        following.abandoned.set()
    following.check()
    _see_merges(place, lake, [each for each in attempts if each.write.agent in (turns or {})])
    _see(place, lake, staged, attempts, following.batches)
    return Ended(began_ms, attempts, batches_ms=following.batches_ms, failures=following.failures)


def _see(place: Place, lake: Lake, staged: str, attempts: Sequence[Attempted], batches: Sequence[Mediation]) -> None:
    """When each write became visible: with the batch that took its snapshot."""
    snapshots = load_metadata(place.session(lake), staged)["snapshots"]
    numbers = {snapshot["snapshot-id"]: snapshot["sequence-number"] for snapshot in snapshots}
    ends = [(numbers[done.through_snapshot], done.committed_at_ms) for done in batches if done.through_snapshot]
    for each in attempts:
        if each.sequence is not None:
            each.visible_ms = next((at for through, at in ends if through >= each.sequence), None)


def _appending(place: Place, staged: str, agent: int, more: Mapping[str, tuple[pa.DataType, Any]]) -> Worker:
    """An agent that appends by the fast path."""
    name, table = agent_name(agent), staged.partition(".")[2]
    tower = place.tower(name)
    files = load_file_io(slow_io.properties(place.latency, SEED + agent)) if place.latency != "none" else None

    def write(its: Sequence[Attempted]) -> None:
        (attempt,) = its
        rows = arrow(attempt.write.rows, {**more, "_agent": (pa.string(), name)})
        content = io.BytesIO()
        parquet.write_table(rows, content)
        path = tower.new_data_file(table)
        output = (files or load_file_io({}, path)).new_output(path)
        with output.create(overwrite=True) as stream:
            stream.write(content.getvalue())
        file = DataFile(path, rows.num_rows, len(content.getvalue()), {"_agent": name})
        attempt.sequence = tower.append(table, [file], key=attempt.write.key).sequence_number

    return write


class _Following:
    """The mediator or the collector, in a thread of its own, until `stopping` is set and nothing is left."""

    def __init__(self, spark: SparkSession, job: Job, apply: Callable[..., Mediation] | None) -> None:
        self.stopping = threading.Event()
        self.abandoned = threading.Event()
        self.batches: list[Mediation] = []
        self.failures: list[str] = []
        self._quiet, self._behind, self._last_look = True, False, False
        self._raised: BaseException | None = None
        self.batches_ms: list[float] = []
        self._apply = apply or mediate
        self._follower = Follower(spark, lambda: [job], self._on, every_s=EVERY_S, work=self._timed)

    def run(self) -> None:
        try:
            self._follower.follow(self._wait)
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._raised = error

    def _timed(self, spark: SparkSession, job: Job, *, ambient: Ambient) -> Mediation:
        began_s = time.monotonic()
        done = self._apply(spark, job, ambient=ambient)
        if done.status == "applied":
            self.batches_ms.append((time.monotonic() - began_s) * 1000)
        return done

    def check(self) -> None:
        """Raise what the thread raised."""
        if self._raised is not None:
            raise self._raised

    def _on(self, event: Mediation | Pruned | Failure) -> None:
        self._quiet = False
        # Others that change the same rows may be faster, again and again; then the batch is tried later.
        self._behind = isinstance(event, Failure) and isinstance(event.error, CommitConflict)
        if isinstance(event, Mediation):
            self.batches.append(event)
            if event.rejected or event.duplicates:
                self.failures.append(f"{event.rejected} rows rejected, {event.duplicates} taken for duplicates")
        elif not self._behind:
            self.failures.append(str(event))

    def _wait(self, seconds: float) -> bool:
        quiet, self._quiet = self._quiet, True
        if self.stopping.is_set():
            if not self._last_look:  # what was looked at until now may have been read before the last write came
                self._last_look = True
                return False
            return (quiet and not self._behind) or (self._behind and self.abandoned.wait(seconds))
        self.stopping.wait(seconds)
        return False


_RUNS: Mapping[str, Callable[..., tuple[Ended, Lake, str]]] = {
    DIRECT: _direct,
    ICETOWER: _icetower,
    SLOTS: _slots,
    WAL: _wal,
    COLLECTOR: _collector,
    HYBRID: _hybrid,
}
