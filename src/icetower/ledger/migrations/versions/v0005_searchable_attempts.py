"""Attempts know the id of their request, the partitions that they touch, and what their clients were answered."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("ledger_attempts", sa.Column("request_id", sa.String(32)))
    op.add_column("ledger_attempts", sa.Column("partitions", sa.Text))
    op.add_column("ledger_attempts", sa.Column("message", sa.Text))
