"""Whether a snapshot is in the history of a branch, where parts of it have expired."""

from __future__ import annotations

from typing import Any

import pytest

from icetower.iceberg.lineage import Lineage, reaches
from icetower.protocol.snapshots import Snapshot


def table(*snapshots: tuple[int, int | None, int]) -> dict[int, dict[str, Any]]:
    """Snapshots by id: (id, parent, sequence number)."""
    return {i: {"snapshot-id": i, "parent-snapshot-id": parent, "sequence-number": n} for i, parent, n in snapshots}


WHOLE = table((1, None, 1), (2, 1, 2), (3, 2, 3), (4, 2, 4))
CUT = table((1, None, 1), (3, 2, 3), (4, 3, 4), (5, 4, 5), (9, 1, 4))  # 2 has expired, and a tag keeps 1
OLD = table((1, None, 0), (3, 2, 0), (4, 3, 0))  # format version 1
UPGRADED = table((1, None, 0), (3, 2, 1), (4, 3, 2))


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
    ],
)
def test_a_snapshot_is_on_a_line_or_not_or_nobody_can_tell(
    snapshots: dict[int, dict[str, Any]], head: int | None, sought: int, found: bool | None
) -> None:
    assert reaches(snapshots.get, head, sought) is found
    assert Lineage.of(snapshots.get, head).has(Snapshot(snapshots[sought])) is found
