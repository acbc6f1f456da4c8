"""The workload: ten agents, the partitions that their contracts give them, and the batches they send in time order.

Pricing is split by bucket of the product, stock movements by spans of time (a partition scheduler's slots),
interactions by household, each into its own partition of the write-ahead log. Four agents misbehave, each in one way.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import resources

import numpy as np
import pyarrow as pa
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType

from icetower.contracts.document import dump, load
from icetower.contracts.model import Contract, Rule
from icetower.contracts.regions import Extent, Range, Region, Values
from icetower.demo import data, tables
from icetower.demo.data import pc

BATCHES_MAX = 20
BATCHES_MIN = 4
MEDIATOR = "interactions-mediator"
AUDITOR = "auditor"
_HOUR = dt.timedelta(hours=1)


class Engine(StrEnum):
    PYICEBERG = "PyIceberg"
    SPARK = "PySpark"


class Behaviour(StrEnum):
    """How an agent behaves."""

    ORDINARY = "ordinary"
    STRAYS = "writes outside its contract"
    REPEATS = "sends its commits twice"
    DIES = "is killed before committing"
    STALE = "holds a stale base"


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent process. It writes to one table; `share` says which of the table's partitions or rows are its own.

    `share` means buckets of the product for prices, the slot (index of `STOCK_SLOTS`) for stock movements and the
    remainder of the household's number for interactions.
    """

    name: str
    table: str
    engine: Engine
    share: tuple[int, ...]
    behaviour: Behaviour = Behaviour.ORDINARY

    def batches(self, days: int) -> int:
        """How many commits the agent makes of `days` days. Agents with Spark write larger batches, half as often."""
        per_day = 2 if self.engine is Engine.PYICEBERG else 1
        return max(BATCHES_MIN, min(per_day * days, BATCHES_MAX * per_day // 2))


STOCK_SLOTS = 3
INTERACTION_SHARES = 3

AGENTS: tuple[Agent, ...] = (
    Agent("pricing-grocery", tables.PRICES, Engine.PYICEBERG, (0, 1)),
    Agent("pricing-produce", tables.PRICES, Engine.PYICEBERG, (2, 3), Behaviour.STRAYS),
    Agent("pricing-bakery", tables.PRICES, Engine.PYICEBERG, (4, 5), Behaviour.STALE),
    Agent("pricing-household", tables.PRICES, Engine.SPARK, (6, 7)),
    Agent("inventory-early", tables.STOCK, Engine.PYICEBERG, (0,), Behaviour.DIES),
    Agent("inventory-middle", tables.STOCK, Engine.PYICEBERG, (1,)),
    Agent("inventory-late", tables.STOCK, Engine.SPARK, (2,)),
    Agent("interactions-app", tables.INTERACTIONS_WAL, Engine.PYICEBERG, (0,), Behaviour.REPEATS),
    Agent("interactions-till", tables.INTERACTIONS_WAL, Engine.PYICEBERG, (1,)),
    Agent("interactions-web", tables.INTERACTIONS_WAL, Engine.PYICEBERG, (2,)),
)


EXAMPLES: Mapping[str, str] = {
    tables.PRICES: "pricing_agent",
    tables.STOCK: "inventory_agent",
    tables.INTERACTIONS_WAL: "recommendation_agent",
}
"""By the table that an agent writes to: the example contract that the agent's own contract narrows."""


def agent_named(name: str) -> Agent:
    return next(agent for agent in AGENTS if agent.name == name)


def agents_of(table: str) -> tuple[Agent, ...]:
    return tuple(agent for agent in AGENTS if agent.table == table)


def slot(index: int, days: int) -> tuple[dt.datetime, dt.datetime]:
    """The half-open span of whole hours that is slot `index` of the stock movements."""
    start, end = data.horizon(days)
    hours = (end - start) // _HOUR
    return start + index * hours // STOCK_SLOTS * _HOUR, start + (index + 1) * hours // STOCK_SLOTS * _HOUR


def rows_of(agent: Agent, source: pa.Table, days: int) -> pa.Table:
    """The rows of the source, in time order, that `agent` has to write."""
    if agent.table == tables.PRICES:
        bucket = BucketTransform[int](tables.BUCKETS).pyarrow_transform(LongType())
        buckets = bucket(source["product_id"].combine_chunks())
        mine = pc.is_in(buckets, pa.array(agent.share, pa.int32()))
    elif agent.table == tables.STOCK:
        start, end = (pa.scalar(bound, data.TIME) for bound in slot(agent.share[0], days))
        mine = pc.and_(pc.greater_equal(source["sold_at"], start), pc.less(source["sold_at"], end))
    else:
        mine = pa.array(np.isin(source["household_id"].to_numpy() % INTERACTION_SHARES, agent.share))
    return source.filter(mine)


def batch(rows: pa.Table, number: int, batches: int) -> pa.Table:
    """Batch `number` of `batches` nearly equal ones, in time order."""
    first, end = number * rows.num_rows // batches, (number + 1) * rows.num_rows // batches
    return rows.slice(first, end - first)


def table_rows(agent: Agent, rows: pa.Table) -> pa.Table:
    """Rows of the source as rows of the agent's table."""
    if agent.table == tables.PRICES:
        return data.product_prices(rows)
    if agent.table == tables.STOCK:
        return data.stock_movements(rows)
    return data.user_interactions(rows, agent.name)


def batch_key(agent: Agent, number: int, seed: int) -> str:
    """The idempotency key of a batch: the same when the agent is started again."""
    return f"{agent.name}-{seed}-{number:04d}"


def stray_rows(agent: Agent, source: pa.Table, days: int) -> pa.Table:
    """Rows that belong to the next agent of the same table."""
    others = agents_of(agent.table)
    neighbour = others[(others.index(agent) + 1) % len(others)]
    return batch(rows_of(neighbour, source, days), 0, neighbour.batches(days))


def contract_of(name: str, days: int) -> Contract:
    """The contract of an agent, the mediator or the auditor.

    An agent's contract is the example contract of its table (examples/contracts), narrowed to its share.
    """
    agent = next((agent for agent in AGENTS if agent.name == name), None)
    if agent is None:
        return _shipped(f"contracts/{name}.yaml")
    example = _shipped(f"examples/{EXAMPLES[agent.table]}.yaml")
    share = _share_of(agent, days)
    return replace(
        example,
        name=agent.name,
        description=f"{example.description}; of {example.name}'s partitions those of {agent.name}",
        tables=tuple(_narrowed(rule, share) for rule in example.tables),
    )


def contract_text(name: str, days: int) -> str:
    """As `contract_of`, as YAML."""
    return dump(contract_of(name, days))


def _shipped(path: str) -> Contract:
    text = resources.files("icetower.demo").joinpath(path).read_text(encoding="utf-8")
    return load(text, source=path)


def _share_of(agent: Agent, days: int) -> Mapping[str, Extent]:
    """The partitions that an agent owns, in the terms of the example contracts."""
    if agent.table == tables.PRICES:
        return {f"bucket({tables.BUCKETS}, product_id)": Values(tuple(str(bucket) for bucket in agent.share))}
    if agent.table == tables.STOCK:
        start, end = slot(agent.share[0], days)
        return {"hour(moved_at)": Range(f"{start:%Y-%m-%dT%H}", f"{end:%Y-%m-%dT%H}")}
    return {"_agent": Values((agent.name,))}


def _narrowed(rule: Rule, share: Mapping[str, Extent]) -> Rule:
    """A rule whose regions have other extents of the terms that `share` names."""
    if rule.partitions is None:
        return rule
    narrowed = (tuple((term, share.get(term, extent)) for term, extent in region.fields) for region in rule.partitions)
    return replace(rule, partitions=tuple(Region(fields) for fields in narrowed))
