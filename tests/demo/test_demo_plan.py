"""Every row has one writer in each table, and every contract covers the writes of its agent and no others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.io.pyarrow import _determine_partitions
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType

from icetower.contracts.check import Clear, Touch, Violation, check
from icetower.contracts.document import load
from icetower.contracts.model import Operation
from icetower.contracts.terms import Layout
from icetower.demo import data, journal, plan, tables
from icetower.demo.plan import Behaviour, Engine
from icetower.iceberg.partitions import PartitionField, PartitionSpec
from icetower.protocol.names import Identifier

DAYS = 3
EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "contracts"


@pytest.fixture(scope="module")
def source() -> pa.Table:
    return data.load_source(DAYS)


@pytest.mark.parametrize("table", [tables.PRICES, tables.STOCK, tables.INTERACTIONS_WAL])
@pytest.mark.parametrize("days", [1, DAYS])
def test_every_row_belongs_to_one_agent_and_one_batch(source: pa.Table, table: str, days: int) -> None:
    source = source.filter(pc.less(source["sold_at"], pa.scalar(data.horizon(days)[1], data.TIME)))
    seen: Counter[int] = Counter()
    for agent in plan.agents_of(table):
        rows = plan.rows_of(agent, source, days)
        batches = [plan.batch(rows, number, agent.batches(days)) for number in range(agent.batches(days))]
        assert all(batch.num_rows for batch in batches), f"{agent.name} has an empty batch"
        for batch in batches:
            seen.update(batch["row_id"].to_pylist())
    assert seen == Counter(source["row_id"].to_pylist())


def test_at_least_eight_agents_and_two_engines() -> None:
    engines = Counter(agent.engine for agent in plan.AGENTS)
    assert engines[Engine.PYICEBERG] + engines[Engine.SPARK] >= 8
    assert engines[Engine.SPARK] >= 2
    behaviours = Counter(agent.behaviour for agent in plan.AGENTS)
    assert all(behaviours[behaviour] == 1 for behaviour in Behaviour if behaviour is not Behaviour.ORDINARY)


def _touches(agent: plan.Agent, rows: pa.Table) -> list[Touch]:
    """What a commit of these rows adds, partition by partition, as PyIceberg's writer divides them."""
    shape = next(shape for shape in tables.SHAPES if shape.name == agent.table)
    columns = {name: str(kind) for name, kind in shape.columns}
    spec = PartitionSpec(
        0,
        tuple(
            PartitionField(
                1000 + at,
                name,
                str(transform),
                source,
                columns[source],
                str(transform.result_type(dict(shape.columns)[source])),
                1 + list(columns).index(source),
            )
            for at, (source, transform, name) in enumerate(shape.partitions)
        ),
    )
    parts = _determine_partitions(shape.spec(), shape.schema(), plan.table_rows(agent, rows))
    return [
        Touch(spec, tuple(part.partition_key.partition[at] for at in range(len(shape.partitions))), True, 0, 1)
        for part in parts
    ]


def _layout(table: str) -> Layout:
    shape = next(shape for shape in tables.SHAPES if shape.name == table)
    fields = [
        {"id": at, "name": name, "required": False, "type": str(kind)}
        for at, (name, kind) in enumerate(shape.columns, 1)
    ]
    return Layout({"current-schema-id": 0, "schemas": [{"schema-id": 0, "fields": fields}]})


@pytest.mark.parametrize("agent", plan.AGENTS, ids=lambda agent: agent.name)
def test_contracts_cover_what_is_written_and_nothing_of_the_neighbours(source: pa.Table, agent: plan.Agent) -> None:
    contract = plan.contract_of(agent.name, DAYS)
    assert contract.name == agent.name
    append = frozenset({Operation.APPEND})
    for other in plan.agents_of(agent.table):
        touches = _touches(other, plan.rows_of(other, source, DAYS))
        assert touches
        for touch in touches:
            table = Identifier.parse(agent.table)
            verdict = check(contract, table, [touch], append, layout=_layout(agent.table), now_ms=0)
            assert isinstance(verdict, Clear if other is agent else Violation), (other.name, touch.partition, verdict)


@pytest.mark.parametrize("agent", plan.AGENTS, ids=lambda agent: agent.name)
def test_an_agents_contract_is_the_example_of_its_table_but_for_its_name_and_share(agent: plan.Agent) -> None:
    example = load((EXAMPLES / f"{plan.EXAMPLES[agent.table]}.yaml").read_text(), source=agent.table)
    contract = plan.contract_of(agent.name, DAYS)
    own = Identifier.parse(agent.table)
    (granted,), (narrowed,) = ([r for r in c.tables if r.pattern.matches(own)] for c in (example, contract))
    assert granted.partitions != narrowed.partitions
    assert [r for r in contract.tables if r is not narrowed] == [r for r in example.tables if r is not granted]
    assert replace(narrowed, partitions=granted.partitions) == granted
    same = {"name": example.name, "description": example.description, "tables": example.tables}
    assert replace(contract, **same) == example


def test_stray_rows_are_anothers(source: pa.Table) -> None:
    agent = next(agent for agent in plan.AGENTS if agent.behaviour is Behaviour.STRAYS)
    rows = plan.stray_rows(agent, source, DAYS)
    buckets = BucketTransform(tables.BUCKETS).pyarrow_transform(LongType())(rows["product_id"].combine_chunks())
    assert rows.num_rows > 0
    assert not set(buckets.to_pylist()) & set(agent.share)


def test_the_slots_follow_each_other_over_the_whole_horizon() -> None:
    for days in (1, 14, data.DAYS_MAX):
        slots = [plan.slot(index, days) for index in range(plan.STOCK_SLOTS)]
        assert (slots[0][0], slots[-1][1]) == data.horizon(days)
        assert all(earlier[1] == later[0] for earlier, later in pairwise(slots))


def test_other_contracts_can_be_read() -> None:
    for name in (plan.MEDIATOR, plan.AUDITOR):
        assert load(plan.contract_text(name, DAYS), source=name).name == name


@pytest.mark.parametrize("runs", [[], [[0, 0]], [[0, 4], [6, 6], [9, 12]]])
def test_runs_name_exactly_their_rows(runs: list[list[int]]) -> None:
    assert journal.runs_of(journal.ids_of(runs)) == runs
