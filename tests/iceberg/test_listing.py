"""Listings: rows shared by many lists are encoded and packed once, and every reader reads them back."""

from __future__ import annotations

import base64
import io
import os
import random
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import read_manifest_list as read_by_pyiceberg

from icetower.errors import ValidationFailed
from icetower.files.parsing import ON_LOOP_ENTRIES
from icetower.iceberg import listing as listing_module
from icetower.iceberg.avro_files import RECORD_MAX_BYTES
from icetower.iceberg.listing import Listing, Run, assign_row_ids, write_listing
from icetower.iceberg.manifests import read_manifest_list
from icetower.iceberg.records import FieldSummary, ManifestFile
from icetower.storage.port import MANIFEST_LIST
from tools import java
from verify.differential.oracle import classpath

LONG = st.integers(-(2**63), 2**63 - 1)
INT = st.integers(0, 2**31 - 1)
SOME_BYTES = st.none() | st.binary(max_size=70)
PARTS = st.builds(
    FieldSummary,
    contains_null=st.booleans(),
    contains_nan=st.none() | st.booleans(),
    lower=SOME_BYTES,
    upper=SOME_BYTES,
)


def rows_of(version: int) -> st.SearchStrategy[ManifestFile]:
    counts = st.none() | INT if version == 1 else INT
    return st.builds(
        ManifestFile,
        path=st.text(max_size=200),
        length_bytes=LONG,
        spec_id=INT,
        content=st.just(0) if version == 1 else st.sampled_from([0, 1]),
        sequence_number=st.just(0) if version == 1 else LONG,
        min_sequence_number=st.just(0) if version == 1 else LONG,
        added_snapshot_id=LONG,
        added_files=counts,
        existing_files=counts,
        deleted_files=counts,
        added_rows=counts,
        existing_rows=counts,
        deleted_rows=counts,
        partitions=st.none() | st.lists(PARTS, max_size=3).map(tuple),
        key_metadata=SOME_BYTES,
        first_row_id=LONG if version == 3 else st.none(),
    )


def row(number: int, *, content: int = 0, first_row_id: int | None = None) -> ManifestFile:
    """A plain manifest with one added file of 10 rows."""
    part = FieldSummary(contains_null=False, contains_nan=False, lower=b"a%d" % number, upper=None)
    return ManifestFile(
        path=f"s3://b/t/m{number}.avro",
        length_bytes=7000 + number,
        spec_id=number % 3,
        content=content,
        sequence_number=number,
        min_sequence_number=number,
        added_snapshot_id=10**18 + number,
        added_files=1,
        existing_files=0,
        deleted_files=0,
        added_rows=10,
        existing_rows=0,
        deleted_rows=0,
        partitions=(part,),
        key_metadata=None,
        first_row_id=first_row_id,
    )


def written(listing: Listing, version: int = 3) -> bytes:
    return write_listing(
        listing, format_version=version, snapshot_id=5, parent_id=None, sequence_number=7, first_row_id=9
    )


@pytest.mark.parametrize("version", [1, 2, 3])
@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_a_listing_comes_back_without_loss(version: int, data: st.DataObject) -> None:
    rows = data.draw(st.lists(rows_of(version), max_size=12))
    more = data.draw(st.lists(rows_of(version), max_size=9))
    listing = Listing.of(rows)
    for added in more:
        listing = listing.prepend([added])
    wanted = (*reversed(more), *rows)
    assert listing.rows == wanted
    assert read_manifest_list(written(listing, version)) == wanted
    assert read_manifest_list(written(listing.compacted(), version)) == wanted


@pytest.mark.parametrize(
    ("version", "parent_id", "header"),
    [
        (1, None, {"snapshot-id": "5", "parent-snapshot-id": "null", "format-version": "1"}),
        (2, 4, {"snapshot-id": "5", "parent-snapshot-id": "4", "sequence-number": "7", "format-version": "2"}),
        (
            3,
            4,
            {
                "snapshot-id": "5",
                "parent-snapshot-id": "4",
                "sequence-number": "7",
                "first-row-id": "9",
                "format-version": "3",
            },
        ),
    ],
)
def test_the_header_says_what_the_specification_asks_for(
    version: int, parent_id: int | None, header: dict[str, str]
) -> None:
    data = write_listing(
        Listing.of([row(1, first_row_id=0)]),
        format_version=version,
        snapshot_id=5,
        parent_id=parent_id,
        sequence_number=7,
        first_row_id=9,
    )
    found = fastavro.reader(io.BytesIO(data)).metadata
    assert {key: value for key, value in found.items() if not key.startswith("avro.")} == header


@settings(deadline=None, max_examples=60)
@given(
    base=st.integers(0, 400),
    steps=st.lists(
        st.tuples(st.integers(1, 30), st.lists(st.integers(0, 10**6), max_size=12)), min_size=1, max_size=60
    ),
)
def test_listings_equal_plain_tuples_under_any_additions_and_removals(
    base: int, steps: Sequence[tuple[int, Sequence[int]]]
) -> None:
    numbers = iter(range(10**6))
    plain = tuple(row(next(numbers), first_row_id=0) for _ in range(base))
    listing = Listing.of(plain)
    for size, removals in steps:
        new = tuple(row(next(numbers), first_row_id=0) for _ in range(size))
        gone = {plain[at % len(plain)].path for at in removals} if plain else set[str]()
        plain = (*new, *(kept for kept in plain if kept.path not in gone))
        listing = listing.without(gone).prepend(new)
        assert not gone & {kept.path for kept in listing}
        assert all(run.rows for run in listing.runs)
    assert listing.rows == plain
    assert len(listing) == len(plain)
    assert read_manifest_list(written(listing)) == plain
    for known in plain[:3]:
        assert known.path in listing
        assert listing.get(known.path) is known
    assert "s3://b/t/other.avro" not in listing
    assert listing.get("s3://b/t/other.avro") is None


@pytest.mark.parametrize("sizes", [[1], [1, 20], [7], [63, 1], [64], [1, 1, 1, 9]])
def test_a_long_life_of_appends_leaves_few_runs(sizes: Sequence[int]) -> None:
    listing, count = Listing.of([]), 0
    for step in range(2000):
        size = sizes[step % len(sizes)]
        listing = listing.prepend(row(count + at) for at in range(size))
        count += size
        assert len(listing.runs) <= 16 + count / 64


def test_a_long_life_of_replacements_leaves_no_crumbs() -> None:
    chance = random.Random(7)
    rows = [row(number, first_row_id=0) for number in range(1500)]
    listing, number = Listing.of(rows), 1500
    for _ in range(3000):
        gone = chance.choice(listing.rows)
        listing = listing.without([gone.path]).prepend([row(number, first_row_id=0)])
        number += 1
    assert len(listing) == 1500
    assert len(listing.runs) <= 100


def test_rows_that_many_lists_share_are_encoded_and_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of n lists costs about n new rows, not n times the table (point 4 of the commit engine)."""
    from icetower.iceberg import listing as module

    encoded: list[str] = []
    packed: list[int] = []
    encode, pack = module._encoded, module._packed

    def counted_encode(found: ManifestFile, version: int) -> bytes:
        encoded.append(found.path)
        return encode(found, version)

    def counted_pack(data: bytes, rows: int) -> bytes:
        packed.append(rows)
        return pack(data, rows)

    monkeypatch.setattr(module, "_encoded", counted_encode)
    monkeypatch.setattr(module, "_packed", counted_pack)
    listing = Listing.of(row(number, first_row_id=0) for number in range(1000))
    for number in range(1000, 1256):
        listing = listing.prepend([row(number, first_row_id=0)])
        written(listing)
    assert sorted(encoded) == sorted(row(number).path for number in range(1256))
    assert sum(packed) <= 1000 + 256 * 4


def test_a_removal_keeps_what_other_runs_hold() -> None:
    listing = Listing.of(row(number, first_row_id=0) for number in range(1000))
    left = listing.without([row(500).path])
    assert sum(run not in listing.runs for run in left.runs) == 1
    assert listing.without(["s3://b/t/other.avro"]) is listing
    assert listing.prepend([]) is listing


def test_s2_row_ids_are_given_to_data_manifests_that_lack_them_and_nothing_else() -> None:
    older = Listing.of(row(number, first_row_id=number) for number in range(200))
    listing = older.prepend([row(300), row(301, content=1), replace(row(302), existing_rows=5), row(303)])
    assigned, next_row_id = assign_row_ids(listing, 1000)
    assert [found.first_row_id for found in assigned.rows[:4]] == [1000, None, 1010, 1025]
    assert next_row_id == 1035
    assert assigned.rows[4:] == older.rows
    assert assigned.runs[1:] == older.runs  # the very same: nothing is encoded again
    with pytest.raises(ValidationFailed, match="its row counts are unknown"):
        assign_row_ids(Listing.of([replace(row(1), added_rows=None)]), 0)


@pytest.mark.parametrize(
    ("version", "bad", "why"),
    [
        (1, row(1, content=1), "version 1 has no delete manifests"),
        (2, replace(row(1), deleted_files=None), "its counts are unknown"),
        (2, replace(row(1), existing_rows=None), "its counts are unknown"),
        (3, row(1), "no first row id"),
        (2, replace(row(1), length_bytes=2**63), "more than 64 bits"),
        (2, replace(row(1), path="\ud800"), "UnicodeEncodeError"),
        (2, replace(row(1), sequence_number=None), "TypeError"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(version: int, bad: ManifestFile, why: str) -> None:
    with pytest.raises(ValidationFailed, match=why) as caught:
        written(Listing.of([bad]), version)
    assert caught.value.rule == "manifest.writable"


def test_an_encoding_kept_for_one_format_is_not_taken_for_another() -> None:
    listing = Listing.of([row(1, first_row_id=3)])
    assert read_manifest_list(written(listing, 3)) == listing.rows
    longer = Listing((Run.joined((*Listing.of([row(2, first_row_id=4)]).runs, *listing.runs)),))
    assert [found.first_row_id for found in read_manifest_list(written(longer, 2))] == [None, None]
    assert [found.first_row_id for found in read_manifest_list(written(longer, 3))] == [4, 3]


# ── Long rows ────────────────────────────────────────────────────────────────────────────────────────────────────────


def long_row(number: int, length: int = 20_000) -> ManifestFile:
    part = FieldSummary(contains_null=False, contains_nan=False, lower=b"a" * length, upper=os.urandom(length))
    return replace(row(number, first_row_id=0), partitions=(part,))


def test_a_row_or_a_list_that_no_reader_takes_is_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationFailed, match="bytes") as caught:
        written(Listing.of([long_row(1, RECORD_MAX_BYTES // 2)]))
    assert caught.value.rule == "manifest.writable"
    listing = Listing.of(long_row(number) for number in range(20))
    assert read_manifest_list(written(listing)) == listing.rows
    monkeypatch.setattr(listing_module, "LIST_MAX_BYTES", 20 * 20_000)
    with pytest.raises(ValidationFailed, match="merge its manifests") as caught:
        written(listing)
    assert caught.value.rule == "limit.file"


def test_a_list_is_as_long_as_is_read() -> None:
    assert MANIFEST_LIST.most_bytes == listing_module.LIST_MAX_BYTES


def test_the_memory_of_long_rows_is_counted_with_their_encoding() -> None:
    listing = Listing.of(long_row(number) for number in range(40))
    written(listing)
    held = [*listing.rows, *(part for found in listing.rows for part in found.partitions or ())]
    texts = sum(
        len(value) for part in held if isinstance(part, FieldSummary) for value in (part.lower, part.upper) if value
    )
    encoded = sum(len(each or b"") for run in listing.runs for each in run._encoded[3])
    packed = sum(len(run.block(3)) for run in listing.runs)
    assert texts + encoded + packed <= listing.memory_bytes <= 1.5 * (texts + encoded + packed)


def test_what_is_packed_at_once_is_bounded_however_long_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []
    pack = listing_module._packed

    def counted(data: bytes, rows: int) -> bytes:
        packed.append(len(data))
        return pack(data, rows)

    monkeypatch.setattr(listing_module, "_packed", counted)
    read = Listing.of(long_row(number) for number in range(400))
    work = list(read.packing(3))
    assert max(packed) <= 350_000
    assert len(work) == len(packed) == len(read.runs)
    assert min(work[:-1]) >= ON_LOOP_ENTRIES
    assert list(read.packing(3)) == []
    packed.clear()
    written(read)
    assert packed == []
    listing = read
    for number in range(400, 700):
        listing = listing.prepend([long_row(number)])
        written(listing)
    assert max(packed) <= 16 * 350_000
    assert sum(packed) <= 4 * 300 * 41_000
    listing = Listing.of([]).prepend(long_row(number) for number in range(100))
    assert len(listing.runs) > 10
    assert listing.rows == tuple(row for run in listing.runs for row in run.rows)


def test_runs_without_row_ids_are_not_packed_before_they_have_them() -> None:
    listing = Listing.of(row(number) for number in range(200))
    assert list(listing.packing(3)) == []
    assert len(list(listing.packing(2))) == 2


# ── Other readers ────────────────────────────────────────────────────────────────────────────────────────────────────


def world(seed: int, version: int) -> Listing:
    """A listing with runs of every tier, and rows of every kind."""
    chance = random.Random(seed)

    def some_bytes() -> bytes | None:
        return chance.choice([None, b"", chance.randbytes(chance.choice([1, 8, 200]))])

    def some_row(number: int) -> ManifestFile:
        counts: list[int | None] = [chance.choice([0, 1, 130, 2**31 - 1]) for _ in range(6)]
        if version == 1 and chance.random() < 0.3:
            counts = [None] * 6
        parts = tuple(
            FieldSummary(chance.random() < 0.5, chance.choice([None, True, False]), some_bytes(), some_bytes())
            for _ in range(chance.choice([0, 1, 3]))
        )
        numbered = version > 1
        return ManifestFile(
            f"s3://b/größe {number}/m.avro",
            chance.choice([1, 70, 2**40]),
            chance.choice([0, 1, 300]),
            chance.choice([0, 1]) if numbered else 0,
            chance.choice([0, 9, 2**50]) if numbered else 0,
            chance.choice([0, 9, 2**50]) if numbered else 0,
            chance.choice([3, 2**62]),
            *counts,
            parts,
            some_bytes(),
            chance.choice([0, 2**55]) if version == 3 else None,
        )

    numbers = iter(range(10**6))
    listing = Listing.of(some_row(next(numbers)) for _ in range(chance.choice([0, 1, 200])))
    for _ in range(chance.choice([0, 5, 90])):
        listing = listing.prepend(some_row(next(numbers)) for _ in range(chance.choice([1, 1, 3])))
    return listing


def shown(rows: Iterable[ManifestFile], version: int) -> str:
    """The rows as Lists.java writes what it has read."""
    texts: list[str] = []
    for found in rows:
        parts = None
        if found.partitions is not None:
            parts = "|".join(
                f"{_text(p.contains_null)}/{_text(p.contains_nan)}/{_hex(p.lower)}/{_hex(p.upper)}"
                for p in found.partitions
            )
        values = (
            found.path,
            found.length_bytes,
            found.spec_id,
            found.content,
            found.sequence_number,
            found.min_sequence_number,
            found.added_snapshot_id,
            found.added_files,
            found.existing_files,
            found.deleted_files,
            found.added_rows,
            found.existing_rows,
            found.deleted_rows,
            None if parts is None else f"[{parts}]",
        )
        row_id = found.first_row_id if version == 3 else None
        texts.append(",".join([*map(_text, values), _hex(found.key_metadata), _text(row_id)]))
    return ";".join(texts)


def _text(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _hex(data: bytes | None) -> str:
    return "null" if data is None else data.hex()


WORLDS = [(seed, version) for version in (1, 2, 3) for seed in range(20)]


@pytest.mark.java
def test_iceberg_reads_listings() -> None:
    source = Path(__file__).with_name("Lists.java")
    command = [str(java.find(jdk=True)), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m"]
    command += ["-cp", os.pathsep.join(map(str, classpath())), str(source)]
    listings = [(world(seed, version), version) for seed, version in WORLDS]
    lines = "\n".join(base64.b64encode(written(listing, version)).decode() for listing, version in listings)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.split("\n")[: len(listings)]
    for (seed, version), (listing, _), answer in zip(WORLDS, listings, answers, strict=True):
        assert answer == shown(listing, version), f"world({seed}, {version})"


@pytest.mark.parametrize(("seed", "version"), [w for w in WORLDS if w[0] < 6])
def test_pyiceberg_reads_listings(seed: int, version: int, tmp_path: Path) -> None:
    listing = world(seed, version)
    path = tmp_path / "list.avro"
    path.write_bytes(written(listing, version))
    found = list(read_by_pyiceberg(PyArrowFileIO().new_input(str(path))))
    assert [(m.manifest_path, m.added_snapshot_id, m.added_rows_count, m.sequence_number) for m in found] == [
        (m.path, m.added_snapshot_id, m.added_rows, m.sequence_number) for m in listing
    ]
