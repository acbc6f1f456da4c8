"""A branch beside another one: what the latter lacks, whatever was published, picked, rolled back or has expired."""

from __future__ import annotations

from typing import Any

import pytest

from icetower.errors import CommitConflict
from icetower.protocol.marks import PUBLISHED_BRANCH, PUBLISHED_OF, SOURCE_SNAPSHOT
from icetower.publish.comparison import compare

Said = dict[str, str]


def picked(source: int) -> Said:
    return {SOURCE_SNAPSHOT: str(source)}


def copy(source: int, *origins: int) -> Said:
    return {SOURCE_SNAPSHOT: str(source), PUBLISHED_BRANCH: "b", PUBLISHED_OF: ",".join(map(str, origins))}


# Snapshots as id: (parent, summary), where the branch and the other one stand, and what is found.
CASES: list[tuple[str, dict[int, tuple[int | None, Said]], int, int | None, dict[str, Any]]] = [
    (
        "the other one is empty",
        {1: (None, {}), 2: (1, {})},
        2,
        None,
        {"base": None, "lacking": [1, 2], "forward": True},
    ),
    (
        "nothing came to it",
        {1: (None, {}), 2: (1, {}), 3: (2, {})},
        3,
        1,
        {"base": 1, "lacking": [2, 3], "forward": True},
    ),
    ("both stand there", {1: (None, {}), 2: (1, {})}, 2, 2, {"base": 2, "lacking": [], "forward": True}),
    ("it is ahead", {1: (None, {}), 2: (1, {})}, 1, 2, {"base": 1, "lacking": [], "forward": False}),
    (
        "something came",
        {1: (None, {}), 2: (1, {}), 3: (2, {}), 4: (1, {})},
        3,
        4,
        {"base": 1, "lacking": [2, 3], "forward": False},
    ),
    ("both began with nothing", {1: (None, {}), 2: (None, {})}, 1, 2, {"base": None, "lacking": [1], "forward": False}),
    (
        "one was picked",
        {1: (None, {}), 2: (1, {}), 3: (2, {}), 4: (1, picked(2))},
        3,
        4,
        {"base": 1, "lacking": [3], "picked": {2: 4}, "copies": []},
    ),
    (
        "the middle one was picked",
        {1: (None, {}), 2: (1, {}), 3: (2, {}), 4: (3, {}), 5: (1, picked(3))},
        4,
        5,
        {"base": 1, "lacking": [2, 4], "picked": {3: 5}},
    ),
    (
        "published, and written to since",
        {1: (None, {}), 2: (1, {}), 3: (2, {}), 4: (1, {}), 5: (4, copy(2, 2))},
        3,
        5,
        {"base": 1, "lacking": [3], "copies": [5], "numbers": {2: 5, 3: 1}},
    ),
    (
        "published as one",
        {1: (None, {}), 2: (1, {}), 3: (2, {}), 4: (3, {}), 5: (1, {}), 6: (5, copy(3, 2, 3))},
        4,
        6,
        {"base": 1, "lacking": [4], "copies": [6], "numbers": {2: 6, 3: 6, 4: 1}},
    ),
    (
        "published, and its last one had changed nothing",
        {1: (None, {}), 2: (1, {}), 3: (2, {}), 5: (1, {}), 6: (5, copy(2, 2, 3))},
        3,
        6,
        {"base": 1, "lacking": [], "copies": [6]},
    ),
    (
        "published, then set back, and written to",
        {1: (None, {}), 2: (1, {}), 3: (2, {}), 4: (2, {}), 5: (1, {}), 6: (5, copy(2, 2)), 7: (6, copy(3, 3))},
        4,
        7,
        {"base": 1, "lacking": [4], "copies": [6], "numbers": {2: 6, 4: 1}},
    ),
    (
        "the first of its copies alone is still there",
        {1: (None, {}), 2: (1, {}), 3: (2, {}), 5: (1, {}), 6: (5, copy(2, 2)), 7: (6, copy(3, 3)), 8: (6, {})},
        3,
        8,
        {"base": 1, "lacking": [3], "copies": [6]},
    ),
    (
        "published by way of another branch",
        {1: (None, {}), 2: (1, {}), 5: (1, {}), 6: (5, copy(4, 2))},
        2,
        6,
        {"base": 1, "lacking": [], "copies": [6]},
    ),
    (
        "the other way by which it came",
        {1: (None, {}), 3: (1, copy(2, 2)), 5: (1, {}), 6: (5, copy(2, 2)), 7: (6, {})},
        3,
        7,
        {"base": 1, "lacking": [], "numbers": {3: 6}},
    ),
    (
        "brought up to date",
        {1: (None, {}), 2: (1, {}), 3: (2, copy(4, 4)), 4: (1, {}), 7: (3, {}), 8: (4, {})},
        7,
        8,
        {"base": 1, "lacking": [2, 7], "copies": [], "numbers": {2: 1, 3: 4, 7: 1}},
    ),
    (
        "as one with what the branch has no more",
        {1: (None, {}), 2: (1, {}), 4: (2, {}), 5: (1, {}), 6: (5, copy(3, 2, 3))},
        4,
        6,
        {"base": 1, "lacking": [4], "copies": []},
    ),
    (
        "another branch was published",
        {1: (None, {}), 2: (1, {}), 3: (1, {}), 4: (3, copy(9, 9))},
        2,
        4,
        {"base": 1, "lacking": [2], "copies": []},
    ),
    (
        "published and rolled back",
        {1: (None, {}), 2: (1, {}), 4: (1, {}), 5: (4, copy(2, 2)), 6: (4, {})},
        2,
        6,
        {"base": 1, "lacking": [2], "copies": []},
    ),
]


@pytest.mark.parametrize(
    ("snapshots", "head", "onto", "wanted"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_compared(
    snapshots: dict[int, tuple[int | None, Said]], head: int, onto: int | None, wanted: dict[str, Any]
) -> None:
    found = compare(table(snapshots).get, head, onto)
    seen = {
        "base": found.base,
        "lacking": [snapshot.id for snapshot in found.lacking],
        "forward": found.forward,
        "picked": dict(found.picked),
        "copies": sorted(found.copies),
        "numbers": dict(found.numbers),
    }
    assert {name: seen[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("snapshots", "head", "onto"),
    [
        ({2: (1, {}), 4: (3, {})}, 2, 4),  # both lines are cut
        ({2: (1, {}), 4: (None, {})}, 2, 4),  # the branch's is
        ({2: (None, {}), 4: (3, {})}, 2, 4),  # the other one's is
    ],
)
def test_without_the_snapshot_at_which_they_parted(
    snapshots: dict[int, tuple[int | None, Said]], head: int, onto: int
) -> None:
    with pytest.raises(CommitConflict) as refused:
        compare(table(snapshots).get, head, onto)
    assert (refused.value.rule, refused.value.next_step) == ("publish.base", "fix_request")


def table(snapshots: dict[int, tuple[int | None, Said]]) -> dict[int, dict[str, Any]]:
    """Snapshots (JSON) by id; the sequence number of each is its id."""
    return {
        at: {"snapshot-id": at, "parent-snapshot-id": parent, "sequence-number": at, "summary": summary}
        for at, (parent, summary) in snapshots.items()
    }
