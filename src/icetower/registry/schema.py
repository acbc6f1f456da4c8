"""The registry's tables, as queries name them; `migrations` makes them. Times are milliseconds since 1970."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, Text

metadata = MetaData()

principals = Table(
    "registry_principals",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("contract", String(128), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("revoked_ms", BigInteger),
)

# Secrets and the access tokens issued from them. Only hashes: nobody can guess the 256 random bits behind one.
credentials = Table(
    "registry_credentials",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("principal", String(255), nullable=False),
    Column("issued_from", String(64)),  # null: a secret; else a token, and the hash of the secret that it came from
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger),
)

contracts = Table(
    "registry_contracts",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("applied_ms", BigInteger, nullable=False),
    Column("applied_by", String(255), nullable=False),
    Column("text", Text),  # null: revoked
)

# One row. Every change of the registry counts it up, in the same transaction.
changes = Table("registry_changes", metadata, Column("number", BigInteger, nullable=False))
