"""The simulator's groups are those of the commit engine: both run the same arrivals, and group and land them alike.

The engine is the real one, on a loop whose time is virtual. Every write to storage, every look at the catalog and every
swap takes a constant time, in both.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from icetower.admission.admitted import AdmittedAppend
from icetower.admission.identity import Identity
from icetower.commit.engine import Committed, Engine, Limits
from icetower.commit.head import Heads
from icetower.files.changes import Manifests
from icetower.iceberg.change import Touched
from icetower.protocol.names import Identifier
from icetower.upstream.port import Swap, SwapLost
from icetower_simulator import served
from icetower_simulator.heap import ENTRY, pop
from icetower_simulator.latencies import Latency
from icetower_simulator.randoms import generator
from icetower_simulator.setup import Setup
from icetower_simulator.sums import durations
from icetower_simulator.tallies import new_tally
from tests.commit.engine_world import TABLE, World
from verify.kit.clock import Clock
from verify.kit.storage import MemoryStorage
from verify.torture.clock import VirtualLoop

LOOK_MS, WRITE_MS, SWAP_MS = 7.0, 60.0, 45.0
Landed = list[tuple[float, int]]
"""When each group was answered, in milliseconds, and how many were in it."""


class SlowStorage(MemoryStorage):
    async def write(self, path: str, data: bytes) -> None:
        await asyncio.sleep(WRITE_MS / 1000)
        await super().write(path, data)


class SlowUpstream:
    """A catalog of one table. What the engine asks of a catalog besides, nobody asks here."""

    atomic_multi_table = True

    def __init__(self, location: str) -> None:
        self._location = location

    async def location(self, identifier: Identifier) -> str:
        await asyncio.sleep(LOOK_MS / 1000)
        return self._location

    settled_location = location

    async def swap(self, swaps: Sequence[Swap]) -> None:
        await asyncio.sleep(SWAP_MS / 1000)
        (swap,) = swaps
        if swap.expected != self._location:
            raise SwapLost(swap.identifier, self._location)
        self._location = swap.new


class VirtualClock(Clock):
    """The loop's time."""

    def now_ms(self) -> int:
        return self.time_ms + int(self.monotonic_s() * 1000)

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def prepared(count: int, *, appends: bool) -> tuple[World, str, list[Any]]:
    """A table, and so many blind commits to it, or appends by the fast path."""
    world = World()
    head = await world.create(2)
    writer = await world.writer("ann").refresh()
    if not appends:
        requests = [await writer.append(f"f{i}", summary={"icetower.blind": "true"}) for i in range(count)]
        return world, head.location, [await request.admitted() for request in requests]
    uuid = head.metadata["table-uuid"]
    files = [Touched(writer.data_file(f"f{i}"), 0, None) for i in range(count)]
    named = [
        AdmittedAppend(Identity.of_append("ann", "main", None, None), TABLE, (file,), "c", 1, f"{i}", uuid)
        for i, file in enumerate(files)
    ]
    return world, head.location, named


def by_the_engine(arrivals_ms: Sequence[float], limits: Limits, *, appends: bool) -> Landed:
    world, location, members = asyncio.run(prepared(len(arrivals_ms), appends=appends))
    storage = SlowStorage()
    storage.files = world.storage.files
    answers: list[tuple[float, Committed]] = []

    async def story() -> None:
        upstream: Any = SlowUpstream(location)
        heads, manifests, clock = Heads(upstream, storage), Manifests(storage), VirtualClock()
        engine = Engine(upstream, storage, heads, manifests, clock, world.gate, limits)  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()

        async def send(member: Any, at_ms: float) -> None:
            await asyncio.sleep(at_ms / 1000)
            answer = await engine.submit(member)
            answers.append((loop.time() * 1000, answer))

        await asyncio.gather(*(send(member, at) for member, at in zip(members, arrivals_ms, strict=True)))

    loop = VirtualLoop()
    try:
        loop.run_until_complete(story())
    finally:
        loop.close()
    assert all(answer.outcome in {"direct", "rebased", "appended"} for _, answer in answers)
    return _groups(at for at, _ in answers)


def _groups(times: Iterable[float]) -> Landed:
    found: Landed = []
    for at in sorted(times):
        if found and at - found[-1][0] < 0.001:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((at, 1))
    return found


def by_the_simulator(arrivals_ms: Sequence[float], limits: Limits, *, appends: bool) -> Landed:
    """The compiled functions themselves; only what arrives is given."""
    setup = Setup(
        model="client",
        pattern="appends" if appends else "group",
        duration_s=3600.0,
        window_s=(0.0, 3600.0),
        group_max=limits.group_max,
        appends_max=limits.appends_max,
        pipeline_max=limits.pipeline_max,
        append_interval_s=limits.append_interval_s,
        append_spread_s=limits.append_spread_s,
        append_interval_max_s=limits.append_interval_max_s,
        deadline_s=limits.deadline_s,
    )
    runs = np.zeros(1, served.RUN)
    run = runs[0]
    served._fill(run, setup)
    look, write, swap = (Latency(ms) for ms in (LOOK_MS, WRITE_MS, SWAP_MS))
    run["io"] = durations([write, write, write, write, write, look, swap], generator(1), with_sums=False)
    tally, bins = new_tally()
    run["tally"] = run["fresh"] = tally
    queues = np.zeros(3, served.QUEUE)
    for name in ("head", "tail", "first", "second"):
        queues[name] = -1
    queues["appended"] = queues["ready"] = queues["timer"] = -1e300
    rows, heap = np.zeros(len(arrivals_ms), served.WRITE), np.zeros(2 * len(arrivals_ms) + 10, ENTRY)
    shares = np.ones(1)
    world = served.World(queues, np.zeros((1, 2)), np.zeros(1), shares, shares, bins, bins.copy())
    for slot, at in enumerate(arrivals_ms):
        served._due(run, heap, at, served.QUEUED, slot)
    landed: Landed = []
    while heap[0]["order"] > 0:
        now, item, before = float(heap[1]["time"]), int(heap[1]["item"]), int(run["ended"])
        pop(heap)
        event, subject = item % served._EVENTS, item // served._EVENTS
        if event == served.COMMITTED:
            served._finish_group(run, queues, world.landed, bins, world.fresh_bins, rows, heap, subject, now)
            landed.append((now, int(run["ended"]) - before))
        elif event == served.TIMER:
            queues[subject]["timer"] = -1e300
            served._start(run, queues, bins, rows, heap, subject, now)
        else:
            served._handle(run, world, queues, rows, heap, event, subject, now)
    assert run["tally"]["counts"][1, :, 1].sum() == 0  # nobody was refused
    return landed


def arrivals(seed: int, count: int, gap_ms: float, *, bursts: bool) -> list[float]:
    chance = random.Random(seed)
    times: list[float] = []
    now = 0.0
    for _ in range(count):
        now += chance.expovariate(1 / gap_ms) * (20 if bursts and chance.random() < 0.1 else 1)
        times.append(now)
    return times


@pytest.mark.parametrize("appends", [False, True], ids=["commits", "appends"])
@pytest.mark.parametrize("bursts", [False, True], ids=["steady", "bursts"])
@pytest.mark.parametrize("gap_ms", [1.0, 10.0, 40.0, 150.0, 400.0])
@pytest.mark.parametrize("limits", [Limits(), Limits(group_max=3, appends_max=3)], ids=["usual", "small"])
def test_both_form_the_same_groups_and_land_them_at_the_same_times(
    gap_ms: float, limits: Limits, *, bursts: bool, appends: bool
) -> None:
    times = arrivals(int(gap_ms), 60, gap_ms, bursts=bursts)
    engine = by_the_engine(times, limits, appends=appends)
    simulator = by_the_simulator(times, limits, appends=appends)
    assert [size for _, size in simulator] == [size for _, size in engine]
    assert [at for at, _ in simulator] == pytest.approx([at for at, _ in engine], abs=0.01)


def test_the_limits_are_those_of_the_engine() -> None:
    setup, limits = Setup(), Limits()
    intervals = ("append_interval_s", "append_spread_s", "append_interval_max_s")
    for name in ("group_max", "appends_max", "pipeline_max", *intervals, "deadline_s"):
        assert getattr(setup, name) == getattr(limits, name), name
