"""Rows by their id, many askers at once: those who ask while a query is under way share the next one."""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy import Connection, Row, Table

from icetower.ledger.door import LedgerDoor

ASKED_AT_ONCE = 500
"""Ids in one query: below what any database takes."""


class Lookups:
    """The way to the rows of one table whose primary key is `id`.

    A query costs far more than a row of it. Under load this is what keeps the cost of a lookup to that of a row; alone,
    nobody waits for anybody.
    """

    def __init__(self, database: LedgerDoor, table: Table) -> None:
        self._database = database
        self._table = table
        self._wanted: dict[bytes, asyncio.Future[Row[Any] | None]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def row(self, name: bytes) -> Row[Any] | None:
        """The row of an id, as it stands at some time after this was called."""
        if name not in self._wanted:
            self._wanted[name] = asyncio.get_running_loop().create_future()
            # An asker may go away before the answer; its error needs no reader then.
            self._wanted[name].add_done_callback(lambda done: done.cancelled() or done.exception())
        answer = self._wanted[name]
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(answer)

    async def _look(self) -> None:
        while self._wanted:
            asked = {name: self._wanted.pop(name) for name in list(self._wanted)[:ASKED_AT_ONCE]}
            try:
                rows = await self._database.run(
                    lambda connection, ids=list(asked): self._query(connection, ids), alone=True
                )
            except Exception as error:  # noqa: BLE001 - each asker gets it
                for answer in asked.values():
                    answer.set_exception(error)
                continue
            for name, answer in asked.items():
                answer.set_result(rows.get(name))

    def _query(self, connection: Connection, ids: list[bytes]) -> dict[bytes, Row[Any]]:
        # Straight to the driver: building the statement would cost more than running it.
        marks = ", ".join(["?" if self._database.is_sqlite else "%s"] * len(ids))
        columns = ", ".join(column.name for column in self._table.c)
        statement = f"SELECT {columns} FROM {self._table.name} WHERE id IN ({marks})"  # noqa: S608 - our own names
        return {bytes(row.id): row for row in connection.exec_driver_sql(statement, tuple(ids))}
