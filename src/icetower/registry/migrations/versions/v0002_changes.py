"""How often the registry was changed: by this number readers know whether what they have read still holds."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    changes = op.create_table("registry_changes", sa.Column("number", sa.BigInteger, nullable=False))
    op.bulk_insert(changes, [{"number": 0}])
