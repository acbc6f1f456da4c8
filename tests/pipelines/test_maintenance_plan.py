"""What is due of a table, by its properties and its files."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from icetower.contracts.document import load
from icetower.pipelines.maintenance_plan import (
    TASK,
    Due,
    FileTimes,
    Partition,
    Task,
    allowed,
    due,
    expire_before_ms,
    keep_ms,
    old_files,
    recent_snapshots,
    scan_every_ms,
)
from icetower.pipelines.maintenance_record import Record
from icetower.pipelines.system_tables import REFUSED
from icetower.protocol.names import Identifier

NOW = 1_700_000_000_000
MIN = 60_000
HOUR = 60 * MIN
DAY = 24 * HOUR
COMPACT, DELETES, MANIFESTS = (Due(Task.COMPACT, (("a",),)), Due(Task.DELETES, (("a",),)), Due(Task.MANIFESTS))


def table(
    *ages_ms: int, properties: dict[str, str] | None = None, summaries: dict[int, dict[str, str]] | None = None
) -> dict[str, Any]:
    """A table with snapshots 1, 2, … on one line, the oldest first, by their ages."""
    snapshots = [
        {
            "snapshot-id": number,
            "parent-snapshot-id": number - 1 or None,
            "sequence-number": number,
            "timestamp-ms": NOW - age_ms,
            "summary": {"operation": "append", **(summaries or {}).get(number, {})},
        }
        for number, age_ms in enumerate(ages_ms, 1)
    ]
    head = len(snapshots) or None
    refs = {"main": {"type": "branch", "snapshot-id": head}} if head else {}
    return {"properties": properties or {}, "snapshots": snapshots, "current-snapshot-id": head, "refs": refs}


@pytest.mark.parametrize(
    ("files", "properties", "expected"),
    [
        (Partition(("a",), small=5), {}, (COMPACT,)),
        (Partition(("a",), small=4), {}, ()),
        (Partition(("a",), small=5, busy=True), {}, ()),
        (Partition(("a",), small=2), {"maintenance.files-min": "2"}, (COMPACT,)),
        (Partition(("a",), small=5), {"maintenance.files-min": "many"}, (COMPACT,)),
        (Partition(("a",), small=1), {"maintenance.files-min": "1"}, ()),  # one file stays one file
        (Partition(("a",), vectors=1), {"maintenance.files-min": "1"}, (COMPACT,)),
        (Partition(("a",), small=5), {"maintenance.enabled": "False"}, ()),
        (Partition(("a",), vectors=5), {}, (COMPACT,)),
        (Partition(("a",), small=4, vectors=4), {}, ()),
        (Partition(("a",), deletes=5), {}, (DELETES,)),
        (Partition(("a",), deletes=5, busy=True), {}, ()),
        (Partition(("a",), small=9, deletes=9), {}, (COMPACT, DELETES)),
    ],
)
def test_files_are_due_in_quiet_partitions(
    files: Partition, properties: dict[str, str], expected: tuple[Due, ...]
) -> None:
    assert due(table(DAY, properties=properties), [files, Partition(("b",))], [], now_ms=NOW) == expected


def test_the_worst_partitions_come_first_and_not_all_at_once() -> None:
    (found,) = due(table(DAY), [Partition((n,), small=n) for n in range(200)], [], now_ms=NOW)
    assert found.partitions == tuple((n,) for n in range(199, 99, -1))


@pytest.mark.parametrize(
    ("lengths", "properties", "expected"),
    [
        ([1_000] * 100, {}, (MANIFESTS,)),
        ([1_000] * 99, {}, ()),
        ([8 << 20] * 100, {}, ()),
        ([1_000] * 3, {"commit.manifest.min-count-to-merge": "3"}, (MANIFESTS,)),
        # One is enough, and two are not worth it: a rewrite may leave one for each kind of partition.
        ([1_000] * 2, {"commit.manifest.min-count-to-merge": "2"}, ()),
    ],
)
def test_manifests_are_due(lengths: list[int], properties: dict[str, str], expected: tuple[Due, ...]) -> None:
    assert due(table(DAY, properties=properties), [], lengths, now_ms=NOW) == expected


AGE = {"history.expire.max-snapshot-age-ms": str(HOUR)}


@pytest.mark.parametrize(
    ("ages_ms", "summaries", "properties", "expected"),
    [
        ((3 * HOUR, 2 * HOUR, MIN), {}, AGE, NOW - HOUR),
        ((3 * HOUR, 2 * HOUR, MIN), {}, {}, None),  # nobody has asked for it
        ((3 * HOUR, 2 * HOUR, MIN), {}, {"history.expire.max-snapshot-age-ms": "soon"}, None),
        ((3 * HOUR, 2 * HOUR, MIN), {}, AGE | {"gc.enabled": "false"}, None),
        ((3 * HOUR, 2 * HOUR, MIN), {}, AGE | {"history.expire.min-snapshots-to-keep": "3"}, None),
        ((), {}, AGE, None),
        ((3 * HOUR,), {}, AGE, None),  # the head stays
        ((9 * MIN, MIN), {}, {"history.expire.max-snapshot-age-ms": "1"}, None),  # a commit under way may stand on it
        ((11 * MIN, MIN), {}, {"history.expire.max-snapshot-age-ms": "1"}, NOW - 10 * MIN),
        # The newest progress stays, of each sink, and with it all that came later.
        ((4 * HOUR, 3 * HOUR, 2 * HOUR, MIN), {2: {"icetower.export.through": "7"}}, AGE, NOW - 3 * HOUR),
        (
            (4 * HOUR, 3 * HOUR, 2 * HOUR, MIN),
            {1: {"icetower.export.through": "7"}, 3: {"icetower.export.through": "9"}},
            AGE,
            NOW - 2 * HOUR,
        ),
        (
            (4 * HOUR, 3 * HOUR, 2 * HOUR, MIN),
            {1: {"icetower.wal.table-uuid": "x"}, 3: {"icetower.wal.table-uuid": "y"}},
            AGE,
            None,
        ),
    ],
)
def test_snapshots_expire_where_it_is_asked_for_and_progress_stays(
    ages_ms: tuple[int, ...], summaries: dict[int, dict[str, str]], properties: dict[str, str], expected: int | None
) -> None:
    assert expire_before_ms(table(*ages_ms, summaries=summaries, properties=properties), NOW) == expected


def test_a_partition_is_busy_for_a_while_after_a_write_and_not_after_a_rewrite() -> None:
    rewritten = {3: {"operation": "replace"}}
    assert recent_snapshots(table(HOUR, 9 * MIN, MIN, summaries=rewritten), NOW) == [2]
    asked = {"maintenance.quiet-ms": str(MIN // 2)}
    assert recent_snapshots(table(HOUR, 9 * MIN, MIN, summaries=rewritten, properties=asked), NOW) == []
    asked = {"maintenance.quiet-ms": "0"}
    assert recent_snapshots(table(HOUR, 9 * MIN, 1, properties=asked), NOW) == []
    for nonsense in ("-1", "ten minutes", ""):
        asked = {"maintenance.quiet-ms": nonsense}
        assert recent_snapshots(table(HOUR, 9 * MIN, properties=asked), NOW) == [2]


def test_snapshots_that_others_have_not_read_stay() -> None:
    aged = table(3 * HOUR, 2 * HOUR, MIN, properties=AGE)
    assert expire_before_ms(aged, NOW, NOW - 2 * HOUR) == NOW - 2 * HOUR
    assert expire_before_ms(aged, NOW, NOW - 3 * HOUR) is None
    assert expire_before_ms(aged, NOW, 0) is None


def contract(text: str) -> Any:
    return load(f"version: 1\nagent: a\n{text}", source="test")


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (
            "tables: [{table: s.t, operations: [replace], partitions: all}]",
            {"compact", "deletes", "manifests", "orphans"},
        ),
        ("tables: [{table: s.t, operations: [replace], partitions: [{day(ts): 2017-01-01}]}]", {"orphans"}),
        ("tables: [{table: s.t, operations: [refs], partitions: all}]", {"expire", "orphans"}),
        ("tables: [{table: s.t, operations: [delete], partitions: all}]", {"prune", "orphans"}),
        ("tables: [{table: s.t, operations: [overwrite, refs], partitions: all}]", {*Task}),
        ("reads: [s.t]", {"orphans"}),
        ("reads: [s.u]", set()),
    ],
)
def test_its_contract_allows_a_task_on_every_partition_or_not_at_all(rules: str, expected: set[str]) -> None:
    assert allowed(contract(rules), Identifier(("s",), "t")) == expected
    assert allowed(None, Identifier(("s",), "t")) == {*Task}


def test_rows_are_kept_as_long_as_a_property_says() -> None:
    assert keep_ms(table(), DAY) == DAY
    assert keep_ms(table(), None) is None
    asked = table(properties={"maintenance.keep-ms": "5"})
    assert (keep_ms(asked, DAY), keep_ms(asked, None)) == (5, 5)
    assert keep_ms(table(properties={"maintenance.keep-ms": "0"}), DAY) is None


def test_whole_files_go_and_the_newest_stays() -> None:
    files = [FileTimes("a", 1, 5), FileTimes("b", 2, 9), FileTimes("c", 9, 12)]
    assert old_files(files, 9) == ["a"]
    assert old_files(files, 10) == ["a", "b"]
    assert old_files(files, 100) == ["a", "b"]
    assert old_files([], 100) == []


def test_orphans_are_looked_for_as_often_as_a_writer_of_the_table_asks() -> None:
    append = "tables: [{table: s.t, operations: [append], partitions: all}]"
    hourly = contract(f"{append}\norphans: {{detect_every: 1h}}")
    weekly = contract(f"{append}\norphans: {{detect_every: 7d}}")
    assert scan_every_ms([hourly, weekly], Identifier(("s",), "t")) == HOUR
    assert scan_every_ms([weekly], Identifier(("s",), "t")) == 7 * DAY
    assert scan_every_ms([hourly], Identifier(("s",), "u")) == DAY
    assert scan_every_ms([contract(append)], Identifier(("s",), "t")) == DAY


def attempts(*snapshots: tuple[str, dict[str, str]]) -> dict[str, Any]:
    """Metadata of `iceberg_commits` with these snapshots, 1, 2, …, made at 1000, 2000, …"""
    listed = [
        {"snapshot-id": number, "timestamp-ms": 1000 * number, "summary": {"operation": operation, **summary}}
        | ({"parent-snapshot-id": number - 1} if number > 1 else {})
        for number, (operation, summary) in enumerate(snapshots, 1)
    ]
    return {"snapshots": listed, "current-snapshot-id": len(listed)}


NONE, SOME = ("append", {REFUSED: "0"}), ("append", {REFUSED: "2"})


@pytest.mark.parametrize(
    ("snapshots", "read", "may"),
    [
        ((), None, False),
        ((SOME,), None, True),
        ((SOME,), "1", False),
        ((SOME, NONE, NONE), None, True),
        ((SOME, NONE, NONE), "1", False),
        ((SOME, SOME, NONE), "1", True),
        ((NONE, NONE), None, False),
        ((NONE, ("replace", {})), None, False),
        ((NONE, ("overwrite", {TASK: "prune"})), None, False),
        ((NONE, ("append", {})), None, True),  # of an earlier release
        ((NONE, ("overwrite", {})), None, True),
    ],
)
def test_refused_writers_are_counted_where_an_export_has_brought_any(
    snapshots: tuple[tuple[str, dict[str, str]], ...], read: str | None, may: bool
) -> None:
    record = Record(cast("SparkSession", None), "tower.system")
    assert record.may_count(attempts(*snapshots), 0, read) is may


def test_what_was_exported_long_ago_is_not_counted_again() -> None:
    record = Record(cast("SparkSession", None), "tower.system")
    assert record.may_count(attempts(SOME, NONE), 1000, None)
    assert not record.may_count(attempts(SOME, NONE), 1001, None)
