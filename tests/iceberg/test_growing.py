"""`Growing` against `updates.apply`, commit by commit: the same tables and refusals, no trace of what is refused."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icetower.errors import IcetowerError
from icetower.iceberg import metadata as tm
from icetower.iceberg.growing import Growing

JSON = dict[str, Any]
NOW = 1_700_000_000_000
SCHEMA: JSON = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}],
}


def table(version: int, snapshots: int = 0) -> tm.Metadata:
    """A table with some history on `main`."""
    metadata = tm.new_table(
        uuid="0b9c1f8e-6d7f-4f0c-9d1c-3f6f6c6a1a11",
        location="s3://b/t",
        schema=SCHEMA,
        spec=None,
        sort_order=None,
        properties={"format-version": str(version)},
        now_ms=NOW,
    )
    for number in range(1, snapshots + 1):
        metadata = tm.apply(metadata, append(metadata, number), now_ms=NOW)
    return metadata


def append(metadata: tm.Metadata, snapshot_id: int, ref: str = "main") -> list[JSON]:
    """A commit of one snapshot on a branch, right for the table as it is."""
    return [added(metadata, snapshot_id, ref), moved(ref, snapshot_id)]


def added(metadata: tm.Metadata, snapshot_id: int, ref: str = "main", *, after: int = 0) -> JSON:
    parent_id = tm.ref_head(metadata, ref)
    version = metadata["format-version"]
    snapshot: JSON = {
        "snapshot-id": snapshot_id,
        "timestamp-ms": NOW + snapshot_id,
        "summary": {"operation": "append"},
        "manifest-list": f"s3://b/t/metadata/snap-{snapshot_id}.avro",
        "schema-id": 0,
    }
    if parent_id is not None:
        snapshot["parent-snapshot-id"] = parent_id
    if version > 1:
        snapshot["sequence-number"] = metadata["last-sequence-number"] + 1 + after
    if version > 2:
        snapshot |= {"first-row-id": metadata["next-row-id"] + 10 * after, "added-rows": 10}
    return {"action": "add-snapshot", "snapshot": snapshot}


def moved(ref: str, snapshot_id: int, kind: str = "branch") -> JSON:
    return {"action": "set-snapshot-ref", "ref-name": ref, "type": kind, "snapshot-id": snapshot_id}


STEP = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(["main", "other"])),
    st.tuples(st.just("two"), st.sampled_from(["main", "other"])),
    st.tuples(st.sampled_from(["late", "known", "half", "nonsense", "nothing", "upgrade"]), st.integers(0, 30)),
    st.tuples(st.sampled_from(["tag", "roll back", "remove", "remove and add", "drop ref"]), st.integers(0, 30)),
    st.tuples(st.sampled_from(["properties", "schema"]), st.integers(0, 3)),
)


def updates_of(step: tuple[str, Any], metadata: tm.Metadata, fresh: int) -> list[JSON]:
    """The commit that a step stands for, on the table as it is; some of them are refused."""
    kind, value = step
    known: Sequence[int] = [s["snapshot-id"] for s in metadata["snapshots"]]
    some = known[value % len(known)] if known and isinstance(value, int) else fresh
    if kind == "append":
        return append(metadata, fresh, value)
    if kind == "two":
        second = added(metadata, fresh + 1, value, after=1)
        return [*append(metadata, fresh, value), second, moved(value, fresh + 1)]
    late = added(metadata, fresh)
    late["snapshot"] |= {"sequence-number": 0, "first-row-id": 0, "parent-snapshot-id": some}
    return {
        "late": [added(metadata, fresh + 1), late],
        "known": append(metadata, some),
        "half": [*append(metadata, fresh), moved("main", fresh + 7)],
        "nonsense": [*append(metadata, fresh), {"action": "no such thing"}],
        "nothing": [],
        "upgrade": [{"action": "upgrade-format-version", "format-version": 3}],
        "tag": [moved(f"tag{value}", some, "tag")],
        "roll back": [moved("main", some)],
        "remove": [{"action": "remove-snapshots", "snapshot-ids": [some]}],
        "remove and add": [{"action": "remove-snapshots", "snapshot-ids": [some]}, *append(metadata, fresh)],
        "drop ref": [{"action": "remove-snapshot-ref", "ref-name": "main"}, *append(metadata, some)],
        "properties": [{"action": "set-properties", "updates": {f"p{value}": "x"}}],
        "schema": [
            {"action": "add-schema", "schema": {**SCHEMA, "fields": [{**SCHEMA["fields"][0], "doc": f"{value}"}]}},
            {"action": "set-current-schema", "schema-id": -1},
        ],
    }[kind]


@pytest.mark.parametrize("version", [1, 2, 3])
@settings(deadline=None, max_examples=150)
@given(
    history=st.integers(0, 6),
    steps=st.lists(st.tuples(STEP, st.sampled_from(["keep", "keep", "try", "look", "look and try"])), max_size=25),
    given_index=st.booleans(),
)
def test_a_group_leaves_the_table_that_its_commits_leave_one_by_one(
    version: int, history: int, steps: Sequence[tuple[tuple[str, Any], str]], given_index: bool
) -> None:
    base = table(version, history)
    untouched = copy.deepcopy(base)
    index = {s["snapshot-id"]: s for s in base["snapshots"]} if given_index else None
    growing, metadata = Growing(base, now_ms=NOW + 5, index=index), base
    seen: list[tuple[tm.Metadata, tm.Metadata]] = []
    for at, (step, mode) in enumerate(steps):
        updates = updates_of(step, metadata, 100 + 10 * at)
        before = growing.savepoint()
        if "look" in mode:
            seen.append((growing.metadata, copy.deepcopy(metadata)))
            assert growing.index == {s["snapshot-id"]: s for s in metadata["snapshots"]}
        try:
            metadata = tm.apply(metadata, updates, now_ms=NOW + 5)
        except IcetowerError as error:
            with pytest.raises(type(error), match=f"^{re.escape(str(error))}$"):
                growing.apply(updates)
        else:
            growing.apply(updates)
            if "try" in mode:
                growing.roll_back(before)
                growing.apply(updates)
        assert growing.view["snapshots"] == metadata["snapshots"]
        assert growing.view["snapshot-log"] == metadata["snapshot-log"]
        for snapshot_id in range(1, 8):
            assert growing.snapshot(snapshot_id) == tm.snapshot(metadata, snapshot_id)
    assert growing.metadata == metadata
    assert growing.index == {s["snapshot-id"]: s for s in metadata["snapshots"]}
    assert base == untouched
    assert all(kept == wanted for kept, wanted in seen)  # what was given away has not grown since
    assert index is None or index == {s["snapshot-id"]: s for s in untouched["snapshots"]}


def test_each_commit_of_a_group_has_its_place_in_the_log_and_what_it_passes_over_has_none() -> None:
    growing = Growing(table(2, 1), now_ms=NOW)
    growing.apply(append(growing.view, 2))
    second = added(growing.view, 4, after=1)
    growing.apply([*append(growing.view, 3), second, moved("main", 4)])
    assert [entry["snapshot-id"] for entry in growing.metadata["snapshot-log"]] == [1, 2, 4]


def test_a_savepoint_may_be_gone_back_to_more_than_once_and_over_removals() -> None:
    growing = Growing(table(2, 3), now_ms=NOW)
    growing.apply(append(growing.view, 4))
    before, wanted = growing.savepoint(), copy.deepcopy(growing.metadata)
    for snapshot_id in (5, 6):
        growing.apply(append(growing.view, snapshot_id))
        growing.apply([{"action": "remove-snapshots", "snapshot-ids": [1, 4]}])
        growing.apply(append(growing.view, snapshot_id + 10))
        growing.roll_back(before)
        assert growing.metadata == wanted
        assert sorted(growing.index) == [1, 2, 3, 4]
    growing.apply(append(growing.view, 7))
    assert sorted(growing.index) == [1, 2, 3, 4, 7]


def test_the_base_is_given_back_where_nothing_changed() -> None:
    base = table(2, 2)
    growing = Growing(base, now_ms=NOW)
    growing.apply([])
    growing.apply([moved("main", 2)])
    assert growing.metadata is base


def test_a_commit_costs_the_same_with_a_long_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """No list of the table is copied for a commit, nor is its index made again: they are made once for a group."""
    from icetower.iceberg import builder as module

    base = table(2, 1)
    long = {**base, "snapshots": base["snapshots"] * 500, "snapshot-log": base["snapshot-log"] * 500}
    growing = Growing(long, now_ms=NOW)
    growing.apply(append(growing.view, 2))
    lists = [growing.view["snapshots"], growing.view["snapshot-log"]]
    monkeypatch.setattr(module.Builder, "_replace", None)
    for snapshot_id in range(3, 300):
        growing.apply(append(growing.view, snapshot_id))
        before = growing.savepoint()
        growing.apply([*append(growing.view, 1000), added(growing.view, 1001, after=1), moved("main", 1001)])
        growing.roll_back(before)
    assert growing.view["snapshots"] is lists[0]
    assert growing.view["snapshot-log"] is lists[1]
