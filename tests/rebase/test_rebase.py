"""Rebase of every operation (R2 to R6, S1 to S4), by a client that prepares its commits as Iceberg's own does."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from icetower.commit.head import Heads
from icetower.errors import CommitConflict
from icetower.files.changes import Manifests, read_changes
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg import puffin
from icetower.iceberg.change import Touched
from icetower.iceberg.metadata import ref_head
from icetower.iceberg.partitions import spec_of
from icetower.iceberg.vectors import Vector, as_blob, decode
from icetower.protocol.names import Identifier
from icetower.protocol.updates import Updates
from icetower.table.head import HeadState
from icetower_client_model.operations import Kind, Operation
from tests.commit.engine_world import TABLE, World, outcomes, run
from tests.commit.iceberg_client import (
    SCHEMA,
    SNAPSHOT,
    Client,
    create,
    data,
    entries_named,
    equalities,
    positions,
    vector,
)

BLIND = {"icetower.blind": "true"}


async def two(world: World, version: int, *, seed: tuple[Any, ...] = (), **properties: str) -> tuple[Client, Client]:
    """A table with some files, and two clients that have read it."""
    await create(world, version, **properties)
    ann, bob = Client(world, "ann"), Client(world, "bob")
    if seed:
        await ann.refresh()
        assert await outcomes(await ann.append(*seed, **BLIND)) == ["direct"]
    return await ann.refresh(), await bob.refresh()


async def sound(world: World) -> list[str]:
    """Every snapshot, as strangers read it, says what it does; the names of the live files."""
    head = await Heads(world.upstream, world.storage).load(TABLE)
    numbers = [snapshot.get("sequence-number", 0) for snapshot in head.metadata["snapshots"]]
    if head.format_version > 1:
        assert numbers == sorted(set(numbers))
    manifests = Manifests(world.storage)
    for snapshot in head.metadata["snapshots"]:
        (change,) = await read_changes(
            manifests, head.metadata, Updates([{"action": "add-snapshot", "snapshot": snapshot}])
        )
        assert change.problems == (), change.problems
        for each in (*change.added, *change.removed):
            spec_of(head.metadata, each.spec_id)
    entries = await world.live_entries(head)
    assert len({(e.file.path, e.file.referenced_data_file) for e in entries}) == len(entries)
    await check_totals(head, entries)
    return entries_named(entries)


async def check_totals(head: HeadState, entries: list[Any]) -> None:
    snapshot_id = ref_head(head.metadata, "main")
    if snapshot_id is None:
        return
    summary = head.snapshots[snapshot_id]["summary"]
    rows = [e.file.record_count for e in entries if e.file.content == 0]
    assert (int(summary["total-data-files"]), int(summary["total-records"])) == (len(rows), sum(rows))


@pytest.mark.parametrize("version", [2, 3])
def test_r2_merges_in_disjoint_partitions_pass_under_snapshot_isolation(version: int) -> None:
    async def story() -> None:
        world = World()
        a, b = data("a1", "a"), data("b1", "b")
        ann, bob = await two(world, version, seed=(a, b), **SNAPSHOT)
        one = await ann.merge(add=[data("a2", "a")], remove=["a1"])
        other = await bob.merge(add=[data("b2", "b")], remove=["b1"])
        assert await outcomes(one, other) == ["direct", "rebased"]
        assert await sound(world) == ["a2", "b2"]

    run(story())


@pytest.mark.parametrize("version", [2, 3])
def test_r2_without_a_word_about_its_reads_a_merge_is_sent_back(version: int) -> None:
    async def story() -> None:
        world = World()
        ann, bob = await two(world, version, seed=(data("a1", "a"), data("b1", "b")))
        one = await ann.merge(add=[data("a2", "a")], remove=["a1"])
        other = await bob.merge(add=[data("b2", "b")], remove=["b1"])
        assert await outcomes(one, other) == ["direct", "409 rebase.reads"]
        assert await sound(world) == ["a2", "b1"]

    run(story())


def test_r2_what_the_table_asked_for_when_it_was_read_counts() -> None:
    async def story() -> None:
        world = World()
        ann, bob = await two(world, 2, seed=(data("a1", "a"), data("b1", "b")))
        one = await ann.append(data("a2", "a"), **BLIND)
        other = await bob.merge(add=[data("b2", "b")], remove=["b1"])
        alter = await ann.append(data("a3", "a"), **BLIND)
        alter.requirements, alter.updates = [], [{"action": "set-properties", "updates": SNAPSHOT}]
        assert await outcomes(one) == ["direct"]
        assert await outcomes(alter) == ["direct"]
        with pytest.raises(CommitConflict, match="may be older than that declaration") as refused:
            await other.send()
        assert (refused.value.rule, refused.value.missing) == ("rebase.reads", None), "not told to declare it again"

    run(story())


@pytest.mark.parametrize("version", [2, 3])
def test_two_that_replace_one_file_are_a_true_conflict(version: int) -> None:
    async def story() -> None:
        world = World()
        ann, bob = await two(world, version, seed=(data("a1", "a"),), **SNAPSHOT)
        one = await ann.merge(add=[data("a2", "a")], remove=["a1"])
        other = await bob.merge(add=[data("a3", "a")], remove=["a1"])
        assert await outcomes(one, other) == ["direct", "409 conflict.C6"]
        assert await sound(world) == ["a2"]

    run(story())


def test_a_conflict_names_snapshot_partition_file_rule_and_next_step() -> None:
    async def story() -> None:
        world = World()
        ann, bob = await two(world, 2, seed=(data("a1", "a"),), **SNAPSHOT)
        one = await ann.merge(add=[data("a2", "a")], remove=["a1"])
        other = await bob.merge(add=[data("a3", "a")], remove=["a1"])
        assert await outcomes(one) == ["direct"]
        with pytest.raises(
            Exception,
            match=r"conflicts with snapshot \d+ \(overwrite by ann\) in .* \(rule W1 of docs/conflicts.md\); ",
        ) as caught:
            await other.send()
        error: Any = caught.value
        assert (error.rule, error.snapshot, error.next_step) == ("conflict.C6", one.snapshot_id, "refresh")
        assert error.partitions == ("category=a",)
        assert [path.rsplit("/", 1)[-1] for path in error.files] == ["a1"]

    run(story())


@pytest.mark.parametrize(
    ("theirs", "ours", "outcome"),
    [
        ("v1", "v2", "409 conflict.C5"),  # two vectors for one file
        ("v1", "elsewhere", "rebased"),  # vectors for two files
        ("v1", "remove", "409 conflict.C3b"),  # rows of a file that we replace were deleted
        ("remove", "v2", "409 conflict.C4"),  # the file whose rows we delete is gone
    ],
)
def test_r2_deletion_vectors(theirs: str, ours: str, outcome: str) -> None:
    async def story() -> None:
        world = World()
        a1, a2 = data("a1", "a"), data("a2", "a")
        ann, bob = await two(world, 3, seed=(a1, a2), **SNAPSHOT)

        async def done(client: Client, what: str) -> Any:
            if what == "remove":
                return await client.merge(add=[data(f"{client.name}-new", "a")], remove=["a1"])
            return await client.merge(deletes=[vector(what, a2 if what == "elsewhere" else a1)])

        assert await outcomes(await done(ann, theirs), await done(bob, ours)) == ["direct", outcome]
        await sound(world)

    run(story())


@pytest.mark.parametrize(
    ("ours", "word", "outcome"),
    [
        ({3, 4}, "summary", "rebased"),  # disjoint rows
        ({2, 3}, "summary", "409 conflict.C5"),  # row 2 was deleted by both
        ({3, 4}, "table", "409 conflict.C5"),  # nobody has declared what was read: as Iceberg has it
    ],
)
@pytest.mark.parametrize("based", [False, True])
def test_deletion_vectors_of_disjoint_rows_become_one(ours: set[int], word: str, outcome: str, based: bool) -> None:
    async def story() -> None:
        world = World()
        a1 = data("a1", "a")
        ann, bob = await two(world, 3, seed=(a1,), **(SNAPSHOT if word == "table" else {}))
        before, old = (set[int](), ())
        if based:
            before, old = {0}, ("v0",)
            assert await outcomes(await ann.merge(deletes=[stored(world, "v0", a1, before)])) == ["direct"]
            await ann.refresh()
            await bob.refresh()
        summary = {"icetower.isolation-level": "snapshot"} if word == "summary" else {}
        one = await ann.merge(deletes=[stored(world, "v1", a1, before | {1, 2})], supersedes=old, **summary)
        other = await bob.merge(deletes=[stored(world, "v2", a1, before | ours)], supersedes=old, **summary)
        assert await outcomes(one, other) == ["direct", outcome]
        await sound(world)
        head = await (await ann.refresh()).live()
        (vector_now,) = [t for t, _ in head.values() if t.file.content == 1]
        record = vector_now.file.record
        blob = world.storage.files[vector_now.file.path][record["content_offset"] :][: record["content_size_in_bytes"]]
        assert set(decode(blob, name="v")) == before | {1, 2} | (ours if outcome == "rebased" else set())

    run(story())


def stored(world: World, name: str, target: Touched, rows: set[int]) -> Touched:
    """A deletion vector whose bytes are in the storage."""
    made = vector(name, target, len(rows))
    bytes_, (blob,) = puffin.write([as_blob(Vector.of(rows), target.file.path)], created_by="a test")
    world.storage.files[made.file.path] = bytes_
    where = {"content_offset": blob.offset, "content_size_in_bytes": blob.length_bytes}
    record = {**made.file.record, **where, "file_size_in_bytes": len(bytes_)}
    return replace(made, file=replace(made.file, record=record, size_bytes=len(bytes_)))


@pytest.mark.parametrize(("mine", "outcome"), [("a", "409 conflict.C4"), ("b", "rebased")])
def test_r6_position_deletes_that_hide_their_targets_conflict_with_any_removal_in_their_partition(
    mine: str, outcome: str
) -> None:
    async def story() -> None:
        world = World()
        ann, bob = await two(world, 2, seed=(data("a1", "a"), data("b1", "b")), **SNAPSHOT)
        one = await ann.merge(add=[data("a2", "a")], remove=["a1"])
        other = await bob.merge(deletes=[positions("p", mine)])
        assert await outcomes(one, other) == ["direct", outcome]

    run(story())


@pytest.mark.parametrize(("where", "outcome"), [("a", "409 conflict.C3a"), ("b", "rebased")])
@pytest.mark.parametrize("version", [2, 3])
def test_deletes_of_rows_stand_against_equality_deletes_of_their_partition(
    version: int, where: str, outcome: str
) -> None:
    """Both may delete one row, and the later one would undo what the other has put in its place."""

    async def story() -> None:
        world = World()
        a1 = data("a1", "a")
        ann, bob = await two(world, version, seed=(a1, data("b1", "b")), **SNAPSHOT)
        theirs = vector("v", a1) if version == 3 else positions("p", "a", target=a1)
        one = await ann.merge(add=[data("a2", "a")], deletes=[theirs])
        other = await bob.prepare(Operation(Kind.ROW_DELTA, (data("new", where),), (equalities("e", where),)))
        assert await outcomes(one, other) == ["direct", outcome]

    run(story())


@pytest.mark.parametrize(("where", "outcome"), [("a", "409 conflict.C3b"), ("b", "rebased")])
def test_equality_deletes_of_a_partition_stand_against_who_replaces_files_in_it(where: str, outcome: str) -> None:
    async def story() -> None:
        world = World()
        ann, bob = await two(world, 2, seed=(data("a1", "a"), data("b1", "b")), **SNAPSHOT)
        one = await ann.prepare(Operation(Kind.ROW_DELTA, (), (equalities("e", where),)))
        other = await bob.merge(add=[data("a2", "a")], remove=["a1"])
        assert await outcomes(one, other) == ["direct", outcome]

    run(story())


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("summary", [{"replace-partitions": "true"}, {}])
def test_r3_a_predicate_is_not_a_list_of_files(version: int, summary: dict[str, str]) -> None:
    """Two INSERT OVERWRITE into one empty partition remove nothing, and both must not go in."""

    async def story() -> None:
        world = World()
        ann, bob = await two(world, version, seed=(data("b1", "b"),), **SNAPSHOT)
        one, other = [
            await client.prepare(Operation(Kind.REPLACE_PARTITIONS, (data(f"{client.name}-1", "a"),)), **summary)
            for client in (ann, bob)
        ]
        assert await outcomes(one, other) == ["direct", "409 rebase.predicate"]
        assert await sound(world) == ["ann-1", "b1"]

    run(story())


@pytest.mark.parametrize("version", [1, 2, 3])
def test_compaction_of_other_files_passes_by_nobodys_word(version: int) -> None:
    async def story() -> None:
        world = World()
        seed = (data("a1", "a"), data("a2", "a"), data("b1", "b"))
        ann, bob = await two(world, version, seed=seed)
        one = await ann.append(data("b2", "b"), **BLIND)
        other = await bob.compact(data("a12", "a", 20), "a1", "a2")
        assert await outcomes(one, other) == ["direct", "rebased"]
        assert await sound(world) == ["a12", "b1", "b2"]

    run(story())


@pytest.mark.parametrize("version", [2, 3])
def test_compaction_of_files_whose_rows_were_deleted_meanwhile_is_refused(version: int) -> None:
    async def story() -> None:
        world = World()
        a1 = data("a1", "a")
        ann, bob = await two(world, version, seed=(a1, data("a2", "a")), **SNAPSHOT)
        deletes = [vector("v", a1) if version == 3 else positions("p", "a", target=a1)]
        one = await ann.merge(deletes=deletes)
        other = await bob.compact(data("a12", "a", 20), "a1", "a2")
        assert await outcomes(one, other) == ["direct", "409 conflict.C3b"]
        assert await sound(world) == ["a1", "a2", "v" if version == 3 else "p"]

    run(story())


@pytest.mark.parametrize("version", [1, 2, 3])
def test_r4_removals_are_done_again_where_their_manifest_has_moved(version: int) -> None:
    """One manifest holds all files; each MERGE replaces it, so that the next one's copy would bring files back."""

    async def story() -> None:
        world = World()
        names = ["a1", "b1", "c1", "d1"]
        await create(world, version, **SNAPSHOT)
        clients = [Client(world, name) for name in "abcd"]
        await clients[0].refresh()
        await outcomes(await clients[0].append(*(data(name, name[0]) for name in names), **BLIND))
        for client in clients:
            await client.refresh()
        requests = [
            await client.merge(add=[data(f"{name[0]}2", name[0])], remove=[name])
            for client, name in zip(clients, names, strict=True)
        ]
        expected = ["direct", *["rebased"] * 3] if version > 1 else ["direct", *["409 rebase.reads"] * 3]
        assert await outcomes(*requests) == expected
        if version == 1:
            with pytest.raises(CommitConflict, match="covers no commit in format version 1"):
                await requests[-1].send()
        assert await sound(world) == (["a2", "b2", "c2", "d2"] if version > 1 else ["a2", "b1", "c1", "d1"])

    run(story())


@pytest.mark.parametrize("version", [2, 3])
def test_r4_a_merged_manifest_of_a_client_is_not_used_once_what_it_merged_has_moved(version: int) -> None:
    async def story() -> None:
        world = World()
        merging = {"commit.manifest.min-count-to-merge": "1"}
        ann, bob = await two(world, version, seed=(data("a1", "a"), data("b1", "b")), **SNAPSHOT, **merging)
        one = await ann.merge(add=[data("a2", "a")], remove=["a1"])
        other = await bob.merge(add=[data("b2", "b")], remove=["b1"])
        assert await outcomes(one, other) == ["direct", "rebased"]
        assert await sound(world) == ["a2", "b2"]

    run(story())


def test_row_ids_of_what_is_carried_never_change() -> None:
    async def story() -> None:
        world = World()
        ann, bob = await two(world, 3, seed=(data("a1", "a"), data("b1", "b"), data("c1", "c")), **SNAPSHOT)
        before = (await ann.live())["c1"][0].file.first_row_id
        one = await ann.merge(add=[data("a2", "a")], remove=["a1"])
        other = await bob.merge(add=[data("b2", "b")], remove=["b1"])
        assert await outcomes(one, other) == ["direct", "rebased"]
        live = await (await ann.refresh()).live()
        assert live["c1"][0].file.first_row_id == before
        ids = [(t.file.first_row_id, t.file.record_count) for t, _ in live.values()]
        taken = [row for first, rows in ids for row in range(first or 0, (first or 0) + rows)]
        assert len(set(taken)) == len(taken)

    run(story())


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("seed", range(40))
def test_random_jobs_end_as_some_serial_order_would(version: int, seed: int) -> None:
    """Stale commits of every kind, in groups: each says afterwards what it does, and what was removed stays so."""

    async def story() -> None:
        chance = random.Random(seed)
        world = World()
        merging = {"commit.manifest.min-count-to-merge": str(chance.choice([1, 3, 100]))}
        start = tuple(data(f"{c}{i}", c) for c in "abc" for i in range(3))
        clients = list(await two(world, version, seed=start, **SNAPSHOT, **merging))
        clients += [await Client(world, name).refresh() for name in ("cyd", "dan")]
        model = {touched.file.path.rsplit("/", 1)[-1] for touched in start}
        for step in range(8):
            requests, effects = [], []
            for client in clients:
                if chance.random() < 0.4:
                    await client.refresh()
                live = await client.live()
                own = sorted(name for name, (t, _) in live.items() if t.file.content == 0)
                new = f"{client.name}{step}"
                what = chance.choice(["append", "merge", "merge", "compact", "delete"])
                if what == "append" or not own:
                    category = chance.choice("abc")
                    requests.append(await client.append(data(new, category), **BLIND))
                    effects.append(({new}, set[str]()))
                    continue
                name = chance.choice(own)
                touched = live[name][0]
                category = str(touched.file.partition[0])
                if what == "compact":
                    others = [n for n in own if live[n][0].file.partition == touched.file.partition][:3]
                    rows = sum(live[n][0].file.record_count for n in others)
                    requests.append(await client.compact(data(new, category, rows), *others))
                    effects.append(({new}, set(others)))
                elif what == "merge":
                    requests.append(await client.merge(add=[data(new, category)], remove=[name]))
                    effects.append(({new}, {name}))
                elif version == 3:
                    old = [n for n, (t, _) in live.items() if t.file.referenced_data_file == touched.file.path]
                    requests.append(await client.merge(deletes=[vector(new, touched)], supersedes=old))
                    effects.append((set[str](), set[str]()))
                else:
                    requests.append(await client.merge(deletes=[positions(new, category, target=touched)]))
                    effects.append((set[str](), set[str]()))
            for outcome, (added, removed) in zip(await outcomes(*requests), effects, strict=True):
                assert outcome in ("direct", "rebased") or outcome.startswith("409 "), outcome
                if not outcome.startswith("409"):
                    assert removed <= model
                    model = (model - removed) | added
        await sound(world)
        live = await (await clients[0].refresh()).live()
        assert {name for name, (touched, _) in live.items() if touched.file.content == 0} == model
        targets = {t.file.referenced_data_file.rsplit("/", 1)[-1] for t, _ in live.values() if t.file.content == 1}
        assert version == 2 or targets <= model  # no vector of a file that is gone

    run(story())


def test_s2_row_ids_that_a_client_gave_after_an_upgrade_stay() -> None:
    async def story() -> None:
        world = World()
        ann, bob = await two(world, 2, seed=(data("a1", "a"), data("b1", "b")))
        upgrade = await ann.append(data("x", "a"))
        upgrade.requirements, upgrade.updates = [], [{"action": "upgrade-format-version", "format-version": 3}]
        assert await outcomes(upgrade) == ["direct"]
        await ann.refresh()
        await bob.refresh()
        one, other = await ann.append(data("a2", "a"), **BLIND), await bob.append(data("b2", "b"), **BLIND)
        assert await outcomes(one, other) == ["direct", "rebased"]
        world.restart()
        head = await world.head()
        seen: dict[str, set[int | None]] = {}
        for snapshot in head.metadata["snapshots"][1:]:
            for row in await world.rows(snapshot):
                seen.setdefault(row.path, set()).add(row.first_row_id)
        assert all(len(ids) == 1 and None not in ids for ids in seen.values())
        await sound(world)

    run(story())


def test_s2_rows_keep_the_ids_that_they_got_while_a_client_wrote_their_manifest_anew() -> None:
    """Found by random jobs: the first snapshot after an upgrade gives ids to all rows; the other's copy lacks them."""

    async def story() -> None:
        world = World()
        merging = {"commit.manifest.min-count-to-merge": "1"}
        ann, bob = await two(world, 2, seed=(data("a1", "a"), data("b1", "b")), **SNAPSHOT, **merging)
        upgrade = await ann.append(data("x", "a"))
        upgrade.requirements, upgrade.updates = [], [{"action": "upgrade-format-version", "format-version": 3}]
        assert await outcomes(upgrade) == ["direct"]
        await ann.refresh()
        await bob.refresh()
        one = await ann.append(data("a2", "a"), **BLIND)
        other = await bob.merge(add=[data("b2", "b")], remove=["b1"])
        assert await outcomes(one) == ["direct"]
        given = (await (await ann.refresh()).live())["a1"][0].file.first_row_id
        assert given is not None
        assert await outcomes(other) == ["rebased"]
        assert (await (await ann.refresh()).live())["a1"][0].file.first_row_id == given
        assert await sound(world) == ["a1", "a2", "b2"]

    run(story())


def test_a_metadata_file_that_is_deleted_while_it_is_read_is_no_missing_table() -> None:
    async def story() -> None:
        world = World()
        await world.create(**{"write.metadata.delete-after-commit.enabled": "true"})
        gone = (await world.head()).location
        await (await world.writer().append("a", summary=BLIND)).send()
        del world.storage.files[gone]
        stranger = Heads(world.upstream, world.storage)
        asked: list[str] = []

        async def first_the_old_one(identifier: Identifier) -> str:
            asked.append(gone if not asked else await world.upstream.inner.location(identifier))
            return asked[-1]

        world.upstream.location = first_the_old_one  # type: ignore[method-assign]
        assert (await stranger.load(TABLE)).location == asked[-1]
        assert len(asked) == 2

    run(story())


@pytest.mark.parametrize("version", [2, 3])
def test_s4_small_manifests_are_merged_and_every_snapshot_still_names_what_it_added(version: int) -> None:
    async def story() -> None:
        world = World()
        merging = {"commit.manifest.min-count-to-merge": "10"}
        await create(world, version, **merging)
        clients = [await Client(world, f"c{n}").refresh() for n in range(8)]
        for step in range(6):
            requests = [await c.append(data(f"{c.name}-{step}", "a"), **BLIND) for c in clients]
            assert set(await outcomes(*requests)) <= {"direct", "rebased"}
            for client in clients[: step + 1]:
                await client.refresh()
        assert len(await sound(world)) == 48
        head = await world.head()
        assert len(await world.rows(head.snapshots[head.ref("main") or 0])) < 30

    run(story())


def test_a_manifest_that_cannot_be_read_keeps_nobody_from_appending() -> None:
    async def story() -> None:
        world = World()
        await create(world, 2, **{"commit.manifest.min-count-to-merge": "10"})
        clients = [await Client(world, f"c{n}").refresh() for n in range(12)]
        requests = [await c.append(data(f"{c.name}-0", "a"), **BLIND) for c in clients]
        await outcomes(*requests)
        late = await clients[0].append(data("late", "a"), **BLIND)
        admitted = await late.admitted()
        world.restart()
        head = await world.head()
        for row in await world.rows(head.snapshots[head.ref("main") or 0]):
            del world.storage.files[row.path]
        assert (await world.engine.submit(admitted)).outcome == "rebased"

    run(story())


def test_h1_a_clock_that_lags_does_not_make_new_snapshots_look_old() -> None:
    async def story() -> None:
        world = World()
        await create(world, 2)
        ann = await Client(world).refresh()
        request = await ann.append(data("a", "a"), **BLIND)
        world.clock.time_ms += 3_600_000
        assert await outcomes(request) == ["direct"]
        (snapshot,) = (await world.head()).metadata["snapshots"]
        assert world.clock.time_ms - 60_000 <= snapshot["timestamp-ms"] <= world.clock.time_ms

    run(story())


async def registered_with_source_ids(world: World) -> None:
    """The table as another catalog's metadata file may have it: version 3 may name a source as `source-ids`."""
    head = await world.head()
    specs = [
        {**spec, "fields": [{**f, "source-ids": [f["source-id"]]} for f in spec["fields"]]}
        for spec in head.metadata["partition-specs"]
    ]
    for spec in specs:
        for each in spec["fields"]:
            del each["source-id"]
    location = f"{head.metadata['location']}/metadata/other.metadata.json"
    world.storage.files[location] = json.dumps({**head.metadata, "partition-specs": specs}).encode()
    await world.tables.register(TABLE, location, overwrite=True)


def test_a_registered_table_whose_partition_fields_have_source_ids_is_written_like_any_other() -> None:
    async def story() -> None:
        world = World()
        ann, bob = await two(world, 3, seed=(data("a1", "a"), data("b1", "b")), **SNAPSHOT)
        await registered_with_source_ids(world)
        await ann.refresh()
        assert await outcomes(await ann.append(data("c1", "c"), **BLIND)) == ["direct"]
        await ann.refresh()
        await bob.refresh()
        one = await ann.merge(add=[data("a2", "a")], remove=["a1"])
        other = await bob.merge(add=[data("b2", "b")], remove=["b1"])
        assert await outcomes(one, other) == ["direct", "rebased"]
        assert await sound(world) == ["a2", "b2", "c1"]
        head = await world.head()
        (field,) = head.metadata["partition-specs"][0]["fields"]
        assert (field["source-ids"], "source-id" in field) == ([2], False)
        wider = {**SCHEMA, "fields": [*SCHEMA["fields"], {"id": 3, "name": "n", "type": "int", "required": False}]}
        changed = table_metadata.apply(
            head.metadata,
            [
                {"action": "add-schema", "schema": wider, "last-column-id": 3},
                {"action": "set-current-schema", "schema-id": -1},
                {"action": "add-spec", "spec": {"fields": [{"name": "c", "transform": "identity", "source-id": 2}]}},
            ],
            now_ms=1,
        )
        assert changed["partition-specs"][1]["fields"][0]["field-id"] == 1000, "the equal field lends its id"

    run(story())
