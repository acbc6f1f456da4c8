"""Commits that nobody can have meant: an overwrite that adds many times the rows that it removes (contract: `guard`).

A copy-on-write UPDATE of Spark with a subquery can rewrite the whole table and remove one file of it (apache/iceberg
#18004): every other row is there twice, and nothing in the commit is wrong by itself. What it removes and adds tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from icetower.errors import ContractViolation
from icetower.iceberg.change import Change, Touched
from icetower.iceberg.records import DATA, EQUALITY_DELETES
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal

RULE = "guard.rows"


@dataclass(frozen=True, slots=True)
class Excess:
    """An overwrite beyond the bound of its writer's contract.

    Attributes:
        times: the bound: so many rows for each that is removed.
        ref: the branch that it moves.
    """

    rows_added: int
    rows_removed: int
    times: int
    ref: str

    def __str__(self) -> str:
        return (
            f"it adds {self.rows_added:,} rows and removes {self.rows_removed:,}, and the contract lets an overwrite "
            f"add {self.times} times the rows that it removes (guard)"
        )


def excess(principal: Principal, table: Identifier, changes: Sequence[Change], ref: str) -> Excess | None:
    """Whether a commit adds more than its writer's contract lets an overwrite add; None: it does not.

    What removes nothing is no overwrite. Of equality deletes it is not known how many rows they remove: each counts as
    one row.
    """
    if principal.administrator:
        return None
    guard = principal.contract.on(table).guard
    if guard.times is None:
        return None
    added, removed = rows_of(changes)
    if removed == 0 or added <= guard.above_rows or added <= guard.times * removed:
        return None
    return Excess(added, removed, guard.times, ref)


def unapproved(
    principal: Principal,
    table: Identifier,
    excess: Excess,
    contact: str | None = None,
    stands: str = "no request for it is open",
) -> ContractViolation:
    """The error for an overwrite that nobody has approved.

    Args:
        contact: the person who decides, where one is named.
        stands: how its request stands.
    """
    return ContractViolation(
        f"{principal.name} may not commit to {table}: {excess}. Nothing of it was done. Look whether it was meant: a "
        f"copy-on-write UPDATE with a subquery can double a table. If it was, {contact or 'a person'} approves it, "
        f"and it may be sent again, once: {stands} (`icetower requests close ID --granted --note WHY`)",
        rule=RULE,
        next_step="escalated_to",
        escalated_to=contact,
    )


def rows_of(changes: Iterable[Change]) -> tuple[int, int]:
    """The rows that the snapshots of a commit add and remove, all together.

    A file that one snapshot adds and a later one removes counts for neither. Row-level deletes count by as much as
    there are more of them afterwards: engines write those of a data file anew, with what was deleted before.
    """
    added, removed = dict[tuple[object, ...], Touched](), dict[tuple[object, ...], Touched]()
    for change in changes:
        for touched in change.removed:
            if added.pop(_key(touched), None) is None:
                removed[_key(touched)] = touched
        for touched in change.added:
            added[_key(touched)] = touched
    return (
        _rows(added.values(), DATA),
        _rows(removed.values(), DATA) + max(0, _positions(added.values()) - _positions(removed.values()))
        + _rows(added.values(), EQUALITY_DELETES),
    )  # fmt: skip


def _key(touched: Touched) -> tuple[object, ...]:
    return touched.file.path, touched.file.referenced_data_file  # vectors share a file


def _rows(files: Iterable[Touched], content: int) -> int:
    return sum(each.file.record_count for each in files if each.file.content == content)


def _positions(files: Iterable[Touched]) -> int:
    return sum(each.file.record_count for each in files if each.file.content not in (DATA, EQUALITY_DELETES))
