"""The keys that `icetower.spark.send` gives to rows."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from icetower.spark.sending import _with_row_keys  # pyright: ignore[reportPrivateUsage]

pytestmark = pytest.mark.spark

ROWS = (
    "SELECT * FROM VALUES (1, timestamp'2026-01-01 00:00:00.000001'), (1, timestamp'2026-01-01 00:00:00.000002'), "
    "(1, timestamp'2026-01-01 00:00:00.000002'), (2, NULL) AS t (id, at)"
)


def test_rows_that_differ_by_a_microsecond_have_keys_of_their_own_in_every_time_zone(spark: SparkSession) -> None:
    frame = spark.sql(ROWS)
    found: list[list[str]] = []
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        for zone in ("UTC", "Asia/Tokyo"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            found.append(sorted(row._idempotency_key for row in _with_row_keys(frame, "k").collect()))
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    assert len(set(found[0])) == 4
    assert found[0] == found[1]
