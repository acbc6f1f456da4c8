"""Verdicts know the content that they are about, and not only the id of the snapshot, which its client has chosen.

Those that are there do not: the table may have another snapshot under that id by now. They count no more, and checks
report again on branches that wait to be published.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("ledger_verdicts", sa.Column("content", sa.LargeBinary(16)))
