"""Alerts that stand, and what people have silenced."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "registry_alerts",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("rule", sa.String(64), nullable=False),
        sa.Column("principal", sa.String(255), nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("since_ms", sa.BigInteger, nullable=False),
        sa.Column("value", sa.Float, nullable=False),
        sa.Column("partitions", sa.Text, nullable=False),
        sa.Column("told", sa.String(36)),
    )
    op.create_table(
        "registry_silences",
        sa.Column("about", sa.String(80), primary_key=True),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
        sa.Column("by", sa.String(255), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )
