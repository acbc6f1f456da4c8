"""Changes of tables and namespaces as events, and what clients report of their commits."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "ledger_events",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False, index=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("objects", sa.Text, nullable=False),
        sa.Column("uuid", sa.String(36)),
        sa.Column("event", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "ledger_client_reports",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False, index=True),
        sa.Column("principal", sa.String(255), nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("snapshot_id", sa.BigInteger, nullable=False, index=True),
        sa.Column("operation", sa.String(32), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("total_ms", sa.Float),
        sqlite_autoincrement=True,
    )
