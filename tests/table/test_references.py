"""What a metadata file names is nobody's orphan, and what names a file in no known way is refused."""

from __future__ import annotations

from typing import Any

import pytest

from icetower.errors import BadRequest
from icetower.table.references import named_by

SNAPSHOT = {"snapshot-id": 1, "manifest-list": "list", "summary": {"operation": "append"}}


def test_k1_a_group_file_is_named_by_its_snapshot_on_whatever_branch() -> None:
    """Trap K1: the group file of the fast path holds the keys; nothing else names it."""
    grouped = {"snapshot-id": 2, "manifest-list": "list2", "summary": {"icetower.group-file": "group"}}
    metadata = {
        "snapshots": [SNAPSHOT, grouped, {"snapshot-id": 3, "manifests": ["m1", "m2"]}],
        "statistics": [{"statistics-path": "statistics"}],
        "partition-statistics": [{"statistics-path": "partitions"}],
        "metadata-log": [{"metadata-file": "before"}],
    }
    assert named_by(metadata) == {"list", "list2", "group", "m1", "m2", "statistics", "partitions", "before"}
    assert named_by({}) == set()


@pytest.mark.parametrize(
    "metadata",
    [
        {"snapshots": [{**SNAPSHOT, "summary": {"icetower.group-file": 7}}]},
        {"snapshots": [{**SNAPSHOT, "summary": 7}]},
        {"snapshots": [{**SNAPSHOT, "summary": {"icetower.group-file": ["group"]}}]},
        {"statistics": [{}]},
        {"metadata-log": ["before"]},
    ],
)
def test_a_file_that_is_named_in_no_known_way_is_refused(metadata: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="names a file"):
        named_by(metadata)
