"""The oracle: each step and each operation of the case format, as Iceberg itself takes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from differential.oracle import Oracle

pytestmark = pytest.mark.java

Case = dict[str, Any]


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as oracle:
        yield oracle


def append(writer: int, *names: str) -> Case:
    return {"do": "write", "id": writer, "op": {"kind": "append", "add": list(names)}}


def case(*steps: Case, files: str = "ABCD", **rest: Any) -> Case:
    return {"specs": [[]], "files": {name: {} for name in files}, "steps": list(steps)} | rest


def test_two_appends_both_commit(oracle: Oracle) -> None:
    outcome = oracle.run(case(append(1, "A"), append(2, "B")))
    assert outcome["verdicts"] == {
        "1": {"verdict": "committed", "operation": "append", "attempts": 1},
        "2": {"verdict": "committed", "operation": "append", "attempts": 1},
    }
    manifest = {"content": 0, "spec": 0, "counts": [1, 0, 0], "first_row_id": None}
    first = manifest | {"sequence_number": 1, "min_sequence_number": 1, "added_snapshot_id": 1}
    first["entries"] = [[1, 1, 1, 1, "mem://t/data/A.parquet", None, None]]
    second = manifest | {"sequence_number": 2, "min_sequence_number": 2, "added_snapshot_id": 2}
    second["entries"] = [[1, 2, 2, 2, "mem://t/data/B.parquet", None, None]]
    assert outcome["snapshots"] == [
        {"id": 1, "parent": None, "sequence_number": 1, "operation": "append", "manifests": [first]},
        {"id": 2, "parent": 1, "sequence_number": 2, "operation": "append", "manifests": [second, first]},
    ]
    assert outcome["failures"] == []
    assert (outcome["main"], outcome["branches"]) == (2, {"main": 2})
    assert (outcome["format"], outcome["last_sequence_number"]) == (2, 2)
