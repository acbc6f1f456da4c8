"""What a table's metadata names is opened only where the table's files go, and what a footer says is summed first."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import SortOrder

from icetower.errors import BadRequest, Forbidden, ValidationFailed
from icetower.mcp import reading
from icetower.mcp.confined import ConfinedCatalog, ConfinedIO, Confines


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A table's location, with a file in it, beside another table's."""
    for name in ("mine", "others"):
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "data" / "a.parquet").write_bytes(name.encode())
    return tmp_path / "mine"


def confined(place: Path, **properties: str) -> ConfinedIO:
    return ConfinedIO(PyArrowFileIO(), Confines("s.t", {"location": str(place), "properties": properties}))


def read(files: ConfinedIO, path: object) -> bytes:
    with files.new_input(str(path)).open() as stream:
        return stream.read(-1)


def test_files_of_the_table_are_read_however_their_path_is_spelled(place: Path) -> None:
    for path in (place / "data/a.parquet", f"file://{place}/data/a.parquet", f"file:{place}/data/a.parquet",
                 f"file://localhost{place}/data/a.parquet"):  # fmt: skip
        assert read(confined(place), path) == b"mine"
        assert len(confined(place).new_input(str(path))) == 4
    elsewhere = place.parent / "others/data"
    assert read(confined(place, **{"write.data.path": str(elsewhere)}), elsewhere / "a.parquet") == b"others"
    assert not confined(place).new_input(str(place / "data/none.parquet")).exists()
    with pytest.raises(FileNotFoundError):
        read(confined(place), place / "data/none.parquet")


@pytest.mark.parametrize(
    "path",
    [
        "{other}", "file://{other}", "file:{other}", "{mine}/../others/data/a.parquet",
        "file://{mine}/%2e%2e/others/data/a.parquet", "{mine}/data/..%2F..%2Fothers/data/a.parquet",
        "{mine}x/a.parquet", "{mine}", "/etc/passwd", "file:///etc/passwd", "/proc/self/environ", "/dev/zero",
        "s3://bucket{mine}/data/a.parquet", "http://127.0.0.1:1{mine}/a", "gs://b/x", "file://evil{mine}/data/a.parquet",
        "", "a.parquet",
    ],
)  # fmt: skip
def test_other_files_are_refused_before_they_are_opened(place: Path, path: str) -> None:
    named = path.format(mine=place, other=place.parent / "others/data/a.parquet")
    for act in (confined(place).new_input, confined(place).new_output, confined(place).delete):
        with pytest.raises(Forbidden, match=r"lies outside of s\.t") as refused:
            act(named)
        assert refused.value.rule == "mcp.location"
    assert (place.parent / "others/data/a.parquet").exists()


def test_names_of_one_storage_are_one() -> None:
    confines = Confines("s.t", {"location": "s3://bucket/t", "properties": {}})
    assert confines.root_of("s3a://bucket/t/data/x") == "s3://bucket/t"
    for path in ("s3://bucket/t2/x", "s3://bucket/t/../u/x", "s3://other/t/x", "s3://bucket/t", "/t/x"):
        with pytest.raises(Forbidden):
            confines.root_of(path)


def test_no_link_on_the_way_leads_elsewhere(place: Path) -> None:
    others = place.parent / "others"
    (place / "data/link.parquet").symlink_to(others / "data/a.parquet")
    (place / "folder").symlink_to(others / "data")
    with pytest.raises(ValidationFailed, match="symbolic link"):
        read(confined(place), place / "data/link.parquet")
    with pytest.raises(Forbidden, match="outside"):
        read(confined(place), place / "folder/a.parquet")
    with pytest.raises(Forbidden, match="outside"):
        confined(place).new_output(str(place / "folder/new.parquet"))
    # The place of the table itself has become a link to another's.
    (place.parent / "swapped").symlink_to(others)
    with pytest.raises(Forbidden, match="outside"):
        read(confined(place.parent / "swapped"), place.parent / "swapped/data/a.parquet")


def test_a_link_is_refused_that_was_put_there_after_the_planning(place: Path) -> None:
    found = confined(place).new_input(str(place / "data/a.parquet"))
    assert len(found) == 4
    (place / "data/a.parquet").unlink()
    (place / "data/a.parquet").symlink_to(place.parent / "others/data/a.parquet")
    with pytest.raises(ValidationFailed):
        found.open()


def test_what_never_ends_is_no_file(place: Path) -> None:
    os.mkfifo(place / "data/fifo.parquet")
    with pytest.raises(ValidationFailed, match="FIFO"):
        read(confined(place), place / "data/fifo.parquet")
    with pytest.raises(ValidationFailed, match="directory"):
        read(confined(place), place / "data")


def test_no_property_of_a_table_loads_code_or_leads_elsewhere(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[dict[str, str]] = []

    def loaded(self: object, properties: dict[str, str], location: str) -> PyArrowFileIO:
        used.append(properties)
        return PyArrowFileIO()

    monkeypatch.setattr(RestCatalog, "_load_file_io", loaded)
    properties = {"py-io-impl": "evil.FileIO", "s3.endpoint": "http://127.0.0.1:1", "write.data.path": f"{place}/data"}
    metadata = new_table_metadata(Schema(), PartitionSpec(), SortOrder(), str(place), properties)
    response = TableResponse(metadata=metadata, **{"metadata-location": f"{place}/metadata/1.json"}, config={"a": "b"})
    catalog = ConfinedCatalog.__new__(ConfinedCatalog)
    catalog._resolve_storage_credentials = lambda *_: {}
    table = catalog._response_to_table(("s", "t"), response)
    assert used == [{"write.data.path": f"{place}/data", "a": "b"}]
    assert table.metadata.properties == {"write.data.path": f"{place}/data"}


def packed(**columns: list[Any]) -> tuple[io.BytesIO, Any]:
    fields = [pa.field(name, pa.string(), metadata={"PARQUET:field_id": str(at)}) for at, name in enumerate(columns, 1)]
    out = io.BytesIO()
    pq.write_table(pa.table(columns, pa.schema(fields)), out, compression="zstd", use_dictionary=False)
    out.seek(0)
    return out, None


def test_what_columns_unpack_to_is_known_from_the_footer() -> None:
    file, _ = packed(small=["a"] * 10, large=["x" * 100_000] * 10)
    assert len(file.getvalue()) < 20_000
    assert reading.unpacked_bytes(file, None) > 1_000_000
    assert reading.unpacked_bytes(file, {2}) > 1_000_000
    assert reading.unpacked_bytes(file, {1}) < 1_000


def test_files_are_refused_by_what_they_are_whatever_their_manifest_says(monkeypatch: pytest.MonkeyPatch) -> None:
    file, _ = packed(large=["x" * 100_000] * 10)

    class Source:
        def __len__(self) -> int:
            return len(file.getvalue())

        def open(self) -> io.BytesIO:
            return io.BytesIO(file.getvalue())

    class Named:
        class file_format:  # noqa: N801 - as PyIceberg has it
            value = "PARQUET"

    monkeypatch.setattr(reading, "UNPACKED_BYTES_MAX", 1_500_000)
    sizes = reading.Sizes()
    sizes.add(Source(), Named(), None)
    with pytest.raises(BadRequest, match="unpack") as refused:
        sizes.add(Source(), Named(), None)
    assert refused.value.rule == "mcp.scan"
    monkeypatch.setattr(reading, "SCANNED_BYTES_MAX", 100)
    with pytest.raises(BadRequest, match="read more than"):
        reading.Sizes().add(Source(), Named(), None)


def test_batches_come_as_they_are_asked_for() -> None:
    """A page of few rows does not unpack the files after them."""
    made: list[int] = []

    def batches() -> Any:
        for at in range(100):
            made.append(at)
            yield pa.RecordBatch.from_pylist([{"id": at}])

    rows, more = reading.page_of(reading.rows_of(batches(), 1), 2)
    assert ([row["id"] for row in rows], more) == ([1, 2], True)
    assert len(made) == 4
