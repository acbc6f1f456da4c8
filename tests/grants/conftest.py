from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "wire"))

from polaris_server import PolarisServer


@pytest.fixture
def server() -> Iterator[PolarisServer]:
    """A Polaris with the catalog prod; at the end, no judge may have objected to anything."""
    started = PolarisServer()
    yield started
    started.close()
