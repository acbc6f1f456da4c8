"""Whose are the partitions that a refusal is about?"""

from __future__ import annotations

from icetower.admission.refusals import NotOwned
from icetower.ambient import Ambient
from icetower.contracts.check import owner_of
from icetower.contracts.model import Contract
from icetower.errors import IcetowerError
from icetower.observe.events import one_line
from icetower.registry.principals import Principal
from icetower.registry.registry import Registry
from icetower.registry.versions import parsed


class Owners:
    """Looks up owners among the contracts in force."""

    def __init__(self, registry: Registry, ambient: Ambient) -> None:
        self._registry = registry
        self._ambient = ambient

    async def explained(self, principal: Principal, error: IcetowerError) -> IcetowerError:
        """A refusal with the owner of the partitions that it is about, where another contract in force owns them."""
        if isinstance(error, NotOwned) and error.owner is None:
            try:
                others = await self._others(principal.contract)
            except IcetowerError:  # the owner is unknown for now; the refusal stands
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
