"""DuckDB as a driver of a session; run by `run.py` in an environment without this project.

    duckdb_driver.py URI

An act is ``{"attach": NAME, "token": TOKEN}`` or ``{"sql": STATEMENT}``.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys

import duckdb


def main() -> None:
    settings: dict[str, str | bool | int | float | list[str]] = {"allow_unsigned_extensions": "true", "threads": "1"}
    connection = duckdb.connect(config=settings)
    for extension in ("avro", "httpfs", "iceberg"):
        files = importlib.metadata.distribution(f"duckdb-ext-{extension}").files or ()
        (path,) = [str(file.locate()) for file in files if str(file).endswith(".duckdb_extension")]
        connection.execute(f"LOAD '{path}'")
    for line in sys.stdin:
        act = json.loads(line)
        try:
            if "attach" in act:
                access = f"TYPE iceberg, ENDPOINT '{sys.argv[1]}', TOKEN '{act['token']}'"
                connection.execute(f"ATTACH '' AS {act['attach']} ({access})")
            else:
                connection.execute(act["sql"]).fetchall()
        except Exception as error:  # noqa: BLE001 - whatever the client raises is how it failed
            said = "failed: " + " ".join(f"{type(error).__name__}: {error}".split())[:500]
        else:
            said = "done"
        sys.stdout.write(said + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
