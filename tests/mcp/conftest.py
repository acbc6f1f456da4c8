"""One tower for the tests of MCP; every test has a namespace and principals of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DecimalType, LongType, NestedField, StringType, TimestampType

from verify.kit.tower_process import TowerProcess

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "at", TimestampType(), required=False),
    NestedField(4, "price", DecimalType(9, 2), required=False),
    NestedField(5, "note", StringType(), required=False),
    identifier_field_ids=[1],
)
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
CONTRACT = """owner: {name} team <{name}@example.com>
tables:
  - table: {space}.prices
    operations: [append, overwrite, delete]
    partitions: [{{region: [{region}]}}]
    read_scope: owned
    blind_appends: true
"""


@dataclass
class Shop:
    """A namespace with a table, and how to make its agents."""

    tower: TowerProcess
    catalog: Catalog
    space: str

    @property
    def table(self) -> str:
        return f"{self.space}.prices"

    def agent(self, region: str, contract: str = CONTRACT) -> str:
        """The secret of the agent of a region."""
        name = f"{self.space}_{region}"
        return self.tower.principal(name, contract.format(space=self.space, region=region, name=region))

    def widen(self, region: str, *regions: str) -> None:
        """Give an agent more regions."""
        text = CONTRACT.format(space=self.space, region=", ".join((region, *regions)), name=region)
        self.tower.admin.apply_contract(f"version: 1\nagent: {self.space}_{region}\n{text}")

    def rows(self) -> list[tuple[int, str]]:
        found = self.catalog.load_table(self.table).scan().to_arrow().to_pylist()
        return sorted((row["id"], row["region"]) for row in found)

    def put(self, *rows: dict[str, object]) -> None:
        """As the administrator."""
        table = self.catalog.load_table(self.table)
        table.append(pa.Table.from_pylist([*rows], table.schema().as_arrow()))


@pytest.fixture(scope="session")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TowerProcess]:
    tower = TowerProcess(tmp_path_factory.mktemp("mcp") / "data")
    yield tower
    status = tower.stop()
    log = tower.log.read_text()
    assert status == 0, log
    assert "Traceback" not in log
    assert "a tool call failed" not in log


@pytest.fixture
def shop(tower: TowerProcess, request: pytest.FixtureRequest) -> Shop:
    name = re.sub(r"\W+", "_", request.node.name).lower()[-40:].strip("_")
    catalog = tower.catalog()
    catalog.create_namespace(name)
    catalog.create_table((name, "prices"), SCHEMA, partition_spec=BY_REGION)
    return Shop(tower, catalog, name)
