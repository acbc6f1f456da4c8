"""Takes what the log says of a person out of it: the erasure of docs/erasure.md.

The attempts stay, with who asked, when, and how they ended. Names of partitions and messages go, since these repeat
values of rows. Events that have the text go as a whole.
"""

from __future__ import annotations

import json

from sqlalchemy import ColumnElement, Connection, Table, delete, or_, update

from icetower.ledger.metrics import forget_partitions
from icetower.ledger.schema import attempts, events, shadow

TEXT_CHARACTERS_MIN = 3
"""A shorter text would take the messages of half the log."""

TEXT_CHARACTERS_MAX = 1_000


def forget(connection: Connection, text: str) -> int:
    """Remove the partitions and messages that contain a text; how many rows had some."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA secure_delete = ON")  # else the text stays in freed parts of the file
    emptied = update(attempts).where(_has(attempts, text)).values(partitions="[]", message=None)
    counted = update(shadow).where(_has(shadow, text)).values(partitions="[]", message="")
    spellings = {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    connection.execute(delete(events).where(or_(*(events.c.event.contains(e, autoescape=True) for e in spellings))))
    found = connection.execute(emptied).rowcount + connection.execute(counted).rowcount
    forget_partitions(connection, text)  # repeats names of the log: not counted twice
    return found


def _has(table: Table, text: str) -> ColumnElement[bool]:
    # Partitions are kept as JSON, which escapes some characters.
    spellings = {text, json.dumps(text)[1:-1]}
    columns = (table.c.partitions, table.c.message)
    return or_(*(column.contains(each, autoescape=True) for column in columns for each in spellings))
