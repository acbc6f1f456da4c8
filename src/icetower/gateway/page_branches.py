"""The open branches of a table, as the page shows them: who works on each, since when, and what its checks say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from icetower.contracts.model import Contract
from icetower.errors import IcetowerError
from icetower.gateway.page_http import Visit
from icetower.gateway.page_reading import SLOW_KEPT_S, Reading
from icetower.iceberg.metadata import MAIN
from icetower.ledger.verdicts import CheckVerdict
from icetower.protocol.names import Identifier
from icetower.publish.stale import BranchState, branches_in, writer_of
from icetower.registry.versions import parsed
from icetower.service.publishing import Publishing, stage_of, to_check
from icetower.table.head import HeadState

BRANCHES_MAX = 20


@dataclass(frozen=True, slots=True)
class OpenBranch:
    """A branch, and its checks, each with its verdict if there is one."""

    state: BranchState
    checks: Mapping[str, CheckVerdict | None]


@dataclass(frozen=True, slots=True)
class OpenBranches:
    """Branches by name; `left_out`: how many more there are."""

    rows: tuple[OpenBranch, ...] = ()
    left_out: int = 0


class BranchReading:
    """One for a tower."""

    def __init__(self, reading: Reading, publishing: Publishing) -> None:
        self._reading = reading
        self._publishing = publishing

    async def open(self, visit: Visit, table: Identifier) -> OpenBranches:
        """The branches of a table but for `main`; of an agent those that it has written to last.

        Branches that the tower has made for checks are shown with those that they are for.
        """

        async def read() -> OpenBranches:
            head = await self._reading.heads.load(table)
            return await self._open(head, visit.own)

        try:
            return await self._reading.briefly.get(("branches", str(table), visit.own), read, SLOW_KEPT_S)
        except IcetowerError:  # the table is gone, or cannot be read now
            return OpenBranches()

    async def _open(self, head: HeadState, own: str | None) -> OpenBranches:
        refs = head.metadata.get("refs") or {}
        writers = {
            name: _writer(head, ref) for name, ref in refs.items() if name != MAIN and ref.get("type") == "branch"
        }
        wanted = {
            name: writer
            for name, writer in writers.items()
            if own in (None, writer) and not any(name == stage_of(other) for other in writers)
        }
        if not wanted:
            return OpenBranches()
        shown = dict(sorted(wanted.items())[:BRANCHES_MAX])
        contracts = await self._contracts({writer for writer in shown.values() if writer is not None})
        now_ms = self._reading.ambient.now_ms()
        kept = {name: ref for name, ref in refs.items() if name == MAIN or name in shown}
        part = HeadState(head.location, {**head.metadata, "refs": kept})

        def look() -> list[tuple[BranchState, int | None]]:
            states = islice(branches_in(part, contracts, now_ms), BRANCHES_MAX)
            return [(each, to_check(head, each.name)) for each in states]

        rows: list[OpenBranch] = []
        for state, snapshot_id in await self._reading.thread.run(look):
            contract = None if state.principal is None else contracts.get(state.principal)
            checks: Mapping[str, CheckVerdict | None] = {}
            if contract is not None and contract.branches is not None and contract.branches.checks:
                checks = await self._publishing.verdicts_on(head, snapshot_id, contract.branches, state.principal or "")
            rows.append(OpenBranch(state, checks))
        return OpenBranches(tuple(rows), len(wanted) - len(shown))

    async def _contracts(self, principals: set[str]) -> dict[str, Contract]:
        """The contracts in force of some principals."""
        bound = {each.name: each.contract for each in await self._reading.principals() if each.name in principals}
        texts = {each.name: each.text for each in await self._reading.contracts() if each.text is not None}

        def read() -> dict[str, Contract]:
            return {who: parsed(name, texts[name]) for who, name in bound.items() if name in texts}

        return await self._reading.thread.run(read)


def _writer(head: HeadState, ref: Mapping[str, object]) -> str | None:
    snapshot = head.snapshot(ref["snapshot-id"])  # pyright: ignore[reportArgumentType]
    return None if snapshot is None else writer_of(snapshot)
