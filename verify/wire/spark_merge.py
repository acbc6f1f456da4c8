"""Spark's MERGE INTO from many threads on one table, while its files are compacted: through Icetower and without it.

    spark_merge.py                     both shapes, other partitions and the same, Icetower and the reference server
    spark_merge.py --rounds N --threads N --shape v3-merge-on-read --only icetower

Each thread merges into a partition of its own, round after round: every row that is there grows by one, new rows come.
`rewrite_data_files` runs in a loop beside them. In the end every row that a finished MERGE has written must be there,
once; every commit that was sent is counted by what it was answered.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from icetower.pipelines.session import catalog_settings, spark_session
from verify.kit.tower_process import TowerProcess
from verify.wire.counting import Answers, counting
from verify.wire.reference import reference_server

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LEVELS = {f"write.{what}.isolation-level": "snapshot" for what in ("merge", "update", "delete")}
SHAPES: dict[str, dict[str, str]] = {
    "v3-merge-on-read": {
        "format-version": "3",
        **{f"write.{what}.mode": "merge-on-read" for what in ("merge", "update", "delete")},
    },
    "v2-copy-on-write": {
        "format-version": "2",
        **{f"write.{what}.mode": "copy-on-write" for what in ("merge", "update", "delete")},
        "commit.manifest-merge.enabled": "true",
        "commit.manifest.min-count-to-merge": "3",
    },
}
ROWS = 20
"""In each partition before the first round."""
NEW_ROWS = 5
"""What each round adds."""
COLD = 100
"""Partitions from here on are only compacted."""
COLD_PARTITIONS = 4
COMPACTIONS_MAX = 500


@dataclass
class Result:
    """What became of one run."""

    merges: int = 0
    failed: list[str] = field(default_factory=list)
    """Why MERGEs failed, a line each."""
    compactions: int = 0
    compactions_failed: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    """What commits of the table were answered."""
    refusals: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Where the contents are not what they must be."""
    seconds: float = 0.0

    def as_text(self) -> str:
        """One line."""
        sent = ", ".join(f"{count} x {status}" for status, count in sorted(self.statuses.items()))
        return (
            f"{self.merges} MERGEs in {self.seconds:.0f} s, {len(self.failed)} failed; {self.compactions} compactions, "
            f"{len(self.compactions_failed)} failed; commits answered: {sent}; "
            f"contents {'exact' if not self.wrong else 'WRONG'}"
        )


def merge_run(
    session: SparkSession,
    table: str,
    answers: Answers,
    *,
    shape: str,
    threads: int = 8,
    rounds: int = 3,
    same_partitions: bool = False,
) -> Result:
    """One run on a new table (``catalog.namespace.name``), which is dropped before.

    Args:
        answers: of the proxy before the table's catalog.
        shape: one of `SHAPES`.
        same_partitions: whether compaction rewrites the partitions that are merged into, or others.
    """
    _create(session, table, shape, threads)
    before = Counter(answers.statuses)
    known = len(answers.refusals)
    result = Result()
    done = threading.Event()
    landed: dict[int, list[bool]] = {}
    began = time.monotonic()
    with ThreadPoolExecutor(threads + 1) as pool:
        # One partition after the other, where MERGEs are under way: all at once, no MERGE would ever be in time.
        places = [f"part = {part}" for part in range(threads)] if same_partitions else [f"part >= {COLD}"]
        compacting = pool.submit(_compact, session, table, places, done, result)
        ready = threading.Barrier(threads)
        merging = {part: pool.submit(_merge, session, table, part, rounds, ready, result) for part in range(threads)}
        try:
            landed = {part: future.result() for part, future in merging.items()}
        finally:
            done.set()
        compacting.result()
    result.seconds = time.monotonic() - began
    result.statuses = answers.statuses - before
    result.refusals = answers.refusals[known:]
    result.wrong = _contents(session, table, shape, landed)
    return result


def _create(session: SparkSession, table: str, shape: str, threads: int) -> None:
    session.sql(f"CREATE NAMESPACE IF NOT EXISTS {table.rpartition('.')[0]}")
    session.sql(f"DROP TABLE IF EXISTS {table}")
    listed = ", ".join(f"'{key}'='{text}'" for key, text in (LEVELS | SHAPES[shape]).items())
    session.sql(
        f"CREATE TABLE {table} (part INT, id BIGINT, value BIGINT) USING iceberg PARTITIONED BY (part) "
        f"TBLPROPERTIES ({listed})"
    )
    parts = [*range(threads), *range(COLD, COLD + COLD_PARTITIONS)]
    listed = ", ".join(map(str, parts))
    for half in range(2):  # two files in each partition: something to compact
        rows = f"range({half * ROWS // 2}, {(half + 1) * ROWS // 2})"
        session.sql(f"INSERT INTO {table} SELECT p, id, 0 FROM {rows}, (SELECT explode(array({listed})) AS p)")


def _merge(
    session: SparkSession, table: str, part: int, rounds: int, ready: threading.Barrier, result: Result
) -> list[bool]:
    """All rounds of one partition; which of them were done."""
    done: list[bool] = []
    ready.wait(120)
    for number in range(rounds):
        source = f"(SELECT id FROM range({ROWS + (number + 1) * NEW_ROWS}))"
        try:
            session.sql(
                f"MERGE INTO {table} t USING {source} s ON t.part = {part} AND t.id = s.id "
                f"WHEN MATCHED THEN UPDATE SET value = t.value + 1 "
                f"WHEN NOT MATCHED THEN INSERT (part, id, value) VALUES ({part}, s.id, 1)"
            ).collect()
        except Exception as error:  # noqa: BLE001 - every failure is counted, with its reason
            result.failed.append(reason(error))
            done.append(False)
        else:
            result.merges += 1
            done.append(True)
    return done


def _compact(session: SparkSession, table: str, places: Sequence[str], done: threading.Event, result: Result) -> None:
    catalog, _, short = table.partition(".")
    for where in islice(cycle(places), COMPACTIONS_MAX):
        if done.is_set():
            return
        try:
            session.sql(
                f"CALL {catalog}.system.rewrite_data_files(table => '{short}', where => '{where}', "
                "options => map('rewrite-all', 'true'))"
            ).collect()
        except Exception as error:  # noqa: BLE001 - every failure is counted, with its reason
            result.compactions_failed.append(reason(error))
        else:
            result.compactions += 1


def reason(error: Exception) -> str:
    """What Iceberg said, without what differs from run to run.

    Spark and Iceberg's procedures wrap it in errors of their own, which say only that something failed.
    """
    chain = list(_causes(error))
    text = next((said for said in reversed(chain) if said.startswith("org.apache.iceberg.exceptions.")), chain[-1])
    found = re.match(r"(?:\w+\.)*(\w+): (.*)", text)
    line = f"{found[1]}: {found[2]}" if found else text.strip().partition("\n")[0]
    return re.sub(r"[\w:/.=-]*/(?=[\w=.-]+\.(parquet|puffin|avro))|\b[0-9a-f]{8}-[0-9a-f-]{27}", "", line)[:300]


def _causes(error: Exception) -> Iterator[str]:
    """An error of Spark, and what caused it, outermost first: class and message."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)  # of py4j, of PySpark
    if java is None:
        yield str(error)
    while java is not None:
        yield java.toString()
        java = java.getCause()


def _contents(session: SparkSession, table: str, shape: str, landed: dict[int, list[bool]]) -> list[str]:
    """Every row with its value, once, from the data; how many there are, from the metadata; row ids."""
    expected = {(part, number): 0 for part in range(COLD, COLD + COLD_PARTITIONS) for number in range(ROWS)}
    for part, done in landed.items():
        rows = dict.fromkeys(range(ROWS), 0)
        for number, landed_here in enumerate(done):
            if landed_here:
                for key in range(ROWS + (number + 1) * NEW_ROWS):
                    rows[key] = rows.get(key, 0) + 1
        expected |= {(part, key): value for key, value in rows.items()}
    wrong: list[str] = []
    found = sorted(tuple(row) for row in session.sql(f"SELECT part, id, value FROM {table}").collect())
    wanted = sorted((*key, value) for key, value in expected.items())
    if found != wanted:
        lost, more = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
        wrong.append(f"rows lost: {sorted(lost.elements())[:10]}; rows too many: {sorted(more.elements())[:10]}")
    counted = session.sql(f"SELECT count(*) FROM {table}").collect()[0][0]
    if counted != len(wanted):
        wrong.append(f"count(*) says {counted}, and there are {len(wanted)}")
    if shape.startswith("v3"):
        ids = [row[0] for row in session.sql(f"SELECT _row_id FROM {table}").collect()]
        if None in ids or len(set(ids)) != len(ids):
            wrong.append(f"{len(ids) - len(set(ids))} row ids are taken twice, {ids.count(None)} are missing")
    return wrong


def add_catalog(session: SparkSession, name: str, uri: str, **properties: str) -> None:
    """One more REST catalog for a session that runs."""
    for key, text in catalog_settings(name, {"type": "rest", "uri": uri, **properties}).items():
        session.conf.set(key, text)


def wire_session(
    app: str, uri: str, token: str, warehouse: Path, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session with room for many statements at once; its catalog is `tower`."""
    return spark_session(
        app,
        catalog_uri=uri,
        token=token,
        settings={
            "spark.master": "local[4]",
            "spark.driver.memory": "3g",
            "spark.sql.warehouse.dir": str(warehouse),
            "spark.scheduler.mode": "FAIR",
            **(settings or {}),
        },
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """All runs that are asked for, one after the other; 1 if Icetower failed where it must not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--shape", choices=[*SHAPES], action="append")
    parser.add_argument("--only", choices=["icetower", "reference"])
    parser.add_argument("--partitions", choices=["other", "same"])
    parser.add_argument("--json", type=Path, help="write all figures there")
    asked = parser.parse_args(arguments)
    figures: list[dict[str, Any]] = []
    bad = False
    with tempfile.TemporaryDirectory(prefix="icetower-spark-merge-") as place:
        tower = TowerProcess(Path(place) / "tower" / "data")
        try:
            with (
                counting(tower.uri) as ours,
                reference_server(Path(place) / "reference") as peer,
                counting(peer) as theirs,
            ):
                session = wire_session("spark-merge", ours.uri, tower.secret, Path(place))
                add_catalog(session, "reference", theirs.uri)
                for shape in asked.shape or SHAPES:
                    for same in (False, True):
                        if asked.partitions and same != (asked.partitions == "same"):
                            continue
                        for side, answers in (("icetower", ours), ("reference", theirs)):
                            if asked.only and side != asked.only:
                                continue
                            catalog = "tower" if side == "icetower" else side
                            name = f"merges.{shape.replace('-', '_')}_{'same' if same else 'other'}"
                            result = merge_run(
                                session, f"{catalog}.{name}", answers, shape=shape, threads=asked.threads,
                                rounds=asked.rounds, same_partitions=same,
                            )  # fmt: skip
                            where = "the same partitions" if same else "other partitions"
                            print(f"{shape}, compaction of {where}, {side}: {result.as_text()}", flush=True)
                            _tell(result)
                            if side == "icetower":
                                print(f"    the tower: {dict(Counter(tower.outcomes(name)))}")
                                bad |= bool(result.wrong) or (not same and _disturbed(result))
                            figures.append({"shape": shape, "same": same, "side": side, **vars(result)})
                session.stop()
        finally:
            tower.stop()
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1))
    return int(bad)


def _disturbed(result: Result) -> bool:
    """Whether a client failed, or had to try again."""
    return bool(result.failed or result.compactions_failed or set(result.statuses) - {200})


def _tell(result: Result) -> None:
    for kind, lines in (("MERGE", result.failed), ("compaction", result.compactions_failed)):
        for line, count in Counter(lines).most_common(5):
            print(f"    {count} x {kind}: {line}")
    shown = Counter(_short(body) for body in result.refusals)
    for line, count in shown.most_common(8):
        print(f"    {count} x answered: {line}")
    for line in result.wrong:
        print(f"    {line}")


def _short(body: str) -> str:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return body[:300]
    return f"{error['code']} {error.get('rule', error['type'])}: {re.sub(r'[0-9]{6,}', 'N', error['message'])[:300]}"


if __name__ == "__main__":
    sys.exit(main())
