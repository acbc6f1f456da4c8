"""Rows of a file, or of standard input, into a table by the way of the contract: `icetower send`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from icetower.agent import Agent, Patience, Written
from icetower.cli.completion import complete_table
from icetower.cli.registry import DEFAULT_URI, Json, Uri, token_for
from icetower.cli.terminal import say
from icetower.counting import number_of
from icetower.errors import UsageError
from icetower.protocol.rows import Act
from icetower.texts import escaped

BYTES_MAX = 256 * 1024 * 1024
"""A file is read as a whole; a larger one is for Spark or PyIceberg."""
BUSY_S = 30.0
"""So long a tower that is busy (429) is asked again, whatever else it refuses."""


class Form(StrEnum):
    JSON = "json"
    NDJSON = "ndjson"
    PARQUET = "parquet"
    ARROW = "arrow"


_FORMS = {
    ".json": Form.JSON,
    ".ndjson": Form.NDJSON,
    ".jsonl": Form.NDJSON,
    ".parquet": Form.PARQUET,
    ".arrow": Form.ARROW,
    ".arrows": Form.ARROW,
    ".feather": Form.ARROW,
}


def send(
    table: Annotated[str, typer.Argument(help="namespace.table", autocompletion=complete_table)],
    file: Annotated[Path, typer.Argument(help="The file with the rows; - for standard input.")],
    operation: Annotated[Act, typer.Option(help="What is done with the rows.")] = Act.APPEND,
    form: Annotated[
        Form | None, typer.Option("--form", help="The format of the rows; by default what the file's name says.")
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option("--keys", help="A column that identifies a row, for upsert and delete. May be repeated."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="The idempotency key: sent again under it, the same rows are there once. Default: a new one."
        ),
    ] = None,
    ref: Annotated[str, typer.Option(help="The branch; of appends alone.")] = "main",
    journal: Annotated[
        Path | None, typer.Option(help="A file that keeps the key over a crash, until the rows are there.")
    ] = None,
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait",
            min=0,
            help="For so many seconds do what a refusal asks for: send again, wait for the slot, ask the owner for a "
            "partition and wait for the answer. By default a refusal ends the command.",
        ),
    ] = 0.0,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Send rows to a table, once; the tower writes the files.

    The rows go the way that the contract says: to the table, its write-ahead log or its delta table. The command ends
    when they are there. In JSON a decimal is a text, such as "9.99".

    \b
    Example:
      icetower send shop.sales sales.ndjson --key "sales of 2017-01-31"
      echo '{"sku": "a", "price": "9.99"}' | icetower send shop.prices - --form ndjson
      icetower send shop.prices new.parquet --operation upsert --keys sku
    """
    if ref != "main" and operation is not Act.APPEND:
        raise UsageError("--ref is for appends; upserts and deletes go to main")
    if key is not None and not key:
        raise UsageError("--key is empty; name the work, or leave it out")
    rows = _rows(file, form)
    patience = Patience(total_s=wait_s) if wait_s else Patience(attempts_max=1, total_s=BUSY_S)
    reason = f"rows of {escaped(file.name)}"
    with Agent(uri, token_for(uri), journal=journal, reason=reason, patience=patience) as agent:
        match operation:
            case Act.APPEND:
                done = agent.append(table, rows, key=key, ref=ref)
            case Act.UPSERT:
                done = agent.upsert(table, rows, keys=keys or (), key=key)
            case Act.DELETE:
                done = agent.delete(table, rows, keys=keys or (), key=key)
    if as_json:
        say(json.dumps(asdict(done)))
    else:
        say(_in_words(done))


def _in_words(done: Written) -> str:
    rows = number_of(done.rows, "row")
    if done.outcome == "empty":
        return "there are no rows in it; nothing was sent"
    through = "" if done.written_to == done.table else f", through {escaped(done.written_to)}"
    snapshot = "" if done.snapshot_id is None else f" as snapshot {done.snapshot_id}"
    already = " already" if done.outcome == "replayed" else ""
    return f"{rows} in {escaped(done.table)}{already}{through}{snapshot} (key {escaped(done.key)})"


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _rows(file: Path, form: Form | None) -> Any:
    """What is in a file, as rows of `Agent`. Raises `UsageError` naming the line, `OSError`."""
    form = form or _FORMS.get(file.suffix.lower())
    if form is None:
        raise UsageError(f"the format of {escaped(str(file))} is unknown; say --form json, ndjson, parquet or arrow")
    data = _read(file)
    if form in (Form.PARQUET, Form.ARROW):
        return _arrow(file, form, data)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{escaped(str(file))} is not in UTF-8 ({error.reason} at byte {error.start})") from error
    return _of_json(file, text) if form is Form.JSON else list(_of_lines(file, text))


def _read(file: Path) -> bytes:
    if str(file) == "-":
        data = sys.stdin.buffer.read(BYTES_MAX + 1)
    else:
        with file.open("rb") as opened:
            data = opened.read(BYTES_MAX + 1)
    if len(data) > BYTES_MAX:
        raise UsageError(
            f"{escaped(str(file))} has more than {BYTES_MAX >> 20} MiB; send it in parts, each with a key of its own"
        )
    return data


def _of_json(file: Path, text: str) -> list[Mapping[str, Any]]:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{escaped(str(file))} is not JSON: {escaped(str(error))}") from error
    if isinstance(found, Mapping) and set(found) == {"rows"}:
        found = found["rows"]
    each: list[Any] = [found] if isinstance(found, Mapping) else found
    if not isinstance(each, list) or not all(isinstance(row, Mapping) for row in each):
        raise UsageError(f"{escaped(str(file))} has no rows; it must be a list of objects, one a row")
    return each


def _of_lines(file: Path, text: str) -> Iterable[Mapping[str, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{escaped(str(file))}, line {number}: not JSON: {escaped(_why(error))}") from error
        if not isinstance(row, Mapping):
            raise UsageError(f"{escaped(str(file))}, line {number}: a row must be an object")
        yield row


def _why(error: ValueError | RecursionError) -> str:
    """Without the place, which is counted from the line's beginning."""
    return getattr(error, "msg", str(error))


def _arrow(file: Path, form: Form, data: bytes) -> Any:
    try:
        pa = import_module("pyarrow")
        if form is Form.PARQUET:
            return import_module("pyarrow.parquet").read_table(pa.BufferReader(data))
        ipc = import_module("pyarrow.ipc")
        opened = ipc.open_file if data[:6] == b"ARROW1" else ipc.open_stream
        return opened(pa.BufferReader(data)).read_all()
    except ImportError as error:
        raise UsageError(f"{form.value} needs pyarrow; install it, or send JSON") from error
    except (ValueError, OSError, NotImplementedError, MemoryError) as error:  # Arrow's own errors are some of these
        raise UsageError(f"{escaped(str(file))} cannot be read as {form.value}: {escaped(str(error)[:200])}") from error
