"""The tables of the demo: their columns, partitions and properties, created through any PyIceberg catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, HourTransform, IdentityTransform, Transform
from pyiceberg.types import DecimalType, IcebergType, LongType, NestedField, StringType, TimestamptzType

from icetower.protocol import marks

PRICES = "pricing.product_prices"
STOCK = "inventory.stock_movements"
INTERACTIONS = "recommendations.user_interactions"
INTERACTIONS_WAL = "recommendations.user_interactions_wal"
BUCKETS = 8

# The writer settings of the guide, step 3.
WRITER_SETTINGS: Mapping[str, str] = {
    "commit.retry.num-retries": "5",
    "commit.retry.min-wait-ms": "100",
    "commit.retry.max-wait-ms": "5000",
    "write.distribution-mode": "hash",
}
BLIND_APPENDS = {marks.BLIND_APPENDS: "true"}


@dataclass(frozen=True, slots=True)
class Shape:
    """One table. `partitions`: (source column, transform, partition name)."""

    name: str
    columns: tuple[tuple[str, IcebergType], ...]
    partitions: tuple[tuple[str, Transform[Any, Any], str], ...]
    blind_appends: bool

    def schema(self) -> Schema:
        return Schema(*(NestedField(at, name, kind, required=False) for at, (name, kind) in enumerate(self.columns, 1)))

    def spec(self) -> PartitionSpec:
        ids = {name: at for at, (name, _) in enumerate(self.columns, 1)}
        return PartitionSpec(
            *(
                PartitionField(source_id=ids[source], field_id=1000 + at, transform=transform, name=name)
                for at, (source, transform, name) in enumerate(self.partitions)
            )
        )


_MONEY = DecimalType(9, 2)
_INTERACTION: tuple[tuple[str, IcebergType], ...] = (
    ("row_id", LongType()),
    ("interacted_at", TimestamptzType()),
    ("household_id", LongType()),
    ("product_id", LongType()),
    ("basket_id", LongType()),
    ("quantity", LongType()),
    ("sales_value", _MONEY),
    ("_idempotency_key", StringType()),
    ("_agent", StringType()),
)

SHAPES: tuple[Shape, ...] = (
    Shape(
        PRICES,
        (
            ("row_id", LongType()),
            ("observed_at", TimestamptzType()),
            ("store_id", LongType()),
            ("product_id", LongType()),
            ("unit_price", _MONEY),
            ("quantity", LongType()),
            ("sales_value", _MONEY),
            ("retail_disc", _MONEY),
            ("coupon_disc", _MONEY),
            ("coupon_match_disc", _MONEY),
        ),
        (("observed_at", DayTransform(), "date"), ("product_id", BucketTransform(BUCKETS), "product_id_bucket")),
        blind_appends=True,
    ),
    Shape(
        STOCK,
        (
            ("row_id", LongType()),
            ("moved_at", TimestamptzType()),
            ("store_id", LongType()),
            ("product_id", LongType()),
            ("quantity", LongType()),
            ("sales_value", _MONEY),
        ),
        (("moved_at", HourTransform(), "hour"),),
        blind_appends=True,
    ),
    Shape(INTERACTIONS_WAL, _INTERACTION, (("_agent", IdentityTransform(), "_agent"),), blind_appends=True),
    # Only the mediator writes here, and it reads before it writes: its appends are not blind.
    Shape(INTERACTIONS, _INTERACTION, (("interacted_at", DayTransform(), "date"),), blind_appends=False),
)


def create_tables(catalog: Catalog) -> None:
    """Create the namespaces and tables of the demo, all empty."""
    for shape in SHAPES:
        catalog.create_namespace_if_not_exists(shape.name.split(".")[0])
        properties = {**WRITER_SETTINGS, **(BLIND_APPENDS if shape.blind_appends else {})}
        catalog.create_table(shape.name, shape.schema(), partition_spec=shape.spec(), properties=properties)
