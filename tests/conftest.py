"""What tests of several rooms share: a PostgreSQL server, and a database in it for each module.

It is started when the first test asks for it. `ICETOWER_TEST_POSTGRES_URL` names a database to be used instead: then
all modules share that one, and keep apart by the names of their catalogs and schemas.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from sqlalchemy import URL

from tests import layers
from tools import class_archive
from verify.kit import postgres_cluster

# The same examples in every run, however long they take: what CI says of a commit must not depend on luck.
# `--hypothesis-profile=default` looks further.
settings.register_profile("house", derandomize=True, deadline=None)
settings.load_profile("house")

os.environ.setdefault("SPARK_SUBMIT_OPTS", class_archive.options())

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what it starts in the background, and all that tests start would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

GIVEN = os.environ.get("ICETOWER_TEST_POSTGRES_URL", "")


WATCH = layers.Watch()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A command does not import what it leaves out: Spark's client alone takes seconds, and so do 150 modules."""
    if config.option.markexpr == "quick":
        return True if layers.without_quick(collection_path) else None
    left_out = config.option.markexpr in {"full", "sharp", "matrix"} and collection_path.name.startswith("test_")
    return True if left_out and collection_path.is_file() and layers.only_quick(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each test gets its layer. The quick ones come first: a broken function shows at once."""
    layers.marked(items)
    items.sort(key=layers.rank)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A quick test is watched while it runs, with its fixtures."""
    WATCH.quick = item.nodeid if item.get_closest_marker("quick") else None
    try:
        return (yield)
    finally:
        WATCH.quick = None


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
