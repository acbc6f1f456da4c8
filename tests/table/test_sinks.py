"""The marks of sinks: what is read of a summary, and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from icetower.admission.identity import Identity
from icetower.contracts.model import KeyWay
from icetower.protocol.snapshots import Snapshot
from icetower.protocol.updates import Updates
from icetower.table.sinks import Kind, Mark, Place, mark_of, mark_of_commit, sinks_of

SPARK = {"spark.sql.streaming.queryId": "q", "spark.sql.streaming.epochId": "3"}
FLINK = {"flink.job-id": "j", "flink.operator-id": "o", "flink.max-committed-checkpoint-id": "3"}
KAFKA = {"kafka.connect.offsets.control.group": '{"0": 5, "1": 2}', "kafka.connect.commit-id": "c"}
DELTA = {"txnAppId": "a", "txnVersion": "3"}


@pytest.mark.parametrize(
    ("summary", "application", "number"),
    [
        (SPARK, "spark-streaming:q", 3),
        (FLINK, "flink:j:o", 3),
        ({**FLINK, "flink.max-committed-checkpoint-id": "0"}, "flink:j:o", 0),
        ({k: v for k, v in FLINK.items() if k != "flink.operator-id"}, "flink:j:", 3),
        (KAFKA, "kafka-connect:control.group", 7),
        (DELTA, "txn:a", 3),
        ({"txnappid": "a", "txnversion": "3"}, "txn:a", 3),  # as Spark's options come
    ],
)
def test_k6_a_sink_is_an_application_that_numbers_its_commits(
    summary: dict[str, str], application: str, number: int
) -> None:
    mark = mark_of(summary)
    assert mark is not None
    assert (mark.application, mark.number) == (application, number)
    assert len(sinks_of(summary)) == 1  # retention keeps it, and no other principal writes it


@pytest.mark.parametrize(
    "summary",
    [
        {},
        {"spark.sql.streaming.queryId": "q"},
        {**SPARK, "spark.sql.streaming.epochId": "-1"},
        {**SPARK, "spark.sql.streaming.epochId": "three"},
        {**SPARK, "spark.sql.streaming.epochId": str(2**63)},
        {**SPARK, "spark.sql.streaming.queryId": "q\n"},
        {**FLINK, "flink.max-committed-checkpoint-id": str(2**63 - 1)},  # the end of a bounded job
        {k: v for k, v in KAFKA.items() if k != "kafka.connect.commit-id"},
        {**KAFKA, "kafka.connect.offsets.control.group": "{}"},
        {**KAFKA, "kafka.connect.offsets.control.group": "[1]"},
        {**KAFKA, "kafka.connect.offsets.control.group": '{"0": -1}'},
        {**KAFKA, "kafka.connect.offsets.control.group": '{"0": 1.5}'},
        {**KAFKA, "kafka.connect.offsets.control.group": "[" * 100_000},
        {**KAFKA, "kafka.connect.offsets.another.group": '{"0": 5}'},
        {"txnAppId": "a"},
        {**SPARK, **FLINK},  # of whom?
    ],
)
def test_k6_marks_that_make_no_sense_are_none(summary: dict[str, str]) -> None:
    assert mark_of(summary) is None


def test_k6_a_name_that_is_too_long_is_hashed() -> None:
    marks = [mark_of({**SPARK, "spark.sql.streaming.queryId": character * 1000}) for character in "ab"]
    names = {mark.application for mark in marks if mark is not None}
    assert len(names) == 2
    assert all(len(name) <= 255 for name in names)


def snapshot(summary: dict[str, str]) -> Snapshot:
    return Snapshot({"snapshot-id": 1, "summary": {"operation": "append", **summary}})


@pytest.mark.parametrize(
    ("summaries", "is_sinks"),
    [
        ([SPARK], True),
        ([SPARK, SPARK], True),
        ([SPARK, {}], False),
        ([SPARK, {**SPARK, "spark.sql.streaming.epochId": "4"}], False),
        ([{**SPARK, "operation": "overwrite"}], True),
        ([{**SPARK, "operation": "replace"}], False),  # a rewrite that carries marks on
        ([{**SPARK, "source-snapshot-id": "7"}], False),  # picked
        ([{**SPARK, "published-wap-id": "w"}], False),
        ([], False),
    ],
)
def test_k6_which_commits_are_a_sinks_own(summaries: list[dict[str, str]], is_sinks: bool) -> None:
    assert (mark_of_commit([snapshot(summary) for summary in summaries]) is not None) == is_sinks


def test_k6_what_is_kept_of_a_mark_brings_it_back() -> None:
    for summary in (SPARK, FLINK, KAFKA, DELTA):
        mark = mark_of({**summary, "added-records": "9"})
        assert mark is not None
        assert mark.remembered(mark.number, mark.kept) == mark
        assert mark.beside(mark.remembered(mark.number, mark.kept)) is Place.LEVEL


def test_k6_flink_goes_by_files_and_spark_by_rows() -> None:
    rows = {"added-records": "9", "added-data-files": "1", "added-files-size": "100"}
    other = {**rows, "added-data-files": "2", "added-files-size": "150"}
    spark = [mark_of({**SPARK, **counts}) for counts in (rows, other)]
    flink = [mark_of({**FLINK, **counts}) for counts in (rows, other)]
    assert _contents(spark) == 1
    assert _contents(flink) == 2


def _contents(marks: list[Mark | None]) -> int:
    return len({mark.content for mark in marks if mark is not None})


def identity(summary: dict[str, str], key: str | None = None, number: Any = None, *, ref: str = "main") -> Identity:
    updates: list[Any] = [{"action": "add-snapshot", "snapshot": dict(snapshot(summary))}]
    if ref:
        updates.append({"action": "set-snapshot-ref", "ref-name": ref, "type": "branch", "snapshot-id": 1})
    return Identity.of_commit("ann", Updates(updates), key, number)


def test_k6_by_what_a_sinks_commit_is_known() -> None:
    plain = identity(SPARK)
    assert (plain.key, plain.application, plain.ways) == (None, ("spark-streaming:q", 3), {KeyWay.SEQUENCE})
    assert identity(SPARK, "header").key == "header"
    assert identity(SPARK, "header").mark is not None
    kafka = identity(KAFKA)
    assert kafka.mark is not None
    assert (kafka.mark.kind, kafka.key) == (Kind.KAFKA, "kafka-connect:control.group:c")
    assert KeyWay.HEADER not in kafka.ways  # nobody sent one
    assert identity(KAFKA, "header").key == "header"
    for own in (
        identity({**SPARK, "icetower.idempotency-key": "k"}),
        identity({**SPARK, "icetower.application": "a", "icetower.sequence": "7"}),
        identity(SPARK, None, ("a", 7)),
        identity(SPARK, ref=""),  # staged: it is on no branch
    ):
        assert own.mark is None
