"""The workload of apache/iceberg-python #1202: agents that append, and agents that rewrite a partition. Pure.

A rewriter reads a partition, thinks for 1 to 60 seconds, and overwrites it with what it has made of the rows. If the
commit is refused because of what others have written, what it has thought is in vain: it reads and thinks again, up to
five times, and then gives up. Thinking is scaled down (`Case.scale`), and so the storage's latency and the machine's
weigh more beside it than they do for such agents.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

RETRIES = 5
THINK_MIN_S, THINK_MAX_S = 1.0, 60.0
APPENDED_ROWS = 5
SEED_ROWS = 50
"""Of each partition, before anybody writes."""

PLAIN, TOWER, INTENTS, BRANCHES, ALONE = "plain", "tower", "intents", "branches", "branches-alone"
SIDES = (PLAIN, TOWER, INTENTS, BRANCHES, ALONE)
SECTION = "rewriters"


@dataclass(frozen=True, slots=True)
class Case:
    """One run.

    Attributes:
        agents: half of them rewrite, the others append.
        partitions: among which both choose at random.
        rewrites: that each rewriter does, one after the other. The appenders go on until the last has ended.
        scale: so many times shorter than in life is all thinking.
    """

    side: str
    agents: int
    partitions: int = 8
    rewrites: int = 3
    scale: float = 20.0
    profile: str = "none"
    seed: int = 1

    @property
    def rewriters(self) -> int:
        return self.agents // 2

    @property
    def appenders(self) -> int:
        return self.agents - self.rewriters


def thinking_s(case: Case, random_: random.Random) -> float:
    """How long an agent thinks: every duration between the two is as likely as one that is twice as long."""
    drawn_s = math.exp(random_.uniform(math.log(THINK_MIN_S), math.log(THINK_MAX_S)))
    return drawn_s / case.scale


def cases(agents: tuple[int, ...], sides: tuple[str, ...], rounds: int, scale: float, profile: str) -> Iterator[Case]:
    """All sides of a number of agents one after the other, so that they meet the same machine."""
    for at in range(1, rounds + 1):
        for number in agents:
            for side in sides:
                yield Case(side, number, scale=scale, profile=profile, seed=at)


def short(sides: tuple[str, ...]) -> Iterator[Case]:
    """Every side once, for a moment: whether it runs."""
    for side in sides:
        yield Case(side, agents=4, partitions=2, rewrites=1, scale=200.0)
