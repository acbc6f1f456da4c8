from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from verify.kit.tower_process import TowerProcess


@pytest.fixture
def untouched(tmp_path: Path) -> Iterator[TowerProcess]:
    """A tower without the tables and contracts of other tests."""
    process = TowerProcess(tmp_path / "data")
    yield process
    process.stop()
