"""Keys and answers are found by a hash of fixed size; numbered commits and group files join the keys."""

import json
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

from icetower.ledger.hashes import ANSWER, KEY, hashed

revision = "0002"
down_revision = "0001"

ROWS_AT_ONCE = 5_000


def upgrade() -> None:
    for table in ("ledger_keys", "ledger_answers"):
        op.drop_index(f"{table}_expires", table_name=table)
        op.rename_table(table, f"{table}_0001")
    keys = op.create_table(
        "ledger_keys",
        sa.Column("id", sa.LargeBinary(16), primary_key=True),
        sa.Column("snapshots", sa.LargeBinary, nullable=False),
        sa.Column("sequence", sa.BigInteger),
        sa.Column("application_id", sa.String(255)),
        sa.Column("fingerprint", sa.LargeBinary(32)),
        sa.Column("landed_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ledger_groups",
        sa.Column("id", sa.LargeBinary(16), primary_key=True),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    answers = op.create_table(
        "ledger_answers",
        sa.Column("id", sa.LargeBinary(16), primary_key=True),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.String(64)),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    _copy("ledger_keys_0001", keys, _key)
    _copy("ledger_answers_0001", answers, _answer)


def _copy(old: str, new: sa.Table, row_of: Callable[[Any], dict[str, Any]]) -> None:
    connection = op.get_bind()
    everything = sa.text(f"SELECT * FROM {old}").execution_options(yield_per=ROWS_AT_ONCE)  # noqa: S608
    for some in connection.execute(everything).partitions():
        connection.execute(new.insert(), [row_of(row) for row in some])
    op.drop_table(old)


def _key(row: Any) -> dict[str, Any]:
    return {
        "id": hashed(KEY, row.table_uuid, row.ref, row.principal, row.key),
        "snapshots": b"".join(i.to_bytes(8, "big", signed=True) for i in json.loads(row.snapshots)),
        "application_id": row.application_id,
        "fingerprint": bytes.fromhex(row.fingerprint) if row.fingerprint else None,
        "landed_ms": row.first_ms,
        "expires_ms": row.expires_ms,
    }


def _answer(row: Any) -> dict[str, Any]:
    kept = ("endpoint", "fingerprint", "status", "body", "expires_ms")
    return {"id": hashed(ANSWER, row.principal, row.key), **{name: getattr(row, name) for name in kept}}
