"""What attempts come to, by window and since ever; which writes were tried before; and what jobs have measured."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "ledger_metric_windows",
        sa.Column("window_ms", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.LargeBinary(16), primary_key=True),
        sa.Column("principal", sa.String(255), nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("table_id", sa.LargeBinary(16), nullable=False),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("tally", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("ledger_metric_windows_principal", "ledger_metric_windows", ["principal", "window_ms"])
    op.create_index("ledger_metric_windows_table", "ledger_metric_windows", ["table_id", "window_ms"])
    op.create_table(
        "ledger_metric_totals",
        sa.Column("id", sa.LargeBinary(16), primary_key=True),
        sa.Column("principal", sa.String(255), nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("tally", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ledger_metric_counts",
        sa.Column("name", sa.String(160), primary_key=True),
        sa.Column("count", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "ledger_tries",
        sa.Column("id", sa.LargeBinary(16), primary_key=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("ledger_tries_at", "ledger_tries", ["at_ms"])
    op.create_table(
        "ledger_metric_reports",
        sa.Column("id", sa.LargeBinary(16), primary_key=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("source", sa.String(255), nullable=False),
        sa.Column("value", sa.Float, nullable=False),
        sa.Column("details", sa.Text, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("ledger_metric_reports_kind", "ledger_metric_reports", ["kind", "at_ms"])
    # What is in the log already stays uncounted: a million rows would hold up the start.
    op.execute(
        "INSERT INTO ledger_metric_counts (name, count) SELECT 'through', coalesce(max(id), 0) FROM ledger_attempts"
    )
