"""Iceberg tables beyond SQL, for the jobs: their metadata, and inserts that no race can duplicate.

Spark turns a MERGE that can only insert into a plain append, and Iceberg does not validate appends: of two concurrent
ones, both are committed. A clause for matched rows, even one that never holds, makes it a row-level operation with
serializable isolation: the later of two commits is refused if data was added since it read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from icetower.contracts.model import Contract, Isolation
from icetower.errors import BadRequest, CommitConflict, CommitStateUnknown, NoSuchTable, UpstreamFailed
from icetower.iceberg.metadata import current_snapshot_id
from icetower.protocol.marks import BLIND_APPENDS
from icetower.protocol.names import Identifier

T = TypeVar("T")

Metadata = Mapping[str, Any]

SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."
MOVED = "icetower: the progress of the log moved"
_STALE = (
    MOVED,
    "org.apache.iceberg.exceptions.ValidationException",
    "org.apache.iceberg.exceptions.CommitFailedException",
    "is not an ancestor of",  # the table was rolled back to before what was read
    "Must use DVs for position deletes",  # it was upgraded to version 3
    "(rule key.per-write,",  # a rival in the same application committed the same step
)
_NO_CATALOG = "REQUIRES_SINGLE_PART_NAMESPACE"
"""Spark takes a catalog that it cannot load for a namespace of its own."""
_MISSING = (
    "TABLE_OR_VIEW_NOT_FOUND",
    "org.apache.iceberg.exceptions.NoSuchTableException",
    "org.apache.iceberg.exceptions.NoSuchNamespaceException",
)
_UNKNOWN = "org.apache.iceberg.exceptions.CommitStateUnknownException"
_REASON_CHARACTERS = 500


def quoted(name: str) -> str:
    """A name of one or more levels, quoted for Spark SQL."""
    return quoted_levels(name.split("."))


def quoted_levels(levels: Iterable[str]) -> str:
    """A name whose levels may contain dots, quoted for Spark SQL."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in levels)


def literal(text: str) -> str:
    """A string literal of Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def identifier(name: str) -> Identifier:
    """The table of a Spark name ``catalog.namespace.table``. Raises `BadRequest` for a name without a catalog."""
    _, _, rest = name.partition(".")
    if "." not in rest:
        raise BadRequest(f"{name!r} is not a table of a catalog: write catalog.namespace.table", rule="request.name")
    return Identifier.parse(rest)


_PRIVATE = "spark.icetower.private"
"""The setting that marks a private session."""


def private_session(spark: SparkSession) -> SparkSession:
    """A session over the same context, whose settings and views other sessions do not see; a private one itself.

    So a snapshot property set around one statement cannot apply to another one (trap K3). One thread uses it at a time.

    What runs on for long takes one private session for all of its turns, for none is ever freed: each has a catalog of
    its own, whose thread for metrics inherits a reference to the session (apache/iceberg #16695).
    """
    if spark.conf.get(_PRIVATE, None) is not None:
        return spark
    session = spark.newSession()
    for name, value in spark.conf.getAll.items():
        if name.startswith("spark.sql.catalog."):
            session.conf.set(name, value)
    session.conf.set(_PRIVATE, "true")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.ansi.enabled", "true")
    # Iceberg's vectorised reader leaves an allocator behind for each file that it reads (apache/iceberg #13937).
    session.conf.set("spark.sql.iceberg.vectorization.enabled", "false")
    return session


def iceberg_table(spark: SparkSession, name: str) -> Any:
    """Iceberg's own Java table, freshly loaded. Raises `NoSuchTable`."""

    def load() -> Any:
        with active(spark):
            found = jvm(spark).org.apache.iceberg.spark.Spark3Util.loadIcebergTable(java_session(spark), name)
        found.refresh()
        return found

    return translating_errors(f"loading {name}", load)


def tables_of(spark: SparkSession, catalog: str) -> list[str]:
    """Every table of a catalog that the session's principal may see, each name quoted for Spark SQL."""

    def walk() -> list[str]:
        with active(spark):
            found = jvm(spark).org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(java_session(spark), catalog)
        tables: list[str] = []
        waiting = list(found.listNamespaces())
        while waiting:
            namespace = waiting.pop()
            waiting.extend(found.listNamespaces(namespace))
            its = found.listTables(namespace)
            tables += [quoted_levels((catalog, *namespace.levels(), table.name())) for table in its]
        return tables

    return translating_errors(f"listing the tables of {catalog}", walk)


def load_metadata(spark: SparkSession, name: str) -> Metadata:
    """The table's current metadata as JSON (specification: "Table Metadata Fields"). Raises `NoSuchTable`."""
    return metadata_of(spark, iceberg_table(spark, name))


def find(spark: SparkSession, table: str) -> Metadata | None:
    """The metadata of a table, whose name is not quoted; None where there is no such table."""
    try:
        return load_metadata(spark, quoted(table))
    except NoSuchTable:
        return None


def metadata_of(spark: SparkSession, table: Any) -> Metadata:
    """The metadata that a Java table holds, as JSON."""
    return json.loads(jvm(spark).org.apache.iceberg.TableMetadataParser.toJson(table.operations().current()))


def read_if_there(table: Any, path: str) -> bytes | None:
    """A file, as by `read_bytes`; None where there is none."""
    there = translating_errors(f"looking for {path}", lambda: bool(table.io().newInputFile(path).exists()))
    return read_bytes(table, path) if there else None


def read_bytes(table: Any, path: str) -> bytes:
    """A file, through the FileIO of a Java table.

    Raises:
        UpstreamFailed: it is not there, or cannot be read now.
    """

    def read() -> bytes:
        stream = table.io().newInputFile(path).newStream()
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    return translating_errors(f"reading {path}", read)


def elements(java: Any) -> Iterator[Any]:
    """The elements of Java's iterable."""
    iterator = java.iterator()
    while iterator.hasNext():
        yield iterator.next()


def java_list(spark: SparkSession, items: Iterable[Any]) -> Any:
    """Java's list of some items."""
    found = jvm(spark).java.util.ArrayList()
    for item in items:
        found.add(item)
    return found


def data_file_of(spark: SparkSession, deletes: Any) -> str | None:
    """The data file that a delete file is about; None if it names several, or rows by their values."""
    return jvm(spark).org.apache.iceberg.util.ContentFileUtil.referencedDataFileLocation(deletes)


def commit_nothing(spark: SparkSession, name: str, base: Metadata, properties: Mapping[str, str]) -> None:
    """Commit a snapshot without changes that carries `properties`; it is refused if data was added since `base`.

    Raises:
        CommitConflict: data was added; read again.
    """
    overwrite = iceberg_table(spark, name).newOverwrite()
    head = current_snapshot_id(base)
    if head is not None:
        overwrite = overwrite.validateFromSnapshot(head)
    everything = jvm(spark).org.apache.iceberg.expressions.Expressions.alwaysTrue()
    overwrite = overwrite.conflictDetectionFilter(everything).validateNoConflictingData()
    for key, value in properties.items():
        overwrite = overwrite.set(key, value)
    translating_errors(f"recording progress in {name}", overwrite.commit)


def merge(
    spark: SparkSession,
    target: str,
    rows: DataFrame,
    on: Sequence[str],
    *,
    update: bool = False,
    clauses: str = "",
    where_target: str = "",
    guard: str = "",
    properties: Mapping[str, str] | None = None,
) -> None:
    """Run one MERGE of `rows` into `target`, validated against all commits since it read.

    Args:
        spark: a private session.
        target: the table, as Spark names it.
        rows: the columns to write; unique and not null in `on`. They must not be read from tables (a local checkpoint
            is not): Spark 4.1 looks up tables behind a view again, and cannot plan them inside a MERGE.
        on: the columns that identify a row.
        update: update existing rows; else they stay unchanged.
        clauses: what to do with the rows `s` and the target `t`, in place of inserting and updating.
        where_target: a condition on the target `t`, which limits the rows that are read and that can conflict.
        guard: an SQL condition, evaluated after the target was read; if it does not hold, nothing is committed. The
            tables that it reads are loaded after the target: Spark resolves the source of a MERGE after its target.
        properties: of the snapshot.

    Raises:
        CommitConflict: another commit was faster; read again.
        CommitStateUnknown: find out whether it was committed before you try again.
    """
    view = "icetower_merge_source"
    rows.createOrReplaceTempView(view)
    condition = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in on)
    if where_target:
        condition += f" AND {where_target}"
    filtered = f" WHERE ({guard}) OR raise_error({literal(MOVED)})" if guard else ""
    matched = "WHEN MATCHED THEN UPDATE SET " + ", ".join(f"t.{quoted(c)} = s.{quoted(c)}" for c in rows.columns)
    if not update:  # never holds, see the top of the module
        matched = f"WHEN MATCHED AND s.{quoted(on[0])} IS NULL THEN DELETE"
    columns = ", ".join(quoted(name) for name in rows.columns)
    values = ", ".join(f"s.{quoted(name)}" for name in rows.columns)
    clauses = clauses or f"{matched} WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"  # noqa: S608
    statement = f"MERGE INTO {quoted(target)} t USING (SELECT * FROM {view}{filtered}) s ON {condition} {clauses}"  # noqa: S608 - names are quoted
    for name, value in (properties or {}).items():
        spark.conf.set(SNAPSHOT_PROPERTY + name, value)
    try:
        translating_errors(f"merging into {target}", lambda: spark.sql(statement))
    finally:
        for name in properties or {}:
            spark.conf.unset(SNAPSHOT_PROPERTY + name)
        spark.catalog.dropTempView(view)


def require_serializable(metadata: Metadata, name: str, own: Contract | None = None) -> None:
    """Raises `BadRequest` if a MERGE into the table might not see rows that others inserted meanwhile.

    A tower validates a mediator's commit regardless of declarations. Other versions and other catalogs may rely on the
    declarations, and then two mediators would both insert one row.

    Args:
        own: the contract under which the MERGE runs, if it is known.
    """
    properties: Mapping[str, str] = metadata.get("properties", {})
    level = properties.get("write.merge.isolation-level", "serializable")
    if level != "serializable":
        raise _unsafe(name, f"has write.merge.isolation-level = {level}", "Set it to serializable")
    if properties.get(BLIND_APPENDS, "").lower() == "true":
        raise _unsafe(
            name,
            f"has {BLIND_APPENDS} = true",
            "Set it to false, and blind_appends: true in the contracts of the agents that append to the table directly",
        )
    rules = () if own is None else own.rules_for(identifier(name))
    declared = {"blind_appends: true" for rule in rules if rule.blind_appends}
    declared |= {"isolation: snapshot" for rule in rules if rule.isolation is Isolation.SNAPSHOT}
    if own is not None and declared:
        clauses = " and ".join(sorted(declared))
        raise _unsafe(
            name, f"is merged into under contract {own.name}, which has {clauses}", "Remove that from its rule"
        )


def _unsafe(name: str, why: str, remedy: str) -> BadRequest:
    return BadRequest(f"{name} {why}, so two mediators could both insert one row. {remedy}", rule="wal.isolation")


def translating_errors(what: str, work: Callable[[], T]) -> T:
    """Call `work`; raise Spark's and Java's exceptions as Icetower's own.

    Args:
        what: the action, for messages.

    Raises:
        CommitStateUnknown, CommitConflict, NoSuchTable, UpstreamFailed: by the exception's causes.
    """
    try:
        return work()
    except (PySparkException, Py4JError) as error:
        causes = _causes_text(error)
        reason = causes.splitlines()[0][:_REASON_CHARACTERS] if causes else type(error).__name__
        if _UNKNOWN in causes:
            raise CommitStateUnknown(f"{what}: the catalog does not know whether it was committed") from error
        if any(mark in causes for mark in _STALE):
            raise CommitConflict(f"{what}: the table has changed meanwhile: {reason}") from error
        if _NO_CATALOG in causes:
            raise UpstreamFailed(
                f"{what}: Spark cannot load the catalog. Does a server answer at its address, and is the token right?"
            ) from error
        if any(mark in causes for mark in _MISSING):
            raise NoSuchTable(f"{what}: there is no such table; create it first") from error
        raise UpstreamFailed(f"{what}: {reason}") from error


def patiently(work: Callable[[], T], *, tries: int = 5, and_unknown: bool = False) -> T:
    """Do repeatable work until there is no conflict, at most `tries` times.

    Args:
        work: reads again whatever it goes by.
        and_unknown: also after a commit that may have landed or not: the work finds out.
    """
    again = (CommitConflict, CommitStateUnknown) if and_unknown else (CommitConflict,)
    for _ in range(tries - 1):
        with suppress(*again):
            return work()
    return work()


def _causes_text(error: BaseException) -> str:
    """The message and every cause, with Java's class names: Spark wraps Iceberg's exceptions several times."""
    origin: Any = getattr(error, "_origin", None)
    if isinstance(error, Py4JJavaError):
        origin = error.java_exception
    parts = [] if isinstance(error, Py4JJavaError) else [str(error)]
    for _ in range(10):
        if origin is None:
            break
        parts.append(str(origin.toString()))
        origin = origin.getCause()
    return "\n".join(parts)


@contextmanager
def active(spark: SparkSession) -> Generator[None]:
    """Make it the active session of this thread. Java finds the settings of a catalog by it, and would otherwise take
    those of another session, with another principal's token, or in a thread that is new to Spark none at all."""
    sessions = jvm(spark).org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(java_session(spark))
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def jvm(spark: SparkSession) -> Any:
    """The packages of Java, as attributes."""
    return spark._jvm  # pyright: ignore[reportPrivateUsage]


def java_session(spark: SparkSession) -> Any:
    """The session as Java has it."""
    return spark._jsparkSession  # pyright: ignore[reportPrivateUsage]
