"""The process of the agents: `python -m icetower.demo.retail.agents`, its job as JSON on standard input.

They share one Spark, and each has a session of its own in it, whose catalog `tower` knows it by its own secret.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from icetower.agent import Tower
from icetower.ambient import SystemAmbient
from icetower.demo.retail import inventory, pricing, promotions, recommendation, tills
from icetower.demo.retail.hours import Hours
from icetower.demo.retail.notes import Death, Notes
from icetower.spark import add_tower, tower_session

NAMES = (pricing.NAME, inventory.NAME, recommendation.NAME, promotions.NAME, tills.NAME)
SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1500m"}


@dataclass(frozen=True, slots=True)
class AgentsJob:
    """What the process is to do.

    Attributes:
        secrets: by agent; who has one is run.
        folder: for notes and the stream's checkpoint.
        hours: the folder of the source.
        deaths: where agents are killed.
    """

    uri: str
    secrets: Mapping[str, str]
    folder: str
    hours: str
    deaths: tuple[Death, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def of_json(text: str) -> AgentsJob:
        read: dict[str, Any] = json.loads(text)
        deaths = tuple(Death(**death) for death in read["deaths"])
        return AgentsJob(read["uri"], read["secrets"], read["folder"], read["hours"], deaths)


def checkpoint_of(folder: Path) -> Path:
    """The checkpoint of the inventory agent's stream."""
    return folder / "checkpoint"


def run_agents(job: AgentsJob) -> None:
    """Run the agents side by side until the source ends. Raises the first error of one, and the others end with it."""
    folder, hours = Path(job.folder), Hours(Path(job.hours))
    works: dict[str, Callable[[Any, Tower, Hours, Notes], None]] = {
        pricing.NAME: pricing.run,
        inventory.NAME: partial(inventory.run, checkpoint=checkpoint_of(folder)),
        recommendation.NAME: recommendation.run,
        promotions.NAME: promotions.run,
        tills.NAME: tills.run,
    }

    def run(name: str, session: Any, tower: Tower) -> None:
        works[name](session, tower, hours, Notes(folder, name, job.deaths))

    side_by_side("retail-agents", job.uri, job.secrets, run)


def side_by_side(app_name: str, uri: str, secrets: Mapping[str, str], work: Callable[[str, Any, Tower], None]) -> None:
    """Do work in threads, one for each secret, in one Spark. Raises the first error of one, and the others end with it.

    Args:
        work: is called with the name, with a session of its own whose catalog `tower` knows it by its secret, and with
            a client.
    """
    failed: list[BaseException] = []
    clients = {name: Tower(uri, secret) for name, secret in secrets.items()}
    spark = tower_session(app_name, next(iter(clients.values())), settings=SETTINGS)

    def run(name: str) -> None:
        try:
            session = spark.newSession()
            add_tower(session, "tower", clients[name])
            work(name, session, clients[name])
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            failed.append(error)

    threads = [threading.Thread(target=run, args=(name,), name=name, daemon=True) for name in clients]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) and not failed:
            for thread in threads:
                thread.join(0.1)
        if failed:
            raise failed[0]
    finally:
        spark.stop()


def main() -> None:
    began_s = SystemAmbient().monotonic_s()
    run_agents(AgentsJob.of_json(sys.stdin.read()))
    sys.stderr.write(f"the agents ended after {SystemAmbient().monotonic_s() - began_s:.0f} s\n")


if __name__ == "__main__":
    main()
