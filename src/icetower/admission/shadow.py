"""What a contract in shadow mode would refuse is recorded, and goes on.

A contract in shadow mode is evaluated like any other; the report tells later what would have happened. What the tower
refuses to everybody below administrators (forged summaries, files and locations outside of the table) it refuses in
shadow mode, too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from icetower.admission.refusals import ALWAYS, Misplaced, OrdersTower
from icetower.ambient import Ambient
from icetower.contracts.model import Operation
from icetower.errors import ContractViolation, IcetowerError
from icetower.ledger.shadow import Shadowed
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal


def lets_by(principal: Principal, refusal: ContractViolation) -> bool:
    """Whether shadow mode lets a refusal by."""
    if not principal.contract.shadow or isinstance(refusal, OrdersTower):
        return False
    return refusal.rule not in ALWAYS or isinstance(refusal, Misplaced)


class ShadowRecorder:
    """Records what contracts in shadow mode would have refused.

    Args:
        note: keeps one such refusal.
    """

    def __init__(self, ambient: Ambient, note: Callable[[Shadowed], None]) -> None:
        self._ambient = ambient
        self._note = note

    def allow(self, principal: Principal, check: Callable[..., None], *arguments: Any) -> None:
        """Ask `check` (of `admission.permissions`) about a principal; what shadow mode lets by is recorded."""
        what = next((argument for argument in arguments if isinstance(argument, Identifier)), None)
        about = str(what) if what is not None else ".".join(map(str, arguments[-1]))
        operation = next((str(argument) for argument in arguments if isinstance(argument, Operation)), "namespace")
        with self.recording(principal, about, operation):
            check(principal, *arguments)

    @contextmanager
    def recording(self, principal: Principal, about: Identifier | str, operation: str) -> Generator[None]:
        """What a contract in shadow mode refuses in here is recorded, and raised for all others."""
        try:
            yield
        except ContractViolation as refusal:
            if not lets_by(principal, refusal):
                raise
            self.record(principal, about, operation, [refusal])

    @contextmanager
    def recording_all(self, principal: Principal, about: Identifier | str, operation: str) -> Generator[None]:
        """The same for what is looked into on behalf of the contract alone: every refusal of it is recorded."""
        try:
            yield
        except IcetowerError as error:
            if not principal.contract.shadow:
                raise
            if error.status < 500:
                self.record(principal, about, operation, [error])

    def record(
        self, principal: Principal, about: Identifier | str, operation: str, refusals: Sequence[IcetowerError]
    ) -> None:
        """Record what a contract in shadow mode would have refused. `about`: the table, or the namespace."""
        for refusal in refusals:
            self._note(
                Shadowed(
                    principal=principal.name,
                    contract=principal.contract.name,
                    contract_version=principal.contract_version,
                    about=str(about),
                    operation=operation,
                    rule=refusal.rule,
                    message=refusal.message,
                    partitions=refusal.partitions,
                    at_ms=self._ambient.now_ms(),
                )
            )
