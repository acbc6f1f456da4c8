"""The merged view for PyIceberg, against an oracle that knows every change.

tests/pipelines/test_collector.py compares it with Spark's, on tables that the collector has written.
"""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icetower.agent import merged_view
from icetower.errors import BadRequest

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
TARGET = pa.schema(
    [
        ("store", pa.int32()),
        ("id", pa.int64()),
        ("tags", pa.list_(pa.string())),
        ("_event_time", pa.timestamp("us", "UTC")),
        ("_idempotency_key", pa.string()),
    ]
)
DELTAS = TARGET.append(pa.field("_operation", pa.string()))


class Change(NamedTuple):
    second: int
    key: str | None
    store: int | None = 1
    tag: str = "x"
    operation: str | None = "upsert"

    def row(self) -> dict[str, Any]:
        time = START + dt.timedelta(seconds=self.second)
        upsert = {"id": 7, "tags": [self.tag]} if self.operation == "upsert" else {"id": 7, "tags": None}
        return {"store": self.store, **upsert, "_event_time": time, "_idempotency_key": self.key}


class Place:
    def __init__(self, folder: Path) -> None:
        catalog = SqlCatalog("test", uri="sqlite://", warehouse=folder.as_uri())
        catalog.create_namespace("shop")
        self.target = catalog.create_table("shop.stock", TARGET)
        self.deltas = catalog.create_table("shop.deltas", DELTAS)
        names = ("table_uuid", "idempotency_key", "source")
        columns = [*((name, pa.string()) for name in names), ("attempt_id", pa.int64())]
        self.log = catalog.create_table("shop.log", pa.schema(columns))
        self.sent: list[Change] = []
        self.folds = 0

    def send(self, *changes: Change) -> None:
        self.sent += changes
        rows = [change.row() | {"_operation": change.operation} for change in changes]
        self.deltas.append(pa.Table.from_pylist(rows, DELTAS))

    def fold(self) -> None:
        """What the collector does to the table: rows and progress in one commit, then the keys."""
        self.folds += 1
        head = self.deltas.current_snapshot()
        assert head is not None
        marks = {
            "table-uuid": str(self.deltas.metadata.table_uuid),
            "sequence": str(self.folds),
            "through-snapshot": str(head.snapshot_id),
        }
        rows = [change.row() for change in self.live()]
        properties = {f"icetower.wal.{name}": value for name, value in marks.items()}
        self.target.overwrite(pa.Table.from_pylist(rows, TARGET), snapshot_properties=properties)
        logged = [
            {"table_uuid": str(self.target.metadata.table_uuid), "idempotency_key": each.key} for each in self.sent
        ]
        self.log.append(pa.Table.from_pylist(logged, self.log.schema().as_arrow()))

    def live(self) -> list[Change]:
        """The change behind each row that is there after all changes."""
        keys, last = set[str](), dict[int, Change]()
        for change in self.sent:
            if change.key is None or change.store is None or change.operation not in ("upsert", "delete"):
                continue
            if change.key not in keys:
                keys.add(change.key)
                if change.store not in last or last[change.store].second <= change.second:
                    last[change.store] = change
        return [change for change in last.values() if change.operation == "upsert"]

    def view(self, **options: Any) -> list[tuple[int, list[str]]]:
        rows = merged_view(self.target, self.deltas, ("store", "id"), **{"dedup_log": self.log} | options)
        assert rows.schema.names == TARGET.names
        return sorted((row["store"], row["tags"]) for row in rows.to_pylist())

    def expected(self) -> list[tuple[int | None, list[str]]]:
        return sorted((change.store, [change.tag]) for change in self.live())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_latest_event_wins_over_what_landed_later_and_a_tie_goes_to_the_last(place: Place) -> None:
    place.send(Change(10, "a", tag="old"), Change(10, "b", store=2))
    place.fold()
    place.send(Change(5, "c", tag="late"), Change(20, "d", store=2, operation="delete"))
    place.send(Change(10, "e", tag="tie"), Change(15, "f", store=2, tag="before the delete"))
    assert place.view() == place.expected() == [(1, ["tie"])]


def test_a_delete_that_was_folded_hides_older_upserts(place: Place) -> None:
    place.send(Change(10, "a"), Change(20, "b", operation="delete"))
    place.fold()
    place.send(Change(15, "c"))
    assert place.view() == []


def test_what_is_sent_again_is_known_by_the_log_of_keys(place: Place) -> None:
    place.send(Change(10, "a", tag="first"), Change(11, "b", tag="second"))
    place.fold()
    place.target.delete()  # the rows are gone, their changes were folded
    place.send(Change(10, "a", tag="first"))
    assert place.view() == []
    assert place.view(dedup_log=None) == [(1, ["first"])]
    uuid = str(place.target.metadata.table_uuid)
    commit = {"table_uuid": uuid, "idempotency_key": "c", "attempt_id": 1}
    direct = {"table_uuid": uuid, "idempotency_key": "d", "source": "rows"}
    place.log.append(pa.Table.from_pylist([commit, direct], place.log.schema().as_arrow()))
    place.send(Change(12, "c", store=2, tag="its key is a commit's, too"), Change(12, "d", store=3, tag="a row's"))
    assert place.view() == [(2, ["its key is a commit's, too"]), (3, ["a row's"])]


def test_changes_that_lack_something_are_left_out(place: Place) -> None:
    place.send(
        Change(10, None), Change(10, "a", store=None), Change(10, "b", operation="truncate"), Change(1, "c", tag="c")
    )
    assert place.view() == [(1, ["c"])]


def test_tables_without_rows(place: Place) -> None:
    assert place.view() == []
    place.send(Change(10, "a", operation="delete"))
    assert place.view() == []
    place.fold()
    assert place.view() == []


def test_a_delta_table_that_no_longer_shows_what_is_new_is_read_as_a_whole(place: Place) -> None:
    place.send(Change(10, "a", tag="a"), Change(10, "b", store=2))
    place.fold()
    place.send(Change(20, "c", tag="c"))
    place.deltas.delete("_idempotency_key = 'b'")
    assert place.view() == [(1, ["c"]), (2, ["x"])]


def test_a_column_that_is_missing_is_named(place: Place) -> None:
    with pytest.raises(BadRequest, match=r"shop\.stock has no column _operation"):
        merged_view(place.target, place.target, ("store",))


@pytest.mark.parametrize("seed", range(8))
def test_random_histories(place: Place, seed: int) -> None:
    dice = random.Random(seed)
    for turn in range(3):
        for commit in range(dice.randint(1, 2)):
            fresh = [
                Change(
                    dice.randint(0, 6),
                    f"{turn}-{commit}-{number}",
                    dice.randint(1, 3),
                    str(dice.random()),
                    dice.choice(("upsert", "upsert", "delete")),
                )
                for number in range(dice.randint(1, 5))
            ]
            place.send(*fresh, *dice.sample(place.sent, min(len(place.sent), dice.randint(0, 2))))
        assert place.view() == place.expected()
        if dice.random() < 0.6:
            place.fold()
            assert place.view() == place.expected()
