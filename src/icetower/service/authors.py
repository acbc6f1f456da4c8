"""The checks that the contracts of a branch's authors ask for, where another principal publishes it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from icetower.contracts.upkeep import Branches
from icetower.errors import IcetowerError
from icetower.protocol.marks import AUTHOR, GROUP_FILE, PRINCIPAL
from icetower.protocol.snapshots import Snapshot
from icetower.registry.versions import ContractVersion, parsed
from icetower.storage import port
from icetower.storage.port import Storage
from icetower.table.groups import read_group


class Contracts(Protocol):
    """What of the registry is asked."""

    async def bindings(self, names: Sequence[str]) -> Mapping[str, tuple[str, int]]: ...

    async def contract(self, name: str, version: int | None = None) -> ContractVersion: ...


class Authors:
    """One a tower."""

    def __init__(self, contracts: Contracts, storage: Storage) -> None:
        self._contracts = contracts
        self._storage = storage

    async def checks(self, snapshots: Iterable[Snapshot]) -> Mapping[str, Branches]:
        """The authors of snapshots whose contracts name checks, each with what the contract says of branches.

        Who can't be determined, asks for none: a group file that cannot be read, a principal that is revoked.
        """
        named = await asyncio.gather(*map(self._of, snapshots))
        found: dict[str, Branches] = {}
        for author, (name, version) in sorted((await self._bound({each for one in named for each in one})).items()):
            with suppress(IcetowerError):  # built-in contracts have no text
                text = (await self._contracts.contract(name, version)).text
                branches = None if text is None else parsed(name, text).branches
                if branches is not None and branches.checks:
                    found[author] = branches
        return found

    async def _bound(self, names: Collection[str]) -> Mapping[str, tuple[str, int]]:
        try:
            return await self._contracts.bindings(sorted(names)) if names else {}
        except IcetowerError:
            return {}

    async def _of(self, snapshot: Snapshot) -> frozenset[str]:
        summary = snapshot.summary
        if GROUP_FILE in summary:
            try:
                group = read_group(await self._storage.read(str(summary[GROUP_FILE]), port.GROUP_FILE))
            except IcetowerError:
                return frozenset()
            return frozenset(append.principal for append in group.appends)
        said = f"{summary.get(AUTHOR, '')},{summary.get(PRINCIPAL, '')}"
        return frozenset(name for name in said.split(",") if name)
