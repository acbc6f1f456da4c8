"""Reads and deletes rows of single data files of an Iceberg table, by Iceberg's own Java classes.

Spark's scans plan a whole table. What is read here costs as much as the files that are asked for: their tasks are
handed to the scan that Iceberg's compactions use. And Spark's DELETE validates only the files that it removes rows of;
`remove` also validates those that the removal is decided on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from icetower.ambient import Ambient
from icetower.errors import BadRequest, CommitConflict
from icetower.iceberg import puffin
from icetower.iceberg.vectors import Vector, as_blob, decode
from icetower.pipelines.tables import (
    data_file_of,
    elements,
    iceberg_table,
    java_list,
    literal,
    quoted,
    read_bytes,
    translating_errors,
)
from icetower.pipelines.wal_reading import FILE
from icetower.pipelines.wal_rows import KEY_COLUMN

CREATED_BY = "Icetower"
LISTED_MAX = 200
"""Up to this many keys, files whose bounds have none of them are passed over."""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A live data file; `java` is Iceberg's scan task of it, with the deletes that apply to it."""

    path: str
    sequence: int
    java: Any


def _kind_of(table: Any) -> tuple[str, int, int]:
    current = table.operations().current()
    return current.uuid(), current.formatVersion(), current.currentSchemaId()


class Files:
    """The data files of one version of a table.

    Args:
        name: the table, as Spark names it.
    """

    def __init__(self, spark: SparkSession, name: str, ambient: Ambient) -> None:
        self.spark, self.name, self.ambient = spark, name, ambient
        self.table = iceberg_table(spark, name)
        self.jvm: Any = spark._jvm  # pyright: ignore[reportPrivateUsage]
        self.iceberg = self.jvm.org.apache.iceberg
        self._gateway: Any = spark.sparkContext._gateway  # pyright: ignore[reportPrivateUsage]
        self._staged: list[str] = []

    # -- reading

    def added_by(self, snapshot_id: int) -> list[LiveFile]:
        """The data files that a snapshot added, without regard to what was deleted since."""
        schema = self.iceberg.SchemaParser.toJson(self.table.schema())
        always = self.iceberg.expressions.Expressions.alwaysTrue()
        residuals = self.iceberg.expressions.ResidualEvaluator.unpartitioned(always)
        none = self._gateway.new_array(self.iceberg.DeleteFile, 0)

        def read() -> list[LiveFile]:
            snapshot, found = self.table.snapshot(snapshot_id), list[LiveFile]()
            for file in elements(snapshot.addedDataFiles(self.table.io())):
                spec = self.iceberg.PartitionSpecParser.toJson(self.table.specs().get(file.specId()))
                task = self.iceberg.BaseFileScanTask(file, none, schema, spec, residuals)
                found.append(LiveFile(file.location(), snapshot.sequenceNumber(), task))
            return found

        return translating_errors(f"reading snapshot {snapshot_id} of {self.name}", read)

    def live(
        self, snapshot_id: int, *, above: int = -1, among: Collection[str] | None = None, keys: Sequence[str] = ()
    ) -> list[LiveFile]:
        """The live data files at a snapshot.

        Args:
            above: only those that were written after this sequence number.
            among: only those with these paths.
            keys: without files that certainly have none of these keys.
        """

        def read() -> list[LiveFile]:
            scan = self.table.newScan().useSnapshot(snapshot_id)
            # Iceberg reads the head with the table's own schema, and older snapshots with theirs.
            name = (
                KEY_COLUMN if snapshot_id == self.table.currentSnapshot().snapshotId() else self._keys_at(snapshot_id)
            )
            if name is not None and 0 < len(keys) <= LISTED_MAX:
                listed = getattr(self.iceberg.expressions.Expressions, "in")
                scan = scan.filter(listed(name, java_list(self.spark, keys)))
            tasks, found = scan.planFiles(), list[LiveFile]()
            try:
                for task in elements(tasks):
                    file = task.file()
                    number, path = file.fileSequenceNumber() or 0, file.location()
                    if number > above and (among is None or path in among):
                        found.append(LiveFile(path, number, task))
            finally:
                tasks.close()
            return found

        return translating_errors(f"planning {self.name}", read)

    def touched_by(self, snapshot_id: int) -> frozenset[str] | None:
        """The data files that a snapshot removed, or of which it deleted rows; None if it does not show which."""

        def read() -> frozenset[str] | None:
            snapshot, io = self.table.snapshot(snapshot_id), self.table.io()
            paths = {file.location() for file in elements(snapshot.removedDataFiles(io))}
            for deletes in elements(snapshot.addedDeleteFiles(io)):
                path = data_file_of(self.spark, deletes)
                if path is None:
                    return None
                paths.add(path)
            return frozenset(paths)

        return translating_errors(f"reading snapshot {snapshot_id} of {self.name}", read)

    def rows(self, files: Sequence[LiveFile], columns: Sequence[str]) -> DataFrame:
        """The rows of some files, until `release`; `_icetower_file` is the file of each."""
        staged = str(self.ambient.uuid4())
        self._cache().add(staged, self.table)
        self._staged.append(staged)
        tasks = java_list(self.spark, [file.java for file in files])
        self.iceberg.spark.ScanTaskSetManager.get().stageTasks(self.table, staged, tasks)
        rows = self.spark.read.format("iceberg").load(staged)
        # Such a scan has no metadata columns, `_file` and `_pos` among them.
        return rows.select(*(quoted(name) for name in columns), f.input_file_name().alias(FILE))

    def rows_at(self, snapshot_id: int, columns: Sequence[str]) -> DataFrame | None:
        """The live rows at a snapshot, with any columns; None if the table had no keys then."""
        keys = self._keys_at(snapshot_id)
        if keys is None:
            return None
        rows = self.spark.read.format("iceberg").option("versionAsOf", snapshot_id).load(self.name)
        # Iceberg looks up filters on the head in the table's own schema: one by an older name must not reach it.
        key = f.col(keys) if keys == KEY_COLUMN else f.concat(quoted(keys), f.lit(""))
        return rows.select(*(key.alias(name) if name == KEY_COLUMN else quoted(name) for name in columns))

    def _keys_at(self, snapshot_id: int) -> str | None:
        """What the column of keys was called when a snapshot was made; None if the table had none then.

        Its id tells: another column may have had its name before.
        """
        field = self.table.schema().findField(KEY_COLUMN)
        schema_id = self.table.snapshot(snapshot_id).schemaId()
        schema = self.table.schema() if schema_id is None else self.table.schemas().get(schema_id)
        return None if field is None else schema.findColumnName(field.fieldId())

    def release(self) -> None:
        """Forget what `rows` has handed to Spark."""
        while self._staged:
            staged = self._staged.pop()
            self.iceberg.spark.ScanTaskSetManager.get().removeTasks(self.table, staged)
            self._cache().remove(staged)

    def _cache(self) -> Any:
        # By reflection: py4j takes the class's other method of this name.
        loader = self.jvm.java.lang.Thread.currentThread().getContextClassLoader()
        get = loader.loadClass("org.apache.iceberg.spark.SparkTableCache").getMethod(
            "get", self._gateway.new_array(self.jvm.java.lang.Class, 0)
        )
        return get.invoke(None, self._gateway.new_array(self.jvm.java.lang.Object, 0))

    def exists(self, path: str) -> bool:
        return translating_errors(f"looking for {path}", lambda: bool(self.table.io().newInputFile(path).exists()))

    # -- removing

    def remove(
        self,
        snapshot_id: int,
        rows: Mapping[str, Collection[int]],
        files: Sequence[LiveFile],
        relied_on: Collection[str],
        properties: Mapping[str, str],
        before_commit: Callable[[], None],
    ) -> None:
        """Delete rows merge-on-read: by deletion vectors in format version 3, else by position deletes.

        Args:
            snapshot_id: of which the rows were read.
            rows: positions by file; they are live.
            files: those among which these are.
            relied_on: the commit is also refused if a row of these files was deleted since, or one of the files.

        Raises:
            BadRequest: a file is in a partition by a column that the table has no longer.
            CommitConflict: one of the files has changed since, or the table's columns or format have; read again.
        """
        by_path = {file.path: file for file in files}
        self._require_partitions(by_path[path] for path in rows)
        delta = self.table.newRowDelta()
        version = self.table.operations().current().formatVersion()
        write = self._vectors if version >= 3 else self._position_deletes
        wanted = {path: (by_path[path], positions) for path, positions in rows.items()}

        def commit() -> None:
            for deletes, superseded in write(wanted):
                delta.addDeletes(deletes)
                for old in superseded:
                    delta.removeDeletes(old)
            delta.validateFromSnapshot(snapshot_id).validateDeletedFiles().validateNoConflictingDeleteFiles()
            delta.validateDataFilesExist(java_list(self.spark, sorted({*rows, *relied_on})))
            for name, value in properties.items():
                delta.set(name, value)
            before_commit()
            self._require_unchanged()
            delta.commit()

        translating_errors(f"deleting rows of {self.name}", commit)

    def _require_partitions(self, files: Iterable[LiveFile]) -> None:
        """Iceberg cannot write deletes for files in a partition by a column that was dropped; Spark's DELETE fails."""
        schema, specs = self.table.schema(), self.table.specs()
        for spec_id in {file.java.file().specId() for file in files}:
            for field in elements(specs.get(spec_id).fields()):
                if schema.findField(field.sourceId()) is None and field.transform().toString() != "void":
                    raise BadRequest(
                        f"{self.name} has files in partitions by {field.name()}, whose column was dropped: Iceberg "
                        "cannot delete single rows of them. Rewrite them first: CALL <catalog>.system."
                        "rewrite_data_files(table => '<table>', options => map('rewrite-all', 'true'))",
                        rule="dedup.partitions",
                    )

    def _require_unchanged(self) -> None:
        """The files of deletes are written for one format version, and partitions by columns that are still there."""
        now = iceberg_table(self.spark, self.name)
        if _kind_of(now) != _kind_of(self.table):
            raise CommitConflict(f"{self.name} has other columns or another format by now")

    def record(self, properties: Mapping[str, str]) -> None:
        """Commit a snapshot without changes. It depends on nothing, and streams that read the table pass over it."""
        append = self.table.newFastAppend()
        for name, value in properties.items():
            append.set(name, value)
        translating_errors(f"recording progress in {self.name}", append.commit)

    def _vectors(self, rows: Mapping[str, tuple[LiveFile, Collection[int]]]) -> Iterator[tuple[Any, list[Any]]]:
        """One Puffin file with a vector for each data file, and the vectors that each takes the place of."""
        vectors: list[Vector] = []
        old: list[list[Any]] = []
        for file, positions in rows.values():
            there = [each for each in file.java.deletes() if each.content().toString() == "POSITION_DELETES"]
            before = {position for each in there for position in self._positions(each, file.path)}
            vectors.append(Vector.of(sorted(before | set(positions))))
            # One of format version 2 may be about other data files, too, whose rows it goes on deleting.
            old.append([each for each in there if data_file_of(self.spark, each) is not None])
        data, blobs = puffin.write(
            [as_blob(vector, path) for vector, path in zip(vectors, rows, strict=True)], created_by=CREATED_BY
        )
        out = self._output("PUFFIN").newOutputFile().encryptingOutputFile()
        stream = out.create()
        stream.write(data)
        stream.close()
        for (path, (file, _)), vector, blob, superseded in zip(rows.items(), vectors, blobs, old, strict=True):
            data_file = file.java.file()
            built = (
                self.iceberg.FileMetadata.deleteFileBuilder(self.table.specs().get(data_file.specId()))
                .ofPositionDeletes()
                .withFormat("PUFFIN")
                .withPath(out.location())
                .withPartition(data_file.partition())
                .withFileSizeInBytes(len(data))
                .withRecordCount(len(vector))
                .withReferencedDataFile(path)
                .withContentOffset(blob.offset)
                .withContentSizeInBytes(blob.length_bytes)
                .build()
            )
            yield built, superseded

    def _positions(self, deletes: Any, path: str) -> list[int]:
        """The positions that a delete file names in a data file."""
        location = deletes.location()
        if deletes.format().toString() == "PUFFIN":
            offset, length = deletes.contentOffset(), deletes.contentSizeInBytes()
            blob = read_bytes(self.table, location)[offset : offset + length]
            return list(decode(blob, name=f"at {offset} of {location}", cardinality=deletes.recordCount()))
        # From before the table had format version 3.
        rows = self.spark.read.format("iceberg").load(f"{self.name}.position_deletes")
        found = rows.where(f"file_path = {literal(path)} AND delete_file_path = {literal(location)}").select("pos")
        return [row[0] for row in found.collect()]

    def _position_deletes(
        self, rows: Mapping[str, tuple[LiveFile, Collection[int]]]
    ) -> Iterator[tuple[Any, list[Any]]]:
        """A Parquet file for each data file, which names it (trap R6)."""
        kind = self.iceberg.FileFormat.PARQUET
        factory = getattr(self.iceberg.data, "GenericFileWriterFactory$Builder")(self.table)
        factory = factory.deleteFileFormat(kind).build()
        outputs = self._output("PARQUET")
        for path, (file, positions) in rows.items():
            data_file = file.java.file()
            spec, partition = self.table.specs().get(data_file.specId()), data_file.partition()
            writer = factory.newPositionDeleteWriter(outputs.newOutputFile(spec, partition), spec, partition)
            row = self.iceberg.deletes.PositionDelete.create()
            for position in sorted(positions):
                writer.write(row.set(path, position))
            writer.close()
            yield writer.toDeleteFile(), []

    def _output(self, kind: str) -> Any:
        builder = self.iceberg.io.OutputFileFactory.builderFor(self.table, 0, 0)
        builder = builder.format(self.iceberg.FileFormat.fromString(kind))
        return builder.operationId(str(self.ambient.uuid4())).suffix("deletes").build()
