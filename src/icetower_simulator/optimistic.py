"""Plain optimistic concurrency: writers that prepare, swap, and try again where they lost. Compiled, driven by events.

A transaction in flight is a row with one event to come. Only what depends on what others do is an event: the moment
when a catalog read takes effect, and a swap. The reads and writes in between are drawn together. Memory grows with what
is in flight at once, and not with the simulated time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from icetower_simulator.compiled import PROGRAM, compiled, kept
from icetower_simulator.heap import ENTRY, pop, push, put_off
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
from icetower_simulator.randoms import STATE, chosen, exponential, generator, normal, uniform
from icetower_simulator.setup import FAST_APPEND, MERGE_APPEND, OVERWRITE, Setup, timing
from icetower_simulator.sums import IO, durations, shared_by
from icetower_simulator.tallies import TALLY, Outcome, count_end, new_tally, outcome

# What happens next to a transaction.
STARTS, BEGINS, READS_HEAD, SWAPS_NOW, GIVES_UP, HOPS = range(6)
_NEVER = 1e300

RUN = np.dtype(
    [
        ("effect", np.float64),
        ("refreshes_first", np.int64),
        ("metadata_files", np.int64),
        ("manifest_each", np.int64),
        ("keeps_without_overlap", np.int64),
        ("reads_what_it_lacks", np.int64),
        ("counts_catalog_versions", np.int64),
        ("lists_appended", np.int64),
        ("exponential", np.int64),
        ("table_scope", np.int64),
        ("retries", np.int64),
        ("backoff", np.float64),
        ("backoff_max", np.float64),
        ("backoff_jitter", np.float64),
        ("timeout", np.float64),
        ("reads_at_once", np.int64),
        ("gap_mu", np.float64),
        ("gap_sigma", np.float64),
        ("runtime_mu", np.float64),
        ("runtime_sigma", np.float64),
        ("runtime_floor", np.float64),
        ("fast_share", np.float64),
        ("append_share", np.float64),
        ("conflict_probability", np.float64),
        ("merge_manifests_max", np.int64),
        ("duration", np.float64),
        ("window_start", np.float64),
        ("window_end", np.float64),
        ("catalog", np.int64),
        ("free", np.int64),
        ("order", np.int64),
        ("writers", np.int64),
        ("cold", np.int64),
        ("cpu", np.float64),
        ("cpu_free", np.float64),
        ("ended", np.float64),
        ("arrivals", STATE),
        ("io", IO),
        ("tally", TALLY),
    ]
)
"""A run: its setup in numbers (times in milliseconds), the catalog's version, how many rows are free, the number of the
last event, when the writers' processor is free, when a writer ended last, its generators, and its tally."""

FLIGHT = np.dtype(
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
"""`rest`: of a round trip, after it has taken effect. `prepared`: its files are written, and still hold. `served`: the
processor has done what comes before the look. `hops`: so many calls are still to be made, each as long as a `hop`.
`free`: not its own, but the stack of free rows."""


_HOPS = 4
"""Where writers share a processor, an attempt needs it before its look at the head, and after each of its calls."""


class World(NamedTuple):
    """Versions: a row for each table, the table's own first, then those of its partitions. Cumulated shares by which
    tables and partitions are chosen, and the bins of latencies."""

    versions: Any
    table_shares: Any
    partition_shares: Any
    bins: Any


def simulate(setup: Setup, seed: int, providers: Mapping[str, Provider] = PROVIDERS) -> Outcome:
    """One run. The same setup and seed give the same result. Raises `ConfigurationError`."""
    run = np.zeros(1, RUN)
    _enter(run[0], setup)
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


def _enter(run: Any, setup: Setup) -> None:
    """The setup in numbers."""
    way = setup.way
    sigma = setup.runtime_sigma
    start, end = setup.window
    entered = {
        "effect": way.effect,
        "refreshes_first": way.refreshes_first,
        "metadata_files": way.metadata_files and not setup.metadata_inlined,
        "manifest_each": way.manifest_each,
        "keeps_without_overlap": way.keeps_without_overlap,
        "reads_what_it_lacks": way.reads_what_it_lacks,
        "counts_catalog_versions": way.counts_catalog_versions,
        "lists_appended": setup.lists_appended,
        "exponential": way.arrivals == "exponential",
        "table_scope": way.swap_scope == "table",
        "retries": way.retries,
        "backoff": way.backoff_ms,
        "backoff_max": way.backoff_max_ms,
        "backoff_jitter": way.backoff_jitter,
        "timeout": way.commit_timeout_s * 1000,
        "reads_at_once": way.reads_at_once,
        "gap_mu": math.log(setup.inter_arrival_ms),
        "gap_sigma": setup.arrival_sigma,
        "runtime_mu": math.log(setup.runtime_s * 1000) - (sigma**2 / 2 if way.mean_runtime else 0.0),
        "runtime_sigma": sigma,
        "runtime_floor": setup.runtime_floor_s * 1000,
        "fast_share": setup.fast_append_ratio,
        "append_share": setup.fast_append_ratio + setup.merge_append_ratio,
        "conflict_probability": setup.conflict_probability,
        "merge_manifests_max": setup.merge_manifests_max,
        "duration": setup.duration_s * 1000,
        "window_start": start * 1000,
        "window_end": end * 1000,
        "writers": setup.writers,
        "cold": setup.cold,
        "cpu": setup.client_cpu_ms / (1 + _HOPS),
    }
    for name, value in entered.items():
        run[name] = value


def zipf(count: int, skew: float) -> Any:
    """Cumulated shares of `count` places by Zipf's law."""
    weights = np.arange(1, count + 1, dtype=np.float64) ** -skew
    cumulated = np.cumsum(weights / weights.sum())
    cumulated[-1] = 1.0
    return cumulated


def _entry(program: int) -> Any:
    """The compiled run, bound to the sources that it was compiled from."""

    @kept
    def run(runs: Any, world: World, touches: int) -> int:
        return _course(runs[0], world, touches) if program >= 0 else -1

    return run


_run = _entry(PROGRAM)


@compiled
def _course(run: Any, world: World, touches: int) -> int:
    """From the first arrival to the end of the time; returns how many are in flight then.

    `touched`: the partitions of each flight, and after them the versions of these that it has seen. Flights that are
    still at work wait in a heap of their own: they are many, and seldom looked at.
    """
    versions, bins = world.versions, world.bins
    rows, touched, active, working = _flights(1024, touches)
    run.free = rows.shape[0]
    arrival = 0.0 if run.writers > 0 else _gap(run)
    while True:
        first = active[1].time if active[0].order > 0 else _NEVER
        ready = working[1].time if working[0].order > 0 else _NEVER
        now = min(arrival, first, ready)
        if now > run.duration:
            return rows.shape[0] - run.free
        run.tally.events += 1
        run.order += 1
        if now == first:
            slot = active[1].item
            due = _happen(run, versions, bins, rows, touched, slot, now)
            if due < _NEVER and rows[slot].next != BEGINS:
                put_off(active, due, run.order)
            else:
                pop(active)
                if due < _NEVER:
                    push(working, due, run.order, slot)
                elif run.writers > 0:  # the same writer begins anew
                    slot = _arrive(run, world, rows, touched, run.ended)
                    push(active, _ask_catalog(run, rows, slot, run.ended, STARTS), run.order, slot)
        elif now == ready:
            slot = working[1].item
            pop(working)
            push(active, _begin(run, rows, slot, now), run.order, slot)
        else:
            if run.free == 0:
                rows, touched, active, working = _larger(rows, touched, active, working)
                run.free = rows.shape[0] // 2
            slot = _arrive(run, world, rows, touched, now)
            push(active, _ask_catalog(run, rows, slot, now, STARTS), run.order, slot)
            if run.writers == 0:
                arrival = now + _gap(run)
            elif run.tally.arrived >= run.writers:
                arrival = _NEVER


@compiled
def _flights(capacity: int, touches: int) -> Any:
    """Room for so many flights, all of it free."""
    rows = np.zeros(capacity, FLIGHT)
    for slot in range(capacity):
        rows[slot].free = slot
    touched = np.zeros((capacity, 2 * touches), np.int64)
    return rows, touched, np.zeros(capacity + 1, ENTRY), np.zeros(capacity + 1, ENTRY)


@compiled
def _larger(rows: Any, touched: Any, active: Any, working: Any) -> Any:
    """The same with twice the room; there was none left."""
    capacity = rows.shape[0]
    more_rows, more_touched, more_active, more_working = _flights(2 * capacity, touched.shape[1] // 2)
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
def _gap(run: Any) -> float:
    if run.exponential:
        return math.exp(run.gap_mu) * exponential(run.arrivals)
    return math.exp(run.gap_mu + run.gap_sigma * normal(run.arrivals))


@compiled
def _arrive(run: Any, world: World, rows: Any, touched: Any, now: float) -> int:
    """A transaction takes a row and decides what it is about."""
    run.free -= 1
    slot = rows[run.free].free
    flight = rows[slot]
    flight.submitted = now
    flight.attempt = 0
    flight.served = 0
    flight.prepared = 0
    flight.refreshing = run.refreshes_first
    share = uniform(run.arrivals)
    flight.kind = FAST_APPEND if share < run.fast_share else MERGE_APPEND if share < run.append_share else OVERWRITE
    flight.table = chosen(world.table_shares, run.arrivals)
    for place in range(touched.shape[1] // 2):
        again = True
        while again:
            touched[slot, place] = chosen(world.partition_shares, run.arrivals)
            again = False
            for earlier in range(place):
                again = again or touched[slot, earlier] == touched[slot, place]
    # How long it will work is drawn now, so that a workload is the same whatever becomes of it.
    flight.started = max(math.exp(run.runtime_mu + run.runtime_sigma * normal(run.arrivals)), run.runtime_floor)
    run.tally.arrived += 1
    return slot


@compiled
def _ask_catalog(run: Any, rows: Any, slot: int, now: float, then: int) -> float:
    """Read the catalog's state; returns when that takes effect."""
    lasts = lasting(run.io, CATALOG_READ)
    rows[slot].next = then
    rows[slot].rest = (1.0 - run.effect) * lasts
    run.tally.catalog_reads += 1
    return now + run.effect * lasts


@compiled
def _happen(run: Any, versions: Any, bins: Any, rows: Any, touched: Any, slot: int, now: float) -> float:
    """Something happens to a flight. Returns when the next thing will, or `_NEVER`."""
    flight = rows[slot]
    if flight.next == SWAPS_NOW:
        return _swap(run, versions, bins, rows, touched, slot, now)
    if flight.next == READS_HEAD:
        return _refresh(run, versions, rows, touched, slot, now)
    if flight.next == HOPS:
        return _hop(run, rows, slot, now)
    if flight.next == STARTS:
        _see(run, versions, rows, touched, slot)
        flight.next = BEGINS
        flight.started += now + flight.rest
        return flight.started
    _end(run, bins, rows, slot, now, False)
    return _NEVER


@compiled
def _see(run: Any, versions: Any, rows: Any, touched: Any, slot: int) -> None:
    """Take the state as it is now for the flight's own."""
    flight = rows[slot]
    flight.catalog_seen = run.catalog
    flight.table_seen = versions[flight.table, 0]
    touches = touched.shape[1] // 2
    for place in range(touches):
        touched[slot, touches + place] = versions[flight.table, 1 + touched[slot, place]]


@compiled
def _begin(run: Any, rows: Any, slot: int, now: float) -> float:
    """Its work is done: it begins to commit."""
    if run.refreshes_first:
        return _ask_catalog(run, rows, slot, now, READS_HEAD)
    now = _computed(run, now)
    return _prepare(run, rows, slot, now, now)


@compiled
def _computed(run: Any, now: float) -> float:
    """A part of an attempt's work is done by the writers' processor, one after the other; returns when it is."""
    if run.cpu == 0.0:
        return now
    run.cpu_free = max(run.cpu_free, now) + run.cpu
    return run.cpu_free


@compiled
def _prepare(run: Any, rows: Any, slot: int, since: float, now: float) -> float:
    """Write what is to be committed, unless that is done, and go for the swap; returns when that takes effect.

    Where a processor is shared, the time from `since` on is spent in hops, and it is needed after each.
    """
    flight = rows[slot]
    if not flight.prepared:
        if run.metadata_files:
            if not run.refreshes_first:  # else it was read by the refresh
                now += lasting(run.io, GET)
                run.tally.reads += 1
            now += lasting(run.io, PUT_METADATA)
            run.tally.writes += 1
        if run.manifest_each:
            now += lasting(run.io, PUT_MANIFEST)
            run.tally.writes += 1
        if run.lists_appended:
            now += lasting(run.io, APPEND_LIST)
        else:
            now += lasting(run.io, GET) + lasting(run.io, PUT_LIST)
            run.tally.reads += 1
        run.tally.writes += 1
        flight.prepared = 1
    if run.cpu > 0.0:
        flight.next = HOPS
        flight.hops = _HOPS
        flight.hop = (now - since) / _HOPS
        return since + flight.hop
    return _go(run, rows, slot, now)


@compiled
def _hop(run: Any, rows: Any, slot: int, now: float) -> float:
    """A call has been answered: the processor works on it, and the next one is made."""
    flight = rows[slot]
    flight.hops -= 1
    now = _computed(run, now)
    return now + flight.hop if flight.hops > 0 else _go(run, rows, slot, now)


@compiled
def _go(run: Any, rows: Any, slot: int, now: float) -> float:
    """Go for the swap; returns when it takes effect."""
    flight = rows[slot]
    lasts = lasting(run.io, COMMIT)
    flight.next = SWAPS_NOW
    flight.rest = (1.0 - run.effect) * lasts
    run.tally.catalog_commits += 1
    return now + run.effect * lasts


@compiled
def _swap(run: Any, versions: Any, bins: Any, rows: Any, touched: Any, slot: int, now: float) -> float:
    """The swap takes effect, or is lost."""
    flight = rows[slot]
    heard = now + flight.rest
    if flight.table_seen == versions[flight.table, 0] if run.table_scope else flight.catalog_seen == run.catalog:
        run.catalog += 1
        run.tally.swaps += 1
        versions[flight.table, 0] += 1
        for place in range(touched.shape[1] // 2):
            versions[flight.table, 1 + touched[slot, place]] += 1
        _end(run, bins, rows, slot, heard, True)
        return _NEVER
    if run.refreshes_first and (flight.attempt >= run.retries or heard - flight.started > run.timeout):
        flight.next = GIVES_UP
        return heard
    if run.backoff > 0.0:
        pause = min(run.backoff * 2.0**flight.attempt, run.backoff_max)
        heard += pause * (1.0 + run.backoff_jitter * uniform(run.io.state))
    return _ask_catalog(run, rows, slot, heard, READS_HEAD)


@compiled
def _refresh(run: Any, versions: Any, rows: Any, touched: Any, slot: int, now: float) -> float:
    """It sees the head: what it missed decides what it has to read, and whether it may go on."""
    flight = rows[slot]
    missed = versions[flight.table, 0] - flight.table_seen
    touches = touched.shape[1] // 2
    changed = 0
    for place in range(touches):
        changed += versions[flight.table, 1 + touched[slot, place]] != touched[slot, touches + place]
    if run.cpu > 0.0 and not flight.served:
        flight.served = 1
        return _computed(run, now)
    flight.served = 0
    since = now
    now += flight.rest
    lacks = missed > 0 or not run.reads_what_it_lacks or (run.cold and flight.refreshing)
    if run.metadata_files and lacks:
        now += lasting(run.io, GET)
        run.tally.reads += 1
    gives_up = not flight.refreshing and flight.attempt >= run.retries
    if changed > 0 and flight.kind == OVERWRITE:
        history = run.catalog - flight.catalog_seen if run.counts_catalog_versions else (missed - 1) * changed
        now += shared_by(run.reads_at_once, history, run.io)
        run.tally.reads += history
        gives_up = gives_up or (run.conflict_probability > 0.0 and uniform(run.io.state) < run.conflict_probability)
    elif changed > 0 and flight.kind == MERGE_APPEND:
        manifests = min(missed, run.merge_manifests_max)
        now += shared_by(run.reads_at_once, manifests, run.io) + lasting(run.io, PUT_MANIFEST)
        run.tally.reads += manifests
        run.tally.writes += 1
    if gives_up:
        flight.next = GIVES_UP
        return now
    if flight.refreshing:
        flight.refreshing = 0
    else:
        flight.attempt += 1
        holds = missed == 0 if run.reads_what_it_lacks else run.keeps_without_overlap and changed == 0
        flight.prepared = 1 if holds else 0
    _see(run, versions, rows, touched, slot)
    return _prepare(run, rows, slot, since, now)


@compiled
def _end(run: Any, bins: Any, rows: Any, slot: int, now: float, committed: bool) -> None:
    """Count it, and free its row."""
    flight = rows[slot]
    begun = run.window_start <= flight.submitted < run.window_end
    whole = flight.submitted > 0.1 * run.duration and now < 0.9 * run.duration
    latency = now - flight.started
    count_end(run.tally, bins, flight.kind, committed, begun, whole, flight.attempt, latency, flight.submitted)
    rows[run.free].free = slot
    run.free += 1
    run.ended = now
