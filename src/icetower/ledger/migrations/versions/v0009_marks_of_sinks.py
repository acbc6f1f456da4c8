"""Numbers of sinks are kept with their offsets, and with what tells the same commit from another."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("ledger_keys", sa.Column("mark", sa.Text))
