"""Idempotency keys, numbers and declarations of reads, given to each kind of write that Spark has.

`icetower.agent.keyed`, `having_read` and `numbered` here make the properties; they go into the snapshot's summary.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from icetower.errors import UsageError
from icetower.pipelines.tables import SNAPSHOT_PROPERTY, literal, quoted, translating_errors
from icetower.protocol.marks import APPLICATION, OURS, SEQUENCE

_OPTION = "snapshot-property."
_SETTING = threading.Lock()


def numbered(application: str, number: int) -> dict[str, str]:
    """Snapshot properties of a write that is number `number` of an application's; instead of a key.

    A number that is no higher than the last one that landed, for this table, branch, principal and application, is
    answered as done and not written again. So the same number must always stand for the same rows.
    """
    return {APPLICATION: application, SEQUENCE: str(number)}


def options(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties as options: of ``frame.writeTo(…).options(**…)``, and of ``frame.write.options(**…)``."""
    return {_OPTION + name: value for name, value in properties.items()}


@contextmanager
def declaring(spark: SparkSession, properties: Mapping[str, str]) -> Generator[None]:
    """Give the properties to the one statement inside: ``spark.sql("MERGE …")``, `UPDATE`, `DELETE` or `INSERT`.

    They are settings of the session while the block runs. So a session runs one such block at a time: threads that
    write side by side take a ``spark.newSession()`` each. A second write inside the block would carry the same key;
    to the same table it is refused (``key.per-write``).

    Raises:
        UsageError: another block of the session has not ended.
    """
    names = [SNAPSHOT_PROPERTY + name for name in properties]
    with _SETTING:  # two threads of one session must not both find it free
        left = [name for name in spark.conf.getAll if name.startswith(SNAPSHOT_PROPERTY + OURS)]
        if left:
            raise UsageError(
                f"the session has {left[0]} already: give each write a block of its own, and each thread a session of "
                "its own (spark.newSession()); what you set yourself, unset"
            )
        for name, value in properties.items():
            spark.conf.set(SNAPSHOT_PROPERTY + name, value)
    try:
        yield
    finally:
        for name in names:
            spark.conf.unset(name)


def last_number(spark: SparkSession, table: str, application: str) -> int | None:
    """The highest number under which a write of the application is in the table's snapshots; None without one.

    For agents that want to go on where they were, whatever became of their own notes. Numbers of snapshots that have
    expired are not seen; the tower knows the last one nonetheless, and answers it as done.

    Args:
        table: as Spark names it, ``catalog.namespace.table``.

    Raises:
        NoSuchTable: there is no such table.
    """
    query = (
        f"SELECT max(CAST(summary['{SEQUENCE}'] AS BIGINT)) FROM {quoted(table)}.snapshots "  # noqa: S608 - names are quoted
        f"WHERE summary['{APPLICATION}'] = {literal(application)}"
    )
    return translating_errors(f"reading the snapshots of {table}", lambda: spark.sql(query).collect())[0][0]
