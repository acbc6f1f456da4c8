"""Comparing outcomes: everything counts, but what Iceberg itself leaves open in its messages."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from verify.differential.compare import difference, live, message

A, B = "mem://t/data/A.parquet", "mem://t/data/B.parquet"
C1 = 'Found conflicting files that can contain records matching ref(name="id") == 5'
C3B = "Cannot commit, found new delete for replaced data file"
DUMP = (
    f"GenericDataFile{{content=data, file_path={A}, file_format=PARQUET, spec_id=0, partition=PartitionData{{x=1}}, "
    "record_count=1, value_counts={1=1}, lower_bounds=SerializableByteBufferMap@1f, upper_bounds=null}"
)
GONE = "Deleted manifest mem://t/metadata/%s.avro could not be found in the latest snapshot %d"
CORRUPT = "Can't index multiple DVs for"
V = "DV{location=mem://t/data/V.puffin, offset=4, length=40, referencedDataFile=%s}"
W = "DV{location=mem://t/data/W.puffin, offset=4, length=40, referencedDataFile=%s}"


def outcome() -> dict[str, Any]:
    manifest = {"content": 0, "spec": 0, "counts": [1, 0, 1], "entries": [[1, 1, 1, 1, B], [2, 1, 1, 1, A]]}
    deletes = {"content": 1, "spec": 0, "counts": [0, 1, 0], "entries": [[0, 1, 1, 1, "mem://t/data/P.parquet"]]}
    return {
        "verdicts": {"1": {"verdict": "committed", "operation": "append", "attempts": 1}},
        "failures": [],
        "snapshots": [{"id": 1, "parent": None, "sequence_number": 1, "manifests": [manifest, deletes]}],
        "main": 1,
        "branches": {"main": 1},
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f"{C1}: [{A}, {B}]", f"{C1}: [{B}, {A}]"),
        ("matching partitions [a=1, a=2]: [x]", "matching partitions [a=2, a=1]: [x]"),
        (f"{C3B}: {DUMP}", f"{C3B}: {A}"),
        (f"{CORRUPT} {A}: {V % A} and {W % A}", f"{CORRUPT} {A}: {W % A} and {V % A}"),
        (GONE % ("w1-m0", 5), GONE % ("w2-m0", 5)),
    ],
)
def test_what_iceberg_leaves_open(one: str, other: str) -> None:
    assert message(one) == message(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f"{C1}: [{A}, {B}]", f"{C1}: [{A}]"),
        (f"{C1}: [{A}, {A}]", f"{C1}: [{A}]"),
        (f"Missing required files to delete: {A},{B}", f"Missing required files to delete: {B},{A}"),
        ("Snapshot 1 is not an ancestor of 2", "Snapshot 2 is not an ancestor of 1"),
        (f"{C3B}: {DUMP}", f"{C3B}: {B}"),
        (f"{CORRUPT} {A}: {V % A} and {W % A}", f"{CORRUPT} {A}: {V % A} and {V % A}"),
        (GONE % ("w1-m0", 5), GONE % ("w1-m0", 6)),
    ],
)
def test_what_it_does_not(one: str, other: str) -> None:
    assert message(one) != message(other)


def test_what_the_jvm_says_of_a_null_pointer_is_its_own() -> None:
    def refused(error: str, said: str) -> dict[str, Any]:
        return outcome() | {"verdicts": {"1": {"verdict": "refused", "error": error, "message": said}}}

    assert difference(refused("NullPointerException", "x"), refused("NullPointerException", "y")) is None
    assert difference(refused("NullPointerException", "x"), refused("ValidationException", "x")) is not None
    assert difference(refused("ValidationException", "x"), refused("ValidationException", "y")) is not None


def test_equal_outcomes_do_not_differ() -> None:
    assert difference(outcome(), outcome()) is None


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("verdicts", "1", "attempts"), 2, "verdicts.1.attempts: 1 != 2"),
        (("verdicts", "1", "verdict"), "refused", "verdicts.1.verdict: 'committed' != 'refused'"),
        (("snapshots", 0, "parent"), 0, "snapshots.1.parent: None != 0"),
        (("snapshots", 0, "manifests", 0, "counts", 2), 0, "snapshots.1.manifests[0].counts[2]: 1 != 0"),
        (("snapshots", 0, "manifests", 0, "entries", 0, 0), True, "snapshots.1.manifests[0].entries[0][0]: 1 != True"),
        (("main",), None, "main: 1 != None"),
    ],
)
def test_every_leaf_counts(path: tuple[Any, ...], value: Any, told: str) -> None:
    actual = copy.deepcopy(outcome())
    inner = actual
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert difference(outcome(), actual) == told


def test_order_counts() -> None:
    actual = outcome()
    actual["snapshots"][0]["manifests"].reverse()
    assert difference(outcome(), actual) is not None


def test_a_missing_part_counts() -> None:
    actual = outcome()
    del actual["verdicts"]["1"]
    assert difference(outcome(), actual) is not None
    assert difference(actual, outcome()) is not None


def test_what_is_live() -> None:
    assert live(outcome()) == ([B], ["mem://t/data/P.parquet"])
