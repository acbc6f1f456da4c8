"""The ledger's tables, as queries name them; `migrations` makes them. Times are milliseconds since 1970.

Keys are found by a hash of fixed size, which is the primary key and, on SQLite, the place of the row itself (no rowid):
one walk down one tree, however many there are. There is no second index to keep, least of all one on the expiry: what
has expired is met by a sweep along the primary key, page after page, instead of one page for every row.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, LargeBinary, MetaData, String, Table, Text

metadata = MetaData()

keys = Table(
    "ledger_keys",
    metadata,
    Column("id", LargeBinary(16), primary_key=True),  # of (table uuid, ref, principal, key or application)
    Column("snapshots", LargeBinary, nullable=False),  # 8 bytes each
    Column("sequence", BigInteger),  # of an application; none for a key
    Column("application_id", String(255)),
    Column("fingerprint", LargeBinary(32)),
    Column("landed_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("registration", BigInteger, nullable=False),  # how often the uuid had been registered when this was kept
    Column("sequence_number", BigInteger),  # the lowest of the snapshots
    Column("mark", Text),  # JSON: what the number of a sink comes with (`table.sinks.Mark.kept`)
    sqlite_with_rowid=False,
)

groups = Table(
    "ledger_groups",
    metadata,
    Column("id", LargeBinary(16), primary_key=True),  # of (table uuid, snapshot id)
    Column("expires_ms", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""Snapshots whose group file need not be read: all its keys are, or were for their window, among those above.

And, by ids of their own kind, who has committed to which table (`writers.py`).
"""

expired = Table(
    "ledger_expired",
    metadata,
    Column("id", LargeBinary(16), primary_key=True),  # of (table uuid, history, snapshot id)
    Column("expires_ms", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""Snapshots with keys that have left the table while their branch had them."""

registrations = Table(
    "ledger_registrations",
    metadata,
    Column("id", LargeBinary(16), primary_key=True),  # of a table uuid, or of (table uuid, name)
    Column("number", BigInteger, nullable=False),  # how often the uuid was registered; had been, when the name was last
    Column("sequence_number", BigInteger),  # of the file that the name was registered at, once the catalog points at it
    sqlite_with_rowid=False,
)

answers = Table(
    "ledger_answers",
    metadata,
    Column("id", LargeBinary(16), primary_key=True),  # of (principal, key)
    Column("endpoint", Text, nullable=False),
    Column("fingerprint", String(64)),
    Column("status", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    sqlite_with_rowid=False,
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
    Column("request_id", String(32)),
    Column("partitions", Text),  # JSON list of names
    Column("message", Text),
    Column("contract", String(255)),
    Column("work", String(80)),
    Column("base", BigInteger),
    Column("head", BigInteger),
    Column("decided_ms", BigInteger),
    Column("group_size", Integer),
    Column("metadata_bytes", BigInteger),
    Column("manifests", Float),
    Column("judge_ms", Float),
    Column("plan_ms", Float),
    Column("write_ms", Float),
    Column("swap_ms", Float),
)

shadow = Table(
    "ledger_shadow",
    metadata,
    Column("id", LargeBinary(16), primary_key=True),  # of (principal, contract, its version, about, operation, rule)
    Column("principal", String(255), nullable=False),
    Column("contract", String(255), nullable=False),
    Column("contract_version", Integer, nullable=False),
    Column("about", Text, nullable=False),  # the table or namespace
    Column("operation", String(32), nullable=False),
    Column("rule", String(64), nullable=False),
    Column("times", BigInteger, nullable=False),
    Column("first_ms", BigInteger, nullable=False),
    Column("last_ms", BigInteger, nullable=False),
    Column("message", Text, nullable=False),
    Column("partitions", Text, nullable=False),  # JSON list of names
)

metric_windows = Table(
    "ledger_metric_windows",
    metadata,
    Column("window_ms", BigInteger, primary_key=True),  # its start
    Column("id", LargeBinary(16), primary_key=True),  # of (principal, table)
    Column("principal", String(255), nullable=False),  # empty: all
    Column("table_name", Text, nullable=False),  # empty: all
    Column("table_id", LargeBinary(16), nullable=False),  # of the table, for its index: names are too long for one
    Column("attempts", BigInteger, nullable=False),
    Column("tally", Text, nullable=False),  # JSON: `tallies.Tally`
    sqlite_with_rowid=False,
)
"""Attempts by window. The newest windows stand together at the end of the tree, where all writes go."""

metric_totals = Table(
    "ledger_metric_totals",
    metadata,
    Column("id", LargeBinary(16), primary_key=True),
    Column("principal", String(255), nullable=False),
    Column("table_name", Text, nullable=False),
    Column("attempts", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),  # of the last attempt
    Column("tally", Text, nullable=False),
    sqlite_with_rowid=False,
)

metric_counts = Table(
    "ledger_metric_counts",
    metadata,
    Column("name", String(160), primary_key=True),
    Column("count", BigInteger, nullable=False),
)
"""Attempts by outcome and rule, and how many rows the tables beside this one have."""

tries = Table(
    "ledger_tries",
    metadata,
    Column("id", LargeBinary(16), primary_key=True),  # of (principal, table, write)
    Column("at_ms", BigInteger, nullable=False),  # of the last try that did not land
    sqlite_with_rowid=False,
)
"""Writes that were tried and did not land: what tells a first try from a later one."""

metric_reports = Table(
    "ledger_metric_reports",
    metadata,
    Column("id", LargeBinary(16), primary_key=True),  # of (kind, table, source)
    Column("kind", String(32), nullable=False),
    Column("table_name", Text, nullable=False),
    Column("source", String(255), nullable=False),  # of orphans the principal, of a bypass its snapshot; may be empty
    Column("value", Float, nullable=False),
    Column("details", Text, nullable=False),  # JSON
    Column("at_ms", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""What jobs have measured last, and towers noticed: orphans, lags, commits around the tower, room on the disk."""

events = Table(
    "ledger_events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),  # of the operation, by the names of Iceberg's proposal
    Column("objects", Text, nullable=False),  # JSON: the names of what it is about, each as a list of levels
    Column("uuid", String(36)),  # of the table
    Column("event", Text, nullable=False),  # JSON, as it is answered
    sqlite_autoincrement=True,
)

client_reports = Table(
    "ledger_client_reports",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("principal", String(255), nullable=False),
    Column("table_name", Text, nullable=False),
    Column("snapshot_id", BigInteger, nullable=False),
    Column("operation", String(32), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("total_ms", Float),
    sqlite_autoincrement=True,
)

verdicts = Table(
    "ledger_verdicts",
    metadata,
    Column("id", LargeBinary(16), primary_key=True),  # of (table uuid, snapshot, check, principal)
    Column("uuid", String(36), nullable=False),
    Column("snapshot_id", BigInteger, nullable=False),
    Column("name", String(255), nullable=False),
    Column("passed", Boolean, nullable=False),
    Column("details", Text, nullable=False),
    Column("principal", String(255), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("content", LargeBinary(16)),  # of the snapshot; none in verdicts of before 0011, which count no more
    sqlite_with_rowid=False,
)
"""What checks have found of the very content of a snapshot; the last verdict of each principal is kept."""
