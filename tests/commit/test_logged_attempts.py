"""What the log has of an attempt beside its outcome: base and head, the write that it is a try of, and what it took."""

from __future__ import annotations

from pathlib import Path

import pytest

from icetower.errors import CommitConflict
from icetower.ledger.hashes import key_hash, text_hash
from icetower.ledger.ledger import Attempt
from icetower.protocol.commits import CommitRequest
from icetower.protocol.marks import APPLICATION, DECIDED, KEY, SEQUENCE
from icetower.protocol.updates import Updates
from icetower.service.commits import Commits
from icetower.service.outcomes import time_of
from tests.commit.engine_world import TABLE, Request, World, run
from tests.commit.test_engine_twins import ANN, OTHER, sends, service_over

BLIND = {"icetower.blind": "true"}


async def sent(commits: Commits, request: Request) -> None:
    commit = CommitRequest(request.table, tuple(request.requirements), Updates(request.updates))
    await commits.commit(ANN, commit, None)


def test_a_commit_is_logged_with_its_base_its_head_and_its_tries(tmp_path: Path) -> None:
    async def story() -> list[Attempt]:
        world = World()
        await world.create()
        tower, commits = service_over(world, tmp_path)
        stale = await world.writer("ann").refresh()
        first = await (await world.writer("ann").refresh()).append("a", summary={**BLIND, DECIDED: "1234"})
        await sent(commits, first)
        await sent(commits, await stale.append("b", summary={**BLIND, KEY: "k", DECIDED: "soon"}))
        lost = await stale.snapshot(add=("c",), operation="overwrite", summary={})
        with pytest.raises(CommitConflict):
            await sent(commits, lost)
        fresh = await world.writer("ann").refresh()
        numbered = {**BLIND, APPLICATION: "app", SEQUENCE: "7"}
        await sent(commits, await fresh.append("d", summary=numbered))
        await sent(commits, first)
        await tower.records.journal.flush()
        logged = list(reversed(await tower.records.ledger.recent()))
        ids = [s["snapshot-id"] for s in (await world.head()).metadata["snapshots"]]
        await tower.close()
        assert [(each.base, each.head) for each in logged] == [
            (None, None), (None, ids[0]), (None, None), (ids[1], ids[1]), (None, None)
        ]  # fmt: skip
        return logged

    logged = run(story())
    assert [str(each.outcome) for each in logged] == ["direct", "rebased", "conflict", "direct", "replayed"]
    assert {each.contract for each in logged} == {ANN.contract.name}
    assert [each.decided_ms for each in logged] == [1234, None, None, None, 1234]
    landed = [logged[0], logged[1], logged[3]]
    assert [(each.group_size, each.manifests) for each in landed] == [(1, 1.0)] * 3
    assert all((each.metadata_bytes or 0) > 500 for each in landed)
    for each in landed:
        times = (each.judge_ms, each.plan_ms, each.write_ms, each.swap_ms)
        assert None not in times
        assert sum(filter(None, times)) <= each.latency_ms
    assert (logged[2].group_size, logged[2].swap_ms, logged[4].group_size) == (None, None, None)
    assert logged[2].judge_ms is not None
    works = [each.work for each in logged]
    assert works[0] is not None
    assert works[0].startswith("files:")
    assert (works[1], logged[1].key_hash) == (None, key_hash("k"))
    assert works[2] is not None
    assert works[2].startswith("files:")
    assert works[3] == "number:" + text_hash("app:7")
    assert works[4] is not None  # its files are not read again
    assert works[4].startswith("snapshots:")


def test_appends_of_one_group_have_equal_shares(tmp_path: Path) -> None:
    async def story() -> list[Attempt]:
        world = World()
        await world.create()
        await world.create(table=OTHER)
        tower, commits = service_over(world, tmp_path)
        await (await sends("append", world, commits))()
        await (await sends("transaction", world, commits, file="other"))()
        await tower.records.journal.flush()
        logged = await tower.records.ledger.recent()
        await tower.close()
        return list(logged)

    *together, appended = run(story())
    assert (str(appended.outcome), appended.group_size, appended.manifests) == ("appended", 1, 1.0)
    assert sorted(each.table for each in together) == sorted((str(TABLE), str(OTHER)))
    assert {each.group_size for each in together} == {1}


@pytest.mark.parametrize("text", ["", "-1", "1.5", "soon", "9" * 15, "²"])
def test_a_time_that_is_none_is_passed_over(text: str) -> None:
    assert time_of(text) is None
