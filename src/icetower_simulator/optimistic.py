"""Plain optimistic concurrency: writers prepare, swap, and retry after a lost swap. Compiled, driven by events.

A transaction in flight is a row with one pending event. Only steps that depend on other writers are events: the moment
when a catalog read takes effect, and a swap. The reads and writes in between are drawn together. Memory grows with the
number of transactions in flight at once, not with the simulated time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from icetower_simulator.compiled import PROGRAM, compiled, kept
from icetower_simulator.heap import ENTRY, pop, push, put_off
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
from icetower_simulator.setup import MERGE_APPEND, OVERWRITE, Setup, timing
from icetower_simulator.sums import durations, shared_by
from icetower_simulator.tallies import Outcome, new_tally, outcome

# A transaction's next event.
STARTS, BEGINS, READS_HEAD, SWAPS_NOW, GIVES_UP, HOPS = range(6)

RUN = np.dtype(
    [
        *COMMON_FIELDS,
        ("effect", np.float64),
        ("refreshes_first", np.int64),
        ("metadata_files", np.int64),
        ("manifest_each", np.int64),
        ("keeps_without_overlap", np.int64),
        ("reads_what_it_lacks", np.int64),
        ("counts_catalog_versions", np.int64),
        ("lists_appended", np.int64),
        ("table_scope", np.int64),
        ("retries", np.int64),
        ("backoff", np.float64),
        ("backoff_max", np.float64),
        ("backoff_jitter", np.float64),
        ("timeout", np.float64),
        ("reads_at_once", np.int64),
        ("conflict_probability", np.float64),
        ("merge_manifests_max", np.int64),
        ("catalog", np.int64),
        ("cold", np.int64),
        ("cpu", np.float64),
        ("ended", np.float64),
    ]
)
"""A run: the common fields, the rest of its setup in numbers (times in milliseconds), the catalog's version, and when a
writer ended last."""

TRANSACTION = np.dtype(
    [
        ("submitted", np.float64),
        ("started", np.float64),
        ("rest", np.float64),
        ("hop", np.float64),
        ("catalog_seen", np.int64),
        ("table_seen", np.int64),
        ("kind", np.int32),
        ("table", np.int32),
        ("attempt", np.int32),
        ("next", np.int32),
        ("prepared", np.int32),
        ("refreshing", np.int32),
        ("served", np.int32),
        ("hops", np.int32),
        ("free", np.int64),
    ]
)
"""`rest`: the part of a round trip after it has taken effect. `prepared`: its files are written, and still valid.
`served`: the processor has done the work that precedes the look at the head. `hops`: the number of calls still to be
made, each as long as a `hop`. `free`: not the row's own value, but an element of the stack of free rows."""


_HOPS = 4
"""Where writers share a processor, an attempt needs it before its look at the head, and after each of its calls."""


class World(NamedTuple):
    """The state of a run besides its record.

    Attributes:
        versions: a row for each table: the table's own version, then those of its partitions.
        table_shares, partition_shares: cumulated shares by which tables and partitions are chosen.
        bins: the bins of latencies.
    """

    versions: Any
    table_shares: Any
    partition_shares: Any
    bins: Any


def simulate(setup: Setup, seed: int, providers: Mapping[str, Provider] = PROVIDERS) -> Outcome:
    """One run. The same setup and seed give the same result. Raises `ConfigurationError`."""
    run = np.zeros(1, RUN)
    _fill(run[0], setup)
    times = timing(setup, providers)
    io = durations(times.in_order, generator(seed, 1), with_sums=setup.fast_append_ratio < 1)
    run[0]["io"] = io
    run[0]["arrivals"] = generator(seed, 0)
    tally, bins = new_tally()
    run[0]["tally"] = tally
    world = World(
        np.zeros((setup.tables, 1 + setup.partitions), np.int64),
        zipf(setup.tables, setup.table_skew),
        zipf(setup.partitions, setup.partition_skew),
        bins,
    )
    in_flight = _run(run, world, setup.partitions_per_commit)
    return outcome(run[0]["tally"], bins, int(in_flight))


def _fill(run: Any, setup: Setup) -> None:
    """The setup in numbers."""
    model = setup.effective_model
    values = common_values(setup) | {
        "effect": model.effect,
        "refreshes_first": model.refreshes_first,
        "metadata_files": model.metadata_files and not setup.metadata_inlined,
        "manifest_each": model.manifest_each,
        "keeps_without_overlap": model.keeps_without_overlap,
        "reads_what_it_lacks": model.reads_what_it_lacks,
        "counts_catalog_versions": model.counts_catalog_versions,
        "lists_appended": setup.lists_appended,
        "table_scope": model.swap_scope == "table",
        "retries": model.retries,
        "backoff": model.backoff_ms,
        "backoff_max": model.backoff_max_ms,
        "backoff_jitter": model.backoff_jitter,
        "timeout": model.commit_timeout_s * 1000,
        "reads_at_once": model.reads_at_once,
        "conflict_probability": setup.conflict_probability,
        "merge_manifests_max": setup.merge_manifests_max,
        "cold": setup.cold,
        "cpu": setup.client_cpu_ms / (1 + _HOPS),
    }
    for name, value in values.items():
        run[name] = value


def _entry(program: int) -> Any:
    """The compiled run, bound to the sources that it was compiled from."""

    @kept
    def run(runs: Any, world: World, touches: int) -> int:
        return _event_loop(runs[0], world, touches) if program >= 0 else -1

    return run


_run = _entry(PROGRAM)


@compiled
def _event_loop(run: Any, world: World, touches: int) -> int:
    """Run from the first arrival to the end of the simulated time; returns the number in flight at the end.

    `touched`: the partitions of each transaction, and after them the versions of these that it has seen. Transactions
    that still work wait in a heap of their own: they are many, and rarely looked at.
    """
    versions, bins = world.versions, world.bins
    rows, touched, active, working = _empty_rows(1024, touches)
    run.free = rows.shape[0]
    arrival = 0.0 if run.writers > 0 else draw_gap(run)
    while True:
        first = active[1].time if active[0].order > 0 else NEVER
        ready = working[1].time if working[0].order > 0 else NEVER
        now = min(arrival, first, ready)
        if now > run.duration:
            return rows.shape[0] - run.free
        run.tally.events += 1
        run.order += 1
        if now == first:
            slot = active[1].item
            due = _handle(run, versions, bins, rows, touched, slot, now)
            if due < NEVER and rows[slot].next != BEGINS:
                put_off(active, due, run.order)
            else:
                pop(active)
                if due < NEVER:
                    push(working, due, run.order, slot)
                elif run.writers > 0:  # the same writer begins anew
                    slot = _arrive(run, world, rows, touched, run.ended)
                    push(active, _ask_catalog(run, rows, slot, run.ended, STARTS), run.order, slot)
        elif now == ready:
            slot = working[1].item
            pop(working)
            push(active, _begin_commit(run, rows, slot, now), run.order, slot)
        else:
            if run.free == 0:
                rows, touched, active, working = _doubled(rows, touched, active, working)
                run.free = rows.shape[0] // 2
            slot = _arrive(run, world, rows, touched, now)
            push(active, _ask_catalog(run, rows, slot, now, STARTS), run.order, slot)
            if run.writers == 0:
                arrival = now + draw_gap(run)
            elif run.tally.arrived >= run.writers:
                arrival = NEVER


@compiled
def _empty_rows(capacity: int, touches: int) -> Any:
    """Free rows for `capacity` transactions."""
    rows = np.zeros(capacity, TRANSACTION)
    for slot in range(capacity):
        rows[slot].free = slot
    touched = np.zeros((capacity, 2 * touches), np.int64)
    return rows, touched, np.zeros(capacity + 1, ENTRY), np.zeros(capacity + 1, ENTRY)


@compiled
def _doubled(rows: Any, touched: Any, active: Any, working: Any) -> Any:
    """The same rows with twice the capacity, when all are taken."""
    capacity = rows.shape[0]
    more_rows, more_touched, more_active, more_working = _empty_rows(2 * capacity, touched.shape[1] // 2)
    for slot in range(capacity):
        more_rows[slot] = rows[slot]
        more_rows[slot].free = capacity + slot
        for place in range(touched.shape[1]):
            more_touched[slot, place] = touched[slot, place]
    for place in range(capacity + 1):  # no slices: they take longer to compile than all of a run
        more_active[place] = active[place]
        more_working[place] = working[place]
    return more_rows, more_touched, more_active, more_working


@compiled
def _arrive(run: Any, world: World, rows: Any, touched: Any, now: float) -> int:
    """A transaction takes a row; its kind, table and partitions are drawn."""
    run.free -= 1
    slot = rows[run.free].free
    row = rows[slot]
    row.submitted = now
    row.attempt = 0
    row.served = 0
    row.prepared = 0
    row.refreshing = run.refreshes_first
    row.kind = draw_kind(run)
    row.table = chosen(world.table_shares, run.arrivals)
    for place in range(touched.shape[1] // 2):
        again = True
        while again:
            touched[slot, place] = chosen(world.partition_shares, run.arrivals)
            again = False
            for earlier in range(place):
                again = again or touched[slot, earlier] == touched[slot, place]
    # Its runtime is drawn now, so that the workload is the same whatever the outcome of its commits.
    row.started = draw_runtime(run)
    run.tally.arrived += 1
    return slot


@compiled
def _ask_catalog(run: Any, rows: Any, slot: int, now: float, then: int) -> float:
    """Read the catalog's state; returns when that takes effect."""
    duration_ms = duration_of(run.io, CATALOG_READ)
    rows[slot].next = then
    rows[slot].rest = (1.0 - run.effect) * duration_ms
    run.tally.catalog_reads += 1
    return now + run.effect * duration_ms


@compiled
def _handle(run: Any, versions: Any, bins: Any, rows: Any, touched: Any, slot: int, now: float) -> float:
    """Handle a transaction's event. Returns the time of its next one, or `NEVER`."""
    row = rows[slot]
    if row.next == SWAPS_NOW:
        return _swap(run, versions, bins, rows, touched, slot, now)
    if row.next == READS_HEAD:
        return _refresh(run, versions, rows, touched, slot, now)
    if row.next == HOPS:
        return _hop(run, rows, slot, now)
    if row.next == STARTS:
        _note_versions(run, versions, rows, touched, slot)
        row.next = BEGINS
        row.started += now + row.rest
        return row.started
    _end(run, bins, rows, slot, now, False)
    return NEVER


@compiled
def _note_versions(run: Any, versions: Any, rows: Any, touched: Any, slot: int) -> None:
    """Note the current versions as the ones that the transaction works from."""
    row = rows[slot]
    row.catalog_seen = run.catalog
    row.table_seen = versions[row.table, 0]
    touches = touched.shape[1] // 2
    for place in range(touches):
        touched[slot, touches + place] = versions[row.table, 1 + touched[slot, place]]


@compiled
def _begin_commit(run: Any, rows: Any, slot: int, now: float) -> float:
    """The transaction's work is done: it begins to commit."""
    if run.refreshes_first:
        return _ask_catalog(run, rows, slot, now, READS_HEAD)
    now = _use_cpu(run, now)
    return _prepare(run, rows, slot, now, now)


@compiled
def _use_cpu(run: Any, now: float) -> float:
    """The writers' shared processor does one part of an attempt after the other; returns when this part is done."""
    if run.cpu == 0.0:
        return now
    run.cpu_free = max(run.cpu_free, now) + run.cpu
    return run.cpu_free


@compiled
def _prepare(run: Any, rows: Any, slot: int, since: float, now: float) -> float:
    """Write the files of the commit, unless they are valid still, and send the swap; returns when that takes effect.

    Where a processor is shared, the time since `since` is divided into hops, and each hop needs the processor.
    """
    row = rows[slot]
    if not row.prepared:
        if run.metadata_files:
            if not run.refreshes_first:  # else it was read by the refresh
                now += duration_of(run.io, GET)
                run.tally.reads += 1
            now += duration_of(run.io, PUT_METADATA)
            run.tally.writes += 1
        if run.manifest_each:
            now += duration_of(run.io, PUT_MANIFEST)
            run.tally.writes += 1
        if run.lists_appended:
            now += duration_of(run.io, APPEND_LIST)
        else:
            now += duration_of(run.io, GET) + duration_of(run.io, PUT_LIST)
            run.tally.reads += 1
        run.tally.writes += 1
        row.prepared = 1
    if run.cpu > 0.0:
        row.next = HOPS
        row.hops = _HOPS
        row.hop = (now - since) / _HOPS
        return since + row.hop
    return _send_swap(run, rows, slot, now)


@compiled
def _hop(run: Any, rows: Any, slot: int, now: float) -> float:
    """A call was answered: the processor works on the answer, then the next call is made."""
    row = rows[slot]
    row.hops -= 1
    now = _use_cpu(run, now)
    return now + row.hop if row.hops > 0 else _send_swap(run, rows, slot, now)


@compiled
def _send_swap(run: Any, rows: Any, slot: int, now: float) -> float:
    """Send the swap; returns when it takes effect."""
    row = rows[slot]
    duration_ms = duration_of(run.io, COMMIT)
    row.next = SWAPS_NOW
    row.rest = (1.0 - run.effect) * duration_ms
    run.tally.catalog_commits += 1
    return now + run.effect * duration_ms


@compiled
def _swap(run: Any, versions: Any, bins: Any, rows: Any, touched: Any, slot: int, now: float) -> float:
    """The swap takes effect, or is lost."""
    row = rows[slot]
    answered = now + row.rest
    if row.table_seen == versions[row.table, 0] if run.table_scope else row.catalog_seen == run.catalog:
        run.catalog += 1
        run.tally.swaps += 1
        versions[row.table, 0] += 1
        for place in range(touched.shape[1] // 2):
            versions[row.table, 1 + touched[slot, place]] += 1
        _end(run, bins, rows, slot, answered, True)
        return NEVER
    if run.refreshes_first and (row.attempt >= run.retries or answered - row.started > run.timeout):
        row.next = GIVES_UP
        return answered
    if run.backoff > 0.0:
        pause = min(run.backoff * 2.0**row.attempt, run.backoff_max)
        answered += pause * (1.0 + run.backoff_jitter * uniform(run.io.state))
    return _ask_catalog(run, rows, slot, answered, READS_HEAD)


@compiled
def _refresh(run: Any, versions: Any, rows: Any, touched: Any, slot: int, now: float) -> float:
    """The transaction sees the head. The versions that it missed decide what it reads, and whether it continues."""
    row = rows[slot]
    missed = versions[row.table, 0] - row.table_seen
    touches = touched.shape[1] // 2
    changed = 0
    for place in range(touches):
        changed += versions[row.table, 1 + touched[slot, place]] != touched[slot, touches + place]
    if run.cpu > 0.0 and not row.served:
        row.served = 1
        return _use_cpu(run, now)
    row.served = 0
    since = now
    now += row.rest
    lacks = missed > 0 or not run.reads_what_it_lacks or (run.cold and row.refreshing)
    if run.metadata_files and lacks:
        now += duration_of(run.io, GET)
        run.tally.reads += 1
    gives_up = not row.refreshing and row.attempt >= run.retries
    if changed > 0 and row.kind == OVERWRITE:
        history = run.catalog - row.catalog_seen if run.counts_catalog_versions else (missed - 1) * changed
        now += shared_by(run.reads_at_once, history, run.io)
        run.tally.reads += history
        gives_up = gives_up or (run.conflict_probability > 0.0 and uniform(run.io.state) < run.conflict_probability)
    elif changed > 0 and row.kind == MERGE_APPEND:
        manifests = min(missed, run.merge_manifests_max)
        now += shared_by(run.reads_at_once, manifests, run.io) + duration_of(run.io, PUT_MANIFEST)
        run.tally.reads += manifests
        run.tally.writes += 1
    if gives_up:
        row.next = GIVES_UP
        return now
    if row.refreshing:
        row.refreshing = 0
    else:
        row.attempt += 1
        holds = missed == 0 if run.reads_what_it_lacks else run.keeps_without_overlap and changed == 0
        row.prepared = 1 if holds else 0
    _note_versions(run, versions, rows, touched, slot)
    return _prepare(run, rows, slot, since, now)


@compiled
def _end(run: Any, bins: Any, rows: Any, slot: int, now: float, committed: bool) -> None:
    """Count a transaction that has ended, and free its row."""
    count_transaction(run, run.tally, bins, rows[slot], now, committed, rows[slot].attempt)
    free_row(run, rows, slot)
    run.ended = now
