"""Never weaker than Iceberg: random jobs by Iceberg's own Java client, through a tower and without one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from verify.kit.tower_process import TowerProcess
from verify.wire import jobs, run
from verify.wire.driver import Driver

pytestmark = pytest.mark.java

SAVED = sorted(run.SAVED.glob("*.json"))


@pytest.fixture(scope="module")
def bench(tower: TowerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[run.Bench]:
    with Driver() as driver:
        yield run.bench(tower, driver, tmp_path_factory.mktemp("deletes"), "never_weaker")


@pytest.mark.parametrize("path", SAVED, ids=lambda path: path.stem)
def test_a_divergence_of_the_past_is_mended(bench: run.Bench, path: object) -> None:
    job = json.loads(path.read_text())["job"]
    assert [judgement.problems for _, judgement in bench.judged([job] * 3)] == [[]] * 3


@pytest.mark.sharp
def test_random_jobs_are_judged_as_iceberg_judges_them_or_more_strictly(bench: run.Bench) -> None:
    """Verdicts, contents, totals, row ids and incremental reads; and the tower rebased, or it would prove nothing."""
    given = [jobs.job(seed) for seed in range(run.SEED, run.SEED + run.COUNT)]
    notes: Counter[str] = Counter()
    for job, judgement in bench.judged(given):
        assert not judgement.problems, (job["name"], judgement.problems)
        notes += judgement.notes
    rebased = {operation for operation in ("append", "overwrite", "delete", "replace") if notes[f"rebased {operation}"]}
    assert rebased >= {"append", "overwrite"}, run.told(notes)
    assert not [note for note in notes if note.startswith("stricter, not by a known rule")], run.told(notes)


def vectors(*rows: list[int], race: bool = False) -> dict[str, Any]:
    """Writers that each delete rows of one data file, at once, and say that snapshot isolation is enough for them."""
    said = {"icetower.filter": "true", "icetower.isolation-level": "snapshot"}
    numbers = range(2, 2 + len(rows))
    ops = {
        number: {"kind": "row-delta", "add_deletes": [f"V{number}"], "references": ["D1"], "start": 1}
        | {"validate": ["deleted-files", "no-conflicting-deletes"], "conflict_filter": True, "summary": said}
        for number in numbers
    }
    vector = {"content": "dv", "spec": 0, "partition": [], "references": "D1", "records": 1}
    # Each before the swap of the one before: who begins to commit later sees the others, and refuses by itself.
    *others, last = numbers
    nested: dict[str, Any] = {"do": "commit", "id": last}
    for number in reversed(others):
        nested = {"do": "commit", "id": number, "between": [[nested]]}
    return {
        "name": "vectors",
        "format": 3,
        "specs": [[]],
        "properties": {jobs.RETRIES: "20"},
        "files": {"D1": {"content": "data", "spec": 0, "partition": [], "records": 100}}
        | {f"V{number}": vector for number in numbers},
        "positions": {f"V{number}": {"D1": deleted} for number, deleted in zip(numbers, rows, strict=True)},
        "steps": [
            {"do": "write", "id": 1, "op": {"kind": "fast-append", "add": ["D1"]}},
            *({"do": "begin", "id": number, "op": op} for number, op in ops.items()),
            {"do": "race", "ids": list(numbers)} if race else nested,
        ],
    }


EXCUSED = "excused: disjoint_rows_of_one_vector"


def test_disjoint_rows_of_one_data_file_are_deleted_together(bench: run.Bench) -> None:
    """Promise 4: Iceberg refuses all but one. What is left is read by Iceberg, vector for vector."""
    ((_, judgement),) = bench.judged([vectors([1, 5], [2], [3, 99])])
    assert judgement.problems == []
    assert (judgement.notes[EXCUSED], judgement.notes["rebased delete"]) == (2, 2)


def test_disjoint_rows_are_deleted_together_by_writers_at_one_moment(bench: run.Bench) -> None:
    """As many of them as have not seen another's commit before they sent their own: of some races, all."""
    seen: Counter[int] = Counter()
    for _, judgement in bench.judged([vectors([1, 5], [2], [3, 99], race=True)] * 5):
        assert judgement.problems == []
        assert judgement.notes[EXCUSED] == judgement.notes["rebased delete"]
        seen[judgement.notes[EXCUSED]] += 1
    assert seen[2], seen


def test_vectors_that_others_superseded_meanwhile_are_united_with_the_newest(bench: run.Bench) -> None:
    """The base has a vector already, which every writer takes along and removes."""
    job = vectors([0, 1, 5], [0, 2], [0, 3, 99])
    job["files"]["V0"], job["positions"]["V0"] = job["files"]["V2"], {"D1": [0]}
    job["steps"].insert(1, {"do": "write", "id": 9, "op": {"kind": "row-delta", "add_deletes": ["V0"]}})
    for step in job["steps"]:
        if step["do"] == "begin":
            step["op"] = step["op"] | {"start": 9, "remove_deletes": ["V0"]}
    ((_, judgement),) = bench.judged([job])
    assert judgement.problems == []
    assert (judgement.notes[EXCUSED], judgement.notes["rebased delete"]) == (2, 2)


def test_a_filter_that_hides_what_it_changes_spoils_no_table(bench: run.Bench) -> None:
    """Iceberg adds the second vector of a data file then, and reads the table no more (docs/conflicts.md, oddities)."""
    job = vectors([1, 5], [2])
    for step in job["steps"]:
        if step["do"] == "begin":
            step["op"] = step["op"] | {"conflict_filter": False, "references": []}
    ((_, judgement),) = bench.judged([job])
    assert judgement.problems == []
    assert (judgement.notes[EXCUSED], judgement.notes["rebased delete"]) == (1, 1)


def test_rows_that_two_delete_are_refused_as_iceberg_refuses_them(bench: run.Bench) -> None:
    ((_, judgement),) = bench.judged([vectors([1, 5], [5, 6])])
    assert judgement.problems == []
    assert judgement.notes["the same as Iceberg's own retries"] == 1


@pytest.mark.parametrize("version", [2, 3])
def test_an_upsert_by_equality_is_not_rebased_over_rows_that_were_deleted_in_its_partition(
    bench: run.Bench, version: int
) -> None:
    """Snapshot isolation: both may delete one row. A server that let it pass would be found weaker."""
    place: dict[str, Any] = {"spec": 0, "partition": ["a"]}
    rows = {"content": "dv", "references": "D1"} if version == 3 else {"content": "position-deletes"}
    asked = {"start": 1, "conflict_filter": True, "validate": ["no-conflicting-deletes"]}
    job = {
        "name": "upsert",
        "format": version,
        "specs": [[{"column": "category", "transform": "identity"}]],
        "properties": {jobs.RETRIES: "20", **dict.fromkeys(jobs.LEVELS, "snapshot")},
        "files": {
            "D1": {"content": "data", "records": 100, **place},
            "D2": {"content": "data", **place},
            "E1": {"content": "equality-deletes", "records": 1, "equality_ids": [1], **place},
            "P1": {"records": 1, "path_bounds": ["D1", "D1"], **rows, **place},
        },
        "positions": {"P1": {"D1": [3]}},
        "steps": [
            {"do": "write", "id": 1, "op": {"kind": "fast-append", "add": ["D1"]}},
            {"do": "begin", "id": 2, "op": {"kind": "row-delta", "add": ["D2"], "add_deletes": ["E1"], **asked}},
            {"do": "begin", "id": 3, "op": {"kind": "row-delta", "add_deletes": ["P1"], **asked}},
            {"do": "commit", "id": 2, "between": [[{"do": "commit", "id": 3}]]},
        ],
    }
    ((_, judgement),) = bench.judged([job])
    assert judgement.problems == []
    assert judgement.notes["the same as Iceberg's own retries"] == 1


DECLARED: list[dict[str, Any]] = [
    {"properties": dict.fromkeys(jobs.LEVELS, "snapshot")},
    {"properties": {"icetower.blind-appends": "true"}},
    {"contract": "blind_appends: true"},
    {"contract": "isolation: snapshot"},
    {"contract": "read_scope: owned"},
    {"summary": {"icetower.blind": "true"}},
    {"summary": {"icetower.isolation-level": "snapshot"}},
]
"""Each declaration by which a commit may be rebased."""


def twice(op: dict[str, Any], declared: dict[str, Any]) -> dict[str, Any]:
    """Two writers that do the same, the second before the first one's swap, on a table with a staged snapshot."""
    data = {"content": "data", "spec": 0, "partition": [], "records": 10}
    ops = {
        number: {**op, "summary": {**declared.get("summary", {}), **op.get("summary", {})}}
        | ({"add": [f"D{number}"]} if op["kind"] != "cherry-pick" else {})
        for number in (4, 5)
    }
    return {
        "name": "twice",
        "format": 2,
        "specs": [[]],
        "properties": {jobs.RETRIES: "20", **declared.get("properties", {})},
        **({"contract": declared["contract"]} if "contract" in declared else {}),
        "files": {f"D{number}": data for number in range(1, 6)},
        "steps": [
            {"do": "write", "id": 1, "op": {"kind": "append", "add": ["D1"]}},
            {
                "do": "write",
                "id": 2,
                "op": {"kind": "append", "add": ["D2"], "stage": True, "summary": {"wap.id": "w"}},
            },
            {"do": "write", "id": 3, "op": {"kind": "append", "add": ["D3"]}},
            *({"do": "begin", "id": number, "op": each} for number, each in ops.items()),
            {"do": "commit", "id": 4, "between": [[{"do": "commit", "id": 5}]]},
        ],
    }


OFFSETS = "kafka.connect.offsets.control.group"
VALIDATES = {"conflict_filter": True, "validate": ["no-conflicting-data"], "start": 3}
MEDIATED = {"icetower.wal.table-uuid": "log", "icetower.wal.sequence": "1"}
R10: list[dict[str, Any]] = [
    {"kind": "cherry-pick", "source": 2},
    {"kind": "append", "validate_with": OFFSETS, "summary": {OFFSETS: "{}"}},
    {"kind": "append", "validate_with": "offset", "summary": {"offset": "1", "icetower.blind": "false"}},
    {"kind": "row-delta", **VALIDATES, "summary": {**jobs.SPARK, **jobs.MERGED, **MEDIATED}},
]


@pytest.mark.parametrize("op", R10)
def test_r10_of_two_that_only_their_client_can_validate_one_lands_whoever_declares_what(
    bench: run.Bench, op: dict[str, Any]
) -> None:
    """As Iceberg's own client has it: a snapshot is picked once, an offset committed once, a batch merged once."""
    notes: Counter[str] = Counter()
    for _, judgement in bench.judged([twice(op, declared) for declared in DECLARED]):
        assert judgement.problems == []
        notes += judgement.notes
    assert notes["the same as Iceberg's own retries"] == len(DECLARED), run.told(notes)


def test_r1_of_two_merges_that_insert_the_same_rows_one_lands(bench: run.Bench) -> None:
    """At the level that the table names, their client validates by: any word but the table's and their own."""
    op = {"kind": "row-delta", **VALIDATES, "summary": {**jobs.SPARK, **jobs.MERGED}}
    for declared in DECLARED[1:6]:
        ((_, judgement),) = bench.judged([twice(op, declared)])
        assert judgement.problems == [], declared
        assert judgement.notes["the same as Iceberg's own retries"] == 1, declared


def test_the_judge_sees_a_server_that_is_weaker(bench: run.Bench) -> None:
    """A server that rebases whatever comes is what Iceberg is without its validations."""
    seen: Counter[str] = Counter()
    for seed in range(run.SEED, run.SEED + 40):
        job = jobs.job(seed)
        if run.races(job):
            continue
        seen.update(problem.partition(":")[0] for problem in bench.judged_as_if(job, without_validations(job)).problems)
    assert seen["weaker"] >= 5, seen


def without_validations(job: Mapping[str, Any]) -> dict[str, Any]:
    """The job with writers that ask Iceberg to check nothing."""

    def bare(step: Mapping[str, Any]) -> dict[str, Any]:
        out = dict(step)
        if "op" in out:
            out["op"] = {key: value for key, value in out["op"].items() if key not in ("validate", "references")}
        if "between" in out:
            out["between"] = [[bare(inner) for inner in slot] for slot in out["between"]]
        return out

    return {**job, "steps": [bare(step) for step in job["steps"]]}
