"""Which snapshots have expired here, and how often tables were registered anew: without it "done" could be a lie."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    # -1: of these, nobody wrote down whether their snapshots have expired.
    op.add_column("ledger_keys", sa.Column("registration", sa.BigInteger, nullable=False, server_default="-1"))
    op.add_column("ledger_keys", sa.Column("sequence_number", sa.BigInteger))
    op.create_table(
        "ledger_expired",
        sa.Column("id", sa.LargeBinary(16), primary_key=True),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ledger_registrations",
        sa.Column("id", sa.LargeBinary(16), primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("sequence_number", sa.BigInteger),
        sqlite_with_rowid=False,
    )
