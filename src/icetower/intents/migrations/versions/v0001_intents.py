"""Intents, the warnings of their holders, the highest fence of each table, and the counters."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "intents",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("principal", sa.String(255), nullable=False),
        sa.Column("contract", sa.String(128), nullable=False),
        sa.Column("claims", sa.Text, nullable=False),
        sa.Column("ttl_ms", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("declared_ms", sa.BigInteger, nullable=False),
        sa.Column("renewed_ms", sa.BigInteger, nullable=False),
        sa.Column("fence", sa.BigInteger),
        sa.Column("granted_ms", sa.BigInteger),
        sa.Column("ended", sa.String(16)),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("ended_by", sa.String(255), nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False, index=True),
    )
    op.create_table(
        "intents_warnings",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("intent", sa.String(64), nullable=False, index=True),
        sa.Column("warning", sa.Text, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False, index=True),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "intents_tables",
        sa.Column("uuid", sa.String(64), primary_key=True),
        sa.Column("granted", sa.BigInteger, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False, index=True),
    )
    counters = op.create_table(
        "intents_counters",
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("ordered", sa.BigInteger, nullable=False),
        sa.Column("pruned", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(counters, [{"number": 0, "fence": 0, "ordered": 0, "pruned": 0}])
