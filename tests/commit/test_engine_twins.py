"""One commit, sent twice: whatever happens, both are told the same, and none 409 where the other lands (trap A3)."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icetower.admission.gate import Files, Gate
from icetower.admission.quotas import RateLimits
from icetower.ambient import SystemAmbient
from icetower.commit.engine import Committed, Limits
from icetower.commit.replays import Replays
from icetower.commit.safe_refusals import SafeRefusals
from icetower.errors import CommitConflict, CommitStateUnknown, NotFound
from icetower.files.deletes import Contents, Vectors
from icetower.files.footers import Claim, Verified
from icetower.gateway.settings import Settings
from icetower.gateway.tower import Tower, open_tower
from icetower.iceberg.manifests import DataFile
from icetower.ledger.writers import Writers
from icetower.protocol.appends import AppendRequest, FileDescriptor
from icetower.protocol.commits import CommitRequest
from icetower.protocol.updates import Updates
from icetower.registry.principals import administrator
from icetower.service.commits import Commits
from icetower.service.outcomes import Outcomes
from icetower.service.owners import Owners
from icetower.service.single_flight import SingleFlight
from icetower.upstream.port import Swap, SwapUnknown
from tests.commit.engine_world import TABLE, Request, World, run, told
from tests.commit.test_engine_pipeline import OTHER, Gated, blind, ends, fails, fast, send, settled, until

HASTY = Limits(deadline_s=0.2, settle_s=1)
ANN = administrator("ann")


async def transaction(world: World, name: str) -> list[Request]:
    """One blind append to each of two tables."""
    writer = world.writer(name)
    requests = []
    for table in (TABLE, OTHER):
        await writer.refresh(table)
        requests.append(await writer.append(name, summary={"icetower.blind": "true"}, table=table))
    return requests


def together(world: World, requests: Sequence[Any]) -> asyncio.Task[list[Committed]]:
    return asyncio.create_task(world.engine.submit_together(requests))


# -- in the engine ----------------------------------------------------------------------------------------------------


def test_a3_a_transaction_sent_twice_hears_no_409_past_its_deadline_while_the_other_may_land() -> None:
    """As a commit to one table (see `test_engine_pipeline`): its manifests would go under the other."""

    async def story() -> None:
        world = World(limits=HASTY)
        await world.create()
        await world.create(table=OTHER)
        gate = Gated(world)
        world.upstream.script = [gate]
        admitted = [await request.admitted() for request in await transaction(world, "ann")]
        others = [await request.admitted() for request in await transaction(world, "bob")]
        first = together(world, admitted)
        await gate.began.wait()
        again, other = together(world, admitted), together(world, others)
        with pytest.raises(CommitConflict, match="withdrawn"):  # past the deadline of both
            await other
        assert not again.done()
        gate.go_on.set()
        assert [told(result) for result in await first] == ["direct", "direct"]
        assert [told(result) for result in await again] == ["replayed", "replayed"]
        assert (await world.live(), await world.live(OTHER)) == (["ann"], ["ann"])

    run(story())


@pytest.mark.parametrize("tables", [1, 2])
def test_a3_a_resend_after_504_hears_no_409_at_its_deadline_while_the_swap_may_have_landed(tables: int) -> None:
    """The swap lands after its clients have heard that nobody can tell, and after the resend was let in."""

    async def story() -> None:
        world = World(limits=HASTY)
        await world.create()
        await world.create(table=OTHER)
        late: list[Sequence[Swap]] = []

        async def lands_later(swaps: Sequence[Swap]) -> None:
            late.append(swaps)
            world.clock.time_ms += 2_000  # the time for settling has passed
            raise SwapUnknown

        gate = Gated(world, then=fails)
        world.upstream.script = [lands_later, gate]
        admitted = [await request.admitted() for request in (await transaction(world, "ann"))[:tables]]

        async def commit() -> list[str]:
            if tables == 1:
                return [told(await world.engine.submit(*admitted))]
            return [told(result) for result in await world.engine.submit_together(admitted)]

        with pytest.raises(CommitStateUnknown):
            await commit()
        other = asyncio.create_task((await blind(world, "bob"))[0].send())
        await gate.began.wait()
        again = asyncio.create_task(commit())
        await asyncio.sleep(2 * HASTY.deadline_s)
        assert not again.done()
        await world.upstream.inner.swap(late[0])
        gate.go_on.set()
        assert await ends([other]) == ["502 upstream"]
        assert await again == ["replayed"] * tables

    run(story())


def test_an_error_of_a_read_that_nobody_waits_for_any_more_is_no_news() -> None:
    async def story() -> None:
        world = World()
        location = (await world.create()).location
        world.restart()
        began, go_on = asyncio.Event(), asyncio.Event()

        async def failing(path: str, *_: Any) -> bytes:
            began.set()
            await go_on.wait()
            raise NotFound(f"{path} is not there")

        world.storage.read = failing  # type: ignore[method-assign]
        told_of: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told_of.append(context))
        asked = asyncio.create_task(world.heads.at(location))
        await began.wait()
        asked.cancel()
        await settled(world)
        go_on.set()
        await settled(world)
        del asked  # it remembers where it was cancelled, and so the read
        gc.collect()
        assert told_of == []

    run(story())


def test_a3_an_append_sent_twice_hears_no_409_past_its_deadline_while_the_other_may_land() -> None:
    """It deletes nothing, but whoever hears 409 may take for lost what is in the table a moment later."""

    async def story() -> None:
        world = World(limits=replace(HASTY, append_interval_s=0))
        await world.create()
        gate = Gated(world)
        world.upstream.script = [gate]
        keyed = await fast(world, "ann", "key")
        numbered = await fast(world, "bob", application=("app", 1))
        first = [asyncio.create_task(world.engine.submit(append)) for append in (keyed, numbered)]
        await gate.began.wait()
        again = [asyncio.create_task(world.engine.submit(append)) for append in (keyed, numbered)]
        other = asyncio.create_task(world.engine.submit(await fast(world, "cid", "key")))
        assert await ends([other]) == ["409 queue.deadline"]  # past the deadline of all
        assert not any(task.done() for task in again)
        gate.go_on.set()
        assert await ends([*first, *again]) == ["appended", "appended", "replayed", "replayed"]
        assert await world.live() == ["ann", "bob"]

    run(story())


def test_a4_a_transaction_withdrawn_at_its_deadline_lets_go_of_the_turns_that_it_has() -> None:
    async def story() -> None:
        world = World(limits=HASTY)
        await world.create()
        await world.create(table=OTHER)
        gate = Gated(world)
        world.upstream.script = [gate]
        writer = await world.writer("bob").refresh(OTHER)
        held = await writer.append("bob", summary={"icetower.blind": "true"}, table=OTHER)
        first = await send(world, held)
        await gate.began.wait()
        with pytest.raises(CommitConflict, match="withdrawn"):  # it has the turn of one table, and waits for the other
            await together(world, [await request.admitted() for request in await transaction(world, "ann")])
        assert (await send(world, *await blind(world, "cid")))[0] is not None
        await until(lambda: world.engine.queued(TABLE) == 0)
        gate.go_on.set()
        assert await ends(first) == ["direct"]
        await world.engine.drain()
        assert (await world.live(), await world.live(OTHER)) == (["cid"], ["bob"])

    run(story())


@pytest.mark.parametrize("tables", [1, 2])
def test_a3_a_resend_to_a_draining_engine_hears_no_409_while_the_other_may_land(tables: int) -> None:
    async def story() -> None:
        world = World()
        await world.create()
        await world.create(table=OTHER)
        gate = Gated(world)
        world.upstream.script = [gate]
        admitted = [await request.admitted() for request in (await transaction(world, "ann"))[:tables]]

        async def commit() -> list[Committed]:
            return await (world.engine.submit_together(admitted) if tables > 1 else one())

        async def one() -> list[Committed]:
            return [await world.engine.submit(admitted[0])]

        first = asyncio.create_task(commit())
        await gate.began.wait()
        draining = asyncio.create_task(world.engine.drain())
        await settled(world)
        again = asyncio.create_task(commit())
        await settled(world)
        assert not again.done()
        with pytest.raises(CommitConflict, match="shutting down"):
            await (await blind(world, "bob"))[0].send()
        gate.go_on.set()
        assert [told(result) for result in await first] == ["direct"] * tables
        assert [told(result) for result in await again] == ["replayed"] * tables
        await draining

    run(story())


def test_a3_a_resend_before_a_full_queue_hears_no_409_while_the_other_may_land() -> None:
    async def story() -> None:
        world = World(limits=Limits(pipeline_max=1, queue_max=1, held_max=1, deadline_s=5))
        await world.create()
        gate = Gated(world)
        world.upstream.script = [gate]
        requests = await blind(world, "ann", "bob", "cid", "dan")
        first = await send(world, requests[0])
        await gate.began.wait()
        waiting = await send(world, *requests[1:3])
        again = await send(world, requests[0], requests[3])
        await settled(world)
        assert await ends(again[1:]) == ["409 queue.full"]
        gate.go_on.set()
        assert await ends([*first, *waiting, again[0]]) == ["direct", "rebased", "rebased", "replayed"]

    run(story())


# -- in the gateway ---------------------------------------------------------------------------------------------------


class Footers:
    """Every file is what its writer says."""

    async def verify(self, metadata: Any, claims: Sequence[Claim]) -> list[Verified]:
        del metadata
        return [Verified(_file(claim.path, claim.record_count, claim.size_bytes), 0, ()) for claim in claims]


def _file(path: str, rows: int, size_bytes: int) -> DataFile:
    shape = {"content": 0, "file_path": path, "file_format": "PARQUET"}
    record = {**shape, "record_count": rows, "file_size_in_bytes": size_bytes}
    return DataFile(0, path, "PARQUET", (), rows, size_bytes, None, None, record)


def service_over(world: World, data: Path) -> tuple[Tower, Commits]:
    """A tower, and the service of commits over its records and a world in memory."""
    tower = open_tower(Settings.model_validate({"server": {"data": str(data)}}), SystemAmbient())
    records, front = tower.records, tower.front
    vectors, contents = Vectors(world.storage), Contents(world.storage)  # type: ignore[arg-type]
    gate = Gate(
        Files(world.manifests, Footers(), vectors, contents),  # type: ignore[arg-type]
        records.escalations,
        RateLimits(front.ambient, front.shadow, deadline_s=30),
        front.shadow,
        records.registry,
        world.tables,
        front.ambient,
    )
    outcomes = Outcomes(
        records.escalations, Owners(records.registry, front.ambient), front.attempts, tower.watch.undeclared
    )
    replays = Replays(world.heads, records.ledger)
    writers = Writers(records.ledger, front.ambient)
    commits = Commits(
        gate,
        world.engine,
        world.heads,
        replays,
        SafeRefusals(
            world.upstream.inner, world.heads, replays, records.ledger, world.manifests, writers, world.engine.live
        ),
        writers,
        world.tables,
        world.gate,  # type: ignore[arg-type]
        outcomes,
        records.journal,
        front.ambient,
    )
    return tower, commits


async def sends(kind: str, world: World, commits: Commits, *, file: str = "ann") -> Callable[[], Awaitable[Any]]:
    """A file that ann commits, as often as it is called: to one table, to two, or by the fast path."""
    if kind == "append":
        location = (await world.head()).metadata["location"]
        files = (FileDescriptor(f"{location}/data/{file}", 1, 100, None, {}, None, {}),)
        request = AppendRequest("main", files, "key-1", None)
        return lambda: commits.append(ANN, TABLE, request, None)
    made = await transaction(world, file)
    requests = [CommitRequest(each.table, tuple(each.requirements), Updates(each.updates)) for each in made]
    if kind == "transaction":
        return lambda: commits.commit_together(ANN, requests, None)
    return lambda: commits.commit(ANN, requests[0], None)


@pytest.mark.parametrize("kind", ["commit", "transaction", "append"])
def test_a3_a_commit_past_its_deadline_hears_no_409_where_its_twin_is_on_its_way_to_the_queue(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow storage keeps the second from the queue for longer than the first may wait there."""

    async def story() -> None:
        world = World(limits=HASTY)
        await world.create()
        await world.create(table=OTHER)
        tower, commits = service_over(world, tmp_path)
        send_it = await sends(kind, world, commits)
        gate = Gated(world)
        world.upstream.script = [gate]
        held = await send(world, *await blind(world, "bob"))
        await gate.began.wait()
        late: list[asyncio.Task[Any] | None] = []
        slow = asyncio.Event()
        load = world.heads.load

        async def loads(*about: Any, **more: Any) -> Any:
            if asyncio.current_task() in late:
                await slow.wait()
            return await load(*about, **more)

        monkeypatch.setattr(world.heads, "load", loads)
        first = asyncio.create_task(send_it())  # type: ignore[arg-type]
        again = asyncio.create_task(send_it())  # type: ignore[arg-type]
        late.append(again)
        await asyncio.wait([first])
        slow.set()
        gate.go_on.set()
        results = await asyncio.gather(first, again, return_exceptions=True)
        assert await ends(held) == ["direct"]
        await tower.records.journal.flush()
        await world.engine.drain()
        landed = await world.live() != ["bob"]
        assert [isinstance(result, CommitConflict) for result in results] == [not landed] * 2
        await tower.close()

    run(story())


@pytest.mark.parametrize("kind", ["commit", "transaction", "append"])
def test_a3_two_hundred_resends_at_once_are_one_snapshot_and_one_answer(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        world = World()
        await world.create()
        await world.create(table=OTHER)
        tower, commits = service_over(world, tmp_path)
        send_it = await sends(kind, world, commits)
        await asyncio.gather(*(send_it() for _ in range(200)))
        assert len((await world.head()).metadata["snapshots"]) == 1
        assert world.upstream.swaps == 1
        await tower.records.journal.flush()
        logged = Counter(str(attempt.outcome) for attempt in await tower.records.ledger.recent(limit=1_000))
        tables = 2 if kind == "transaction" else 1
        assert logged == {"appended" if kind == "append" else "direct": tables, "replayed": 199 * tables}
        await tower.close()

    run(story())


class Work:
    """What is asked for, done when it is told how it ends."""

    def __init__(self) -> None:
        self.begun: list[asyncio.Future[str]] = []

    async def __call__(self) -> str:
        self.begun.append(asyncio.get_running_loop().create_future())
        return await self.begun[-1]


def test_twins_get_one_answer() -> None:
    async def story() -> None:
        flights: SingleFlight[str] = SingleFlight()
        work = Work()
        calls = [asyncio.create_task(flights.run("name", ("all", "of it"), work)) for _ in range(3)]
        await settled()
        work.begun[0].set_result("done")
        assert [await call for call in calls] == [("done", False), ("done", True), ("done", True)]
        later = asyncio.create_task(flights.run("name", ("all", "of it"), work))
        await settled()
        work.begun[1].set_result("done again")  # the first has been answered: whether it is known is not asked here
        assert await later == ("done again", False)

    run(story())


def test_twins_get_one_error() -> None:
    async def story() -> None:
        flights: SingleFlight[str] = SingleFlight()
        work = Work()
        calls = [asyncio.create_task(flights.run("name", 1, work)) for _ in range(2)]
        await settled()
        work.begun[0].set_exception(CommitConflict("stale"))
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(result, CommitConflict) for result in results] == [True, True]
        assert len(work.begun) == 1

    run(story())


@pytest.mark.parametrize("ends_by", ["hanging up", "breaking down"])
def test_where_the_first_is_told_nothing_one_twin_takes_its_place(ends_by: str) -> None:
    async def story() -> None:
        flights: SingleFlight[str] = SingleFlight()
        work = Work()
        first, *others = [asyncio.create_task(flights.run("name", 1, work)) for _ in range(3)]
        await settled()
        if ends_by == "hanging up":
            first.cancel()
        else:
            work.begun[0].set_exception(RuntimeError("a bug"))
        await settled()
        assert first.cancelled() or first.exception() is not None
        assert len(work.begun) == 2
        work.begun[1].set_result("done")
        assert [await other for other in others] == [("done", False), ("done", True)]

    run(story())


def test_a_twin_that_hangs_up_leaves_the_other_alone() -> None:
    async def story() -> None:
        flights: SingleFlight[str] = SingleFlight()
        work = Work()
        first, again = [asyncio.create_task(flights.run("name", 1, work)) for _ in range(2)]
        await settled()
        again.cancel()
        await settled()
        work.begun[0].set_result("done")
        assert again.cancelled()
        assert await first == ("done", False)

    run(story())


def test_no_twin_is_another_request_nor_one_that_nothing_tells_from_another() -> None:
    async def story() -> None:
        flights: SingleFlight[str] = SingleFlight()
        work = Work()
        asked = [("name", 1), ("name", 2), ("other", 1), (None, 1), (None, 1)]
        calls = [asyncio.create_task(flights.run(name, request, work)) for name, request in asked]
        await settled()
        for at, begun in enumerate(work.begun):
            begun.set_result(str(at))
        assert [(await call)[0] for call in calls] == ["0", "1", "2", "3", "4"]

    run(story())


def test_a_commit_without_a_snapshot_has_no_twin(tmp_path: Path) -> None:
    """Of two equal ones that assert what they change, one takes the lock and the other must hear that it did not."""

    async def story() -> None:
        world = World()
        head = await world.create()
        tower, commits = service_over(world, tmp_path)
        schema = {**head.schema, "schema-id": 1}
        schema["fields"] = [*schema["fields"], {"id": 2, "name": "mine", "type": "string", "required": False}]
        updates = (
            {"action": "add-schema", "schema": schema, "last-column-id": 2},
            {"action": "set-current-schema", "schema-id": -1},
        )
        request = CommitRequest(
            TABLE, ({"type": "assert-current-schema-id", "current-schema-id": 0},), Updates(updates)
        )
        calls = (commits.commit(ANN, request, None) for _ in range(2))
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sorted(isinstance(result, CommitConflict) for result in results) == [False, True]
        await tower.close()

    run(story())


def test_k1_reruns_at_once_of_a_transaction_with_a_member_without_snapshots_land_once(tmp_path: Path) -> None:
    """Whichever comes second meets the key in the engine only."""

    async def story() -> None:
        world = World()
        await world.create()
        await world.create(table=OTHER)
        tower, commits = service_over(world, tmp_path)
        properties = {"action": "set-properties", "updates": {"watermark": "7"}}
        reruns: list[list[CommitRequest]] = []
        for number in range(5):
            writer = await world.writer("ann").refresh()
            made = await writer.append(f"rerun-{number}", key="k", summary={"icetower.blind": "true"})
            one = CommitRequest(made.table, tuple(made.requirements), Updates(made.updates))
            reruns.append([one, CommitRequest(OTHER, (), Updates([properties]))])
        await asyncio.gather(*(commits.commit_together(ANN, rerun, "k") for rerun in reruns))
        assert len(await world.live()) == 1
        await tower.close()

    run(story())
