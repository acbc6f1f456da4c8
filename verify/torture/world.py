"""What towers and outside writers share: the upstream catalog and the storage, in memory, with faults by chance.

Each actor has a `Door` of its own, which implements both ports. A tower that crashes closes its door for good: what it
had under way lands, lands half, lands late or never, as chance will have it, and nothing more comes through.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from icetower.contracts.document import load
from icetower.contracts.model import Contract
from icetower.errors import AlreadyExists, NoSuchTable, NotFound, UpstreamFailed
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal, administrator
from icetower.storage.port import ANY_FILE, Bound
from icetower.upstream.port import Swap, SwapLost, SwapUnknown
from verify.torture.clock import Chance
from verify.torture.judge import Judge

EPOCH_MS = 1_800_000_000_000
LATE_S = 2.5
"""A swap that nobody has heard of lands within this time, or is undone: less than any queue's deadline. Until then it
holds the rows of its tables, as a transaction of PostgreSQL does whose COMMIT is on its way."""


@dataclass(frozen=True, slots=True)
class Faults:
    """How likely what is, for each operation; drawn once a seed, so that some runs are calm and some are not."""

    slow: float = 0.0
    read_fails: float = 0.0
    write_fails: float = 0.0
    write_answer_lost: float = 0.0
    write_torn: float = 0.0
    delete_fails: float = 0.0
    location_fails: float = 0.0
    swap_fails: float = 0.0
    swap_unknown_landed: float = 0.0
    swap_unknown_not_landed: float = 0.0
    swap_unknown_late: float = 0.0
    swap_odd: float = 0.0
    crash: float = 0.0

    @staticmethod
    def of(chance: Chance) -> Faults:
        """A mixture for one seed: each kind is absent, rare or frequent."""
        storm = (0.0, 0.4, 1.0, 2.0)[int(chance.draw("storm") * 4)]
        most = {"slow": 0.06, "crash": 0.02, "swap_odd": 0.01}
        levels = (0.0, 0.2, 1.0)
        return Faults(
            **{
                field.name: storm * levels[int(chance.draw("level", field.name) * 3)] * most.get(field.name, 0.05)
                for field in fields(Faults)
            }
        )


class World:
    """The one catalog and the one storage, and time."""

    def __init__(self, chance: Chance, faults: Faults, judge: Judge) -> None:
        self.chance = chance
        self.faults = faults
        self.judge = judge
        self.files = judge.files
        self.heads = judge.heads
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []
        self.calm = False
        self.contracts: dict[str, Contract] = {}
        self._held: dict[Identifier, asyncio.Future[None]] = {}
        self._loop = asyncio.get_running_loop()

    def principal(self, name: str) -> Principal:
        """Whoever has no contract is an administrator."""
        contract = self.contracts.get(name)
        return administrator(name) if contract is None else Principal(name, contract, 1)

    def now_s(self) -> float:
        return self._loop.time()

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000)

    def tell(self, actor: str, what: str) -> None:
        """One line of the trace."""
        self.trace.append(f"{self._loop.time():.6f} {actor} {what}")

    async def free(self, identifiers: Iterable[Identifier]) -> None:
        """Return once no swap that is on its way holds the row of one of these."""
        while held := [self._held[identifier] for identifier in identifiers if identifier in self._held]:
            await asyncio.shield(held[0])

    def hold(self, swaps: Sequence[Swap], within_s: float, land: Callable[[], None]) -> bool:
        """Keep the rows of some swaps, then land them. False where a head is not the expected one: it is undone."""
        if any(swap.identifier in self._held or self.heads.get(swap.identifier) != swap.expected for swap in swaps):
            return False
        free = self._loop.create_future()
        self._held |= {swap.identifier: free for swap in swaps}

        def arrive() -> None:
            for swap in swaps:
                del self._held[swap.identifier]
            land()
            free.set_result(None)

        self._loop.call_later(within_s, arrive, context=contextvars.Context())
        return True

    def land(self, actor: str, swaps: Sequence[Swap], began_s: float) -> None:
        """The compare-and-swap itself: all or nothing, judged before anybody can see it. Raises `SwapLost`."""
        for swap in swaps:
            found = self.heads.get(swap.identifier)
            if found != swap.expected:
                raise SwapLost(swap.identifier, found)
        self.judge.before_swap(actor, swaps, began_s)
        for swap in swaps:
            self.heads[swap.identifier] = swap.new
            self.tell(actor, f"landed {swap.identifier.name} {short(swap.new)}")
        self.counts["swaps landed"] += 1


def contract_of(name: str, own: int) -> Contract:
    """A contract that owns one partition of every table."""
    return load(
        f"version: 1\nagent: {name}\ntables:\n- table: db.*\n  operations: [append, overwrite, delete, replace]\n"
        f"  partitions: [{{p: [{own}]}}]\n  write_location: table\n",
        source="simulation",
    )


def short(path: str) -> str:
    """The end of a path: enough to tell it in a trace."""
    return path.rsplit("/", 1)[-1]


class Door:
    """An actor's way to the world: `Upstream` and `Storage` in one.

    Attributes:
        closed: nothing comes through any more.
        is_tower: whether a tower goes through it, and not an outside writer.
    """

    atomic_multi_table = True

    def __init__(self, world: World, actor: str, crash: Callable[[], None] | None = None) -> None:
        self.world = self._world = world
        self._actor = actor
        self._crash = crash
        self.is_tower = crash is not None
        self._seen: Counter[tuple[str, str]] = Counter()
        self.closed = False

    # -- chance ---------------------------------------------------------------------------------------------------

    def _dice(self, operation: str, what: str) -> Callable[[str], float]:
        self._seen[operation, what] += 1
        name = (self._actor, operation, what, self._seen[operation, what])
        return lambda of: self._world.chance.draw(*name, of)

    def _happens(self, kind: str, dice: Callable[[str], float]) -> bool:
        if self._world.calm or dice(kind) >= getattr(self._world.faults, kind):
            return False
        self._world.counts[kind.replace("_", " ")] += 1
        self._world.tell(self._actor, f"fault {kind}")
        return True

    async def _lag(self, dice: Callable[[str], float], of: str) -> None:
        self._check_open()
        seconds = 0.002 + 0.05 * dice(of) ** 3
        if not self._world.calm and dice(f"{of} slow") < self._world.faults.slow:
            self._world.counts["slow"] += 1
            seconds = 0.5 + 8 * dice(f"{of} seconds") ** 2
        await asyncio.sleep(seconds)
        self._check_open()

    def _check_open(self) -> None:
        if self.closed:
            raise asyncio.CancelledError

    def _may_crash(self, dice: Callable[[str], float], when: str) -> None:
        faults = self._world.faults
        if self._crash is not None and not self._world.calm and dice(f"crash {when}") < faults.crash:
            self._world.tell(self._actor, f"crashes {when}")
            self._crash()
            raise asyncio.CancelledError

    # -- storage --------------------------------------------------------------------------------------------------

    async def read(self, path: str, bound: Bound = ANY_FILE) -> bytes:
        dice = self._dice("read", path)
        await self._lag(dice, "before")
        if self._happens("read_fails", dice):
            raise UpstreamFailed(f"the storage failed at {path}")
        if path not in self._world.files:
            raise NotFound(f"{path} is not there")
        return self._world.files[path]

    async def write(self, path: str, data: bytes) -> None:
        dice = self._dice("write", path)
        self._world.tell(self._actor, f"write {short(path)} {len(data)}")
        self._may_crash(dice, f"before write {short(path)}")
        try:
            await self._lag(dice, "before")
        except asyncio.CancelledError:  # by a crash, with the bytes on the way
            self._world.files.setdefault(path, data[: int(len(data) * min(1.0, 3 * dice("cut")))])
            raise
        if path in self._world.files:
            if self._world.files[path] == data:
                return
            raise AlreadyExists(f"{path} exists already")
        if self._happens("write_fails", dice):
            raise UpstreamFailed(f"the storage answered 503 for {path}")
        if self._happens("write_torn", dice):
            self._world.files[path] = data[: len(data) // 2]
            raise UpstreamFailed(f"the connection broke in the middle of {path}")
        self._world.files[path] = data
        self._may_crash(dice, f"after write {short(path)}")
        if self._happens("write_answer_lost", dice):
            raise UpstreamFailed(f"the answer for {path} was lost")
        await self._lag(dice, "after")

    async def delete(self, path: str) -> None:
        dice = self._dice("delete", path)
        self._world.tell(self._actor, f"delete {short(path)}")
        self._may_crash(dice, f"before delete {short(path)}")
        await self._lag(dice, "before")
        if self._happens("delete_fails", dice):
            raise UpstreamFailed(f"{path} could not be deleted")
        self._world.judge.before_delete(self._actor, path)
        self._world.files.pop(path, None)
        self._may_crash(dice, f"after delete {short(path)}")

    async def delete_many(self, paths: Iterable[str], *, below: str | None = None) -> tuple[str, ...]:
        failed: list[str] = []
        for path in paths:
            try:
                await self.delete(path)
            except UpstreamFailed:
                failed.append(path)
        return tuple(failed)

    async def exists(self, path: str) -> bool:
        await self._lag(self._dice("exists", path), "before")
        return path in self._world.files

    async def size(self, path: str) -> int:
        return len(await self.read(path))

    # -- upstream -------------------------------------------------------------------------------------------------

    async def location(self, identifier: Identifier) -> str:
        dice = self._dice("location", identifier.name)
        await self._lag(dice, "before")
        if self._happens("location_fails", dice):
            raise UpstreamFailed("the catalog could not be asked")
        if identifier not in self._world.heads:
            raise NoSuchTable(f"there is no table {identifier}")
        return self._world.heads[identifier]

    async def settled_location(self, identifier: Identifier) -> str:
        await self.location(identifier)
        await self._world.free([identifier])
        self._check_open()
        return self._world.heads[identifier]

    async def swap(self, swaps: Sequence[Swap]) -> None:
        world, began_s = self._world, self._world.now_s()
        name = " ".join(short(swap.new) for swap in swaps)
        dice = self._dice("swap", name)
        world.tell(self._actor, f"swap {name}")
        self._may_crash(dice, f"before swap {name}")
        world.judge.swap_begins(self._actor, swaps, began_s)
        try:
            await self._lag(dice, "before")
        except asyncio.CancelledError:
            if dice("on its way") < 0.5:
                self._land_late(swaps, began_s, dice)
            raise
        if self._happens("swap_fails", dice):
            raise UpstreamFailed("the catalog refused the swap before anything was changed")
        if self._happens("swap_unknown_not_landed", dice):
            raise SwapUnknown
        if self._happens("swap_unknown_late", dice):
            self._land_late(swaps, began_s, dice)
            raise SwapUnknown
        await world.free([swap.identifier for swap in swaps])
        self._check_open()
        world.land(self._actor, swaps, began_s)
        self._may_crash(dice, f"after swap {name}")
        if self._happens("swap_odd", dice):
            raise RuntimeError("the driver has a fault of its own")
        if self._happens("swap_unknown_landed", dice):
            raise SwapUnknown
        await self._lag(dice, "after")

    def _land_late(self, swaps: Sequence[Swap], began_s: float, dice: Callable[[str], float]) -> None:
        def land() -> None:
            self._world.land(f"{self._actor} (late)", swaps, began_s)

        if not self._world.hold(swaps, LATE_S * dice("late") ** 2, land):
            self._world.tell(self._actor, "late swap lost")

    async def namespace_exists(self, namespace: Sequence[str]) -> bool:
        del namespace
        return True

    async def namespace_properties(self, namespace: Sequence[str]) -> Mapping[str, Any]:
        del namespace
        return {}

    async def close(self) -> None:
        pass
