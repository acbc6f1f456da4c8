"""`icetower.Agent` and `AsyncAgent` against a tower: under contracts of each pattern, with answers lost, and killed."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from icetower import Agent, AsyncAgent
from icetower.agent import Patience, Tower, Written, merged_view, new_key
from icetower.agent.steps import Lost, Request
from icetower.errors import Forbidden, IcetowerError, KeyMisused, Unavailable, UsageError
from verify.kit.tower_process import TowerProcess

PRICES = Schema(
    NestedField(1, "sku", LongType(), required=True),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "price", DecimalType(9, 2), required=False),
    NestedField(4, "at", TimestamptzType(), required=False),
    identifier_field_ids=[1],
)
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
NINE = dt.datetime(2026, 1, 2, 9, tzinfo=dt.UTC)


class Client:
    """An agent of either kind, whose calls a test may write as if they blocked."""

    def __init__(self, uri: str, secret: str, *, asynchronous: bool, **given: Any) -> None:
        self._loop = asyncio.Runner() if asynchronous else None
        self.agent: Any = (AsyncAgent if asynchronous else Agent)(uri, secret, **given)

    def __getattr__(self, name: str) -> Callable[..., Written]:
        call = getattr(self.agent, name)
        if self._loop is None:
            return call
        runner = self._loop

        def run(*given: Any, **named: Any) -> Written:
            async def awaited() -> Written:
                return await call(*given, **named)

            return runner.run(awaited())

        return run

    def together(self, *given: tuple[str, str, Any]) -> Written:
        """A transaction."""
        if self._loop is None:
            with self.agent.transaction() as transaction:
                for act, table, rows in given:
                    getattr(transaction, act)(table, rows)
            return transaction.written

        async def run() -> Written:
            async with self.agent.transaction() as transaction:
                for act, table, rows in given:
                    getattr(transaction, act)(table, rows)
            return transaction.written

        return self._loop.run(run())

    def end(self) -> None:
        self.close()
        if self._loop is not None:
            self._loop.close()


Opened = Callable[..., Client]


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def opened(request: pytest.FixtureRequest, tower: TowerProcess, namespace: str) -> Iterator[Opened]:
    """Makes an agent under a contract of its own: entries, in which `{t}` is the namespace."""
    clients: list[Client] = []

    def make(name: str, *entries: str, **given: Any) -> Client:
        listed = "".join(f"- {{{entry.replace('{t}', namespace)}}}\n" for entry in entries)
        secret = tower.principal(f"{namespace}_{name}", f"owner: shop@example.com\ntables:\n{listed}")
        clients.append(Client(tower.uri, secret, asynchronous=request.param, **given))
        return clients[-1]

    yield make
    for each in clients:
        each.end()


@dataclass
class Price:
    sku: int
    region: str
    price: Decimal
    at: dt.datetime | None = None


def price(sku: int, amount: str, region: str = "eu") -> Price:
    return Price(sku, region, Decimal(amount), NINE)


def contents(catalog: Catalog, table: str) -> list[dict[str, Any]]:
    return catalog.load_table(table).scan().to_arrow().sort_by("sku").to_pylist()


def prices(catalog: Catalog, table: str) -> dict[int, Decimal]:
    rows = contents(catalog, table)
    found = {row["sku"]: row["price"] for row in rows}
    assert len(found) == len(rows)
    return found


# -- patterns ---------------------------------------------------------------------------------------------------------


def test_an_agent_with_commits_of_its_own(catalog: Catalog, namespace: str, opened: Opened) -> None:
    name = f"{namespace}.prices"
    catalog.create_table(name, PRICES, partition_spec=BY_REGION)
    agent = opened("a", "table: '{t}.prices', operations: [append, overwrite, delete], partitions: all")
    done = agent.append(name, [price(1, "1.00"), price(2, "2.00")])
    table = catalog.load_table(name)
    head = table.current_snapshot()
    assert head is not None
    assert (done.outcome, done.snapshot_id, done.written_to) == ("appended", head.snapshot_id, name)
    frame = pd.DataFrame({"sku": [3], "region": pd.Categorical(["us"]), "price": [Decimal("3.00")], "at": [NINE]})
    agent.append(name, frame)
    agent.append(name, pa.Table.from_pandas(frame.assign(sku=4)))
    again = agent.append(name, {"sku": 5, "region": "us"}, key="the fifth")
    assert agent.append(name, {"sku": 5, "region": "us"}, key="the fifth").snapshot_id == again.snapshot_id
    agent.together(("append", name, [price(6, "6.00")]), ("append", name, [price(7, "7.00", "us")]))
    assert [row["at"] for row in contents(catalog, name)[:4]] == [NINE] * 4

    key = new_key()
    upserts = [agent.upsert(name, [price(1, "1.10"), price(8, "8.00")], key=key) for _ in range(2)]
    assert [each.outcome for each in upserts] == ["committed", "replayed"]
    assert upserts[0].snapshot_id in {each.snapshot_id for each in catalog.load_table(name).snapshots()}
    agent.delete(name, [{"sku": 2}])
    expected = {1: "1.10", 3: "3.00", 4: "3.00", 5: None, 6: "6.00", 7: "7.00", 8: "8.00"}
    assert prices(catalog, name) == {sku: None if each is None else Decimal(each) for sku, each in expected.items()}

    key = new_key()
    rows = [price(9, "9.00", "us")]
    written = [agent.overwrite_partition(name, rows, {"region": "us"}, key=key) for _ in range(2)]
    assert [each.outcome for each in written] == ["committed", "replayed"]
    assert [*prices(catalog, name)] == [1, 6, 8, 9]
    with pytest.raises(UsageError, match="1 of 2 rows lie outside of the partition"):
        agent.overwrite_partition(name, [*rows, price(10, "1.00")], {"region": "us"})
    agent.overwrite_partition(name, [], "region = 'us'")
    assert [*prices(catalog, name)] == [1, 6, 8]
    with pytest.raises(UsageError, match="takes appends alone"):
        agent.together(("append", name, [price(11, "1.00")]), ("delete", name, [{"sku": 1}]))
    with pytest.raises(UsageError, match="rows of one table"):
        agent.together(("append", name, [price(11, "1.00")]), ("append", f"{namespace}.others", [price(1, "1.00")]))


CHANGES = Schema(
    *(field.model_copy(update={"required": False}) for field in PRICES.fields),
    NestedField(5, "_event_time", TimestamptzType(), required=False),
    NestedField(6, "_idempotency_key", StringType(), required=False),
    NestedField(7, "_operation", StringType(), required=False),
    NestedField(8, "_agent", StringType(), required=False),
)
TARGET = Schema(*PRICES.fields, *CHANGES.fields[4:6], identifier_field_ids=[1])
BY_AGENT = PartitionSpec(PartitionField(8, 1000, IdentityTransform(), "_agent"))


def test_rows_are_found_and_fenced_by_the_key_of_their_call(
    catalog: Catalog, namespace: str, tower: TowerProcess
) -> None:
    """Each request has a key of its own, which follows from the call's: nobody but the agent knows it."""
    name = f"{namespace}.landings"
    catalog.create_table(name, PRICES)
    secret = tower.principal(
        f"{namespace}_l", f"tables:\n  - {{table: {name}, operations: [append], partitions: all}}\n"
    )
    with Tower(tower.uri, secret) as client, Agent(tower.uri, secret, rows_max=1) as agent:
        for key in ("readings of 2026-01-09", new_key()):
            rows = [price(1, "1.00"), price(2, "2.00")]
            assert client.landed(name, key).landed is False
            done = agent.append(name, rows, key=key)
            assert done.key == key
            assert client.landed(name, key).landed is True
            found = client.fence(name, key)
            assert (found.landed, found.fenced) == (True, False)
            assert agent.append(name, rows, key=key).outcome == "replayed"
        count = len(contents(catalog, name))
        for key in ("readings of 2026-01-10", new_key()):
            assert client.fence(name, key).fenced
            for rows in ([price(3, "3.00")], [price(3, "3.00"), price(4, "4.00")]):
                with pytest.raises(KeyMisused) as error:
                    agent.append(name, rows, key=key)
                assert error.value.rule == "key.fenced"
        assert len(contents(catalog, name)) == count == 4


def test_of_a_call_that_landed_in_part_the_rest_is_told_and_fenced(
    catalog: Catalog, namespace: str, tower: TowerProcess
) -> None:
    name = f"{namespace}.parts"
    catalog.create_table(name, PRICES, partition_spec=BY_REGION)
    secret = tower.principal(
        f"{namespace}_p", f"tables:\n  - {{table: {name}, operations: [append], partitions: [{{region: [eu]}}]}}\n"
    )
    rows = [price(number, "1.00") for number in range(4)]
    amiss = [*rows[:2], price(2, "1.00", region="us"), rows[3]]
    hasty = Patience(attempts_max=2, total_s=0)
    with Tower(tower.uri, secret) as client, Agent(tower.uri, secret, rows_max=1, patience=hasty) as agent:
        for number, key in enumerate(("readings of 2026-01-11", new_key())):
            with pytest.raises(IcetowerError):
                agent.append(name, amiss, key=key)
            found = client.landed(name, key)
            assert (found.landed, found.partly, found.fenced) == (False, True, False)
            assert found.snapshot == catalog.load_table(name).metadata.current_snapshot_id
            if number:
                found = client.fence(name, key)
                assert (found.landed, found.partly, found.fenced) == (False, True, True)
                with pytest.raises(KeyMisused) as error:
                    agent.append(name, rows, key=key)
                assert error.value.rule == "key.fenced"
                assert len(contents(catalog, name)) == 4 + 2
            else:
                assert agent.append(name, rows, key=key).outcome == "appended"
                assert client.landed(name, key).landed
                assert client.fence(name, key).landed
                assert len(contents(catalog, name)) == 4


def test_an_agent_whose_changes_go_to_a_delta_table(catalog: Catalog, namespace: str, opened: Opened) -> None:
    name, deltas = f"{namespace}.prices", f"{namespace}.deltas"
    catalog.create_table(name, TARGET)
    catalog.create_table(deltas, CHANGES, partition_spec=BY_AGENT)
    agent = opened(
        "a",
        "table: '{t}.prices', operations: [append, overwrite, delete], partitions: all, pattern: collector",
        "table: '{t}.deltas', operations: [append], partitions: [{_agent: ['{t}_a']}], blind_appends: true",
    )
    key = new_key()
    sent = [agent.upsert(name, [price(1, "1.00"), price(2, "2.00")], key=key) for _ in range(2)]
    assert [(each.written_to, each.outcome) for each in sent] == [(deltas, "appended"), (deltas, "replayed")]
    agent.append(name, pa.Table.from_pandas(pd.DataFrame([price(3, "3.00")])))
    agent.upsert(name, [price(2, "2.20")])
    agent.delete(name, [{"sku": 1}])
    agent.together(("upsert", name, [price(4, "4.00")]), ("delete", name, [{"sku": 3}]))
    assert contents(catalog, name) == []
    rows = contents(catalog, deltas)
    assert {row["_agent"] for row in rows} == {f"{namespace}_a"}
    assert len({row["_idempotency_key"] for row in rows}) == len(rows) == 7
    seen = merged_view(catalog.load_table(name), catalog.load_table(deltas), ["sku"]).to_pylist()
    assert {row["sku"]: row["price"] for row in seen} == {2: Decimal("2.20"), 4: Decimal("4.00")}
    with pytest.raises(UsageError, match="an upsert replaces whole rows, and these lack region, price, at"):
        agent.upsert(name, [{"sku": 1}])
    with pytest.raises(UsageError, match="no partition is overwritten through"):
        agent.overwrite_partition(name, [], {"region": "eu"})


def test_an_agent_whose_rows_go_to_a_log(catalog: Catalog, namespace: str, opened: Opened) -> None:
    name, log = f"{namespace}.prices", f"{namespace}.log"
    catalog.create_table(name, TARGET)
    catalog.create_table(log, CHANGES, partition_spec=BY_AGENT)
    agent = opened(
        "a",
        "table: '{t}.prices', operations: [append, overwrite], partitions: all, pattern: mediator, through: '{t}.log'",
        "table: '{t}.log', operations: [append], partitions: all, blind_appends: true",
    )
    assert agent.append(name, [price(1, "1.00")]).written_to == log
    (row,) = contents(catalog, log)
    assert (row["_agent"], row["_operation"]) == (f"{namespace}_a", "upsert")
    before = catalog.load_table(log).metadata.current_snapshot_id
    assert before is not None
    key = new_key()
    agent.append(name, [price(2, "2.00")], key=key)
    sent = contents(catalog, log)[1]
    catalog.load_table(log).manage_snapshots().rollback_to_snapshot(before).commit()
    again = agent.append(name, [price(2, "2.00")], key=key)
    assert (again.outcome, again.key, again.requests[0].key == key) == ("appended", key, False)
    # A mediator may have applied them: it knows them by their own keys.
    assert contents(catalog, log)[1]["_idempotency_key"] == sent["_idempotency_key"]
    with pytest.raises(UsageError, match="a write-ahead log takes no deletes"):
        agent.delete(name, [{"sku": 1}])


def test_an_agent_is_moved_by_its_contract_alone(
    tower: TowerProcess, catalog: Catalog, namespace: str, opened: Opened
) -> None:
    name, deltas = f"{namespace}.prices", f"{namespace}.deltas"
    catalog.create_table(name, TARGET)
    catalog.create_table(deltas, CHANGES, partition_spec=BY_AGENT)
    entries = [
        f"table: '{namespace}.prices', operations: [append, overwrite], partitions: all",
        f"table: '{namespace}.deltas', operations: [append], partitions: all, blind_appends: true",
    ]
    agent = opened("a", *entries)
    assert agent.append(name, [price(1, "1.00")]).written_to == name
    entries[0] += ", pattern: collector"
    listed = "".join(f"- {{{entry}}}\n" for entry in entries)
    tower.admin.apply_contract(f"version: 1\nagent: {namespace}_a\nowner: shop@example.com\ntables:\n{listed}")
    assert agent.append(name, [price(2, "2.00")]).written_to == deltas
    assert [row["sku"] for row in contents(catalog, name)] == [1]
    assert [row["sku"] for row in contents(catalog, deltas)] == [2]


def test_a_refusal_is_the_towers_own(catalog: Catalog, namespace: str, opened: Opened, tmp_path: Path) -> None:
    name = f"{namespace}.prices"
    catalog.create_table(name, PRICES, partition_spec=BY_REGION)
    entry = "table: '{t}.prices', operations: [append], partitions: [{region: [eu]}]"
    patience = Patience(total_s=0)
    agent = opened("a", entry, patience=patience, journal=tmp_path / "journal")
    with pytest.raises(Forbidden) as refused:
        agent.append(name, [price(1, "1.00"), price(2, "2.00", "us")])
    assert (refused.value.rule, refused.value.partitions) == ("contract.partitions", ("region=us",))
    assert refused.value.next_step == "request_partition"
    assert "it is about row 2; no row was written" in str(refused.value)
    with pytest.raises(IcetowerError) as raised:
        agent.append(name, [{"sku": 1, "region": "eu", "price": 1.5}])
    assert raised.value.rule == "rows.values"
    with pytest.raises(IcetowerError) as raised:
        agent.append(name, [{"sku": 1, "region": "eu", "colour": "red"}])
    assert raised.value.rule == "rows.columns"
    assert contents(catalog, name) == []
    assert agent.agent.journal.pending() == ()


def test_rows_of_any_size(catalog: Catalog, namespace: str, opened: Opened) -> None:
    name = f"{namespace}.prices"
    catalog.create_table(name, PRICES)
    agent = opened("a", "table: '{t}.prices', operations: [append], partitions: all")
    done = agent.append(name, pa.table({"sku": range(20_000)}))
    assert len(done.requests) > 1
    agent.append(name, [{"sku": 20_000 + at, "region": "x" * 1_000} for at in range(5_000)])
    assert catalog.load_table(name).scan().count() == 25_000
    with pytest.raises(UsageError, match="is too large for a request"):
        agent.append(name, {"sku": 1, "region": "x" * 5_000_000})


def test_partitions_by_day(catalog: Catalog, namespace: str, opened: Opened) -> None:
    name = f"{namespace}.events"
    schema = Schema(NestedField(1, "at", TimestamptzType()), NestedField(2, "day", DateType()))
    spec = PartitionSpec(PartitionField(1, 1000, DayTransform(), "at_day"))
    catalog.create_table(name, schema, partition_spec=spec)
    agent = opened("a", "table: '{t}.events', operations: [append, overwrite], partitions: all, read_scope: owned")
    days = [NINE + dt.timedelta(days=at) for at in range(3)]
    agent.append(name, [{"at": each, "day": each.date()} for each in days])
    where = "at >= '2026-01-03T00:00:00+00:00' and at < '2026-01-04T00:00:00+00:00'"
    new = days[1].replace(hour=17)
    agent.overwrite_partition(name, [{"at": new, "day": new.date()}], where)
    agent.overwrite_partition(name, [], {"day": days[2].date()})
    assert sorted(catalog.load_table(name).scan().to_arrow()["at"].to_pylist()) == [days[0], new]


# -- exactly once -----------------------------------------------------------------------------------------------------


def lossy(client: Client, rng: random.Random, share: float) -> None:
    """Some requests are lost on the way, and some answers on the way back."""
    transport: Any = client.agent._transport
    take = transport.take
    away = Unavailable("lost by the test", rule="client.connection")

    def loses(step: Any) -> bool:
        return isinstance(step, Request) and rng.random() < share

    if asyncio.iscoroutinefunction(take):

        async def taken(step: Any) -> Any:
            if loses(step):
                raise Lost(away, sent=True)
            answer = await take(step)
            if loses(step):
                raise Lost(away, sent=True)
            return answer

        transport.take = taken
        return

    def take_or_lose(step: Any) -> Any:
        if loses(step):
            raise Lost(away, sent=True)
        answer = take(step)
        if loses(step):
            raise Lost(away, sent=True)
        return answer

    transport.take = take_or_lose


def test_answers_are_lost_and_each_row_is_there_once(
    catalog: Catalog, namespace: str, opened: Opened, tmp_path: Path
) -> None:
    name = f"{namespace}.prices"
    catalog.create_table(name, PRICES, partition_spec=BY_REGION)
    agents = [
        opened(
            str(number),
            "table: '{t}.prices', operations: [append], partitions: all",
            rows_max=7,
            journal=tmp_path / f"journal {number}",
        )
        for number in range(4)
    ]
    for number, agent in enumerate(agents):
        lossy(agent, random.Random(number), 0.2)

    def work(number: int) -> list[int]:
        acknowledged: list[int] = []
        for batch in range(8):
            skus = [number * 10_000 + batch * 100 + at for at in range(10)]
            rows: Any = [price(sku, "1.00", "eu" if sku % 2 else "us") for sku in skus]
            if batch % 2:
                rows = pa.Table.from_pandas(pd.DataFrame(rows))
            done = agents[number].append(name, rows)
            assert done.rows == sum(each.rows for each in done.requests) == 10
            acknowledged += skus
        return acknowledged

    with ThreadPoolExecutor(len(agents)) as threads:
        acknowledged = [sku for skus in threads.map(work, range(len(agents))) for sku in skus]
    assert sorted(row["sku"] for row in contents(catalog, name)) == sorted(acknowledged)
    assert all(agent.agent.journal.pending() == () for agent in agents)


PROGRAM = """
import sys
from pathlib import Path
from icetower import Agent

uri, secret, table, journal, progress, own = sys.argv[1:]
noted = Path(progress)
done = len(noted.read_text().splitlines()) if noted.exists() else 0
with Agent(uri, secret, journal=journal, rows_max=3) as agent, noted.open("a") as notes:
    for batch in range(done, 40):
        rows = [{"sku": batch * 10 + at, "region": "eu"} for at in range(5)]
        agent.append(table, rows, key=f"batch {batch}" if own else None)
        print(batch, file=notes, flush=True)
        print(batch, flush=True)
"""
KILLS = 6


@pytest.mark.parametrize("own", ["own", ""], ids=["keys of the program's own", "keys of the journal"])
def test_a_process_that_is_killed_again_and_again(
    tower: TowerProcess, catalog: Catalog, namespace: str, tmp_path: Path, own: str
) -> None:
    """By SIGKILL, at a moment that nobody chose. What it has not noted as done it sends again."""
    name = f"{namespace}.prices"
    catalog.create_table(name, PRICES)
    secret = tower.principal(f"{namespace}_a", f"tables:\n- {{table: {name}, operations: [append], partitions: all}}\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    files = [str(tmp_path / each) for each in ("program.py", "journal", "progress")]
    arguments = [sys.executable, files[0], tower.uri, secret, name, *files[1:], own]
    rng = random.Random(7)
    for _ in range(KILLS):
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(rng.randint(1, 5)):
                process.stdout.readline()
            process.kill()
    assert subprocess.run(arguments, stdout=subprocess.DEVNULL, check=True).returncode == 0
    assert len((tmp_path / "progress").read_text().splitlines()) == 40
    found = Counter(row["sku"] for row in contents(catalog, name))
    assert found.keys() == {batch * 10 + at for batch in range(40) for at in range(5)}
    # The journal ends a batch when it is acknowledged. Killed before its own note, a program sends it as a new one.
    assert len({sku // 10 for sku, times in found.items() if times > 1}) <= (0 if own else KILLS)
