"""From a contract's verdict to the error that an agent gets, with what it needs to go on."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from icetower.contracts.check import Touch, Undecided, Violation
from icetower.contracts.terms import Layout
from icetower.errors import ContractViolation
from icetower.registry.principals import Principal

PARTITIONS = "contract.partitions"
ALWAYS = frozenset({"contract.summary", "contract.location", "contract.manifest"})
"""Rules that hold in shadow mode, too: they keep the tower's own marks, and the files of others, from everybody."""
REQUEST_PARTITION = "request_partition"


class NotOwned(ContractViolation):
    """Partitions that are not the contract's. Who knows the other contracts can say whose they are.

    Attributes:
        touches: what the commit touches.
        layout: the table that they are of.
    """

    def __init__(
        self, message: str, *, partitions: tuple[str, ...], touches: tuple[Touch, ...], layout: Layout
    ) -> None:
        super().__init__(message, rule=PARTITIONS, partitions=partitions, next_step=REQUEST_PARTITION)
        self.touches = touches
        self.layout = layout


class Held:
    """Collects what a contract in shadow mode would refuse; for all others, what is refused is raised.

    Attributes:
        refusals: in the order in which they were met.
    """

    def __init__(self, principal: Principal) -> None:
        self._shadow = principal.contract.shadow
        self.refusals: list[ContractViolation] = []

    @contextmanager
    def held(self) -> Generator[None]:
        try:
            yield
        except ContractViolation as refusal:
            if not self._shadow or refusal.rule in ALWAYS:
                raise
            self.refusals.append(refusal)


def refusal(verdict: Violation | Undecided, what: str) -> ContractViolation:
    """The error for a verdict; `what` says who may not do what."""
    message = f"{what}: {verdict.message}"
    if isinstance(verdict, Violation) and verdict.rule == PARTITIONS:
        return NotOwned(message, partitions=verdict.partitions, touches=verdict.outside, layout=verdict.layout)
    return ContractViolation(message, rule=verdict.rule, partitions=verdict.partitions)
