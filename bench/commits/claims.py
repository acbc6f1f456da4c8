"""The failure modes of the guide, and its claim about retries, as runs: plain optimistic clients, and Icetower.

thundering herd        ten sub-agents, each with a partition of its own, decide to write within 500 ms
partition tug of war   two pricing agents, electronics and home goods, put new prices in place of old ones
retry rate             agents that append, each on its own time: one table for all, or a partition for each

Every side has the same agents, the same times and the writer settings of the document: five retries, from 100 ms up to
five seconds. The third failure mode, the orphaned writer, is in `crashes`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from bench.commits import acts, pyiceberg_writers, servers, sides, verify
from bench.commits.acts import CATEGORIES, PRICES, PRODUCTS, Act
from bench.commits.operations import Operation, judge, percentile
from bench.commits.pyiceberg_writers import IDS_PER_WRITER, Job
from bench.commits.shapes import HOURLY, TIMED, Shape, hour_text, values_of
from bench.commits.sides import DIRECT, REFERENCE, TOWER, Java
from bench.commits.verify import NAMESPACE, TABLE
from icetower.agent import Tower
from icetower.demo import slow_io

HERD, TUG, RATE, ORPHAN = "thundering herd", "partition tug of war", "retry rate", "orphaned writer"
ALIGNED, TOGETHER = "a partition each", "not partitioned"
SILENT = "PyIceberg, Icetower, reads not declared"
"""As `TOWER` in the tug of war, but the agents do not say what they have read."""

SETTINGS = {"commit.retry.num-retries": "5", "commit.retry.min-wait-ms": "100", "commit.retry.max-wait-ms": "5000"}
"""The guide, step 3."""

HERD_AGENTS, HERD_WINDOW_S = 10, 0.5
RATE_AGENTS = 8
TUG_S = 4.0
PROFILE = "s3"
FULL_NAME = f"{NAMESPACE}.{TABLE}"


@dataclass(frozen=True, slots=True)
class Case:
    """One run.

    Attributes:
        layout: of the table.
        per_s: for the retry rate: commits begun a second, by all agents together.
        seconds: and for how long.
    """

    claim: str
    side: str
    round: int
    layout: str = ALIGNED
    per_s: float = 0.0
    seconds: float = 0.0

    @property
    def seed(self) -> int:
        """The same for all sides of a round: they see the same times."""
        return self.round * 1000 + round(self.per_s * 10)


@dataclass(frozen=True, slots=True)
class Scene:
    """A side that runs.

    Attributes:
        catalog: as its administrator.
        agents: the properties of each agent's own catalog.
        tally: counts the files that clients and the tower write.
        server: None where clients commit to the database themselves.
    """

    catalog: Catalog
    database: Path
    agents: Sequence[Mapping[str, str]]
    tally: Path
    server: servers.Server | None = None

    def rows(self) -> Any:
        """All that a reader finds in the table now."""
        return self.catalog.load_table(FULL_NAME).scan().to_arrow()


def run(case: Case, folder: Path, java: Java | None = None) -> dict[str, Any]:
    """Run a case in an empty folder; its figures as a JSON object. Raises `Trouble` where it cannot be run."""
    return {HERD: _herd, TUG: _tug, RATE: _rate}[case.claim](case, folder, java)


# -- the sides -------------------------------------------------------------------------------------------------------


@contextmanager
def scene(side: str, folder: Path, java: Java | None, contracts: Sequence[str], seed: int) -> Generator[Scene]:
    """A side with as many agents as there are contracts; only the tower asks for these.

    The agents' storage and the tower's have the latency of S3. The reference server's own has none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tally = folder / "tally"
    tally.touch()

    def agents(properties: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
        return [
            {**own, **slow_io.properties(PROFILE, seed * 100 + number, tally)} for number, own in enumerate(properties)
        ]

    if side == DIRECT:
        database = folder / "catalog.db"
        direct = {"type": "sql", "uri": f"sqlite:///{database}", "warehouse": f"file://{folder}/warehouse"}
        yield Scene(load_catalog("bench", **direct), database, agents([direct] * len(contracts)), tally)
    elif side == REFERENCE:
        if java is None:
            raise servers.Trouble("the reference server needs Java")
        with servers.reference(folder, java.program, java.library) as server:
            same = agents([sides.rest(server)] * len(contracts))
            yield Scene(load_catalog("bench", **sides.rest(server)), server.database, same, tally, server)
    else:
        with servers.tower(folder, PROFILE, seed, tally=tally) as server:
            each = agents([sides.rest(server, secret) for secret in hire(server, contracts)])
            yield Scene(load_catalog("bench", **sides.rest(server)), server.database, each, tally, server)


def hire(server: servers.Server, contracts: Sequence[str]) -> list[str]:
    """Contracts `agent-0`, `agent-1`, …, and a principal of the same name for each; their secrets."""
    with Tower(server.uri, server.token) as tower:
        tower.apply_contracts(contracts)
        return [tower.create_principal(f"agent-{number}", f"agent-{number}") for number in range(len(contracts))]


CONTRACT = """version: 1
agent: agent-{number}
owner: agents@example.com
tables:
  - table: {table}
    operations: [{operations}]
    partitions: {partitions}
    {words}
retries: {{attempts: 5, min_wait: 100ms, max_wait: 5s}}
"""


def contract(number: int, operations: str, partitions: str, words: str) -> str:
    """An agent's contract for the benchmark's table."""
    return CONTRACT.format(number=number, table=FULL_NAME, operations=operations, partitions=partitions, words=words)


def appender(number: int, layout: str = ALIGNED) -> str:
    """The contract of an agent that appends to its own hour; to all of a table that is not partitioned."""
    own = f'[{{"hour(at)": "{hour_text(number)}"}}]'
    return contract(number, "append", own if layout == ALIGNED else "all", "blind_appends: true")


def jobs(
    ready: Scene,
    act: Act,
    *,
    seconds: float = 0.0,
    starts_s: Sequence[tuple[float, ...]] | None = None,
    summary: Callable[[int], Mapping[str, str]] = lambda _: {},
) -> list[Job]:
    """What the agents do: for so many seconds, or each at its own times. More agents than times stay at rest."""
    count = len(ready.agents) if starts_s is None else len(starts_s)
    return [
        Job(n, ready.agents[n], seconds, None if starts_s is None else starts_s[n], act, summary(n))
        for n in range(count)
    ]


# -- thundering herd, retry rate: both are appends -------------------------------------------------------------------


def _herd(case: Case, folder: Path, java: Java | None) -> dict[str, Any]:
    dice = random.Random(case.seed)
    starts_s = [(dice.uniform(0, HERD_WINDOW_S),) for _ in range(HERD_AGENTS)]
    with appending(case, folder, java, HERD_AGENTS) as (ready, before):
        load = pyiceberg_writers.run(jobs(ready, acts.append_in_own_hour, starts_s=starts_s))
        record = record_of(case, ready, load.operations, before, exact=rows_are_right(ready.rows(), load.operations))
    return record | {"herd_s": max(op.end_s for op in load.operations) - load.from_s}


def _rate(case: Case, folder: Path, java: Java | None) -> dict[str, Any]:
    starts_s = poisson(case.seed, RATE_AGENTS, case.per_s, case.seconds)
    with appending(case, folder, java, RATE_AGENTS) as (ready, before):
        load = pyiceberg_writers.run(jobs(ready, acts.append_in_own_hour, starts_s=starts_s))
        return record_of(case, ready, load.operations, before, exact=rows_are_right(ready.rows(), load.operations))


def poisson(seed: int, agents: int, per_s: float, seconds: float) -> list[tuple[float, ...]]:
    """When each agent begins its commits: independently of each other and of what was before, `per_s` in all."""
    dice = random.Random(seed)
    starts_s: list[tuple[float, ...]] = []
    for _ in range(agents):
        times, at_s = [], dice.expovariate(per_s / agents)
        while at_s < seconds:
            times.append(at_s)
            at_s += dice.expovariate(per_s / agents)
        starts_s.append(tuple(times))
    return starts_s


@contextmanager
def appending(
    case: Case, folder: Path, java: Java | None, agents: int, contracts: Sequence[str] | None = None
) -> Generator[tuple[Scene, Before]]:
    """A side with an empty table that the agents append to."""
    shape: Shape = HOURLY if case.layout == ALIGNED else TIMED
    terms = contracts or [appender(number, case.layout) for number in range(agents)]
    with scene(case.side, folder, java, terms, case.seed) as ready:
        ready.catalog.create_namespace(NAMESPACE)
        ready.catalog.create_table(FULL_NAME, schema=shape.schema, partition_spec=shape.spec(), properties=SETTINGS)
        yield ready, Before.of(ready)


def rows_are_right(found: Any, operations: Sequence[Operation]) -> bool:
    """Whether each acknowledged row is in the table once, with its own values, and none that was refused."""
    ids: list[int] = sorted(found["id"].to_pylist())
    expected = TIMED.rows([values_of(row_id, row_id // IDS_PER_WRITER - 1) for row_id in ids])
    return judge(operations, ids).exact and found.sort_by("id").to_pylist() == expected.to_pylist()


# -- partition tug of war --------------------------------------------------------------------------------------------


def _tug(case: Case, folder: Path, java: Java | None) -> dict[str, Any]:
    contracts = [repricer(number) for number in range(len(CATEGORIES))]
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="category"))
    with scene(TOWER if case.side == SILENT else case.side, folder, java, contracts, case.seed) as ready:
        ready.catalog.create_namespace(NAMESPACE)
        table = ready.catalog.create_table(FULL_NAME, schema=PRICES, partition_spec=spec, properties=SETTINGS)
        table.append(acts.catalogue())
        before = Before.of(ready)
        summary = _reads if case.side == TOWER else lambda _: {}
        load = pyiceberg_writers.run(jobs(ready, acts.reprice, seconds=TUG_S, summary=summary))
        exact = prices_are_right(ready.rows().to_pylist(), load.operations)
        record = record_of(case, ready, load.operations, before, exact=exact)
    return record | {"worse_off": worse_off(load.operations, len(contracts))}


def worse_off(operations: Sequence[Operation], agents: int) -> float:
    """The share of the commits that the worst served agent has landed, of what would be fair; 0 to 1."""
    landed = [sum(op.outcome == "ok" and op.writer == number for op in operations) for number in range(agents)]
    return min(landed) * agents / max(sum(landed), 1)


def repricer(number: int) -> str:
    """The contract of a pricing agent: its prices depend on no rows but those of its own category."""
    return contract(
        number, "append, overwrite, delete", f'[{{"category": "{CATEGORIES[number]}"}}]', "read_scope: owned"
    )


def _reads(number: int) -> Mapping[str, str]:
    """An overwrite by filter is put on a newer head by its writer's own word alone."""
    filter_json = orjson.dumps({"type": "eq", "term": "category", "value": CATEGORIES[number]}).decode()
    return {"icetower.filter": filter_json, "icetower.isolation-level": "serializable"}


def prices_are_right(rows: Sequence[Mapping[str, Any]], operations: Sequence[Operation]) -> bool:
    """Whether each price is as high as its agent was told that it has raised it: nothing lost, nothing twice."""
    raised = [sum(op.outcome == "ok" for op in operations if op.writer == number) for number in range(len(CATEGORIES))]
    expected = sorted(
        (at, category, raised[number])
        for number, category in enumerate(CATEGORIES)
        for at in range(number * PRODUCTS, (number + 1) * PRODUCTS)
    )
    return sorted((row["product"], row["category"], row["price"]) for row in rows) == expected


# -- figures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Before:
    """What had been written, and lay about, when the agents began."""

    written: int
    litter: verify.Litter

    @classmethod
    def of(cls, ready: Scene) -> Before:
        return cls(written(ready), verify.litter(ready.database))


def written(ready: Scene) -> int:
    """Files of metadata of every kind that were written until now, those that were deleted again included."""
    own = slow_io.metadata_written(ready.tally)
    # The reference server writes its metadata files by an I/O of its own, and deletes none.
    java = ready.server is not None and ready.server.token is None
    return own + (verify.metadata_files(verify.head_of(ready.database)) if java else 0)


def record_of(
    case: Case, ready: Scene, operations: Sequence[Operation], before: Before, *, exact: bool
) -> dict[str, Any]:
    """What all claims are measured by."""
    lying, files = verify.litter(ready.database), written(ready) - before.written
    return figures_of(operations, files) | {
        "claim": case.claim,
        "side": case.side,
        "layout": case.layout,
        "round": case.round,
        "per_s": case.per_s,
        "orphaned_data": len(lying.data) - len(before.litter.data),
        "orphaned_metadata": len(lying.metadata) - len(before.litter.metadata),
        "exact": exact,
    }


def figures_of(operations: Sequence[Operation], metadata_files: int = 0) -> dict[str, Any]:
    """Rates and latencies of commits. A commit is retried if it was sent more than once, or never landed."""
    good = [op for op in operations if op.outcome == "ok"]
    latencies_ms = sorted((op.end_s - op.start_s) * 1000 for op in good)
    span_s = max((op.end_s for op in operations), default=0.0) - min((op.start_s for op in operations), default=0.0)
    tried = max(len(operations), 1)
    outcomes = {op.outcome for op in operations} - {"ok"}
    return {
        "tried": len(operations),
        "acknowledged": len(good),
        "success": len(good) / tried,
        "retried": sum(op.retries > 0 or op.outcome != "ok" for op in operations) / tried,
        "first": sum(op.retries == 0 and op.outcome == "ok" for op in operations) / tried,
        "retries_each": sum(op.retries for op in operations) / tried,
        "p50_ms": percentile(latencies_ms, 50),
        "p99_ms": percentile(latencies_ms, 99),
        "commits_per_s": len(good) / max(span_s, 1e-9),
        "metadata_each": metadata_files / max(len(good), 1),
        "metadata_per_s": metadata_files / max(span_s, 1e-9),
        "failures": {outcome: sum(op.outcome == outcome for op in operations) for outcome in sorted(outcomes)},
    }
