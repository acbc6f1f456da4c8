"""Coordinated writers: the tower's groups, a lock, a mediator, slots, a collector, intents. Compiled.

All of them are queues of writes that wait for a table. The patterns differ in how many writes are taken at once, when,
and how long a commit lasts:

group, appends   the tower's policy: all waiting writes up to a limit, two groups in progress at once, swaps in order; a
                 group of fast-path appends alone begins `append_interval_s` after the last one, at the earliest (a test
                 compares this with `commit/`)
lock             one write at a time, from the first read to the swap; where writes conflict, its work included
wal, collector   a second queue, behind the log or the staged deltas: a job takes all of it at fixed intervals
intents          a queue for each partition, which an overwrite holds from before its work until its commit is in the
                 table; appends pass

With slots, writes wait for the clock alone: an agent makes one commit at a time, of everything that waits by then.

Where writes conflict (`conflict_probability`), a group refuses an overwrite if another one of its partition has landed
since it began to work, with that probability; and with a lock or slots an agent reads and works in its turn, since what
it has read before may be gone by then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from icetower_simulator.compiled import PROGRAM, compiled, kept
from icetower_simulator.heap import ENTRY, pop, push
from icetower_simulator.kernel import (
    COMMON_FIELDS,
    NEVER,
    common_values,
    count_transaction,
    draw_gap,
    draw_kind,
    draw_runtime,
    free_row,
    zipf,
)
from icetower_simulator.latencies import (
    APPEND_LIST,
    CATALOG_READ,
    COMMIT,
    GET,
    PROVIDERS,
    PUT_LIST,
    PUT_MANIFEST,
    PUT_METADATA,
    Provider,
    duration_of,
)
from icetower_simulator.randoms import chosen, generator, uniform
from icetower_simulator.setup import OVERWRITE, PATTERNS, Setup, timing
from icetower_simulator.sums import durations, shared_by
from icetower_simulator.tallies import TALLY, Outcome, new_tally, outcome

PUT_DATA = APPEND_LIST
"""No list is appended to here: its row of the latencies holds those of writing a data file."""
_, LOCK, GROUP, APPENDS, WAL, SLOTS, COLLECTOR, INTENTS = range(len(PATTERNS))
WORKED, ADMITTED, QUEUED, COMMITTED, TIMER, RESERVES, VISIBLE = range(7)
"""Events: of a transaction, or, for COMMITTED and TIMER, of a queue."""
_EVENTS = 8
_NONE = -1
_JOB_READERS = 8

RUN = np.dtype(
    [
        *COMMON_FIELDS,
        ("pattern", np.int64),
        ("prepared", np.int64),
        ("agents", np.int64),
        ("tables", np.int64),
        ("partitions", np.int64),
        ("interval", np.float64),
        ("job", np.float64),
        ("cpu", np.float64),
        ("group_cpu", np.float64),
        ("member_cpu", np.float64),
        ("deadline", np.float64),
        ("conflicts", np.float64),
        ("group_max", np.int64),
        ("pipeline_max", np.int64),
        ("linger", np.float64),
        ("spread", np.float64),
        ("linger_max", np.float64),
        ("ended", np.int64),
        ("fresh", TALLY),
    ]
)
"""A run: the common fields, the rest of its setup in numbers (times in milliseconds), how many writers have ended, and
a second tally: latencies in `tally` last until a commit is acknowledged, those in `fresh` until it is visible."""
WRITE = np.dtype(
    [
        ("submitted", np.float64),
        ("started", np.float64),
        ("runtime", np.float64),
        ("entered", np.float64),
        ("kind", np.int64),
        ("table", np.int64),
        ("partition", np.int64),
        ("agent", np.int64),
        ("next", np.int64),
        ("free", np.int64),
    ]
)
QUEUE = np.dtype(
    [
        ("head", np.int64),
        ("tail", np.int64),
        ("length", np.int64),
        ("in_progress", np.int64),
        ("first", np.int64),
        ("second", np.int64),
        ("commits_at", np.float64),
        ("appended", np.float64),
        ("appends", np.int64),
        ("linger", np.float64),
        ("ready", np.float64),
        ("timer", np.float64),
        ("loaded", np.int64),
    ]
)
"""The waiting writes, and up to two groups in progress, each a list of writes linked by `next`. `ready`: when the last
group had been planned, so that the next one may be."""


class World(NamedTuple):
    """The state of a run besides its record.

    Attributes:
        queues: one for each table, then one for each table's job, then one for each partition's intents (there
            `in_progress` says whether the partition is held).
        slots: when each agent's last commit begins, and when it takes effect.
        landed: when the last overwrite of each partition landed.
        table_shares, partition_shares: cumulated shares by which tables and partitions are chosen.
        bins, fresh_bins: the bins of latencies until a commit is acknowledged, and until it is visible.
    """

    queues: Any
    slots: Any
    landed: Any
    table_shares: Any
    partition_shares: Any
    bins: Any
    fresh_bins: Any


def serve(setup: Setup, seed: int, providers: Mapping[str, Provider] = PROVIDERS) -> Outcome:
    """One run of a pattern other than `optimistic`. Raises `ConfigurationError`."""
    run = np.zeros(1, RUN)
    _fill(run[0], setup)
    times = timing(setup, providers)
    in_order = list(times.in_order)
    in_order[PUT_DATA] = times.put_data
    run[0]["io"] = durations(in_order, generator(seed, 1), with_sums=True)
    run[0]["arrivals"] = generator(seed, 0)
    tally, bins = new_tally()
    run[0]["tally"] = run[0]["fresh"] = tally
    fresh_bins = bins.copy()
    queues = np.zeros(setup.tables * (2 + setup.partitions), QUEUE)
    for name in ("head", "tail", "first", "second"):
        queues[name] = _NONE
    queues["appended"] = queues["ready"] = queues["timer"] = -NEVER
    world = World(
        queues,
        np.full((setup.agents, 2), -NEVER),
        np.full(setup.tables * setup.partitions, -NEVER),
        zipf(setup.tables, setup.table_skew),
        zipf(setup.partitions, setup.partition_skew),
        bins,
        fresh_bins,
    )
    in_flight = _serve(run, world)
    fresh = outcome(run[0]["fresh"], fresh_bins, 0)
    return outcome(run[0]["tally"], bins, int(in_flight), fresh.figures)


def _fill(run: Any, setup: Setup) -> None:
    """The setup in numbers."""
    pattern = list(PATTERNS).index(setup.pattern)
    folds = pattern in (APPENDS, WAL)
    values = common_values(setup) | {
        "pattern": pattern,
        "prepared": setup.prepared,
        "agents": setup.agents,
        "tables": setup.tables,
        "partitions": setup.partitions,
        "interval": setup.interval_s * 1000,
        "job": setup.job_s * 1000,
        "cpu": setup.server_cpu_ms,
        "group_cpu": setup.group_cpu_ms,
        "member_cpu": setup.member_cpu_ms,
        "deadline": setup.deadline_s * 1000,
        "conflicts": setup.conflict_probability,
        "group_max": setup.appends_max if folds else setup.group_max,
        "pipeline_max": setup.pipeline_max,
        "linger": setup.append_interval_s * 1000 if folds else 0.0,
        "spread": setup.append_spread_s * 1000 if folds and setup.append_interval_s else 0.0,
        "linger_max": setup.append_interval_max_s * 1000,
    }
    for name, value in values.items():
        run[name] = value


def _entry(program: int) -> Any:
    @kept
    def serve_all(runs: Any, world: World) -> int:
        return _event_loop(runs[0], world) if program >= 0 else -1

    return serve_all


_serve = _entry(PROGRAM)


@compiled
def _event_loop(run: Any, world: World) -> int:
    """Run from the first arrival to the end of the simulated time; returns the number in flight at the end."""
    queues = world.queues
    rows, heap = _empty_rows(1024, queues.shape[0])
    run.free = rows.shape[0]
    arrival = 0.0 if run.writers > 0 else draw_gap(run)
    now = 0.0
    begin = 0  # the number of writers that begin their next transaction at this moment
    while True:
        first = heap[1].time if heap[0].order > 0 else NEVER
        if begin == 0:
            now = min(arrival, first)
        if now > run.duration:
            return rows.shape[0] - run.free
        if begin > 0 or now == arrival:
            if run.free == 0:
                rows, heap = _doubled(rows, heap, queues.shape[0])
                run.free = rows.shape[0] // 2
            _arrive(run, world.table_shares, world.partition_shares, rows, heap, now)
            if begin > 0:
                begin -= 1
            elif run.writers == 0:
                arrival = now + draw_gap(run)
            elif run.tally.arrived >= run.writers:
                arrival = NEVER
            continue
        run.tally.events += 1
        item = heap[1].item
        pop(heap)
        event, subject = item % _EVENTS, item // _EVENTS
        before = run.ended
        if event == COMMITTED:
            _finish_group(run, queues, world.landed, world.bins, world.fresh_bins, rows, heap, subject, now)
        elif event == TIMER:
            queues[subject].timer = -NEVER
            _start(run, queues, world.bins, rows, heap, subject, now)
        else:
            _handle(run, world, queues, rows, heap, event, subject, now)
        if run.writers > 0:  # writers that have ended begin again
            begin = run.ended - before


@compiled
def _empty_rows(capacity: int, queues: int) -> Any:
    """Free rows for `capacity` writes. A write has one pending event at most, a queue two groups and a timer."""
    rows = np.zeros(capacity, WRITE)
    for slot in range(capacity):
        rows[slot].free = slot
    return rows, np.zeros(capacity + 3 * queues + 2, ENTRY)


@compiled
def _doubled(rows: Any, heap: Any, queues: int) -> Any:
    """The same rows with twice the capacity, when all are taken."""
    capacity = rows.shape[0]
    more_rows, more_heap = _empty_rows(2 * capacity, queues)
    for slot in range(capacity):
        more_rows[slot] = rows[slot]
        more_rows[slot].free = capacity + slot
    for place in range(heap.shape[0]):
        more_heap[place] = heap[place]
    return more_rows, more_heap


@compiled
def _due(run: Any, heap: Any, time: float, event: int, subject: int) -> None:
    run.order += 1
    push(heap, time, run.order, subject * _EVENTS + event)


@compiled
def _arrive(run: Any, table_shares: Any, partition_shares: Any, rows: Any, heap: Any, now: float) -> None:
    """A transaction takes a row and begins to work; under `intents` an overwrite first asks for its partition."""
    run.free -= 1
    slot = rows[run.free].free
    write = rows[slot]
    write.submitted = now
    write.kind = draw_kind(run)
    write.table = chosen(table_shares, run.arrivals)
    write.partition = chosen(partition_shares, run.arrivals)
    write.agent = min(int(uniform(run.arrivals) * run.agents), run.agents - 1)
    write.runtime = draw_runtime(run)
    write.next = _NONE
    run.tally.arrived += 1
    if _reserves(run, write):
        run.tally.catalog_commits += 1
        write.started = now
        _due(run, heap, now + duration_of(run.io, COMMIT), RESERVES, slot)
    elif _works_in_turn(run):
        _due(run, heap, now, WORKED, slot)
    else:
        _due(run, heap, now + write.runtime, WORKED, slot)


@compiled
def _reserves(run: Any, write: Any) -> bool:
    return run.pattern == INTENTS and write.kind == OVERWRITE


@compiled
def _works_in_turn(run: Any) -> bool:
    return run.conflicts > 0.0 and (run.pattern == LOCK or run.pattern == SLOTS)


@compiled
def _handle(run: Any, world: World, queues: Any, rows: Any, heap: Any, event: int, subject: int, now: float) -> None:
    """Handle a write's event."""
    write = rows[subject]
    if event == WORKED:
        write.started = now
        _hand_in(run, world.slots, rows, heap, subject, now)
    elif event == ADMITTED:  # the tower's processor does one thing at a time
        run.cpu_free = max(run.cpu_free, now) + run.cpu
        _due(run, heap, run.cpu_free, QUEUED, subject)
    elif event == QUEUED:
        queue = write.table
        if run.pattern == COLLECTOR:  # staged: its writer is done
            _count(run, run.tally, world.bins, rows, subject, now, True)
            run.ended += 1
            queue += run.tables
        _enqueue(queues, rows, queue, subject, now)
        _start(run, queues, world.bins, rows, heap, queue, now)
    elif event == RESERVES:
        queue = 2 * run.tables + write.table * run.partitions + write.partition
        if queues[queue].in_progress > 0:
            _enqueue(queues, rows, queue, subject, now)
        else:
            queues[queue].in_progress = 1
            _due(run, heap, now + write.runtime, WORKED, subject)
    else:
        _acknowledge(run, world.bins, world.fresh_bins, rows, subject, now)


@compiled
def _hand_in(run: Any, slots: Any, rows: Any, heap: Any, slot: int, now: float) -> None:
    """The work is done: the client writes its files, and hands the write on to what coordinates it."""
    io, tally, write = run.io, run.tally, rows[slot]
    if run.pattern == LOCK:
        _due(run, heap, now, QUEUED, slot)
        return
    if run.pattern == SLOTS:
        last = slots[write.agent]
        if last[0] < now:  # that commit has begun and takes no more writes
            at = max(now, last[1])
            turn = math.floor(at / run.interval)
            turn += (write.agent - turn) % run.agents
            last[0] = max(at, turn * run.interval)
            last[1] = last[0] + (write.runtime if run.conflicts > 0.0 else 0.0) + _client_commit(io)
            tally.swaps += 1
            tally.reads += 2
            tally.writes += 2
            tally.catalog_reads += 1
            tally.catalog_commits += 1
        _due(run, heap, last[1], VISIBLE, slot)
        return
    if run.pattern == COLLECTOR:
        tally.writes += 1
        _due(run, heap, now + duration_of(io, PUT_DATA), QUEUED, slot)
        return
    if run.pattern == APPENDS or run.pattern == WAL:
        tally.writes += 1
        tally.reads += 1
        _due(run, heap, now + duration_of(io, PUT_DATA) + duration_of(io, GET), ADMITTED, slot)
        return
    # A commit of the client's own: it has loaded the table and written its files, which the tower reads.
    if not run.prepared:
        now += duration_of(io, CATALOG_READ) + duration_of(io, PUT_MANIFEST) + duration_of(io, PUT_LIST)
        tally.catalog_reads += 1
        tally.writes += 2
    tally.reads += 2
    _due(run, heap, now + duration_of(io, GET) + duration_of(io, GET), ADMITTED, slot)


@compiled
def _client_commit(io: Any) -> float:
    """How long an undisturbed client takes from its look at the catalog to its swap."""
    read = duration_of(io, CATALOG_READ) + duration_of(io, GET) + duration_of(io, GET)
    return read + duration_of(io, PUT_LIST) + duration_of(io, PUT_METADATA) + duration_of(io, COMMIT)


@compiled
def _enqueue(queues: Any, rows: Any, queue: int, slot: int, now: float) -> None:
    rows[slot].entered = now
    rows[slot].next = _NONE
    if queues[queue].length == 0:
        queues[queue].head = slot
    else:
        rows[queues[queue].tail].next = slot
    queues[queue].tail = slot
    queues[queue].length += 1


@compiled
def _dequeue(queues: Any, rows: Any, queue: int) -> int:
    slot = queues[queue].head
    queues[queue].head = rows[slot].next
    queues[queue].length -= 1
    return slot


@compiled
def _start(run: Any, queues: Any, bins: Any, rows: Any, heap: Any, queue: int, now: float) -> None:
    """Begin the groups of a queue that may begin now: none, one, or two."""
    job = queue >= run.tables
    alone = job or run.pattern == LOCK
    while queues[queue].length > 0 and queues[queue].in_progress < (1 if alone else run.pipeline_max):
        begins = (
            math.ceil(now / run.interval) * run.interval
            if job
            else max(queues[queue].appended + queues[queue].linger, queues[queue].ready)
        )
        if begins > now:
            if queues[queue].timer < now:
                queues[queue].timer = begins
                _due(run, heap, begins, TIMER, queue)
            return
        first, size = _NONE, 0
        last = _NONE
        most = queues[queue].length if job else 1 if run.pattern == LOCK else run.group_max
        while queues[queue].length > 0 and size < most:
            slot = _dequeue(queues, rows, queue)
            if not job and now - rows[slot].entered > run.deadline:
                _refuse(run, bins, queues, rows, heap, slot, now)
                continue
            rows[slot].next = _NONE
            if size == 0:
                first = slot
            else:
                rows[last].next = slot
            last = slot
            size += 1
        if size > 0:
            begins = now + rows[first].runtime if not job and _works_in_turn(run) else now
            commits_at = _commit_time(run, queues, queue, size, begins)
            queues[queue].commits_at = commits_at
            queues[queue].appended = now
            queues[queue].linger = max(run.linger, min(run.spread * max(size, queues[queue].appends), run.linger_max))
            queues[queue].appends = size
            if queues[queue].in_progress == 0:
                queues[queue].first = first
            else:
                queues[queue].second = first
            queues[queue].in_progress += 1
            _due(run, heap, commits_at, COMMITTED, queue)


@compiled
def _commit_time(run: Any, queues: Any, queue: int, size: int, now: float) -> float:
    """When the commit of a group that begins now takes effect."""
    io, tally = run.io, run.tally
    tally.swaps += 1
    tally.catalog_commits += 1
    if queue >= run.tables:
        tally.reads += size + 2
        tally.writes += 4
        tally.catalog_reads += 1
        files = shared_by(_JOB_READERS, size, io) + duration_of(io, PUT_DATA) + duration_of(io, PUT_MANIFEST)
        return now + run.job + files + _client_commit(io)
    if run.pattern == LOCK:
        tally.reads += 2
        tally.writes += 2
        tally.catalog_reads += 1
        tally.catalog_commits += 2
        return now + duration_of(io, COMMIT) + _client_commit(io)
    if queues[queue].in_progress == 0 and not queues[queue].loaded:
        now += duration_of(io, CATALOG_READ)
        tally.catalog_reads += 1
    queues[queue].loaded = 1
    cpu = run.group_cpu + size * run.member_cpu
    if cpu > 0.0:
        run.cpu_free = max(run.cpu_free, now) + cpu
        now = run.cpu_free
    queues[queue].ready = now
    written = duration_of(io, PUT_METADATA)
    if run.pattern == APPENDS or run.pattern == WAL:
        written = max(written, duration_of(io, PUT_MANIFEST), duration_of(io, PUT_LIST), duration_of(io, PUT_LIST))
        tally.writes += 4
    else:
        for _ in range(size):
            written = max(written, duration_of(io, PUT_LIST))
        tally.writes += 1 + size
    swap = now + written
    if queues[queue].in_progress > 0:
        swap = max(swap, queues[queue].commits_at)
    return swap + duration_of(io, COMMIT)


@compiled
def _finish_group(
    run: Any, queues: Any, landed: Any, bins: Any, fresh_bins: Any, rows: Any, heap: Any, queue: int, now: float
) -> None:
    """The first group of a queue is committed: its members are acknowledged, or enter the next queue."""
    slot = queues[queue].first
    queues[queue].first = queues[queue].second
    queues[queue].in_progress -= 1
    while slot != _NONE:
        following = rows[slot].next
        if queue >= run.tables:
            _count(run, run.fresh, fresh_bins, rows, slot, now, True)
            free_row(run, rows, slot)
        elif run.pattern == WAL:
            _count(run, run.tally, bins, rows, slot, now, True)
            run.ended += 1
            _enqueue(queues, rows, run.tables + rows[slot].table, slot, now)
        elif run.pattern == GROUP and _is_stale(run, landed, rows[slot], now):
            _refuse(run, bins, queues, rows, heap, slot, now)
        else:
            if _reserves(run, rows[slot]):
                _release(run, queues, bins, rows, heap, slot, now)
            _acknowledge(run, bins, fresh_bins, rows, slot, now)
        slot = following
    if queues[queue].in_progress == 0 and queues[queue].length == 0:
        queues[queue].loaded = 0
    _start(run, queues, bins, rows, heap, queue, now)
    if run.pattern == WAL and queue < run.tables:
        _start(run, queues, bins, rows, heap, run.tables + queue, now)


@compiled
def _is_stale(run: Any, landed: Any, write: Any, now: float) -> bool:
    """Has an overwrite of the same rows landed since this one began to work? If not, this one lands now."""
    if run.conflicts == 0.0 or write.kind != OVERWRITE:
        return False
    place = write.table * run.partitions + write.partition
    if landed[place] > write.submitted and uniform(run.io.state) < run.conflicts:
        return True
    landed[place] = now
    return False


@compiled
def _release(run: Any, queues: Any, bins: Any, rows: Any, heap: Any, slot: int, now: float) -> None:
    """An intent is released: the first writer in the queue that has not waited too long gets the partition."""
    queue = 2 * run.tables + rows[slot].table * run.partitions + rows[slot].partition
    queues[queue].in_progress = 0
    while queues[queue].length > 0 and queues[queue].in_progress == 0:
        waiting = _dequeue(queues, rows, queue)
        if now - rows[waiting].entered > run.deadline:
            _count(run, run.tally, bins, rows, waiting, now, False)
            free_row(run, rows, waiting)
            run.ended += 1
        else:
            queues[queue].in_progress = 1
            _due(run, heap, now + rows[waiting].runtime, WORKED, waiting)


@compiled
def _refuse(run: Any, bins: Any, queues: Any, rows: Any, heap: Any, slot: int, now: float) -> None:
    """Refuse a write that has waited in its queue beyond the deadline."""
    _count(run, run.tally, bins, rows, slot, now, False)
    if _reserves(run, rows[slot]):
        _release(run, queues, bins, rows, heap, slot, now)
    free_row(run, rows, slot)
    run.ended += 1


@compiled
def _acknowledge(run: Any, bins: Any, fresh_bins: Any, rows: Any, slot: int, now: float) -> None:
    """A write is committed, and visible at once."""
    _count(run, run.tally, bins, rows, slot, now, True)
    _count(run, run.fresh, fresh_bins, rows, slot, now, True)
    free_row(run, rows, slot)
    run.ended += 1


@compiled
def _count(run: Any, tally: Any, bins: Any, rows: Any, slot: int, now: float, committed: bool) -> None:
    count_transaction(run, tally, bins, rows[slot], now, committed, 0)
