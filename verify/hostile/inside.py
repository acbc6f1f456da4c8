"""Hostile bytes given to what reads them, in this process: each is read, or refused as the input's fault, and soon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from icetower.errors import BadRequest, IcetowerError
from icetower.files.deletes import PositionDeletes
from icetower.files.footers import Claim, Footers
from icetower.gateway.answers import answer as answer_of
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg import puffin
from icetower.iceberg.avro_files import LongFile, RowCache
from icetower.iceberg.change import change_of, diff_lists
from icetower.iceberg.manifests import DataFile, ManifestFile, read_manifest, read_manifest_list
from icetower.iceberg.partitions import spec_of
from icetower.iceberg.records import memory_of_manifest, memory_of_row
from icetower.iceberg.vectors import decode
from icetower.protocol.appends import parse_append
from icetower.protocol.commits import parse_commit, parse_transaction
from icetower.recent import Budget
from icetower.storage.port import Bound
from icetower.table.groups import key_records, read_group
from icetower.table.head import HeadState
from verify.hostile.generate import KINDS, ROOT, made

SLOW_S = 5.0
"""No input may take longer, on a busy machine."""

METADATA_MAX_BYTES = 1024 * 1024
TABLE = table_metadata.new_table(
    uuid="9c12d441-03fe-4693-9a96-a0705ddf69c1",
    location=ROOT,
    schema={"type": "struct", "fields": [{"id": 1, "name": "a", "type": "long", "required": False}]},
    spec=None,
    sort_order=None,
    properties={"format-version": "2"},
    now_ms=1,
)
_met = RowCache[ManifestFile](Budget(4 << 20), "rows", 1.0, memory_of_row)


@dataclass(frozen=True, slots=True)
class Failure:
    """An input that was neither read nor refused as it should be. `made(kind, seed)` makes it again."""

    kind: str
    seed: int
    why: str


class _Shelf:
    """A storage of one file."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self, path: str, bound: Bound) -> bytes:
        del path, bound
        return self._data

    async def read_range(self, path: str, offset: int, length_bytes: int) -> bytes:
        del path
        return self._data[offset : offset + length_bytes] if offset >= 0 else b""


def _manifest(data: bytes) -> None:
    with suppress(LongFile):
        read_manifest(data, most_bytes=4_096)
    manifest = read_manifest(data)
    memory_of_manifest(manifest)
    row = ManifestFile("m", len(data), 0, 0, 1, 1, 7, 3, 0, 0, 9, 0, 0, None, None, None)
    change_of({"snapshot-id": 7, "sequence-number": 1, "summary": {}}, diff_lists((), (row,)), {"m": manifest})


def _list(data: bytes) -> None:
    """Read in both ways: what was met before must not change what is read."""
    found: list[Any] = []
    for met in (None, _met):
        try:
            found.append(read_manifest_list(data, met))
        except BadRequest:
            found.append(BadRequest)
    if found[0] != found[1] and BadRequest not in found:
        raise AssertionError("with rows that were met before, the list reads otherwise")


def _metadata(data: bytes) -> None:
    metadata = table_metadata.parse(data, most_bytes=METADATA_MAX_BYTES)
    head = HeadState(f"{ROOT}/metadata/1.metadata.json", metadata)
    answer_of(head, b"{}", compressed=True)
    assert head.keys is not None
    for spec in metadata.get("partition-specs") or ():
        try:
            spec_of(metadata, spec["spec-id"])
        except BadRequest:
            continue


def _parquet(data: bytes) -> None:
    claim = Claim(f"{ROOT}/data/0.parquet", 3, len(data), spec_of(TABLE, 0), ())
    asyncio.run(Footers(_Shelf(data)).verify(TABLE, [claim]))  # type: ignore[arg-type]


def _deletes(file_format: str) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        file = DataFile(1, "d", file_format, (), 3, len(data), None, None, {})
        asyncio.run(PositionDeletes(_Shelf(data)).targets("d", file))  # type: ignore[arg-type]

    return read


def _group(data: bytes) -> None:
    key_records(read_group(data))


def _json(data: bytes) -> None:
    for parse in (parse_append, parse_transaction):
        try:
            parse(data)
        except IcetowerError as error:
            _refused(error)
    request = parse_commit(data)
    table_metadata.apply(TABLE, request.updates, now_ms=2)


READERS: Mapping[str, Callable[[bytes], None]] = {
    "manifest": _manifest,
    "list": _list,
    "metadata": _metadata,
    "parquet": _parquet,
    "delete-file": _deletes("parquet"),
    "avro-deletes": _deletes("avro"),
    "puffin": lambda data: assert_some(puffin.read(data, path="p")),
    "vector": lambda data: assert_some(decode(data, name="v")),
    "group": _group,
    "json": _json,
}
assert set(READERS) == set(KINDS)


def assert_some(found: object) -> None:
    """What was read is something."""
    assert found is not None


def _refused(error: IcetowerError) -> None:
    if error.status >= 500:
        raise error


def tried(kind: str, seed: int) -> tuple[str, Failure | None]:
    """What became of one input (``read``, or the rule of its refusal), and what is wrong with that."""
    data = made(kind, seed)
    started_s = time.perf_counter()
    try:
        READERS[kind](data)
        outcome = "read"
    except IcetowerError as error:
        outcome = error.rule
        if error.status >= 500:
            return outcome, Failure(kind, seed, f"{error.status} {error.rule}: {error.message[:200]}")
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return "failed", Failure(kind, seed, f"{type(error).__name__}: {str(error)[:200]}")
    took_s = time.perf_counter() - started_s
    slow = Failure(kind, seed, f"took {took_s:.1f} s") if took_s > SLOW_S else None
    return outcome, slow
