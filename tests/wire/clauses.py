"""What the tests of a contract's clauses share, whatever engine they write with."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import cached_property
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, HourTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestampType

from icetower.agent import Tower
from verify.kit.tower_process import TowerProcess, error_of

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "at", TimestampType(), required=False),
    NestedField(3, "region", StringType(), required=False),
)
BY_REGION = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "region"))
BY_HOUR = PartitionSpec(PartitionField(2, 1000, HourTransform(), "at_hour"))
BY_DAY = PartitionSpec(
    PartitionField(2, 1000, DayTransform(), "at_day"), PartitionField(1, 1001, BucketTransform(4), "id_bucket")
)
FIRST = dt.datetime(2017, 1, 1)  # noqa: DTZ001 - a timestamp without zone
SNAPSHOT_LEVELS = {f"write.{what}.isolation-level": "snapshot" for what in ("delete", "update", "merge")}
NO_RETRY = {"commit.retry.num-retries": "0"}


def in_bucket(number: int, nth: int = 0) -> int:
    """An id that lies in one of four buckets."""
    hashed = BucketTransform(4).transform(LongType())
    return [n for n in range(100) if hashed(n) == number][nth]


def rows(*ids: int, day: float = 0, region: str = "north", at: dt.datetime | None = None) -> pa.Table:
    when = FIRST + dt.timedelta(days=day) if at is None else at
    columns = {"id": pa.array(ids, pa.int64()), "at": pa.array([when] * len(ids), pa.timestamp("us"))}
    return pa.table({**columns, "region": pa.array([region] * len(ids), pa.string())})


def ids(table: Table) -> list[int]:
    return sorted(table.refresh().scan().to_arrow()["id"].to_pylist())


def name_of(table: Table) -> str:
    return ".".join(table.name())


class Agent:
    """A principal under a contract of its own, both of one name.

    Args:
        contract: YAML without its first two lines; NS stands for the namespace, and T for `NS.t`.
    """

    def __init__(self, tower: TowerProcess, namespace: str, contract: str, *, name: str = "agent") -> None:
        self.tower = tower
        self.namespace = namespace
        self.name = f"{namespace}-{name}"
        self.secret = tower.principal(self.name, self._filled(contract))

    def _filled(self, contract: str) -> str:
        return contract.replace("NS", self.namespace).replace("T,", f"{self.namespace}.t,")

    def change(self, contract: str) -> None:
        """A new version of its contract."""
        self.tower.admin.apply_contract(f"version: 1\nagent: {self.name}\n{self._filled(contract)}")

    def revoke(self) -> None:
        self.tower.admin.revoke_contract(self.name)

    def sdk(self) -> Tower:
        return Tower(self.tower.uri, self.secret)

    @cached_property
    def catalog(self) -> Catalog:
        return self.tower.catalog(self.secret)

    def table(self, name: str = "t") -> Table:
        """Loaded anew."""
        return self.catalog.load_table(f"{self.namespace}.{name}")

    def attempts(self, name: str = "t") -> list[tuple[str, str | None]]:
        """How its attempts on a table ended, and by which rule, oldest first."""
        found = self.tower.admin.commits(limit=1000, table=f"{self.namespace}.{name}")
        return [(each["outcome"], each["rule"]) for each in reversed(found) if each["principal"] == self.name]

    def refused(self, rule: str, write: Callable[[], Any], said: str = "", name: str = "t") -> None:
        """A write is refused by a rule, in words that reach its writer, and as the log has it."""
        before = len(self.attempts(name))
        with pytest.raises(Exception, match=said or "may not"):
            write()
        new = self.attempts(name)[before:]
        assert new, "nothing was sent"
        assert {each for _, each in new} == {rule}

    def ends(self, write: Callable[[], Any]) -> None:
        """What the contract allows is refused from its revocation on, and allowed again when it is restored."""
        self.revoke()
        with pytest.raises(Exception, match="was revoked"):
            write()
        self.tower.admin.restore_contract(self.name)
        write()

    def told(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """The error of a plain request."""
        with self.tower.client(self.secret) as http:
            return error_of(http.request(method, path, **options))
