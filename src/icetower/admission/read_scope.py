"""What a writer is known to have read, where the protocol itself doesn't say (trap R2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from icetower.iceberg.expressions import TRUE, Bound, Expression, Predicate, columns_of, rebuild, rewrite_not
from icetower.iceberg.validation import Level


@dataclass(frozen=True, slots=True)
class ReadScope:
    """The rows that a commit's writer may have read, and the isolation that it is owed.

    Attributes:
        level: snapshot isolation minds what was written by both; serializable isolation also what came into the scope.
        filter: the writer's own scan filter; None where it gave none.
        owned: (spec id, partition) → whether the writer's contract may own that partition. What cannot be decided
            counts as owned. None where no contract narrows the scope.
        source: what declares it: ``contract``, ``summary`` or ``intent``.
    """

    level: Level
    filter: Expression | None
    owned: Callable[[int, tuple[Any, ...]], bool] | None
    source: str


def carried_over(filter_: Expression, written_with: Mapping[str, Any], now: Mapping[str, Any]) -> Expression:
    """A filter by the names of one schema (JSON), in the names of another that the table has by now.

    Columns are the same by id: one that was renamed is still meant, another that took its name is not. What was asked
    of a column that is gone can't be judged any more, and matches everything.
    """
    if written_with is now or written_with.get("schema-id") == now.get("schema-id"):
        return filter_
    then = columns_of(written_with)
    names = {column.id: column.name for column in columns_of(now).values()}

    def leaf(predicate: Predicate | Bound) -> Expression:
        if isinstance(predicate, Bound):
            return predicate
        column = then.get(predicate.column)
        name = None if column is None else names.get(column.id)
        return TRUE if name is None else replace(predicate, column=name)

    return rebuild(rewrite_not(filter_), leaf)
