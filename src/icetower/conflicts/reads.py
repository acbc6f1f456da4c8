"""What a writer is known to have read, where the protocol itself doesn't say (trap R2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from icetower.conflicts.expressions import Expression
from icetower.conflicts.isolation import Level


@dataclass(frozen=True, slots=True)
class ReadScope:
    """The rows that a commit's writer may have read, and the isolation that it is owed.

    Attributes:
        level: snapshot isolation minds what was written by both; serializable isolation also what came into the scope.
        filter: the writer's own scan filter; None where it gave none.
        owned: (spec id, partition) → whether the writer's contract may own that partition. What cannot be decided
            counts as owned. None where no contract narrows the scope.
        source: whose word it is: ``contract`` or ``summary``.
    """

    level: Level
    filter: Expression | None
    owned: Callable[[int, tuple[Any, ...]], bool] | None
    source: str
