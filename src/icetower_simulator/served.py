"""Writers that something coordinates: the tower's groups, a lock, a mediator, slots, a collector, intents. Compiled.

What is common to them is a line: what waits for a table, and who takes it in turn. The lines differ in how much is
taken at once, when, and what that takes:

group, appends   the tower's policy: all that waits up to a limit, two groups on their way at once, swaps in order; a
                 group of nothing but fast-path appends begins so long after the last one (held to `commit/` by a test)
lock             one at a time, from the first read to the swap
wal, collector   a second line, behind the log or the staged deltas: a job takes all there is, every so often
intents          a line for each partition, held from before the work until the commit has landed

With slots nobody waits for anybody, but for the clock: an agent makes one commit at a time, of all that waits by then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from icetower_simulator.compiled import PROGRAM, compiled, kept
from icetower_simulator.heap import ENTRY, pop, push
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
    lasting,
)
from icetower_simulator.optimistic import zipf
from icetower_simulator.randoms import STATE, chosen, exponential, generator, normal, uniform
from icetower_simulator.setup import FAST_APPEND, MERGE_APPEND, OVERWRITE, PATTERNS, Setup, timing
from icetower_simulator.sums import IO, durations, shared_by
from icetower_simulator.tallies import TALLY, Outcome, count_end, new_tally, outcome

PUT_DATA = APPEND_LIST
"""Nothing is appended to here: the row of the latencies is that of writing a data file."""
_, LOCK, GROUP, APPENDS, WAL, SLOTS, COLLECTOR, INTENTS = range(len(PATTERNS))
WORKED, ADMITTED, QUEUED, LANDED, TIMER, RESERVES, VISIBLE = range(7)
"""What happens next: to a transaction, or, for LANDED and TIMER, at a line."""
_EVENTS = 8
_NEVER = 1e300
_NOBODY = -1
_JOB_READERS = 8

RUN = np.dtype(
    [
        ("pattern", np.int64),
        ("exponential", np.int64),
        ("gap_mu", np.float64),
        ("gap_sigma", np.float64),
        ("runtime_mu", np.float64),
        ("runtime_sigma", np.float64),
        ("runtime_floor", np.float64),
        ("fast_share", np.float64),
        ("append_share", np.float64),
        ("prepared", np.int64),
        ("writers", np.int64),
        ("agents", np.int64),
        ("tables", np.int64),
        ("partitions", np.int64),
        ("interval", np.float64),
        ("job", np.float64),
        ("cpu", np.float64),
        ("group_cpu", np.float64),
        ("member_cpu", np.float64),
        ("deadline", np.float64),
        ("group_max", np.int64),
        ("pipeline_max", np.int64),
        ("linger", np.float64),
        ("duration", np.float64),
        ("window_start", np.float64),
        ("window_end", np.float64),
        ("cpu_free", np.float64),
        ("free", np.int64),
        ("order", np.int64),
        ("ended", np.int64),
        ("arrivals", STATE),
        ("io", IO),
        ("tally", TALLY),
        ("fresh", TALLY),
    ]
)
"""A run: its setup in numbers (times in milliseconds), when the tower's processor is free, how many rows are, the
number of the last event, how many writers have ended, generators, and tallies: by when commits were acknowledged, and
by when they were visible."""
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
        ("line", np.int64),
        ("next", np.int64),
        ("free", np.int64),
    ]
)
LINE = np.dtype(
    [
        ("head", np.int64),
        ("tail", np.int64),
        ("length", np.int64),
        ("on_way", np.int64),
        ("first", np.int64),
        ("second", np.int64),
        ("landing", np.float64),
        ("appended", np.float64),
        ("ready", np.float64),
        ("timer", np.float64),
        ("loaded", np.int64),
    ]
)
"""What waits, and up to two groups on their way, each a list of writes by their `next`. `ready`: when the last group
had been planned, so that the next may be."""


class World(NamedTuple):
    """Lines: one a table, after these one a table for jobs, after these one a partition for intents (`on_way`: whether
    it is held). `slots`: when each agent's last commit begins, and lands."""

    lines: Any
    slots: Any
    table_shares: Any
    partition_shares: Any
    bins: Any
    fresh_bins: Any


def serve(setup: Setup, seed: int, providers: Mapping[str, Provider] = PROVIDERS) -> Outcome:
    """One run of a pattern other than `optimistic`. Raises `ConfigurationError`."""
    run = np.zeros(1, RUN)
    _enter(run[0], setup)
    times = timing(setup, providers)
    in_order = list(times.in_order)
    in_order[PUT_DATA] = times.put_data
    run[0]["io"] = durations(in_order, generator(seed, 1), with_sums=True)
    run[0]["arrivals"] = generator(seed, 0)
    tally, bins = new_tally()
    run[0]["tally"] = run[0]["fresh"] = tally
    fresh_bins = bins.copy()
    lines = np.zeros(setup.tables * (2 + setup.partitions), LINE)
    for name in ("head", "tail", "first", "second"):
        lines[name] = _NOBODY
    lines["appended"] = lines["ready"] = lines["timer"] = -_NEVER
    world = World(
        lines,
        np.full((setup.agents, 2), -_NEVER),
        zipf(setup.tables, setup.table_skew),
        zipf(setup.partitions, setup.partition_skew),
        bins,
        fresh_bins,
    )
    in_flight = _serve(run, world)
    fresh = outcome(run[0]["fresh"], fresh_bins, 0)
    return outcome(run[0]["tally"], bins, int(in_flight), fresh.figures)


def _enter(run: Any, setup: Setup) -> None:
    """The setup in numbers."""
    way = setup.way
    sigma = setup.runtime_sigma
    pattern = list(PATTERNS).index(setup.pattern)
    folds = pattern in (APPENDS, WAL)
    start, end = setup.window
    entered = {
        "pattern": pattern,
        "exponential": way.arrivals == "exponential",
        "gap_mu": math.log(setup.inter_arrival_ms),
        "gap_sigma": setup.arrival_sigma,
        "runtime_mu": math.log(setup.runtime_s * 1000) - (sigma**2 / 2 if way.mean_runtime else 0.0),
        "runtime_sigma": sigma,
        "runtime_floor": setup.runtime_floor_s * 1000,
        "fast_share": setup.fast_append_ratio,
        "append_share": setup.fast_append_ratio + setup.merge_append_ratio,
        "prepared": setup.prepared,
        "writers": setup.writers,
        "agents": setup.agents,
        "tables": setup.tables,
        "partitions": setup.partitions,
        "interval": setup.interval_s * 1000,
        "job": setup.job_s * 1000,
        "cpu": setup.server_cpu_ms,
        "group_cpu": setup.group_cpu_ms,
        "member_cpu": setup.member_cpu_ms,
        "deadline": setup.deadline_s * 1000,
        "group_max": setup.appends_max if folds else setup.group_max,
        "pipeline_max": setup.pipeline_max,
        "linger": setup.append_interval_s * 1000 if folds else 0.0,
        "duration": setup.duration_s * 1000,
        "window_start": start * 1000,
        "window_end": end * 1000,
    }
    for name, value in entered.items():
        run[name] = value


def _entry(program: int) -> Any:
    @kept
    def serve_all(runs: Any, world: World) -> int:
        return _course(runs[0], world) if program >= 0 else -1

    return serve_all


_serve = _entry(PROGRAM)


@compiled
def _course(run: Any, world: World) -> int:
    """From the first arrival to the end of the time; returns how many are in flight then."""
    lines = world.lines
    rows, heap = _rows(1024, lines.shape[0])
    run.free = rows.shape[0]
    arrival = 0.0 if run.writers > 0 else _gap(run)
    now = 0.0
    begin = 0  # so many writers begin anew at this moment
    while True:
        first = heap[1].time if heap[0].order > 0 else _NEVER
        if begin == 0:
            now = min(arrival, first)
        if now > run.duration:
            return rows.shape[0] - run.free
        if begin > 0 or now == arrival:
            if run.free == 0:
                rows, heap = _larger(rows, heap, lines.shape[0])
                run.free = rows.shape[0] // 2
            _arrive(run, world.table_shares, world.partition_shares, rows, heap, now)
            if begin > 0:
                begin -= 1
            elif run.writers == 0:
                arrival = now + _gap(run)
            elif run.tally.arrived >= run.writers:
                arrival = _NEVER
            continue
        run.tally.events += 1
        item = heap[1].item
        pop(heap)
        what, which = item % _EVENTS, item // _EVENTS
        before = run.ended
        if what == LANDED:
            _land(run, lines, world.bins, world.fresh_bins, rows, heap, which, now)
        elif what == TIMER:
            lines[which].timer = -_NEVER
            _start(run, lines, world.bins, rows, heap, which, now)
        else:
            _happen(run, world, lines, rows, heap, what, which, now)
        if run.writers > 0:  # whoever has ended begins again
            begin = run.ended - before


@compiled
def _rows(capacity: int, lines: int) -> Any:
    """Room for so many writes. Each has one event to come at most, a line two groups and a timer."""
    rows = np.zeros(capacity, WRITE)
    for slot in range(capacity):
        rows[slot].free = slot
    return rows, np.zeros(capacity + 3 * lines + 2, ENTRY)


@compiled
def _larger(rows: Any, heap: Any, lines: int) -> Any:
    """The same with twice the room; there was none left."""
    capacity = rows.shape[0]
    more_rows, more_heap = _rows(2 * capacity, lines)
    for slot in range(capacity):
        more_rows[slot] = rows[slot]
        more_rows[slot].free = capacity + slot
    for place in range(heap.shape[0]):
        more_heap[place] = heap[place]
    return more_rows, more_heap


@compiled
def _gap(run: Any) -> float:
    if run.exponential:
        return math.exp(run.gap_mu) * exponential(run.arrivals)
    return math.exp(run.gap_mu + run.gap_sigma * normal(run.arrivals))


@compiled
def _due(run: Any, heap: Any, time: float, what: int, which: int) -> None:
    run.order += 1
    push(heap, time, run.order, which * _EVENTS + what)


@compiled
def _arrive(run: Any, table_shares: Any, partition_shares: Any, rows: Any, heap: Any, now: float) -> None:
    """A transaction takes a row, and goes to work, with an intent if those are asked for."""
    run.free -= 1
    slot = rows[run.free].free
    write = rows[slot]
    write.submitted = now
    share = uniform(run.arrivals)
    write.kind = FAST_APPEND if share < run.fast_share else MERGE_APPEND if share < run.append_share else OVERWRITE
    write.table = chosen(table_shares, run.arrivals)
    write.partition = chosen(partition_shares, run.arrivals)
    write.agent = min(int(uniform(run.arrivals) * run.agents), run.agents - 1)
    write.runtime = max(math.exp(run.runtime_mu + run.runtime_sigma * normal(run.arrivals)), run.runtime_floor)
    write.next = _NOBODY
    run.tally.arrived += 1
    if run.pattern == INTENTS:
        run.tally.catalog_commits += 1
        write.started = now
        _due(run, heap, now + lasting(run.io, COMMIT), RESERVES, slot)
    else:
        _due(run, heap, now + write.runtime, WORKED, slot)


@compiled
def _happen(run: Any, world: World, lines: Any, rows: Any, heap: Any, what: int, which: int, now: float) -> None:
    """Something happens to a write."""
    write = rows[which]
    if what == WORKED:
        write.started = now
        _hand_in(run, world.slots, rows, heap, which, now)
    elif what == ADMITTED:  # the tower's processor does one thing at a time
        run.cpu_free = max(run.cpu_free, now) + run.cpu
        _due(run, heap, run.cpu_free, QUEUED, which)
    elif what == QUEUED:
        line = write.table
        if run.pattern == COLLECTOR:  # staged: whoever wrote it is done
            _count(run, run.tally, world.bins, rows, which, now, True)
            run.ended += 1
            line += run.tables
        _enqueue(lines, rows, line, which, now)
        _start(run, lines, world.bins, rows, heap, line, now)
    elif what == RESERVES:
        line = 2 * run.tables + write.table * run.partitions + write.partition
        if lines[line].on_way > 0:
            _enqueue(lines, rows, line, which, now)
        else:
            lines[line].on_way = 1
            _due(run, heap, now + write.runtime, WORKED, which)
    else:
        _acknowledge(run, world.bins, world.fresh_bins, rows, which, now)


@compiled
def _hand_in(run: Any, slots: Any, rows: Any, heap: Any, slot: int, now: float) -> None:
    """The work is done: what is written before anybody else has a say, and where it goes then."""
    io, tally, write = run.io, run.tally, rows[slot]
    if run.pattern == LOCK:
        _due(run, heap, now, QUEUED, slot)
        return
    if run.pattern == SLOTS:
        last = slots[write.agent]
        if last[0] < now:  # it has begun, so that it takes nothing more
            at = max(now, last[1])
            turn = math.floor(at / run.interval)
            turn += (write.agent - turn) % run.agents
            last[0] = max(at, turn * run.interval)
            last[1] = last[0] + _client_commit(io)
            tally.swaps += 1
            tally.reads += 2
            tally.writes += 2
            tally.catalog_reads += 1
            tally.catalog_commits += 1
        _due(run, heap, last[1], VISIBLE, slot)
        return
    if run.pattern == COLLECTOR:
        tally.writes += 1
        _due(run, heap, now + lasting(io, PUT_DATA), QUEUED, slot)
        return
    if run.pattern == APPENDS or run.pattern == WAL:
        tally.writes += 1
        tally.reads += 1
        _due(run, heap, now + lasting(io, PUT_DATA) + lasting(io, GET), ADMITTED, slot)
        return
    # A commit of the client's own: it has loaded the table and written its files, which the tower reads.
    if not run.prepared:
        now += lasting(io, CATALOG_READ) + lasting(io, PUT_MANIFEST) + lasting(io, PUT_LIST)
        tally.catalog_reads += 1
        tally.writes += 2
    tally.reads += 2
    _due(run, heap, now + lasting(io, GET) + lasting(io, GET), ADMITTED, slot)


@compiled
def _client_commit(io: Any) -> float:
    """What a client takes from its look at the catalog to its swap, if nobody is in its way."""
    read = lasting(io, CATALOG_READ) + lasting(io, GET) + lasting(io, GET)
    return read + lasting(io, PUT_LIST) + lasting(io, PUT_METADATA) + lasting(io, COMMIT)


@compiled
def _enqueue(lines: Any, rows: Any, line: int, slot: int, now: float) -> None:
    rows[slot].entered = now
    rows[slot].next = _NOBODY
    if lines[line].length == 0:
        lines[line].head = slot
    else:
        rows[lines[line].tail].next = slot
    lines[line].tail = slot
    lines[line].length += 1


@compiled
def _dequeue(lines: Any, rows: Any, line: int) -> int:
    slot = lines[line].head
    lines[line].head = rows[slot].next
    lines[line].length -= 1
    return slot


@compiled
def _start(run: Any, lines: Any, bins: Any, rows: Any, heap: Any, line: int, now: float) -> None:
    """Begin whatever may begin at a line: nothing, a group, or two."""
    job = line >= run.tables
    alone = job or run.pattern == LOCK
    while lines[line].length > 0 and lines[line].on_way < (1 if alone else run.pipeline_max):
        begins = (
            math.ceil(now / run.interval) * run.interval
            if job
            else max(lines[line].appended + run.linger, lines[line].ready)
        )
        if begins > now:
            if lines[line].timer < now:
                lines[line].timer = begins
                _due(run, heap, begins, TIMER, line)
            return
        first, size = _NOBODY, 0
        last = _NOBODY
        most = lines[line].length if job else 1 if run.pattern == LOCK else run.group_max
        while lines[line].length > 0 and size < most:
            slot = _dequeue(lines, rows, line)
            if not job and now - rows[slot].entered > run.deadline:
                _refuse(run, bins, lines, rows, heap, slot, now)
                continue
            rows[slot].next = _NOBODY
            if size == 0:
                first = slot
            else:
                rows[last].next = slot
            last = slot
            size += 1
        if size > 0:
            landing = _landing(run, lines, line, size, now)
            lines[line].landing = landing
            lines[line].appended = now
            if lines[line].on_way == 0:
                lines[line].first = first
            else:
                lines[line].second = first
            lines[line].on_way += 1
            _due(run, heap, landing, LANDED, line)


@compiled
def _landing(run: Any, lines: Any, line: int, size: int, now: float) -> float:
    """When a group that begins now will have landed."""
    io, tally = run.io, run.tally
    tally.swaps += 1
    tally.catalog_commits += 1
    if line >= run.tables:
        tally.reads += size + 2
        tally.writes += 4
        tally.catalog_reads += 1
        files = shared_by(_JOB_READERS, size, io) + lasting(io, PUT_DATA) + lasting(io, PUT_MANIFEST)
        return now + run.job + files + _client_commit(io)
    if run.pattern == LOCK:
        tally.reads += 2
        tally.writes += 2
        tally.catalog_reads += 1
        tally.catalog_commits += 2
        return now + lasting(io, COMMIT) + _client_commit(io)
    if lines[line].on_way == 0 and not lines[line].loaded:
        now += lasting(io, CATALOG_READ)
        tally.catalog_reads += 1
    lines[line].loaded = 1
    cpu = run.group_cpu + size * run.member_cpu
    if cpu > 0.0:
        run.cpu_free = max(run.cpu_free, now) + cpu
        now = run.cpu_free
    lines[line].ready = now
    written = lasting(io, PUT_METADATA)
    if run.pattern == APPENDS or run.pattern == WAL:
        written = max(written, lasting(io, PUT_MANIFEST), lasting(io, PUT_LIST), lasting(io, PUT_LIST))
        tally.writes += 4
    else:
        for _ in range(size):
            written = max(written, lasting(io, PUT_LIST))
        tally.writes += 1 + size
    swap = now + written
    if lines[line].on_way > 0:
        swap = max(swap, lines[line].landing)
    return swap + lasting(io, COMMIT)


@compiled
def _land(run: Any, lines: Any, bins: Any, fresh_bins: Any, rows: Any, heap: Any, line: int, now: float) -> None:
    """The first group of a line has landed: its members are answered, and go on, if they have somewhere to go."""
    slot = lines[line].first
    lines[line].first = lines[line].second
    lines[line].on_way -= 1
    while slot != _NOBODY:
        following = rows[slot].next
        if line >= run.tables:
            _count(run, run.fresh, fresh_bins, rows, slot, now, True)
            _free(run, rows, slot)
        elif run.pattern == WAL:
            _count(run, run.tally, bins, rows, slot, now, True)
            run.ended += 1
            _enqueue(lines, rows, run.tables + rows[slot].table, slot, now)
        else:
            if run.pattern == INTENTS:
                _release(run, lines, bins, rows, heap, slot, now)
            _acknowledge(run, bins, fresh_bins, rows, slot, now)
        slot = following
    if lines[line].on_way == 0 and lines[line].length == 0:
        lines[line].loaded = 0
    _start(run, lines, bins, rows, heap, line, now)
    if run.pattern == WAL and line < run.tables:
        _start(run, lines, bins, rows, heap, run.tables + line, now)


@compiled
def _release(run: Any, lines: Any, bins: Any, rows: Any, heap: Any, slot: int, now: float) -> None:
    """An intent is given up: whoever waits for the partition, and has not waited too long, gets it."""
    line = 2 * run.tables + rows[slot].table * run.partitions + rows[slot].partition
    lines[line].on_way = 0
    while lines[line].length > 0 and lines[line].on_way == 0:
        waiting = _dequeue(lines, rows, line)
        if now - rows[waiting].entered > run.deadline:
            _count(run, run.tally, bins, rows, waiting, now, False)
            _free(run, rows, waiting)
            run.ended += 1
        else:
            lines[line].on_way = 1
            _due(run, heap, now + rows[waiting].runtime, WORKED, waiting)


@compiled
def _refuse(run: Any, bins: Any, lines: Any, rows: Any, heap: Any, slot: int, now: float) -> None:
    """It has waited too long for its turn."""
    _count(run, run.tally, bins, rows, slot, now, False)
    if run.pattern == INTENTS:
        _release(run, lines, bins, rows, heap, slot, now)
    _free(run, rows, slot)
    run.ended += 1


@compiled
def _acknowledge(run: Any, bins: Any, fresh_bins: Any, rows: Any, slot: int, now: float) -> None:
    """It is committed, and visible at once."""
    _count(run, run.tally, bins, rows, slot, now, True)
    _count(run, run.fresh, fresh_bins, rows, slot, now, True)
    _free(run, rows, slot)
    run.ended += 1


@compiled
def _count(run: Any, tally: Any, bins: Any, rows: Any, slot: int, now: float, committed: bool) -> None:
    write = rows[slot]
    begun = run.window_start <= write.submitted < run.window_end
    whole = write.submitted > 0.1 * run.duration and now < 0.9 * run.duration
    count_end(tally, bins, write.kind, committed, begun, whole, 0, now - write.started, write.submitted)


@compiled
def _free(run: Any, rows: Any, slot: int) -> None:
    rows[run.free].free = slot
    run.free += 1
