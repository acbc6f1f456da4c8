"""A tower whose catalog is in PostgreSQL, as PyIceberg sees it: through the tower, and beside it."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from verify.kit.tower_process import TowerProcess

SCHEMA = pa.schema([("id", pa.int64()), ("writer", pa.int64())])
BLIND = {"icetower.blind-appends": "true"}
WRITERS = 8
COMMITS = 5


@pytest.fixture
def beside(postgres_url: str, tmp_path: Path) -> Iterator[SqlCatalog]:
    """PyIceberg's own catalog, straight on the database."""
    catalog = SqlCatalog(f"test-{uuid.uuid4()}", uri=postgres_url, warehouse=(tmp_path / "lake").as_uri())
    yield catalog
    catalog.close()


@pytest.fixture
def tower(
    postgres_url: str, beside: SqlCatalog, start_tower: Callable[..., TowerProcess], tmp_path: Path
) -> TowerProcess:
    """A tower on the same catalog, by the database's URL and the catalog's name."""
    upstream = {"uri": postgres_url, "catalog": beside.name, "warehouse": (tmp_path / "lake").as_uri()}
    config = tmp_path / "tower.toml"
    config.write_text("[upstream]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in upstream.items()))
    return start_tower("--config", str(config))


def rows(*ids: int, writer: int = 0) -> pa.Table:
    return pa.table({"id": ids, "writer": [writer] * len(ids)}, schema=SCHEMA)


def found(table: Table) -> list[tuple[int, int]]:
    return sorted((row["id"], row["writer"]) for row in table.refresh().scan().to_arrow().to_pylist())


def test_eight_threads_append_to_a_table_that_another_catalog_writes_too(
    tower: TowerProcess, beside: SqlCatalog
) -> None:
    """Nothing lost, nothing twice, and both doors show the same head whoever moved it."""
    catalog = tower.catalog()
    catalog.create_namespace("sales")
    through = catalog.create_table("sales.orders", schema=SCHEMA, properties=BLIND)
    through.append(rows(0))
    start = Barrier(WRITERS)

    def write(writer: int) -> list[tuple[int, int]]:
        own = tower.catalog().load_table("sales.orders")
        start.wait(60)
        written = [writer * 1000 + number for number in range(COMMITS)]
        for row in written:
            own.append(rows(row, writer=writer))
        return [(row, writer) for row in written]

    with ThreadPoolExecutor(WRITERS) as threads:
        acknowledged = [row for written in threads.map(write, range(1, WRITERS + 1)) for row in written]
    expected = sorted([(0, 0), *acknowledged])
    assert len(expected) == 1 + WRITERS * COMMITS
    assert found(through) == expected
    outcomes = Counter(tower.outcomes("sales.orders"))
    assert set(outcomes) == {"direct", "rebased"}
    assert outcomes.total() == len(expected)

    direct = beside.load_table("sales.orders")
    assert direct.metadata_location == through.metadata_location
    assert found(direct) == expected
    direct.append(rows(1))  # behind the tower's back
    through.append(rows(2))  # stale for both: the head that the tower has, and the client's
    expected = sorted([*expected, (1, 0), (2, 0)])
    assert found(through) == found(direct) == expected
    assert direct.metadata_location == through.metadata_location

    beside.create_table("sales.returns", schema=SCHEMA).append(rows(9))
    assert sorted(catalog.list_tables("sales")) == [("sales", "orders"), ("sales", "returns")]
    assert found(catalog.load_table("sales.returns")) == [(9, 0)]
    catalog.drop_table("sales.returns")
    assert not beside.table_exists("sales.returns")
