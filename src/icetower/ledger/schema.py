"""The ledger's tables, as queries name them; `migrations` makes them. Times are milliseconds since 1970."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Integer, LargeBinary, MetaData, String, Table, Text

metadata = MetaData()

keys = Table(
    "ledger_keys",
    metadata,
    Column("table_uuid", String(36), primary_key=True),
    Column("ref", String(255), primary_key=True),
    Column("principal", String(255), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("snapshots", Text, nullable=False),  # JSON list of ids
    Column("application_id", String(255)),
    Column("fingerprint", String(64), nullable=False),
    Column("first_ms", BigInteger, nullable=False),
    Column("last_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
)

answers = Table(
    "ledger_answers",
    metadata,
    Column("principal", String(255), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("endpoint", Text, nullable=False),
    Column("fingerprint", String(64)),
    Column("status", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
)

attempts = Table(
    "ledger_attempts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("principal", String(255), nullable=False),
    Column("table_name", Text, nullable=False),
    Column("operation", String(32), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("rule", String(64)),
    Column("queue_wait_ms", Float, nullable=False),
    Column("latency_ms", Float, nullable=False),
    Column("snapshots", Text, nullable=False),  # JSON list of ids
    Column("key_hash", String(64)),
)
