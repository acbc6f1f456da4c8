"""What each side gives an agent: a catalog, and what its appends say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField

from bench.rewriters.work import PLAIN
from icetower import Agent
from icetower.agent import keyed, new_key
from icetower.errors import Conflict

compute: Any = pyarrow.compute

NAMESPACE, NAME = "bench", "bench.facts"
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "part", IntegerType(), required=False),
    NestedField(3, "version", IntegerType(), required=False),
)
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
IN_VAIN = (CommitFailedException, ValidationException, Conflict)
"""What PyIceberg and the SDK raise where others have written what a commit depends on, or were faster every time."""

Think = Callable[[], None]
"""An agent thinks. It is called once in each attempt, between the read and the commit."""


@dataclass
class Seat:
    """One agent's. It goes to another process, where it opens its catalog."""

    side: str
    agent: int
    properties: Mapping[str, str]
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @cached_property
    def catalog(self) -> Catalog:
        return load_catalog("bench", **self.properties)

    @cached_property
    def tower(self) -> Agent:
        """The tower's own SDK, for what PyIceberg has no words for."""
        return Agent(self.properties["uri"], token=self.properties["token"])

    def table(self) -> Table:
        """As it is now."""
        return self.catalog.load_table(NAME)

    def summary(self) -> dict[str, str]:
        """What an append says of itself."""
        return {} if self.side == PLAIN else keyed(new_key(), blind=True)


def rows(ids: list[int], part: int, version: int = 0) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "part": pa.array([part] * len(ids), pa.int32()),
            "version": pa.array([version] * len(ids), pa.int32()),
        }
    )


def thought(found: pa.Table) -> pa.Table:
    """What a rewriter makes of the rows of a partition: each in its next version."""
    at = found.schema.get_field_index("version")
    newer = compute.add(found["version"], pa.scalar(1, pa.int32()))
    return found.set_column(at, found.schema.field(at), newer)


Way = Callable[[Seat, int, Think], None]
"""One attempt to rewrite a partition. Raises one of `IN_VAIN`."""
