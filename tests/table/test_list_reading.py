"""Manifest lists read one after the other tell the same as each of them read alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from manifest_fixtures import JAVA, java_table

from icetower.errors import ValidationFailed
from icetower.table.list_reading import ListReader
from icetower.table.listing import Listing, write_listing
from icetower.table.manifests import ManifestFile, read_manifest_list

SEEDS = range(30)


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
