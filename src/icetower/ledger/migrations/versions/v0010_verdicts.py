"""What checks have found of snapshots that are to be published."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "ledger_verdicts",
        sa.Column("id", sa.LargeBinary(16), primary_key=True),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("snapshot_id", sa.BigInteger, nullable=False, index=True),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("passed", sa.Boolean, nullable=False),
        sa.Column("details", sa.Text, nullable=False),
        sa.Column("principal", sa.String(255), nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
