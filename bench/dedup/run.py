"""What a run of `icetower dedup` costs, by how much the table has already and how much has landed since.

    run.py                        2,000 new rows on 100,000 and on 1,000,000 rows of history, formats 3 and 2
    run.py --history 1e5 1e6 1e7  other histories
    run.py --json                 the figures as JSON

The history was validated before. Its keys are within the window, or older. New rows land with 10 commits; of one run
none is a copy, of another 1 % are. A run is timed in a session that is up, after one that warmed it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

from icetower.pipelines.dedup import Target, Validation, validate
from icetower.pipelines.session import spark_session

NEW, COMMITS, FILES = 2_000, 10, 50
ROUNDS = 3
WINDOW_S = 60
"""Longer than the rounds take, and shorter than the history is old by then."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The median of the seconds that runs took. `nothing_s`: with nothing new."""

    version: int
    history: int
    keys: str
    window: str
    nothing_s: float
    new_s: float
    copies_s: float


class Bench:
    def __init__(self, spark: SparkSession, version: int, history: int, keys: str) -> None:
        self.spark, self.version, self.history, self.keys = spark, version, history, keys
        self.table = f"tower.b.t_{version}_{history}_{keys}"
        self.landed = 0
        spark.sql(
            f"CREATE TABLE {self.table} (id BIGINT, amount INT, _idempotency_key STRING) USING iceberg "
            f"TBLPROPERTIES ('format-version' = '{version}')"
        )
        self.target = Target(self.table, f"tower.b.system_{version}_{history}_{keys}")
        self.land(history, FILES)
        while validate(spark, self.target).status != "idle":
            pass

    def _key(self) -> Column:
        """Keys in no order, as UUID version 4, or in that of time, as version 7."""
        return f.md5(f.col("id").cast("string")) if self.keys == "random" else f.format_string("%020d", f.col("id"))

    def land(self, rows: int, files: int = 1) -> None:
        found = self.spark.range(self.landed, self.landed + rows, 1, files).select("id", f.lit(1).alias("amount"))
        found.withColumn("_idempotency_key", self._key()).writeTo(self.table).append()
        self.landed += rows

    def land_new(self, copies: int) -> None:
        for _ in range(COMMITS):
            self.land(NEW // COMMITS)
        if copies:
            again = self.spark.range(self.landed - copies, self.landed, 1, 1).select("id", f.lit(1).alias("amount"))
            again.withColumn("_idempotency_key", self._key()).writeTo(self.table).append()

    def cost(self, window: str) -> Cost:
        target = self.target
        if window == "older":
            target = replace(target, window_s=WINDOW_S)
            time.sleep(WINDOW_S + 1)
        timed = [self._round(target) for _ in range(ROUNDS)]
        nothing, new, copies = (statistics.median(each) for each in zip(*timed, strict=True))
        return Cost(self.version, self.history, self.keys, window, nothing, new, copies)

    def _round(self, target: Target) -> tuple[float, float, float]:
        def run() -> Validation:
            return validate(self.spark, target)

        self.land_new(0)
        new_s, done = _timed(run)
        assert (done.read, done.removed) == (NEW, 0)
        nothing_s, _ = _timed(run)
        self.land_new(NEW // 100)
        copies_s, done = _timed(run)
        assert done.removed == NEW // 100, done
        return nothing_s, new_s, copies_s


def _timed(work: Callable[[], Validation]) -> tuple[float, Validation]:
    began = time.perf_counter()
    done = work()
    return round(time.perf_counter() - began, 2), done


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", type=float, nargs="+", default=[1e5, 1e6])
    parser.add_argument("--versions", type=int, nargs="+", default=[3, 2])
    parser.add_argument("--keys", nargs="+", default=["random", "ordered"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        spark = spark_session("icetower-bench", catalog={"type": "hadoop", "warehouse": folder})
        costs: list[Cost] = []
        for version in options.versions:
            for keys in options.keys:
                for history in options.history:
                    bench = Bench(spark, version, int(history), keys)
                    costs += [bench.cost(window) for window in ("within", "older")]
        spark.stop()
    if options.json:
        print(json.dumps([asdict(cost) for cost in costs]))
        return
    print("| format | keys | history | its keys are | nothing new | 2,000 new rows | of which 1 % are copies |")
    print("| --: | --- | --: | --- | --: | --: | --: |")
    for each in costs:
        where = "older than the window" if each.window == "older" else "within the window"
        print(
            f"| {each.version} | {each.keys} | {each.history:,} | {where} | {each.nothing_s:.2f} s | "
            f"{each.new_s:.2f} s | {each.copies_s:.2f} s |"
        )


if __name__ == "__main__":
    main()
