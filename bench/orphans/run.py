"""Orphans among many files: Icetower's scan beside a dry run of Iceberg's `remove_orphan_files`, in turns.

    run.py                 a million files, three rounds
    run.py --count 100000  fewer
    run.py --json          the figures as JSON

The files lie on local disk, in folders of fifty principals, and are empty: neither of the two opens them. Of each
thousand one is an orphan, and one is of a writer that is at work. Each orphan must be found and attributed to its
principal, and no file that the table refers to, or that is young, may be listed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from icetower.iceberg.manifest_writing import write_manifest_list
from icetower.iceberg.manifests import ADDED, DATA, DataFile, Entry, read_manifest_list, write_manifest
from icetower.iceberg.records import ManifestFile
from icetower.pipelines.orphans import find_orphans
from icetower.pipelines.session import spark_session
from icetower.pipelines.tables import load_metadata

PRINCIPALS = 50
PARTITIONS = 20
OF_A_MANIFEST = 20_000
ONE_IN = 1_000
DAY_S = 86_400
OLDER_S = 3 * DAY_S
TABLE = "tower.shop.events"


@dataclass
class Figures:
    """What was measured. Times in seconds, one for each round.

    Attributes:
        ours: of the scan, with the attribution of each orphan.
        iceberg: of the procedure's dry run.
        ratio: of the two, in each round.
        missed: orphans that were not found.
        misattributed: those that were found under another principal.
        wrong: files that are no orphans, and were listed.
    """

    files: int = 0
    orphans: int = 0
    ours: list[float] = field(default_factory=list[float])
    iceberg: list[float] = field(default_factory=list[float])
    ratio: list[float] = field(default_factory=list[float])
    missed: int = 0
    misattributed: int = 0
    wrong: int = 0


@dataclass(frozen=True)
class Made:
    """The files of a table. `orphans`: path → principal."""

    live: int
    orphans: dict[str, str]


def make_table(spark: SparkSession, count: int) -> Made:
    """A table that refers to `count` files, and beside them the orphans and the files of writers at work."""
    spark.sql(f"CREATE TABLE {TABLE} (id BIGINT) USING iceberg TBLPROPERTIES ('format-version' = '2')")
    spark.sql(f"INSERT INTO {TABLE} VALUES (1)")
    metadata = load_metadata(spark, TABLE)
    location = Path(str(metadata["location"]).removeprefix("file:"))
    now_s = time.time()
    orphans: dict[str, str] = {}
    paths: list[str] = []
    for number, (path, principal) in enumerate(_paths(location / "data", count)):
        _make(path, now_s - 10 * DAY_S)
        paths.append(path)
        if number % ONE_IN == 0:
            orphan = path.replace("part-", "orphan-")
            _make(orphan, now_s - 10 * DAY_S)
            orphans[orphan] = principal
            _make(path.replace("part-", "young-"), now_s)
    _commit(metadata, location, paths)
    return Made(len(paths), orphans)


def _paths(data: Path, count: int) -> Iterator[tuple[str, str]]:
    folders = [
        (data / f"agent{principal}" / f"day={day}", f"agent{principal}")
        for principal in range(PRINCIPALS)
        for day in range(PARTITIONS)
    ]
    for folder, _ in folders:
        folder.mkdir(parents=True)
    for number in range(count):
        folder, principal = folders[number % len(folders)]
        yield f"{folder}/part-{number:08d}-5f1c2e4a.parquet", principal


def _make(path: str, modified_s: float) -> None:
    os.mknod(path)
    os.utime(path, (modified_s, modified_s))


def _commit(metadata: Any, location: Path, paths: Sequence[str]) -> None:
    """A snapshot that has these files, past the catalog: a writer would take longer than all the rest."""
    head = metadata["snapshots"][-1]
    number, snapshot_id = head["sequence-number"] + 1, 4711
    schema = metadata["schemas"][0]
    rows = [*read_manifest_list(Path(head["manifest-list"].removeprefix("file:")).read_bytes())]
    for at in range(0, len(paths), OF_A_MANIFEST):
        some = paths[at : at + OF_A_MANIFEST]
        body = write_manifest(
            [Entry(ADDED, snapshot_id, None, None, _file(path)) for path in some],
            spec_fields=(), spec_id=0, schema=schema, format_version=2, content=0, snapshot_id=snapshot_id,
        )  # fmt: skip
        file = location / "metadata" / f"made-{at}.avro"
        file.write_bytes(body)
        rows.append(
            ManifestFile(
                path=f"file:{file}", length_bytes=len(body), spec_id=0, content=0, sequence_number=number,
                min_sequence_number=number, added_snapshot_id=snapshot_id, added_files=len(some), existing_files=0,
                deleted_files=0, added_rows=len(some), existing_rows=0, deleted_rows=0, partitions=(),
                key_metadata=None, first_row_id=None,
            )
        )  # fmt: skip
    listing = location / "metadata" / "made-list.avro"
    listing.write_bytes(
        write_manifest_list(
            rows, format_version=2, snapshot_id=snapshot_id, parent_id=head["snapshot-id"], sequence_number=number,
            first_row_id=None,
        )
    )  # fmt: skip
    made = {
        "sequence-number": number,
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": head["snapshot-id"],
        "timestamp-ms": head["timestamp-ms"] + 1,
        "summary": {"operation": "append"},
        "manifest-list": f"file:{listing}",
        "schema-id": 0,
    }
    entry = {"timestamp-ms": made["timestamp-ms"], "snapshot-id": snapshot_id}
    after = {
        **metadata,
        "snapshots": [*metadata["snapshots"], made],
        "current-snapshot-id": snapshot_id,
        "last-sequence-number": number,
        "last-updated-ms": made["timestamp-ms"],
        "refs": {"main": {"type": "branch", "snapshot-id": snapshot_id}},
        "snapshot-log": [*metadata["snapshot-log"], entry],
    }
    hint = location / "metadata" / "version-hint.text"
    version = int(hint.read_text()) + 1
    (location / "metadata" / f"v{version}.metadata.json").write_text(json.dumps(after))
    hint.write_text(str(version))
    for each in (location / "metadata").glob(".*.crc"):
        each.unlink()


def _file(path: str) -> DataFile:
    named = f"file:{path}"
    record = {"file_path": named, "file_format": "PARQUET", "record_count": 1, "file_size_in_bytes": 1}
    return DataFile(DATA, named, "PARQUET", (), 1, 1, None, None, record)


def measure(spark: SparkSession, made: Made, rounds: int) -> Figures:
    """The two in turns; the first round of each is not counted: it starts Spark's executors and compiles."""
    figures = Figures(files=made.live, orphans=len(made.orphans))
    for number in range(rounds + 1):
        begun_s = time.monotonic()
        found = find_orphans(spark, TABLE, older_than_s=OLDER_S).select("path", "principal").collect()
        ours_s = time.monotonic() - begun_s
        begun_s = time.monotonic()
        before = spark.sql(f"SELECT current_timestamp() - INTERVAL {OLDER_S} SECONDS").collect()[0][0]
        theirs = spark.sql(
            f"CALL tower.system.remove_orphan_files(table => 'shop.events', dry_run => true, "
            f"older_than => timestamp'{before}')"
        ).collect()
        theirs_s = time.monotonic() - begun_s
        assert len(theirs) == len(made.orphans), f"Iceberg's procedure finds {len(theirs)}"
        if number:
            figures.ours.append(round(ours_s, 2))
            figures.iceberg.append(round(theirs_s, 2))
            figures.ratio.append(round(ours_s / theirs_s, 3))
        paths = {str(row.path).removeprefix("file:").replace("///", "/"): row.principal for row in found}
        figures.missed += len(made.orphans.keys() - paths.keys())
        figures.wrong += len(paths.keys() - made.orphans.keys())
        figures.misattributed += sum(paths[path] != who for path, who in made.orphans.items() if path in paths)
    return figures


def run(folder: Path, count: int, rounds: int) -> Figures:
    """One run, in a folder of its own."""
    spark = spark_session(
        "icetower-bench-orphans",
        catalog={"type": "hadoop", "warehouse": str(folder / "warehouse")},
        settings={"spark.driver.memory": "4g", "spark.sql.warehouse.dir": str(folder / "spark")},
    )
    spark.sql("CREATE NAMESPACE IF NOT EXISTS tower.shop")
    return measure(spark, make_table(spark, count), rounds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="icetower-orphans-") as folder:
        figures = run(Path(folder), options.count, options.rounds)
    if options.json:
        print(json.dumps(asdict(figures)))
    else:
        for name, value in asdict(figures).items():
            print(f"{name:>14}  {value:,}" if isinstance(value, int) else f"{name:>14}  {value}")
        print(f"{'median ratio':>14}  {statistics.median(figures.ratio)}")
    return 1 if figures.missed or figures.wrong or figures.misattributed else 0


if __name__ == "__main__":
    sys.exit(main())
