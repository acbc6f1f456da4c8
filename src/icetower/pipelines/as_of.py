"""Rows of a table as of a snapshot, under the columns of one version of its metadata.

Spark gives rows of a snapshot the names and types of its time. Jobs read several snapshots of a table and join them, so
they give all of them the columns of the metadata that they began with, each by its field's id, in structs, lists and
maps, too. A field that the snapshot did not have has its initial default (specification: "Default values").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType

from icetower.iceberg.metadata import current_schema
from icetower.pipelines.tables import Metadata, jvm, quoted, translating_errors

Field = Mapping[str, Any]


def spark_schema(spark: SparkSession, metadata: Metadata) -> StructType:
    """The current schema, as Spark has it: by Iceberg's own conversion."""

    def convert() -> Any:
        iceberg = jvm(spark).org.apache.iceberg
        schema = iceberg.SchemaParser.fromJson(json.dumps(current_schema(metadata)))
        return json.loads(iceberg.spark.SparkSchemaUtil.convert(schema).json())

    return StructType.fromJson(translating_errors("reading a schema", convert))


def rows_as_of(spark: SparkSession, name: str, metadata: Metadata, snapshot_id: int, *more: Column) -> DataFrame:
    """The rows that a table had at a snapshot, under its current columns, and `more` columns of the rows."""
    rows = spark.read.format("iceberg").option("versionAsOf", snapshot_id).load(name)
    return rows.select(*columns_as_of(spark, metadata, snapshot_id), *more)


def columns_as_of(spark: SparkSession, metadata: Metadata, snapshot_id: int) -> list[Column]:
    """The table's current columns, for rows that Spark has read as of a snapshot."""
    snapshot = next(entry for entry in metadata["snapshots"] if entry["snapshot-id"] == snapshot_id)
    now = current_schema(metadata)
    then = {field["id"]: field for field in _schema(metadata, snapshot.get("schema-id", now["schema-id"]))["fields"]}
    kinds = spark_schema(spark, metadata)
    return [
        _field(None, then.get(field["id"]), field, kinds[field["name"]].dataType).alias(field["name"])
        for field in now["fields"]
    ]


def same_columns(one: Metadata, other: Metadata) -> bool:
    """Whether two versions of a table's metadata have the same columns: ids, names, types, in one order."""
    return current_schema(one)["fields"] == current_schema(other)["fields"]


def _schema(metadata: Metadata, schema_id: int) -> Mapping[str, Any]:
    return next(schema for schema in metadata["schemas"] if schema["schema-id"] == schema_id)


def _field(parent: Column | None, then: Field | None, now: Field, kind: DataType) -> Column:
    """A field of a row, or of a struct `parent`."""
    if then is None:
        return _default(now, kind)
    value = f.col(quoted(then["name"])) if parent is None else parent.getField(then["name"])
    if then["name"] != now["name"]:
        value = _kept_from_scans(value)
    return _value(value, then["type"], now["type"], kind)


def _value(value: Column, then: Any, now: Any, kind: DataType) -> Column:
    """A value of type `then` as one of type `now`; `kind` is `now` as Spark has it."""
    if then == now:
        return value
    if isinstance(kind, StructType):
        old = {field["id"]: field for field in then["fields"]}
        parts = [
            _field(value, old.get(field["id"]), field, kind[field["name"]].dataType).alias(field["name"])
            for field in now["fields"]
        ]
        return f.when(value.isNotNull(), f.struct(*parts))
    if isinstance(kind, ArrayType):
        return f.transform(value, lambda each: _value(each, then["element"], now["element"], kind.elementType))
    if isinstance(kind, MapType):
        # Keys may be widened, and their structs may have other names; Iceberg lets them change no further.
        keys = f.transform(f.map_keys(value), lambda each: _value(each, then["key"], now["key"], kind.keyType))
        values = f.transform(
            f.map_values(value), lambda each: _value(each, then["value"], now["value"], kind.valueType)
        )
        return f.map_from_arrays(keys, values)
    return value.cast(kind)


def _kept_from_scans(value: Column) -> Column:
    """The same value, so that Spark hands no condition on it to Iceberg, which would look for the column by its former
    name among the partitions' present ones, and find none or another (Iceberg 1.12, `BaseDistributedDataScan`)."""
    return f.element_at(f.array(value), 1)


def _default(field: Field, kind: DataType) -> Column:
    """A field's initial default, from its JSON (specification: "JSON single-value serialization")."""
    default = field.get("initial-default")
    if default is not None and isinstance(kind, StructType):  # `{}`: the fields have defaults of their own
        parts = (_default(each, kind[each["name"]].dataType).alias(each["name"]) for each in field["type"]["fields"])
        return f.struct(*parts)
    if default is not None and isinstance(kind, BinaryType):
        return f.unhex(f.lit(default))
    return f.lit(default).cast(kind)
