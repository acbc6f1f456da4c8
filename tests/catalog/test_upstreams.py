"""The adapters that are offered, each through the whole behaviour suite."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from behaviour_upstream import UpstreamBehaviour

from icetower.catalog.sql import SqlUpstream
from icetower.database import Database

POSTGRES_URL = os.environ.get("ICETOWER_TEST_POSTGRES_URL", "")


class TestSqlite(UpstreamBehaviour):
    @pytest.fixture
    def upstream(self, tmp_path: Path) -> Iterator[SqlUpstream]:
        database = Database(f"sqlite:///{tmp_path}/catalog.db")
        yield SqlUpstream(database, "main")
        database.close()


@pytest.mark.skipif(not POSTGRES_URL, reason="ICETOWER_TEST_POSTGRES_URL is not set")
class TestPostgres(UpstreamBehaviour):
    @pytest.fixture
    def upstream(self) -> Iterator[SqlUpstream]:
        database = Database(POSTGRES_URL)
        yield SqlUpstream(database, f"test-{uuid.uuid4()}")
        database.close()
