"""The source of the agents: real transactions, one Parquet file an hour, published in the order of time."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from icetower.demo.data import pc

SCHEMA = (
    "hour INT, row_id BIGINT, sold_at TIMESTAMP, household_id BIGINT, store_id BIGINT, basket_id BIGINT, "
    "product_id BIGINT, quantity BIGINT, sales_value DECIMAL(9,2), retail_disc DECIMAL(9,2), "
    "coupon_disc DECIMAL(9,2), coupon_match_disc DECIMAL(9,2)"
)
"""Of the files, as Spark spells it. `hour`: the number of the file."""

_POLL_S = 0.1


def by_hour(source: pa.Table) -> list[pa.Table]:
    """The rows of the source in one table for each hour that has any, in the order of time."""
    hours = pc.floor_temporal(source["sold_at"], unit="hour")
    starts = pc.unique(hours)
    return [
        source.filter(pc.equal(hours, start)).add_column(0, "hour", pa.array([number] * count, pa.int32()))
        for number, start in enumerate(starts, 1)
        if (count := pc.sum(pc.equal(hours, start)).as_py())
    ]


@dataclass(frozen=True, slots=True)
class Hours:
    """The folder of the files, numbered from 1. `folder` has nothing else; beside it a file says when all are there."""

    folder: Path

    @property
    def _end(self) -> Path:
        return self.folder.with_name(self.folder.name + ".end")

    def path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.parquet"

    def publish(self, number: int, rows: pa.Table) -> None:
        """Add a file, which nobody sees before it is whole. It is younger than the last: streams read by age."""
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / f".{number:06d}.unfinished"
        pq.write_table(rows, unfinished)
        at_s = dt.datetime(2020, 1, 1, tzinfo=dt.UTC).timestamp() + number
        os.utime(unfinished, (at_s, at_s))
        unfinished.rename(self.path(number))

    def finish(self, last: int) -> None:
        """Say that `last` is the last one."""
        unfinished = self._end.with_suffix(".unfinished")
        unfinished.write_text(str(last), encoding="utf-8")
        unfinished.rename(self._end)

    def last(self) -> int | None:
        """The number of the last file; None while more may come."""
        return int(self._end.read_text(encoding="utf-8")) if self._end.exists() else None

    def after(self, number: int, pause: Callable[[float], object] | None = None) -> Generator[tuple[int, Path]]:
        """The files after one number, in order, each as soon as it is there."""
        wait = pause or threading.Event().wait
        while (last := self.last()) is None or number < last:
            if self.path(number + 1).exists():
                number += 1
                yield number, self.path(number)
            else:
                wait(_POLL_S)
