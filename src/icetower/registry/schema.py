"""The registry's tables, as queries name them; `migrations` makes them. Times are milliseconds since 1970."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Integer, MetaData, String, Table, Text

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
    Column("message", Text),
)

# One row. Every change of the registry counts it up, in the same transaction.
changes = Table("registry_changes", metadata, Column("number", BigInteger, nullable=False))

# What waits for a person: an agent that was stopped (`kind` escalation), or one that asks for partitions (request).
tickets = Table(
    "registry_matters",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("subject", String(64), nullable=False),  # a hash of what it is about; unique among those that are open
    Column("principal", String(255), nullable=False),
    Column("contract", String(128), nullable=False),
    Column("target", Text, nullable=False),  # the table
    Column("contact", Text),  # for whom it is
    Column("details", Text, nullable=False),  # JSON
    Column("opened_ms", BigInteger, nullable=False),
    Column("closed_ms", BigInteger),  # null: open
    Column("closed_by", String(255)),
    Column("decision", String(16)),
    Column("note", Text),
)

deliveries = Table(
    "registry_deliveries",
    metadata,
    Column("matter", String(36), primary_key=True),
    Column("way", String(16), primary_key=True),
    Column("address", Text, nullable=False),  # of mail; for a webhook its name in the settings, never its URL
    Column("attempts", Integer, nullable=False),
    Column("next_ms", BigInteger),  # when it is sent (again), or whoever is sending it has had long enough; null: never
    Column("delivered_ms", BigInteger),
    Column("fault", Text),  # of the last attempt
)

# Alerts that stand or have ended a while ago, and what people have silenced (alerts/).
alerts = Table(
    "registry_alerts",
    metadata,
    Column("id", String(32), primary_key=True),  # of (rule, principal, table)
    Column("rule", String(64), nullable=False),
    Column("principal", String(255), nullable=False),  # empty: none
    Column("target", Text, nullable=False),  # the table; empty: none
    Column("state", String(16), nullable=False),
    Column("since_ms", BigInteger, nullable=False),
    Column("value", Float, nullable=False),
    Column("partitions", Text, nullable=False),  # JSON list of names
    Column("told", String(36)),  # the ticket by which people hear of it
)

silences = Table(
    "registry_silences",
    metadata,
    Column("about", String(80), primary_key=True),  # the id of an alert, or "rule:" and a rule's name
    Column("until_ms", BigInteger, nullable=False),
    Column("by", String(255), nullable=False),
    Column("reason", Text, nullable=False),
)
