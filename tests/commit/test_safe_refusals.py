"""What it costs to refuse a commit: a look for what has landed is for those only who have committed there (trap A3)."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icetower.contracts.model import Contract
from icetower.errors import CommitStateUnknown, ContractViolation, Forbidden, IcetowerError
from icetower.ledger.writers import Writer
from icetower.protocol.commits import CommitRequest
from icetower.protocol.names import Identifier
from icetower.protocol.updates import Updates
from icetower.registry.principals import Principal, administrator
from tests.commit.engine_world import TABLE, World, run
from tests.commit.test_engine_pipeline import OTHER
from tests.commit.test_engine_twins import service_over, transaction

NOTHING = Contract("nothing")
ANN = administrator("ann")
ANN_REVOKED = Principal("ann", NOTHING, 1, revoked=True)


async def two_tables() -> World:
    world = World()
    await world.create()
    await world.create(table=OTHER)
    return world


async def a_transaction(world: World) -> list[CommitRequest]:
    made = await transaction(world, "ann")
    requests: list[CommitRequest] = []
    for each in made:
        table_uuid = str((await world.heads.load(each.table)).metadata["table-uuid"])
        requirements = (*each.requirements, {"type": "assert-table-uuid", "uuid": table_uuid})
        requests.append(CommitRequest(each.table, requirements, Updates(each.updates)))
    return requests


def counted(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the catalog is asked from here on."""
    asked: list[str] = []
    inner: Any = world.upstream.inner
    for name in ("tables_at", "location"):
        for catalog in (inner, world.upstream):
            monkeypatch.setattr(catalog, name, _counting(name, getattr(inner, name), asked), raising=False)
    return asked


def _counting(name: str, function: Any, asked: list[str]) -> Any:
    async def ask(*arguments: Any) -> Any:
        asked.append(name)
        return await function(*arguments)

    return ask


@pytest.mark.parametrize("revoked", [False, True])
def test_a8_who_never_committed_there_costs_the_catalog_nothing_by_being_refused(
    revoked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of transactions of 100 unknown tables stopped everybody's commits: each was looked for, row by row."""

    async def story() -> None:
        world = await two_tables()
        tower, commits = service_over(world, tmp_path)
        [one, _] = await a_transaction(world)
        foreign = [
            replace(
                one,
                identifier=Identifier(("other",), f"t{at}"),
                requirements=({"type": "assert-table-uuid", "uuid": str(uuid.uuid4())},),
            )
            for at in range(99)
        ]
        mallory = Principal("mallory", NOTHING, 1, revoked=revoked)
        asked = counted(world, monkeypatch)
        for requests in ([*foreign, one], [one]):
            with pytest.raises(Forbidden if revoked else ContractViolation):
                await commits.commit_together(mallory, requests, "018f0000-0000-7000-8000-000000000001")
        assert asked == []
        await tower.close()

    run(story())


def test_a3_what_has_landed_is_found_for_who_committed_it_and_dropped_tables_are_looked_for_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        world = await two_tables()
        tower, commits = service_over(world, tmp_path)
        requests = await a_transaction(world)
        await commits.commit_together(ANN, requests, None)
        with pytest.raises(CommitStateUnknown, match="it has landed"):
            await commits.commit_together(ANN_REVOKED, requests, None)
        for table in (TABLE, OTHER):
            await world.upstream.inner.drop_table(table)
        reads: list[int] = []
        inner: Any = world.upstream.inner
        read_places = inner._places._answer

        async def counting(parts: Any) -> Any:
            reads.append(len(parts))
            return await read_places(parts)

        monkeypatch.setattr(inner._places, "_answer", counting)
        again = (commits.commit_together(ANN_REVOKED, requests, None) for _ in range(50))
        errors = await asyncio.gather(*again, return_exceptions=True)
        assert {getattr(error, "rule", None) for error in errors} == {"contract.revoked"}
        assert set(reads) == {2}
        assert len(reads) <= 2, "all who ask at once share a reading"
        await tower.close()

    run(story())


@pytest.mark.parametrize("fails", [False, True])
def test_a3_who_commits_is_kept_before_the_swap_or_remembered_where_the_ledger_cannot_be_written(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill right after the swap takes the answer, and nothing of what a refusal goes by."""

    async def story() -> None:
        world = await two_tables()
        tower, commits = service_over(world, tmp_path)
        requests = await a_transaction(world)
        head = await world.heads.load(TABLE)
        writer = Writer.of("ann", str(head.metadata["table-uuid"]), TABLE)
        kept: list[bool] = []
        swap = world.upstream.inner.swap

        async def swaps(*about: Any) -> None:
            kept.append(writer in await tower.records.ledger.find_writers([writer]))
            await swap(*about)

        async def full(*_: Any) -> None:
            raise IcetowerError("the disk is full")

        monkeypatch.setattr(world.upstream.inner, "swap", swaps)
        if fails:
            monkeypatch.setattr(tower.records.ledger, "keep_writers", full)
        await commits.commit(ANN, requests[0], None)
        assert kept == [not fails]
        with pytest.raises(CommitStateUnknown, match="it has landed"):
            await commits.commit(ANN_REVOKED, requests[0], None)
        await tower.close()

    run(story())
