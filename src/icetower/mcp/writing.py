"""`append_rows`, `upsert_rows`, `delete_rows`: rows of JSON, by the way that the contract says. All of it blocks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from icetower.agent import Agent, Patience, Sent, send
from icetower.agent.deliveries import AGENT, CHANGE, EVENT_TIME, KEY, WRITTEN, Act
from icetower.errors import BadRequest, KeyMisused
from icetower.mcp.results import Refusal, Written, clean
from icetower.mcp.since import Since, since_landed
from icetower.mcp.tables import Desk, error_of, wrong
from icetower.rows.values import column

ROWS_MAX = 1_000
COLUMNS_MAX = 2_000
CELLS_MAX = 100_000
ATTEMPTS_MAX = 4
WITHIN_S = 30.0
FILLED_IN = frozenset({AGENT, CHANGE, EVENT_TIME, KEY, WRITTEN})
"""Columns that the SDK fills in."""
NEVER = {
    "Target table has duplicate rows": (
        "keys",
        "the table has several rows of one key, so it is not clear which to replace; name more columns",
    ),
    "Cannot write manifest": (
        "table",
        "it has a format version that these tools cannot commit to, but for appends under `blind_appends`",
    ),
}
"""What PyIceberg says before it commits anything, and will say again: how that begins, and what the caller is told."""


def key_of(principal: str, table: str, operation: str, keys: Sequence[str], rows: Sequence[Any], batch: str) -> str:
    """The key of a write, from its content alone: a UUID of version 7 in form."""
    content = json.dumps([principal, table, operation, list(keys), list(rows), batch], sort_keys=True, default=str)
    digest = bytearray(hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()[:16])
    digest[6], digest[8] = 0x70 | digest[6] & 0x0F, 0x80 | digest[8] & 0x3F
    text = bytes(digest).hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def require_bounded(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises `BadRequest` for more than a call may bring, before anything is made of it."""
    if not 0 < len(rows) <= ROWS_MAX:
        raise wrong("rows", f"has {len(rows)} rows; send 1 to {ROWS_MAX} at once")
    most, cells = max(map(len, rows)), sum(map(len, rows))
    if most > COLUMNS_MAX or cells > CELLS_MAX:
        raise wrong(
            "rows",
            f"has {cells} values, and up to {most} in a row; send at most {CELLS_MAX} values at once, and "
            f"{COLUMNS_MAX} in a row",
        )


def write(
    desk: Desk, name: str, rows: Sequence[Mapping[str, Any]], operation: Act, keys: Sequence[str], key: str
) -> Written:
    """Send rows, and answer how that ended."""
    sent = sent_rows(desk, name, rows, operation, keys, key)
    found = Written(
        summary=f"{len(rows)} rows: done",
        table=clean(name),
        key=sent.key,
        outcome="written",
        rows=len(rows),
        pattern=sent.pattern,
        written_to=clean(sent.table),
    )
    if not sent.again or sent.key != key:
        return found
    since = since_landed(desk, name, sent.table, key)
    if since.nothing:
        return found.model_copy(
            update={"outcome": "already_written", "summary": f"{len(rows)} rows: they were there already"}
        )
    return written_before(found, since)


def written_before(found: Written, since: Since) -> Written:
    """The answer where the same call had landed, and the table has changed since: its rows may be gone."""
    error = KeyMisused(
        f"the very same call was {since.in_words()}, and may have changed or removed these rows; nothing was written "
        "now. Look with query_rows. If it was a retry, it is done. To write the rows once more on purpose, call again "
        "with another `batch`, such as batch='2'",
        rule="mcp.written-before",
        next_step="fix_request",
        snapshot=since.snapshot,
    )
    refusal = Refusal.of(error)
    return found.model_copy(
        update={"ok": False, "outcome": "written_before", "summary": refusal.message, "refusal": refusal}
    )


def sent_rows(
    desk: Desk, name: str, rows: Sequence[Mapping[str, Any]], operation: Act, keys: Sequence[str], key: str
) -> Sent:
    """Send rows by the way that the contract says. What is stale is tried again a few times under the same key.

    Rows that are appended go by the tower's rows door, and the tower writes their files. For what depends on rows that
    are there, PyIceberg commits on tables that open files of their own alone.
    """
    target = desk.table(name)
    schema = target.schema()
    table = arrow_of(rows, schema.as_arrow())
    patience = Patience(attempts_max=1, total_s=WITHIN_S, ambient=desk.ambient)
    if operation == "append":
        _require_complete(desk, name, table, schema)
        attempt_it = partial(_appended, desk, name, table, key, patience)
    else:
        _require_keys(rows, table, list(keys) or sorted(schema.identifier_field_names()), operation)
        attempt_it = partial(
            send, table, name, desk.tower, desk.catalog, operation=operation, key=key, keys=keys, patience=patience
        )
    until_s = desk.ambient.monotonic_s() + WITHIN_S
    for attempt in range(ATTEMPTS_MAX):
        try:
            return attempt_it()
        except Exception as raised:
            never = _never(raised)
            if never is not None:
                raise never from raised
            refusal = error_of(raised)
            again = refusal is not None and refusal.next_step in ("refresh", "retry")
            late = desk.ambient.monotonic_s() > until_s
            if not again or late or attempt + 1 == ATTEMPTS_MAX:
                if refusal is None:
                    raise
                raise refusal from raised
            patience.pause(0.1 * 2**attempt * (0.5 + desk.ambient.uniform() / 2))
    raise AssertionError("the last attempt has returned or raised")


def _appended(desk: Desk, name: str, rows: Any, key: str, patience: Patience) -> Sent:
    """Append by the rows door, once."""
    delivery = desk.tower.delivery(name, "append")  # asked first: nothing may fail once the rows are there
    with Agent(desk.caller.uri, desk.caller.token, patience=patience) as agent:
        done = agent.append(name, rows, key=key)
    sent = done.requests[-1]
    return Sent(
        delivery.pattern, done.written_to, sent.key, delivery.slot, done.outcome == "replayed", sent.snapshot_id
    )


def _never(raised: Exception) -> BadRequest | None:
    """The refusal that something raised is, where it committed nothing and never will."""
    if isinstance(raised, NotImplementedError):  # Arrow's, of what it cannot compare
        return wrong("keys", "rows cannot be found by columns of these types; name other columns")
    said = str(raised) if isinstance(raised, ValueError) else ""
    return next((wrong(*told) for begins, told in NEVER.items() if said.startswith(begins)), None)


def arrow_of(rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:
    """Rows of JSON as a PyArrow table with the columns that they name. Raises `BadRequest` naming the column."""
    require_bounded(rows)
    named = list(dict.fromkeys(name for row in rows for name in row))
    known = frozenset(schema.names)
    unknown = next((name for name in named if name not in known), None)
    if unknown is not None:
        raise wrong("rows", f"the table has no column {clean(unknown, 200)!r}; describe_table lists its columns")
    if not named:
        raise wrong("rows", "no row names a column")
    if len(rows) * len(named) > CELLS_MAX:
        raise wrong("rows", f"is {len(rows)} rows of {len(named)} columns; send at most {CELLS_MAX} values at once")
    pa = import_module("pyarrow")
    fields = [schema.field(name) for name in named]
    arrays = [column(field.name, [row.get(field.name) for row in rows], field, "mcp.arguments") for field in fields]
    return pa.Table.from_arrays(arrays, names=named)


def _require_complete(desk: Desk, name: str, table: Any, schema: Any) -> None:
    """Raises `BadRequest` where a required column is named by no row, and is none that is filled in."""
    named = frozenset(table.column_names)
    lacking = [each.name for each in schema.fields if each.required and each.name not in named | FILLED_IN]
    slot = desk.tower.delivery(name, "append").slot if lacking else None
    lacking = [each for each in lacking if slot is None or each != slot.column]
    if lacking:
        raise wrong("rows", f"lack the column {clean(lacking[0], 200)}, which is required; name it in each row")


def _require_keys(rows: Sequence[Mapping[str, Any]], table: Any, keys: Sequence[str], operation: Act) -> None:
    """Raises `BadRequest` for rows that a change by key cannot be made of. Where keys are wanted, `send` says so."""
    kinds = import_module("pyarrow").types
    for key in keys:
        lacking = next((number for number, row in enumerate(rows, 1) if row.get(key) is None), None)
        if lacking is not None:
            raise wrong(
                "rows", f"row {lacking} has no value of the key column {clean(key, 200)}; give each row one (keys: "
                f"{clean(', '.join(keys), 400)})"
            )  # fmt: skip
        kind = table.schema.field(key).type
        if kinds.is_nested(kind) or "uuid" in str(kind):
            what = "uuid" if "uuid" in str(kind) else "list, map or struct"
            raise wrong("keys", f"rows cannot be found by {clean(key, 200)}, which is a {what}; name other columns")
    if operation != "upsert":
        return
    columns = rows[0].keys()
    other = next((number for number, row in enumerate(rows, 1) if row.keys() != columns), None)
    if other is not None:
        differing = min(columns ^ rows[other - 1].keys())
        raise wrong(
            "rows",
            f"row {other} and row 1 do not name the same columns ({clean(differing, 200)}), and an upsert replaces "
            "whole rows: what a row lacks would become null. Name every column in each row, or send them apart",
        )
    seen: dict[tuple[Any, ...], int] = {}
    for number, row in enumerate(table.select([*dict.fromkeys(keys)]).to_pylist() if keys else (), 1):
        first = seen.setdefault(tuple(row.values()), number)
        if first != number:
            raise wrong("rows", f"row {number} and row {first} have the same key; send each key once")
