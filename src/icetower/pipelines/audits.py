"""Audits of many tables side by side: each executor walks the history of the tables that it is given.

An audit is bound by reading, and one table's by the order of its commits; many tables have nothing to do with each
other. So the tables are spread, not the snapshots. Executors read manifests through PyIceberg's FileIO, as `icetower
audit` does; what they need for that (`s3.endpoint`, …) is given to the job.

    python -m icetower.pipelines.audits --uri http://127.0.0.1:8181 --checkpoints FOLDER shop.sales shop.prices
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from icetower.ambient import from_environment
from icetower.audit.auditor import Options, audit
from icetower.audit.checkpoint import Checkpoint
from icetower.errors import IcetowerError, NoSuchTable, UsageError
from icetower.iceberg.metadata import parse
from icetower.pipelines.session import CATALOG, CREDENTIAL_VARIABLE, TOKEN_VARIABLE, spark_session
from icetower.pipelines.tables import iceberg_table
from icetower.storage.file_io import FileIOStorage
from icetower.storage.port import ON_OWN_ACCOUNT
from icetower.table.head import HeadState

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = "table STRING, metadata_location STRING, checkpoint STRING"
"""What is to be audited: a name, the metadata file, and what an earlier audit gave as its checkpoint, or null."""

FOUND = (
    "table STRING, head BIGINT, snapshots BIGINT, "
    "violations ARRAY<STRUCT<rule: STRING, verdict: STRING, snapshots: ARRAY<BIGINT>, witness: ARRAY<STRING>, "
    "files: ARRAY<STRING>>>, undeterminable ARRAY<STRING>, checkpoint STRING, error STRING"
)
"""One row a table. `checkpoint`: for the next audit. `error`: why it could not be audited; the others go on."""


@dataclass(frozen=True, slots=True)
class How:
    """How the tables are audited.

    Attributes:
        options: `after` is each table's own, and comes from its checkpoint.
        storage: properties as for PyIceberg's FileIO.
    """

    options: Options = field(default_factory=Options)
    storage: Mapping[str, str] = field(default_factory=dict[str, str])


def heads(spark: SparkSession, tables: Mapping[str, str | None] | Iterable[str]) -> DataFrame:
    """The metadata files of tables (``catalog.namespace.table``) as they stand: `TABLES`.

    Args:
        tables: each with its checkpoint, or names alone. One that is not there has no metadata file.

    Raises:
        UpstreamFailed: the catalog failed.
    """
    kept = tables if isinstance(tables, Mapping) else dict.fromkeys(tables)
    rows = [(table, _metadata_location(spark, table), checkpoint) for table, checkpoint in kept.items()]
    return spark.createDataFrame(rows, TABLES)


def _metadata_location(spark: SparkSession, table: str) -> str | None:
    try:
        return str(iceberg_table(spark, table).operations().current().metadataFileLocation())
    except NoSuchTable:
        return None


def audit_tables(tables: DataFrame, how: How | None = None, *, side_by_side: int = 16) -> DataFrame:
    """What the histories of tables show: `TABLES` in, `FOUND` out.

    Args:
        side_by_side: so many parts are made of the tables.
    """
    asked = how or How()

    def audited(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _audited(batches, asked)

    return tables.repartition(side_by_side).mapInArrow(audited, FOUND)


def _audited(batches: Iterable[pa.RecordBatch], how: How) -> Iterator[pa.RecordBatch]:
    """In an executor."""
    import pyarrow as pa

    for batch in batches:
        rows = [_row(table, how) for table in batch.to_pylist()]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=_schema())


def _schema() -> pa.Schema:
    import pyarrow as pa

    texts, numbers = pa.list_(pa.string()), pa.list_(pa.int64())
    violation = pa.struct(
        [("rule", pa.string()), ("verdict", pa.string()), ("snapshots", numbers), ("witness", texts), ("files", texts)]
    )
    return pa.schema(
        [
            ("table", pa.string()),
            ("head", pa.int64()),
            ("snapshots", pa.int64()),
            ("violations", pa.list_(violation)),
            ("undeterminable", texts),
            ("checkpoint", pa.string()),
            ("error", pa.string()),
        ]
    )


def _row(table: Mapping[str, Any], how: How) -> dict[str, Any]:
    found: dict[str, Any] = {"table": table["table"], "violations": [], "undeterminable": []}
    if table["metadata_location"] is None:
        return found | {"error": "there is no such table"}
    try:
        return found | asyncio.run(_audit(table["metadata_location"], table["checkpoint"], how))
    except (IcetowerError, OSError) as error:  # one table that cannot be read is no reason to stop the others
        return found | {"error": str(error)}


async def _audit(location: str, kept: str | None, how: How) -> dict[str, Any]:
    before = None if kept is None else Checkpoint.of_text(kept, name="the checkpoint")
    storage = FileIOStorage(how.storage)
    try:
        head = HeadState(location, parse(await storage.read(location, ON_OWN_ACCOUNT)))
        after = None if before is None else before.resume(head, how.options.branch)
        report = await audit(head, storage, replace(how.options, after=after))
    finally:
        await storage.close()
    checkpoint = Checkpoint.after(report, before)
    lost = () if before is None or after is not None else (before.lost,)
    return {
        "head": report.checked.head,
        "snapshots": report.checked.snapshots,
        "violations": [violation.to_json() for violation in report.violations],
        "undeterminable": [*lost, *report.checked.undeterminable],
        "checkpoint": None if checkpoint is None else checkpoint.to_text(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was found in the tables named, one JSON object a line.

    Returns:
        The exit status: 3 something is wrong for certain, 1 a table could not be audited, else 0.
    """
    parser = argparse.ArgumentParser(prog="icetower.pipelines.audits", description="Audit the history of many tables")
    parser.add_argument("--uri", required=True, help=f"of the catalog; secrets come from ${TOKEN_VARIABLE}")
    parser.add_argument("--content", action="store_true", help="open delete files and data files with row ids")
    parser.add_argument("--checkpoints", type=Path, help="a folder that is there: each table goes on where it ended")
    parser.add_argument("--storage", action="append", type=_pair, default=[], metavar="KEY=VALUE", help="for FileIO")
    parser.add_argument("tables", nargs="+", help="namespace.table")
    given = parser.parse_args(arguments)
    how = How(Options(content=given.content), dict(given.storage))
    if given.checkpoints is not None and not given.checkpoints.is_dir():
        parser.error(f"{given.checkpoints} is no folder: make it first")
    spark = spark_session(
        "icetower-audits",
        catalog_uri=given.uri,
        token=os.environ.get(TOKEN_VARIABLE),
        credential=os.environ.get(CREDENTIAL_VARIABLE),
    )
    wrong = failed = False
    try:
        files = {f"{CATALOG}.{table}": _file(given.checkpoints, table) for table in given.tables}
        kept = {
            table: file.read_text() if file is not None and file.exists() else None for table, file in files.items()
        }
        for row in audit_tables(heads(spark, kept), how).toLocalIterator():
            found = row.asDict(recursive=True)
            wrong |= any(violation["verdict"] == "definite" for violation in found["violations"])
            failed |= found["error"] is not None
            checkpoint, file = found.pop("checkpoint"), files[found["table"]]
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()  # before the checkpoint: what was found is told twice rather than never
            if checkpoint is not None and file is not None:
                Checkpoint.of_text(checkpoint, name=str(file)).keep(file)
    except IcetowerError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        spark.stop()
    return 3 if wrong else int(failed)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("write KEY=VALUE; what was given is not shown, since it may be a secret")
    try:
        return key, from_environment(value)
    except UsageError as error:
        raise argparse.ArgumentTypeError(error.message) from error


def _file(folder: Path | None, table: str) -> Path | None:
    """The checkpoint of a table, as `icetower audit --checkpoint` keeps it."""
    return None if folder is None else folder / f"{table}.json"


if __name__ == "__main__":
    sys.exit(main())
