"""What the gate costs, and observation: the same commits by principals under contracts, and by administrators.

    gate.py                      256 writers, five rounds: under ten minutes
    gate.py --writers N --rounds N --seconds S
    gate.py --json               the figures as JSON on standard output, and nothing else
    gate.py --tables             no runs: table and page from the results that there are

`/metrics` is scraped meanwhile. Each round runs all sides, in turns from the front and from the back. Every writer is
a principal with a contract of its own, as far from simple as they come; the commits of all sides are the same bytes.
Results go to docs/plots/bench/bench-gate.json, a table into docs/benchmarks.md. Exit status 1: a table was not exact,
or a side could not be run; 2: the gate or observation costs more than is promised.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from pyiceberg.catalog import load_catalog
from rich.console import Console

from bench.commits import pages, protocol_writers, servers, sides, verify
from bench.commits.gate_clock import OBSERVATION, totals
from bench.commits.operations import Spread, figures, judge
from bench.commits.prepared import Plan, prepare
from bench.commits.protocol_writers import COMMIT_PATH, Load, Request
from bench.commits.shapes import SPREAD, hour_text, values_of
from bench.commits.verify import NAMESPACE, TABLE
from icetower.agent import Tower, keyed, new_key

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = pages.PLOTS / "bench-gate.json"

ADMINISTRATORS = "administrators"
WHOLE = "one contract, all partitions"
OWN = "a contract each, with regions"
SIDES = (ADMINISTRATORS, WHOLE, OWN)
COST_MAX = 0.10
"""Of a commit's server time, at 256 writers."""
OBSERVATION_MAX = 0.05
"""Of the same, for everybody's commits."""
SCRAPE_EVERY_S = 5.0
"""Prometheus' default is a minute."""

WRITERS, ROUNDS, SECONDS = 256, 5, 10.0
WARM_MAX_S = 60.0
"""For every writer's first commit, which is not counted: with it the tower reads its contract, once."""
RATE_MAX = 400
"""Commits a second for which requests are prepared."""

EVERYTHING = f"""version: 1
agent: everything
tables:
  - table: {NAMESPACE}.{TABLE}
    operations: [append]
    partitions: all
    write_location: table
    blind_appends: true
"""


def contract(writer: int) -> str:
    """One writer's contract, with all that takes time to ask: the writer's hour is in the last of its regions."""
    return f"""version: 1
agent: writer-{writer}
owner: team-{writer % 16}@example.com
tables:
  - table: {NAMESPACE}.{TABLE}
    operations: [append, overwrite]
    partitions:
      - hour(at): {{from: now-2h, to: now+2h}}
      - day(at): 2016-02-29
        bucket(8, id): [0, 1, 2, 3]
      - at_hour: ["{hour_text(writer, 10_000)}", "{hour_text(writer, 20_000)}"]
      - at_hour: {{from: "{hour_text(writer)}", to: "{hour_text(writer, 1)}"}}
        bucket(16, id): {list(range(16))}
    except:
      - day(at): {{from: 2018-01-01, to: 2018-02-01}}
      - hour(at): "{hour_text(writer, 30_000)}"
        id_bucket: [3]
    blind_appends: true
    read_scope: owned
    isolation: serializable
    quotas: {{commits_per_minute: 6000, files_per_commit: 500, bytes_per_commit: 1GiB}}
  - table: {NAMESPACE}.{TABLE}_log
    operations: [append]
    partitions:
      - _agent: [writer-{writer}]
reads: [inventory.*, pricing.**]
retries: {{attempts: 5, min_wait: 100ms, max_wait: 5s}}
escalation: {{after_failures: 5, within: 10m, to: Dana Ito <dana.ito@example.com>}}
idempotency: {{required: true, how: [header, summary], window: 24h}}
orphans: {{detect_every: 24h, older_than: 72h, action: report}}
revocation: {{by: [oncall]}}
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of one side."""

    side: str
    writers: int
    seconds: float
    round: int


def course(rounds: int, writers: int, seconds: float) -> Iterator[Case]:
    """Each round makes all runs; every other round from the back, so that no side always comes first."""
    for number in range(1, rounds + 1):
        for side in SIDES if number % 2 else SIDES[::-1]:
            yield Case(side, writers, seconds, number)


def run(case: Case, folder: Path) -> dict[str, Any]:
    """Run a case in an empty folder; its figures as a JSON object. Raises `Trouble` where it cannot be run."""
    out = folder / "gate.json"
    with servers.tower(folder, "s3", case.round, launcher=("bench.commits.gate_clock", str(out))) as server:
        catalog = load_catalog("bench", **sides.rest(server))
        catalog.create_namespace(NAMESPACE)
        table = catalog.create_table(f"{NAMESPACE}.{TABLE}", schema=SPREAD.schema, partition_spec=SPREAD.spec())
        table.append(SPREAD.rows([values_of(sides.FIRST_ROW, 0)]), snapshot_properties=keyed(new_key(), blind=True))
        tokens = _principals(server, case)
        requests = _requests(server, case)
        firsts, others = [queue[:1] for queue in requests], [queue[1:] for queue in requests]
        first = protocol_writers.replay_each(server.uri, COMMIT_PATH, tokens, firsts, WARM_MAX_S)
        before_s, before = server.cpu_s(), totals(server.process_id, out)
        with _scraped(server):
            load = protocol_writers.replay_each(server.uri, COMMIT_PATH, tokens, others, case.seconds)
        used_s, after = server.cpu_s() - before_s, totals(server.process_id, out)
        timed = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
        metadata = verify.head_of(server.database)
    return _told(case, first, load, used_s, timed, metadata)


@contextmanager
def _scraped(server: servers.Server) -> Generator[None]:
    """`/metrics` is asked for over and over. Raises `Trouble` where it was not answered."""
    over, failures = threading.Event(), list[str]()

    def scrape() -> None:
        with httpx2.Client(headers={"Authorization": f"Bearer {server.token}"}, timeout=30) as client:
            while not over.wait(SCRAPE_EVERY_S):
                answer = client.get(f"{server.uri}/metrics")
                if answer.status_code != 200:
                    failures.append(f"/metrics answered {answer.status_code}")

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failures:
        raise servers.Trouble(failures[0])


def _principals(server: servers.Server, case: Case) -> list[str]:
    names = [f"writer-{number}" for number in range(case.writers)]
    with Tower(server.uri, server.token) as tower:
        if case.side == ADMINISTRATORS:
            bound = dict.fromkeys(names, "administrator")
        elif case.side == WHOLE:
            tower.apply_contract(EVERYTHING)
            bound = dict.fromkeys(names, "everything")
        else:
            tower.apply_contracts([contract(number) for number in range(case.writers)])
            bound = {name: name for name in names}
        return [tower.create_principal(name, bound[name]) for name in names]


def _requests(server: servers.Server, case: Case) -> list[list[Request]]:
    """Each writer's own, in its hour and at its place, keyed: what every contract here asks for."""
    each = max(2, int(RATE_MAX * case.seconds / case.writers))

    def writer_of(row_id: int) -> int:
        return (row_id - sides.PREPARED_FROM) // each

    plan = Plan(
        SPREAD,
        values=lambda row_id: values_of(row_id, writer_of(row_id)),
        folder=lambda row_id: f"writer-{writer_of(row_id)}",
        summary=lambda _: keyed(new_key(), blind=True),
    )
    ids = range(sides.PREPARED_FROM, sides.PREPARED_FROM + each * case.writers)
    queues: list[list[Request]] = [[] for _ in range(case.writers)]
    for commit in prepare(verify.head_of(server.database), ids, plan):
        queues[writer_of(commit.row_id)].append(Request(commit.row_id, commit.body))
    return queues


def _told(
    case: Case, first: Load, load: Load, used_s: float, timed: Mapping[str, float], metadata: Mapping[str, Any]
) -> dict[str, Any]:
    counted = figures(load.operations, from_s=load.from_s + sides.WARM_S, to_s=load.from_s + case.seconds)
    acknowledged = sum(op.outcome == "ok" for op in load.operations)
    each_ms = {name: seconds * 1000 / max(acknowledged, 1) for name, seconds in timed.items()}
    observation = {name: ms for name, ms in each_ms.items() if name in _OBSERVING}
    gate = {name: ms for name, ms in each_ms.items() if name not in _OBSERVING}
    verdict = judge([*first.operations, *load.operations], verify.row_ids(metadata), before=[sides.FIRST_ROW])
    return {
        "side": case.side,
        "writers": case.writers,
        "round": case.round,
        "acknowledged": acknowledged,
        "tried": len(load.operations),
        "failures": counted.failures,
        "commits_per_s": counted.commits_per_s,
        "p50_ms": counted.p50_ms,
        "p99_ms": counted.p99_ms,
        "server_cpu_ms": used_s * 1000 / max(acknowledged, 1),
        "gate_cpu_ms": sum(gate.values()),
        "gate_cpu_ms_by": gate,
        "observation_cpu_ms": sum(observation.values()),
        "observation_cpu_ms_by": observation,
        "exact": verdict.exact,
    }


_OBSERVING = frozenset(name for _, name in OBSERVATION)


# -- what it comes to -------------------------------------------------------------------------------------------------

Record = Mapping[str, Any]


def cost(records: Sequence[Record], side: str) -> Spread | None:
    """The gate's share of a commit's server time: what it takes beyond what it takes of an administrator's.

    Both are from one round and from within the server, so that what else the machine did is in neither.
    """
    plain = {record["round"]: record["gate_cpu_ms"] for record in records if record["side"] == ADMINISTRATORS}
    shares = [
        (record["gate_cpu_ms"] - plain[record["round"]]) / record["server_cpu_ms"]
        for record in records
        if record["side"] == side and record["round"] in plain
    ]
    return Spread.of(shares) if shares else None


def ratio(records: Sequence[Record], side: str, figure: str) -> Spread | None:
    """A figure of a side against the administrators' in the same round."""
    plain = {record["round"]: record[figure] for record in records if record["side"] == ADMINISTRATORS}
    ratios = [r[figure] / plain[r["round"]] for r in records if r["side"] == side and plain.get(r["round"])]
    return Spread.of(ratios) if ratios else None


def observed(records: Sequence[Record], side: str) -> Spread | None:
    """The share of observation in a side's server time."""
    shares = [each["observation_cpu_ms"] / each["server_cpu_ms"] for each in records if each["side"] == side]
    return Spread.of(shares) if shares else None


def tables(records: Sequence[Record]) -> list[pages.Shown]:
    """Least, median and greatest of the rounds."""
    rows = []
    for side in SIDES:
        own = [record for record in records if record["side"] == side]
        if not own:
            continue
        plain = side == ADMINISTRATORS
        figures = ("commits_per_s", "server_cpu_ms", "gate_cpu_ms")
        rows.append(
            (
                side,
                str(own[0]["writers"]),
                *(pages.spread_text(Spread.of(record[figure] for record in own)) for figure in figures),
                "–" if plain else pages.spread_text(_percent(cost(records, side))),
                "–" if plain else pages.spread_text(ratio(records, side, "server_cpu_ms")),
                pages.spread_text(Spread.of(record["observation_cpu_ms"] for record in own)),
                pages.spread_text(_percent(observed(records, side))),
                "yes" if all(record["exact"] for record in own) else "NO",
            )
        )
    columns = (
        "principals", "writers", "commits/s", "server CPU ms each", "of these the gate", "gate's share %",
        "server CPU against administrators", "observation, ms each", "its share %", "exact",
    )  # fmt: skip
    return [
        pages.Shown(
            "What the gate and observation take (least / median / greatest of the rounds)", columns, tuple(rows)
        )
    ]


def _percent(spread: Spread | None) -> Spread | None:
    return None if spread is None else Spread(spread.least * 100, spread.median * 100, spread.greatest * 100)


def main(given: list[str] | None = None) -> int:
    """Run, write, report, and answer with the exit status."""
    asked = _arguments(given)
    console = Console(stderr=asked.json, width=None if sys.stdout.isatty() else pages.WIDTH)
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not asked.tables:
        machine = pages.machine_now()
        records: list[dict[str, Any]] = []
        try:
            for case in course(asked.rounds, asked.writers, asked.seconds):
                with pages.folders() as folder:
                    records.append(run(case, folder()))
                console.print(_line(records[-1]))
        except servers.Trouble as error:
            print(f"gate: {error}", file=sys.stderr)
            return 1
        results = {"machines": {"gate": machine}, "runs": records}
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    records = results["runs"]
    shown = tables(records)
    for table in shown:
        console.print(pages.on_terminal(table))
    about = pages.machine_text(results["machines"])
    pages.PAGE.write_text(pages.between(pages.PAGE.read_text(), "bench-gate", shown, about))
    if asked.json:
        print(json.dumps(results))
    if not all(record["exact"] for record in records):
        return 1
    gate, observation = cost(records, OWN), observed(records, OWN)
    held = gate is not None and gate.median < COST_MAX
    return 0 if held and observation is not None and observation.median < OBSERVATION_MAX else 2


def _line(record: Record) -> str:
    failures = f", failures {record['failures']}" if record["failures"] else ""
    return (
        f"round {record['round']}: {record['side']}: {record['commits_per_s']:.0f} commits/s, server CPU "
        f"{record['server_cpu_ms']:.2f} ms each, the gate {record['gate_cpu_ms']:.3f} ms, observation "
        f"{record['observation_cpu_ms']:.3f} ms, exact {record['exact']}"
        f"{failures}"
    )


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=WRITERS, help=f"({WRITERS})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"({ROUNDS})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of each run ({SECONDS:g})")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on standard output")
    parser.add_argument("--tables", action="store_true", help="table and page from the results that there are")
    return parser.parse_args(given)


if __name__ == "__main__":
    sys.exit(main())
