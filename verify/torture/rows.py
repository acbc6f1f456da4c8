"""Rows at the door, exactly once: agents and towers that are killed, a network and a storage that fail, and others.

    rows.py --rows 10000000         rows that are to be acknowledged (default 100,000)
    rows.py --agents 6 --towers 2 --seed N --minutes M

Agents are processes that are killed with -9 and started again; they send what they had begun under the same keys. A
proxy loses answers, sends requests twice, late, or in half. Towers over one catalog are killed with -9, and a share of
the calls to their storage fails. Meanwhile PyIceberg appends to the table past every tower, and columns, partitioning,
sort order and properties change. In the end a stranger reads the table: every acknowledged row is there once with all
of its values, every other request as a whole or not at all, and the group files name the owner of each row. Exit
status 1: something is otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.commits import verify
from verify.kit.tower_process import TowerProcess
from verify.torture import failing_io
from verify.torture.row_batches import ACKNOWLEDGED, REFUSED, ROWS_MAX, Batch, Journal, batch
from verify.torture.rows_agent import Spec
from verify.torture.rows_judge import Answered, ids_of, judge_groups, judge_ids
from verify.torture.rows_others import NAMESPACE, TABLE, Changes, Outside, opened, prepared
from verify.torture.rows_proxy import Proxy

ROOT = Path(__file__).resolve().parent.parent.parent
SEED = 20261126
STARTS_MAX = 5
TELL_EVERY_S = 30.0
CONTRACT = f"""version: 1
agent: rows
owner: rows@example.com
tables:
  - {{table: {NAMESPACE}.{TABLE}, operations: [append], partitions: all}}
"""


class Broken(AssertionError):
    """The run cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run.

    Attributes:
        rows: that are to be acknowledged, of all agents together.
        most: rows of one request, at most; 0: by how many there are to be.
        width: requests at once of each agent.
        fails: share of the calls to the towers' storage.
        agent_kill_s, tower_kill_s: on average between two kills.
        change_s: between two changes of the table; outside appends come as often.
        minutes: after which the run is given up.
    """

    rows: int = 100_000
    most: int = 0
    agents: int = 6
    width: int = 4
    towers: int = 2
    seed: int = SEED
    fails: float = 0.01
    agent_kill_s: float = 1.5
    tower_kill_s: float = 6.0
    change_s: float = 2.0
    minutes: float = 240.0

    @property
    def rows_most(self) -> int:
        """Rows of one request, at most: so few that there are some hundred requests."""
        return self.most or max(100, min(ROWS_MAX, self.rows // 200))


@dataclass(slots=True)
class Report:
    """The counts of a run, and its faults."""

    counts: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])


class Torture:
    """One run in a directory of its own."""

    def __init__(self, plan: Plan, home: Path) -> None:
        self._plan = plan
        self._home = home
        self._random = random.Random(plan.seed)
        self._towers: list[TowerProcess | None] = [None] * plan.towers
        self._agents: dict[int, asyncio.subprocess.Process] = {}
        self._over = asyncio.Event()
        self.counts: Counter[str] = Counter()

    async def run(self, tell: Callable[[str], None]) -> Report:
        """All of it, and the judgement."""
        plan, data = self._plan, self._home / "data"
        data.mkdir(parents=True)
        prepared(data)
        self._settings()
        await asyncio.gather(*(self._start(at) for at in range(plan.towers)))
        tokens = await asyncio.to_thread(self._principals)
        outside, changes = Outside(data, plan.seed), Changes(data, plan.seed)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._end)
            proxy = await stack.enter_async_context(Proxy(self._addresses, plan.seed))
            chaos = [
                asyncio.create_task(work)
                for work in (
                    self._every(plan.agent_kill_s, self._kill_agent),
                    self._every(plan.tower_kill_s, self._kill_tower),
                    self._every(plan.change_s, lambda: asyncio.to_thread(outside.append)),
                    self._every(plan.change_s, lambda: asyncio.to_thread(changes.make)),
                    self._telling(tell),
                )
            ]
            async with asyncio.timeout(plan.minutes * 60):
                await asyncio.gather(*(self._live(n, tokens[n - 1], proxy.port) for n in range(1, plan.agents + 1)))
            self._over.set()
            await asyncio.gather(*chaos)
            await proxy.settle()
        self.counts.update({f"network: {name}": times for name, times in proxy.counts.items()})
        self.counts.update({f"outside: {name}": times for name, times in outside.counts.items()})
        self.counts.update({f"table changes: {name}": times for name, times in changes.counts.items()})
        log = self._home / "failures"
        self.counts.update(f"storage: {line} failed" for line in (log.read_text().splitlines() if log.exists() else ()))
        return await asyncio.to_thread(self._judged, outside)

    # -- towers ---------------------------------------------------------------------------------------------------

    def _addresses(self) -> list[str]:
        """Of the towers that are up."""
        return [tower.uri for tower in self._towers if tower is not None]

    def _settings(self) -> None:
        storage = failing_io.properties(self._plan.fails, self._plan.seed, str(self._home / "failures"))
        lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in storage.items()]
        (self._home / "tower.toml").write_text("\n".join(["[storage]", *lines, ""]))

    async def _start(self, at: int) -> None:
        environment = {"PYTHONPATH": str(ROOT)}
        arguments = ("--config", str(self._home / "tower.toml"))
        for _ in range(STARTS_MAX):
            with suppress(AssertionError):  # it has not begun to serve
                self._towers[at] = await asyncio.to_thread(
                    TowerProcess, self._home / "data", *arguments, environment=environment
                )
                self.counts["towers started"] += 1
                return
        raise Broken(f"no tower started: {(self._home / 'data.stderr').read_text()[-2000:]}")

    async def _kill_tower(self) -> None:
        at = self._random.randrange(len(self._towers))
        await self._end_tower(at)
        self.counts["towers killed"] += 1
        await self._start(at)

    async def _end_tower(self, at: int) -> None:
        tower, self._towers[at] = self._towers[at], None
        if tower is not None:
            tower.process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(tower.process.wait)
            tower.admin.close()
            assert tower.process.stdout is not None
            tower.process.stdout.close()

    def _principals(self) -> list[str]:
        tower = self._towers[0]
        assert tower is not None
        tower.admin.apply_contract(CONTRACT)
        return [tower.admin.create_principal(f"rows-{number}", "rows") for number in range(1, self._plan.agents + 1)]

    # -- agents ---------------------------------------------------------------------------------------------------

    def _journal(self, number: int) -> Path:
        return self._home / f"agent-{number}.journal"

    async def _live(self, number: int, token: str, port: int) -> None:
        """One agent, started again each time that it was killed, until it has done its share."""
        plan = self._plan
        spec = Spec(
            host="127.0.0.1",
            port=port,
            path=f"/v1/namespaces/{NAMESPACE}/tables/{TABLE}/rows",
            token=token,
            number=number,
            seed=plan.seed,
            journal=str(self._journal(number)),
            rows=-(-plan.rows // plan.agents),
            rows_most=plan.rows_most,
            width=plan.width,
        )
        log = self._home / f"agent-{number}.log"
        while True:
            with log.open("ab") as errors:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "verify.torture.rows_agent", json.dumps(asdict(spec)), cwd=ROOT, stderr=errors
                )
            self._agents[number] = process
            status = await process.wait()
            del self._agents[number]
            if status == 0:
                return
            if status != -signal.SIGKILL:
                raise Broken(f"agent {number} ended with {status}: {log.read_text()[-2000:]}")
            self.counts["agents killed"] += 1

    async def _kill_agent(self) -> None:
        # Of all agents, so that the last one that works is killed as often as it was among many.
        process = self._agents.get(self._random.randint(1, self._plan.agents))
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()

    # -- around ---------------------------------------------------------------------------------------------------

    async def _every(self, mean_s: float, work: Callable[[], Awaitable[None]]) -> None:
        """Do something over and over, until the agents are done."""
        while not await self._ends_within(min(self._random.expovariate(1 / mean_s), 4 * mean_s)):
            await work()

    async def _ends_within(self, seconds: float) -> bool:
        """Wait; whether the agents are done by then."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()
        return self._over.is_set()

    async def _telling(self, tell: Callable[[str], None]) -> None:
        while not await self._ends_within(TELL_EVERY_S):
            rows = sum(journal.acknowledged_rows for journal in self._journals().values())
            killed = f"{self.counts['agents killed']} agents and {self.counts['towers killed']} towers killed"
            tell(f"{rows:,} of {self._plan.rows:,} rows acknowledged, {killed}")

    async def _end(self) -> None:
        """Nothing of a run stays."""
        self._over.set()
        for process in list(self._agents.values()):
            with suppress(ProcessLookupError):
                process.kill()
        await asyncio.gather(*(self._end_tower(at) for at in range(len(self._towers))))

    # -- the judgement --------------------------------------------------------------------------------------------

    def _journals(self) -> dict[int, Journal]:
        numbers = [n for n in range(1, self._plan.agents + 1) if self._journal(n).exists()]
        return {n: Journal.read(self._journal(n).read_text().splitlines()) for n in numbers}

    def _judged(self, outside: Outside) -> Report:
        answered, good = Answered(), list[Batch]()
        for number, journal in self._journals().items():
            self.counts.update({f"answers: {answer}": times for answer, times in journal.answers.items()})
            for each, rows in journal.rows.items():
                of = batch(self._plan.seed, number, each, self._plan.rows_most, arrow=number % 2 == 1)
                assert of.rows == rows
                how = journal.ended.get(each)
                place = {ACKNOWLEDGED: answered.acknowledged, REFUSED: answered.refused}.get(how or "", answered.open)
                place[of.id] = rows
                if how == ACKNOWLEDGED:
                    good.append(of)
        self.counts["requests acknowledged"] = len(answered.acknowledged)
        self.counts["requests left open"] = len(answered.open)
        self.counts["requests refused"] = len(answered.refused)
        self.counts["rows acknowledged"] = answered.acknowledged_rows
        answered.acknowledged |= outside.acknowledged
        answered.open |= outside.open
        table = opened(self._home / "data")
        ids, faults = ids_of(table)
        faults += judge_ids(ids, answered)
        self.counts["rows in the table"] = len(ids)
        metadata = verify.head_of(self._home / "data" / "catalog.db", NAMESPACE, TABLE)
        counts, wrong = judge_groups(metadata, good)
        self.counts.update(counts)
        self.counts["snapshots in the table"] = len(metadata["snapshots"])
        self.counts["partition specs of the table"] = len(metadata["partition-specs"])
        self.counts["schemas of the table"] = len(metadata["schemas"])
        return Report(self.counts, faults + wrong)


def torture(plan: Plan, home: Path | None = None, tell: Callable[[str], None] = print) -> Report:
    """One run, in a temporary directory or in `home`; errors are among its faults."""
    with tempfile.TemporaryDirectory(prefix="torture-rows-") as place:
        run = Torture(plan, home or Path(place))
        try:
            return asyncio.run(run.run(tell))
        except (Broken, TimeoutError) as error:
            return Report(run.counts, [f"{type(error).__name__}: {error}"])


def shown(report: Report) -> list[str]:
    """The counts and the faults, a line each."""
    counts = [f"  {name:44} {times:>12,}" for name, times in sorted(report.counts.items())]
    return [*counts, *(f"FAULT {fault}" for fault in report.faults)]


def main(given: Sequence[str] | None = None) -> int:
    """Read the command line and do it."""
    usual = Plan()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=usual.rows)
    parser.add_argument("--most", type=int, default=0, help="rows of one request, at most")
    parser.add_argument("--agents", type=int, default=usual.agents)
    parser.add_argument("--towers", type=int, default=usual.towers)
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--minutes", type=float, default=usual.minutes)
    parser.add_argument("--home", type=Path, help="an empty folder that is kept, instead of a temporary one")
    asked = parser.parse_args(given)
    plan = Plan(
        rows=asked.rows,
        most=asked.most,
        agents=asked.agents,
        towers=asked.towers,
        seed=asked.seed,
        minutes=asked.minutes,
    )
    began_s = time.monotonic()
    report = torture(plan, asked.home, lambda line: print(line, flush=True))
    print(*shown(report), sep="\n")
    print(f"{time.monotonic() - began_s:.0f} s, {len(report.faults)} faults")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
