"""The guard on overwrites that nobody can have meant, with PyIceberg: refused, asked, granted once, and sent again."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from tests.wire.clauses import BY_REGION, NO_RETRY, SCHEMA, Agent, ids, rows
from verify.kit.tower_process import TowerProcess

CONTRACT = """\
owner: Dana Ito <dana.ito@example.com>
tables: [{table: T, operations: [overwrite], partitions: all, guard: {times: 3, above: 10}}]
"""

Make = Callable[..., Agent]


@pytest.fixture
def agent(tower: TowerProcess, namespace: str) -> Make:
    return lambda contract=CONTRACT, name="agent": Agent(tower, namespace, contract, name=name)


@pytest.fixture
def table(catalog: Catalog, namespace: str) -> Table:
    """Ten rows in the north."""
    made = catalog.create_table(f"{namespace}.t", schema=SCHEMA, partition_spec=BY_REGION, properties=NO_RETRY)
    made.append(rows(*range(10)))
    return made


def many(count: int) -> pa.Table:
    return rows(*range(100, 100 + count))


def requests(bound: Agent, *, state: str | None = "open") -> list[dict[str, object]]:
    return [each for each in bound.tower.admin.requests(state=state) if each["principal"] == bound.name]


def test_an_overwrite_that_adds_many_times_what_it_removes_waits_for_a_person(agent: Make, table: Table) -> None:
    bound = agent()
    bound.table().overwrite(many(30), overwrite_filter="region == 'north'")  # three times: as the contract has it
    bound.table().append(many(500))  # no overwrite
    before = ids(table)
    doubles = pa.concat_tables([table.refresh().scan().to_arrow()] * 4)

    def overwrite() -> None:
        bound.table().overwrite(doubles, overwrite_filter="region == 'north'")

    bound.refused("guard.rows", overwrite, "adds 2,120 rows and removes 530")
    bound.refused("guard.rows", overwrite, "waits for its answer")
    assert ids(table) == before
    (request,) = requests(bound)
    assert request["contact"] == "Dana Ito <dana.ito@example.com>"
    assert request["guard"] == {"ref": "main", "rows_added": 2_120, "rows_removed": 530, "times": 3}

    bound.tower.admin.close_request(str(request["id"]), "granted", "a backfill; meant")
    overwrite()  # other files than before
    assert len(ids(table)) == 2_120
    bound.refused("guard.rows", lambda: bound.table().overwrite(pa.concat_tables([doubles] * 5)), "is open for it")


def test_a_larger_overwrite_is_not_granted_with_the_one_that_was_read(agent: Make, table: Table) -> None:
    bound = agent()

    def overwrite(count: int) -> None:
        bound.table().overwrite(many(count), overwrite_filter="region == 'north'")

    bound.refused("guard.rows", lambda: overwrite(40))
    (read,) = requests(bound)
    bound.refused("guard.rows", lambda: overwrite(5_000), "is about an overwrite that adds 40 rows")
    assert requests(bound) == [read]
    bound.tower.admin.close_request(str(read["id"]), "granted", "40 are fine")
    bound.refused("guard.rows", lambda: overwrite(5_000), "is open for it")
    assert ids(table) == [*range(10)]
    overwrite(40)
    assert len(ids(table)) == 40


def test_a_conflict_does_not_use_up_the_approval(agent: Make, table: Table) -> None:
    bound = agent()

    def overwrite(at: Table) -> None:
        at.overwrite(many(100), overwrite_filter="region == 'north'")

    bound.refused("guard.rows", lambda: overwrite(bound.table()))
    (request,) = requests(bound)
    bound.tower.admin.close_request(str(request["id"]), "granted", "meant")
    stale = bound.table()
    table.refresh().append(rows(50))  # somebody else's row, which the overwrite has not read
    with pytest.raises(CommitFailedException):
        overwrite(stale)
    overwrite(bound.table())
    assert len(ids(table)) == 100


def test_a_denied_overwrite_is_asked_anew_with_the_answer(agent: Make, table: Table) -> None:
    bound = agent()

    def overwrite() -> None:
        bound.table().overwrite(many(100), overwrite_filter="region == 'north'")

    bound.refused("guard.rows", overwrite)
    (request,) = requests(bound)
    bound.tower.admin.close_request(str(request["id"]), "denied", "the join was wrong")
    bound.refused("guard.rows", overwrite, "the join was wrong")
    assert ids(table) == [*range(10)]


def test_shadow_mode_notes_what_the_guard_would_refuse(agent: Make, table: Table) -> None:
    bound = agent("mode: shadow\n" + CONTRACT)
    bound.table().overwrite(many(100), overwrite_filter="region == 'north'")
    assert len(ids(table)) == 100
    assert requests(bound, state=None) == []
    noted = bound.tower.admin.shadow_report(bound.name)
    assert "guard.rows" in str(noted)
