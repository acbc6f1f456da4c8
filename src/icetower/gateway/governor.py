"""What contracts ask for beyond yes and no: that a commit waits for its turn, or hears whose a partition is.

A contract in shadow mode is evaluated like any other. What it refuses is noted and goes on; `shadow-report` tells later
what would have happened. What the tower refuses to everybody below administrators (forged summaries, files and
locations outside of the table) it refuses in shadow mode, too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from typing import Any

from icetower.admission.quotas import Rates
from icetower.admission.refusals import Held, NotOwned
from icetower.ambient import Ambient
from icetower.contracts.check import owner_of
from icetower.contracts.model import Contract, Operation
from icetower.errors import CommitConflict, IcetowerError
from icetower.ledger.shadow import Shadowed
from icetower.observe.matters import one_line
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal
from icetower.registry.registry import Registry
from icetower.registry.versions import parsed


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

    async def turn(self, principal: Principal, table: Identifier, *, since_s: float, work: Hashable) -> None:
        """Wait until the contract's quota of commits lets one more go on.

        Args:
            since_s: when its request came: as many seconds after it as the deadline has, it must go on.
            work: what identifies the commit from one try of its client to the next (`admission.quotas`).

        Raises:
            CommitConflict: that would be after the deadline. Clients back off and come again (trap A4).
        """
        now_s = self._ambient.monotonic_s()
        left_s = max(0.0, since_s + self._deadline_s - now_s)
        wait_s = self._rates.wait_s(principal, table, now_s, left_s, work)
        if wait_s > left_s:
            too_many = CommitConflict(
                f"{principal.name} has used up the commits a minute that contract {principal.contract.name} allows "
                f"for {table} (commits_per_minute); come back in {wait_s:.0f} s, or write more at once",
                rule="contract.quota",
                next_step="wait_until",
                wait_until_ms=self._ambient.now_ms() + int(wait_s * 1000) + 1,
            )
            if not principal.contract.shadow:
                raise too_many
            self.shadowed(principal, table, "commit", [too_many])
        elif wait_s > 0 and not principal.contract.shadow:
            await self._ambient.sleep(wait_s)

    async def explained(self, principal: Principal, error: IcetowerError) -> IcetowerError:
        """A refusal with the owner of the partitions that it is about, where another contract in force owns them."""
        if isinstance(error, NotOwned) and error.owner is None:
            try:
                others = await self._others(principal.contract)
            except IcetowerError:  # whose they are nobody can tell now; the refusal stands
                return error
            owner = owner_of(others, error.table, error.touches, error.layout, self._ambient.now_ms())
            if owner is not None:
                error.owned_by(owner.name if owner.owner is None else f"{owner.name} ({one_line(owner.owner)})")
        return error

    async def _others(self, own: Contract) -> list[Contract]:
        found: list[Contract] = []
        for version in await self._registry.contracts():
            if version.text is not None and version.name != own.name:
                found.append(parsed(version.name, version.text))
                await self._ambient.sleep(0)  # one that is new takes milliseconds to read, and there may be hundreds
        return found

    # -- shadow mode ----------------------------------------------------------------------------------------------

    def allow(self, principal: Principal, check: Callable[..., None], *arguments: Any) -> None:
        """Ask `check` (of `admission.permissions`) about a principal; what shadow mode lets by is noted."""
        what = next((argument for argument in arguments if isinstance(argument, Identifier)), None)
        about = str(what) if what is not None else ".".join(map(str, arguments[-1]))
        operation = next((str(argument) for argument in arguments if isinstance(argument, Operation)), "namespace")
        with self.held(principal, about, operation):
            check(principal, *arguments)

    @contextmanager
    def held(self, principal: Principal, about: str, operation: str) -> Generator[None]:
        """What a contract in shadow mode refuses in here is noted, and raised for all others."""
        shadow = Held(principal)
        with shadow.held():
            yield
        self.shadowed(principal, about, operation, shadow.refusals)

    @contextmanager
    def shadowing(self, principal: Principal, about: Identifier | str, operation: str) -> Generator[None]:
        """What is refused within is noted of a contract in shadow mode, and goes on."""
        try:
            yield
        except IcetowerError as error:
            if not principal.contract.shadow:
                raise
            if error.status < 500:
                self.shadowed(principal, about, operation, [error])

    def shadowed(
        self, principal: Principal, about: Identifier | str, operation: str, refusals: Sequence[IcetowerError]
    ) -> None:
        """Note what a contract in shadow mode would have refused. `about`: the table, or the namespace."""
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
