"""Principals, credentials and contracts."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "registry_principals",
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("contract", sa.String(128), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("revoked_ms", sa.BigInteger),
    )
    op.create_table(
        "registry_credentials",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("principal", sa.String(255), sa.ForeignKey("registry_principals.name"), nullable=False),
        sa.Column("issued_from", sa.String(64)),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger),
    )
    op.create_index("registry_credentials_principal", "registry_credentials", ["principal"])
    op.create_index("registry_credentials_expires", "registry_credentials", ["expires_ms"])
    op.create_table(
        "registry_contracts",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("applied_ms", sa.BigInteger, nullable=False),
        sa.Column("applied_by", sa.String(255), nullable=False),
        sa.Column("text", sa.Text),
    )
