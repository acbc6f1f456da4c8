"""What has landed since a write, and which snapshots came in one commit."""

from __future__ import annotations

from typing import Any

import pytest

from icetower.errors import BadRequest
from icetower.mcp.results import Written
from icetower.mcp.since import Since, since_of
from icetower.mcp.taking_back import committed_together
from icetower.mcp.writing import written_before
from icetower.protocol.marks import KEY, PRINCIPAL
from icetower.table.head import HeadState


def history(*names: str) -> dict[str, Any]:
    """Snapshots 1, 2, …, each by its key and principal as `key@principal`; without a key, `@principal`."""
    snapshots: list[dict[str, Any]] = []
    for at, name in enumerate(names, 1):
        key, _, principal = name.partition("@")
        summary = {"operation": "append", PRINCIPAL: principal} | ({KEY: key} if key else {})
        snapshots.append(
            {
                "snapshot-id": at,
                "timestamp-ms": 1_000 * at,
                "sequence-number": at,
                "summary": summary,
                "manifest-list": "x",
            }
            | ({"parent-snapshot-id": at - 1} if at > 1 else {})
        )
    return {
        "format-version": 2, "table-uuid": "u", "location": "/t", "snapshots": snapshots, "properties": {},
        "current-snapshot-id": len(names),
        "refs": {"main": {"type": "branch", "snapshot-id": len(names)}},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "snapshot", "commits"),
    [
        (["a@me"], 1, 0),
        (["a@me", "b@you"], 1, 1),
        (["a@me", "b@you", "@you", "c@me"], 1, 3),
        (["a@me", "b@you", "b@you", "b@you"], 1, 1),  # one upsert
        (["a@me", "a@me", "a@me"], 1, 0),  # its own
        (["x@you", "a@me"], 2, 0),
        (["x@you"], 7, None),  # it has expired
        (["x@you"], None, None),
    ],
)
def test_what_has_landed_since(names: list[str], snapshot: int | None, commits: int | None) -> None:
    found = since_of(history(*names), snapshot, "a")
    assert found.commits == commits
    assert found.nothing == (commits == 0)
    assert since_of({"snapshots": [], "current-snapshot-id": -1}, 1, "a").commits is None


def test_a_write_before_other_commits_is_not_said_to_stand() -> None:
    found = written_before(Written(summary="2 rows: done", key="k", rows=2), Since(5, 1_483_326_245_000, 3))
    assert (found.ok, found.outcome) == (False, "written_before")
    assert found.refusal is not None
    assert (found.refusal.rule, found.refusal.snapshot) == ("mcp.written-before", "5")
    assert (
        "written at 2017-01-02T03:04:05+00:00 by snapshot 5; 3 commits have landed in the table since" in found.summary
    )
    assert "batch" in found.summary
    assert "1 commit has" in Since(5, None, 1).in_words()
    assert "unknown number" in Since(5, None, None).in_words()


@pytest.mark.parametrize(
    ("names", "snapshot", "logged", "together"),
    [
        (["x@you", "a@me", "a@me", "a@me", "y@you"], 2, (), {2, 3, 4}),
        (["x@you", "a@me", "a@me", "a@me", "y@you"], 3, (), {2, 3, 4}),
        (["x@you", "a@me", "a@me", "a@me"], 4, (), {2, 3, 4}),
        (["a@you", "a@me"], 2, (), {2}),  # another's key
        (["@me", "@me", "@me"], 2, (), {2}),  # without keys, only the log knows
        (["@me", "@me", "@me"], 2, (2, 3), {2, 3}),
        (["a@me", "b@me"], 1, (1,), {1}),
    ],
)
def test_which_snapshots_came_in_one_commit(
    names: list[str], snapshot: int, logged: tuple[int, ...], together: set[int]
) -> None:
    head = HeadState("/t/metadata/1.metadata.json", history(*names))
    assert committed_together(head, snapshot, frozenset(logged)) == together


def test_a_commit_whose_part_has_expired_is_not_taken_back() -> None:
    head = HeadState("/t/metadata/1.metadata.json", history("@me", "@me"))
    with pytest.raises(BadRequest, match="one commit with 9"):
        committed_together(head, 1, frozenset({1, 9}))
