"""One run of the simulation: a seed in, a verdict, a trace and counts out.

The seed decides everything: the table, the clients and what they want, the faults, the crashes, the clocks.
"""

from __future__ import annotations

import asyncio
import hashlib
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from icetower.commit.engine import Limits
from icetower.errors import IcetowerError, UpstreamFailed
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.metadata import apply, with_log
from icetower.protocol.marks import BLIND_APPENDS
from icetower.protocol.names import Identifier
from icetower.table.head import HeadState
from icetower.upstream.port import Swap, SwapLost, SwapUnknown
from verify.torture import clock, memory
from verify.torture.clients import Client
from verify.torture.clock import Chance
from verify.torture.commit_kinds import CommitKinds, Prepare, reachable
from verify.torture.judge import ISOLATION, Judge, Violation
from verify.torture.ledger import Bundle, Intent
from verify.torture.towers import SimAmbient, Tower, task_factory
from verify.torture.world import Door, Faults, World, contract_of
from verify.torture.writing import PARTITIONS, Gone

SCHEMA = {
    "type": "struct",
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": False},
        {"id": 2, "name": "p", "type": "int", "required": False},
    ],
}
TABLES = (Identifier(("db",), "t"), Identifier(("db",), "u"))
WEIGHTS = (
    ("append", 7),
    ("fast", 6),
    ("merge_append", 2),
    ("overwrite", 4),
    ("delete", 2),
    ("compact", 2),
    ("two_steps", 1),
)


@dataclass(slots=True)
class Outcome:
    """What a run came to.

    Attributes:
        digest: of the whole trace: equal for two runs of one seed.
        checked: how often each invariant was looked at.
    """

    seed: int
    violations: list[Violation]
    trace: list[str]
    counts: Counter[str] = field(default_factory=Counter[str])
    checked: Counter[str] = field(default_factory=Counter[str])

    @property
    def digest(self) -> str:
        return hashlib.blake2b("\n".join(self.trace).encode(), digest_size=16).hexdigest()


def simulate(seed: int) -> Outcome:
    """Run one seed to its end. Never raises for what the engine does wrong: the violations say it."""
    judge = Judge()
    outcome = Outcome(seed, judge.violations, [])
    unhandled: list[str] = []

    def work() -> None:
        try:
            clock.run(_Run(seed, judge, outcome).story(), unhandled)
        except clock.Stuck as error:
            judge.found("engine.sound", str(error))
        except Exception as error:  # noqa: BLE001 - a table that was broken breaks whoever reads it: no seed may be lost
            where = traceback.extract_tb(error.__traceback__)[-1]
            judge.found("engine.sound", f"the run ended with {type(error).__name__}: {error} ({where.name})")

    with memory.shared():
        clock.without_garbage(work)
    for message in unhandled:
        judge.found("engine.sound", message)
    outcome.checked = judge.checked
    outcome.trace += [f"violated {violation}" for violation in judge.violations]
    return outcome


class _Run:
    def __init__(self, seed: int, judge: Judge, outcome: Outcome) -> None:
        self.chance = Chance(seed)
        self.judge = judge
        self.outcome = outcome
        self.numbers = 0

    async def story(self) -> None:
        """Everything that happens."""
        asyncio.get_running_loop().set_task_factory(task_factory)
        chance = self.chance
        self.world = world = World(chance, Faults.of(chance), self.judge)
        self.outcome.trace, self.outcome.counts = world.trace, world.counts
        self.shape = chance.stream("shape")
        self.partitions = self.shape.choice((1, 2, 4))
        self._create()
        self._bind()
        limits = Limits(
            group_max=self.shape.choice((2, 8, 256)),
            queue_max=self.shape.choice((2, 2_048)),
            deadline_s=self.shape.choice((4.0, 30.0)),
            settle_s=self.shape.choice((4.0, 30.0)),
        )
        towers = [Tower(world, chance, f"tower{at}", limits) for at in range(self.shape.choice((1, 2, 2)))]
        actors = [self._client(at, towers) for at in range(self.shape.randint(2, 5))]
        actors += [self._outsider()] if self.shape.random() < 0.5 else []
        actors += [self._administrator(towers)] if self.shape.random() < 0.7 else []
        actors += [self._revoker()] if self.shape.random() < 0.25 else []
        await asyncio.gather(*actors)
        await self._end(towers)

    def _create(self) -> None:
        version = self.shape.choice((2, 3))
        properties = {"format-version": str(version)}
        if self.shape.random() < 0.5:
            properties[BLIND_APPENDS] = "true"
        if self.shape.random() < 0.35:
            properties |= dict.fromkeys(ISOLATION, "snapshot")
        if self.shape.random() < 0.3:
            properties |= {
                "write.metadata.previous-versions-max": "3",
                "write.metadata.delete-after-commit.enabled": "true",
            }
        field_of_p = {"name": "p", "transform": "identity", "source-id": 2, "field-id": 1000}
        spec = {"spec-id": 0, "fields": [field_of_p] if self.shape.random() < 0.6 else []}
        for identifier in TABLES:
            ambient = SimAmbient(self.world, self.chance.stream("uuid", identifier.name), 0)
            metadata = table_metadata.new_table(
                uuid=ambient.uuid4(),
                location=f"file:///w/{identifier.name}",
                schema=SCHEMA,
                spec=spec,
                sort_order=None,
                properties=properties,
                now_ms=self.world.now_ms(),
            )
            location = table_metadata.metadata_path(metadata, 0, ambient.uuid4())
            self.world.files[location] = orjson.dumps(metadata)
            self.judge.created(identifier, location)

    def _bind(self) -> None:
        """In half of the runs, contracts bind the agents: each owns one partition, and some tokens expire."""
        metadata = self.judge.tables[TABLES[0]].metadata
        if self.chance.draw("contracts") < 0.5 or not metadata["partition-specs"][0]["fields"]:
            return
        for at in range(5):
            self.judge.owned[f"agent{at}"] = own = at % self.partitions % PARTITIONS
            self.world.contracts[f"agent{at}"] = contract_of(f"agent{at}", own)

    def _intent(self, who: str, kind: str, table: Identifier, **more: object) -> Intent:
        self.numbers += 1
        return Intent(self.numbers, who, kind, table, **more)  # type: ignore[arg-type]

    # -- actors ---------------------------------------------------------------------------------------------------

    async def _client(self, at: int, towers: Sequence[Tower]) -> None:
        stream = self.chance.stream("client", at)
        name = f"agent{at}"
        client = Client(self.world, towers, name, stream, patience_s=stream.choice((3.0, 60.0)))
        maker = CommitKinds(client.pen, stream, self.world.now_ms, self.judge, at % self.partitions)
        kinds, weights = zip(*WEIGHTS, strict=True)
        await client.pause(0.2)
        for turn in range(stream.randint(2, 5)):
            key = f"key-{name}-{turn}" if stream.random() < 0.7 else None
            blind = stream.random() < 0.5
            if stream.random() < 0.1:
                await self._transaction(client, maker, key, blind=blind)
                continue
            kind: str = stream.choices(kinds, weights)[0]
            ref = "audit" if stream.random() < 0.15 and self._has_branch() else "main"
            intent = self._intent(name, kind, TABLES[0], ref=ref, key=key, blind=blind and "append" in kind)
            if kind == "fast" and (key is None or stream.random() < 0.3):
                intent.application = (f"app-{name}", turn + 1)
            prepare: Prepare = getattr(maker, kind)
            await client.perform([intent], prepare)
            await client.pause(0.5)

    def _has_branch(self) -> bool:
        return "audit" in self.judge.tables[TABLES[0]].metadata["refs"]

    async def _transaction(self, client: Client, maker: CommitKinds, key: str | None, *, blind: bool) -> None:
        bundle = Bundle()
        for table in TABLES:
            bundle.intents.append(self._intent(client.name, "append", table, key=key, blind=blind, bundle=bundle))
        await client.perform(bundle.intents, maker.append)

    async def _administrator(self, towers: Sequence[Tower]) -> None:
        stream = self.chance.stream("administrator")
        client = Client(self.world, towers, "admin", stream, patience_s=60.0)
        maker = CommitKinds(client.pen, stream, self.world.now_ms, self.judge, 0)
        for _ in range(stream.randint(1, 4)):
            await client.pause(1.5)
            kind = stream.choice(("column", "property", "branch", "rollback", "expire", "expire", "upgrade"))
            if kind == "upgrade" and self.judge.tables[TABLES[0]].metadata["format-version"] == 3:
                kind = "expire"
            intent = self._intent("admin", kind, TABLES[0])
            before = self.judge.tables[TABLES[0]].metadata
            prepare: Prepare = getattr(maker, kind)
            await client.perform([intent], prepare)
            if kind == "expire" and intent.state == "acked":
                self._clean_up(intent, reachable(self.judge, before, intent))

    def _clean_up(self, intent: Intent, before: set[str]) -> None:
        """What an expiry does after its commit: files that no snapshot names any more are deleted."""
        now = reachable(self.judge, self.judge.tables[intent.table].metadata, intent)
        for path in sorted(before - now):
            self.judge.before_delete("admin", path)
            self.world.files.pop(path, None)
            self.world.counts["files expired"] += 1

    async def _outsider(self) -> None:
        """A plain Iceberg client that commits to the catalog itself, past every tower."""
        stream = self.chance.stream("outsider")
        door = Door(self.world, "outsider")
        client = Client(self.world, (_Nobody(),), "outsider", stream, patience_s=1)  # type: ignore[arg-type]
        maker = CommitKinds(client.pen, stream, self.world.now_ms, self.judge, 1)
        ambient = SimAmbient(self.world, stream, 0)
        for _ in range(stream.randint(1, 3)):
            await client.pause(1.2)
            kind = stream.choice(("append", "append", "delete", "overwrite", "merge_append"))
            intent = self._intent("outsider", kind, TABLES[0], outside=True)
            self.judge.wanted(intent)
            intent.state = await self._commit_outside(intent, getattr(maker, kind), door, ambient)
            self.world.tell("outsider", f"{intent} ends {intent.state}")

    async def _commit_outside(self, intent: Intent, prepare: Prepare, door: Door, ambient: SimAmbient) -> str:
        for _ in range(6):
            await asyncio.sleep(0.05 * ambient.uniform())
            try:
                location = await door.location(intent.table)
                head = HeadState(location, orjson.loads(await door.read(location)))
            except IcetowerError:
                continue
            try:
                attempt = prepare(intent, head)
            except Gone:  # the head that it read is an old one by now, and has expired
                continue
            if attempt is None:
                return "skipped"
            self.judge.sent(attempt)
            after = apply(head.metadata, tuple(attempt.updates), now_ms=ambient.now_ms())
            after, _ = with_log(after, previous=head.metadata, previous_location=location)
            version = table_metadata.version_of(location) + 1
            new = table_metadata.metadata_path(after, version, ambient.uuid4())
            self.world.files[new] = orjson.dumps(after)
            try:
                await door.swap([Swap(intent.table, location, new)])
            except (SwapLost, UpstreamFailed):
                attempt.refused = True
                continue
            except (SwapUnknown, RuntimeError):
                return "maybe"
            self.world.counts["commits outside"] += 1
            self.judge.acked(attempt)
            return "acked"
        return "refused"

    async def _revoker(self) -> None:
        stream = self.chance.stream("revoker")
        await asyncio.sleep(2.5 * stream.random())
        name = f"agent{stream.randrange(5)}"
        self.judge.revoked[name] = self.world.now_s()
        self.world.counts["revocations"] += 1
        self.world.tell("revoker", name)

    # -- the end --------------------------------------------------------------------------------------------------

    async def _end(self, towers: Sequence[Tower]) -> None:
        """The faults stop. Every tower must still take a commit, then drain; then the books are compared."""
        self.world.calm = True
        await asyncio.sleep(12)
        for at, tower in enumerate(towers):
            stream = self.chance.stream("probe", at)
            client = Client(self.world, [tower], f"probe{at}", stream, patience_s=300)
            maker = CommitKinds(client.pen, stream, self.world.now_ms, self.judge, at)
            intent = self._intent(client.name, "append", TABLES[0], key=f"probe-{at}", blind=True)
            await client.perform([intent], maker.append)
            if intent.state != "acked":
                self.judge.found("engine.sound", f"{tower.actor} takes no commits any more: {intent.state}")
        for tower in towers:
            try:
                await asyncio.wait_for(tower.service.engine.drain(), 600)
            except TimeoutError:
                self.judge.found("engine.sound", f"{tower.actor} does not drain")
        await asyncio.sleep(30)
        self.judge.at_the_end()
        self.world.tell("end", " ".join(f"{t.name}={h.rsplit('/', 1)[-1]}" for t, h in self.world.heads.items()))


class _Nobody:
    """An outside writer has no tower."""
