"""What contracts in shadow mode would have refused."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "ledger_shadow",
        sa.Column("id", sa.LargeBinary(16), primary_key=True),
        sa.Column("principal", sa.String(255), nullable=False),
        sa.Column("contract", sa.String(255), nullable=False),
        sa.Column("contract_version", sa.Integer, nullable=False),
        sa.Column("about", sa.Text, nullable=False),
        sa.Column("operation", sa.String(32), nullable=False),
        sa.Column("rule", sa.String(64), nullable=False),
        sa.Column("times", sa.BigInteger, nullable=False),
        sa.Column("first_ms", sa.BigInteger, nullable=False),
        sa.Column("last_ms", sa.BigInteger, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("partitions", sa.Text, nullable=False),
    )
    op.create_index("ledger_shadow_principal", "ledger_shadow", ["principal", "last_ms"])
