"""From a contract's verdict to the error that an agent gets, with what it needs to go on."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from icetower.contracts.check import Touch, Undecided, Violation
from icetower.contracts.model import Operation
from icetower.contracts.terms import Layout
from icetower.errors import ContractViolation
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal

PARTITIONS = "contract.partitions"
LOCATION = "contract.location"
_NEXT_STEPS: Mapping[str, str] = {
    "contract.pattern": "fix_request",  # through the log its rows come in: nobody has to change the contract for that
    "contract.slot": "wait_until",
}
ALWAYS = frozenset({"contract.summary", LOCATION, "contract.manifest"})
"""Rules that hold in shadow mode, too: they keep the tower's own marks, and the files of others, from everybody.

Shadow mode lets a job go on as it did before there was a tower. So a contract's own clauses (tables, operations,
partitions, refs, history, quotas, keys, and what is shared) are noted and let by: the job could do all of that before.
What it could not do before stays refused: to forge the tower's marks, and to give the tower orders for others
(`OrdersTower`). So does what no job needs and others would pay for: files and storage elsewhere, manifests that lie,
and code in the clients of others (``property.code``, which is no matter of contracts at all).
"""
REQUEST_PARTITION = "request_partition"


class NotOwned(ContractViolation):
    """Partitions that are not the contract's. `owned_by` adds whose they are, where the other contracts are known.

    Iceberg's clients show people the message alone, so it names the owner and the way out.

    Attributes:
        table: the one that has the partitions.
        touches: what the commit touches of it.
        layout: what its partitions mean.
    """

    def __init__(
        self,
        message: str,
        *,
        table: Identifier,
        partitions: tuple[str, ...],
        touches: tuple[Touch, ...],
        layout: Layout,
        wanted: tuple[Operation, ...],
    ) -> None:
        asking = ["icetower", "requests", "make", str(table)]
        asking += [word for operation in wanted for word in ("--operation", operation.value)]
        asking += [word for partition in partitions[:1] for word in ("--partition", partition)]
        more = " (and --partition for each of the others)" if len(partitions) > 1 else ""
        self._finding = message
        self._way_out = f". To ask for it: `{shlex.join(asking)} --reason WHY`{more}"
        super().__init__(message + self._way_out, rule=PARTITIONS, partitions=partitions, next_step=REQUEST_PARTITION)
        self.table = table
        self.touches = touches
        self.layout = layout

    def owned_by(self, owner: str) -> None:
        """Another contract owns them, or some of them. `owner`: its name, and its contact."""
        what = "it belongs" if len(self.partitions) == 1 else "some of them belong"
        self.owner: str | None = owner
        self.message = f"{self._finding}; {what} to {owner}{self._way_out}"


class Misplaced(ContractViolation):
    """A file in the table's place, but not in its principal's own: a matter of the contract alone."""


class OrdersTower(ContractViolation):
    """A property of a table by which the tower itself would act on the work of others."""


def refusal(
    verdict: Violation | Undecided, principal: Principal, table: Identifier, rows: str = ""
) -> ContractViolation:
    """The error for a verdict on what a principal adds to, or removes from, a table.

    Args:
        rows: which rows of a request it is about.
    """
    about = f" (it is about {rows}; no row was written)" if rows else ""
    message = f"{principal.name} may not commit to {table}: {verdict.message}{about}"
    if isinstance(verdict, Violation) and verdict.rule == PARTITIONS:
        return NotOwned(
            message,
            table=table,
            partitions=verdict.partitions,
            touches=verdict.outside,
            layout=verdict.layout,
            wanted=verdict.wanted,
        )
    slot, over = (verdict.slot, verdict.over) if isinstance(verdict, Violation) else (None, False)
    return ContractViolation(
        message,
        rule=verdict.rule,
        partitions=verdict.partitions,
        next_step="fix_request" if over else _NEXT_STEPS.get(verdict.rule),
        wait_until_ms=None if slot is None else slot.starts_ms,
    )
