"""One writer with PyIceberg, Polars, Daft or DuckDB, as their documentation has it; run by `run.py`.

    python_driver.py CLIENT OPERATION URI TOKEN TABLE REGION ROUNDS

It prints `ready` when it has loaded the table, waits for a line, writes, and prints `landed` or `failed: WHY`.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("price", pa.int64())])


def rows(region: int, ids: list[int], price: int) -> pa.Table:
    return pa.table(
        {"id": [region * 1000 + i for i in ids], "region": [f"r{region}"] * len(ids), "price": [price] * len(ids)},
        schema=SCHEMA,
    )


def duckdb(uri: str, token: str, name: str) -> Callable[[], Callable[[Any], None]]:
    import duckdb as module  # pyright: ignore[reportMissingImports]

    connection = module.connect(config={"allow_unsigned_extensions": "true"})
    for extension in ("avro", "httpfs", "iceberg"):
        files = importlib.metadata.distribution(f"duckdb-ext-{extension}").files or ()
        (path,) = [str(file.locate()) for file in files if str(file).endswith(".duckdb_extension")]
        connection.execute(f"LOAD '{path}'")
    access = f"TOKEN '{token}'" if token else "AUTHORIZATION_TYPE 'none'"
    connection.execute(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{uri}', {access})")

    def load() -> Callable[[Any], None]:
        connection.execute("BEGIN")
        connection.execute(f"SELECT count(*) FROM lake.{name}").fetchall()

        def write(table: pa.Table) -> None:
            try:
                connection.register("new_rows", table)
                connection.execute(f"INSERT INTO lake.{name} SELECT * FROM new_rows")
                connection.execute("COMMIT")
            except Exception:
                with suppress(module.Error):  # a commit that failed has ended the transaction
                    connection.execute("ROLLBACK")
                raise

        return write

    return load


def main() -> None:
    client, operation, uri, token, name = sys.argv[1:6]
    region, rounds = int(sys.argv[6]), int(sys.argv[7])
    if client == "duckdb":
        load = duckdb(uri, token, name)

        def begin(number: int, new: pa.Table) -> Callable[[], Any]:
            del number
            insert = load()
            return lambda: insert(new)
    else:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("lake", type="rest", uri=uri, **({"token": token} if token else {}))

        def begin(number: int, new: pa.Table) -> Callable[[], Any]:
            return pick(client, operation, catalog.load_table(name), region, number, new)

    for number in range(rounds):
        work = begin(number, rows(region, [100 + number], number))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever the client raises is how it failed
            said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            sys.stdout.write(f"failed: {said}\n")
        else:
            sys.stdout.write("landed\n")
        sys.stdout.flush()


def pick(client: str, operation: str, table: Any, region: int, number: int, new: pa.Table) -> Callable[[], Any]:
    """The call that a user of the client makes."""
    from pyiceberg.expressions import And, EqualTo

    equal: Any = EqualTo  # it takes no arguments by its types
    mine = equal("region", f"r{region}")
    if client == "polars":
        import polars  # pyright: ignore[reportMissingImports]

        return lambda: polars.from_arrow(new).write_iceberg(table, mode="append")
    if client == "daft":
        import daft  # pyright: ignore[reportMissingImports]

        return lambda: daft.from_arrow(new).write_iceberg(table, mode="append")
    calls: dict[str, Callable[[], Any]] = {
        "append": lambda: table.append(new),
        "overwrite": lambda: table.overwrite(rows(region, list(range(5)), number + 1), overwrite_filter=mine),
        "delete": lambda: table.delete(And(mine, equal("id", region * 1000 + 10 + number))),
        "upsert": lambda: table.upsert(rows(region, [0, 1, 50 + number], number + 1), join_cols=["id"]),
    }
    return calls[operation]


if __name__ == "__main__":
    main()
