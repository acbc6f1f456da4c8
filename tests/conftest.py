"""What tests of several rooms share: a PostgreSQL server, and a database in it for each module.

It is started when the first test asks for it. `ICETOWER_TEST_POSTGRES_URL` names a database to be used instead: then
all modules share that one, and keep apart by the names of their catalogs and schemas.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import settings
from sqlalchemy import URL

from tests import postgres_cluster

# The same examples in every run, however long they take: what CI says of a commit must not depend on luck.
# `--hypothesis-profile=default` looks further.
settings.register_profile("house", derandomize=True, deadline=None)
settings.load_profile("house")

GIVEN = os.environ.get("ICETOWER_TEST_POSTGRES_URL", "")


SLOW_ROOMS = ("pages", "pipelines", "wire", "cli", "demo", "crash")
"""Where tests start processes: towers, JVMs, Spark sessions."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts processes comes first, Spark before all: shared out file by file, the longest must not come last."""
    spark = {item.path for item in items if item.get_closest_marker("spark")}
    items.sort(key=lambda item: (item.path not in spark, item.path.parent.name not in SLOW_ROOMS))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[URL]:
    """Where there is no PostgreSQL, its tests are skipped; in CI they fail."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(postgres_cluster.running())
        except postgres_cluster.NoPostgres as error:
            missing = str(error)
        else:
            yield server
            return
    if os.environ.get("CI") == "true":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


@pytest.fixture(scope="module")
def postgres_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The SQLAlchemy URL of a PostgreSQL database."""
    if GIVEN:
        yield GIVEN
        return
    server: URL = request.getfixturevalue("postgres_server")
    with postgres_cluster.database(server, f"test_{uuid.uuid4().hex}") as url:
        yield url.render_as_string(hide_password=False)
