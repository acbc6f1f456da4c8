"""Was this commit sent before, and has it landed? Asked at the gate, before anything of it is read.

`commit.resolution` decides; here the ledger is asked what that takes: keys whose snapshots have expired, and those in
group files that were not read since the ledger has them.
"""

from __future__ import annotations

from typing import Any

from icetower.admission.identity import Identity
from icetower.commit.head import Heads
from icetower.commit.queue import Committed
from icetower.commit.resolution import (
    Asks,
    FateOf,
    IsTorn,
    Question,
    SawLeave,
    Table,
    UnderName,
    at_the_gate,
    by_snapshot,
    dropped,
    in_the_plan,
    snapshots_of,
)
from icetower.ledger.histories import TableName
from icetower.ledger.ledger import CommitKey, Ledger
from icetower.protocol.names import Identifier
from icetower.table.head import HeadState

LOADS_MAX = 3
"""How often a table is loaded again for a commit that another has overtaken."""


class Replays:
    """Looks for the answer that a commit has got before."""

    def __init__(self, heads: Heads, ledger: Ledger) -> None:
        self._heads = heads
        self._ledger = ledger

    async def find(self, identifier: Identifier, head: HeadState, identity: Identity) -> Committed | None:
        """The answer that a commit has got before, if any (traps K1 to K3).

        Args:
            head: a version of the table; it must have been loaded before this is called.

        Raises:
            KeyMisused: it landed and is not done, its name stands for another write, or nothing tells.
        """
        uuid, loads_left = str(head.metadata["table-uuid"]), LOADS_MAX
        table, answers = Table.of(identifier, head), dict[Question, Any]()
        while isinstance(verdict := at_the_gate(identity, table, uuid, answers), Asks):
            if isinstance(verdict.question, FateOf) and loads_left:
                # The ledger knows what this version does not: it came after it, or is gone.
                newest = await self._heads.load(identifier)
                loads_left -= 1
                if newest.location != head.location:
                    head, uuid = newest, str(newest.metadata["table-uuid"])
                    table, answers = Table.of(identifier, head), {}
                    continue
                loads_left = 0
            answers[verdict.question] = await self._answer(TableName(uuid, identifier), verdict.question)
        snapshots = snapshots_of(verdict)
        return None if snapshots is None else Committed("replayed", head, snapshots, 0.0, 1)

    async def landed(self, identifier: Identifier, head: HeadState, identity: Identity) -> tuple[int, ...] | None:
        """As which snapshots a write has landed, if it has: also by what only the plan of a commit would ask.

        Raises:
            KeyMisused: as `find`; or it may be in a group file that cannot be read.
        """
        found = await self.find(identifier, head, identity)
        if found is not None:
            return found.snapshots
        return snapshots_of(in_the_plan(identity, Table.of(identifier, head)))

    async def find_snapshot(
        self, identifier: Identifier, head: HeadState, ref: str, snapshot_id: int
    ) -> tuple[int, ...] | None:
        """A snapshot that has landed on a branch, if it has. Raises `KeyMisused` where it is there and not on it.

        One that has expired is known where its commit had a key.
        """
        table, answers = Table.of(identifier, head), dict[Question, Any]()
        while isinstance(verdict := by_snapshot(snapshot_id, ref, table, answers), Asks):
            name = TableName(str(head.metadata["table-uuid"]), identifier)
            answers[verdict.question] = await self._answer(name, verdict.question)
        return snapshots_of(verdict)

    async def refuse_dropped(self, identifier: Identifier, table_uuid: str, identity: Identity) -> None:
        """Refuse the creation of a table that is not at its name any more (trap K2).

        Raises:
            KeyMisused: the ledger knows the creation's key, or its number, for this UUID.
        """
        key, application = CommitKey.of(table_uuid, identity)
        commit = None if key is None else await self._ledger.find_commit(key)
        if commit is None and application is not None:
            commit = await self._ledger.find_commit(application)
        error = None if commit is None else dropped(identifier, identity, commit)
        if error is not None:
            raise error

    async def _answer(self, table: TableName, question: Question) -> object:
        match question:
            case UnderName(name):
                return await self._ledger.find_commit(name)
            case IsTorn(snapshot_id):
                return bool(await self._ledger.torn(table.uuid, [snapshot_id]))
            case SawLeave(snapshot_id):
                return await self._ledger.saw_leave(table, snapshot_id)
            case FateOf(commit):
                return await self._ledger.fate(table, commit)
