"""Fills the data directory of a tower that is not started yet, by the tower's own code.

A million attempts are written and counted as a tower does it, in large batches and without waiting for the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pyiceberg.catalog import load_catalog
from sqlalchemy import event

from bench.commits.shapes import SPREAD, values_of
from bench.page.warehouse import (
    JOBS,
    Size,
    agent_name,
    attempts,
    contract_of,
    job_contract,
    job_name,
    table_name,
)
from icetower.ambient import SystemAmbient
from icetower.contracts.document import load
from icetower.contracts.model import ADMINISTRATOR_NAME
from icetower.database import Database, sqlite_url
from icetower.ledger.ledger import Batch, Ledger
from icetower.registry.registry import Registry
from icetower.registry.versions import Proposal

T = TypeVar("T")

CATALOG = "icetower"
"""What a tower calls the catalog of its own."""
ADMINISTRATOR = "admin"
BATCH = 5_000
TOLD_EVERY = 100_000
FIRST_ROW = 1
Tell = Callable[[str], None]


def fill(data: Path, size: Size, tell: Tell) -> list[str]:
    """Agents with their contracts, tables with a row each, and the log; the secrets of the agents, by number."""
    data.mkdir(parents=True)
    control = Database(sqlite_url(data / "control.db"), own=True)
    event.listen(control.engine, "connect", _without_waiting)
    try:
        secrets = asyncio.run(_control(control, data, size, tell))
    finally:
        control.close()
    _tables(data, size)
    tell(f"{size.tables} tables")
    return secrets


def _without_waiting(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA synchronous=OFF")


async def _control(control: Database, data: Path, size: Size, tell: Tell) -> list[str]:
    ambient = SystemAmbient()
    registry = Registry(control, ambient)
    secret = await registry.create_principal(ADMINISTRATOR, ADMINISTRATOR_NAME)
    token = data / "admin.token"
    token.touch(mode=0o600)
    token.write_text(secret + "\n")
    texts = {agent_name(number): contract_of(number, size) for number in range(size.agents)}
    texts |= {job_name(number): job_contract(number) for number in range(JOBS)}
    proposals = [Proposal(load(text, source=name), text) for name, text in texts.items()]
    await registry.apply_contracts(proposals, by=ADMINISTRATOR)
    secrets = [await registry.create_principal(name, name) for name in texts]
    tell(f"{size.agents} agents")
    ledger, written = Ledger(control, ambient), 0
    for batch in _pieces(attempts(size, ambient.now_ms()), BATCH):
        await ledger.write(Batch(attempts=batch))
        written += len(batch)
        if written % TOLD_EVERY == 0 or written == size.attempts:
            tell(f"{written:,} attempts")
    return secrets[: size.agents]


def _pieces(items: Iterator[T], most: int) -> Iterator[Sequence[T]]:
    while piece := list(islice(items, most)):
        yield piece


def _tables(data: Path, size: Size) -> None:
    catalog = load_catalog(
        CATALOG, type="sql", uri=f"sqlite:///{data}/catalog.db", warehouse=f"file://{data}/warehouse"
    )
    row = SPREAD.rows([values_of(FIRST_ROW, 0)])
    for number in range(size.tables):
        name = table_name(number)
        catalog.create_namespace_if_not_exists(name.namespace)
        declared = {"icetower.blind-appends": "true"}
        table = catalog.create_table(
            (*name.namespace, name.name), schema=SPREAD.schema, partition_spec=SPREAD.spec(), properties=declared
        )
        table.append(row)
