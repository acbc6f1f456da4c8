from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.grants.polaris_server import PolarisServer


@pytest.fixture
def server() -> Iterator[PolarisServer]:
    """A Polaris with the catalog prod; at the end, no judge may have objected to anything."""
    started = PolarisServer()
    yield started
    started.close()
