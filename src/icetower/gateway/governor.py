"""What contracts ask for beyond yes and no: that a commit waits for its turn, or hears whose a partition is.

A contract in shadow mode is evaluated like any other. What it refuses is noted and goes on; `shadow-report` tells later
what would have happened. What the tower refuses to everybody below administrators (forged summaries, files and
locations outside of the table) it refuses in shadow mode, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from icetower.admission.quotas import Rates
from icetower.admission.refusals import NotOwned
from icetower.ambient import Ambient
from icetower.contracts.check import owner_of
from icetower.contracts.document import load
from icetower.contracts.model import Contract, Operation
from icetower.errors import CommitConflict, ContractViolation, IcetowerError
from icetower.ledger.shadow import Shadowed
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal
from icetower.registry.registry import Registry


class Governor:
    """One a tower.

    Args:
        note: keeps what a contract in shadow mode would have refused.
        deadline_s: as long as this a commit is held until its quota lets it go on.
    """

    def __init__(
        self, registry: Registry, ambient: Ambient, note: Callable[[Shadowed], None], *, deadline_s: float
    ) -> None:
        self._registry = registry
        self._ambient = ambient
        self._note = note
        self._deadline_s = deadline_s
        self._rates = Rates()

    async def turn(self, principal: Principal, table: Identifier) -> None:
        """Wait until the contract's quota of commits lets one more go on.

        Raises:
            CommitConflict: that would be after the deadline. Clients back off and come again (trap A4).
        """
        wait_s = self._rates.wait_s(principal, table, self._ambient.monotonic_s(), self._deadline_s)
        if wait_s > self._deadline_s:
            raise CommitConflict(
                f"{principal.name} has used up the commits a minute that contract {principal.contract.name} allows "
                f"for {table} (commits_per_minute); come back in {wait_s:.0f} s, or write more at once",
                rule="contract.quota",
                next_step="wait_until",
                wait_until_ms=self._ambient.now_ms() + int(wait_s * 1000) + 1,
            )
        if wait_s > 0:
            await self._ambient.sleep(wait_s)

    async def explained(self, principal: Principal, table: Identifier, error: IcetowerError) -> IcetowerError:
        """A refusal with the owner of the partitions that it is about, where another contract in force owns them."""
        if isinstance(error, NotOwned) and error.owner is None:
            others = await self._others(principal.contract)
            owner = owner_of(others, table, error.touches, error.layout, self._ambient.now_ms())
            if owner is not None:
                error.owner = owner.name if owner.owner is None else f"{owner.name} ({owner.owner})"
        return error

    async def _others(self, own: Contract) -> list[Contract]:
        versions = await self._registry.contracts()
        return [load(v.text, source=v.name) for v in versions if v.text is not None and v.name != own.name]

    # -- shadow mode ----------------------------------------------------------------------------------------------

    def allow(self, principal: Principal, check: Callable[..., None], *arguments: Any) -> None:
        """Ask `check` (of `admission.permissions`) about a principal; what shadow mode lets by is noted."""
        try:
            check(principal, *arguments)
        except ContractViolation as refusal:
            if not principal.contract.shadow:
                raise
            operation = next((str(argument) for argument in arguments if isinstance(argument, Operation)), "namespace")
            what = next((argument for argument in arguments if isinstance(argument, Identifier)), None)
            about = str(what) if what is not None else ".".join(map(str, arguments[-1]))
            self._add(principal, about, operation, refusal)

    def shadowed(
        self, principal: Principal, table: Identifier, operation: str, refusals: Sequence[ContractViolation]
    ) -> None:
        """Note what a contract in shadow mode would have refused of a commit."""
        for refusal in refusals:
            self._add(principal, str(table), operation, refusal)

    def _add(self, principal: Principal, about: str, operation: str, refusal: ContractViolation) -> None:
        self._note(
            Shadowed(
                principal=principal.name,
                contract=principal.contract.name,
                contract_version=principal.contract_version,
                about=about,
                operation=operation,
                rule=refusal.rule,
                message=refusal.message,
                partitions=refusal.partitions,
                at_ms=self._ambient.now_ms(),
            )
        )
