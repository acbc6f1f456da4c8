"""What waits for a person, and how word of it is sent: escalations, and requests for partitions."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "registry_matters",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("subject", sa.String(64), nullable=False),
        sa.Column("principal", sa.String(255), nullable=False),
        sa.Column("contract", sa.String(128), nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("contact", sa.Text),
        sa.Column("details", sa.Text, nullable=False),
        sa.Column("opened_ms", sa.BigInteger, nullable=False),
        sa.Column("closed_ms", sa.BigInteger),
        sa.Column("closed_by", sa.String(255)),
        sa.Column("decision", sa.String(16)),
        sa.Column("note", sa.Text),
    )
    # One thing is open once, however many towers find at the same moment that it has come to it.
    still_open = sa.text("closed_ms IS NULL")
    op.create_index(
        "registry_matters_open",
        "registry_matters",
        ["subject"],
        unique=True,
        sqlite_where=still_open,
        postgresql_where=still_open,
    )
    op.create_index("registry_matters_subject", "registry_matters", ["subject", "closed_ms"])
    op.create_index("registry_matters_principal", "registry_matters", ["principal", "kind", "opened_ms"])
    op.create_index("registry_matters_closed", "registry_matters", ["closed_ms"])
    op.create_table(
        "registry_deliveries",
        sa.Column("matter", sa.String(36), sa.ForeignKey("registry_matters.id"), primary_key=True),
        sa.Column("way", sa.String(16), primary_key=True),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_ms", sa.BigInteger),
        sa.Column("delivered_ms", sa.BigInteger),
        sa.Column("fault", sa.Text),
    )
    op.create_index("registry_deliveries_next", "registry_deliveries", ["next_ms"])
