"""What a part of a session acts with: a tower, the recorder before it, and principals of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import httpx2
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from icetower.agent import Tower
from verify.exchanges.drivers import Driver
from verify.exchanges.recorder import Recorder
from verify.kit.tower_process import TowerProcess

TIMEOUT_S = 60.0
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
)
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
NO_RETRY = {"commit.retry.num-retries": "0"}
SETTINGS = """
[defaults]
"example.default" = "1"
[overrides]
"example.override" = "2"
[table-config]
"example.table" = "3"
"""
"""Of the tower that is recorded: the answers that settings make are in the recording, too."""


def rows(*ids: int, region: str = "north") -> pa.Table:
    types = pa.schema([("id", pa.int64()), ("region", pa.string())])
    return pa.table({"id": ids, "region": [region] * len(ids)}, schema=types)


@dataclass
class Stage:
    """One part of a session.

    Attributes:
        ns: a namespace of the part alone. It is there when the part begins.
        client: a client that is a process of its own.
    """

    tower: TowerProcess
    recorder: Recorder
    ns: str
    client: Driver | None = None

    def step(self, name: str) -> None:
        self.recorder.step(name)

    @property
    def driver(self) -> Driver:
        assert self.client is not None
        return self.client

    def catalog(self, token: str | None = None, **properties: str) -> Catalog:
        """PyIceberg through the recorder; by default as the administrator."""
        access = {"token": token or self.tower.secret} if "credential" not in properties else {}
        return load_catalog("tower", type="rest", uri=self.recorder.uri, **access, **properties)

    def aside(self) -> Catalog:
        """PyIceberg as the administrator, past the recorder: for what only has to be there."""
        return self.tower.catalog()

    def sdk(self, token: str | None = None) -> Tower:
        return Tower(self.recorder.uri, token or self.tower.secret)

    def http(self, token: str | None = None) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {token or self.tower.secret}"}
        return httpx2.Client(base_url=self.recorder.uri, headers=headers, timeout=TIMEOUT_S)

    def table(self, name: str = "t", *, properties: Mapping[str, str] = MappingProxyType({})) -> Table:
        """A table with a row in it, made past the recorder."""
        given = {**NO_RETRY, **properties}
        made = self.aside().create_table(self.name(name), SCHEMA, partition_spec=BY_REGION, properties=given)
        made.append(rows(0))
        return made

    def name(self, table: str = "t") -> str:
        return f"{self.ns}.{table}"

    def agent(self, contract: str, name: str = "agent") -> str:
        """The secret of a principal under a contract of its own. `NS` in it stands for the part's namespace."""
        full = f"{self.ns}-{name}"
        return self.tower.principal(full, contract.replace("NS", self.ns))


def fails(act: Callable[[], object]) -> None:
    """An act that has to fail: how the server answered is in the recording."""
    try:
        act()
    except Exception:  # noqa: BLE001 - each client has errors of its own
        return
    raise AssertionError("this had to fail")


Part = Callable[[Stage], None]


@dataclass(frozen=True)
class Session:
    """What a client does: its parts, each in a namespace of its own.

    Attributes:
        command: starts the client with the recorder's address, where it is a process of its own.
    """

    client: str
    parts: Sequence[Part]
    command: Callable[[str], Sequence[str | Path]] | None = None
