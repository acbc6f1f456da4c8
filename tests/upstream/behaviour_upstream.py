"""What every upstream catalog must do: an adapter's tests subclass `UpstreamBehaviour` and add a fixture `upstream`."""

from __future__ import annotations

import asyncio

import pytest

from icetower.errors import AlreadyExists, BadRequest, NamespaceNotEmpty, NoSuchNamespace, NoSuchTable
from icetower.protocol.names import Identifier
from icetower.upstream.port import Swap, SwapLost, Upstream

DB = ("db",)
T = Identifier(DB, "t")
U = Identifier(DB, "u")


@pytest.mark.anyio
class UpstreamBehaviour:
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    # -- namespaces

    async def test_a_created_namespace_exists_and_shows_its_properties(self, upstream: Upstream) -> None:
        assert not await upstream.namespace_exists(DB)
        await upstream.create_namespace(DB, {"owner": "ann", "empty": ""})
        assert await upstream.namespace_exists(DB)
        assert await upstream.namespace_properties(DB) == {"owner": "ann", "empty": ""}

    async def test_a_namespace_without_properties_exists_and_shows_none(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {})
        assert await upstream.namespace_exists(DB)
        assert await upstream.namespace_properties(DB) == {}

    async def test_a_namespace_is_created_once(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {"a": "1"})
        with pytest.raises(AlreadyExists, match=r"^Namespace already exists: db"):
            await upstream.create_namespace(DB, {"a": "2"})
        assert await upstream.namespace_properties(DB) == {"a": "1"}

    async def test_levels_are_listed_one_at_a_time(self, upstream: Upstream) -> None:
        for namespace in (("a",), ("a", "x"), ("a", "y", "z"), ("b", "c"), ("ab", "x")):
            await upstream.create_namespace(namespace, {})
        assert await upstream.list_namespaces() == [("a",), ("ab",), ("b",)]
        assert await upstream.list_namespaces(("a",)) == [("a", "x"), ("a", "y")]
        assert await upstream.list_namespaces(("a", "y")) == [("a", "y", "z")]
        assert await upstream.list_namespaces(("a", "x")) == []

    async def test_a_parent_exists_through_its_child(self, upstream: Upstream) -> None:
        await upstream.create_namespace(("a", "b"), {})
        assert await upstream.namespace_exists(("a",))
        with pytest.raises(AlreadyExists):
            await upstream.create_namespace(("a",), {})
        with pytest.raises(NamespaceNotEmpty):
            await upstream.drop_namespace(("a",))

    @pytest.mark.parametrize(
        ("made", "asked"),
        [("a_b", "axb"), ("a%", "abc"), ("a!", "a"), ("aXb", "a_b"), ("abc", "a%"), ("Sales", "sales"), ("ab", "a")],
    )
    async def test_names_match_exactly(self, upstream: Upstream, made: str, asked: str) -> None:
        await upstream.create_namespace((made, "child"), {})
        assert not await upstream.namespace_exists((asked,))
        await upstream.create_namespace((asked,), {})
        assert await upstream.list_namespaces((asked,)) == []
        assert await upstream.list_namespaces((made,)) == [(made, "child")]
        await upstream.drop_namespace((asked,))
        assert await upstream.namespace_exists((made, "child"))

    async def test_a_missing_namespace_is_named_by_every_question_about_it(self, upstream: Upstream) -> None:
        match = r"^Namespace does not exist: no\.where"
        nowhere = ("no", "where")
        for question in (
            upstream.list_namespaces(nowhere),
            upstream.list_tables(nowhere),
            upstream.namespace_properties(nowhere),
            upstream.update_namespace(nowhere, [], {"a": "1"}),
            upstream.drop_namespace(nowhere),
            upstream.create_table(Identifier(nowhere, "t"), "m0"),
        ):
            with pytest.raises(NoSuchNamespace, match=match):
                await question

    async def test_properties_are_set_replaced_and_removed(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {"keep": "1", "change": "1", "drop": "1"})
        done = await upstream.update_namespace(DB, ["drop", "absent"], {"change": "2", "new": "3"})
        assert tuple(done) == (["change", "new"], ["drop"], ["absent"])
        assert await upstream.namespace_properties(DB) == {"keep": "1", "change": "2", "new": "3"}

    async def test_the_last_property_removed_leaves_the_namespace(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {"only": "1"})
        await upstream.update_namespace(DB, ["only"], {})
        assert await upstream.namespace_exists(DB)

    async def test_concurrent_updates_of_properties_all_arrive(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {"shared": "0"})
        await asyncio.gather(*(upstream.update_namespace(DB, [], {"shared": "1", f"k{n}": "1"}) for n in range(8)))
        assert await upstream.namespace_properties(DB) == {"shared": "1", **{f"k{n}": "1" for n in range(8)}}

    async def test_a_key_both_set_and_removed_changes_nothing(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {"a": "1"})
        with pytest.raises(BadRequest, match="a"):
            await upstream.update_namespace(DB, ["a"], {"a": "2"})
        assert await upstream.namespace_properties(DB) == {"a": "1"}

    async def test_only_an_empty_namespace_is_dropped(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {"a": "1"})
        await upstream.create_table(T, "m0")
        with pytest.raises(NamespaceNotEmpty, match="is not empty"):
            await upstream.drop_namespace(DB)
        assert await upstream.namespace_properties(DB) == {"a": "1"}
        await upstream.drop_table(T)
        await upstream.drop_namespace(DB)
        assert not await upstream.namespace_exists(DB)

    @pytest.mark.parametrize("name", ["", "a\x00b", "x" * 300])
    async def test_a_name_that_cannot_be_held_is_refused(self, upstream: Upstream, name: str) -> None:
        await upstream.create_namespace(DB, {})
        with pytest.raises(BadRequest):
            await upstream.create_namespace((name,), {})
        with pytest.raises(BadRequest):
            await upstream.create_table(Identifier(DB, name), "m0")

    # -- tables

    async def test_a_created_table_is_listed_and_located(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {})
        await upstream.create_namespace((*DB, "sub"), {})
        await upstream.create_table(U, "m1")
        await upstream.create_table(T, "m0")
        await upstream.create_table(Identifier((*DB, "sub"), "v"), "m2")
        assert await upstream.list_tables(DB) == [T, U]
        assert await upstream.all_tables(10) == [T, U, Identifier((*DB, "sub"), "v")]
        assert await upstream.all_tables(2) == [T, U]
        assert await upstream.location(T) == "m0"

    async def test_tables_are_found_by_a_part_of_their_place(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {})
        await upstream.create_table(U, "s3://b/u-1_2/metadata/m1")
        await upstream.create_table(T, "s3://b/t-1x2/metadata/m0")
        assert await upstream.tables_at("-1_2/") == [U]
        assert await upstream.tables_at("/metadata/") == [T, U]
        assert await upstream.tables_at("-1") == [T, U]
        assert await upstream.tables_at("-3/") == []

    async def test_places_that_are_asked_for_together_are_found_apart(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {})
        # Catalogs share a database, and its other tests leave tables in it: these lie in places of their own.
        await upstream.create_table(U, "s3://b/u-3_4/metadata/m1")
        await upstream.create_table(T, "s3://b/t-3x4/metadata/m0")
        parts = ["-3_4/", "-3x4/", "4/metadata/", *(f"-none-{at}/" for at in range(200))]
        found = await asyncio.gather(*(upstream.tables_at(part) for part in parts))
        assert found == [[U], [T], [T, U], *([[]] * 200)]

    async def test_a_table_is_created_once(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {})
        await upstream.create_table(T, "m0")
        with pytest.raises(AlreadyExists, match=r"^Table already exists: db\.t"):
            await upstream.create_table(T, "m1")
        assert await upstream.location(T) == "m0"

    async def test_a_dropped_table_is_gone_and_its_name_free(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {})
        await upstream.create_table(T, "m0")
        await upstream.drop_table(T)
        for question in (upstream.location(T), upstream.drop_table(T), upstream.drop_table(T, "m0")):
            with pytest.raises(NoSuchTable, match=r"^Table does not exist: db\.t"):
                await question
        await upstream.create_table(T, "m1")
        assert await upstream.location(T) == "m1"

    async def test_a_drop_at_a_head_that_moved_is_lost(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {})
        await upstream.create_table(T, "m1")
        with pytest.raises(SwapLost) as lost:
            await upstream.drop_table(T, "m0")
        assert (lost.value.identifier, lost.value.found) == (T, "m1")
        await upstream.drop_table(T, "m1")

    async def test_a_rename_moves_the_head_to_another_namespace(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {})
        await upstream.create_namespace(("other",), {})
        await upstream.create_table(T, "m0")
        moved = Identifier(("other",), "moved")
        await upstream.rename_table(T, moved)
        assert await upstream.location(moved) == "m0"
        assert await upstream.list_tables(DB) == []
        await upstream.rename_table(moved, moved)
        assert await upstream.location(moved) == "m0"

    async def test_a_refused_rename_changes_nothing(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {})
        await upstream.create_table(T, "m0")
        await upstream.create_table(U, "m1")
        with pytest.raises(AlreadyExists, match=r"^Table already exists: db\.u"):
            await upstream.rename_table(T, U)
        with pytest.raises(NoSuchNamespace, match="nowhere"):
            await upstream.rename_table(T, Identifier(("nowhere",), "t"))
        with pytest.raises(NoSuchTable, match=r"db\.x"):
            await upstream.rename_table(Identifier(DB, "x"), Identifier(DB, "y"))
        assert [await upstream.location(T), await upstream.location(U)] == ["m0", "m1"]

    # -- swaps

    async def test_a_swap_moves_the_head(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {})
        await upstream.create_table(T, "m0")
        await upstream.swap([Swap(T, "m0", "m1")])
        assert await upstream.location(T) == "m1"
        await upstream.swap([])
        assert await upstream.location(T) == "m1"

    async def test_a_swap_from_another_head_is_lost(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {})
        await upstream.create_table(T, "m1")
        with pytest.raises(SwapLost) as lost:
            await upstream.swap([Swap(T, "m0", "m2")])
        assert (lost.value.identifier, lost.value.found) == (T, "m1")
        assert await upstream.location(T) == "m1"

    async def test_a_swap_of_a_missing_table_is_lost(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {})
        with pytest.raises(SwapLost) as lost:
            await upstream.swap([Swap(T, "m0", "m1")])
        assert lost.value.found is None

    async def test_a_swap_repeated_finds_itself(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {})
        await upstream.create_table(T, "m0")
        swap = Swap(T, "m0", "m1")
        await upstream.swap([swap])
        with pytest.raises(SwapLost) as lost:
            await upstream.swap([swap])
        assert lost.value.found == swap.new

    async def test_several_tables_move_together_or_not_at_all(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {})
        await upstream.create_table(T, "t0")
        await upstream.create_table(U, "u0")
        swaps = [Swap(U, "u0", "u1"), Swap(T, "t0", "t1")]
        if not upstream.atomic_multi_table:
            with pytest.raises(BadRequest):
                await upstream.swap(swaps)
            return
        with pytest.raises(SwapLost) as lost:
            await upstream.swap([Swap(T, "t0", "t1"), Swap(U, "moved", "u1")])
        assert lost.value.identifier == U
        assert [await upstream.location(T), await upstream.location(U)] == ["t0", "u0"]
        await upstream.swap(swaps)
        assert [await upstream.location(T), await upstream.location(U)] == ["t1", "u1"]

    async def test_a_transaction_names_a_table_once(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {})
        await upstream.create_table(T, "m0")
        with pytest.raises(BadRequest):
            await upstream.swap([Swap(T, "m0", "m1"), Swap(T, "m1", "m2")])
        assert await upstream.location(T) == "m0"

    async def test_a_settled_head_is_that_after_all_swaps(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {})
        await upstream.create_table(T, "m0")
        assert await upstream.settled_location(T) == "m0"
        await upstream.swap([Swap(T, "m0", "m1")])
        assert await asyncio.gather(*(upstream.settled_location(T) for _ in range(20))) == ["m1"] * 20
        with pytest.raises(NoSuchTable, match=r"db\.u"):
            await upstream.settled_location(U)

    async def test_of_concurrent_swaps_exactly_one_wins(self, upstream: Upstream) -> None:
        await upstream.create_namespace(DB, {})
        await upstream.create_table(T, "m0")
        swaps = [Swap(T, "m0", f"m{writer}") for writer in range(1, 17)]
        results = await asyncio.gather(*(upstream.swap([swap]) for swap in swaps), return_exceptions=True)
        won = [swap.new for swap, result in zip(swaps, results, strict=True) if result is None]
        assert won == [await upstream.location(T)]
        assert all(result is None or isinstance(result, SwapLost) for result in results)

    async def test_of_concurrent_creations_exactly_one_wins(self, upstream: Upstream) -> None:
        namespaces = await asyncio.gather(
            *(upstream.create_namespace(DB, {"by": str(n)}) for n in range(8)), return_exceptions=True
        )
        assert sorted(type(result).__name__ for result in namespaces) == ["AlreadyExists"] * 7 + ["NoneType"]
        tables = await asyncio.gather(*(upstream.create_table(T, f"m{n}") for n in range(8)), return_exceptions=True)
        assert sorted(type(result).__name__ for result in tables) == ["AlreadyExists"] * 7 + ["NoneType"]
        assert await upstream.location(T) == f"m{tables.index(None)}"

    async def test_a_table_never_outlives_its_namespace(self, upstream: Upstream) -> None:
        for round_ in range(6):
            namespace = (f"race{round_}",)
            table = Identifier(namespace, "t")
            await upstream.create_namespace(namespace, {})
            created, dropped = await asyncio.gather(
                upstream.create_table(table, "m0"), upstream.drop_namespace(namespace), return_exceptions=True
            )
            if created is None:
                assert isinstance(dropped, NamespaceNotEmpty)
                assert await upstream.location(table) == "m0"
            else:
                assert isinstance(created, NoSuchNamespace)
                assert not await upstream.namespace_exists(namespace)
