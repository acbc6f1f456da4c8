"""Spark and DuckDB, in SQL: tables, commits, collisions in a forced order, contracts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import Table

from verify.exchanges.stage import NO_RETRY, SCHEMA, Stage, rows

RETRY_SOON = {"commit.retry.num-retries": "2", "commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "2"}


def all_do(stage: Stage, catalog: str, steps: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Statements, by steps. One that begins with a minus has to fail. NS is the namespace in `catalog`."""
    for name, statements in steps:
        stage.step(name)
        for statement in statements:
            sql = filled(statement.removeprefix("-"), stage, catalog)
            (stage.driver.fails if statement.startswith("-") else stage.driver.does)(sql=sql)


def filled(statement: str, stage: Stage, catalog: str) -> str:
    return re.sub(r"\bNS\b", f"{catalog}.{stage.ns}", statement)


def attached(stage: Stage) -> None:
    stage.step("attach")
    stage.driver.does(attach="lake", token=stage.tower.secret)


def spark_tables(stage: Stage) -> None:
    attached(stage)
    all_do(
        stage,
        "lake",
        (
            ("namespaces", ("CREATE NAMESPACE NS.inner", "-CREATE NAMESPACE NS.inner", "SHOW NAMESPACES IN NS")),
            (
                "their properties",
                ("ALTER NAMESPACE NS.inner SET PROPERTIES ('a' = '1')", "DESCRIBE NAMESPACE NS.inner"),
            ),
            ("and their end", ("DROP NAMESPACE NS.inner", "-DROP NAMESPACE NS.inner")),
            (
                "create",
                (
                    "CREATE TABLE NS.t (id BIGINT, region STRING) USING iceberg PARTITIONED BY (region)",
                    "-CREATE TABLE NS.t (id BIGINT) USING iceberg",
                    "-CREATE TABLE NS.bad (id BIGINT) USING iceberg TBLPROPERTIES ('icetower.misspelt' = '1')",
                    "SHOW TABLES IN NS",
                    "DESCRIBE TABLE NS.t",
                    "-SELECT * FROM NS.missing",
                ),
            ),
            ("create from rows", ("CREATE TABLE NS.made USING iceberg AS SELECT 1L AS id, 'north' AS region",)),
            ("replace", ("CREATE OR REPLACE TABLE NS.made USING iceberg AS SELECT 2L AS id, 'south' AS region",)),
            (
                "alter",
                (
                    "ALTER TABLE NS.t ADD COLUMN note STRING",
                    "ALTER TABLE NS.t SET TBLPROPERTIES ('a' = '1')",
                    "ALTER TABLE NS.t UNSET TBLPROPERTIES ('a')",
                    "-ALTER TABLE NS.t SET TBLPROPERTIES ('icetower.misspelt' = '1')",
                    "ALTER TABLE NS.t ADD PARTITION FIELD bucket(4, id)",
                    "ALTER TABLE NS.t WRITE ORDERED BY id",
                ),
            ),
            (
                "rename",
                (
                    f"ALTER TABLE NS.t RENAME TO {stage.ns}.moved",
                    f"-ALTER TABLE NS.moved RENAME TO {stage.ns}.made",
                ),
            ),
            ("drop", ("DROP TABLE NS.moved", "-DROP TABLE NS.moved", "DROP TABLE NS.made PURGE")),
        ),
    )


def spark_commits(stage: Stage) -> None:
    stage.table()
    new = "SELECT 3L AS id, 'north' AS region UNION ALL SELECT 4L, 'south'"
    merge = f"MERGE INTO NS.t t USING ({new}) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * "
    merge += "WHEN NOT MATCHED THEN INSERT *"
    all_do(
        stage,
        "lake",
        (
            ("insert", ("INSERT INTO NS.t VALUES (1, 'north'), (2, 'south')", "INSERT INTO NS.t VALUES (3, 'north')")),
            ("overwrite", ("INSERT OVERWRITE NS.t PARTITION (region = 'south') VALUES (5)",)),
            ("delete", ("DELETE FROM NS.t WHERE region = 'south'", "DELETE FROM NS.t WHERE id = 1")),
            ("update and merge", ("UPDATE NS.t SET id = 7 WHERE id = 3", merge)),
            ("branches", ("ALTER TABLE NS.t CREATE BRANCH audit", "INSERT INTO NS.t.branch_audit VALUES (8, 'north')")),
            ("metadata", ("SELECT count(*) FROM NS.t.snapshots", "SELECT count(*) FROM NS.t.files")),
        ),
    )


def spark_collisions(stage: Stage) -> None:
    table = stage.table(properties=RETRY_SOON)
    held(stage, table, "an insert, with nothing declared", "INSERT INTO NS.t VALUES (1, 'north')", "lake")
    held(stage, table, "a delete", "DELETE FROM NS.t WHERE id = 1", "lake")
    table.refresh().append(rows(5))
    stage.step("a delete of what another has deleted")
    stage.recorder.before_commit("t", lambda: table.refresh().delete("region == 'north'"))
    stage.driver.act(sql=f"DELETE FROM lake.{stage.ns}.t WHERE id = 5")
    with table.refresh().transaction() as change:
        change.set_properties({"icetower.blind-appends": "true", "write.delete.isolation-level": "snapshot"})
    held(stage, table, "an insert, blind", "INSERT INTO NS.t VALUES (2, 'north')", "lake")
    held(stage, table, "a delete under snapshot isolation", "DELETE FROM NS.t WHERE id = 2", "lake")


def held(stage: Stage, table: Table, name: str, statement: str, catalog: str) -> None:
    """A statement whose commit waits until another has landed, in another partition."""
    stage.step(name)
    stage.recorder.before_commit("t", lambda: table.refresh().append(rows(9, region="south")))
    stage.driver.act(sql=filled(statement, stage, catalog))


def spark_contracts(stage: Stage) -> None:
    stage.table()
    stage.table("other")
    contract = "tables: [{table: NS.t, operations: [append], partitions: [{region: north}]}]\n"
    stage.driver.does(attach="bound", token=stage.agent(contract))
    all_do(
        stage,
        "bound",
        (
            ("inside", ("INSERT INTO NS.t VALUES (1, 'north')",)),
            ("another partition", ("-INSERT INTO NS.t VALUES (1, 'south')",)),
            ("another operation", ("-DELETE FROM NS.t WHERE id = 1", "-ALTER TABLE NS.t ADD COLUMN x STRING")),
            ("what it does not name", ("-SELECT * FROM NS.other", "-DROP TABLE NS.t", "-CREATE TABLE NS.new (id INT)")),
        ),
    )


def flat(stage: Stage, name: str = "t") -> Table:
    """A table without partitions, to which DuckDB writes."""
    spec = UNPARTITIONED_PARTITION_SPEC
    made = stage.aside().create_table(stage.name(name), SCHEMA, partition_spec=spec, properties=NO_RETRY)
    made.append(rows(0))
    return made


def duckdb_tables(stage: Stage) -> None:
    attached(stage)
    all_do(
        stage,
        "lake",
        (
            ("schemas", (f"CREATE SCHEMA lake.{stage.ns}_inner", f"DROP SCHEMA lake.{stage.ns}_inner")),
            ("create", ("CREATE TABLE NS.t (id BIGINT, region VARCHAR)", "-CREATE TABLE NS.t (id BIGINT)")),
            # It stages the table, and cannot make the folder for its rows on a local disk.
            ("create from rows", ("-CREATE TABLE NS.made AS SELECT 1 AS id, 'north' AS region",)),
            ("look", ("SELECT * FROM NS.t", "-SELECT * FROM NS.missing", "SHOW ALL TABLES")),
            ("drop", ("DROP TABLE NS.t", "-DROP TABLE NS.t")),
        ),
    )


def duckdb_commits(stage: Stage) -> None:
    flat(stage)
    flat(stage, "other")
    all_do(
        stage,
        "lake",
        (
            # It states its files' sequence number in its manifests, which is refused: docs/clients.md.
            ("insert", ("-INSERT INTO NS.t VALUES (1, 'north'), (2, 'south')",)),
            ("update and delete", ("UPDATE NS.t SET region = 'west' WHERE id = 1", "DELETE FROM NS.t WHERE id = 2")),
            (
                "two tables",
                ("BEGIN", "INSERT INTO NS.t VALUES (3, 'x')", "INSERT INTO NS.other VALUES (3, 'x')", "-COMMIT"),
            ),
            ("given up", ("BEGIN", "INSERT INTO NS.t VALUES (4, 'x')", "ROLLBACK")),
            ("read", ("SELECT count(*) FROM NS.t",)),
        ),
    )


def duckdb_collisions(stage: Stage) -> None:
    table = flat(stage)
    held(stage, table, "an insert, with nothing declared", "INSERT INTO NS.t VALUES (1, 'north')", "lake")
    held(stage, table, "a delete", "DELETE FROM NS.t WHERE id = 0", "lake")
    with table.refresh().transaction() as change:
        change.set_properties({"icetower.blind-appends": "true"})
    held(stage, table, "an insert, blind", "INSERT INTO NS.t VALUES (2, 'north')", "lake")
    stage.step("a transaction that another has overtaken")
    stage.driver.does(sql="BEGIN")
    stage.driver.does(sql=f"SELECT count(*) FROM lake.{stage.ns}.t")
    table.refresh().append(rows(7))
    stage.driver.act(sql=f"INSERT INTO lake.{stage.ns}.t VALUES (8, 'north')")
    stage.driver.act(sql="COMMIT")


def duckdb_contracts(stage: Stage) -> None:
    flat(stage)
    flat(stage, "other")
    contract = "tables: [{table: NS.t, operations: [append], partitions: all, write_location: table}]\n"
    stage.driver.does(attach="bound", token=stage.agent(contract))
    all_do(
        stage,
        "bound",
        (
            ("inside", ("-INSERT INTO NS.t VALUES (1, 'north')",)),
            ("another operation", ("-DELETE FROM NS.t WHERE id = 0",)),
            ("what it does not name", ("-SELECT * FROM NS.other", "-DROP TABLE NS.t", "-CREATE TABLE NS.new (id INT)")),
        ),
    )
    stage.step("a wrong credential")
    stage.driver.fails(attach="stranger", token="wrong")


SPARK = (spark_tables, spark_commits, spark_collisions, spark_contracts)
DUCKDB = (duckdb_tables, duckdb_commits, duckdb_collisions, duckdb_contracts)
