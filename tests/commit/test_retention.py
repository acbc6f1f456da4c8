"""Trap H1: what retention lets go, and what it never does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icetower.commit.retention import YOUNG_MS, expirable
from icetower.iceberg import metadata as tm
from icetower.iceberg.growing import Growing

JSON = dict[str, Any]
NOW = 1_700_000_000_000
MINUTE_MS = 60_000


def snapshot(snapshot_id: int, parent_id: int | None, *, age_min: float, **summary: str) -> JSON:
    """A snapshot of some age in minutes."""
    parent = {} if parent_id is None else {"parent-snapshot-id": parent_id}
    return {
        "snapshot-id": snapshot_id,
        **parent,
        "timestamp-ms": NOW - int(age_min * MINUTE_MS),
        "manifest-list": f"s3://b/t/snap-{snapshot_id}.avro",
        "summary": {"operation": "append", **summary},
    }


def line(count: int, *, age_min: float = 100, summaries: Mapping[int, Mapping[str, str]] | None = None) -> list[JSON]:
    """Snapshots 1 to `count`, each the next one's parent; the first is the oldest, and all are old."""
    told = summaries or {}
    return [
        snapshot(number, number - 1 or None, age_min=age_min + count - number, **told.get(number, {}))
        for number in range(1, count + 1)
    ]


def branch(snapshot_id: int, **more: int) -> JSON:
    return {"type": "branch", "snapshot-id": snapshot_id, **more}


def table(snapshots: Sequence[JSON], refs: Mapping[str, JSON] | None = None, **properties: str) -> JSON:
    names = {"count": "icetower.retention.snapshots-max", "age": "icetower.retention.age-max-ms"}
    names |= {"sinks": "icetower.retention.sinks-max-ms", "gc": "gc.enabled"}
    return {
        "snapshots": list(snapshots),
        "refs": dict(refs) if refs is not None else {"main": branch(snapshots[-1]["snapshot-id"])},
        "properties": {names[key]: value for key, value in properties.items()},
    }


def expired(metadata: JSON, keep: Iterable[int] = ()) -> list[int]:
    index = {s["snapshot-id"]: s for s in metadata["snapshots"]}
    return list(expirable(metadata, index, now_ms=NOW, keep=frozenset(keep)))


def test_a_table_that_asks_for_nothing_loses_nothing() -> None:
    assert expired(table(line(12))) == []


@pytest.mark.parametrize(
    ("properties", "gone"),
    [
        ({"count": "5"}, [1, 2, 3, 4, 5, 6, 7]),
        ({"count": "1"}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        ({"count": "12"}, []),
        ({"count": "99"}, []),
        ({"age": str(105 * MINUTE_MS)}, [1, 2, 3, 4, 5, 6]),
        ({"age": str(1000 * MINUTE_MS)}, []),
        ({"age": "1"}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        ({"count": "9", "age": str(105 * MINUTE_MS)}, [1, 2, 3, 4, 5, 6]),
        ({"count": "3", "age": str(105 * MINUTE_MS)}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_the_oldest_of_a_line_go_by_count_or_by_age(properties: dict[str, str], gone: list[int]) -> None:
    assert expired(table(line(12), **properties)) == gone


@pytest.mark.parametrize("value", ["0", "-1", "many", "", "1.5", "9" * 5000, "٣"])
def test_a_property_that_is_no_number_asks_for_nothing(value: str) -> None:
    assert expired(table(line(12), count=value, age=value)) == []


def test_h1_a_base_in_flight_stays_with_all_that_came_after_it() -> None:
    """Its commit is rebased over each snapshot since: a hole would be as bad as its loss."""
    assert expired(table(line(12), count="2"), keep=[6]) == [1, 2, 3, 4, 5]
    assert expired(table(line(12), count="2"), keep=[6, 11, 999]) == [1, 2, 3, 4, 5]


def test_h1_nothing_younger_than_ten_minutes_goes() -> None:
    """A client that cannot find its snapshot after an unknown answer writes it again."""
    young = line(12, age_min=YOUNG_MS / MINUTE_MS - 3.5)  # the last four are younger than ten minutes
    assert expired(table(young, count="1", age="1")) == list(range(1, 9))


def test_h1_a_tagged_snapshot_stays_and_its_ancestors_go() -> None:
    refs = {"main": branch(12), "audit": {"type": "tag", "snapshot-id": 4}}
    assert expired(table(line(12), refs, count="5")) == [1, 2, 3, 5, 6, 7]


def test_h1_each_branch_keeps_its_own_line() -> None:
    side = [snapshot(101, 3, age_min=99), snapshot(102, 101, age_min=98)]
    refs = {"main": branch(12), "side": branch(102)}
    assert expired(table([*line(12), *side], refs, count="3")) == [1, 2, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("own", "gone"),
    [
        ({"min-snapshots-to-keep": 8}, [1, 2, 3, 4]),
        ({"min-snapshots-to-keep": 1}, list(range(1, 11))),
        ({"max-snapshot-age-ms": 107 * MINUTE_MS}, [1, 2, 3, 4]),
        ({"max-snapshot-age-ms": 1}, list(range(1, 11))),
    ],
)
def test_h1_what_a_branch_itself_protects_stays(own: dict[str, int], gone: list[int]) -> None:
    assert expired(table(line(12), {"main": branch(12, **own)}, count="2")) == gone


FLINK = {"flink.job-id": "j", "flink.operator-id": "o", "flink.max-committed-checkpoint-id": "7"}
SPARK = {"spark.sql.streaming.queryId": "q", "spark.sql.streaming.epochId": "3"}
KAFKA = {"kafka.connect.offsets.control.group": '{"0":5}', "kafka.connect.commit-id": "c"}
WAL = {"icetower.wal.table-uuid": "w", "icetower.wal.sequence": "4"}


@pytest.mark.parametrize("progress", [FLINK, SPARK, KAFKA, WAL])
def test_h1_the_newest_progress_of_a_sink_can_be_found_from_the_head(progress: dict[str, str]) -> None:
    """Sinks walk from parent to parent, and stop at a hole: what is between them and the head stays too."""
    metadata = table(line(12, summaries={2: progress, 5: progress}), count="3")
    assert expired(metadata) == [1, 2, 3, 4]
    metadata = table(line(12, summaries={5: progress, 11: progress}), count="3")
    assert expired(metadata) == list(range(1, 10))


@pytest.mark.parametrize(
    ("progress", "other"),
    [
        (FLINK, {**FLINK, "flink.job-id": "j2"}),
        (FLINK, {**FLINK, "flink.operator-id": "o2"}),
        (FLINK, {key: value for key, value in FLINK.items() if "checkpoint" not in key}),
        (SPARK, {**SPARK, "spark.sql.streaming.queryId": "q2"}),
        (KAFKA, {"kafka.connect.offsets.control.group2": "{}"}),
        (WAL, {**WAL, "icetower.wal.table-uuid": "w2"}),
        (SPARK, FLINK),
    ],
)
def test_h1_the_progress_of_one_sink_says_nothing_of_another(progress: dict[str, str], other: dict[str, str]) -> None:
    assert expired(table(line(12, summaries={5: progress, 11: other}), count="3")) == [1, 2, 3, 4]


def test_h1_a_branch_that_a_sink_writes_to_keeps_its_progress_though_main_has_none() -> None:
    side = [
        snapshot(100 + at, 99 + at if at > 1 else 12, age_min=90, **(SPARK if at == 2 else {})) for at in range(1, 9)
    ]
    refs = {"main": branch(12), "side": branch(108)}
    assert expired(table([*line(12), *side], refs, count="2")) == [*range(1, 11), 101]


def test_a_sink_that_is_silent_for_longer_than_the_owner_waits_holds_nothing() -> None:
    metadata = table(line(12, summaries={5: SPARK}), count="3", sinks=str(106 * MINUTE_MS))
    assert expired(metadata) == list(range(1, 10))
    metadata = table(line(12, summaries={5: SPARK}), count="3", sinks=str(108 * MINUTE_MS))
    assert expired(metadata) == [1, 2, 3, 4]


def test_h1_staged_and_rolled_back_snapshots_go_by_age_only() -> None:
    apart = [snapshot(101, 5, age_min=300), snapshot(102, 12, age_min=50), snapshot(103, 12, age_min=300)]
    metadata = table([*line(12), *apart], {"main": branch(12)}, count="12")
    assert expired(metadata) == []
    metadata = table([*apart, *line(12)], {"main": branch(12)}, age=str(200 * MINUTE_MS))
    assert expired(metadata, keep=[103]) == [101]


def test_h1_the_ancestors_of_a_tag_alone_are_on_no_branch() -> None:
    refs = {"main": branch(12), "audit": {"type": "tag", "snapshot-id": 102}}
    apart = [snapshot(101, 2, age_min=5), snapshot(102, 101, age_min=4)]
    assert 101 not in expired(table([*line(12), *apart], refs, count="1"))


def test_h1_no_file_may_belong_to_another_table() -> None:
    assert expired(table(line(12), count="3", gc="false")) == []


def test_a_history_that_goes_round_in_circles_ends() -> None:
    snapshots = [snapshot(1, 12, age_min=300), *line(12)[1:]]
    assert expired(table(snapshots, count="3")) == list(range(1, 10))


def test_history_is_walked_only_where_a_part_of_it_could_go() -> None:
    class Counted(dict[int, JSON]):
        looked = 0

        def get(self, key: int, default: Any = None) -> Any:
            Counted.looked += 1
            return super().get(key, default)

    snapshots = line(2000)
    window = snapshots[:1000]
    for added in snapshots[1000:]:  # each commit adds one and asks
        window = [*window, added]
        metadata = table(window, count="1000")
        index = Counted({s["snapshot-id"]: s for s in window})
        gone = set(expirable(metadata, index, now_ms=NOW, keep=frozenset()))
        window = [s for s in window if s["snapshot-id"] not in gone]
        assert 1000 <= len(window) <= 1000 + 1000 / 15 + 1
    assert Counted.looked <= 1000 * 20


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_h1_whatever_happened_no_line_gets_a_hole_and_nothing_protected_goes(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 25))
    marks = st.sampled_from([{}, {}, {}, FLINK, SPARK, KAFKA])
    snapshots: list[JSON] = []
    for number in range(1, count + 1):
        parent = data.draw(st.sampled_from([number - 1, number - 1, number - 1, *range(number)])) or None
        age_min = data.draw(st.sampled_from([count - number, 30 + count - number, 100 + count - number]))
        snapshots.append(snapshot(number, parent, age_min=age_min, **data.draw(marks)))
    ids = st.integers(1, count)
    refs: dict[str, JSON] = {"main": branch(data.draw(ids))}
    for name in data.draw(st.lists(st.sampled_from(["a", "b", "c"]), unique=True)):
        kind = data.draw(st.sampled_from(["branch", "tag"]))
        refs[name] = {"type": kind, "snapshot-id": data.draw(ids)}
    asked = data.draw(st.sampled_from([{"count": "3"}, {"age": str(50 * MINUTE_MS)}, {"count": "9", "age": "1"}]))
    keep = data.draw(st.frozensets(ids, max_size=2))
    metadata = table(snapshots, refs, **asked)
    gone = set(expired(metadata, keep))
    index = {s["snapshot-id"]: s for s in snapshots}
    assert not gone & keep
    assert not gone & {ref["snapshot-id"] for ref in refs.values()}
    assert all(index[i]["timestamp-ms"] <= NOW - YOUNG_MS for i in gone)
    tagged = {ref["snapshot-id"] for ref in refs.values()} | keep
    lines = {name: walk(index, ref["snapshot-id"]) for name, ref in refs.items() if ref["type"] == "branch"}
    for name, ids_of in lines.items():
        others = {i for other, found in lines.items() if other != name for i in found}
        # Beyond the first gap there is only what something else holds.
        at = next((at for at, i in enumerate(ids_of) if i in gone), len(ids_of))
        assert all(i in gone or i in tagged or i in others for i in ids_of[at:])
        # Every sink finds from the head what it found before.
        left = {i: s for i, s in index.items() if i not in gone}
        for mark in (FLINK, SPARK, KAFKA):
            key = next(iter(mark))
            assert newest(left, ids_of[0], key) == newest(index, ids_of[0], key)


def walk(index: Mapping[int, JSON], snapshot_id: int | None) -> list[int]:
    found: list[int] = []
    while snapshot_id is not None and snapshot_id in index:
        found.append(snapshot_id)
        snapshot_id = index[snapshot_id].get("parent-snapshot-id")
    return found


def newest(index: Mapping[int, JSON], head_id: int, key: str) -> int | None:
    return next((i for i in walk(index, head_id) if key in index[i]["summary"]), None)


def test_what_is_let_go_leaves_a_table_that_holds_together() -> None:
    """The ids go into `remove-snapshots` in the same swap."""
    base = tm.new_table(
        uuid="0b9c1f8e-6d7f-4f0c-9d1c-3f6f6c6a1a11",
        location="s3://b/t",
        schema={"type": "struct", "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]},
        spec=None,
        sort_order=None,
        properties={"icetower.retention.snapshots-max": "4"},
        now_ms=NOW - 1000 * MINUTE_MS,
    )
    growing = Growing(base, now_ms=NOW)
    for number, added in enumerate(line(12), 1):
        growing.apply(
            [
                {"action": "add-snapshot", "snapshot": {**added, "sequence-number": number}},
                {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number},
            ]
        )
    gone = expirable(growing.view, growing.index, now_ms=NOW, keep=frozenset({7}))
    growing.apply([{"action": "remove-snapshots", "snapshot-ids": list(gone)}])
    assert [s["snapshot-id"] for s in growing.metadata["snapshots"]] == [7, 8, 9, 10, 11, 12]
    assert [entry["snapshot-id"] for entry in growing.metadata["snapshot-log"]] == [7, 8, 9, 10, 11, 12]
