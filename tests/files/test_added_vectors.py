"""The deletion vectors that a commit adds are looked into: are they there, and do they hold what their entries say?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from icetower.errors import BadRequest, IcetowerError, UpstreamFailed, ValidationFailed
from icetower.files import deletes
from icetower.files.deletes import INLINE_MAX_BYTES, RUN_GAP_MAX_BYTES, VECTORS_MAX_BYTES, Vectors
from icetower.iceberg import puffin
from icetower.iceberg.change import Change, ListDiff, Touched
from icetower.iceberg.puffin import NewBlob
from icetower.iceberg.records import POSITION_DELETES, DataFile
from icetower.iceberg.vectors import BLOB_MAX_BYTES, Vector, as_blob
from icetower.protocol.snapshots import Snapshot
from verify.kit.storage import MemoryStorage

Lies = dict[str, Any]


def failing(path: str) -> IcetowerError | None:
    match path.split(":")[0]:
        case "mem":
            return BadRequest(f"{path} is of no storage that is known here")
        case "away":
            return UpstreamFailed("the storage is away")
        case _:
            return None


class Memory(MemoryStorage):
    def __init__(self) -> None:
        super().__init__()
        self.fail_read = failing

    def puffin(self, path: str, *rows: Sequence[int], gap_bytes: int = 0) -> list[DataFile]:
        """A file of vectors, with other blobs between them; the entries of the vectors."""
        blobs: list[NewBlob] = []
        for at, positions in enumerate(rows):
            blobs += [as_blob(Vector.of(positions), f"{path}-{at}"), NewBlob("other", (), b"\0" * gap_bytes, {})]
        self.files[path], placed = puffin.write(blobs, created_by="a test")
        return [entry(path, blob, len(rows[at])) for at, blob in enumerate(placed[::2])]


def entry(path: str, blob: puffin.Blob, rows: int) -> DataFile:
    record = {"content_offset": blob.offset, "content_size_in_bytes": blob.length_bytes, "key_metadata": None}
    return DataFile(POSITION_DELETES, path, "PUFFIN", (), rows, 100, None, f"{path}-{blob.offset}", record)


def lying(file: DataFile, *, rows: int | None = None, path: str | None = None, **record: Any) -> DataFile:
    said = file.record_count if rows is None else rows
    return replace(file, path=path or file.path, record_count=said, record={**file.record, **record})


def change(*added: DataFile) -> Change:
    touched = tuple(Touched(file, 0, None) for file in added)
    return Change(Snapshot({}), ListDiff((), (), (), ()), touched, (), {}, {}, (), names_sibling=False)


def verify(memory: Memory, *added: DataFile) -> None:
    asyncio.run(Vectors(memory).verify([change(*added), change()]))  # type: ignore[arg-type]


def test_honest_vectors_pass_and_one_read_serves_those_that_lie_together() -> None:
    memory = Memory()
    near = memory.puffin("near", [1], [2, 3], [4] * 1, gap_bytes=10)
    far = memory.puffin("far", [5], [6], gap_bytes=RUN_GAP_MAX_BYTES + 1)
    verify(memory, *far, *near, *near)
    assert sorted(path for path, _, _ in memory.ranges) == ["far", "far", "near"]


def test_large_vectors_are_read_apart_and_decoded_in_a_thread() -> None:
    memory = Memory()
    half = range(0, 5 * BLOB_MAX_BYTES, 17)  # spread out, so that it does not pack
    files = memory.puffin("large", half, half)
    assert INLINE_MAX_BYTES < files[0].record["content_size_in_bytes"] < BLOB_MAX_BYTES
    verify(memory, *files)
    with pytest.raises(ValidationFailed, match=f"it has {len(half)} positions, and its manifest says 3"):
        verify(memory, files[0], lying(files[1], rows=3))
    assert all(length_bytes <= BLOB_MAX_BYTES for _, _, length_bytes in memory.ranges)


@pytest.mark.parametrize(
    ("lies", "says"),
    [
        ({"rows": 0}, "has 2 positions, and its manifest says 0"),
        ({"rows": 3}, "has 2 positions, and its manifest says 3"),
        ({"content_offset": 5}, "cannot be read"),
        ({"content_offset": 10**6}, "it has 0 bytes"),
        ({"content_offset": -1}, "long at -1"),
        ({"content_offset": None}, "long at None"),
        ({"content_size_in_bytes": 12}, "cannot be read"),
        ({"content_size_in_bytes": 10**6}, "cannot be read"),
        ({"content_size_in_bytes": BLOB_MAX_BYTES + 1}, "it is 8388609 bytes long"),
        ({"path": "file:/gone"}, "there is no such file"),
    ],
)
def test_r5_a_vector_that_is_not_what_its_entry_says_is_refused(lies: Lies, says: str) -> None:
    memory = Memory()
    honest = memory.puffin("p", [1, 2], [7, 9])
    for around in (honest, []):
        with pytest.raises(ValidationFailed, match=says) as refused:
            verify(memory, *around, lying(honest[1], **lies))
        assert refused.value.rule == "vector.readable"


def test_what_cannot_be_looked_into_is_believed() -> None:
    memory = Memory()
    (file,) = memory.puffin("p", [1])
    verify(memory, lying(file, path="mem:x", rows=8), lying(file, key_metadata=b"k", rows=8))
    verify(memory, replace(file, file_format="PARQUET", record_count=8))
    assert [path for path, _, _ in memory.ranges] == ["mem:x"]
    with pytest.raises(UpstreamFailed):
        verify(memory, lying(file, path="away:x"))


def test_r5_one_blob_is_decoded_once_however_many_entries_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    (file,) = memory.puffin("p", range(100))
    decoded: list[DataFile] = []
    honest = deletes.decode_of
    monkeypatch.setattr(deletes, "decode_of", lambda file, blob: (decoded.append(file), honest(file, blob)))
    verify(memory, *[replace(file, referenced_data_file=f"{n}") for n in range(1000)])
    assert (len(decoded), len(memory.ranges)) == (1, 1)


def test_r5_more_than_can_be_looked_into_is_refused_before_anything_is_read() -> None:
    memory = Memory()
    (file,) = memory.puffin("p", [1])
    many = [
        lying(file, content_offset=at, content_size_in_bytes=BLOB_MAX_BYTES)
        for at in range(VECTORS_MAX_BYTES // BLOB_MAX_BYTES + 1)
    ]
    with pytest.raises(ValidationFailed, match="Split it") as refused:
        verify(memory, *many)
    assert (refused.value.rule, memory.ranges) == ("limit.vectors", [])
