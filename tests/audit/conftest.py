"""Tests of the auditor: histories of Iceberg's own Java library, and random ones made as bytes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from histories.driver import HistoryDriver

# The engine in memory, and a client of it, are those of the engine's own tests.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "commit")]


@pytest.fixture(scope="session")
def driver() -> Iterator[HistoryDriver]:
    with HistoryDriver() as driver:
        yield driver
