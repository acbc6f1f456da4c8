"""Shrinking: what is left still diverges, is minimal, and is the same every time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from icetower.errors import BadRequest
from icetower_client_model import cases
from verify.differential import generate
from verify.differential.shrink import shrink

Case = dict[str, Any]
Diverges = Callable[[Case], bool]


def steps_of(steps: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for step in steps:
        yield step
        for slot in step.get("between", ()):
            yield from steps_of(slot)


def readable(case: Case) -> bool:
    try:
        cases.parse(case)
    except BadRequest:
        return False
    return True


def operation(**wanted: Any) -> Diverges:
    """A "divergence" that needs one operation with these parts (None: any value)."""

    def diverges(case: Case) -> bool:
        found = (step.get("op", {}) for step in steps_of(case["steps"]))
        return readable(case) and any(
            all(key in op and value in (None, op[key]) for key, value in wanted.items()) for op in found
        )

    return diverges


def nested(case: Case) -> bool:
    return readable(case) and any(
        inner["do"] in {"commit", "write"}
        for step in steps_of(case["steps"])
        for slot in step.get("between", ())
        for inner in slot
    )


def with_statistics(case: Case) -> bool:
    named = json.dumps(case["steps"])
    return readable(case) and any(
        f'"{name}"' in named and "2" in file.get("metrics", {}).get("upper", {}) for name, file in case["files"].items()
    )


def first(diverges: Diverges) -> Case:
    return next(case for case in map(generate.case, range(1000)) if diverges(case))


@pytest.mark.parametrize(
    ("diverges", "steps", "operation_parts", "files"),
    [
        (operation(kind="overwrite", remove=None, start=None), 1, {"kind", "remove", "start"}, 0),
        (operation(kind="row-delta", add_deletes=None), 1, {"kind", "add_deletes"}, 0),
        (operation(kind="rewrite", sequence_number=None), 1, {"kind", "sequence_number"}, 0),
        (nested, 2, {"kind"}, 0),
        (with_statistics, 1, {"kind", "add"}, 1),
    ],
)
def test_a_minimal_case_is_left(diverges: Diverges, steps: int, operation_parts: set[str], files: int) -> None:
    least = shrink(first(diverges), diverges)
    assert diverges(least)
    left = list(steps_of(least["steps"]))
    assert len([step for step in left if step["do"] != "begin"]) <= steps
    assert {key for step in left for key in step.get("op", {})} <= operation_parts
    assert len(least["files"]) <= files
    assert least["properties"] == {}
    assert least["format"] == 1


def test_the_rest_of_a_file_is_taken_away() -> None:
    least = shrink(first(with_statistics), with_statistics)
    (file,) = least["files"].values()
    assert file["metrics"] == {"upper": {"2": file["metrics"]["upper"]["2"]}}
    assert file["records"] <= 1
    assert least["specs"] == [[]]
    assert file["partition"] == []


def test_a_filter_is_cut_down_to_what_matters() -> None:
    def diverges(case: Case) -> bool:
        return readable(case) and '"starts-with"' in json.dumps(case["steps"])

    least = shrink(first(diverges), diverges)
    (step,) = least["steps"]
    (text,) = [value for key, value in step["op"].items() if key in {"filter", "conflict_filter"}]
    assert text["type"] == "starts-with"


def test_the_same_every_time() -> None:
    case = first(nested)
    assert shrink(case, nested) == shrink(case, nested)


def test_the_given_case_stays_as_it_is() -> None:
    case = first(nested)
    before = json.dumps(case)
    shrink(case, nested)
    assert json.dumps(case) == before


def test_tries_are_bounded() -> None:
    asked: list[int] = []

    def diverges(case: Case) -> bool:
        asked.append(1)
        return nested(case)

    least = shrink(first(nested), diverges, tries_max=7)
    assert len(asked) == 7
    assert nested(least)


def test_what_cannot_be_made_smaller_stays() -> None:
    case = first(nested)
    assert shrink(case, lambda smaller: False) == case
