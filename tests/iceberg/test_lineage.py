"""Whether a snapshot is in the history of a branch, where parts of it have expired."""

from __future__ import annotations

from typing import Any

import pytest

from icetower.iceberg.lineage import Lineage, reaches
from icetower.protocol.snapshots import Snapshot


def totals(records: int, **others: int) -> dict[str, str]:
    """The summary of an append of one row to a table that has so many then."""
    counted = {"added-records": 1, "added-data-files": 1, "total-records": records, "total-data-files": records}
    return {name.replace("_", "-"): str(number) for name, number in {**counted, **others}.items()}


def table(*snapshots: tuple[int, int | None, int], **summaries: dict[str, str]) -> dict[int, dict[str, Any]]:
    """Snapshots by id: (id, parent, sequence number). `summaries`: by `_` and the id; of others the first has one."""
    found: dict[int, dict[str, Any]] = {}
    for i, parent, number in snapshots:
        summary = summaries.get(f"_{i}", totals(1) if parent is None else {})
        found[i] = {"snapshot-id": i, "parent-snapshot-id": parent, "sequence-number": number, "summary": summary}
    return found


WHOLE = table((1, None, 1), (2, 1, 2), (3, 2, 3), (4, 2, 4))
CUT = table((1, None, 1), (3, 2, 3), (4, 3, 4), (5, 4, 5), (9, 1, 4))  # 2 has expired, and a tag keeps 1
OLD = table((1, None, 0), (3, 2, 0), (4, 3, 0))  # format version 1
UPGRADED = table((1, None, 0), (3, 2, 1), (4, 3, 2))


def unnamed(summary: dict[str, str]) -> dict[int, dict[str, Any]]:
    """A tag keeps 1. Snapshot 2 has expired, and 3 names no parent any more."""
    return table((1, None, 1), (3, None, 3), (4, 3, 4), _3=summary)


@pytest.mark.parametrize(
    ("snapshots", "head", "sought", "found"),
    [
        (WHOLE, 3, 3, True),
        (WHOLE, 3, 1, True),
        (WHOLE, 4, 3, False),
        (WHOLE, 2, 3, False),
        (WHOLE, None, 1, False),  # no such branch
        (CUT, 5, 4, True),
        (CUT, 5, 1, None),
        (CUT, 5, 9, False),  # what the cut hides is older than this
        (CUT, 3, 9, False),
        (OLD, 4, 3, True),
        (OLD, 4, 1, None),
        (OLD, 1, 4, False),
        (UPGRADED, 4, 1, None),
        (table((1, 2, 1), (2, 1, 2), (3, None, 3)), 2, 3, False),  # forged: each the other's parent
        (table((1, 7, 5), (2, None, 6)), 1, 2, False),
        (unnamed(totals(1)), 4, 1, False),  # created again: the first of a new line
        (unnamed(totals(3)), 4, 1, None),
        (unnamed(totals(3)), 3, 4, False),  # what is beyond the cut is older than this
        (unnamed(totals(1, deleted_data_files=2)), 4, 1, None),
        (unnamed({}), 4, 1, None),
    ],
)
def test_a_snapshot_is_on_a_line_or_not_or_nobody_can_tell(
    snapshots: dict[int, dict[str, Any]], head: int | None, sought: int, found: bool | None
) -> None:
    assert reaches(snapshots.get, head, sought) is found
    assert Lineage.of(snapshots.get, head).has(Snapshot(snapshots[sought])) is found
