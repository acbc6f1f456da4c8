"""Cases run through the model: what comes of them, in which order, and which cases are refused."""

from __future__ import annotations

from typing import Any

import pytest

from icetower.errors import BadRequest
from icetower_client_model import cases
from icetower_client_model.replay import Replay, Trace, replay
from icetower_client_model.sketch import (
    FAIL,
    append,
    begin,
    case,
    commit,
    data,
    expire,
    op,
    rollback,
    upgrade,
    use_spec,
    write,
)

JSON = dict[str, Any]
FILES: JSON = {"A": data(), "B": data(), "C": data()}
DELETE = op("delete", remove=["A"], validate=["files-exist"])


def life(*steps: JSON, **more: Any) -> JSON:
    return case(FILES, *steps, **more)


# ── Outcomes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_outcome_tells_everything_that_a_reader_can_see() -> None:
    assert replay(life(append(7, "A"))) == {
        "verdicts": {"7": {"verdict": "committed", "operation": "append", "attempts": 1}},
        "failures": [],
        "snapshots": [
            {
                "id": 7,
                "parent": None,
                "sequence_number": 1,
                "operation": "append",
                "manifests": [
                    {
                        "content": 0,
                        "spec": 0,
                        "sequence_number": 1,
                        "min_sequence_number": 1,
                        "added_snapshot_id": 7,
                        "counts": [1, 0, 0],
                        "first_row_id": None,
                        "rows": [10, 0, 0],
                        "bounds": [],
                        "entries": [[1, 7, 1, 1, "mem://t/data/A.parquet", None, None]],
                        "files": [[0, 10, 100, [], [], {}, {}, {}, {}, {}]],
                    }
                ],
            }
        ],
        "main": 7,
        "branches": {"main": 7},
        "format": 2,
        "last_sequence_number": 1,
        "next_row_id": 0,
    }


MISSING = "Missing required files to delete: mem://t/data/A.parquet"
ATTEMPTS = [
    # what happens between attempts and swaps   what becomes of the delete of A, at which attempt
    ([],                                        "committed", 1),
    ([[FAIL]],                                  "committed", 2),
    ([[append(3, "B")], [append(4, "C")]],      "committed", 3),
    ([[write(3, op("delete", remove=["B"]))]],  "committed", 2),
    ([[write(3, op("delete", remove=["A"]))]],  MISSING,     2),
    ([[FAIL], [FAIL], [FAIL], [FAIL]],          "committed", 5),
    ([[FAIL], [FAIL], [FAIL], [FAIL], [FAIL]],  "exhausted", 5),
]  # fmt: skip


@pytest.mark.parametrize(("between", "expected", "attempts"), ATTEMPTS)
def test_a_swap_that_is_lost_is_tried_again(between: list[list[JSON]], expected: str, attempts: int) -> None:
    verdict = replay(life(append(1, "A", "B"), begin(2, DELETE), commit(2, *between)))["verdicts"]["2"]
    assert verdict.get("message", verdict["verdict"]) == expected
    assert verdict["attempts"] == attempts


def test_how_often_a_writer_tries_is_settled_when_it_begins() -> None:
    less: JSON = {"do": "set", "properties": {"commit.retry.num-retries": "0"}}
    steps = (append(1, "A"), begin(2, DELETE), less, begin(3, op("append", add=["B"])))
    verdicts = replay(life(*steps, commit(2, [FAIL]), commit(3, [FAIL])))["verdicts"]
    assert [verdicts[each]["verdict"] for each in "23"] == ["committed", "exhausted"]


def test_who_is_refused_at_the_beginning_stays_refused() -> None:
    files = {**FILES, "E": {"content": "equality-deletes", "equality_ids": [1]}}
    outcome = replay(case(files, begin(1, op("row-delta", add_deletes=["E"])), commit(1), format_version=1))
    assert outcome["verdicts"]["1"] == {
        "verdict": "refused",
        "error": "IllegalArgumentException",
        "message": "Deletes are supported in V2 and above",
        "at": "begin",
        "attempts": 0,
    }
    assert outcome["main"] is None


FAILING = [
    # step          what is said
    (expire(1),     "Cannot expire 1. Still referenced by refs: [main]"),
    (upgrade(1),    "Cannot downgrade v2 table to v1"),
    (rollback(9),   "Cannot set main to unknown snapshot: 9"),
]  # fmt: skip


@pytest.mark.parametrize(("step", "said"), FAILING)
def test_a_step_that_fails_is_told_and_passed_over(step: JSON, said: str) -> None:
    outcome = replay(life(append(1, "A"), step, append(2, "B")))
    (failure,) = outcome["failures"]
    assert failure["step"] == step["do"]
    assert failure["message"] == said
    assert outcome["main"] == 2


def test_steps_change_the_metadata_alone() -> None:
    steps = (append(1, "A"), append(2, "B"), append(3, "C"), rollback(2), expire(1, 3), upgrade(3))
    outcome = replay(life(*steps))
    assert [snapshot["id"] for snapshot in outcome["snapshots"]] == [2]
    assert (outcome["main"], outcome["format"], outcome["last_sequence_number"]) == (2, 3, 3)


def test_a_branch_of_its_own() -> None:
    outcome = replay(life(append(1, "A"), write(2, op("append", add=["B"], branch="audit")), append(3, "C")))
    assert outcome["branches"] == {"audit": 2, "main": 3}
    assert [snapshot["parent"] for snapshot in outcome["snapshots"]] == [None, 1, 1]


# ── The course ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_events_tell_who_did_what_when() -> None:
    between = [write(3, op("delete", remove=["A"]))]
    run = Replay(cases.parse(life(append(1, "A"), begin(2, DELETE), upgrade(3), commit(2, between))))
    run.run()
    assert [(event.what, event.writer, event.attempt) for event in run.events] == [
        ("begin", 1, 0),
        ("attempt", 1, 1),
        ("committed", 1, 1),
        ("begin", 2, 0),
        ("upgrade", None, 0),
        ("attempt", 2, 1),
        ("begin", 3, 0),
        ("attempt", 3, 1),
        ("committed", 3, 1),
        ("lost", 2, 1),
        ("refused", 2, 2),
    ]
    assert run.conflicts[2].rule == "C6"
    assert run.events[-1].conflict == run.conflicts[2]


def test_a_trace_counts_what_was_asked_and_seen() -> None:
    mine = op("row-delta", add=["C"], start=1, validate=["no-conflicting-data"])
    files = {"A": data(ids=(1, 1)), "B": data(ids=(2, 2)), "C": data()}
    for where, fired, considered in ((1, 0, 1), (2, 1, 0)):
        trace = Trace()
        asked = {**mine, "conflict_filter": {"type": "eq", "term": "id", "value": where}}
        replay(case(files, append(1, "A"), begin(3, asked), append(2, "B"), commit(3)), trace)
        counts = (trace.evaluated["C1"], trace.fired["C1"], trace.considered["C1"])
        assert counts == (1, fired, considered)


def test_a_case_can_be_told_again() -> None:
    given = life(append(1, "A"), begin(2, DELETE), commit(2, [append(3, "B")]))
    parsed = cases.parse(given)
    assert replay(given) == replay(given) == replay(parsed) == replay(parsed)


# ── Cases that make no sense ─────────────────────────────────────────────────────────────────────────────────────────

MALFORMED = [
    # the case                                                        what is said
    ({},                                                              "at steps: Field required"),
    ({"steps": [], "colour": "red"},                                  "at colour: Extra inputs are not permitted"),
    ({"steps": [], "format": 4},                                      "at format: Input should be 1, 2 or 3"),
    ({"steps": [{"do": "sing"}]},                                     "at steps.0: Input tag 'sing'"),
    ({"steps": [{"do": "commit"}]},                                   "at steps.0.commit.id: Field required"),
    (life(write(1, op("merge"))),                                     "at steps.0.write.op.kind: "),
    (life(write(1, op("append", ad=["A"]))),                          "at steps.0.write.op.ad: Extra inputs"),
    (life(write(1, op("append", validate=["luck"]))),                 "at steps.0.write.op.validate.0: "),
    (life(specs=[[{"column": "id", "transform": "bucket"}]]),         "at specs.0.0.transform: "),
    (life(specs=[[{"column": "x", "transform": "void"}]]),            "at specs.0.0.column: "),
    (life(append(1, "Z")),                                            "file 'Z', which its `files` do not"),
    (life(write(1, op("delete", remove=["Z"]))),                      "names file 'Z'"),
    (case({"A": {"metrics": {"lower": {"9": 1}}}}, append(1, "A")),   "bounds of a column that the case"),
    (life(FAIL),                                                      "has a step `fail` outside of `between`"),
    (life(commit(1)),                                                 "writer 1 must begin, and then commit once"),
    (life(append(1, "A"), commit(1)),                                 "writer 1 must begin, and then commit once"),
    (life(append(1, "A"), append(1, "B")),                            "writer 1: ids are positive, and each"),
    (life(append(0, "A")),                                            "writer 0: ids are positive"),
    (life(upgrade(4)),                                                "at steps.0.upgrade.format: Input should"),
    (life(use_spec(3)),                                               "the case has no spec 3, only 1"),
    (life(append(1, "A"), write(2, op("rewrite-manifests", merge_manifests=[1]))), "the head has 1 data manifests"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "said"), MALFORMED)
def test_a_malformed_case_is_refused_naming_the_place(given: JSON, said: str) -> None:
    with pytest.raises(BadRequest) as caught:
        replay(given)
    assert said in caught.value.message
    assert caught.value.rule.startswith("case.")


def test_two_vectors_for_one_file_in_one_operation_are_no_question_for_metadata() -> None:
    files = {"A": {}, "V": {"content": "dv", "references": "A"}, "W": {"content": "dv", "references": "A"}}
    steps = [{"do": "write", "id": 1, "op": {"kind": "row-delta", "add_deletes": ["V", "W"]}}]
    with pytest.raises(BadRequest, match="two deletion vectors for mem://t/data/A"):
        replay({"format": 3, "files": files, "steps": steps})


def test_a_property_that_is_no_number_is_named() -> None:
    properties = {"commit.manifest.target-size-bytes": "8MB"}
    steps = [{"do": "write", "id": 1, "op": {"kind": "append", "add": ["A"]}}]
    with pytest.raises(BadRequest, match=r"commit\.manifest\.target-size-bytes is '8MB'"):
        replay({"format": 2, "properties": properties, "files": {"A": {}}, "steps": steps})
