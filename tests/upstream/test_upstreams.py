"""The adapters that are offered, each through the whole behaviour suite."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from icetower.database import Database
from icetower.upstream.sql import SqlUpstream
from tests.upstream.behaviour_upstream import UpstreamBehaviour


class TestSqlite(UpstreamBehaviour):
    @pytest.fixture
    def upstream(self, tmp_path: Path) -> Iterator[SqlUpstream]:
        database = Database(f"sqlite:///{tmp_path}/catalog.db")
        yield SqlUpstream(database, "main")
        database.close()


class TestPostgres(UpstreamBehaviour):
    @pytest.fixture
    def upstream(self, postgres_url: str) -> Iterator[SqlUpstream]:
        database = Database(postgres_url)
        yield SqlUpstream(database, f"test-{uuid.uuid4()}")
        database.close()
