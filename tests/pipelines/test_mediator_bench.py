"""A mediator that runs on behind a tower, is killed with -9 and pruned, as `make bench-mediator` runs it; in short."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from bench.mediator import run as bench
from tests.pages.page_blocks import blocks_of

pytestmark = [pytest.mark.spark, pytest.mark.sharp]


def test_rows_that_come_all_the_time_are_in_the_table_once_whatever_is_killed(tmp_path: Path) -> None:
    figures = bench.run(tmp_path, seconds=75.0, rows_per_s=200, keep="5s", kill_every_s=40.0)
    assert (figures.doubled, figures.lost) == (0, 0)
    assert figures.sent > 0
    assert figures.killed == 1
    assert figures.pruned > 0
    assert figures.batches > 1
    assert not figures.failures, figures


def test_it_is_run_as_the_page_says() -> None:
    (block,) = (block for block in blocks_of("docs/mediator.md") if "test_mediator_bench" in block.more)
    page = shlex.split(block.text)
    used = bench.arguments(uri="http://127.0.0.1:8181", keep="24h", contracts=None)
    assert {word for word in page if word.startswith("--")} <= set(used)
    assert page[:2] == ["icetower", "mediate"]
