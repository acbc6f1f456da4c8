"""Which delete files apply to a data file, and when delete files contradict each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from icetower.iceberg.deletes import Corrupt, DeleteIndex, partition_text
from icetower.iceberg.entries import Live
from icetower.iceberg.expressions import columns_of
from icetower.iceberg.records import ADDED, PATH_FIELD_ID, DataFile, Entry, ManifestFile, is_vector, referenced_file
from icetower_client_model import cases
from icetower_client_model.cases import SCHEMA
from icetower_client_model.sketch import BY_CATEGORY, case, data, equalities, positions, vector
from tests.client_model.rule_world import short, specs_of

JSON = dict[str, Any]

SPECS_GIVEN = [*BY_CATEGORY, []]
SPECS = specs_of(*SPECS_GIVEN)
COLUMNS = {column.id: column for column in columns_of(SCHEMA).values()}
ROW = ManifestFile(
    path="m", length_bytes=1, spec_id=0, content=1, sequence_number=1, min_sequence_number=1, added_snapshot_id=1,
    added_files=1, existing_files=0, deleted_files=0, added_rows=1, existing_rows=0, deleted_rows=0,
    partitions=None, key_metadata=None, first_row_id=None,
)  # fmt: skip


def by(column: int, metrics: Mapping[str, Any], *partition: Any) -> JSON:
    """Equality deletes by a column, with these statistics of it."""
    said = {name: {str(column): value} for name, value in metrics.items()}
    return {**equalities(*partition), "equality_ids": [column], "metrics": said}


FILES: Mapping[str, JSON] = {
    "red": data("red", ids=(1, 5)),
    "red-2": data("red", ids=(1, 5)),
    "blue": data("blue", ids=(1, 5)),
    "plain": data(spec=1, ids=(1, 5)),
    "of-red": positions("red", of="red"),
    "of-red-by-bounds": {**positions("red"), "path_bounds": ["red", "red"]},
    "of-a-range": {**positions("red"), "path_bounds": ["blue", "red"]},
    "of-the-partition": positions("red"),
    "of-plain": positions(spec=1, of="plain"),
    "vector": vector("red", "red"),
    "vector-2": vector("red", "red"),
    "vector-astray": vector("red", "blue"),
    "astray-of-plain": vector("plain", "red"),
    "ids-1-1": equalities("red", ids=(1, 1)),
    "ids-6-9": equalities("red", ids=(6, 9)),
    "ids-unknown": equalities("red"),
    "everywhere": equalities(spec=1, ids=(1, 1)),
}
CASE = cases.parse(case(FILES, specs=SPECS_GIVEN))


def file(name: str) -> DataFile:
    return cases.data_file(CASE, name)


def live(name: str, number: int) -> Live:
    """A delete file as the head's manifests tell it."""
    row = replace(ROW, spec_id=CASE.files[name].spec, sequence_number=number)
    return Live(ADDED, 1, number, number, Entry(ADDED, 1, number, number, file(name)), row)


def index(*names: str, number: int = 2) -> DeleteIndex:
    return DeleteIndex([live(name, number) for name in names], SPECS, COLUMNS)


def applying(found: DeleteIndex, to: str, number: int = 1) -> list[str]:
    return [short(each.path) for each in found.applying_to(file(to), CASE.files[to].spec, number)]


APPLY = [
    # delete file        red    red-2  blue   plain
    ("of-red",           "yes", "no",  "no",  "no"),   # a reference names the one data file …
    ("of-red-by-bounds", "yes", "no",  "no",  "no"),   # … and so do equal bounds of the path column
    ("of-a-range",       "yes", "yes", "no",  "no"),
    ("of-the-partition", "yes", "yes", "no",  "no"),
    ("of-plain",         "no",  "no",  "no",  "yes"),
    ("vector",           "yes", "no",  "no",  "no"),
    ("ids-1-1",          "yes", "yes", "no",  "no"),
    ("ids-6-9",          "no",  "no",  "no",  "no"),   # the ranges do not meet
    ("ids-unknown",      "yes", "yes", "no",  "no"),
    ("everywhere",       "yes", "yes", "yes", "yes"),  # of an unpartitioned spec: the whole table
]  # fmt: skip


@pytest.mark.parametrize(("name", "red", "red_2", "blue", "plain"), APPLY)
def test_what_a_delete_file_applies_to(name: str, red: str, red_2: str, blue: str, plain: str) -> None:
    found = index(name)
    for to, expected in (("red", red), ("red-2", red_2), ("blue", blue), ("plain", plain)):
        assert applying(found, to) == ([name] if expected == "yes" else []), to


AGES = [
    # delete file       its number  the data file's  applies
    ("of-red",           2,          2,               True),   # position deletes of the same commit do …
    ("of-the-partition", 2,          2,               True),
    ("vector",           2,          2,               True),
    ("ids-1-1",          2,          2,               False),  # … equality deletes don't
    ("ids-1-1",          3,          2,               True),
    ("everywhere",       2,          2,               False),
    ("of-red",           1,          2,               False),
    ("of-the-partition", 1,          2,               False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "number", "data_number", "expected"), AGES)
def test_sequence_numbers_decide(name: str, number: int, data_number: int, expected: bool) -> None:
    assert bool(applying(index(name, number=number), "red", data_number)) is expected


def test_a_vector_takes_the_place_of_position_deletes() -> None:
    found = index("of-red", "of-the-partition", "ids-1-1", "vector")
    assert applying(found, "red") == ["ids-1-1", "vector"]
    assert applying(found, "red-2") == ["ids-1-1", "of-the-partition"]
    assert [short(each.path) for each in found.files] == ["ids-1-1", "of-the-partition", "of-red", "vector"]


VALUES = {"values": 10, "nulls": 0, "lower": "b", "upper": "d"}
NULLABLE = [
    # statistics of the data file's column              and of the deletes'                               applies
    (VALUES,                                            {**VALUES, "lower": "d", "upper": "x"},            True),
    (VALUES,                                            {**VALUES, "lower": "e", "upper": "x"},            False),
    # Nulls on both sides may be equal, wherever the ranges lie.
    ({**VALUES, "nulls": 1},                            {**VALUES, "nulls": 1, "lower": "x", "upper": "y"}, True),
    ({**VALUES, "nulls": 1},                            {**VALUES, "lower": "x", "upper": "y"},            False),
    # Nothing but nulls here, none there.
    ({"values": 10, "nulls": 10},                       VALUES,                                            False),
    (VALUES,                                            {"values": 1, "nulls": 1},                         False),
    # Unknown counts prove nothing.
    ({"lower": "b", "upper": "d"},                      {"lower": "x", "upper": "y"},                      True),
    ({"values": 10, "nulls": 10},                       {"lower": "b", "upper": "d"},                      True),
    ({"values": 10, "nulls": 0},                        VALUES,                                            True),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs", "expected"), NULLABLE)
def test_equality_deletes_go_by_ranges_and_nulls(ours: JSON, theirs: JSON, expected: bool) -> None:
    """By a column that may be null; the two files are in one partition."""
    metrics = {name: {"2": value} for name, value in ours.items()}
    given = cases.parse(
        case({"data": {**data("red"), "metrics": metrics}, "deletes": by(2, theirs, "red")}, specs=SPECS_GIVEN)
    )
    entry = Entry(ADDED, 1, 2, 2, cases.data_file(given, "deletes"))
    found = DeleteIndex([Live(ADDED, 1, 2, 2, entry, ROW)], SPECS, COLUMNS)
    assert bool(found.applying_to(cases.data_file(given, "data"), 0, 1)) is expected


# ── Contradictions ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_vectors_for_one_file_are_corrupt() -> None:
    with pytest.raises(Corrupt) as caught:
        index("vector", "vector-2")
    dv = "DV{{location={}, offset=4, length=40, referencedDataFile=red}}"
    expected = f"Can't index multiple DVs for red: {dv.format('vector-2')} and {dv.format('vector')}"
    assert short(str(caught.value)) == expected


YOUNGER = "DV data sequence number (1) must be greater than or equal to data file sequence number (2)"
TUPLES = "Mismatched partition tuples (PartitionData{category=blue}, PartitionData{category=red})"
SPEC_IDS = "Mismatched partition specs (0, 1)"
CORRUPT = [
    # delete file, its number data file, its number
    ("vector",          1,    "red",   2,  YOUNGER),
    ("vector-astray",   2,    "red",   1,  f"{TUPLES} for delete file vector-astray and data file red"),
    ("astray-of-plain", 2,    "plain", 1,  f"{SPEC_IDS} for delete file astray-of-plain and data file plain"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "number", "to", "data_number", "expected"), CORRUPT)
def test_a_vector_that_contradicts_its_data_file(
    name: str, number: int, to: str, data_number: int, expected: str
) -> None:
    with pytest.raises(Corrupt) as caught:
        applying(index(name, number=number), to, data_number)
    assert short(str(caught.value)).removesuffix(": metadata is corrupted") == expected


# ── Names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


ABOUT = [
    ("of-red", "red"),
    ("of-red-by-bounds", "red"),
    ("of-a-range", None),
    ("of-the-partition", None),
    ("vector", "red"),
    ("ids-1-1", None),
]


@pytest.mark.parametrize(("name", "expected"), ABOUT)
def test_which_file_a_delete_file_is_about(name: str, expected: str | None) -> None:
    found = referenced_file(file(name))
    assert (found and short(found)) == expected


def test_bounds_that_are_no_text_name_some_file_that_nobody_has() -> None:
    """A client may write what it likes there."""
    bounds = [{"key": PATH_FIELD_ID, "value": b"\xff"}]
    odd = file("of-red-by-bounds")
    odd = replace(odd, record={**odd.record, "lower_bounds": bounds, "upper_bounds": bounds})
    assert referenced_file(odd) == "\N{REPLACEMENT CHARACTER}"


def test_a_vector_is_known_by_its_format() -> None:
    assert [name for name in FILES if is_vector(file(name))] == [
        "vector",
        "vector-2",
        "vector-astray",
        "astray-of-plain",
    ]


@pytest.mark.parametrize(
    ("spec_id", "partition", "text"),
    [
        (0, ("red",), "PartitionData{category=red}"),
        (0, (None,), "PartitionData{category=null}"),
        (1, (), "PartitionData{}"),
    ],
)
def test_a_partition_as_messages_print_it(spec_id: int, partition: tuple[Any, ...], text: str) -> None:
    assert partition_text(SPECS[spec_id], partition) == text
