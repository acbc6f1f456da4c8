"""Tests of the auditor: histories of Iceberg's own Java library, and random ones made as bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from verify.histories.driver import HistoryDriver

# The engine in memory, and a client of it, are those of the engine's own tests.


@pytest.fixture(scope="session")
def driver() -> Iterator[HistoryDriver]:
    with HistoryDriver() as driver:
        yield driver
