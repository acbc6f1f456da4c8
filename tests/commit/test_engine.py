"""The commit engine, story by story; each trap of the design is named by the test that fails without its remedy."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from icetower.commit.engine import Limits
from icetower.errors import CommitConflict, CommitStateUnknown, Forbidden, IcetowerError, KeyMisused, UpstreamFailed
from icetower.gateway.answers import answer as answer_of
from icetower.gateway.answers import etag
from icetower.protocol.names import Identifier
from icetower.protocol.snapshots import Snapshot
from icetower.protocol.updates import Updates
from icetower.table.head import HeadState
from icetower.upstream.port import Swap, SwapLost
from tests.commit.engine_world import TABLE, World, outcomes, run, told

BLIND = {"icetower.blind": "true"}
VERSIONS = pytest.mark.parametrize("version", [1, 2, 3])


async def stale_pair(world: World, **second: Any) -> tuple[list[str], list[str]]:
    """Two appends prepared on one head, sent together; the second as asked for."""
    ann, bob = await world.writer("ann").refresh(), await world.writer("bob").refresh()
    first = await ann.append("a", summary=BLIND)
    other = await bob.snapshot(**{"add": ("b",), "summary": BLIND, **second})
    return await outcomes(first, other), await world.live()


# -- which appends are rebased ----------------------------------------------------------------------------------------


@VERSIONS
def test_blind_appends_of_one_group_are_one_metadata_file(version: int) -> None:
    async def story() -> None:
        world = World()
        await world.create(version)
        writers = [await world.writer(f"w{i}").refresh() for i in range(20)]
        requests = [await w.append(f"f{i:02d}", summary=BLIND) for i, w in enumerate(writers)]
        assert await outcomes(*requests) == ["direct", *["rebased"] * 19]
        assert await world.live() == [f"f{i:02d}" for i in range(20)]
        head = await world.head()
        assert world.upstream.swaps == 1
        assert len(head.metadata["metadata-log"]) == 1
        assert [s["snapshot-id"] for s in head.metadata["snapshots"]] == [r.snapshot_id for r in requests]
        assert len(head.metadata["snapshot-log"]) == 20

    run(story())


R1_CASES = [
    # summary of the second, stale append                                                         outcome
    ({"icetower.blind": "true"}, "rebased"),
    ({}, "409 rebase.not-blind"),
    ({"engine-name": "spark", "engine-version": "4.1.4", "spark.app.id": "x"}, "rebased"),
    ({"engine-name": "spark", "engine-version": "4.0.1"}, "409 rebase.not-blind"),
    ({"engine-name": "spark", "engine-version": "3.5.6"}, "409 rebase.not-blind"),
    (
        {"engine-name": "spark", "engine-version": "4.1.4", "spark.app.id": "x", "spark.merge-into.x": "1"},
        "409 rebase.reads",
    ),
    (
        {"engine-name": "spark", "engine-version": "4.1.4", "spark.app.id": "x", "source-snapshot-id": "7"},
        "409 rebase.picked",
    ),
    (
        {"engine-name": "spark", "engine-version": "4.1.4", "spark.app.id": "x", "published-wap-id": "7"},
        "409 rebase.picked",
    ),
    ({"engine-name": "trino", "engine-version": "9.9"}, "409 rebase.not-blind"),
    ({"icetower.blind": "true", "kafka.connect.offsets": "{}"}, "409 rebase.offsets"),
]


@pytest.mark.parametrize(("summary", "outcome"), R1_CASES)
def test_r1_an_append_is_rebased_only_where_it_is_known_to_be_blind(summary: dict[str, str], outcome: str) -> None:
    async def story() -> None:
        world = World()
        await world.create()
        results, live = await stale_pair(world, summary=summary)
        assert results == ["direct", outcome]
        assert live == (["a", "b"] if outcome == "rebased" else ["a"])

    run(story())


def test_r1_an_owner_may_declare_every_append_of_a_table_blind() -> None:
    async def story() -> None:
        world = World()
        await world.create(**{"icetower.blind-appends": "true"})
        assert (await stale_pair(world, summary={}))[0] == ["direct", "rebased"]
        kafka = {"kafka.connect.offsets.x": "1"}
        world = World()
        await world.create(**{"icetower.blind-appends": "true"})
        assert (await stale_pair(world, summary=kafka))[0] == ["direct", "409 rebase.offsets"]

    run(story())


def test_r3_an_overwrite_that_only_adds_is_not_an_append() -> None:
    async def story() -> None:
        world = World()
        await world.create(**{"icetower.blind-appends": "true"})
        assert (await stale_pair(world, operation="overwrite"))[0] == ["direct", "409 rebase.predicate"]

    run(story())


def test_a_stale_removal_is_refused_and_nothing_of_it_stays() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        await (await world.writer().append("old", summary=BLIND)).send()
        results, live = await stale_pair(world, remove=("old",), operation="overwrite")
        assert results == ["direct", "409 rebase.predicate"]
        assert live == ["a", "old"]

    run(story())


@pytest.mark.parametrize("property_", ["icetower.strict"])
def test_r9_a_strict_table_is_never_rebased(property_: str) -> None:
    async def story() -> None:
        world = World()
        await world.create(**{property_: "true", "icetower.blind-appends": "true"})
        assert (await stale_pair(world))[0] == ["direct", "409 rebase.strict"]

    run(story())


# -- what a rebased snapshot looks like -------------------------------------------------------------------------------


@VERSIONS
def test_r4_a_merge_append_brings_nothing_back_that_others_have_removed(version: int) -> None:
    async def story() -> None:
        world = World()
        await world.create(version)
        await (await world.writer().append("x", "y", summary=BLIND)).send()
        stale, other = await world.writer("stale").refresh(), await world.writer("other").refresh()
        merged = await stale.snapshot(add=("z",), merge=True, summary=BLIND)
        removal = await other.snapshot(remove=("x",), operation="delete")
        assert await outcomes(removal, merged) == ["direct", "rebased"]
        assert await world.live() == ["y", "z"]

    run(story())


@VERSIONS
def test_r4_a_merge_append_keeps_its_manifest_while_what_it_merged_is_there(version: int) -> None:
    async def story() -> None:
        world = World()
        await world.create(version)
        await (await world.writer().append("x", summary=BLIND)).send()
        ann, bob = await world.writer("ann").refresh(), await world.writer("bob").refresh()
        first, merged = await ann.append("a", summary=BLIND), await bob.snapshot(add=("b",), merge=True, summary=BLIND)
        assert await outcomes(first, merged) == ["direct", "rebased"]
        assert await world.live() == ["a", "b", "x"]
        head = await world.head()
        named = {row.path for row in await world.rows(head.snapshots[merged.snapshot_id])}
        # A2: Java deletes every manifest of its own that the saved snapshot does not name.
        assert merged.rows[0].path in named

    run(story())


def test_s1_new_manifests_carry_the_snapshots_final_sequence_number() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        await stale_pair(world)
        head = await world.head()
        numbers = [s["sequence-number"] for s in head.metadata["snapshots"]]
        assert numbers == [1, 2]
        assert head.metadata["last-sequence-number"] == 2
        last = head.metadata["snapshots"][-1]
        own = [row for row in await world.rows(last) if row.added_snapshot_id == last["snapshot-id"]]
        assert [(row.sequence_number, row.min_sequence_number) for row in own] == [(2, 2)]

    run(story())


def test_s1_a_stale_sequence_number_alone_is_renumbered() -> None:
    """A commit to another branch has moved the table's number, though nobody has touched this branch."""

    async def story() -> None:
        world = World()
        await world.create()
        await (await world.writer().append("x", summary=BLIND)).send()
        ann, bob = await world.writer("ann").refresh(), await world.writer("bob").refresh()
        on_branch = await bob.snapshot(add=("b",), ref="side", parent=dict(bob.base.metadata["snapshots"][0]))
        on_main = await ann.snapshot(remove=("x",), operation="delete")
        assert await outcomes(on_branch, on_main) == ["direct", "direct"]
        assert (await world.live(), await world.live(ref="side")) == ([], ["b", "x"])
        head = await world.head()
        assert [s["sequence-number"] for s in head.metadata["snapshots"]] == [1, 2, 3]

    run(story())


def test_s1_siblings_that_name_each_other_are_written_anew() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        ann, bob = await world.writer("ann").refresh(), await world.writer("bob").refresh()
        one = await bob.append("b1", summary=BLIND)
        two = await bob.snapshot(
            add=("b2",), merge=True, parent=one.snapshot, parent_rows=one.rows, sequence_number=2, summary=BLIND
        )
        two.requirements = []
        assert await outcomes(await ann.append("a", summary=BLIND), one.then(two)) == ["direct", "rebased"]
        assert await world.live() == ["a", "b1", "b2"]
        head = await world.head()
        entries = await world.live_entries(head)
        assert {e.sequence_number for e in entries if e.status == 0} <= {None}
        # The first of the two is no version that anybody could have read: it stays out of the log.
        assert len(head.metadata["snapshot-log"]) == 2

    run(story())


def test_s2_row_ids_are_given_once() -> None:
    async def story() -> None:
        world = World()
        await world.create(3)
        writers = [await world.writer(f"w{i}").refresh() for i in range(5)]
        await outcomes(*[await w.append(f"{i}a", f"{i}b", summary=BLIND) for i, w in enumerate(writers)])
        head = await world.head()
        assert [s["first-row-id"] for s in head.metadata["snapshots"]] == [0, 2, 4, 6, 8]
        assert {s["added-rows"] for s in head.metadata["snapshots"]} == {2}
        assert head.metadata["next-row-id"] == 10
        rows = await world.rows(head.metadata["snapshots"][-1])
        assert sorted(row.first_row_id for row in rows if row.first_row_id is not None) == [0, 2, 4, 6, 8]

    run(story())


def test_s2_a_table_upgraded_meanwhile_gets_lists_of_its_own_format() -> None:
    async def story() -> None:
        world = World()
        await world.create(2)
        await (await world.writer().append("x", summary=BLIND)).send()
        ann = await world.writer("ann").refresh()
        stale = await ann.append("a", summary=BLIND)
        upgrade = await world.writer("bob").append()
        upgrade.updates = [{"action": "upgrade-format-version", "format-version": 3}]
        assert await outcomes(upgrade) == ["direct"]
        assert await outcomes(stale) == ["direct"]
        head = await world.head()
        last = head.metadata["snapshots"][-1]
        assert (last["first-row-id"], last["added-rows"], head.metadata["next-row-id"]) == (0, 2, 2)
        assert all(row.first_row_id is not None for row in await world.rows(last))
        assert await world.live() == ["a", "x"]

    run(story())


@VERSIONS
def test_s3_totals_are_computed_and_not_believed(version: int) -> None:
    async def story() -> None:
        world = World()
        await world.create(version)
        await stale_pair(world)  # every client here claims 12 records in all
        head = await world.head()
        assert [s["summary"]["total-records"] for s in head.metadata["snapshots"]] == ["1", "2"]

    run(story())


def test_s4_a_snapshots_own_files_are_added_entries_of_its_own_manifest() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        await stale_pair(world)
        head = await world.head()
        for snapshot, name in zip(head.metadata["snapshots"], ("a", "b"), strict=True):
            own = [r for r in await world.rows(snapshot) if r.added_snapshot_id == snapshot["snapshot-id"]]
            entries = [e for row in own for e in (await world.manifests.manifest_at(row.path)).entries]
            assert [(e.status, e.file.path.rsplit("/", 1)[-1]) for e in entries] == [(1, name)]

    run(story())


def test_s5_who_is_refused_late_leaves_no_trace_in_those_behind() -> None:
    async def story() -> None:
        world = World()
        await world.create(3)
        world.gate.revoked["bob"] = Forbidden("bob was revoked", rule="contract.revoked")
        writers = [await world.writer(name).refresh() for name in ("ann", "bob", "cid")]
        requests = [await w.append(w.name, summary=BLIND) for w in writers]
        assert await outcomes(*requests) == ["direct", "403 contract.revoked", "rebased"]
        assert await world.live() == ["ann", "cid"]
        head = await world.head()
        assert [s["sequence-number"] for s in head.metadata["snapshots"]] == [1, 2]
        assert head.metadata["next-row-id"] == 2
        await assert_no_litter(world)

    run(story())


def test_k4_a_revocation_while_the_others_are_looked_at_counts() -> None:
    """Revocations are asked about last: whatever else is looked up takes its time."""

    async def story() -> None:
        world = World()
        await world.create(3)

        async def landed_meanwhile(old: HeadState, members: Sequence[Any]) -> Mapping[int, IcetowerError]:
            world.gate.revoked["bob"] = Forbidden("bob was revoked", rule="contract.revoked")
            return {}

        world.gate.landed_meanwhile = landed_meanwhile  # type: ignore[method-assign]
        writers = [await world.writer(name).refresh() for name in ("ann", "bob")]
        requests = [await w.append(w.name, summary=BLIND) for w in writers]
        assert await outcomes(*requests) == ["direct", "403 contract.revoked"]
        assert await world.live() == ["ann"]

    run(story())


async def assert_no_litter(world: World, table: Identifier = TABLE) -> None:
    """Every metadata file, list and manifest that the tower wrote is reachable from the head."""
    head = await world.head(table)
    reached = {head.location} | {entry["metadata-file"] for entry in head.metadata.get("metadata-log", ())}
    for snapshot in head.metadata["snapshots"]:
        reached.add(snapshot["manifest-list"])
        reached |= {row.path for row in await world.rows(snapshot)}
    own = (path for path in world.storage.files if path.startswith(head.metadata["location"] + "/"))
    written = {path for path in own if "-client.avro" not in path and "-m0.avro" not in path}
    assert written <= reached


def test_a1_a_rebased_snapshot_keeps_its_id_and_time_never_goes_back() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        ann, bob = await world.writer("ann").refresh(), await world.writer("bob").refresh()
        late = await bob.append("b", summary=BLIND)
        world.clock.time_ms += 120_000
        first = await ann.append("a", summary=BLIND)
        assert await outcomes(first, late) == ["direct", "rebased"]
        head = await world.head()
        assert set(head.snapshots) == {first.snapshot_id, late.snapshot_id}
        times = [entry["timestamp-ms"] for entry in head.metadata["snapshot-log"]]
        assert times == sorted(times)
        assert times[-1] == world.clock.time_ms

    run(story())


def test_r7_staged_snapshots_leave_main_alone_and_are_renumbered() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        await (await world.writer().append("x", summary=BLIND)).send()
        ann, bob = await world.writer("ann").refresh(), await world.writer("bob").refresh()
        staged = await bob.snapshot(add=("b",), ref=None, summary={"wap.id": "1"})
        assert await outcomes(await ann.append("a", summary=BLIND), staged) == ["direct", "direct"]
        assert await world.live() == ["a", "x"]
        head = await world.head()
        saved = head.snapshots[staged.snapshot_id]
        assert saved["sequence-number"] == 3
        assert saved["parent-snapshot-id"] == staged.snapshot["parent-snapshot-id"]

    run(story())


def test_r7_a_commit_without_assertion_whose_base_left_the_branch_is_refused() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        await (await world.writer().append("x", summary=BLIND)).send()
        first = await world.head()
        await (await (await world.writer().refresh()).append("y", summary=BLIND)).send()
        stale = await world.writer("bob").refresh()
        request = await stale.append("b", summary=BLIND, assert_ref=False)
        back = await (await world.writer().refresh()).append()
        back.updates = [
            {
                "action": "set-snapshot-ref",
                "ref-name": "main",
                "type": "branch",
                "snapshot-id": first.metadata["current-snapshot-id"],
            }
        ]
        assert await outcomes(back, request) == ["direct", "409 commit.base"]
        assert await world.live() == ["x"]

    run(story())


R8_CASES = [
    # what the stale append names                    rule
    ("a spec that is gone", "commit.spec"),
    ("position deletes of version 2", "commit.delete-format"),
    ("an encrypted manifest list", "rebase.encrypted"),
]


@pytest.mark.parametrize(("what", "rule"), R8_CASES)
def test_r8_what_has_vanished_meanwhile_is_409(what: str, rule: str) -> None:
    async def story() -> None:
        world = World()
        await world.create(3)
        first, second = await world.writer("ann").refresh(), await world.writer("bob").refresh()
        stale = await second.append("b", summary=BLIND)
        await (await first.append("a", summary=BLIND)).send()
        admitted = await stale.admitted()
        change = admitted.changes[0]
        if what == "a spec that is gone":
            change = replace(change, added=tuple(replace(t, spec_id=7) for t in change.added))
        elif what == "position deletes of version 2":
            deletes = [replace(t, file=replace(t.file, content=1, file_format="parquet")) for t in change.added]
            # On the head, so that nothing else can refuse it.
            change = replace(change, added=tuple(deletes))
            admitted = replace(admitted, requirements=(), updates=Updates(admitted.updates[:1]))
        else:
            change = replace(change, snapshot=Snapshot({**change.snapshot, "key-id": "k"}))
        with pytest.raises(CommitConflict) as caught:
            await world.engine.submit(replace(admitted, changes=(change,)))
        assert caught.value.rule == rule
        assert await world.live() == ["a"]

    run(story())


def test_a5_a_groups_answer_is_serialised_once() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        writers = [await world.writer(f"w{i}").refresh() for i in range(3)]
        requests = [await w.append(w.name, summary=BLIND) for w in writers]
        done = await asyncio.gather(*[world.engine.submit(await r.admitted()) for r in requests])
        for compressed in (False, True):
            answers = {id(answer_of(result.head, b"{}", compressed=compressed)) for result in done}
            assert len(answers) == 1
        body = json.loads(answer_of(done[0].head, b"{}", compressed=False))
        assert body["metadata"]["current-snapshot-id"] == requests[-1].snapshot_id
        assert json.loads(gzip.decompress(answer_of(done[0].head, b"{}", compressed=True))) == body

    run(story())


def test_a6_an_etag_is_of_one_version_and_one_variant() -> None:
    async def story() -> None:
        world = World()
        head = await world.create()
        await (await world.writer().append("a", summary=BLIND)).send()
        after = await world.head()
        etags = {etag(h, variant) for h in (head, after) for variant in ("all ann", "all bob", "refs ann")}
        assert len(etags) == 6
        assert etag(after, "all ann") == etag(await world.head(), "all ann")

    run(story())


# -- keys -------------------------------------------------------------------------------------------------------------


def test_k1_a_commit_sent_again_is_in_the_table_once_after_a_crash_too() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        ann = await world.writer("ann").refresh()
        request = await ann.append("a", key="k1", summary=BLIND)
        assert told(await request.send()) == "direct"
        await (await (await world.writer("bob").refresh()).append("b", summary=BLIND)).send()
        world.restart()
        again = await ann.append("a2", key="k1", summary=BLIND)  # a rerun: other files, same work
        answer = await again.send()
        assert (answer.outcome, answer.snapshots) == ("replayed", (request.snapshot_id,))
        assert await world.live() == ["a", "b"]

    run(story())


def test_k1_one_key_sent_at_once_by_many_lands_once() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        writers = [await world.writer("ann").refresh() for _ in range(10)]
        requests = [await w.append(f"f{i}", key="k", summary=BLIND) for i, w in enumerate(writers)]
        assert await outcomes(*requests) == ["direct", *["replayed"] * 9]
        assert await world.live() == ["f0"]

    run(story())


def test_k2_a_key_belongs_to_its_principal_and_its_branch() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        ann, bob = await world.writer("ann").refresh(), await world.writer("bob").refresh()
        requests = [await w.append(w.name, key="k", summary=BLIND) for w in (ann, bob)]
        assert await outcomes(*requests) == ["direct", "rebased"]
        side = await ann.refresh()
        request = await side.append("s", key="k", ref="side", summary=BLIND)
        assert await outcomes(request) == ["direct"]

    run(story())


def test_k2_a_key_whose_snapshot_was_rolled_back_is_not_done() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        await (await world.writer().append("x", summary=BLIND)).send()
        base = await world.head()
        keyed = await (await world.writer("ann").refresh()).append("a", key="k", summary=BLIND)
        await keyed.send()
        back = await (await world.writer().refresh()).append()
        target = base.metadata["current-snapshot-id"]
        back.updates = [{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": target}]
        await back.send()
        again = await (await world.writer("ann").refresh()).append("a2", key="k", summary=BLIND)
        with pytest.raises(KeyMisused, match="rolled back") as caught:
            await again.send()
        assert (caught.value.rule, caught.value.snapshot) == ("key.rolled-back", keyed.snapshot_id)

    run(story())


def test_k3_one_application_may_not_use_one_key_for_two_writes() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        app = BLIND | {"spark.app.id": "local-1"}
        ann = await world.writer("ann").refresh()
        first = await ann.append("a", key="k", summary=app)
        await first.send()
        assert told(await first.send()) == "replayed"  # the very same request again is no second write
        with pytest.raises(KeyMisused, match="per write"):
            await (await ann.append("b", key="k", summary=app)).send()
        rerun = await ann.append("c", key="k", summary=BLIND | {"spark.app.id": "local-2"})
        assert told(await rerun.send()) == "replayed"

    run(story())


# -- swaps that go wrong ----------------------------------------------------------------------------------------------


def test_a_swap_lost_to_an_outside_writer_costs_one_reload() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        world.upstream.script = [outside_writer(world)]
        request = await (await world.writer("ann").refresh()).append("a", summary=BLIND)
        assert await outcomes(request) == ["rebased"]
        assert await world.live() == ["a", "outside"]
        assert world.upstream.swaps == 2

    run(story())


def outside_writer(world: World, name: str = "outside") -> Any:
    """A tower of its own, on the same catalog and storage, that commits a file between our reading and our swap."""

    async def step(swaps: Sequence[Swap]) -> None:
        other = World(clock=world.clock, storage=world.storage)
        other.upstream.inner = world.upstream.inner
        other.restart()
        await (await (await other.writer("eve").refresh()).append(name, summary=BLIND)).send()
        await world.upstream.inner.swap(swaps)

    return step


UNKNOWN = [
    # what happens to the swaps, one after another                     told to the client      swaps
    (["landed_but_unknown"], "direct", 2),
    (["lost_on_the_way"], "direct", 2),
    (["lost_on_the_way", "lost_on_the_way", "landed_but_unknown"], "direct", 4),
]


@pytest.mark.parametrize(("script", "outcome", "swaps"), UNKNOWN)
def test_a3_an_unknown_swap_is_repeated_until_it_is_known(script: list[str], outcome: str, swaps: int) -> None:
    async def story() -> None:
        world = World()
        await world.create()
        world.upstream.script = [getattr(world.upstream, name) for name in script]
        request = await (await world.writer("ann").refresh()).append("a", summary=BLIND)
        assert await outcomes(request) == [outcome]
        assert world.upstream.swaps == swaps
        assert await world.live() == ["a"]
        assert len((await world.head()).metadata["snapshots"]) == 1

    run(story())


def test_a3_a_landed_swap_is_found_beneath_what_others_built_on_it() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        unknown_then_buried = world.upstream.landed_but_unknown
        bury = outside_writer(world)

        async def buried(swaps: Sequence[Swap]) -> None:
            with pytest.raises(SwapLost):
                await bury(swaps)
            raise SwapLost(TABLE, await world.upstream.inner.location(TABLE))

        world.upstream.script = [unknown_then_buried, buried]
        request = await (await world.writer("ann").refresh()).append("a", summary=BLIND)
        assert await outcomes(request) == ["direct"]
        assert await world.live() == ["a", "outside"]

    run(story())


def test_a3_nobody_hears_409_while_the_outcome_is_unknown_and_no_file_is_deleted() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        world.upstream.script = [world.upstream.lost_on_the_way] * 50
        ann, bob = await world.writer("ann").refresh(), await world.writer("bob").refresh()
        before = set(world.storage.files)
        requests = [await ann.append("a", summary=BLIND), await bob.snapshot(add=("b",), operation="overwrite")]
        # The second is refused for certain, whatever becomes of the first.
        assert await outcomes(*requests) == ["504 commit.unknown", "409 rebase.predicate"]
        assert [path for path in set(world.storage.files) - before if path.endswith(".metadata.json")]

    run(story())


def test_a_failed_write_commits_nothing_and_leaves_nothing() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        ann, bob = await world.writer("ann").refresh(), await world.writer("bob").refresh()
        requests = [await ann.append("a", summary=BLIND), await bob.append("b", summary=BLIND)]
        world.storage.fail_write = lambda path: UpstreamFailed(f"no space for {path}") if "snap-" in path else None
        assert await outcomes(*requests) == ["502 upstream", "502 upstream"]
        assert world.upstream.swaps == 0
        await assert_no_litter(world)
        world.storage.fail_write = lambda _: None
        assert await outcomes(*requests) == ["direct", "rebased"]

    run(story())


POISON = [
    ("a lone surrogate", lambda snapshot: snapshot["summary"].update({"note": "\ud800"})),
    ("a number beyond 64 bits", lambda snapshot: snapshot.update({"extra": 2**70})),
    ("a summary that is none", lambda snapshot: snapshot.update({"summary": ["append"]})),
]


@pytest.mark.parametrize(("what", "spoil"), POISON, ids=[what for what, _ in POISON])
def test_one_commits_oddity_does_not_fail_its_group(what: str, spoil: Any) -> None:
    async def story() -> None:
        world = World()
        await world.create()
        writers = [await world.writer(name).refresh() for name in ("ann", "bob", "cid")]
        requests = [await w.append(w.name, summary=BLIND) for w in writers]
        admitted = [await request.admitted() for request in requests]
        spoil(requests[1].snapshot)
        results = await asyncio.gather(*(world.engine.submit(a) for a in admitted), return_exceptions=True)
        assert [told(r).split()[0] for r in results] == ["direct", "400", "rebased"], what
        assert await world.live() == ["ann", "cid"]

    run(story())


def test_an_error_while_writing_is_traced_to_the_commit_that_causes_it() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        ann, bob = await world.writer("ann").refresh(), await world.writer("bob").refresh()
        settings = await bob.append()
        settings.updates = [{"action": "set-properties", "updates": {"write.metadata.compression-codec": "snappy"}}]
        settings.requirements = []
        assert await outcomes(settings, await ann.append("a", summary=BLIND)) == ["400 property", "direct"]
        assert await world.live() == ["a"]

    run(story())


def test_what_fails_after_the_swap_fails_nobody() -> None:
    async def story() -> None:
        world = World()
        properties = {
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "1",
        }
        await world.create(**properties)
        await (await (await world.writer("ann").refresh()).append("a", summary=BLIND)).send()

        async def broken(paths: object) -> tuple[str, ...]:
            raise UpstreamFailed("the storage is away")

        world.storage.delete_many = broken  # type: ignore[method-assign, assignment]
        request = await (await world.writer("bob").refresh()).append("b", summary=BLIND)
        assert await outcomes(request) == ["direct"]
        assert await world.live() == ["a", "b"]

    run(story())


# -- the queue --------------------------------------------------------------------------------------------------------


def test_a4_a_commit_past_its_deadline_is_withdrawn_before_it_hears_409() -> None:
    async def story() -> None:
        world = World(limits=Limits(deadline_s=0.05, settle_s=1))
        await world.create()
        go_on, under_way = asyncio.Event(), asyncio.Event()

        async def slow(swaps: Sequence[Swap]) -> None:
            under_way.set()
            await go_on.wait()
            await world.upstream.inner.swap(swaps)

        world.upstream.script = [slow]
        ann, bob = await world.writer("ann").refresh(), await world.writer("bob").refresh()
        first = asyncio.create_task((await ann.append("a", summary=BLIND)).send())
        await under_way.wait()
        with pytest.raises(CommitConflict) as caught:
            await (await bob.append("b", summary=BLIND)).send()
        assert (caught.value.rule, caught.value.next_step) == ("queue.deadline", "retry")
        go_on.set()
        assert (await first).outcome == "direct"  # it was on its way: only its outcome answers, however late
        await world.engine.drain()
        assert await world.live() == ["a"]

    run(story())


def test_a_full_queue_holds_commits_back_and_takes_them_later() -> None:
    async def story() -> None:
        world = World(limits=Limits(queue_max=2, group_max=2, deadline_s=5))
        await world.create()
        writers = [await world.writer(f"w{i}").refresh() for i in range(9)]
        requests = [await w.append(f"f{i}", summary=BLIND) for i, w in enumerate(writers)]
        results = await outcomes(*requests)
        assert sorted(results) == ["direct", *["rebased"] * 8]
        assert len(await world.live()) == 9

    run(story())


def test_a_draining_engine_finishes_what_waits_and_takes_nothing_new() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        request = await (await world.writer("ann").refresh()).append("a", summary=BLIND)
        under_way = asyncio.Event()

        async def told_when_it_swaps(swaps: Sequence[Swap]) -> None:
            under_way.set()
            await world.upstream.inner.swap(swaps)

        world.upstream.script = [told_when_it_swaps]
        waiting = asyncio.create_task(request.send())
        await under_way.wait()
        await world.engine.drain()
        assert (await waiting).outcome == "direct"
        late = await (await world.writer("bob").refresh()).append("b", summary=BLIND)
        with pytest.raises(CommitConflict, match="shutting down"):
            await late.send()

    run(story())


# -- several tables ---------------------------------------------------------------------------------------------------


def test_a_transaction_commits_all_tables_or_none() -> None:
    async def story() -> None:
        world = World()
        other = Identifier(("db",), "u")
        await world.create()
        await world.create(table=other)
        one = await world.writer("ann").append("a", summary=BLIND)
        two = await world.writer("ann").append("b", summary=BLIND, table=other)
        done = await world.engine.submit_together([await one.admitted(), await two.admitted()])
        assert [result.outcome for result in done] == ["direct", "direct"]
        assert world.upstream.swaps == 1
        stale = await world.writer("bob").refresh()
        again = await stale.append("c", summary=BLIND)
        bad = await world.writer("bob").append("d", summary={}, table=other)
        bad.requirements[-1]["snapshot-id"] = 99
        with pytest.raises(CommitConflict):
            await world.engine.submit_together([await again.admitted(), await bad.admitted()])
        assert (await world.live(), await world.live(other)) == (["a"], ["b"])
        await assert_no_litter(world)

    run(story())


def test_transactions_that_name_tables_in_any_order_never_wait_for_each_other() -> None:
    async def story() -> None:
        world = World()
        tables = [Identifier(("db",), name) for name in "tuv"]
        for table in tables:
            await world.create(table=table)
        sends = []
        for i in range(12):
            order = tables[i % 3 :] + tables[: i % 3]
            writer = world.writer(f"w{i}")
            requests = []
            for table in order:
                await writer.refresh(table)
                requests.append(await writer.append(f"{i}", summary=BLIND, table=table))
            sends.append(world.engine.submit_together([await r.admitted() for r in requests]))
        results = await asyncio.gather(*sends)
        assert {len(result) for result in results} == {3}
        for table in tables:
            assert len(await world.live(table)) == 12

    run(story())


def test_a_key_of_another_transaction_is_no_half_replay() -> None:
    async def story() -> None:
        world = World()
        tables = [Identifier(("db",), name) for name in "tuv"]
        for table in tables:
            await world.create(table=table)

        async def send(*names: int) -> list[str]:
            requests = []
            for i in names:
                writer = await world.writer("ann").refresh(tables[i])
                requests.append(await writer.append(f"{i}{len(names)}", key="k", summary=BLIND, table=tables[i]))
            try:
                done = await world.engine.submit_together([await r.admitted() for r in requests])
            except IcetowerError as error:
                return [told(error)]
            return [told(result) for result in done]

        assert await send(0, 1) == ["direct", "direct"]
        assert await send(0, 1) == ["replayed", "replayed"]
        assert await send(1, 2) == ["422 key.transaction"]
        assert [len(await world.live(table)) for table in tables] == [1, 1, 0]

    run(story())


def test_an_unknown_transaction_settles_as_one() -> None:
    async def story() -> None:
        world = World()
        other = Identifier(("db",), "u")
        await world.create()
        await world.create(table=other)
        world.upstream.script = [world.upstream.landed_but_unknown]
        one = await world.writer("ann").append("a", summary=BLIND)
        two = await world.writer("ann").append("b", summary=BLIND, table=other)
        await world.engine.submit_together([await one.admitted(), await two.admitted()])
        assert (await world.live(), await world.live(other)) == (["a"], ["b"])
        world.upstream.script = [world.upstream.lost_on_the_way] * 50
        third = await (await world.writer("ann").refresh()).append("c", summary=BLIND)
        with pytest.raises(CommitStateUnknown):
            await world.engine.submit_together([await third.admitted()])

    run(story())
