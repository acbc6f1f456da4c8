"""Keys that two commits have added without seeing each other: which commits are compared, and what is said."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from icetower.audit.commits import Commit, Line, Reads
from icetower.audit.content import Contents, Unreadable
from icetower.audit.items import Item
from icetower.audit.keys import FILES_KEPT, Keys, key_columns
from icetower.audit.live_files import Delta, LiveFiles
from icetower.errors import BadRequest
from icetower.iceberg.expressions import Column

ID, DAY = Column(1, "id", "long", required=True), Column(2, "day", "string", required=False)
NESTED = Column(3, "at.hour", "int", required=False, nested=True)
COLUMNS = {column.name: column for column in (ID, DAY, NESTED)}


class Rows:
    """The rows of files, in place of the storage."""

    def __init__(self, rows: Mapping[str, Sequence[tuple[Any, ...]]]) -> None:
        self.of = rows
        self.opened: list[str] = []
        self.notes: dict[str, None] = {}

    async def rows(self, item: Item, field_ids: Sequence[int]) -> list[tuple[Any, ...]]:
        assert field_ids == [1]
        self.opened.append(item.path)
        if item.path not in self.of:
            raise Unreadable(f"The content of {item.path} is not known.")
        return list(self.of[item.path])


class Live:
    """All files are live, but for those that are named."""

    specs: Mapping[int, Any] = {}

    def __init__(self, *gone: str) -> None:
        self._gone = gone

    def live(self, path: str) -> object | None:
        return None if path in self._gone else path


class _Item:
    """What of an item is asked here."""

    is_data = True
    spec_id = 0
    partition = ()
    place = (0, ())
    sequence_number = 1

    def __init__(self, path: str) -> None:
        self.path = path


def commit(
    position: int,
    adds: str,
    *,
    base: int | None = None,
    operation: str = "append",
    key: str | None = None,
    **reads: Any,
) -> Commit:
    summary = {"operation": operation} | ({} if key is None else {"icetower.idempotency-key": key})
    if base is not None:
        summary["icetower.base-snapshot"] = str(base + 1)
    snapshot = {"snapshot-id": position + 1, "timestamp-ms": 0, "summary": summary}
    items = tuple(cast(Item, _Item(name)) for name in adds.split())
    delta = Delta(items, (), (), (), blind=False)
    return Commit(position, snapshot, Reads(base=base, **reads), delta)


def look(rows: Mapping[str, Sequence[tuple[Any, ...]]], commits: Sequence[Commit], *gone: str) -> tuple[Any, Rows]:
    """What the last of some commits is found to have missed, and what was opened for it."""
    line, contents = Line(), Rows(rows)
    for each in commits:
        line.positions[each.id] = each.position
        line.commits.append(each)
    keys = Keys(cast(Contents, contents), line, cast(LiveFiles, Live(*gone)), (ID,))
    return asyncio.run(keys.look(commits[-1])), contents


ONE, OTHER = {"a": [(1,), (2,)], "b": [(2,), (3,)]}, {"a": [(1,)], "b": [(3,)]}


def test_a_key_that_both_have_added_is_named() -> None:
    (missed,), _ = look(ONE, [commit(0, "x"), commit(1, "a"), commit(2, "b", base=0)])
    violation = missed.violation
    assert (violation.rule.value, violation.verdict.value, violation.snapshots) == ("key-twice", "possible", (2, 3))
    assert "id is 2." in violation.witness[0]
    assert "prepared on snapshot 1 and rebased" in violation.witness[2]
    assert (missed.edge.kind, missed.edge.of, missed.edge.to) == ("rw", 3, 2)


NOTHING = [
    ("other keys", OTHER, [commit(0, "x"), commit(1, "a"), commit(2, "b", base=0)]),
    ("the second has seen the first", ONE, [commit(0, "x"), commit(1, "a"), commit(2, "b", base=1)]),
    ("nobody says what the second has read", ONE, [commit(0, "x"), commit(1, "a"), commit(2, "b")]),
    ("two snapshots of one commit", ONE, [commit(0, "x"), commit(1, "a", key="k"), commit(2, "b", base=0, key="k")]),
    ("a compaction", ONE, [commit(0, "x"), commit(1, "a", operation="replace"), commit(2, "b", base=0)]),
    ("a null is no key", {"a": [(None,)], "b": [(None,)]}, [commit(0, "x"), commit(1, "a"), commit(2, "b", base=0)]),
]


@pytest.mark.parametrize(("what", "rows", "commits"), NOTHING, ids=[each[0] for each in NOTHING])
def test_nothing_is_found(what: str, rows: Mapping[str, Any], commits: Sequence[Commit]) -> None:
    assert look(rows, commits)[0] == [], what


def test_what_the_second_has_read_is_taken_from_its_own_words_too() -> None:
    (missed,), _ = look(ONE, [commit(0, "x"), commit(1, "a"), commit(2, "b", start=0)])
    assert "It says that it had read an older version." in missed.violation.witness[2]


def test_a_file_that_is_gone_again_is_not_opened() -> None:
    found, contents = look(ONE, [commit(0, "x"), commit(1, "a"), commit(2, "b", base=0)], "a")
    assert (found, contents.opened) == ([], [])


def test_a_file_that_cannot_be_read_is_noted() -> None:
    found, contents = look({"b": [(2,)]}, [commit(0, "x"), commit(1, "a"), commit(2, "b", base=0)])
    assert found == []
    assert list(contents.notes) == ["The content of a is not known."]


def test_each_file_is_opened_once() -> None:
    commits = [commit(0, "x"), *(commit(at, f"a{at}") for at in range(1, 5)), commit(5, "b c", base=0)]
    rows = {f"a{at}": [(at,)] for at in range(1, 5)} | {"b": [(9,)], "c": [(8,)]}
    _, contents = look(rows, commits)
    assert sorted(contents.opened) == ["a1", "a2", "a3", "a4", "b", "c"]
    assert len(contents.opened) <= FILES_KEPT


KEY_COLUMNS = [
    ((), {"identifier-field-ids": [1]}, (ID,)),
    ((), {"identifier-field-ids": [1, 3]}, ()),  # a nested one is not read
    ((), {}, ()),
    (("day",), {"identifier-field-ids": [1]}, (DAY,)),
    (("id", "day", "id"), {}, (ID, DAY)),
]


@pytest.mark.parametrize(("asked", "schema", "expected"), KEY_COLUMNS)
def test_the_key_is_what_is_asked_for_or_the_identifier_fields(
    asked: Sequence[str], schema: Mapping[str, Any], expected: Sequence[Column]
) -> None:
    assert key_columns(asked, schema, COLUMNS) == tuple(expected)


@pytest.mark.parametrize("unknown", ["nothing", "at.hour"])
def test_a_column_that_cannot_be_a_key_is_refused(unknown: str) -> None:
    with pytest.raises(BadRequest, match=unknown):
        key_columns([unknown], {}, COLUMNS)
