"""The oracle: each step and each operation of the case format, as Iceberg itself takes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools import java
from verify.differential.oracle import Oracle, OracleError

pytestmark = pytest.mark.java

Case = dict[str, Any]
ADDED, EXISTING, DELETED = 1, 0, 2
CATEGORY = [{"column": "category", "transform": "identity"}]
NO_MERGING = {"commit.manifest-merge.enabled": "false"}


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as oracle:
        yield oracle


def write(writer: int, kind: str, *between: list[Case], **op: Any) -> Case:
    return {"do": "write", "id": writer, "op": {"kind": kind} | op, "between": list(between)}


def append(writer: int, *names: str) -> Case:
    return write(writer, "append", add=list(names))


def case(*steps: Case, files: str | dict[str, Case] = "ABCD", **rest: Any) -> Case:
    named = {name: {} for name in files} if isinstance(files, str) else files
    return {"specs": [[]], "files": named, "steps": list(steps)} | rest


def committed(operation: str, attempts: int = 1) -> Case:
    return {"verdict": "committed", "operation": operation, "attempts": attempts}


def refused(error: str, message: str, at: str = "commit", attempts: int = 1) -> Case:
    return {"verdict": "refused", "error": error, "message": message, "at": at, "attempts": attempts}


def head(outcome: Case) -> Case:
    return next(snapshot for snapshot in outcome["snapshots"] if snapshot["id"] == outcome["main"])


def live(outcome: Case) -> set[str]:
    """The names of the files that main's head holds."""
    entries = [entry for manifest in head(outcome)["manifests"] for entry in manifest["entries"]]
    return {entry[4].rpartition("/")[2].partition(".")[0] for entry in entries if entry[0] != DELETED}


def test_two_appends_both_commit(oracle: Oracle) -> None:
    outcome = oracle.run(case(append(1, "A"), append(2, "B")))
    manifest = {"content": 0, "spec": 0, "counts": [1, 0, 0], "first_row_id": None, "rows": [10, 0, 0], "bounds": []}
    manifest["files"] = [[0, 10, 100, [], [], {}, {}, {}, {}, {}]]
    first = manifest | {"sequence_number": 1, "min_sequence_number": 1, "added_snapshot_id": 1}
    first["entries"] = [[ADDED, 1, 1, 1, "mem://t/data/A.parquet", None, None]]
    second = manifest | {"sequence_number": 2, "min_sequence_number": 2, "added_snapshot_id": 2}
    second["entries"] = [[ADDED, 2, 2, 2, "mem://t/data/B.parquet", None, None]]
    assert outcome == {
        "verdicts": {"1": committed("append"), "2": committed("append")},
        "failures": [],
        "snapshots": [
            {"id": 1, "parent": None, "sequence_number": 1, "operation": "append", "manifests": [first]},
            {"id": 2, "parent": 1, "sequence_number": 2, "operation": "append", "manifests": [second, first]},
        ],
        "main": 2,
        "branches": {"main": 2},
        "format": 2,
        "last_sequence_number": 2,
        "next_row_id": 0,
    }


# Every kind of operation that commits: its steps, how it is recorded, what is live then.
COMMITS: dict[str, tuple[list[Case], str, str]] = {
    "fast append": ([write(2, "fast-append", add=["C"])], "append", "ABC"),
    "append": ([append(2, "C")], "append", "ABC"),
    "overwrite by file": ([write(2, "overwrite", remove=["A"], add=["C"])], "overwrite", "BC"),
    "overwrite by filter": ([write(2, "overwrite", filter=True, add=["C"])], "overwrite", "C"),
    "overwrite that only removes": ([write(2, "overwrite", remove=["A"])], "delete", "B"),
    "row delta with deletes": ([write(2, "row-delta", add_deletes=["P"])], "delete", "ABP"),
    "row delta with rows": ([write(2, "row-delta", add=["C"], add_deletes=["P"])], "overwrite", "ABCP"),
    "row delta that removes rows": ([write(2, "row-delta", add=["C"], remove=["A"])], "overwrite", "BC"),
    "rewrite": ([write(2, "rewrite", start=1, remove=["A", "B"], add=["C"])], "replace", "C"),
    "replace partitions": ([write(2, "replace-partitions", start=1, add=["C"])], "overwrite", "C"),
    "delete by file": ([write(2, "delete", remove=["A"], validate=["files-exist"])], "delete", "B"),
    "delete by path": ([write(2, "delete", remove_paths=["B"])], "delete", "A"),
    "delete by filter": ([write(2, "delete", filter=True)], "delete", ""),
    "rewrite manifests": ([write(2, "rewrite-manifests", cluster_by="file")], "replace", "AB"),
    "begin, then commit": (
        [{"do": "begin", "id": 2, "op": {"kind": "append", "add": ["C"]}}, append(3, "D"), {"do": "commit", "id": 2}],
        "append",
        "ABCD",
    ),
}


@pytest.mark.parametrize("name", COMMITS)
def test_every_kind_commits(oracle: Oracle, name: str) -> None:
    steps, operation, files = COMMITS[name]
    named: dict[str, Case] = {file: {} for file in "ABCD"} | {"P": {"content": "position-deletes"}}
    outcome = oracle.run(case(append(1, "A", "B"), *steps, files=named))
    assert outcome["verdicts"]["2"] == committed(operation, 1)
    assert live(outcome) == set(files)


# What Iceberg refuses: what was there before, the writer, and its words. The names are those of the checks.
REFUSALS: dict[str, tuple[list[Case], Case, Case]] = {
    "C1": (
        [append(1, "A"), append(2, "B")],
        write(3, "overwrite", start=1, remove=["A"], validate=["no-conflicting-data"]),
        refused(
            "ValidationException",
            "Found conflicting files that can contain records matching true: [mem://t/data/B.parquet]",
        ),
    ),
    "C2": (
        [append(1, "A"), write(2, "delete", remove=["A"])],
        write(3, "overwrite", start=1, filter=True, validate=["no-conflicting-deletes"]),
        refused(
            "ValidationException",
            "Found conflicting deleted files that can contain records matching true: [mem://t/data/A.parquet]",
        ),
    ),
    "C3a": (
        [append(1, "A"), write(2, "row-delta", add_deletes=["P"])],
        write(3, "row-delta", start=1, add_deletes=["Q"], validate=["no-conflicting-deletes"]),
        refused(
            "ValidationException",
            "Found new conflicting delete files that can apply to records matching true: [mem://t/data/P.parquet]",
        ),
    ),
    "C4": (
        [append(1, "A"), write(2, "overwrite", remove=["A"], add=["B"])],
        write(3, "row-delta", start=1, add_deletes=["P"], references=["A"]),
        refused("ValidationException", "Cannot commit, missing data files: [mem://t/data/A.parquet]"),
    ),
    "C6": (
        [append(1, "A"), append(2, "B"), write(4, "delete", remove=["A"])],
        write(3, "rewrite", start=2, remove=["A"], add=["C"]),
        refused("ValidationException", "Missing required files to delete: mem://t/data/A.parquet"),
    ),
    "C7": (
        [append(1, "M")],
        write(3, "delete", filter={"type": "lt", "term": "id", "value": 3}),
        refused(
            "ValidationException",
            'Cannot delete file where some, but not all, rows match filter ref(name="id") < 3: mem://t/data/M.parquet',
        ),
    ),
    "ancestry": (
        [append(1, "A"), append(2, "B"), {"do": "rollback", "to": 1}],
        write(3, "row-delta", start=2, add_deletes=["P"]),
        refused("IllegalArgumentException", "Snapshot 2 is not an ancestor of 1"),
    ),
    "history": (
        [append(1, "A"), append(2, "B"), {"do": "rollback", "to": 1}],
        write(3, "overwrite", start=2, remove=["A"], validate=["no-conflicting-data"]),
        refused(
            "ValidationException",
            "Cannot determine history between starting snapshot 2 and the last known ancestor 1",
        ),
    ),
    "at its beginning": (
        [append(1, "A"), {"do": "upgrade", "format": 3}],
        write(3, "row-delta", add_deletes=["P"]),
        refused(
            "IllegalArgumentException", "Must use DVs for position deletes in V3: mem://t/data/P.parquet", "begin", 0
        ),
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_has_icebergs_own_words(oracle: Oracle, name: str) -> None:
    before, writer, verdict = REFUSALS[name]
    files: dict[str, Case] = {file: {} for file in "ABC"} | {file: {"content": "position-deletes"} for file in "PQ"}
    files["M"] = {"metrics": {"values": {"1": 10}, "nulls": {"1": 0}, "lower": {"1": 1}, "upper": {"1": 9}}}
    outcome = oracle.run(case(*before, writer, files=files))
    assert outcome["verdicts"]["3"] == verdict
    assert outcome["failures"] == []


def test_a_replaced_file_is_printed_without_anything_random(oracle: Oracle) -> None:
    """C3b prints a whole file; maps that were read stand there as the hash of their content, the same every time."""
    files = {
        "A": {"metrics": {"values": {"1": 10}, "lower": {"1": 1}}},
        "B": {},
        "P": {"content": "position-deletes"},
    }
    steps = [
        append(1, "A"),
        write(2, "row-delta", add_deletes=["P"]),
        write(3, "rewrite", start=1, remove=["A"], add=["B"]),
    ]
    outcome = oracle.run(case(*steps, files=files))
    message = (
        "Cannot commit, found new delete for replaced data file: GenericDataFile{content=data, "
        "file_path=mem://t/data/A.parquet, file_format=PARQUET, spec_id=0, partition=PartitionData{}, "
        "record_count=10, file_size_in_bytes=100, column_sizes=null, "
        "value_counts=org.apache.iceberg.util.SerializableMap@b, null_value_counts=null, nan_value_counts=null, "
        "lower_bounds=org.apache.iceberg.SerializableByteBufferMap@94446f03, upper_bounds=null, "
        "avg_value_sizes=null, key_metadata=null, split_offsets=null, equality_ids=null, sort_order_id=0, "
        "data_sequence_number=1, file_sequence_number=1, first_row_id=null, referenced_data_file=null, "
        "content_offset=null, content_size_in_bytes=null}"
    )
    assert outcome["verdicts"]["3"] == refused("ValidationException", message)


def test_a_lost_swap_is_tried_again_on_the_new_head(oracle: Oracle) -> None:
    late = write(2, "overwrite", [append(3, "B")], remove=["A"], add=["C"])
    outcome = oracle.run(case(append(1, "A"), late, properties=NO_MERGING))
    assert outcome["verdicts"]["2"] == committed("overwrite", attempts=2)
    assert [(s["id"], s["parent"]) for s in outcome["snapshots"]] == [(1, None), (3, 1), (2, 3)]
    assert live(outcome) == {"B", "C"}


def test_a_conflict_may_show_only_on_a_retry(oracle: Oracle) -> None:
    late = write(2, "rewrite", [write(3, "delete", remove=["A"])], remove=["A"], add=["C"])
    outcome = oracle.run(case(append(1, "A"), late))
    words = "Missing required files to delete: mem://t/data/A.parquet"
    assert outcome["verdicts"]["2"] == refused("ValidationException", words, attempts=2)
    assert outcome["main"] == 3


def test_retries_are_used_up(oracle: Oracle) -> None:
    fail = [{"do": "fail"}]
    lost = write(2, "append", fail, fail, fail, add=["B"])
    once = {"commit.retry.num-retries": "1"}
    outcome = oracle.run(case(append(1, "A"), lost, properties=once))
    assert outcome["verdicts"]["2"] == {"verdict": "exhausted", "attempts": 2}
    outcome = oracle.run(case(append(1, "A"), lost))
    assert outcome["verdicts"]["2"] == committed("append", attempts=4)


def test_deletion_vectors_of_format_3(oracle: Oracle) -> None:
    vector = {"content": "dv", "references": "A", "records": 2}
    outcome = oracle.run(
        case(
            append(1, "A"),
            write(2, "row-delta", start=1, add_deletes=["V"], references=["A"]),
            write(3, "row-delta", start=1, add_deletes=["W"], references=["A"]),
            files={"A": {}, "V": vector, "W": vector},
            format=3,
        )
    )
    words = (
        "Found concurrently added DV for mem://t/data/A.parquet: DV{location=mem://t/data/V.puffin, offset=4, "
        "length=40, referencedDataFile=mem://t/data/A.parquet}"
    )
    assert outcome["verdicts"]["3"] == refused("ValidationException", words)
    data, deletes = head(outcome)["manifests"]
    assert (data["content"], data["first_row_id"], deletes["content"], deletes["first_row_id"]) == (0, 0, 1, None)
    assert data["entries"] == [[ADDED, 1, 1, 1, "mem://t/data/A.parquet", 0, None]]
    assert deletes["entries"] == [[ADDED, 2, 2, 2, "mem://t/data/V.puffin", None, "mem://t/data/A.parquet"]]


def test_a_new_spec_is_the_default_of_later_files(oracle: Oracle) -> None:
    files = {"A": {}, "B": {"spec": 1, "partition": ["b"]}}
    early = {"do": "write", "id": 3, "op": {"kind": "append", "add": ["B"]}}
    outcome = oracle.run(
        case(append(1, "A"), early, {"do": "spec", "spec": 1}, append(2, "B"), files=files, specs=[[], CATEGORY])
    )
    words = "Cannot find partition spec 1 for data file: mem://t/data/B.parquet"
    assert outcome["verdicts"]["3"] == refused("IllegalArgumentException", words, "begin", 0)
    assert [manifest["spec"] for manifest in head(outcome)["manifests"]] == [1, 0]


def test_settings_upgrades_rollbacks_and_expiry_change_the_metadata_alone(oracle: Oracle) -> None:
    outcome = oracle.run(
        case(
            append(1, "A"),
            append(2, "B"),
            {"do": "rollback", "to": 1},
            append(3, "C"),
            {"do": "set", "properties": {"commit.retry.num-retries": "0"}},
            write(4, "append", [{"do": "fail"}], add=["D"]),
            {"do": "upgrade", "format": 3},
            {"do": "expire", "ids": [1, 2]},
        )
    )
    assert outcome["verdicts"]["4"] == {"verdict": "exhausted", "attempts": 1}
    assert [(s["id"], s["parent"], s["sequence_number"]) for s in outcome["snapshots"]] == [(3, 1, 3)]
    assert (outcome["main"], outcome["format"], outcome["last_sequence_number"]) == (3, 3, 3)
    assert live(outcome) == {"A", "C"}


def test_steps_that_iceberg_refuses_are_failures_and_the_case_goes_on(oracle: Oracle) -> None:
    outcome = oracle.run(
        case(
            append(1, "A"),
            {"do": "rollback", "to": 9},
            {"do": "upgrade", "format": 1},
            {"do": "expire", "ids": [1]},
            append(2, "B"),
        )
    )
    assert outcome["failures"] == [
        {"step": "rollback", "error": "ValidationException", "message": "Cannot set main to unknown snapshot: 9"},
        {"step": "upgrade", "error": "IllegalArgumentException", "message": "Cannot downgrade v2 table to v1"},
        {
            "step": "expire",
            "error": "IllegalArgumentException",
            "message": "Cannot expire 1. Still referenced by refs: [main]",
        },
    ]
    assert live(outcome) == {"A", "B"}


def test_manifests_are_clustered_in_the_order_in_which_clusters_are_met(oracle: Oracle) -> None:
    files = {name: {"partition": [category]} for name, category in zip("ABCD", "ybya", strict=True)}
    rewrite = write(2, "rewrite-manifests", cluster_by="partition")
    outcome = oracle.run(case(append(1, "A", "B", "C", "D"), rewrite, files=files, specs=[CATEGORY]))
    manifests = [[entry[4][-9] for entry in manifest["entries"]] for manifest in head(outcome)["manifests"]]
    assert manifests == [["A", "C"], ["B"], ["D"]]
    assert {entry[0] for manifest in head(outcome)["manifests"] for entry in manifest["entries"]} == {EXISTING}
    assert {manifest["added_snapshot_id"] for manifest in head(outcome)["manifests"]} == {2}


def test_manifests_are_merged_unless_one_is_gone(oracle: Oracle) -> None:
    merge = {"merge_manifests": [0, 1]}
    outcome = oracle.run(case(append(1, "A"), append(2, "B"), write(3, "rewrite-manifests", **merge)))
    (manifest,) = head(outcome)["manifests"]
    assert (manifest["counts"], manifest["added_snapshot_id"], manifest["min_sequence_number"]) == ([0, 2, 0], 3, 1)
    gone = [write(4, "delete", remove=["A"])]
    outcome = oracle.run(case(append(1, "A"), append(2, "B"), write(3, "rewrite-manifests", gone, **merge)))
    words = "Deleted manifest mem://t/metadata/w1-m0.avro could not be found in the latest snapshot 4"
    assert outcome["verdicts"]["3"] == refused("ValidationException", words, attempts=2)


def test_a_branch_is_written_beside_main(oracle: Oracle) -> None:
    outcome = oracle.run(case(append(1, "A"), write(2, "append", add=["B"], branch="audit")))
    assert (outcome["main"], outcome["branches"]) == (1, {"audit": 2, "main": 1})


def test_a_removed_file_is_the_scanned_one_or_a_fresh_one(oracle: Oracle) -> None:
    """Only a scanned file knows the sequence numbers that it had."""
    for source, number in (("scan", "1"), ("built", "null")):
        removed = [{"file": "A", "from": source}]
        files: dict[str, Case] = {"A": {}, "B": {}, "P": {"content": "position-deletes"}}
        steps = [
            append(1, "A"),
            write(2, "row-delta", add_deletes=["P"]),
            write(3, "rewrite", start=1, remove=removed, add=["B"]),
        ]
        verdict = oracle.run(case(*steps, files=files))["verdicts"]["3"]
        assert f"data_sequence_number={number}," in verdict["message"]


MANY = "ABCDEFGHIJKLMNOPQ"
MALFORMED: dict[str, tuple[Case, str]] = {
    "step": (case({"do": "dance"}), "step 0: there is no step dance"),
    "operation": (case(write(1, "dance")), "step 0: there is no operation dance"),
    "field": (case(write(1, "append", remove=["A"])), "step 0: operation append knows no field remove"),
    "file": (case(append(1, "Z")), "step 0: there is no file Z in the case"),
    "nested": (case(write(1, "append", [{"do": "fly"}], add=["A"])), "step 0, attempt 1, step 0: there is no step fly"),
    "twice": (case(append(1, "A"), append(1, "B")), "step 1: writer 1: ids are positive and begin once"),
    "fail": (case({"do": "fail"}), "step 0: fail stands only between an attempt and its swap"),
    "partition": (case(files={"A": {"partition": [1]}}), "file A: spec 0 has 0 partition fields"),
    "spec": (case({"do": "spec", "spec": 1}, specs=[[], []]), "step 0: spec 1 would get the id 0"),
    "clusters": (
        case(append(1, *MANY), write(2, "rewrite-manifests", cluster_by="file"), files=MANY),
        "step 1: cluster_by makes more than 16 clusters",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_case_is_told_and_does_no_harm(oracle: Oracle, name: str) -> None:
    given, words = MALFORMED[name]
    assert oracle.run(given | {"name": name})["error"].startswith(f"case {name}: {words}")
    assert oracle.run(case(append(1, "A")))["main"] == 1


def test_answers_come_in_the_order_of_the_cases(oracle: Oracle) -> None:
    cases = [case(append(number + 1, "A")) for number in range(200)]
    assert [outcome["main"] for outcome in oracle.run_many(cases)] == list(range(1, 201))


def test_whoever_stops_early_leaves_no_answers_behind(oracle: Oracle) -> None:
    answers = oracle.run_many(case(append(number, "A")) for number in (1, 2, 3))
    assert next(answers)["main"] == 1
    answers.close()
    assert oracle.run(case(append(9, "A")))["main"] == 9


def test_a_process_that_died_is_started_anew(oracle: Oracle) -> None:
    assert oracle._process is not None
    oracle._process.kill()
    assert oracle.run(case(append(1, "A")))["main"] == 1


def test_a_process_that_cannot_start_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verify.differential.oracle.JVM", ("-XX:+NoSuchOption",))
    with pytest.raises(OracleError, match=r"the oracle ended, at case start\n(?s:.*)NoSuchOption"):
        Oracle().start()


def test_a_java_without_a_compiler_is_enough_for_all_but_the_oracle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java.find() == program
    with pytest.raises(OracleError, match=r"is no JDK 17 or later(?s:.*)openjdk-17-jdk-headless"):
        Oracle().start()
    program.with_name("javac").symlink_to(program)
    assert java.find(jdk=True) == program
