"""Random cases: reproducible, in the case format, and mixed well enough to reach everything."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from icetower_client_model import cases
from verify.differential import generate
from verify.differential.generate import Made
from verify.differential.material import SPECS, STATISTICS
from verify.differential.writers import FLAGS, PROFILES

SEED = 20261121
SEEDS = 2000
DIGEST = "30a84e7d9de3da7b636fcc5a6f2de5d2aaba19976ece025c3592c1a36a3d13eb"
PARTS = (
    "add", "add_deletes", "remove", "remove_deletes", "remove_paths", "filter", "start", "conflict_filter",
    "references", "validate", "sequence_number", "cluster_by", "rewrite_if_spec", "merge_manifests", "branch",
)  # fmt: skip
PREDICATES = (
    "eq", "not-eq", "lt", "lt-eq", "gt", "gt-eq", "in", "not-in", "starts-with", "not-starts-with", "is-null",
    "not-null", "is-nan", "not-nan", "and", "or", "not",
)  # fmt: skip


@cache
def made() -> tuple[Made, ...]:
    return tuple(generate.make(seed) for seed in range(SEED, SEED + SEEDS))


@cache
def seen() -> Counter[str]:
    """In how many cases each thing occurs."""
    out: Counter[str] = Counter()
    for each in made():
        out.update(set(each.notes))
    return out


def steps_of(steps: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for step in steps:
        yield step
        for slot in step.get("between", ()):
            yield from steps_of(slot)


def operations() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for each in made():
        for step in steps_of(each.case["steps"]):
            if "op" in step:
                yield each.case, step["op"]


def test_a_seed_is_a_case() -> None:
    assert [generate.case(seed) for seed in range(50)] == [generate.case(seed) for seed in range(50)]
    assert len({json.dumps(generate.case(seed)["steps"]) for seed in range(50)}) == 50


def test_a_case_is_the_same_over_versions() -> None:
    """Saved seeds and published figures rest on this. Whoever changes the generator on purpose writes the digest anew,
    and runs the long run again."""
    text = json.dumps([each.case for each in made()[:1000]])
    assert hashlib.sha256(text.encode()).hexdigest() == DIGEST


def test_cases_are_in_the_case_format() -> None:
    for each in made():
        cases.parse(each.case)


def test_writers_begin_once_and_commit_once() -> None:
    for each in made():
        steps = list(steps_of(each.case["steps"]))
        begun = [step["id"] for step in steps if step["do"] in {"begin", "write"}]
        committed = [step["id"] for step in steps if step["do"] in {"commit", "write"}]
        assert len(set(begun)) == len(begun), each.case["name"]
        assert sorted(begun) == sorted(committed), each.case["name"]


def test_what_iceberg_does_not_decide_is_left_out() -> None:
    """One deletion vector for a data file in an operation: with two, Iceberg opens the files."""
    for case, op in operations():
        aims = [
            case["files"][name]["references"]
            for name in op.get("add_deletes", ())
            if case["files"][name]["content"] == "dv"
        ]
        assert len(set(aims)) == len(aims), case["name"]


@pytest.mark.parametrize(
    ("what", "share"),
    [
        *((f"engine:{name}", 0.03) for name in PROFILES),
        *((f"spec:{kind}", 0.05) for kind in SPECS),
        *((f"format:{number}", 0.1) for number in (1, 2, 3)),
        *((f"statistics:{style}", 0.2) for style in STATISTICS),
        *((f"kind:{kind}", 0.1) for kind in ("fast-append", "append", "overwrite", "row-delta", "rewrite")),
        *((f"kind:{kind}", 0.1) for kind in ("replace-partitions", "delete", "rewrite-manifests")),
        *((f"step:{step}", 0.05) for step in ("spec", "upgrade", "set", "rollback", "expire", "fail")),
        *((f"step:{step}", 0.005) for step in ("upgrade under deletes", "spec under removal")),
        ("step:upgrade from 1 between attempts", 0.005),
        ("empty table", 0.02),
        *((f"start:{which}", 0.05) for which in ("scan", "null", "older", "head at commit")),
        ("start:gone at commit", 0.03),
        ("start:gone", 0.01),
        ("start:unknown", 0.005),
        *((f"position deletes:{scope}", 0.02) for scope in ("partition", "reference", "path", "paths")),
        *((f"filter:{shape}", 0.03) for shape in ("partition", "all rows", "one", "both", "either", "not")),
        *((f"filter:{shape}", 0.03) for shape in ("true", "false")),
        ("attempts deep:1", 0.3),
        ("attempts deep:2", 0.1),
        ("attempts deep:3", 0.05),
        ("attempts deep:5", 0.01),
        ("nested:2", 0.1),
    ],
)
def test_the_mix_reaches(what: str, share: float) -> None:
    """Each thing occurs in at least this share of the cases."""
    assert seen()[what] >= share * SEEDS


@pytest.mark.parametrize(("kind", "flag"), [(kind, flag) for kind, flags in FLAGS.items() for flag in flags])
def test_every_flag_is_set_and_left_out(kind: str, flag: str) -> None:
    asked = Counter(flag in op.get("validate", ()) for _, op in operations() if op["kind"] == kind)
    assert min(asked[True], asked[False]) >= 30


@pytest.mark.parametrize("field", PARTS)
def test_every_part_of_an_operation_is_used(field: str) -> None:
    assert sum(1 for _, op in operations() if field in op) >= 40


@pytest.mark.parametrize("kind", PREDICATES)
def test_every_kind_of_predicate_is_used(kind: str) -> None:
    assert sum(f'"type": "{kind}"' in json.dumps(each.case["steps"]) for each in made()) >= 20


def test_cases_are_small() -> None:
    writers = [sum(step["do"] in {"begin", "write"} for step in steps_of(each.case["steps"])) for each in made()]
    assert max(writers) <= 12
    assert max(len(each.case["files"]) for each in made()) <= 30
    assert sum(len(each.case["files"]) for each in made()) <= 12 * SEEDS
