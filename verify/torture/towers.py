"""Towers of a simulation: the real engine over a door to the world. It may crash at any step, and starts again."""

from __future__ import annotations

import asyncio
import contextvars
import random
import traceback
import uuid
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from icetower.admission.gate import Files, Gate
from icetower.admission.quotas import RateLimits
from icetower.admission.shadow import ShadowRecorder
from icetower.ambient import uuid7_of
from icetower.commit.engine import Committed, Engine, Limits
from icetower.commit.gatekeeper import Gatekeeper
from icetower.commit.head import Heads
from icetower.commit.replays import Replays
from icetower.commit.safe_refusals import SafeRefusals
from icetower.errors import IcetowerError, NotAuthenticated
from icetower.escalations.escalations import Escalations
from icetower.files.changes import Manifests
from icetower.files.deletes import Contents, Vectors
from icetower.files.footers import Claim, Verified
from icetower.gateway.settings import EscalationSettings
from icetower.ledger.histories import Fate, TableName
from icetower.ledger.ledger import Batch, Commit, CommitKey
from icetower.ledger.writers import Writer, Writers
from icetower.observe.events import Events
from icetower.observe.undeclared import Undeclared
from icetower.protocol.appends import AppendRequest, FileDescriptor
from icetower.protocol.commits import CommitRequest
from icetower.protocol.names import Identifier
from icetower.protocol.updates import Updates
from icetower.registry.principals import Principal
from icetower.registry.versions import ContractVersion
from icetower.service.attempts import Attempts
from icetower.service.commits import Commits
from icetower.service.journal import Journal
from icetower.service.lifecycle import Lifecycle
from icetower.service.outcomes import Outcomes
from icetower.service.owners import Owners
from icetower.table.head import HeadState
from verify.torture.clock import Chance
from verify.torture.ledger import Attempt
from verify.torture.world import Door, World
from verify.torture.writing import data_file

T = TypeVar("T")
_OWNER: contextvars.ContextVar[Tower | None] = contextvars.ContextVar("owner", default=None)


TOKENS_EXPIRED = 0.05
"""So often a request comes with a token that has expired, of principals under a contract."""


class Lost(Exception):
    """The connection broke: whether the request was done, nobody says."""


class Down(Exception):
    """Nobody listens: the request was certainly not done."""


class SimAmbient:
    """Time of the virtual loop, a clock of its own that may be wrong, and randomness by name."""

    def __init__(self, world: World, stream: random.Random, skew_ms: int) -> None:
        self._world = world
        self._stream = stream
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        return self._world.now_ms() + self._skew_ms

    def monotonic_s(self) -> float:
        return self._world.now_s()

    def uuid4(self) -> str:
        return str(uuid.UUID(int=self._stream.getrandbits(128), version=4))

    def uuid7(self) -> str:
        return uuid7_of(self.now_ms(), self._stream.getrandbits(74))

    def snapshot_id(self) -> int:
        return self._stream.getrandbits(62) + 1

    def secret(self) -> str:
        return self.uuid4()

    def uniform(self) -> float:
        return self._stream.random()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Registry:
    """Who stands, and who was revoked. There is nobody whom an escalation stops."""

    number = 0

    def __init__(self, world: World) -> None:
        self._world = world

    async def contracts(self) -> list[ContractVersion]:
        return []

    async def bindings(self, names: Sequence[str]) -> dict[str, tuple[str, int]]:
        await asyncio.sleep(0)
        found = {name: self._world.principal(name) for name in names if name not in self._world.judge.revoked}
        return {name: (principal.contract.name, principal.contract_version) for name, principal in found.items()}


class MemoryLedger:
    """A tower's ledger, with the rules of the real one: it outlives crashes. Of its log nobody asks here."""

    lifetime_ms = 24 * 3600 * 1000

    def __init__(self) -> None:
        self._commits: dict[CommitKey, Commit] = {}
        self._groups: set[tuple[str, int]] = set()
        self._expired: set[int] = set()
        self._torn: set[int] = set()
        self._writers: set[Writer] = set()

    async def write(self, batch: Batch) -> None:
        """A live key keeps its first content, an application its highest number."""
        await asyncio.sleep(0.002)
        for commit in (*batch.commits, *(commit for group in batch.groups for commit in group.commits)):
            known = self._commits.get(commit.owner)
            if known is None or (commit.sequence or 0) > (known.sequence or 0):
                self._commits[commit.owner] = commit
        self._groups.update((group.table_uuid, group.snapshot_id) for group in batch.groups)
        self._expired.update(snapshot_id for each in batch.expired for snapshot_id in each.snapshots)
        self._torn.update(snapshot_id for each in batch.expired for snapshot_id in each.torn)

    async def find_commits(self, owners: Sequence[CommitKey]) -> dict[CommitKey, Commit]:
        await asyncio.sleep(0.002)
        return {owner: self._commits[owner] for owner in owners if owner in self._commits}

    async def find_commit(self, owner: CommitKey) -> Commit | None:
        return (await self.find_commits([owner])).get(owner)

    async def keep_writers(self, these: Collection[Writer]) -> None:
        await asyncio.sleep(0.002)
        self._writers.update(these)

    async def find_writers(self, these: Collection[Writer]) -> frozenset[Writer]:
        await asyncio.sleep(0.002)
        return frozenset(self._writers.intersection(these))

    async def remember_commits(self, commits: Sequence[Commit]) -> None:
        await self.write(Batch(commits=commits))

    async def forget_commits(
        self, owners: Sequence[CommitKey], table_uuid: str = "", snapshot_ids: Iterable[int] = ()
    ) -> None:
        await asyncio.sleep(0.002)
        for owner in owners:
            self._commits.pop(owner, None)
        self._groups.difference_update((table_uuid, snapshot_id) for snapshot_id in snapshot_ids)

    async def fate(self, table: TableName, commit: Commit) -> Fate:
        """Nobody registers a table anew here."""
        del table
        await asyncio.sleep(0.002)
        return Fate.GONE if self._expired.isdisjoint(commit.snapshots) else Fate.EXPIRED

    async def saw_leave(self, table: TableName, snapshot_id: int) -> bool:
        del table
        await asyncio.sleep(0.002)
        return snapshot_id in self._expired

    async def torn(self, table_uuid: str, snapshot_ids: Iterable[int]) -> frozenset[int]:
        del table_uuid
        await asyncio.sleep(0.002)
        return frozenset(self._torn.intersection(snapshot_ids))

    async def kept_groups(self, table_uuid: str, snapshot_ids: Iterable[int]) -> frozenset[int]:
        await asyncio.sleep(0.002)
        return frozenset(i for i in snapshot_ids if (table_uuid, i) in self._groups)


class Footers:
    """Believes what a writer says of its files: there is no Parquet here."""

    async def verify(self, metadata: Mapping[str, Any], claims: Sequence[Claim]) -> list[Verified]:
        del metadata
        await asyncio.sleep(0.01)
        return [
            Verified(data_file(c.path, c.partition, c.record_count, c.size_bytes), c.spec.spec_id, ()) for c in claims
        ]


class Answers(Attempts):
    """Keeps how each commit went in, by the task that handles it."""

    def __init__(self, ambient: SimAmbient, journal: Journal) -> None:
        super().__init__(ambient, Events(ambient), journal.put)
        self.by_task: dict[asyncio.Task[Any] | None, str] = {}

    def ended(self, *about: Any, **more: Any) -> None:
        for result in about:
            if isinstance(result, Committed):
                self.by_task[asyncio.current_task()] = f"{result.outcome} in a group of {result.group_size}"
        super().ended(*about, **more)


class Unstopped(Escalations):
    """No contract of a simulation has an escalation clause."""

    async def require_free(self, principal: Principal, table: Identifier) -> None:
        del principal, table

    async def failed(
        self, principal: Principal, table: Identifier, error: IcetowerError, *, work: Hashable = None
    ) -> IcetowerError:
        del principal, table, work
        return error


class Service:
    """A tower's service of commits, over a door to the world, without HTTP and SQL."""

    def __init__(self, door: Any, ambient: SimAmbient, ledger: Any, limits: Limits) -> None:
        registry: Any = Registry(door.world)
        self.heads = Heads(door, door, ledger=ledger, ambient=ambient)
        manifests, journal = Manifests(door), Journal(ledger, self.heads.group_keys, ambient)
        gatekeeper = Gatekeeper(registry, ledger, self.heads.group_keys, journal.flush)
        self.engine = Engine(door, door, self.heads, manifests, ambient, gatekeeper, limits)
        self.answers = Answers(ambient, journal)
        escalations = Unstopped(registry, ambient, EscalationSettings().channels({}))
        shadow = ShadowRecorder(ambient, journal.put)
        footers: Any = Footers()
        gate = Gate(
            Files(manifests, footers, Vectors(door), Contents(door)),
            escalations,
            RateLimits(ambient, shadow, deadline_s=limits.deadline_s),
            shadow,
            registry,
            lifecycle := Lifecycle(door, door, self.heads, manifests, ambient, warehouse=""),
            ambient,
        )
        outcomes = Outcomes(escalations, Owners(registry, ambient), self.answers, Undeclared(ambient, Events(ambient)))
        replays = Replays(self.heads, ledger)
        writers = Writers(ledger, ambient)
        refusals = SafeRefusals(door, self.heads, replays, ledger, manifests, writers, self.engine.live)
        self.commits = Commits(
            gate,
            self.engine,
            self.heads,
            replays,
            refusals,
            writers,
            lifecycle,
            gatekeeper,
            outcomes,
            journal,
            ambient,
        )


class Tower:
    """One tower, through all its crashes.

    Attributes:
        life: how often it was started.
    """

    def __init__(self, world: World, chance: Chance, name: str, limits: Limits) -> None:
        self.world = world
        self.name = name
        self.life = 0
        self._chance = chance
        self._limits = limits
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._callers: dict[asyncio.Future[Any], None] = {}
        self._ledger = MemoryLedger()
        self._requests = 0
        self._skew_ms = int(4_000 * (chance.draw(name, "skew") - 0.5))
        self.start()

    def start(self) -> None:
        """A fresh process: it remembers nothing."""
        self.life += 1
        actor = f"{self.name}.{self.life}"
        self.actor = actor
        self.up = True
        self.door = Door(self.world, actor, self.crash)
        ambient = SimAmbient(self.world, self._chance.stream(actor, "ambient"), self._skew_ms)
        self.service = Service(self.door, ambient, self._ledger, self._limits)

    def crash(self) -> None:
        """The process is gone, at this very instant; it comes up again in a while."""
        self.up = False
        self.door.closed = True
        self.world.counts["crashes"] += 1
        for task in [*self._tasks]:
            if task is not asyncio.current_task():
                task.cancel()
        for caller in [*self._callers]:
            if not caller.done():
                caller.set_exception(Lost())
        self._callers.clear()
        down_s = 0.05 + 2 * self._chance.draw(self.actor, "down")
        asyncio.get_running_loop().call_later(down_s, self.start, context=contextvars.Context())

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """A task that was made in this tower dies with it."""
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def call(self, work: Callable[[], Awaitable[T]], *, patience_s: float, hang_up: bool) -> T:
        """A client's request. Raises `Down`, `Lost`, and whatever the tower answers.

        Args:
            patience_s: how long the client waits before it closes the connection.
            hang_up: whether the server then cancels what it was doing.
        """
        if not self.up:
            raise Down
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._callers[answer] = None

        async def handle() -> None:
            try:
                result = await work()
            except IcetowerError as error:
                if not answer.done():
                    answer.set_exception(error)
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                self.world.judge.found("engine.sound", f"{type(error).__name__}: {error} ({where.name}:{where.lineno})")
                raise
            else:
                if not answer.done():
                    answer.set_result(result)

        context = contextvars.copy_context()
        context.run(_OWNER.set, self)
        task = loop.create_task(handle(), context=context)
        self.adopt(task)
        timer = loop.call_later(patience_s, lambda: answer.done() or answer.set_exception(Lost()))
        try:
            return await answer
        except Lost:
            if hang_up:
                task.cancel()
            raise
        finally:
            timer.cancel()
            self._callers.pop(answer, None)

    def _authenticate(self, principal: Principal) -> None:
        """Raises `NotAuthenticated` now and then: the token of a principal under a contract has expired."""
        self._requests += 1
        expired = self._chance.draw(self.actor, "token", self._requests) < TOKENS_EXPIRED
        if expired and not principal.administrator and not self.world.calm:
            raise NotAuthenticated(f"the token of {principal.name} has expired; get a new one")

    # -- requests -------------------------------------------------------------------------------------------------

    async def load(self, identifier: Identifier) -> HeadState:
        """A table, as `GET` answers it."""
        return await self.service.heads.load(identifier)

    async def commit(self, attempts: Sequence[Attempt]) -> str:
        """One commit, or a transaction; how it went in."""
        intent = attempts[0].intent
        principal, served = self.world.principal(intent.who), self.service
        self._authenticate(principal)
        if attempts[0].files:
            request = AppendRequest(intent.ref, _descriptors(attempts[0]), intent.key, intent.application)
            done = await served.commits.append(principal, intent.table, request, None)
            return f"{done.outcome} in a group of {done.group_size}"
        requests = [CommitRequest(a.intent.table, tuple(a.requirements), Updates(a.updates)) for a in attempts]
        if len(requests) > 1:
            await served.commits.commit_together(principal, requests, intent.key)
        else:
            await served.commits.commit(principal, requests[0], intent.key)
        return served.answers.by_task.pop(asyncio.current_task(), "known")


def _descriptors(attempt: Attempt) -> tuple[FileDescriptor, ...]:
    return tuple(
        FileDescriptor(path, rows, len(name), None, {"p": partition} if attempt.partitioned else {}, None, {})
        for path, (partition, rows) in attempt.files.items()
        for name in [path.rsplit("/", 1)[-1].removesuffix(".parquet")]
    )


def task_factory(loop: asyncio.AbstractEventLoop, story: Any, context: Any = None) -> asyncio.Task[Any]:
    """Every task that is made in a tower's context belongs to that tower."""
    owner = (context if context is not None else contextvars.copy_context()).get(_OWNER)
    if owner is not None and not owner.up:
        owner = None
    task: asyncio.Task[Any] = asyncio.Task(story, loop=loop, context=context)
    if owner is not None:
        owner.adopt(task)
    return task
