"""Whose progress does a snapshot tell? Pure.

Streaming sinks keep in the table how far they have come, in the summaries of their snapshots, and pass over what these
say is done: Flink by job and operator, Spark's streaming by query, Kafka Connect by control topic and group, a mediator
by the log that it reads.

Sources: Flink's `SinkUtil.getMaxCommittedCheckpointId`; Spark's `SparkWrite.findLastCommittedEpochId`; Kafka Connect's
`Coordinator.lastCommittedOffsets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icetower.protocol.marks import MEDIATOR

Sink = tuple[str, ...]
"""A kind of sink, and which of them."""

_FLINK_JOB, _FLINK_OPERATOR = "flink.job-id", "flink.operator-id"
_FLINK_CHECKPOINT = "flink.max-committed-checkpoint-id"
_SPARK_QUERY = "spark.sql.streaming.queryId"
_KAFKA_OFFSETS = "kafka.connect.offsets."
_WAL = MEDIATOR + "table-uuid"


def sinks_of(summary: Mapping[str, Any]) -> list[Sink]:
    """The sinks whose progress a snapshot with this summary tells."""
    sinks: list[Sink] = []
    if _FLINK_JOB in summary and _FLINK_CHECKPOINT in summary:
        sinks.append((_FLINK_JOB, str(summary[_FLINK_JOB]), str(summary.get(_FLINK_OPERATOR))))
    if _SPARK_QUERY in summary:
        sinks.append((_SPARK_QUERY, str(summary[_SPARK_QUERY])))
    if _WAL in summary:
        sinks.append((_WAL, str(summary[_WAL])))
    if _KAFKA_OFFSETS in "\n".join(summary):  # spares most snapshots a look at each name
        sinks += [(name,) for name in summary if name.startswith(_KAFKA_OFFSETS)]
    return sinks
