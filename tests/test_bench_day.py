"""`make bench-day` in short, and what it takes for growth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.day.run import Look, grown, plot, run
from verify.kit.light_spark import LIGHT

FLAT = Look(0.0, 10.0, 30, 400, 500, 4.5, 12)


def looks(*storage_mb: float) -> list[Look]:
    return [replace(FLAT, at_s=float(at), storage_mb=size) for at, size in enumerate(storage_mb)]


def test_what_grows_at_the_end_is_named() -> None:
    assert grown(looks(1, 5, 10, 10, 10, 10, 10, 10)) == {}
    assert grown(looks(1, 5, 10, 10, 10, 11, 10, 11)) == {}
    assert grown(looks(1, 2, 3, 4, 5, 6, 8, 9, 10)) == {"storage_mb": 1.5}


def test_what_comes_out_of_nothing_has_grown() -> None:
    nothing = [replace(each, lag_s=0.0) for each in looks(*[10.0] * 6)]
    assert grown([*nothing, *(replace(FLAT, at_s=at) for at in (6.0, 7.0))])["lag_s"] > 1


@pytest.mark.spark
@pytest.mark.sharp
def test_a_short_day_leaves_every_row_as_it_was_changed_last(tmp_path: Path) -> None:
    result = run(tmp_path, days=1, day_s=45.0, settings={**LIGHT, "spark.master": "local[2]"})
    assert result.wrong == 0
    assert result.sent > 0
    assert result.batches > 0
    assert result.looks
    assert plot(result).count("<svg") == 1
