"""A table after a run, read by another program than wrote it: the ids of its rows, and the number of its files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.dataset
from pyiceberg.table import StaticTable

from bench.commits.operations import Operation
from bench.commits.verify import plain

dataset: Any = pyarrow.dataset


@dataclass(frozen=True, slots=True)
class Found:
    """The contents of a table: the ids of its rows, with repetitions, and how many data files it has."""

    ids: Sequence[int]
    files: int


def read_iceberg(location: str) -> Found:
    """The current snapshot of the table whose metadata file lies there: PyIceberg says which files, pyarrow reads them.

    Raises `ValueError` where one of them has deletes.
    """
    tasks = list(StaticTable.from_metadata(location).scan().plan_files())
    if any(task.delete_files for task in tasks):
        raise ValueError("the benchmark's table has deletes, which no side made")
    paths = [plain(task.file.file_path) for task in tasks]
    if not paths:
        return Found((), 0)
    rows = dataset.dataset(paths, format="parquet", schema=pa.schema([("id", pa.int64())])).to_table(columns=["id"])
    return Found(rows["id"].to_pylist(), len(paths))


def by_row(operations: Iterable[Operation], rows: int) -> Iterator[Operation]:
    """An operation for each row: those of request n have the ids from n times `rows` on."""
    for operation in operations:
        for at in range(rows):
            yield replace(operation, row_id=operation.row_id * rows + at)
