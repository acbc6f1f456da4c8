"""Whose a row is in a snapshot that stands for several appends."""

from __future__ import annotations

from icetower.pipelines.dedup_tracing import Members
from icetower.table.groups import Group, GroupedAppend


def append(principal: str, *files: str, **rows: list[tuple[int, int]]) -> GroupedAppend:
    return GroupedAppend(principal, None, None, "f", files, {path: tuple(runs) for path, runs in rows.items()})


def test_a_rows_place_in_its_file_tells_whose_it_is() -> None:
    appends = (
        append("ann", a=[(0, 2)]),
        append("bob", a=[(2, 1), (4, 1)], b=[(0, 2)]),
        append("ann", a=[(3, 1)]),
        append("cid", "c"),
    )
    members = Members.of(Group("u", "main", 1, appends))
    assert [members.at("a", position) for position in range(5)] == [{1}, {1}, {2}, {3}, {2}]
    assert [members.at("b", position) for position in range(2)] == [{2}, {2}]  # of one request, as those in a
    assert members.at("c", 7) == {4}
    assert members.at("written since", 0) == members.at("a", 5) == {1, 2, 3, 4}
    assert [members.first(path) for path in ("a", "b", "c", "written since")] == [1, 2, 4, None]
    assert [members.shared(path) for path in ("a", "b", "c", "written since")] == [True, False, False, False]
    assert members.agents == {"a": None, "b": "bob", "c": "cid"}
