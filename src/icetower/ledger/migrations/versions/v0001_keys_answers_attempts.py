"""Keys of commits, answers to replay, attempts."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "ledger_keys",
        sa.Column("table_uuid", sa.String(36), primary_key=True),
        sa.Column("ref", sa.String(255), primary_key=True),
        sa.Column("principal", sa.String(255), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("snapshots", sa.Text, nullable=False),
        sa.Column("application_id", sa.String(255)),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("first_ms", sa.BigInteger, nullable=False),
        sa.Column("last_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ledger_keys_expires", "ledger_keys", ["expires_ms"])
    op.create_table(
        "ledger_answers",
        sa.Column("principal", sa.String(255), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.String(64)),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ledger_answers_expires", "ledger_answers", ["expires_ms"])
    op.create_table(
        "ledger_attempts",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("principal", sa.String(255), nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("operation", sa.String(32), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("rule", sa.String(64)),
        sa.Column("queue_wait_ms", sa.Float, nullable=False),
        sa.Column("latency_ms", sa.Float, nullable=False),
        sa.Column("snapshots", sa.Text, nullable=False),
        sa.Column("key_hash", sa.String(64)),
    )
    op.create_index("ledger_attempts_at", "ledger_attempts", ["at_ms"])
