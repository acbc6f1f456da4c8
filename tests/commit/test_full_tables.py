"""A table never grows to more metadata than is read again: whatever waits at once, and by whichever door."""

from __future__ import annotations

import asyncio
from typing import Any

from icetower.admission.admitted import AdmittedAppend
from icetower.admission.identity import Identity
from icetower.commit.engine import Limits
from icetower.errors import ValidationFailed
from icetower.iceberg.change import Touched
from icetower.iceberg.manifests import DataFile
from tests.commit.engine_world import TABLE, World, run

MAX_BYTES = 40 * 1024
LONG = {"icetower.blind": "true", "note": "x" * 4_000}


def full_world() -> World:
    return World(limits=Limits(deadline_s=5, settle_s=1, append_interval_s=0, metadata_max_bytes=MAX_BYTES))


async def filled(world: World) -> None:
    """Send commits at once that are all admitted on an empty table, which has room for some of them."""
    await world.create()
    writers = [await world.writer(f"w{number}").refresh() for number in range(16)]
    requests = [await writer.append(f"{writer.name}.parquet", summary=LONG) for writer in writers]
    answers = await asyncio.gather(*(request.send() for request in requests), return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert {getattr(answer, "rule", answer) for answer in refused} == {"limit.metadata"}
    landed = [w.name for w, answer in zip(writers, answers, strict=True) if not isinstance(answer, BaseException)]
    assert await world.live() == sorted(f"{name}.parquet" for name in landed)
    assert MAX_BYTES * 3 // 4 < (await world.head()).size_bytes <= MAX_BYTES


async def appended(world: World, name: str) -> Any:
    head = await world.head()
    path = f"{head.metadata['location']}/data/{name}"
    record = {"content": 0, "file_path": path, "file_format": "PARQUET", "record_count": 1, "file_size_in_bytes": 100}
    file = Touched(DataFile(0, path, "PARQUET", (), 1, 100, None, None, record), 0, None)
    member = AdmittedAppend(
        Identity.of_append("ann", "main", name, None), TABLE, (file,), "c", 1, name, head.metadata["table-uuid"]
    )
    return (await asyncio.gather(world.engine.submit(member, head), return_exceptions=True))[0]


def test_commits_that_wait_together_do_not_make_a_table_longer_than_is_read() -> None:
    run(filled(full_world()))


def test_a_full_table_takes_what_makes_it_smaller_and_then_appends_again() -> None:
    async def story() -> None:
        world = full_world()
        await filled(world)
        while not isinstance(answer := await appended(world, f"{world.clock.uuid4()}.parquet"), ValidationFailed):
            pass
        assert answer.rule == "limit.metadata"
        head = await world.head()
        assert head.size_bytes <= MAX_BYTES
        request = await (await world.writer().refresh()).append("unused.parquet")
        current = head.ref("main")
        request.requirements = []
        request.updates = [{"action": "remove-snapshots", "snapshot-ids": [i for i in head.snapshots if i != current]}]
        await request.send()
        before = await world.live()
        assert not isinstance(await appended(world, "after.parquet"), BaseException)
        assert await world.live() == sorted([*before, "after.parquet"])

    run(story())
