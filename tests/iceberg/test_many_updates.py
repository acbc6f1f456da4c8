"""Trap A8: a commit of very many updates takes work in proportion to them, and to the table; never to their product.

Counted are calls of functions, in Python and in C. Nothing here is timed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from icetower.errors import ValidationFailed
from icetower.iceberg import metadata as tm
from icetower.iceberg import partitions, schemas
from icetower.iceberg.builder import Builder
from icetower.iceberg.structure import SPECS_MAX
from icetower.protocol.columns import COLUMNS_MAX
from icetower.protocol.sizes import PROPERTIES_MAX, check_commit
from icetower.protocol.stretches import SINGLE_MAX, STRETCHES_MAX, check_stretches, stretches
from icetower.table.client_properties import NO_CODE
from icetower.table.head import HeadState

JSON = dict[str, Any]
NOW = 1_700_000_000_000
FIELDS = [{"id": 1, "name": "id", "required": False, "type": "long"}]
SCHEMA: JSON = {"type": "struct", "schema-id": 0, "fields": FIELDS}


def table(*, columns: int = 0) -> tm.Metadata:
    return tm.new_table(
        uuid="0b9c1f8e-6d7f-4f0c-9d1c-3f6f6c6a1a11",
        location="s3://b/t",
        schema={**SCHEMA, "fields": [*FIELDS, *(column(at) for at in range(columns))]},
        spec=None,
        sort_order=None,
        properties={},
        now_ms=NOW,
    )


def column(at: int, type_: str = "int") -> JSON:
    return {"id": 2 + at, "name": f"c{at}", "required": False, "type": type_}


def schema(at: int, doc: str | None = None) -> JSON:
    """Schemas that differ in a column's name, or, with a text, in nothing but that text."""
    field = column(at) if doc is None else {**column(0), "doc": f"{doc} {at}"}
    return {"action": "add-schema", "schema": {**SCHEMA, "fields": [*FIELDS, field]}}


def spec(at: int, *, with_id: bool = True) -> JSON:
    field: JSON = {"name": f"b{at}", "transform": f"bucket[{at + 2}]", "source-id": 1}
    return {
        "action": "add-spec",
        "spec": {"spec-id": 0, "fields": [field | ({"field-id": 1000 + at} if with_id else {})]},
    }


def order(at: int) -> JSON:
    field = {"transform": f"bucket[{at + 2}]", "source-id": 1, "direction": "asc", "null-order": "nulls-first"}
    return {"action": "add-sort-order", "sort-order": {"order-id": 1, "fields": [field]}}


def snapshot(at: int) -> JSON:
    sent = {"snapshot-id": at + 1, "timestamp-ms": NOW, "manifest-list": f"s3://b/{at}.avro", "sequence-number": 0}
    return {"action": "add-snapshot", "snapshot": sent}


def ref(at: int) -> JSON:
    return {"action": "set-snapshot-ref", "ref-name": f"r{at}", "type": "tag", "snapshot-id": 1}


def statistics(at: int, action: str = "set-statistics") -> JSON:
    part = action.removeprefix("set-")
    file: JSON = {"snapshot-id": at + 1, "statistics-path": "s3://b/s", "file-size-in-bytes": 1}
    blobs: JSON = {"file-footer-size-in-bytes": 1, "blob-metadata": []} if part == "statistics" else {}
    return {"action": action, part: {**file, **blobs}}


def key(at: int) -> JSON:
    return {"action": "add-encryption-key", "encryption-key": {"key-id": f"k{at}", "encrypted-key-metadata": "x"}}


MANY: dict[str, Callable[[int], list[JSON]]] = {
    "add-schema": lambda n: [schema(at) for at in range(n)],
    "add-schema of the same columns": lambda n: [schema(at, "a column") for at in range(n)],
    "set-current-schema": lambda n: (
        [schema(0)] + [{"action": "set-current-schema", "schema-id": at % 2} for at in range(n)]
    ),
    "add-spec": lambda n: [spec(at) for at in range(n)],
    "add-spec without ids": lambda n: [spec(at, with_id=False) for at in range(n)],
    "add-sort-order": lambda n: [order(at) for at in range(n)],
    "set-properties": lambda n: [{"action": "set-properties", "updates": {f"k{at}": "v"}} for at in range(n)],
    "remove-properties": lambda n: [{"action": "remove-properties", "removals": [f"k{at}"]} for at in range(n)],
    "set-snapshot-ref": lambda n: [snapshot(0), *(ref(at) for at in range(n))],
    "remove-snapshot-ref": lambda n: [
        snapshot(0),
        *(ref(at) for at in range(n)),
        *({"action": "remove-snapshot-ref", "ref-name": f"r{at}"} for at in range(n)),
    ],
    "remove-snapshots": lambda n: [{"action": "remove-snapshots", "snapshot-ids": [at]} for at in range(n)],
    "set-statistics": lambda n: [statistics(at) for at in range(n)],
    "set-partition-statistics": lambda n: [statistics(at, "set-partition-statistics") for at in range(n)],
    "remove-statistics": lambda n: [{"action": "remove-statistics", "snapshot-id": at} for at in range(n)],
    "remove-schemas": lambda n: [{"action": "remove-schemas", "schema-ids": [at + 1]} for at in range(n)],
    "remove-partition-specs": lambda n: [{"action": "remove-partition-specs", "spec-ids": [at + 1]} for at in range(n)],
    "add-encryption-key": lambda n: [key(at) for at in range(n)],
    "remove-encryption-key": lambda n: [{"action": "remove-encryption-key", "key-id": f"k{at}"} for at in range(n)],
}


def calls(work: Callable[[], Any]) -> int:
    """How many functions are called for it."""
    count = 0

    def look(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("kind", MANY)
def test_four_times_the_updates_are_four_times_the_work(kind: str) -> None:
    base = table()
    few, many = MANY[kind](100), MANY[kind](400)
    tm.apply(base, few, now_ms=NOW)  # what is only done once for a process
    assert calls(lambda: tm.apply(base, many, now_ms=NOW)) < 5 * calls(lambda: tm.apply(base, few, now_ms=NOW))


@pytest.mark.parametrize("kind", ["add-spec", "add-sort-order", "set-current-schema"])
def test_the_columns_of_a_schema_are_made_out_once_for_a_commit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0
    columns = schemas.columns

    def counted(of: Any) -> Iterator[schemas.Column]:
        nonlocal looked_at
        looked_at += 1
        return columns(of)

    updates = MANY[kind](200)
    monkeypatch.setattr(schemas, "columns", counted)
    tm.apply(table(columns=50), updates, now_ms=NOW)
    assert looked_at < 20


def test_lists_and_maps_are_walked_through_once_for_a_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Java's older clients expire: one update a snapshot, its statistics in between."""
    base = tm.apply(table(), [*map(snapshot, range(60)), *map(statistics, range(60))], now_ms=NOW)
    updates: list[JSON] = []
    for at in range(50):
        updates.append({"action": "remove-snapshots", "snapshot-ids": [at + 1]})
        updates.append({"action": "remove-statistics", "snapshot-id": at + 1})
    walks: list[str] = []
    for name in ("remove_snapshots", "remove_statistics"):
        work = getattr(Builder, name)
        monkeypatch.setattr(Builder, name, lambda *a, _work=work, _name=name: (walks.append(_name), _work(*a))[1])
    done = tm.apply(base, updates, now_ms=NOW)
    assert [s["snapshot-id"] for s in done["snapshots"]] == list(range(51, 61))
    assert [s["snapshot-id"] for s in done["statistics"]] == list(range(51, 61))
    assert walks.count("remove_snapshots") == 1
    assert len(walks) == 4  # the removal of snapshots takes their statistics, of both parts


def test_a_map_is_copied_once_for_a_commit_and_the_base_stays() -> None:
    base = tm.apply(table(), [snapshot(0), ref(0), {"action": "set-properties", "updates": {"a": "1"}}], now_ms=NOW)
    before = {part: dict(base[part]) for part in ("refs", "properties")}
    builder = Builder(base, NOW, 2)
    builder.set_ref("x", {"snapshot-id": 1, "type": "tag"})
    builder.set_properties({"b": "2"})
    refs, properties = builder.state["refs"], builder.state["properties"]
    builder.remove_ref("r0")
    builder.remove_properties(["a"])
    assert builder.state["refs"] is refs
    assert builder.state["properties"] is properties
    builder.finish()
    builder.begin()
    builder.set_ref("y", {"snapshot-id": 1, "type": "tag"})
    assert "y" not in refs  # whoever took it after the commit keeps it
    assert {part: base[part] for part in before} == before


def test_together_or_one_by_one_it_is_the_same_table() -> None:
    draw = random.Random(7)
    base = table()
    made = [*MANY["add-schema"](6), *MANY["add-spec"](6), *map(snapshot, range(8)), *map(ref, range(6))]
    base = tm.apply(base, [*made, *map(key, range(6)), *map(statistics, range(8))], now_ms=NOW)
    for _ in range(100):
        updates: list[JSON] = []
        for at in range(8):
            updates += draw.sample(
                [
                    {"action": "remove-snapshots", "snapshot-ids": [at + 1]},
                    {"action": "remove-snapshot-ref", "ref-name": f"r{at}"},
                    {"action": "remove-statistics", "snapshot-id": at + 1},
                    {"action": "remove-schemas", "schema-ids": [at + 1]},
                    {"action": "remove-partition-specs", "spec-ids": [at + 1]},
                    {"action": "remove-encryption-key", "key-id": f"k{at}"},
                    statistics(at),
                    statistics(at, "set-partition-statistics"),
                    key(at),
                ],
                k=3,
            )
        draw.shuffle(updates)
        whole = tm.apply(base, updates, now_ms=NOW)
        alone = base
        for update in updates:
            alone = tm.apply(alone, [update], now_ms=NOW)
        assert whole == alone


def test_updates_stay_in_order_where_it_matters() -> None:
    updates = [
        key(0),
        {"action": "set-properties"},
        key(1),
        {"action": "remove-snapshots"},
        {"action": "remove-schemas"},
    ]
    updates.append({"action": "remove-snapshots"})
    found = [[update["action"] for update in each] for each in stretches(updates)]
    assert found == [
        ["add-encryption-key"],
        ["set-properties"],
        ["add-encryption-key"],
        ["remove-snapshots", "remove-snapshots"],
        ["remove-schemas"],
    ]


def test_a_commit_has_a_bounded_number_of_updates_that_are_applied_one_by_one() -> None:
    for kind in ("add-spec", "set-properties", "set-snapshot-ref"):
        check_stretches(MANY[kind](SINGLE_MAX), "commit")
        with pytest.raises(ValidationFailed, match="at most 1000 are taken") as refused:
            check_stretches(MANY[kind](SINGLE_MAX + 1), "commit")
        assert refused.value.rule == "limit.updates"
    for kind in ("remove-snapshots", "set-statistics", "add-encryption-key"):
        check_stretches(MANY[kind](9_999), "commit")
    alternating = [each for at in range(STRETCHES_MAX + 1) for each in (MANY["remove-snapshots"](1)[0], ref(at))]
    with pytest.raises(ValidationFailed, match="at most 200 times") as refused:
        check_stretches(alternating, "commit")
    assert refused.value.rule == "limit.updates"


@pytest.mark.parametrize("make", [spec, order])
def test_a_table_has_a_bounded_number_of_specs_and_of_sort_orders(make: Callable[[int], JSON]) -> None:
    full = tm.apply(table(), [make(at) for at in range(SPECS_MAX - 1)], now_ms=NOW)
    assert tm.apply(full, [make(3)], now_ms=NOW) is full  # it is there
    with pytest.raises(ValidationFailed, match="remove those that are not used") as refused:
        tm.apply(full, [make(SPECS_MAX)], now_ms=NOW)
    assert refused.value.rule == "limit.structure"


def test_a_table_has_a_bounded_number_of_properties() -> None:
    full = tm.apply(table(), [properties(PROPERTIES_MAX - 1)], now_ms=NOW)  # it is made with one
    tm.apply(full, [properties(10)], now_ms=NOW)
    with pytest.raises(ValidationFailed, match="at most 10000 are taken") as refused:
        tm.apply(full, [properties(PROPERTIES_MAX)], now_ms=NOW)
    assert refused.value.rule == "limit.properties"
    with pytest.raises(ValidationFailed, match="the commit sets 10001"):
        check_commit([properties(PROPERTIES_MAX), properties(1)], "commit")


def test_a_commit_has_a_bounded_number_of_columns() -> None:
    half = {"action": "add-schema", "schema": {**SCHEMA, "fields": [column(at) for at in range(COLUMNS_MAX // 2)]}}
    nested = {"type": "struct", "fields": half["schema"]["fields"]}
    check_commit([half, half], "commit")
    for more in (schema(0), {"action": "add-schema", "schema": {"fields": [{**column(0), "type": nested}]}}):
        with pytest.raises(ValidationFailed, match="columns") as refused:
            check_commit([half, half, more], "commit")
        assert refused.value.rule == "limit.schemas"


def properties(count: int) -> JSON:
    return {"action": "set-properties", "updates": {f"k{at}": "v" for at in range(count)}}


def test_a_version_looks_through_its_properties_once_for_all_who_load_it() -> None:
    head = HeadState("s3://b/t/1.metadata.json", tm.apply(table(), [properties(500)], now_ms=NOW))
    assert calls(lambda: head.withheld(NO_CODE)) > 500
    assert calls(lambda: head.withheld(NO_CODE)) < 5
    bad = HeadState("s3://b/t/2.metadata.json", {**head.metadata, "properties": {"a": "1", "io-impl": "x"}})
    assert bad.withheld(NO_CODE) == {"io-impl": None}
    assert bad.withheld({"io-impl": ("x",)}) == {}


def test_a_property_is_looked_at_once_and_not_once_for_each_that_is_known() -> None:
    plain = HeadState("s3://b/t/1.metadata.json", {"properties": {f"k{at}": "v" for at in range(200)}})
    assert calls(lambda: plain.withheld(NO_CODE)) < 200 * 20


def test_the_columns_of_a_table_are_made_out_once_for_all_its_specs(monkeypatch: pytest.MonkeyPatch) -> None:
    walks = 0
    columns_of = partitions.columns_of

    def counted(*arguments: Any) -> Any:
        nonlocal walks
        walks += 1
        return columns_of(*arguments)

    full = tm.apply(table(columns=20), MANY["add-spec"](300), now_ms=NOW)
    monkeypatch.setattr(partitions, "columns_of", counted)
    head = HeadState("s3://b/t/1.metadata.json", full)
    assert len(head.specs) == 301
    assert walks == 1
