"""Manifest lists read one after the other tell the same as each of them read alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from icetower.audit.list_reading import ListReader
from icetower.errors import ValidationFailed
from icetower.iceberg.avro_files import RowCache
from icetower.iceberg.listing import Listing, write_listing
from icetower.iceberg.manifests import FieldSummary, ManifestFile, read_manifest_list
from icetower.recent import Budget
from tests.iceberg.manifest_fixtures import JAVA, java_table

SEEDS = range(30)
SUMMARY = (FieldSummary(contains_null=False, contains_nan=None, lower=b"a", upper=b"zz"),)


def row(number: int, *, sequence: int = 1) -> ManifestFile:
    # Rows of several lengths, and some that begin or end alike: bytes in common must not be taken for rows in common.
    path = f"file:///t/metadata/{'x' * (number % 7)}{number}-m0.avro"
    return ManifestFile(path, 100, 0, 0, sequence, sequence, number, 1, 0, 0, 10, 0, 0, (), None, None)


def written(rows: list[ManifestFile], version: int = 2) -> bytes:
    return write_listing(
        Listing.of(rows), format_version=version, snapshot_id=1, parent_id=None, sequence_number=1, first_row_id=None
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_of_lists_is_read_as_each_alone(seed: int) -> None:
    chance = random.Random(seed)
    reader, rows, number = ListReader(), list[ManifestFile](), 0
    before: dict[str, ManifestFile] = {}
    for _ in range(40):
        for _ in range(chance.randrange(4)):
            number += 1
            rows.insert(chance.choice((0, 0, 0, len(rows))), row(number))
        for _ in range(chance.choice((0, 0, 1, 5))):
            if rows:
                rows.pop(chance.randrange(len(rows)))
        if rows and chance.random() < 0.2:
            at = chance.randrange(len(rows))
            rows[at] = replace(rows[at], length_bytes=chance.randrange(10_000))
        if chance.random() < 0.1:
            chance.shuffle(rows)
        data = written(rows, 1 if chance.random() < 0.1 else 2)
        alone = read_manifest_list(data)
        step = reader.step(data)
        assert tuple(reader.rows) == alone
        now = {each.path: each for each in alone}
        assert {each.path for each in step.entered} == now.keys() - before.keys()
        assert {each.path for each in step.left} == before.keys() - now.keys()
        both = now.keys() & before.keys()
        assert set(step.altered) == {(before[path], now[path]) for path in both if now[path] != before[path]}
        assert not step.doubled
        before = now


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("max_bytes", [0, 4_000, 40_000, 1_000_000])
def test_lists_of_many_writers_in_any_order_are_read_as_each_alone(seed: int, max_bytes: int) -> None:
    chance = random.Random(seed)
    cache = RowCache[ManifestFile](Budget(max_bytes), "rows", 1.0, lambda _: 100)
    rows = [row(number) for number in range(20)]
    for _ in range(60):
        at = chance.randrange(len(rows))
        rows[at] = replace(rows[at], length_bytes=chance.randrange(300), partitions=chance.choice(((), SUMMARY)))
        some = chance.sample(rows, chance.randrange(len(rows))) if chance.random() < 0.5 else rows[at : at + 12]
        data = written(some, chance.choice((1, 2, 2)))
        if chance.random() < 0.3:
            torn = bytearray(data)
            torn[chance.randrange(len(torn))] = chance.randrange(256)
            data = bytes(torn)
        assert outcome(read_manifest_list, data) == outcome(lambda data: read_manifest_list(data, cache), data)


def outcome(read: Callable[[bytes], tuple[ManifestFile, ...]], data: bytes) -> tuple[ManifestFile, ...] | str | None:
    try:
        return read(data)
    except ValidationFailed as error:
        return error.rule


def test_what_was_met_is_not_decoded_again() -> None:
    cache = RowCache[ManifestFile](Budget(1_000_000), "rows", 1.0, lambda _: 100)
    first, second = (read_manifest_list(written([row(n) for n in range(5)]), cache) for _ in range(2))
    assert all(one is other for one, other in zip(first, second, strict=True))
    longer = read_manifest_list(written([row(9), *(row(n) for n in range(5))]), cache)
    assert longer == (row(9), *first)
    assert all(one is other for one, other in zip(first, longer[1:], strict=True)), "a run that follows something new"
    assert read_manifest_list(written([row(n) for n in range(3)]), cache) == first[:3], "less than the run"
    changed = [row(n) if n else replace(row(0), length_bytes=7) for n in range(5)]
    assert read_manifest_list(written(changed), cache) == tuple(changed)


def test_a_row_that_is_large_beside_the_limit_pushes_nothing_out() -> None:
    cache = RowCache[ManifestFile](Budget(10_000), "rows", 1.0, lambda _: 100)
    (first,) = read_manifest_list(written([row(1)]), cache)
    large = replace(row(2), key_metadata=bytes(5_000))
    assert read_manifest_list(written([large, row(1)]), cache)[0] == large
    assert read_manifest_list(written([row(1)]), cache)[0] is first


@pytest.mark.parametrize("name", JAVA)
def test_lists_of_iceberg_are_known_to_whoever_has_met_their_rows(name: str) -> None:
    table, cache = java_table(name), RowCache[ManifestFile](Budget(1_000_000), "rows", 1.0, lambda _: 100)
    for snapshot in (*table.metadata["snapshots"], *reversed(table.metadata["snapshots"])):
        data = table.files[snapshot["manifest-list"].rpartition("/")[2]]
        assert read_manifest_list(data, cache) == table.rows(snapshot)


@pytest.mark.parametrize("name", JAVA)
def test_lists_of_iceberg(name: str) -> None:
    table, reader = java_table(name), ListReader()
    for snapshot in table.metadata["snapshots"]:
        step = reader.step(table.files[snapshot["manifest-list"].rpartition("/")[2]])
        assert tuple(reader.rows) == table.rows(snapshot)
        assert step.header["snapshot-id"] == str(snapshot["snapshot-id"])


def test_a_manifest_that_is_listed_twice_is_told() -> None:
    reader, first, second = ListReader(), row(1), row(2)
    assert reader.step(written([first, first])).doubled == (first.path,)
    step = reader.step(written([second, first, first]))
    assert (step.entered, step.left, step.doubled) == ((second,), (), ())
    step = reader.step(written([second, second, first]))
    assert (step.entered, step.left, step.doubled) == ((), (), (second.path,))
    assert reader.step(written([first])).left == (second,)


def test_what_cannot_be_read_leaves_the_reader_where_it_stood() -> None:
    reader, first, second = ListReader(), row(1), row(2)
    reader.step(written([first]))
    with pytest.raises(ValidationFailed, match="manifest list"):
        reader.step(written([second])[:-3])
    assert reader.step(written([second, first])).entered == (second,)
