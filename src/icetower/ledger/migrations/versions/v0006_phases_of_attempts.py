"""Attempts know the contract of their principal, their base, which write they are a try of, and what it took."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

COLUMNS = (
    ("contract", sa.String(255)),
    ("work", sa.String(80)),
    ("base", sa.BigInteger),
    ("head", sa.BigInteger),
    ("decided_ms", sa.BigInteger),
    ("group_size", sa.Integer),
    ("metadata_bytes", sa.BigInteger),
    ("manifests", sa.Float),
    ("judge_ms", sa.Float),
    ("plan_ms", sa.Float),
    ("write_ms", sa.Float),
    ("swap_ms", sa.Float),
)


def upgrade() -> None:
    for name, kind in COLUMNS:
        op.add_column("ledger_attempts", sa.Column(name, kind))
