"""Do UPDATE, DELETE and MERGE of Spark work when the catalog plans their scans? With Iceberg's Java reference server.

Every statement runs twice, on two tables of the same rows: through a catalog that plans on the client, and through one
that has the server plan (`scan-planning-mode`). After each statement both tables must have the same rows and, in format
version 3, the same row ids and last-updated sequence numbers. What was planned is noted: its filter, and whether its
snapshot is the one that the statement's commit was written on. docs/scan-planning.md has what was found.

    run.py            all: copy-on-write and merge-on-read, format versions 2 and 3; about five minutes
    run.py --json     one line of JSON for each statement
    run.py --versions 3

Exit status 1: the rows differ, or a statement fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.commits import servers
from icetower.pipelines.session import spark_session
from tools import java
from verify.kit.light_spark import LIGHT
from verify.rck.run import jars
from verify.scan_planning.proxy import Noted, proxy

CLIENT, SERVER = "client", "server"
STATEMENTS: Mapping[str, str] = {
    "UPDATE by a column": "UPDATE {t} SET v = 'updated' WHERE id = 3",
    "UPDATE of the same file": "UPDATE {t} SET v = 'again' WHERE id = 4",
    "DELETE by a column": "DELETE FROM {t} WHERE id = 5",
    "UPDATE with a subquery": "UPDATE {t} SET v = 'sub' WHERE id IN (SELECT id FROM {t} WHERE v = 'again')",
    "MERGE": "MERGE INTO {t} t "
    "USING (SELECT * FROM VALUES (2L, 'merged'), (50L, 'new') AS given(id, v)) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT (id, p, v) VALUES (s.id, 0, s.v)",
    "DELETE of a partition": "DELETE FROM {t} WHERE p = 1",
}
LINEAGE = "id, p, v, _row_id, _last_updated_sequence_number"


@dataclass(frozen=True, slots=True)
class Found:
    """One statement.

    Attributes:
        plans: how many plans the server made for it.
        filters: of these, as Iceberg's JSON.
        on_base: whether every plan names the snapshot that the commit was written on.
        rows, lineage: whether both tables are the same afterwards. `lineage` is None in format version 2.
        error: what it failed with.
    """

    version: int
    mode: str
    statement: str
    plans: int = 0
    filters: tuple[str, ...] = ()
    on_base: bool | None = None
    rows: bool | None = None
    lineage: bool | None = None
    error: str = ""


def run(session: SparkSession, noted: Noted, versions: Sequence[int] = (2, 3)) -> Iterator[Found]:
    """All statements, in each mode and format version."""
    session.sql(f"CREATE NAMESPACE IF NOT EXISTS {CLIENT}.ns")
    for version in versions:
        for mode in ("copy-on-write", "merge-on-read"):
            name = f"v{version}_{mode[:1]}"
            modes = ", ".join(f"'write.{what}.mode'='{mode}'" for what in ("update", "delete", "merge"))
            tables = {side: f"{side}.ns.{name}_{side}" for side in (CLIENT, SERVER)}
            for table in tables.values():
                session.sql(
                    f"CREATE TABLE {table} (id BIGINT, p INT, v STRING) USING iceberg PARTITIONED BY (p) "
                    f"TBLPROPERTIES ('format-version'='{version}', {modes})"
                )
                session.sql(f"INSERT INTO {table} SELECT id, CAST(id % 2 AS INT), 'old' FROM range(0, 12, 1, 1)")
            for statement, text in STATEMENTS.items():
                yield _one(session, noted, tables, Found(version, mode, statement), text)


def _one(session: SparkSession, noted: Noted, tables: Mapping[str, str], about: Found, text: str) -> Found:
    noted.take()
    session.sql(text.replace("{t}", tables[CLIENT]))
    noted.take()
    try:
        session.sql(text.replace("{t}", tables[SERVER]))
    except Exception as error:  # noqa: BLE001 - whatever a statement fails with is what was asked
        return _with(about, error=str(error).partition("\n")[0][:300])
    seen = noted.take()
    plans = [body for what, _, body, status in seen if what == "plan" and status == 200]
    bases = [base for what, _, body, status in seen if what == "commit" and status == 200 for base in _bases(body)]
    columns = LINEAGE if about.version == 3 else "id, p, v"
    both = [_rows(session, table, columns) for table in tables.values()]
    return _with(
        about,
        plans=len(plans),
        filters=tuple(dict.fromkeys(json.dumps(plan.get("filter")) for plan in plans)),
        on_base=all(plan.get("snapshot-id") in bases for plan in plans) if plans and bases else None,
        rows=[row[:3] for row in both[0]] == [row[:3] for row in both[1]],
        lineage=both[0] == both[1] if about.version == 3 else None,
    )


def _bases(commit: Mapping[str, Any]) -> Iterator[int | None]:
    for update in commit.get("updates", ()):
        if update["action"] == "add-snapshot":
            yield update["snapshot"].get("parent-snapshot-id")


def _rows(session: SparkSession, table: str, columns: str) -> list[tuple[Any, ...]]:
    """Read by the catalog that plans on the client."""
    name = f"{CLIENT}.{table.partition('.')[2]}"
    session.sql(f"REFRESH TABLE {name}")
    return [tuple(row) for row in session.sql(f"SELECT {columns} FROM {name} ORDER BY id").collect()]


def _with(about: Found, **known: Any) -> Found:
    return Found(**{**asdict(about), **known})


def _line(found: Found) -> str:
    said = {True: "same", False: "DIFFERENT", None: "–"}
    outcome = found.error or (
        f"rows {said[found.rows]}, lineage {said[found.lineage]}, {found.plans} plans on the commit's base: "
        f"{found.on_base}, filters {list(found.filters)}"
    )
    return f"v{found.version} {found.mode:<14} {found.statement:<24} {outcome}"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON for each statement")
    parser.add_argument("--versions", type=int, nargs="+", default=[2, 3], help="of the table format")
    parser.add_argument("--library", type=Path, help="the jars of the REST Compatibility Kit; fetched without it")
    asked = parser.parse_args(given)
    program, good = java.find(), True
    with (
        tempfile.TemporaryDirectory(prefix="icetower-planning-") as folder,
        servers.reference(Path(folder), program, asked.library or jars(program)) as server,
        proxy(server.uri) as (uri, noted),
    ):
        session = _session(uri)
        try:
            for found in run(session, noted, asked.versions):
                print(json.dumps(asdict(found)) if asked.json else _line(found), flush=True)
                good = good and found.rows is True and not found.error
        finally:
            session.stop()
    return 0 if good else 1


def _session(uri: str) -> SparkSession:
    catalogs = {
        f"spark.sql.catalog.{SERVER}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{SERVER}.type": "rest",
        f"spark.sql.catalog.{SERVER}.uri": uri,
        f"spark.sql.catalog.{SERVER}.cache-enabled": "false",
        f"spark.sql.catalog.{SERVER}.scan-planning-mode": "server",
    }
    return spark_session(
        "scan-planning",
        catalog_uri=uri,
        catalog_name=CLIENT,
        catalog={"cache-enabled": "false"},
        settings={"spark.master": "local[2]", **LIGHT, **catalogs},
    )


if __name__ == "__main__":
    sys.exit(main())
