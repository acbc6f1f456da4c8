"""Finds files under a table's location that no snapshot and no metadata refers to; `cleanup` deletes some of them.

The files are listed first and the references read afterwards, so a commit in between is seen. A writer that is still at
work has files that nothing refers to yet: the cut-off must be older than the longest write.

Iceberg's own procedure `remove_orphan_files` refuses a cut-off of less than 24 hours (trap L2), and its report names
paths only; this one lists through the table's own FileIO, so it needs no other access to the storage than Iceberg has.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from icetower.ambient import Ambient, SystemAmbient
from icetower.errors import UpstreamFailed
from icetower.iceberg.metadata import data_location
from icetower.pipelines.tables import Metadata, iceberg_table, java_session, jvm, metadata_of, translating_errors
from icetower.table.references import named_by

DAY_S = 24 * 3600
WRITER = r"/_?agent=([^/]+)/"
OWN = r"/([A-Za-z0-9][A-Za-z0-9_.-]*)/"
"""Below the table's data folder: a directory that is not a partition's is a principal's own (`write_location: own`)."""
SCATTERED = r"[01]+"
"""Except for the directories over which Iceberg's layout for object storages spreads files."""
_LISTED = "array<struct<location: string, size: bigint, createdAtMillis: bigint>>"
"""The fields of Iceberg's `FileInfo`."""
_PIECE = 10_000


def find_orphans(
    spark: SparkSession, table: str, *, older_than_s: float = DAY_S, ambient: Ambient | None = None
) -> DataFrame:
    """The orphans of `table` (``catalog.namespace.table``).

    Args:
        spark: a session with the catalog.
        table: its location must be its own: files of a table below it would be reported.
        older_than_s: files modified later than this many seconds ago are left out.
        ambient: the clock.

    Returns:
        ``path``, ``size_bytes``, ``modified_at`` (timestamp); ``principal``: the owner of the folder that it is in, or
        null; and ``agent``: the writer in a path segment ``agent=NAME`` or ``_agent=NAME``, else the principal.

    Raises:
        NoSuchTable: there is no such table.
        UpstreamFailed: the catalog or the storage failed.
    """
    before_ms = int((ambient or SystemAmbient()).now_ms() - older_than_s * 1000)
    handle = iceberg_table(spark, table)
    listed = _list_files(spark, table, handle, before_ms)
    handle.refresh()  # only now: see the top of the module
    metadata = metadata_of(spark, handle)
    referenced = with_place(referenced_by(spark, table, handle)).select("place")
    agent, own = f.regexp_extract("path", WRITER, 1), _owner(spark, metadata)
    return (
        with_place(listed)
        .join(referenced, "place", "left_anti")
        .select(
            "path",
            "size_bytes",
            f.timestamp_millis("modified_ms").alias("modified_at"),
            f.when(own != "", own).alias("principal"),
            f.when(agent != "", decoded(agent)).when(own != "", own).alias("agent"),
        )
    )


def _owner(spark: SparkSession, metadata: Metadata) -> Column:
    """The principal whose own folder a file at `place` is in; empty text if it is elsewhere."""
    data = data_location(metadata["location"], metadata.get("properties") or {})
    root = with_place(spark.createDataFrame([(data,)], "path STRING")).collect()[0].place
    place = f.col("place")
    below = place.substr(f.lit(len(root) + 1), f.length(place))
    return f.when(place.startswith(root), f.regexp_extract(below, f"^(?!/{SCATTERED}/){OWN}", 1)).otherwise("")


def _list_files(spark: SparkSession, table: str, handle: Any, before_ms: int) -> DataFrame:
    """The files under the table's location that were last modified before `before_ms`."""
    location = str(handle.location()).rstrip("/")
    local = _local(location)

    def listed() -> DataFrame:
        return _listed_by_java(spark, handle, location) if local is None else _listed_here(spark, local)

    return translating_errors(f"listing the files of {table}", listed).where(f.col("modified_ms") < before_ms)


def _local(location: str) -> str | None:
    """The folder on this machine; None for a storage."""
    path = re.sub(r"^file:/+", "/", location)
    return path if path.startswith("/") else None


def _listed_here(spark: SparkSession, folder: str) -> DataFrame:
    """The files of a folder on this machine. Hadoop would start a program for each file, to learn who owns it.

    What symbolic links lead to lies elsewhere, and some lead around without end.
    """
    paths: list[str] = []
    sizes: list[int] = []
    times: list[int] = []
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False) and not _is_hadoops(entry.name):
                        try:
                            found = entry.stat()
                        except FileNotFoundError:  # deleted meanwhile
                            continue
                        paths.append(f"file:{entry.path}")
                        sizes.append(found.st_size)
                        times.append(found.st_mtime_ns // 1_000_000)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UpstreamFailed(f"{folder} cannot be listed: {error}") from error
    columns = {"path": pa.array(paths, pa.string()), "size_bytes": pa.array(sizes, pa.int64())}
    return spark.createDataFrame(pa.table({**columns, "modified_ms": pa.array(times, pa.int64())}))


def _is_hadoops(name: str) -> bool:
    """Whether a file is a checksum of Hadoop's."""
    return name.startswith(".") and name.endswith(".crc")


def _listed_by_java(spark: SparkSession, handle: Any, location: str) -> DataFrame:
    """The files of a storage. They stay in Java, as text: to bring each to Python takes longer than all the rest."""
    java = jvm(spark)
    jackson, guava = java.com.fasterxml.jackson, java.org.apache.iceberg.relocated.com.google.common
    writer, text = jackson.databind.ObjectMapper(), java.java.io.StringWriter()
    accessors, visibility = jackson.annotation.PropertyAccessor, jackson.annotation.JsonAutoDetect.Visibility
    writer.setVisibility(accessors.FIELD, visibility.ANY)
    # The slash excludes a neighbour whose name begins like the table's: storages list by prefix.
    files = handle.io().listPrefix(location + "/").iterator()
    pieces = guava.collect.Iterators.partition(files, _PIECE)
    while pieces.hasNext():
        writer.writeValue(text, pieces.next())
        text.write("\n")
    lines = guava.base.Splitter.on("\n").splitToList(text.getBuffer())
    rows = DataFrame(
        java_session(spark).createDataset(lines, java.org.apache.spark.sql.Encoders.STRING()).toDF(), spark
    )
    file = f.explode(f.from_json("value", _LISTED)).alias("file")
    named = {"path": "location", "size_bytes": "size", "modified_ms": "createdAtMillis"}
    return rows.select(file).select(*(f.col(f"file.{field}").alias(name) for name, field in named.items()))


def referenced_by(spark: SparkSession, table: str, handle: Any) -> DataFrame:
    """Every path that the table refers to, as a column ``path``: of all its snapshots, on every branch.

    Args:
        table: the table, as Spark names it.
        handle: Iceberg's own table, freshly loaded.
    """
    metadata = metadata_of(spark, handle)
    location = metadata["location"].rstrip("/")
    named = [
        _metadata_location(handle),
        f"{location}/metadata/version-hint.text",
        *sorted(named_by(metadata)),
    ]

    def rows() -> DataFrame:
        paths = spark.createDataFrame([(path,) for path in named], "path STRING")
        for name, column in (("all_manifests", "path"), ("all_files", "file_path")):
            paths = paths.unionByName(spark.table(f"{table}.{name}").select(f.col(column).alias("path")))
        return paths

    return translating_errors(f"reading what {table} refers to", rows)


def decoded(text: Column) -> Column:
    """A part of a path with its percent escapes decoded, if they are valid."""
    return f.coalesce(f.try_url_decode(text), text)


def with_place(rows: DataFrame) -> DataFrame:
    """The rows with a column `place`: one spelling for each `path`. Paths that differ in the scheme only have the same
    one, and a checksum file has that of its file.

    It is made in steps, each a column: an expression that is named twice would be computed twice, at each step anew.
    """
    path, place = f.col("path"), f.col("place")
    plain = f.when(
        path.startswith("file:/"), f.concat(f.lit("/"), f.ltrim(path.substr(f.lit(6), f.length(path)), f.lit("/")))
    )
    amazon = path.startswith("s3a:") | path.startswith("s3n:")
    plain = plain.when(amazon, f.concat(f.lit("s3:"), path.substr(f.lit(5), f.length(path)))).otherwise(path)
    # Behind a scheme two slashes are none too many.
    doubled = f.instr(f.replace(place, f.lit("://"), f.lit("/")), "//") > 0
    single = f.when(doubled, f.regexp_replace(place, r"(?<!:)/{2,}", "/")).otherwise(place)
    of_file = f.when(place.endswith(".crc"), f.regexp_replace(place, r"/\.([^/]+)\.crc$", "/$1")).otherwise(place)
    return rows.withColumn("place", plain).withColumn("place", single).withColumn("place", of_file)


def _metadata_location(handle: Any) -> str:
    return str(handle.operations().current().metadataFileLocation())
