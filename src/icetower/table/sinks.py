"""The progress of streaming sinks, as the summaries of snapshots state it. Pure.

Streaming sinks keep in the table how far they have come, in the summaries of their snapshots, and pass over what these
say is done: Flink by job and operator, Spark's streaming by query, Kafka Connect by control topic and group, a mediator
by the log that it reads. Delta's writers number their transactions (`txnAppId`, `txnVersion`), and some set the same
properties on Iceberg's snapshots.

They look before they commit, and Iceberg's client commits anew on a newer head without looking again. So two runs of
one sink may both land (trap K6). `mark_of` reads such a summary as the number of an application, for the server to
decide.

Sources: Flink's `SinkUtil.getMaxCommittedCheckpointId`, `IcebergCommitter` and `DynamicCommitter`; Spark's
`SparkWrite.findLastCommittedEpochId`; Kafka Connect's `Coordinator.lastCommittedOffsets`, `Channel`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import sha256
from typing import Any

from icetower.iceberg.lineage import Find, ancestors
from icetower.protocol.marks import MEDIATOR, PUBLISHED_WAP, SOURCE_SNAPSHOT
from icetower.protocol.snapshots import Snapshot

Sink = tuple[str, ...]
"""A kind of sink, and which of them."""

_FLINK_JOB, _FLINK_OPERATOR = "flink.job-id", "flink.operator-id"
_FLINK_CHECKPOINT = "flink.max-committed-checkpoint-id"
_SPARK_QUERY, _SPARK_EPOCH = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"
_KAFKA_OFFSETS, _KAFKA_COMMIT = "kafka.connect.offsets.", "kafka.connect.commit-id"
_TRANSACTIONS = (("txnAppId", "txnVersion"), ("txnappid", "txnversion"))
"""Spark's options for a write come without capitals."""
_WAL = MEDIATOR + "table-uuid"

NAME_CHARACTERS_MAX = 255
NUMBER_MAX = 2**63 - 1
OFFSETS_MAX = 10_000
_IN_PARTS = "Apache Iceberg 1.10.0"
"""The only version whose dynamic sink for Flink commits the results of one checkpoint one by one."""
END_OF_INPUT = NUMBER_MAX
"""Flink's number for what a bounded job commits at its end. Under a job id that stays, each run has it."""

_COUNTS = ("added-records", "added-position-deletes", "added-equality-deletes")
_FILES = ("added-data-files", "added-delete-files", "added-files-size")


def sinks_of(summary: Mapping[str, Any]) -> list[Sink]:
    """The sinks whose progress a snapshot with this summary tells."""
    sinks: list[Sink] = []
    if _FLINK_JOB in summary and _FLINK_CHECKPOINT in summary:
        sinks.append((_FLINK_JOB, str(summary[_FLINK_JOB]), str(summary.get(_FLINK_OPERATOR))))
    if _SPARK_QUERY in summary:
        sinks.append((_SPARK_QUERY, str(summary[_SPARK_QUERY])))
    if _WAL in summary:
        sinks.append((_WAL, str(summary[_WAL])))
    sinks += [(_TRANSACTIONS[0][0], str(summary[name])) for name, _ in _TRANSACTIONS if name in summary]
    if _KAFKA_OFFSETS in "\n".join(summary):  # spares most snapshots a look at each name
        sinks += [(name,) for name in summary if name.startswith(_KAFKA_OFFSETS)]
    return sinks


class Kind(Enum):
    """A kind of sink that numbers its commits: how its applications are called, and how it begins anew."""

    SPARK = "spark-streaming"
    FLINK = "flink"
    KAFKA = "kafka-connect"
    TRANSACTIONS = "txn"

    @property
    def another_name(self) -> str:
        return {
            Kind.SPARK: "a new checkpoint location",
            Kind.FLINK: "another uid of the sink, or another job id",
            Kind.KAFKA: "another control topic, or another group",
            Kind.TRANSACTIONS: "another txnAppId",
        }[self]


class Place(Enum):
    """Where a commit of a sink stands to what the sink has committed before."""

    AHEAD = "ahead"
    LEVEL = "level"
    BEHIND = "behind"


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a sink is with one commit.

    Attributes:
        application: the sink, as an application that numbers its commits.
        number: of the commit. Of Kafka Connect the sum of its offsets, which says less than they do.
        content: tells the same commit, made anew, from another one under its number. Flink makes nothing anew, since
            its checkpoints hold the files; Spark writes the rows of an epoch to new files. Kafka Connect has an id.
        named_by: the property of the summary that names the sink, as it may be spelled.
        offsets: of Kafka Connect, by partition of the control topic: where it reads on.
        of_any: the name of the same sink where a snapshot does not say which of several it is.
        in_parts: its writer may commit several snapshots under one number, one after the other.
    """

    kind: Kind
    application: str
    number: int
    content: str
    named_by: tuple[str, ...]
    offsets: Mapping[str, int] = field(default_factory=dict[str, int])
    of_any: str = ""
    in_parts: bool = False

    @property
    def key(self) -> str | None:
        """The id that the sink itself gives to a commit, if it does."""
        key = f"{self.application}:{self.content}"
        fits = len(key) <= NAME_CHARACTERS_MAX and key.isprintable()
        return key if self.kind is Kind.KAFKA and fits else None

    @property
    def kept(self) -> str:
        """What is kept of it beside its application and its number: see `remembered`."""
        about: dict[str, Any] = {"content": self.content}
        return json.dumps(about | {"offsets": dict(self.offsets)} if self.offsets else about, separators=(",", ":"))

    def remembered(self, number: int, kept: str | None) -> Mark:
        """The mark of the same sink under a number, of which this was kept; None: nothing was."""
        about: dict[str, Any] = json.loads(kept) if kept else {}
        return replace(self, number=number, content=about.get("content", ""), offsets=about.get("offsets", {}))

    def beside(self, last: Mark) -> Place:
        """Where this commit stands to an earlier one of the same sink.

        A coordinator of Kafka Connect may not have heard of every partition, and says nothing of the others then.
        """
        if self.kind is not Kind.KAFKA:
            return _place(self.number - last.number)
        shared = [self.offsets[partition] - last.offsets[partition] for partition in last.offsets.keys() & self.offsets]
        if min(shared, default=0) < 0:
            return Place.BEHIND
        return Place.AHEAD if max(shared, default=0) > 0 or self.offsets.keys() - last.offsets else Place.LEVEL


def _place(ahead: int) -> Place:
    return Place.LEVEL if ahead == 0 else Place.AHEAD if ahead > 0 else Place.BEHIND


def mark_of(summary: Mapping[str, Any]) -> Mark | None:
    """How far a sink is, as a summary says; None where it says nothing, or nothing that makes sense."""
    found = [mark for mark in (read(summary) for read in (_spark, _flink, _kafka, _transaction)) if mark is not None]
    return found[0] if len(found) == 1 and found[0].application.isprintable() else None


def mark_of_commit(snapshots: Sequence[Snapshot]) -> Mark | None:
    """The mark of a commit with some snapshots: the one that all of them carry.

    A rewrite may carry the marks of what it has rewritten, and a picked snapshot is its picker's: these are no commits
    of the sink.
    """
    if any(_is_anothers(snapshot.summary) for snapshot in snapshots):
        return None
    marks = [mark_of(snapshot.summary) for snapshot in snapshots]
    same = {(mark.application, mark.number, tuple(sorted(mark.offsets.items()))) for mark in marks if mark is not None}
    first = marks[0] if marks else None
    if first is None or len(same) != 1 or None in marks:
        return None
    return replace(first, content="+".join(mark.content for mark in marks if mark is not None))


def stated_by(find: Find, head_id: int | None, mark: Mark) -> list[tuple[Snapshot, Mark]]:
    """The last progress of a sink in the history of a head: the snapshots that state it, newest first.

    They are those that the sink itself would find, whoever wrote them. Several have one number where a checkpoint was
    committed in parts, or a rewrite carries the mark on.
    """
    found: list[tuple[Snapshot, Mark]] = []
    for snapshot in ancestors(find, head_id):
        summary = snapshot.summary
        if not any(name in summary for name in mark.named_by):
            continue
        told = mark_of(summary)
        if told is None or told.application not in (mark.application, mark.of_any):
            continue
        if found and told.number != found[0][1].number:
            break
        found.append((snapshot, told))
        if told.number != mark.number:  # only of one that is level the rest matters
            break
    return found


def _is_anothers(summary: Mapping[str, Any]) -> bool:
    return summary.get("operation") == "replace" or SOURCE_SNAPSHOT in summary or PUBLISHED_WAP in summary


def _spark(summary: Mapping[str, Any]) -> Mark | None:
    number = _whole(summary.get(_SPARK_EPOCH))
    if _SPARK_QUERY not in summary or number is None:
        return None
    name = _named(Kind.SPARK, str(summary[_SPARK_QUERY]))
    return Mark(Kind.SPARK, name, number, _counted(summary, _COUNTS), (_SPARK_QUERY,))


def _flink(summary: Mapping[str, Any]) -> Mark | None:
    number = _whole(summary.get(_FLINK_CHECKPOINT))
    if _FLINK_JOB not in summary or number is None or number == END_OF_INPUT:
        return None
    job, operator = str(summary[_FLINK_JOB]), str(summary.get(_FLINK_OPERATOR, ""))
    # A deletion vector is a part of a file, and not every writer counts it alike.
    counted = _COUNTS if "added-dvs" in summary else (*_COUNTS, *_FILES)
    name, of_any = _named(Kind.FLINK, job, operator), _named(Kind.FLINK, job, "")
    in_parts = str(summary.get("iceberg-version", "")).startswith(_IN_PARTS)
    content = _counted(summary, counted)
    return Mark(Kind.FLINK, name, number, content, (_FLINK_JOB,), of_any=of_any, in_parts=in_parts)


def _kafka(summary: Mapping[str, Any]) -> Mark | None:
    if _KAFKA_COMMIT not in summary:
        return None
    named = [name for name in summary if name.startswith(_KAFKA_OFFSETS)]
    offsets = _offsets(summary[named[0]]) if len(named) == 1 else None
    if offsets is None:
        return None
    name, commit_id = _named(Kind.KAFKA, named[0].removeprefix(_KAFKA_OFFSETS)), str(summary[_KAFKA_COMMIT])
    return Mark(Kind.KAFKA, name, sum(offsets.values()), commit_id, (named[0],), offsets)


def _transaction(summary: Mapping[str, Any]) -> Mark | None:
    for app, version in _TRANSACTIONS:
        number = _whole(summary.get(version))
        if app in summary and number is not None:
            name = _named(Kind.TRANSACTIONS, str(summary[app]))
            return Mark(Kind.TRANSACTIONS, name, number, _counted(summary, _COUNTS), tuple(a for a, _ in _TRANSACTIONS))
    return None


def _named(kind: Kind, *names: str) -> str:
    """The name of a sink as an application; one that is too long stands as its hash."""
    text = f"{kind.value}:{':'.join(names)}"
    return text if len(text) <= NAME_CHARACTERS_MAX else f"{kind.value}:{sha256(text.encode()).hexdigest()}"


def _counted(summary: Mapping[str, Any], names: Sequence[str]) -> str:
    """Counts of a summary; Iceberg leaves out those that are 0."""
    return ", ".join(f"{summary[name]} {name}" for name in names if str(summary.get(name, 0)) != "0") or "nothing"


def _offsets(text: Any) -> dict[str, int] | None:
    try:
        read: Any = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    if not isinstance(read, dict):
        return None
    offsets = {str(name): _whole(value) for name, value in read.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # JSON
    known = {name: value for name, value in offsets.items() if value is not None}
    bounded = len(known) <= OFFSETS_MAX and sum(known.values()) <= NUMBER_MAX
    return known if known and len(known) == len(offsets) and bounded else None


def _whole(value: object) -> int | None:
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else -1
    return number if 0 <= number <= NUMBER_MAX else None
