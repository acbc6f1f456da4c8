"""An append by the fast path names no file that is live in its branch (issue: 20 rows of 10)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from icetower.admission.admitted import AdmittedAppend
from icetower.admission.identity import Identity
from icetower.commit.engine import Committed, Limits
from icetower.commit.live_files import LiveFiles
from icetower.errors import IcetowerError
from icetower.iceberg.change import Touched
from icetower.iceberg.listing import Listing
from icetower.iceberg.manifests import DataFile, ManifestFile
from icetower.table import live_paths
from icetower.table.head import HeadState
from icetower.table.live_paths import LivePaths
from icetower.upstream.port import Swap, SwapLost
from tests.commit.engine_world import TABLE, World, run

BLIND = {"icetower.blind": "true"}
PROMPT = Limits(deadline_s=5, settle_s=1, append_interval_s=0)


async def fast(
    world: World,
    *names: str,
    key: str | None = None,
    application: tuple[str, int] | None = None,
    ref: str = "main",
    by: str = "ann",
) -> AdmittedAppend:
    """An append of files by the fast path, as admission hands it on."""
    head = await world.head()
    files = tuple(data_file(f"{head.metadata['location']}/data/{name}") for name in names)
    uuid = head.metadata["table-uuid"]
    return AdmittedAppend(Identity.of_append(by, ref, key, application), TABLE, files, "c", 1, " ".join(names), uuid)


def data_file(path: str) -> Touched:
    record = {"content": 0, "file_path": path, "file_format": "PARQUET", "record_count": 1, "file_size_in_bytes": 100}
    return Touched(DataFile(0, path, "PARQUET", (), 1, 100, None, None, record), 0, None)


async def sent(world: World, *members: AdmittedAppend, warm: bool = True) -> list[str]:
    """What becomes of appends that are sent together."""
    head = await world.head() if warm else None
    results = await asyncio.gather(*(world.engine.submit(m, head) for m in members), return_exceptions=True)
    return [told(result) for result in results]


def told(result: Any) -> str:
    if isinstance(result, Committed):
        return result.outcome
    assert isinstance(result, IcetowerError), result
    assert result.files or result.rule != "append.live"
    return f"{result.status} {result.rule}"


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("warm", [True, False])
def test_k5_a_file_that_the_fast_path_has_added_is_refused_under_another_key(version: int, warm: bool) -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create(version)
        assert await sent(world, await fast(world, "a", "b", key="k1"), warm=warm) == ["appended"]
        again = [await fast(world, "a", "b", key="k1"), await fast(world, "c", "b", key="k2"), await fast(world, "d")]
        assert await sent(world, *again, warm=warm) == ["replayed", "422 append.live", "appended"]
        assert await world.live() == ["a", "b", "d"]

    run(story())


def test_files_of_commits_by_others_and_of_another_tower_count() -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        await (await (await world.writer().refresh()).append("spark", summary=BLIND)).send()
        assert await sent(world, await fast(world, "spark", by="bob")) == ["422 append.live"]
        await (await (await world.writer().refresh()).append("later", "more", summary=BLIND)).send()
        again = await fast(world, "more", by="bob")
        assert await sent(world, again, await fast(world, "new")) == ["422 append.live", "appended"]
        world.restart()
        assert await sent(world, await fast(world, "new", by="bob"), warm=False) == ["422 append.live"]
        assert await sent(world, await fast(world, "later", by="bob")) == ["422 append.live"]
        world.restart()
        assert await sent(world, await fast(world, "new", "later"), warm=False) == ["replayed"]
        assert await world.live() == ["later", "more", "new", "spark"]

    run(story())


def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the manifests whose live paths are read from now on."""
    read: list[str] = []
    reading = LiveFiles.read

    async def note(self: LiveFiles, live: LivePaths, rows: Sequence[ManifestFile], *more: Any) -> None:
        read.extend(row.path for row in rows)
        await reading(self, live, rows, *more)

    monkeypatch.setattr(LiveFiles, "read", note)
    return read


def test_what_a_client_has_appended_is_known_without_reading_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        assert await sent(world, await fast(world, "a")) == ["appended"]
        read = noted(monkeypatch)
        for number in range(3):
            await (await (await world.writer().refresh()).append(f"spark{number}", summary=BLIND)).send()
        stale = await world.writer().refresh()
        assert await sent(world, await fast(world, "b")) == ["appended"]
        await (await stale.append("stale", summary=BLIND)).send()
        assert await sent(world, await fast(world, "c"), await fast(world, "spark1")) == ["appended", "replayed"]
        assert await sent(world, await fast(world, "stale")) == ["replayed"]
        assert read == []
        writer = await world.writer().refresh()
        await (await writer.snapshot(add=("new",), remove=("spark2",), operation="overwrite")).send()
        assert await sent(world, await fast(world, "spark2"), await fast(world, "new")) == ["appended", "replayed"]
        assert read == [], "nor is what a rewrite leaves of a manifest"

    run(story())


def test_a_file_that_was_removed_may_come_back_and_one_may_be_on_two_branches() -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        assert await sent(world, await fast(world, "a"), await fast(world, "b")) == ["appended"] * 2
        writer = await world.writer().refresh()
        await (await writer.snapshot(remove=("a",), operation="delete")).send()
        assert await sent(world, await fast(world, "a"), await fast(world, "b", by="bob")) == [
            "appended",
            "422 append.live",
        ]
        assert await world.live() == ["a", "b"]

    run(story())


def test_a_file_of_a_group_on_its_way_and_of_one_that_is_lost() -> None:
    """A group that never lands has added nothing."""

    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()

        async def lost(swaps: Sequence[Swap]) -> None:
            raise SwapLost(swaps[0].identifier, swaps[0].expected)

        world.upstream.script = [lost]
        one, other = await fast(world, "a", key="k1"), await fast(world, "a", key="k2", by="bob")
        again = await fast(world, "a", key="k3")
        outcomes = await sent(world, one, other, again)
        assert outcomes == ["appended", "422 append.live", "replayed"]
        assert await sent(world, await fast(world, "a", key="k4", by="bob")) == ["422 append.live"]
        assert await world.live() == ["a"]

    run(story())


def test_what_is_known_is_read_once_and_followed_from_group_to_group() -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        writer = world.writer()
        for at in range(4):
            await (await (await writer.refresh()).append(f"old{at}", summary=BLIND)).send()
        world.restart()
        await sent(world, await fast(world, "new0"))
        reads: list[str] = []
        read = world.manifests.manifest_at

        async def counting(path: str) -> Any:
            reads.append(path)
            return await read(path)

        world.manifests.manifest_at = counting  # type: ignore[method-assign]
        for at in range(1, 6):
            assert await sent(world, await fast(world, f"new{at}")) == ["appended"]
        assert reads == []
        assert await sent(world, await fast(world, "old2"), await fast(world, "new3")) == ["replayed"] * 2
        assert await sent(world, await fast(world, "old2", by="bob")) == ["422 append.live"]

    run(story())


def test_who_waits_too_long_for_the_first_reading_is_sent_back_and_nobody_else_waits() -> None:
    async def story() -> None:
        world = World(limits=Limits(deadline_s=0.05))
        await world.create()
        await (await (await world.writer().refresh()).append("old", summary=BLIND)).send()
        world.restart()
        read, never = world.manifests.manifest_at, asyncio.Event()

        async def stuck(path: str) -> Any:
            await never.wait()
            return await read(path)

        world.manifests.manifest_at = stuck  # type: ignore[method-assign]
        assert await sent(world, await fast(world, "old")) == ["409 append.reading"]
        never.set()
        answers = ["409 append.reading"]
        while answers == ["409 append.reading"]:  # on a busy machine reading takes longer than the deadline again
            answers = await sent(world, await fast(world, "old", by="bob"))
        assert answers == ["422 append.live"]

    run(story())


# -- what is known ----------------------------------------------------------------------------------------------------


def row(name: str, files: int = 2) -> ManifestFile:
    return ManifestFile(name, 10, 0, 0, 1, 1, 1, files, 0, 0, files, 0, 0, None, None, None)


def names(rows: Sequence[ManifestFile]) -> list[str]:
    return [each.path for each in rows]


def test_the_newest_manifests_are_read_and_no_more_than_a_bound() -> None:
    live = LivePaths(files_max=5)
    listing = Listing.of([row("m3"), row("m2"), row("m1"), row("m0")])
    places = {(0, ())}
    assert names(live.unread(listing, places, lambda *_: True)) == ["m3", "m2", "m1"]
    for each in ("m3", "m2", "m1"):
        live.add(each, [f"{each}-a", f"{each}-b"])
    assert live.unread(listing, places, lambda *_: True) == []
    assert (live.holding(listing, "m2-a"), live.holding(listing, "m0-a")) == (["m2"], [])


def test_a_large_table_is_read_by_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    live = LivePaths()
    listing = Listing.of([row("m1", 30), row("m0", 30)])
    monkeypatch.setattr(live_paths, "ALL_MAX", 50)
    assert names(live.unread(listing, {(0, ("a",))}, lambda each, _: each.path == "m0")) == ["m0"]
    live.add("m0", ["x"])
    assert names(live.unread(listing, {(0, ("b",))}, lambda *_: False)) == ["m1"]  # by now there are few left


def test_manifests_that_have_gone_are_forgotten() -> None:
    live, listing = LivePaths(), Listing.of(())
    for at in range(200):
        listing = Listing.of([row(f"m{at}")])
        live.unread(listing, {(0, ())}, lambda *_: True)
        live.add(f"m{at}", [f"f{at}"])
    assert live.holding(listing, "f199") == ["m199"]
    assert live.holding(listing, "f3") == []
    assert live.size_bytes < 100 * 1_000


@pytest.mark.parametrize("given", ["file:///w/a", "file:/w/a", "/w/a"])
def test_one_local_file_has_several_names(given: str) -> None:
    live, listing = LivePaths(), Listing.of([row("m")])
    live.add("m", ["file:///w/a"])
    assert live.holding(listing, given) == ["m"]


@pytest.mark.parametrize("others", [True, False])
@pytest.mark.parametrize("named", [{"key": "k"}, {"application": ("app", 7)}])
def test_an_append_that_is_refused_answers_for_no_other_of_its_key(named: dict[str, Any], others: bool) -> None:
    """Another under its key, or its number, is judged for itself: it was once told that it had landed with the rest."""

    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        await sent(world, await fast(world, "live", by="bob"))
        members = [await fast(world, name, **named) for name in ("live", "new")]
        if others:
            members.append(await fast(world, "other"))
        wanted = ["422 append.live", "appended", *(["appended"] if others else [])]
        assert await sent(world, *members) == wanted
        assert await world.live() == sorted(["live", "new", *(["other"] if others else [])])
        assert await sent(world, await fast(world, "newer", **named)) == ["replayed"]

    run(story())


def test_appends_on_a_version_before_a_merge_do_not_make_others_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who look at the list before a merge, and those after it, read no manifest twice."""

    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        for number in range(300):
            await sent(world, await fast(world, f"old{number}"))
        before = await world.head()
        stale = await fast(world, "stale")
        writer = await world.writer().refresh()
        await (await writer.snapshot(remove=tuple(f"old{n}" for n in range(290)), operation="delete")).send()
        world.restart()
        await world.head()
        read = noted(monkeypatch)
        results = await asyncio.gather(
            *(world.engine.submit(member, head) for member, head in await both(world, stale, before)),
            return_exceptions=True,
        )
        assert [told(result) for result in results] == ["appended"] * len(results)
        assert len(read) == len(set(read)), "nothing is read twice"

    async def both(world: World, stale: AdmittedAppend, before: HeadState) -> list[tuple[AdmittedAppend, HeadState]]:
        head = await world.head()
        new = [(await fast(world, f"new{number}"), before if number % 2 else head) for number in range(6)]
        return [(stale, before), *new]

    run(story())
