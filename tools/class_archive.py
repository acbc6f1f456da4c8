"""Archive the classes that Spark loads, for the JVMs that tests start.

A JVM that maps such an archive (class data sharing, since Java 13) neither reads nor verifies these classes: a session
of Spark starts with 4 s of CPU less. An archive fits one class path and one Java; a JVM that it does not fit starts
without it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
READY = ROOT / ".venv" / "ready"
ARCHIVE = ROOT / ".cache" / "spark.jsa"

TIERS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
"""Java compiles in its first stage only: a test's JVM is too short-lived for the second, which takes 40 % of its time.
With one stage it reserves 48 MB for what it compiled; the JVM of a whole run fills that, and is interpreted from then
on, several times slower."""
WRITTEN_WITHIN_S = 120.0


def options() -> str:
    """The options of a test's JVM."""
    # Without a log: what Java has to say of an archive would stand in the output of the command that a test runs.
    return f"{TIERS} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else TIERS


def main() -> int:
    if ARCHIVE.exists() and ARCHIVE.stat().st_mtime > READY.stat().st_mtime:
        return 0
    print("archiving the classes of Spark", flush=True)
    ARCHIVE.parent.mkdir(exist_ok=True)
    new = ARCHIVE.with_suffix(".new")
    new.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{TIERS} -XX:ArchiveClassesAtExit={new} -Xlog:disable"
    with tempfile.TemporaryDirectory() as folder:
        _use_spark(Path(folder))
    if not new.exists():
        print("Java has written no archive; the tests start Spark without one", file=sys.stderr)
        return 0
    new.replace(ARCHIVE)
    return 0


def _use_spark(folder: Path) -> None:
    """Start Spark, have it load what jobs use, and end its JVM in order."""
    from py4j.protocol import Py4JError

    from icetower.pipelines.session import spark_session

    spark = spark_session(
        "archive",
        catalog={"type": "hadoop", "warehouse": str(folder / "warehouse")},
        settings={"spark.sql.warehouse.dir": str(folder / "spark")},
        master="local[2]",
    )
    spark.sql("CREATE TABLE tower.a.t (id BIGINT, at TIMESTAMP, amount DECIMAL(9,2)) USING iceberg")
    rows = [(n, None, None) for n in range(3)]
    spark.createDataFrame(rows, "id BIGINT, at TIMESTAMP, amount DECIMAL(9,2)").writeTo("tower.a.t").append()
    spark.sql(
        "MERGE INTO tower.a.t t USING (SELECT id + 1 AS id FROM tower.a.t) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET t.amount = 1 WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
    )
    spark.table("tower.a.t").groupBy("amount").count().collect()
    gateway: Any = spark.sparkContext._gateway  # pyright: ignore[reportPrivateUsage]
    spark.stop()
    with suppress(Py4JError, OSError):  # the JVM that ends does not answer
        gateway.jvm.java.lang.System.exit(0)
    gateway.proc.wait(WRITTEN_WITHIN_S)


if __name__ == "__main__":
    sys.exit(main())
