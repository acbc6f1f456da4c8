"""Why a version of a contract was applied."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("registry_contracts", sa.Column("message", sa.Text))
