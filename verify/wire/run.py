"""Is Icetower ever weaker than Iceberg? Random jobs by Iceberg's own Java client, through a tower and without one.

    run.py --count N --seed S      N random jobs; the first is job S
    run.py JOB.json ...            these jobs (what is saved as a divergence, or a job by itself)

A divergence is shrunk to a minimal job and saved in tests/wire/divergences; the test runs all that stand there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

from verify.differential.shrink import shrink
from verify.kit.tower_process import TowerProcess
from verify.wire import jobs
from verify.wire.deletes import positions_of, written
from verify.wire.driver import Driver, Job, alone, through
from verify.wire.judge import Judgement, judge

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SAVED = ROOT / "tests" / "wire" / "divergences"
COUNT = 50
SEED = 20261121
CHUNK = 25
OPERATIONS = "[read, append, overwrite, delete, replace, create, drop, alter, refs]"
"""What a contract of a job grants: everything, so that only its declarations matter."""
TRIES_MAX = 200
"""How many smaller jobs are tried."""
RACES_AGAIN = 3
"""How often a job with a race is run again to see a problem once more: threads are free to take another order."""


@dataclass
class Bench:
    """A tower, and a Java process that speaks to it and to Iceberg alone."""

    driver: Driver
    tower: TowerProcess
    namespace: str
    directory: Path
    """Where the delete files of jobs are written."""
    tables: Iterator[int] = field(default_factory=count)
    secrets: dict[str | None, str] = field(default_factory=dict)
    """By what a contract declares, the secret of a principal under it; None is the administrator."""

    def catalog(self, declares: str | None) -> Mapping[str, str]:
        """Iceberg's properties for a principal whose contract declares this, and forbids nothing."""
        if declares not in self.secrets:
            name = f"{self.namespace}-{len(self.secrets)}".replace("_", "-")
            rule = f"{{table: '**', operations: {OPERATIONS}, partitions: all, write_location: table, {declares}}}"
            contract = f"mode: shadow\ntables:\n- {rule}\n"
            self.secrets[declares] = self.tower.secret if declares is None else self.tower.principal(name, contract)
        return {"uri": self.tower.uri, "token": self.secrets[declares]}

    def judged(self, given: Iterable[Job]) -> Iterator[tuple[Job, Judgement]]:
        """Every job through both, in order."""
        waiting = iter(given)
        while chunk := list(islice(waiting, CHUNK)):
            ready = [self._written(job) for job in chunk]
            asked: list[Job] = []
            for job, place in ready:
                asked.append(self._through(job, place))
                if not races(job):
                    asked.append(alone(job))
            answers = iter(list(self.driver.run_many(asked)))
            for given_job, (job, place) in zip(chunk, ready, strict=True):
                tower = next(answers)
                plain = None if races(job) else next(answers)
                yield given_job, judge(job, positions_of(given_job), place, tower, plain, self._alone)

    def _through(self, job: Job, place: Path) -> Job:
        contract = job.get("contract")
        if contract is not None:  # its files lie where a table that is not the administrator's may have them
            places = {"write.data.path": "mem://t/data", "write.object-storage.path": place.as_uri()}
            job = {**job, "properties": {**job["properties"], **places}}
        return through(job, self.catalog(contract), self.catalog(None), (self.namespace, place.name))

    def _alone(self, job: Job) -> Mapping[str, Any]:
        return self.driver.run(alone(job))

    def judged_as_if(self, job: Job, otherwise: Job) -> Judgement:
        """The judgement of a server that did with the job what Iceberg alone does with another one."""
        ready, place = self._written(job)
        other, _ = self._written(otherwise)
        plain, done = self.driver.run_many([alone(ready), alone({**other, "files": ready["files"]})])
        return judge(ready, positions_of(job), place, done, plain, self._alone)

    def _written(self, job: Job) -> tuple[Job, Path]:
        place = self.directory / f"t{next(self.tables)}"
        return written(job, place), place

    def troubled(self, job: Job, problem: str) -> bool:
        """Whether the job has such a problem; one with a race is given more than one chance to show it."""
        again = RACES_AGAIN if races(job) else 1
        return any(
            alike(problem) == alike(each) for _, judgement in self.judged([job] * again) for each in judgement.problems
        )

    def smaller(self, job: Job, problem: str) -> Job:
        """A smaller job that has the problem still."""
        return shrink(job, lambda candidate: self.troubled(candidate, problem), TRIES_MAX)


def alike(problem: str) -> str:
    """A problem without what names snapshots, writers and files."""
    return re.sub(r"\[[^\]]*\]|\S*\d\S*", "", problem)[:120]


def races(job: Mapping[str, Any]) -> bool:
    """Whether writers commit at the same moment: then Iceberg alone cannot run the very same thing."""
    return any(step["do"] == "race" for step in job["steps"])


def bench(tower: TowerProcess, driver: Driver, directory: Path, namespace: str = "jobs") -> Bench:
    """A bench on a tower that runs."""
    return Bench(driver, tower, namespace, directory)


def described(notes: Counter[str]) -> str:
    """The counts, a line each."""
    return "\n".join(f"{number:7,} {note}" for note, number in sorted(notes.items()))


def main() -> int:
    """Run what is asked for; 1 if anything diverged."""
    parser = argparse.ArgumentParser(description="Is Icetower ever weaker than Iceberg?")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=SEED)
    asked = parser.parse_args()
    if asked.files:
        given = [(saved := json.loads(path.read_text())).get("job", saved) for path in asked.files]
    else:
        given = [jobs.job(seed) for seed in range(asked.seed, asked.seed + asked.count)]
    notes: Counter[str] = Counter()
    found = 0
    with tempfile.TemporaryDirectory(prefix="icetower-never-weaker-") as place:
        tower = TowerProcess(Path(place) / "data")
        try:
            with Driver() as driver:
                table = bench(tower, driver, Path(place) / "deletes")
                for job, judgement in table.judged(given):
                    notes += judgement.notes
                    if judgement.problems:
                        found += 1
                        print(f"{job['name']}:", *judgement.problems, sep="\n    ", flush=True)
                        if not asked.files:
                            save(table.smaller(job, judgement.problems[0]), judgement)
        finally:
            tower.stop()
    print(described(notes))
    print(f"{len(given):,} jobs, {found:,} divergences")
    return int(bool(found))


def save(job: Job, judgement: Judgement) -> None:
    """Keep a divergence as a case for the tests."""
    SAVED.mkdir(exist_ok=True)
    path = SAVED / f"{job['name']}.json"
    path.write_text(json.dumps({"problems": judgement.problems, "job": job}, indent=1) + "\n")
    print(f"    saved as {path.relative_to(ROOT)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
