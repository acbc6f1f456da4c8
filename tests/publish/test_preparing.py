"""What is declared of a publication: one scope, which covers what each of its snapshots declares."""

from __future__ import annotations

import json

import pytest

from icetower.iceberg.expressions import from_json
from icetower.protocol.marks import (
    BLIND,
    FILTER,
    GROUP_FILE,
    INTENT,
    INTENT_FENCE,
    ISOLATION,
    KEY,
    PRINCIPAL,
    READ_SNAPSHOT,
    REF,
)
from icetower.protocol.names import Identifier
from icetower.publish.comparison import compare
from icetower.publish.preparing import Reads, request_of

A_TEXT, B_TEXT = (f'{{"type": "eq", "term": "x", "value": {value}}}' for value in (1, 2))
EITHER = f'{{"type": "or", "left": {A_TEXT}, "right": {B_TEXT}}}'
SNAPSHOT, SERIALIZABLE = {ISOLATION: "snapshot"}, {ISOLATION: "serializable", FILTER: "true"}


def serializable(text: str) -> dict[str, str]:
    return {ISOLATION: "serializable", FILTER: text}


@pytest.mark.parametrize(
    ("said", "reads", "wanted"),
    [
        ([{}], Reads(), [{}]),
        ([{}, SNAPSHOT], Reads(), [{}, {}]),
        ([SNAPSHOT, SNAPSHOT], Reads(), [SNAPSHOT, SNAPSHOT]),
        ([{BLIND: "true"}, SNAPSHOT], Reads(), [SNAPSHOT, SNAPSHOT]),
        ([serializable(A_TEXT), serializable(A_TEXT)], Reads(), [serializable(A_TEXT)] * 2),
        ([serializable(A_TEXT), serializable(B_TEXT)], Reads(), [serializable(EITHER)] * 2),
        ([serializable(A_TEXT), SNAPSHOT], Reads(), [SERIALIZABLE] * 2),
        ([serializable(A_TEXT), {}], Reads(), [SERIALIZABLE] * 2),
        ([serializable(A_TEXT), {BLIND: "true"}], Reads(), [serializable(A_TEXT)] * 2),
        ([{}], Reads(isolation="snapshot"), [SNAPSHOT]),
        ([{}], Reads(filter=A_TEXT, isolation="serializable"), [serializable(A_TEXT)]),
        ([{}], Reads(blind=True), [{BLIND: "true"}]),
        ([{BLIND: "false"}], Reads(blind=True), [{BLIND: "false"}]),
        ([SNAPSHOT], Reads(blind=True), [SNAPSHOT]),
        ([{BLIND: "true"}], Reads(isolation="snapshot"), [{BLIND: "true"}]),
        ([{}, serializable(B_TEXT)], Reads(filter=A_TEXT, isolation="serializable"), [serializable(EITHER)] * 2),
    ],
)
def test_one_scope_covers_all(said: list[dict[str, str]], reads: Reads, wanted: list[dict[str, str]]) -> None:
    assert [
        {name: each[name] for name in (BLIND, FILTER, ISOLATION) if name in each} for each in summaries(said, reads)
    ] == wanted


def test_appends_by_the_fast_path_are_blind() -> None:
    (summary,) = summaries([{GROUP_FILE: "f", "icetower.group-size": "3"}], Reads())
    assert summary == {"operation": "append", BLIND: "true"}


def test_the_scope_is_a_filter_that_can_be_read() -> None:
    assert str(from_json(json.loads(EITHER)))


def test_words_of_the_branch_are_left_there() -> None:
    kept = {"note": "x", READ_SNAPSHOT: "999"}
    (summary,) = summaries([{**kept, KEY: "k", REF: "b", PRINCIPAL: "ann", "source-snapshot-id": "7"}], Reads())
    assert summary == {"operation": "append", **kept}
    (summary,) = summaries([{READ_SNAPSHOT: "1"}], Reads())  # where the branch began
    assert READ_SNAPSHOT not in summary


def test_the_intent_is_that_of_who_publishes() -> None:
    made_under = {INTENT: "ended", INTENT_FENCE: "3"}
    assert summaries([made_under], Reads()) == [{"operation": "append"}]
    (summary,) = summaries([made_under], Reads(intent="held", fence=7))
    assert (summary[INTENT], summary[INTENT_FENCE]) == ("held", "7")
    (summary,) = summaries([made_under], Reads(intent="held"))
    assert INTENT_FENCE not in summary


def summaries(said: list[dict[str, str]], reads: Reads) -> list[dict[str, str]]:
    """Of a branch whose snapshots say that, as they are asked for at the gate."""
    snapshots = {1: {"snapshot-id": 1, "sequence-number": 1, "summary": {}}}
    for at, summary in enumerate(said, 2):
        own = {"operation": "append", **summary}
        snapshots[at] = {"snapshot-id": at, "parent-snapshot-id": at - 1, "sequence-number": at, "summary": own}
    found = compare(snapshots.get, len(snapshots), 1)
    request = request_of(Identifier(("a",), "b"), found, "dev", "main", {}, reads)
    return [dict(snapshot.summary) for snapshot in request.updates.snapshots]
