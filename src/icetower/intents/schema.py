"""The tables of intents, as queries name them; `migrations` makes them. Times are milliseconds since 1970."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, Text

metadata = MetaData()

intents = Table(
    "intents",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("principal", String(255), nullable=False),
    Column("contract", String(128), nullable=False),
    Column("claims", Text, nullable=False),  # JSON
    Column("ttl_ms", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("declared_ms", BigInteger, nullable=False),
    Column("renewed_ms", BigInteger, nullable=False),
    Column("fence", BigInteger),
    Column("granted_ms", BigInteger),
    Column("ended", String(16)),
    Column("ended_ms", BigInteger),
    Column("ended_by", String(255), nullable=False),
    Column("changed", BigInteger, nullable=False),  # the change that wrote it
)

warnings = Table(
    "intents_warnings",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("intent", String(64), nullable=False),
    Column("warning", Text, nullable=False),  # JSON
    Column("changed", BigInteger, nullable=False),
)

# The highest fence that was given for a table. It stays when its intents have gone.
tables = Table(
    "intents_tables",
    metadata,
    Column("uuid", String(64), primary_key=True),
    Column("granted", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
)

# One row. `number` counts the changes; what was changed up to `pruned` may have been forgotten.
counters = Table(
    "intents_counters",
    metadata,
    Column("number", BigInteger, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("ordered", BigInteger, nullable=False),
    Column("pruned", BigInteger, nullable=False),
)
