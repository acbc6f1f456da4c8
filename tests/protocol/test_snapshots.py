"""Snapshots by name: what a summary says is another writer's, and may be anything."""

from __future__ import annotations

import pytest

from icetower.protocol.snapshots import Snapshot


@pytest.mark.parametrize(
    ("total", "first"), [("7", True), ("8", False), ("x", False), ("9" * 20, False), ("9" * 5_000, False)]
)
def test_totals_that_are_no_numbers_say_nothing(total: str, first: bool) -> None:
    summary = {"added-records": "7", "total-records": total, "added-data-files": "1", "total-data-files": "1"}
    assert Snapshot({"snapshot-id": 1, "summary": summary}).may_be_first is first
