"""What is inside delete files: blobs of vectors, and the targets of position deletes (trap R6)."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icetower.errors import NotFound, UpstreamFailed, ValidationFailed
from icetower.files.deletes import FILE_MAX_BYTES, TARGETS_MAX, Blobs, Contents, PositionDeletes
from icetower.iceberg import avro_files, puffin
from icetower.iceberg.change import Touched
from icetower.iceberg.puffin import BlobAt
from icetower.iceberg.records import EQUALITY_DELETES, POSITION_DELETES, DataFile
from icetower.iceberg.vectors import BLOB_MAX_BYTES, Vector, as_blob, decode
from icetower.parquet.texts import ROWS_MAX, texts_in
from icetower.parquet.thrift import inner, read_struct, structs, whole
from icetower.storage.file_io import FileIOStorage
from verify.kit.storage import MemoryStorage

PATH, POS = 2147483546, 2147483545
A, B = "file:///t/data/a.parquet", "file:///t/data/b.parquet"


def parquet(
    paths: Sequence[str | None], *, ids: bool = True, name: str = "file_path", required: bool = True, **options: Any
) -> bytes:
    def column(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
        told = {b"PARQUET:field_id": str(field_id).encode()} if ids else None
        return pa.field(name, kind, nullable=not required, metadata=told)

    schema = pa.schema([column(name, pa.string(), PATH), column("pos", pa.int64(), POS)])
    table = pa.table([pa.array(paths, pa.string()), pa.array(range(len(paths)), pa.int64())], schema=schema)
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def avro(paths: Sequence[str], codec: str = "deflate") -> bytes:
    schema = {
        "type": "record",
        "name": "position_delete",
        "fields": [
            {"name": "path_as_it_likes", "type": "string", "field-id": PATH},
            {"name": "pos", "type": "long", "field-id": POS},
            {"name": "row", "type": ["null", "string"], "default": None, "field-id": 2147483544},
        ],
    }
    out = io.BytesIO()
    fastavro.writer(
        out, schema, [{"path_as_it_likes": path, "pos": at, "row": None} for at, path in enumerate(paths)], codec=codec
    )
    return out.getvalue()


def listed(data: bytes, kind: str = "PARQUET", content: int = POSITION_DELETES, **record: Any) -> DataFile:
    return DataFile(content, "d", kind, (), 1, len(data), None, None, record)


def targets(data: bytes, kind: str = "PARQUET", **changes: Any) -> frozenset[str] | None:
    file = replace(listed(data, kind), **changes)
    return asyncio.run(PositionDeletes(MemoryStorage({"d": data})).targets("d", file))  # type: ignore[arg-type]


# ── Position deletes ────────────────────────────────────────────────────────────────────────────────────────────────


def test_r6_a_partition_scoped_position_delete_file_tells_its_targets() -> None:
    assert targets(parquet([A, A, B])) == {A, B}
    assert targets(parquet([A] * 5_000 + [B] * 5_000, row_group_size=700)) == {A, B}
    assert targets(parquet([A, B], use_dictionary=False, compression="none")) == {A, B}
    assert targets(parquet([A, B], data_page_version="2.0", compression="zstd")) == {A, B}
    assert targets(parquet([])) == frozenset()
    assert targets(avro([A, B, A]), "avro") == {A, B}
    assert targets(avro([A], "null"), "AVRO") == {A}


def test_r6_what_spark_wrote_is_read() -> None:
    """Spark 4.1 with Iceberg 1.12: a DELETE of three rows in two files, `write.delete.granularity = partition`."""
    found: dict[str, frozenset[str] | None] = {}
    for kind in ("parquet", "avro", "orc"):
        data = (Path(__file__).parent / "fixtures" / f"spark_partition_deletes.{kind}").read_bytes()
        found[kind] = targets(data, kind.upper())
    assert found["orc"] is None
    for kind in ("parquet", "avro"):
        paths = found[kind] or ()
        assert len(paths) == 2
        assert all(path.startswith(f"/tmp/warehouse/d/{kind}/data/p=1/00000-") for path in paths)


def test_r6_what_cannot_be_told_is_unknown() -> None:
    good = parquet([A])
    unknown: Mapping[str, frozenset[str] | None] = {
        "another format": targets(good, "ORC"),
        "no id": targets(parquet([A], ids=False)),
        "another name": targets(parquet([A], name="whatever")),  # PyIceberg knows the column by its name alone
        "a codec that is not read": targets(parquet([A], compression="brotli")),
        "no Parquet": targets(b"PAR1" * 20),
        "torn": targets(good[:-9]),
        "damaged": targets(good[:4] + bytes(200) + good[204:]),
        "no Avro": targets(good, "avro"),
        "an unknown codec": targets(avro([A], "bzip2"), "avro"),
        "equality deletes": targets(good, content=EQUALITY_DELETES),
        "encrypted": targets(good, record={"key_metadata": b"k"}),
        "listed too short": targets(good, size_bytes=len(good) - 1),
        "listed too long": targets(good, size_bytes=len(good) + 1),
        "listed huge": targets(good, size_bytes=FILE_MAX_BYTES + 1),
        "about too many files": targets(parquet([f"{A}{n}" for n in range(TARGETS_MAX + 1)])),
    }
    assert unknown == dict.fromkeys(unknown)
    assert len(targets(parquet([f"{A}{n}" for n in range(TARGETS_MAX)])) or ()) == TARGETS_MAX
    assert asyncio.run(PositionDeletes(MemoryStorage()).targets("d", listed(good))) is None  # type: ignore[arg-type]


def test_r5_in_what_is_encrypted_nothing_is_named() -> None:
    """Who says of a file that it is encrypted, which it isn't, has it looked into all the same."""
    vectors, _ = puffin.write([as_blob(Vector.of([0]), each) for each in (A, B)], created_by="tests")
    parts = {"PARQUET": parquet([A, B]), "AVRO": avro([A, B]), "PUFFIN": vectors}
    sealed = {kind: b"AGS1" + bytes(len(data) - 4) for kind, data in parts.items()}

    def named(files: Mapping[str, bytes], **changes: Any) -> list[frozenset[str] | None]:
        memory = MemoryStorage(dict(files))
        listing = [replace(listed(data, kind, key_metadata=b"k"), path=kind, **changes) for kind, data in files.items()]
        change: Any = SimpleNamespace(added=[Touched(file, 0, None) for file in listing])
        return list(asyncio.run(Contents(memory).named([change])).values())  # type: ignore[arg-type]

    assert named(parts) == [{A, B}] * 3
    assert named(sealed) == [frozenset()] * 3
    assert named(parts, size_bytes=60) == [None] * 3
    assert named({"ORC": b"ORC"}) == [None]
    polyglot = {"PARQUET": b"AGS1" + parts["PARQUET"][4:]}  # Arrow looks at the end alone
    assert named(polyglot) == [None]


def test_r5_a_file_is_read_anew_as_the_other_format_that_it_is_said_to_have() -> None:
    data = parquet([A])
    deletes = PositionDeletes(MemoryStorage({"d": data}))  # type: ignore[arg-type]

    async def ask() -> list[frozenset[str] | None]:
        return [await deletes.targets("d", listed(data, kind)) for kind in ("avro", "PARQUET")]

    assert asyncio.run(ask()) == [None, {A}]


def test_r5_two_footers_in_one_file_do_not_hide_a_target() -> None:
    """Readers look for the footer where the manifest says that the file ends."""
    shown, hidden = parquet([A]), parquet([B])
    both = hidden + shown
    assert targets(both, size_bytes=len(hidden)) is None
    assert targets(both) != {A}  # its offsets are those of the file that it was cut from


def test_r6_a_page_that_unpacks_to_gigabytes_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = parquet(["x" * 70_000_000], compression="zstd", use_dictionary=False)
    assert len(bomb) < 100_000

    def unpacked(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was unpacked")

    many = parquet([A] * (ROWS_MAX + 1))
    monkeypatch.setattr(pa, "decompress", unpacked)
    assert targets(bomb) is None
    assert targets(many) is None


def test_large_files_are_decoded_and_a_failing_storage_is_no_answer() -> None:
    wide = [f"{A}/{n % 999}" for n in range(100_000)]
    data = parquet(wide, use_dictionary=False, compression="none")
    assert len(data) > 1_000_000
    assert targets(data) == set(wide)
    away = MemoryStorage()
    away.fail_read = lambda _: UpstreamFailed("the storage is away")
    with pytest.raises(UpstreamFailed):
        asyncio.run(PositionDeletes(away).targets("broken", listed(data)))  # type: ignore[arg-type]


def test_a_file_is_looked_into_once_for_each_length_that_it_is_said_to_have() -> None:
    data = parquet([A])
    memory = MemoryStorage({"d": data})
    deletes = PositionDeletes(memory)  # type: ignore[arg-type]

    async def ask() -> list[frozenset[str] | None]:
        asked = [listed(data), listed(data), replace(listed(data), size_bytes=len(data) - 1), listed(data)]
        return [await deletes.targets("d", file) for file in asked]

    assert asyncio.run(ask()) == [{A}, {A}, None, {A}]
    assert memory.reads == {"d": 2}


@given(st.lists(st.sampled_from([A, B, "ü", ""]), max_size=30), st.booleans(), st.integers(1, 10))
def test_targets_are_the_distinct_paths(paths: list[str], dictionary: bool, group: int) -> None:
    data = parquet(paths, use_dictionary=dictionary, row_group_size=group)
    assert targets(data) == set(paths)
    assert targets(avro(paths), "avro") == set(paths)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_files_are_unknown_or_about_something_and_never_fail(data: st.DataObject) -> None:
    file = bytearray(parquet([A, A, B]))
    for _ in range(data.draw(st.integers(1, 3))):
        file[data.draw(st.integers(0, len(file) - 1))] ^= data.draw(st.integers(1, 255))
    found = targets(bytes(file))
    assert found is None or isinstance(found, frozenset)


# ── Parquet and Thrift ──────────────────────────────────────────────────────────────────────────────────────────────

LAYOUTS: list[dict[str, Any]] = [
    {},
    {"use_dictionary": False},
    {"data_page_version": "2.0"},
    {"data_page_version": "2.0", "use_dictionary": False},
    {"dictionary_pagesize_limit": 500},  # begins with a dictionary and goes on without
    *({"compression": codec} for codec in ("none", "snappy", "gzip", "zstd", "lz4")),
]


@pytest.mark.parametrize("options", LAYOUTS, ids=str)
@pytest.mark.parametrize("required", [True, False])
def test_every_usual_layout_is_read(options: dict[str, Any], required: bool) -> None:
    wide = [f"{A}{n % 700}" for n in range(9_000)]
    data = parquet(wide, required=required, data_page_size=4_096, row_group_size=5_000, **options)
    assert set().union(*texts_in(data, PATH)) == set(wide)


def test_nulls_are_passed_over() -> None:
    for options in LAYOUTS:
        data = parquet([A, None, B, None], required=False, **options)
        assert set().union(*texts_in(data, PATH)) == {A, B}, options


def test_other_layouts_are_refused() -> None:
    for options in (
        {"use_dictionary": False, "column_encoding": {"file_path": "DELTA_BYTE_ARRAY", "pos": "PLAIN"}},
        {"compression": "brotli"},
    ):
        with pytest.raises(ValueError, match=r"encoding|codec"):
            list(texts_in(parquet([A, B], **options), PATH))
    nested = pa.field("x", pa.struct([pa.field("p", pa.string(), metadata={b"PARQUET:field_id": str(PATH).encode()})]))
    out = io.BytesIO()
    pq.write_table(pa.table([pa.array([{"p": A}], nested.type)], schema=pa.schema([nested])), out)
    with pytest.raises(ValueError, match="at the top"):
        list(texts_in(out.getvalue(), PATH))


def test_columns_are_found_behind_nested_ones() -> None:
    row = pa.field("row", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.int32()))]))
    path = pa.field("file_path", pa.string(), nullable=False, metadata={b"PARQUET:field_id": str(PATH).encode()})
    out = io.BytesIO()
    columns = [pa.array([{"a": 1, "b": [1, 2]}], row.type), pa.array([A])]
    pq.write_table(pa.table(columns, schema=pa.schema([row, path])), out)
    assert set().union(*texts_in(out.getvalue(), PATH)) == {A}


@given(st.binary(max_size=80))
def test_any_bytes_are_a_struct_or_refused(data: bytes) -> None:
    try:
        struct, end = read_struct(data)
    except ValueError:
        return
    assert isinstance(struct, dict)
    assert 0 < end <= len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x15\x00\x15\x02",  # torn
        b"\x1c" * 40,  # structs without end
        b"\x19" * 40,  # lists without end
        b"\x19\xf6\xff\xff\xff\x7f",  # a list that is longer than the file
        b"\x18\x20a\x00",  # a text that is longer than the file
        b"\x15" + b"\xff" * 20,  # a number without end
        b"\x1d\x00",  # an unknown kind
        b"\x15\x00\x05\x02\x00\x00",  # one field twice
    ],
)
def test_hostile_structs_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"struct|list|text|number"):
        read_struct(data)


def test_what_is_not_there_or_of_another_kind_is_named() -> None:
    struct = {1: 5, 2: True, 3: [1], 4: {}, 5: [{}]}
    assert (whole(struct, 1), whole(struct, 9, 7), structs(struct, 9), structs(struct, 5)) == (5, 7, [], [{}])
    assert inner(struct, 4) == {}
    for ask in (lambda: whole(struct, 9), lambda: whole(struct, 2), lambda: inner(struct, 1)):
        with pytest.raises(ValueError, match="a struct has no"):
            ask()
    for field_id in (1, 3):
        with pytest.raises(ValueError, match="list"):
            structs(struct, field_id)


# ── Blobs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_blobs_are_read_by_their_place_once() -> None:
    memory = MemoryStorage({"p": bytes(range(100))})
    blobs = Blobs(memory)  # type: ignore[arg-type]

    async def ask() -> None:
        assert await blobs.read("p", 10, 3) == bytes([10, 11, 12])
        assert await blobs.read("p", 10, 3) == bytes([10, 11, 12])
        assert await blobs.read("p", 98, 3) == bytes([98, 99])  # torn: the vector's frame tells
        wanted = frozenset({BlobAt("p", 10, 3), BlobAt("p", 0, 1)})
        assert await blobs.read_all(wanted) == {BlobAt("p", 10, 3): bytes([10, 11, 12]), BlobAt("p", 0, 1): b"\x00"}

    asyncio.run(ask())
    assert len(memory.ranges) == 3


def test_r5_a_blob_that_is_nowhere_fails_its_own_commit_and_not_its_group() -> None:
    there, nowhere = BlobAt("p", 0, 2), BlobAt("gone", 0, 2)
    read = asyncio.run(Blobs(MemoryStorage({"p": b"ab"})).read_all(frozenset({there, nowhere})))  # type: ignore[arg-type]
    assert read == {there: b"ab", nowhere: b""}
    with pytest.raises(ValidationFailed):
        decode(read[nowhere], name="gone")


@pytest.mark.parametrize(("offset", "length"), [(-1, 3), (0, -1), (0, BLOB_MAX_BYTES + 1)])
def test_r5_a_blob_beyond_reason_is_not_read(offset: int, length: int) -> None:
    memory = MemoryStorage({"p": b""})
    with pytest.raises(ValidationFailed, match="is not read"):
        asyncio.run(Blobs(memory).read("p", offset, length))  # type: ignore[arg-type]
    assert memory.ranges == []


def test_real_storage_serves_both(tmp_path: Path) -> None:
    data = parquet([A, B])
    path = tmp_path / "d.parquet"
    path.write_bytes(data)

    async def ask() -> tuple[Any, ...]:
        storage = FileIOStorage()
        found = await PositionDeletes(storage).targets(f"file://{path}", listed(data))
        blob = await Blobs(storage).read(f"file://{path}", 0, 4)
        with pytest.raises(NotFound):
            await Blobs(storage).read(f"file://{path}.gone", 0, 4)
        # A path that only the client's own storage knows is nobody's fault.
        elsewhere = BlobAt("mem://t/v.puffin", 0, 4)
        assert await PositionDeletes(storage).targets("mem://t/d.parquet", listed(data)) is None
        assert await Blobs(storage).read_all(frozenset({elsewhere})) == {elsewhere: b""}
        await storage.close()
        return found, blob

    assert asyncio.run(ask()) == ({A, B}, b"PAR1")


def test_iceberg_avro_is_read_by_the_reader_of_manifests() -> None:
    """Bounded as manifests are: rows and bytes are counted before anything is made of them."""
    with pytest.raises(ValidationFailed):
        avro_files.read(b"Obj\x01", rename=lambda _, name: name, what="the delete file")
