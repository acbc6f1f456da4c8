"""The contracts in force, read again only once the registry has changed, and what is derived from them for a table."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from operator import is_

from icetower.ambient import Ambient
from icetower.contracts.calendars import Calendars
from icetower.contracts.model import Contract
from icetower.database import Together
from icetower.protocol.names import Identifier
from icetower.registry.registry import Registry
from icetower.registry.versions import parsed

PLACES_MAX = 10_000
"""Places of contracts in calendars that are kept, of the tables that were asked for last."""


class InForce:
    """One a tower."""

    def __init__(self, registry: Registry, ambient: Ambient) -> None:
        self._registry = registry
        self._ambient = ambient
        self._number = -1
        self._parsed: dict[tuple[str, int], Contract] = {}
        self._contracts: Sequence[Contract] = ()
        self._calendars: OrderedDict[Identifier, Calendars] = OrderedDict()
        self._reading: Together[None, Sequence[Contract]] = Together(self._read)

    async def contracts(self) -> Sequence[Contract]:
        """All of them, by name; the same object as long as none has changed. Raises `Unavailable`."""
        return await self._reading.ask(None)

    async def calendars(self, table: Identifier) -> Calendars:
        """Whose slots come round at a table. Raises `Unavailable`."""
        await self.contracts()
        found = self._calendars.get(table)
        if found is None:
            found = self._calendars[table] = Calendars(self._contracts, table)
        self._calendars.move_to_end(table)
        while len(self._calendars) > 1 and sum(map(len, self._calendars.values())) > PLACES_MAX:
            self._calendars.popitem(last=False)
        return found

    async def _read(self, asked: Sequence[None]) -> dict[None, Sequence[Contract]]:
        number, read = await self._registry.contracts_after(self._number)
        if read is not None:
            known: dict[tuple[str, int], Contract] = {}
            for each in read:
                if each.text is None:
                    continue
                key = each.name, each.version
                found = self._parsed.get(key)
                if found is None:
                    found = parsed(each.name, each.text)
                    await self._ambient.sleep(0)  # one takes milliseconds, and there may be hundreds
                known[key] = found
            contracts = tuple(known.values())
            if len(contracts) != len(self._contracts) or not all(map(is_, contracts, self._contracts)):
                self._contracts = contracts
                self._calendars.clear()
            self._parsed, self._number = known, number
        return dict.fromkeys(asked, self._contracts)
