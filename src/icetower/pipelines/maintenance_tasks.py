"""The tasks of maintenance on one table, by Iceberg's own actions: its procedures run them, too, with filters as SQL.

A snapshot that a task commits says so in its summary (`TASK`). That is the record: whoever is killed after the commit
has nothing to note down, the next run reads it there (`maintenance_record`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import reduce
from typing import Any
from uuid import UUID

from pyspark.sql import SparkSession

from icetower.iceberg.partitions import PartitionField, spec_of
from icetower.pipelines.maintenance_files import State
from icetower.pipelines.maintenance_plan import FILES_MIN, SNAPSHOTS_MIN, TASK, Due, Task, setting
from icetower.pipelines.tables import SNAPSHOT_PROPERTY, java_session, jvm, literal, quoted, translating_errors

FILES_MAX = 10_000
"""Files that one commit of pruning removes; the others go in the next run."""
COMMITS_MAX = 10
"""Of one compaction: a conflict in a part of the table costs that part alone."""
LISTED_MAX = 1_000


def perform(spark: SparkSession, state: State, due: Due, *, vectors: bool) -> int:
    """Do what is due, except for expiry; how many files were left, since somebody changed them meanwhile.

    Args:
        vectors: whether data files are due for their deletion vectors.

    Raises:
        CommitConflict, CommitStateUnknown, UpstreamFailed: nothing is lost; it is due again.
    """
    actions = jvm(spark).org.apache.iceberg.spark.actions.SparkActions.get(java_session(spark))
    files_min = setting(state.metadata, FILES_MIN)
    if due.task is Task.MANIFESTS:
        action = actions.rewriteManifests(state.java)
    elif due.task is Task.DELETES:
        action = actions.rewritePositionDeletes(state.java).option("min-input-files", str(files_min))
        action = action.option("partial-progress.enabled", "true")
    else:
        action = actions.rewriteDataFiles(state.java).option("min-input-files", str(files_min))
        commits = min(COMMITS_MAX, len(due.partitions or ()))
        action = action.option("partial-progress.enabled", "true").option("partial-progress.max-commits", str(commits))
        if vectors:
            action = action.option("delete-file-threshold", "1").option("remove-dangling-deletes", "true")
    if due.partitions is not None:
        where = _expression(spark, state, due.partitions)
        action = action if where is None else action.filter(where)
    done = translating_errors(f"{due.task} of {state.listed.name}", action.snapshotProperty(TASK, due.task).execute)
    return int(done.failedDataFilesCount()) if due.task is Task.COMPACT else 0


def expire(spark: SparkSession, state: State, before_ms: int) -> None:
    """Expire the snapshots before a time, and delete the files that no other snapshot names."""
    actions = jvm(spark).org.apache.iceberg.spark.actions.SparkActions.get(java_session(spark))
    action = actions.expireSnapshots(state.java).expireOlderThan(before_ms)
    action = action.retainLast(setting(state.metadata, SNAPSHOTS_MIN))
    translating_errors(f"expiring snapshots of {state.listed.name}", action.execute)


def remove_files(state: State, paths: Collection[str]) -> None:
    """Remove data files with all their rows; at most `FILES_MAX` at once."""
    wanted = {*list(paths)[:FILES_MAX]}

    def remove() -> None:
        delete, tasks = state.java.newDelete(), state.java.newScan().planFiles()
        try:
            iterator = tasks.iterator()
            while wanted and iterator.hasNext():
                file = iterator.next().file()
                if file.location() in wanted:
                    wanted.discard(file.location())
                    delete = delete.deleteFile(file)
        finally:
            tasks.close()
        delete.set(TASK, Task.PRUNE).commit()

    translating_errors(f"pruning {state.listed.name}", remove)


def remove_rows(spark: SparkSession, state: State, column: str, values: Sequence[str]) -> None:
    """Remove the rows whose `column` has one of the values.

    Args:
        spark: a private session.
    """
    for at in range(0, len(values), LISTED_MAX):
        listed = ", ".join(literal(each) for each in values[at : at + LISTED_MAX])
        statement = f"DELETE FROM {state.listed.sql} WHERE {quoted(column)} IN ({listed})"  # noqa: S608 - quoted
        remove_where(spark, state, statement)


def remove_where(spark: SparkSession, state: State, statement: str) -> None:
    """Run a statement that removes rows; its snapshot says that it prunes."""
    spark.conf.set(SNAPSHOT_PROPERTY + TASK, Task.PRUNE)
    try:
        translating_errors(f"pruning {state.listed.name}", lambda: spark.sql(statement))
    finally:
        spark.conf.unset(SNAPSHOT_PROPERTY + TASK)


def _expression(spark: SparkSession, state: State, partitions: Iterable[tuple[Any, ...]]) -> Any:
    """Iceberg's expression that holds in these partitions of the current spec; None for a table without any."""
    fields = spec_of(state.metadata, state.metadata["default-spec-id"]).fields
    made = jvm(spark).org.apache.iceberg.expressions.Expressions
    both, either = getattr(made, "and"), getattr(made, "or")
    found: list[Any] = []
    for values in partitions:
        parts = [_equal(made, each, value) for each, value in zip(fields, values, strict=True)]
        parts = [part for part in parts if part is not None]
        if parts:
            found.append(reduce(both, parts))
    return reduce(either, found) if found else None


def _equal(made: Any, field: PartitionField, value: Any) -> Any:
    """The predicate on a partition field; None if the field has no value."""
    kind, _, width = field.transform.rstrip("]").partition("[")
    if kind == "void":
        return None
    if kind in ("bucket", "truncate"):
        term = getattr(made, kind)(field.source_name, int(width))
    else:
        term = made.ref(field.source_name) if kind == "identity" else getattr(made, kind)(field.source_name)
    if value is None:
        return made.isNull(term)
    if value != value:
        return made.isNaN(term)
    if field.result_type == "uuid":
        return made.equal(term, str(UUID(bytes=value)))
    return made.equal(term, value)
