"""`Listing`: a manifest list in memory, made so that n lists of one group of commits cost about n new rows.

The lists of a group differ by a row or two each: every snapshot names its own manifests and carries those of its
parent. A listing is therefore a sequence of immutable `Run`s of rows, which lists share. A run encodes its rows once
for a format version and packs them once, as one block of an Avro container file; a manifest list is a header and the
blocks of its runs.

Runs are merged as they come, in two tiers: eight small ones at the beginning become one, a few of those a full one,
and full ones are left alone. So a row is packed about three times in its life, and a listing of n rows has no more
than n/64 runs and a handful.

Sources: specification, "Manifest Lists", "First Row ID Assignment"; Avro specification, "Binary Encoding",
"Object Container Files"; RFC 1951, 3.2.4 (blocks without compression).
"""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import NoReturn

import orjson

from icetower.errors import ValidationFailed
from icetower.iceberg.avro_files import RECORD_MAX_BYTES, UNPACKED_MAX_BYTES
from icetower.iceberg.avro_schemas import manifest_list_schema
from icetower.iceberg.records import DATA, FieldSummary, ManifestFile, memory_of_row, texts_of_row

_FAN = 8
"""So many small runs at the beginning become one; small is what has fewer rows than this."""
_FULL_ROWS = _FAN * _FAN
"""A run of this many rows is not merged any more."""
_CUT_ROWS = 2 * _FULL_ROWS
"""A list that was read is cut into runs of so many: a row that leaves it has only its own run packed again."""

_ENCODED_BYTES = 130
"""What a row takes besides, without texts: its encoding, its part of a block, its place in the index of paths."""

_COPIES = 2
"""A row's texts and bounds stand in its encoding, and in its part of a block once more, which may be packed or not."""

_LONG_BYTES = 256 * 1024
"""A run with so many bytes is not merged any more, however few rows it has: what is packed at once is bounded."""

_LIGHTLY_BYTES = 128 * 1024
"""So much is packed lightly: the event loop waits for it."""

LIST_MAX_BYTES = 64 * 1024 * 1024
"""Longer lists are not read (`storage.port.MANIFEST_LIST`)."""

_MARKERS: Mapping[int, bytes] = {
    version: hashlib.blake2b(orjson.dumps(manifest_list_schema(version)), digest_size=16).digest()
    for version in (1, 2, 3)
}
"""The markers between blocks, one a format version: blocks are shared by files, so their markers are the same."""

_Encoding = tuple[bytes | None, ...]


class Run:
    """Some rows of a manifest list, in its order, with what is derived from them once. Never changed.

    Args:
        rows: in the list's order.
        encoded: by format version, each row's Avro encoding; None where it is not known yet.
    """

    __slots__ = ("__dict__", "_blocks", "_encoded", "_lengths", "rows")

    def __init__(self, rows: tuple[ManifestFile, ...], encoded: Mapping[int, _Encoding] | None = None) -> None:
        self.rows = rows
        self._encoded: dict[int, _Encoding] = dict(encoded or {})
        self._blocks: dict[int, bytes] = {}
        self._lengths: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def by_path(self) -> Mapping[str, ManifestFile]:
        """The rows by their manifest's path; the first where a list names one twice."""
        return {row.path: row for row in reversed(self.rows)}

    @cached_property
    def lacks_row_ids(self) -> bool:
        """Whether it has data manifests without a first row id."""
        return any(row.content == DATA and row.first_row_id is None for row in self.rows)

    @cached_property
    def memory_bytes(self) -> int:
        """What the rows take in memory, and their encoding."""
        return sum(_ENCODED_BYTES + memory_of_row(row) for row in self.rows) + _COPIES * self.texts_bytes

    @cached_property
    def texts_bytes(self) -> int:
        """How long the texts and bounds of the rows are."""
        return sum(map(texts_of_row, self.rows))

    @property
    def is_long(self) -> bool:
        """Whether it is so long that it is not merged any more."""
        return self.texts_bytes >= _LONG_BYTES

    def block(self, format_version: int) -> bytes:
        """The rows as one block of an Avro container file, with the marker after it.

        Raises:
            ValidationFailed: a row that the format cannot hold.
        """
        found = self._blocks.get(format_version)
        if found is None:
            packed = _packed(b"".join(self._encoding(format_version)), len(self.rows))
            out = bytearray()
            _put_long(out, len(self.rows))
            _put_long(out, len(packed))
            found = self._blocks[format_version] = bytes(out) + packed + _MARKERS[format_version]
        return found

    def is_packed(self, format_version: int) -> bool:
        """Whether its block is known."""
        return format_version in self._blocks

    def encoded_bytes(self, format_version: int) -> int:
        """How long its rows are, unpacked. Raises as `block`."""
        found = self._lengths.get(format_version)
        if found is None:
            found = self._lengths[format_version] = sum(map(len, self._encoding(format_version)))
        return found

    def without(self, paths: Collection[str]) -> Run:
        """The rows of other manifests, with their encoding kept."""
        kept = [at for at, row in enumerate(self.rows) if row.path not in paths]
        encoded = {version: tuple(rows[at] for at in kept) for version, rows in self._encoded.items()}
        return Run(tuple(self.rows[at] for at in kept), encoded)

    @classmethod
    def joined(cls, runs: Iterable[Run]) -> Run:
        """The rows of several runs, each with the encoding that it has."""
        runs = tuple(runs)
        encoded = {
            version: tuple(row for run in runs for row in run._encoded.get(version) or (None,) * len(run))
            for version in {version for run in runs for version in run._encoded}
        }
        return cls(tuple(row for run in runs for row in run.rows), encoded)

    def _encoding(self, format_version: int) -> tuple[bytes, ...]:
        known = self._encoded.get(format_version) or (None,) * len(self.rows)
        pairs = zip(self.rows, known, strict=True)
        encoded = tuple(_encoded(row, format_version) if data is None else data for row, data in pairs)
        self._encoded[format_version] = encoded
        return encoded


@dataclasses.dataclass(frozen=True)
class Listing:
    """A manifest list: its rows in order, newest first. Never changed; what another one shares is not copied.

    Attributes:
        runs: none of them empty.
    """

    runs: tuple[Run, ...]

    @classmethod
    def of(cls, rows: Iterable[ManifestFile]) -> Listing:
        """A listing of these rows, in their order."""
        return cls(tuple(map(Run, _cut(rows))))

    @cached_property
    def rows(self) -> tuple[ManifestFile, ...]:
        """All rows in order."""
        return tuple(self)

    @property
    def memory_bytes(self) -> int:
        """What it takes in memory. Runs that it shares with others are counted in each."""
        return sum(run.memory_bytes for run in self.runs)

    @cached_property
    def _length(self) -> int:
        return sum(map(len, self.runs))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[ManifestFile]:
        return (row for run in self.runs for row in run.rows)

    def __contains__(self, path: object) -> bool:
        return any(path in run.by_path for run in self.runs)

    def get(self, path: str) -> ManifestFile | None:
        """The row of a manifest, or None; the first where it is listed twice."""
        return next((run.by_path[path] for run in self.runs if path in run.by_path), None)

    def prepend(self, rows: Iterable[ManifestFile]) -> Listing:
        """This listing after other rows. Runs at its beginning are merged in tiers."""
        rows = tuple(rows)
        if not rows:
            return self
        runs = (*map(Run, _cut(rows)), *self.runs)
        for rows_max, runs_max in ((_FAN, _FAN), (_FULL_ROWS, 2 * _FAN)):
            small = next((at for at, run in enumerate(runs) if len(run) >= rows_max or run.is_long), len(runs))
            if small >= runs_max:
                runs = (Run.joined(runs[:small]), *runs[small:])
        return Listing(runs)

    def packing(self, format_version: int) -> Iterator[int]:
        """Pack what `write_listing` would have to pack first, run by run. Yields how much work each was.

        In entries of a manifest, about. Runs that get row ids yet are left out. Raises as `Run.block`.
        """
        for run in self.runs:
            if not (run.is_packed(format_version) or (format_version >= 3 and run.lacks_row_ids)):
                run.block(format_version)
                yield len(run) // 8 + run.texts_bytes // 512

    def without(self, paths: Collection[str]) -> Listing:
        """This listing but for some manifests. Only runs that held one of them are made anew."""
        gone = frozenset(paths)
        if all(run.by_path.keys().isdisjoint(gone) for run in self.runs):
            return self
        kept: list[Run] = []
        for run in self.runs:
            if not run.by_path.keys().isdisjoint(gone):
                run = run.without(gone)
                if not run.rows:
                    continue
                short = not kept or not (kept[-1].is_long or run.is_long)
                if kept and short and len(kept[-1]) + len(run) <= _FULL_ROWS:  # else removals would leave crumbs behind
                    run = Run.joined((kept.pop(), run))
            kept.append(run)
        return Listing(tuple(kept))

    def compacted(self) -> Listing:
        """The same rows in one run: the smallest file, for a listing that will be carried for long."""
        return self if len(self.runs) <= 1 else Listing((Run.joined(self.runs),))


def assign_row_ids(listing: Listing, first_row_id: int) -> tuple[Listing, int]:
    """Give every data manifest that lacks one a first row id, in order; the listing, and the table's next row id.

    Existing rows are counted too: their files may come from before version 3 and have no ids of their own
    (specification: "First Row ID Assignment"; S2).

    Raises:
        ValidationFailed: a manifest without ids whose row counts are unknown.
    """
    runs: list[Run] = []
    next_row_id = first_row_id
    for run in listing.runs:
        if not run.lacks_row_ids:
            runs.append(run)
            continue
        rows: list[ManifestFile] = []
        for row in run.rows:
            if row.content == DATA and row.first_row_id is None:
                if row.existing_rows is None or row.added_rows is None:
                    why = "its row counts are unknown; read it and count"
                    raise ValidationFailed(
                        f"manifest {row.path} cannot be given row ids: {why}", rule="manifest.writable"
                    )
                rows.append(dataclasses.replace(row, first_row_id=next_row_id))
                next_row_id += row.existing_rows + row.added_rows
            else:
                rows.append(row)
        runs.append(Run(tuple(rows)))
    return Listing(tuple(runs)), next_row_id


def write_listing(
    listing: Listing,
    *,
    format_version: int,
    snapshot_id: int,
    parent_id: int | None,
    sequence_number: int,
    first_row_id: int | None,
) -> bytes:
    """A manifest list in the format of the table, whatever format its rows were read from.

    Args:
        first_row_id: the snapshot's first row id; version 3 only. Assign the rows' ids before: `assign_row_ids`.

    Raises:
        ValidationFailed: a row that the format cannot hold: delete manifests in version 1, unknown counts in
            version 2, data manifests without row ids in version 3. ``limit.file``: the list would be too long.
    """
    meta = {
        "avro.codec": "deflate",
        "avro.schema": _SCHEMAS[format_version],
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
    }
    if format_version >= 2:
        meta["sequence-number"] = str(sequence_number)
    if format_version >= 3:
        meta["first-row-id"] = str(first_row_id)
    meta["format-version"] = str(format_version)
    header = bytearray(b"Obj\x01")
    _put_long(header, len(meta))
    for key, value in meta.items():
        _put_bytes(header, key.encode())
        _put_bytes(header, value.encode())
    header.append(0)
    blocks = [run.block(format_version) for run in listing.runs]
    size_bytes = sum(map(len, blocks)) + len(header)
    if (
        size_bytes > LIST_MAX_BYTES
        or sum(run.encoded_bytes(format_version) for run in listing.runs) > UNPACKED_MAX_BYTES
    ):
        raise ValidationFailed(
            f"the table's manifest list would have {size_bytes} bytes for {len(listing)} manifests, and at most "
            f"{LIST_MAX_BYTES} are read; merge its manifests first (Spark: CALL system.rewrite_manifests)",
            rule="limit.file",
        )
    return b"".join((header, _MARKERS[format_version], *blocks))


def _cut(rows: Iterable[ManifestFile]) -> Iterator[tuple[ManifestFile, ...]]:
    """Pieces of `_CUT_ROWS`, or of fewer that are long."""
    piece: list[ManifestFile] = []
    size_bytes = 0
    for row in rows:
        piece.append(row)
        size_bytes += texts_of_row(row)
        if len(piece) == _CUT_ROWS or size_bytes >= _LONG_BYTES:
            yield tuple(piece)
            piece, size_bytes = [], 0
    if piece:
        yield tuple(piece)


# ── Avro: one record, written by hand, since that takes a quarter of the time that a general encoder takes ───────────

_SCHEMAS: Mapping[int, str] = {version: orjson.dumps(manifest_list_schema(version)).decode() for version in (1, 2, 3)}


def _encoded(row: ManifestFile, format_version: int) -> bytes:
    """One row in Avro's binary form, in the order of `manifest_list_schema`."""
    _check_writable(row, format_version)
    out = bytearray()
    try:
        (_put_row_v1 if format_version == 1 else _put_row)(out, row)
        if format_version >= 3:
            _put_optional_long(out, row.first_row_id)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        _refuse(row, format_version, f"{type(error).__name__}: {error}", error)
    if len(out) >= RECORD_MAX_BYTES:
        _refuse(row, format_version, f"its row has {len(out)} bytes, and less than {RECORD_MAX_BYTES} are read")
    return bytes(out)


def _check_writable(row: ManifestFile, format_version: int) -> None:
    if format_version == 1:
        if row.content != DATA:
            _refuse(row, format_version, "version 1 has no delete manifests")
        return
    counts = (row.added_files, row.existing_files, row.deleted_files)
    if None in counts or None in (row.added_rows, row.existing_rows, row.deleted_rows):
        _refuse(row, format_version, "its counts are unknown: read it and count")
    if format_version >= 3 and row.content == DATA and row.first_row_id is None:
        _refuse(row, format_version, "it has no first row id")


def _refuse(row: ManifestFile, format_version: int, why: str, cause: Exception | None = None) -> NoReturn:
    message = f"manifest {row.path!r} cannot be listed in format version {format_version}: {why}"
    raise ValidationFailed(message, rule="manifest.writable") from cause


def _put_row_v1(out: bytearray, row: ManifestFile) -> None:
    _put_bytes(out, row.path.encode())
    for number in (row.length_bytes, row.spec_id, row.added_snapshot_id):
        _put_long(out, number)
    for number in (row.added_files, row.existing_files, row.deleted_files):
        _put_optional_long(out, number)
    _put_partitions(out, row.partitions)
    for number in (row.added_rows, row.existing_rows, row.deleted_rows):
        _put_optional_long(out, number)
    _put_optional_bytes(out, row.key_metadata)


def _put_row(out: bytearray, row: ManifestFile) -> None:
    _put_bytes(out, row.path.encode())
    for number in (
        row.length_bytes,
        row.spec_id,
        row.content,
        row.sequence_number,
        row.min_sequence_number,
        row.added_snapshot_id,
        row.added_files or 0,
        row.existing_files or 0,
        row.deleted_files or 0,
        row.added_rows or 0,
        row.existing_rows or 0,
        row.deleted_rows or 0,
    ):
        _put_long(out, number)
    _put_partitions(out, row.partitions)
    _put_optional_bytes(out, row.key_metadata)


def _put_partitions(out: bytearray, parts: tuple[FieldSummary, ...] | None) -> None:
    if parts is None:
        out.append(0)
        return
    out.append(2)
    if parts:
        _put_long(out, len(parts))
        for part in parts:
            out.append(bool(part.contains_null))
            if part.contains_nan is None:
                out.append(0)
            else:
                out += b"\x02\x01" if part.contains_nan else b"\x02\x00"
            _put_optional_bytes(out, part.lower)
            _put_optional_bytes(out, part.upper)
    out.append(0)


def _put_optional_long(out: bytearray, number: int | None) -> None:
    if number is None:
        out.append(0)
    else:
        out.append(2)
        _put_long(out, number)


def _put_optional_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(0)
    else:
        out.append(2)
        _put_bytes(out, data)


def _put_bytes(out: bytearray, data: bytes) -> None:
    _put_long(out, len(data))
    out += data


def _put_long(out: bytearray, number: int) -> None:
    """Zigzag, then seven bits a byte, the lowest first."""
    if not -(1 << 63) <= number < 1 << 63:
        raise OverflowError(f"{number} has more than 64 bits")
    rest = number << 1 if number >= 0 else ~number << 1 | 1
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)


def _packed(data: bytes, rows: int) -> bytes:
    """The data, deflated: not at all for a few rows that will be packed again soon, lightly for some."""
    if rows < _FAN and len(data) < 1 << 16:
        length = len(data).to_bytes(2, "little")
        return b"\x01" + length + bytes(byte ^ 0xFF for byte in length) + data
    lightly = rows < _FULL_ROWS or len(data) > _LIGHTLY_BYTES
    return zlib.compress(data, 1 if lightly else 6, -zlib.MAX_WBITS)
