"""The rows of a table and the files that they lie in: what an experiment knows and Iceberg's metadata only sums up.

Rows are what counts as truth here. A data file is a tuple of rows, a delete file is a set of (data file, position).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Literal, NamedTuple

from icetower.iceberg import transforms

JSON = dict[str, Any]

Partitioning = Literal["category", "bucket", "day"]
FIRST_DAY = date(2026, 1, 1)
_EPOCH = date(1970, 1, 1)


class Row(NamedTuple):
    """A row. `id` is its key; `day` counts from `FIRST_DAY`; `amount` is what commands change."""

    id: int
    category: str
    day: int
    amount: int


class Place(NamedTuple):
    """Where a row lies: its data file by name, and its position there."""

    file: str
    position: int
    row: Row


@dataclass(frozen=True, slots=True)
class Layout:
    """How a table begins.

    Attributes:
        partitioning: `category`: by the identity of a category, which is a range of keys, as a tenant or a region is;
            `bucket`: by a hash of the key; `day`: by the day that a row came in, whatever its key.
        partitions: how many.
        files: data files in each partition.
        rows: rows in each data file.
        clustered: whether each partition's files are sorted by key, so that their key ranges don't overlap.
    """

    partitioning: Partitioning
    partitions: int = 8
    files: int = 8
    rows: int = 100
    clustered: bool = False

    @property
    def size(self) -> int:
        """How many rows the table has."""
        return self.partitions * self.files * self.rows

    @property
    def spec(self) -> list[JSON]:
        """The partition spec, as cases have it."""
        if self.partitioning == "bucket":
            return [{"column": "id", "transform": f"bucket[{self.partitions}]"}]
        transform = {"category": "identity", "day": "day"}[self.partitioning]
        return [{"column": self.partitioning, "transform": transform}]

    def partition_of(self, row: Row) -> int | str:
        """The row's partition, as its data file's tuple has it."""
        match self.partitioning:
            case "category":
                return row.category
            case "bucket":
                return bucket(row.id, self.partitions)
            case "day":
                return days_since_epoch(row.day)

    def category_of(self, key: int) -> str:
        """Categories are ranges of keys of equal length."""
        return f"c{key * self.partitions // self.size}"


def bucket(key: int, count: int) -> int:
    """Iceberg's bucket of a key."""
    found = transforms.apply(f"bucket[{count}]", "long", key)
    assert isinstance(found, int)
    return found


def days_since_epoch(day: int) -> int:
    """A day as Iceberg counts it."""
    return (FIRST_DAY - _EPOCH).days + day


def day_text(day: int) -> str:
    """A day as a filter names it."""
    return (FIRST_DAY + timedelta(days=day)).isoformat()


@dataclass(frozen=True, slots=True)
class Base:
    """What a table begins with.

    Attributes:
        files: the rows of each data file, by name. Each lies in one partition; all are of equal size.
        rows: by key.
    """

    files: Mapping[str, tuple[Row, ...]]
    rows: Mapping[int, Row]


def base(layout: Layout, rng: random.Random) -> Base:
    """A new table: which day a row came in, and where an unsorted file's rows go, is left to chance."""
    groups: list[list[Row]] = [[] for _ in range(layout.partitions)]
    full = layout.files * layout.rows
    if layout.partitioning == "bucket":
        key = 0
        while any(len(group) < full for group in groups):
            group = groups[bucket(key, layout.partitions)]
            if len(group) < full:
                group.append(Row(key, "c0", 0, 0))
            key += 1
    else:
        days = [at % layout.partitions for at in range(layout.size)]
        rng.shuffle(days)
        for key, day in enumerate(days):
            category = layout.category_of(key)
            at = int(category[1:]) if layout.partitioning == "category" else day
            groups[at].append(Row(key, category, day, 0))
    files: dict[str, tuple[Row, ...]] = {}
    for at, group in enumerate(groups):
        if not layout.clustered:
            rng.shuffle(group)
        for number in range(layout.files):
            files[f"p{at}f{number}"] = tuple(group[number * layout.rows : (number + 1) * layout.rows])
    return Base(files, {row.id: row for rows in files.values() for row in rows})


def data_file(layout: Layout, rows: tuple[Row, ...]) -> JSON:
    """A data file of these rows as a case describes it, with exact column statistics."""
    columns: Mapping[int, list[Any]] = {
        1: [row.id for row in rows],
        2: [row.category for row in rows],
        3: [row.amount for row in rows],
        4: [days_since_epoch(row.day) for row in rows],
    }
    return {
        "partition": [layout.partition_of(rows[0])],
        "records": len(rows),
        "metrics": {
            "values": dict.fromkeys(columns, len(rows)),
            "nulls": dict.fromkeys(columns, 0),
            "lower": {column: min(values) for column, values in columns.items()},
            "upper": {column: max(values) for column, values in columns.items()},
        },
    }


def delete_file(partition: int | str, targets: Iterable[str], records: int, *, vector: bool) -> JSON:
    """A position delete file, or a deletion vector, as a case describes it.

    Iceberg's writer keeps the bounds of the path column only where all the positions are of one data file
    (`PositionDeleteWriter`).
    """
    paths = sorted(set(targets))
    shape: JSON = {"content": "dv" if vector else "position-deletes", "partition": [partition], "records": records}
    if vector:
        (shape["references"],) = paths
    elif len(paths) == 1:
        shape["path_bounds"] = [paths[0], paths[0]]
    return shape
