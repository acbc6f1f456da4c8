"""A commit that says which version its writer has read, and in which the requirements all hold (trap R2).

PyIceberg writes an append anew on the new head, with the same summary and without reading again; so it does with an
upsert that finds no row to update. It goes in as it is only where nothing came into what was read.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from icetower.errors import BadRequest
from icetower.rebase.declared import scope_to_hold
from tests.commit.engine_world import TABLE, Request, World, outcomes, run
from tests.commit.iceberg_client import Client, create, data, positions

BLIND = {"icetower.blind": "true"}
IN_A = json.dumps({"type": "eq", "term": "category", "value": "a"})
A1, B1 = data("a1", "a"), data("b1", "b")


def words(read: int | str | None, level: str | None = "serializable", filter_: str | None = IN_A) -> dict[str, str]:
    given = {"icetower.read-snapshot": read, "icetower.isolation-level": level, "icetower.filter": filter_}
    return {name: str(text) for name, text in given.items() if text is not None}


class Story:
    """A table with a1 and b1, which Ann has read; then others go on."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ann, self.bob = Client(world, "ann"), Client(world, "bob")

    @classmethod
    async def begun(cls, **properties: str) -> Story:
        story = cls(World())
        await create(story.world, 2, **properties)
        await story.ann.refresh()
        await story.bob.refresh()
        assert await outcomes(await story.bob.append(A1, B1)) == ["direct"]
        await story.ann.refresh()
        return story

    @property
    def read(self) -> int:
        """The version that Ann has read."""
        assert self.ann.base is not None
        return self.ann.base.ref("main") or 0

    async def meanwhile(self, **merge: Any) -> None:
        await self.bob.refresh()
        assert await outcomes(await self.bob.merge(**merge)) == ["direct"]

    async def written_anew(self, said: dict[str, str], *names: str) -> Request:
        """Ann's append on the new head, as PyIceberg's retry writes it."""
        anew = await Client(self.world, "ann").refresh()
        return await anew.append(*(data(name, "a") for name in names or ("mine",)), **said)


MEANWHILE = [
    # what came between the version that was read and the parent; level and filter; what becomes of the commit
    ({"add": [data("new", "a")]}, ("serializable", IN_A), "409 conflict.C1"),
    ({"add": [data("new", "b")]}, ("serializable", "true"), "409 conflict.C1"),
    ({"remove": ["a1"], "add": [data("new", "b")]}, ("serializable", IN_A), "409 conflict.C2"),
    ({"deletes": [positions("p", "a", target=A1)]}, ("serializable", IN_A), "409 conflict.C3a"),
    ({"add": [data("new", "b")]}, ("serializable", IN_A), "direct"),
    ({"add": [data("new", "a")]}, ("snapshot", IN_A), "direct"),
    ({"add": [data("new", "a")]}, (None, IN_A), "direct"),  # what was read, but not what isolation is owed
]


@pytest.mark.parametrize(("theirs", "said", "expected"), MEANWHILE)
def test_r2_an_append_that_is_written_anew_is_held_against_all_that_its_writer_has_not_seen(
    theirs: dict[str, Any], said: tuple[str | None, str], expected: str
) -> None:
    async def story() -> None:
        told = await Story.begun()
        await told.meanwhile(**theirs)
        assert await outcomes(await told.written_anew(words(told.read, *said))) == [expected]

    run(story())


@pytest.mark.parametrize("properties", [{"icetower.strict": "true"}, {"icetower.blind-appends": "true"}])
def test_r2_whatever_the_table_is_content_with(properties: dict[str, str]) -> None:
    async def story() -> None:
        told = await Story.begun(**properties)
        await told.meanwhile(add=[data("new", "a")])
        assert await outcomes(await told.written_anew(words(told.read))) == ["409 conflict.C1"]

    run(story())


def test_r2_who_declares_what_it_reads_anew_goes_in() -> None:
    async def story() -> None:
        told = await Story.begun()
        await told.meanwhile(add=[data("new", "a")])
        read_again = (await told.ann.refresh()).base
        assert read_again is not None
        request = await told.written_anew(words(read_again.ref("main")))
        assert scope_to_hold(await request.admitted()) is None  # nothing is looked at
        assert await outcomes(request) == ["direct"]

    run(story())


def test_r2_the_refusal_names_what_came_and_asks_to_run_the_statement_again() -> None:
    async def story() -> None:
        told = await Story.begun()
        await told.meanwhile(add=[data("new", "a")])
        theirs = (await told.world.head()).ref("main")
        with pytest.raises(Exception, match="run the statement again") as refused:
            await (await told.written_anew(words(told.read))).send()
        error: Any = refused.value
        assert (error.status, error.next_step, error.snapshot) == (409, "refresh", theirs)
        assert f"has read snapshot {told.read}" in error.message

    run(story())


def test_r2_what_is_written_anew_and_stale_again_is_held_against_all_of_it() -> None:
    """The first is in what was read, and came before the base; the second, after it, is elsewhere."""

    async def story() -> None:
        told = await Story.begun()
        await told.meanwhile(add=[data("new", "a")])
        request = await told.written_anew(words(told.read))
        await told.meanwhile(add=[data("other", "b")])
        assert await outcomes(request) == ["409 conflict.C1"]

    run(story())


def test_r2_a_newer_version_than_the_base_adds_nothing() -> None:
    async def story() -> None:
        told = await Story.begun()
        await told.meanwhile(add=[data("new", "b")])
        newer = (await told.world.head()).ref("main")
        request = await told.ann.append(data("mine", "a"), **words(newer))
        await told.meanwhile(add=[data("newest", "b")])
        assert await outcomes(request) == ["rebased"]

    run(story())


@pytest.mark.parametrize(
    ("between", "filter_", "expected"),
    [((), "true", "direct"), (("new",), "true", "409 conflict.C1"), (("new",), "false", "direct")],
)
def test_r2_snapshots_of_the_same_commit_are_not_others(between: tuple[str, ...], filter_: str, expected: str) -> None:
    """PyIceberg's overwrite removes and appends, in two snapshots, and each carries the whole declaration."""

    async def story() -> None:
        world = World()
        await world.create()
        ann, bob = world.writer("ann"), world.writer("bob")
        read = await (await ann.refresh()).append("old")
        assert await outcomes(read) == ["direct"]
        for name in between:
            await bob.refresh()
            assert await outcomes(await bob.append(name)) == ["direct"]
        await ann.refresh()
        said = words(read.snapshot_id, filter_=filter_)
        first = await ann.snapshot(remove=["old"], operation="delete", summary=said)
        second = await ann.snapshot(
            add=["mine"],
            summary=said,
            parent=first.snapshot,
            parent_rows=first.rows,
            sequence_number=first.snapshot["sequence-number"] + 1,
        )
        assert await outcomes(first.then(second)) == [expected]

    run(story())


def test_r2_a_version_that_is_in_no_history_is_refused() -> None:
    """It has expired, was rolled back, or never was: what came since cannot be seen."""

    async def story() -> None:
        told = await Story.begun()
        read = told.read
        await told.meanwhile(add=[data("new", "b")])
        assert await outcomes(await told.written_anew(words(4711))) == ["409 commit.read-snapshot"]
        first = (await told.world.head()).ref("main")
        await told.meanwhile(add=[data("newer", "b")])
        for gone, expected in ((read, "direct"), (first, None)):  # all that came since is still known; it is not
            removed = [{"action": "remove-snapshots", "snapshot-ids": [gone]}]
            assert await outcomes(Request(told.ann, TABLE, [], removed, ())) == ["direct"]  # type: ignore[arg-type]
            if expected is not None:
                assert await outcomes(await told.written_anew(words(read))) == [expected]
        with pytest.raises(Exception, match="expired, or rolled back") as refused:
            await (await told.written_anew(words(read), "again")).send()
        error: Any = refused.value
        assert (error.status, error.rule, error.next_step) == (409, "commit.read-snapshot", "refresh")

    run(story())


def test_r2_who_has_read_an_empty_table_has_seen_nothing_of_it() -> None:
    async def story() -> None:
        told = await Story.begun()
        assert await outcomes(await told.written_anew(words("none"))) == ["409 conflict.C1"]

    run(story())


def test_r2_a_snapshot_of_the_commit_itself_is_no_version_that_was_read() -> None:
    """Written anew, it would keep its id on another parent."""

    async def story() -> None:
        told = await Story.begun()
        request = await told.ann.append(data("mine", "a"))
        request.snapshot["summary"].update(words(request.snapshot_id))
        with pytest.raises(BadRequest, match="which this very commit adds"):
            await request.admitted()

    run(story())


def test_r2_a_compaction_depends_on_no_rows() -> None:
    async def story() -> None:
        told = await Story.begun()
        read = told.read
        await told.meanwhile(add=[data("new", "a")])
        anew = await Client(told.world, "ann").refresh()
        both = await anew.compact(data("both", "a", rows=20), "a1", "new", **words(read))
        assert await outcomes(both) == ["direct"]

    run(story())
