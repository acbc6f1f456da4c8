"""How long the records of manifests and manifest lists become, so that none is written that no reader takes. Pure.

A reader takes no record beyond `avro_files.RECORD_MAX_BYTES`, and no file beyond what its records may take unpacked and
in memory. A table with one such record could not be read by anybody, so what makes records long is bounded where it
comes in: partition values, and the bounds of columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from icetower.errors import ValidationFailed
from icetower.iceberg.avro_files import ITEM_MEMORY_BYTES, MEMORY_MAX_BYTES, RECORD_MEMORY_BYTES
from icetower.iceberg.records import DataFile, Entry, ManifestFile, items_of

PARTITION_VALUE_MAX_BYTES = 4_096
"""Of one text or binary value. It stands in paths, and object stores take no key of more than 1,024 bytes."""

PARTITION_MAX_BYTES = 4 * PARTITION_VALUE_MAX_BYTES
"""Of all such values of one partition. A manifest list says the least and the greatest of each field."""

BOUND_MAX_BYTES = 4_096
BOUNDS_MAX_BYTES = 256 * 1024
"""Of one bound of a column, and of all bounds of a file, in what the tower computes. Iceberg lets bounds be absent."""

ADDED_MAX_BYTES = 768 * 1024
"""Of the entry of a file that is added. Written anew, it gets longer by its numbers."""

ROW_TEXTS_MAX_BYTES = 64 * 1024
"""Of the path and the key metadata of a manifest, in the manifest list."""

MANIFEST_MAX_BYTES = 32 * 1024 * 1024
"""Of the entries of a manifest that the tower writes, unpacked. It takes a second or less."""

MANIFEST_MEMORY_MAX_BYTES = MEMORY_MAX_BYTES - MEMORY_MAX_BYTES // 16
"""What the entries of such a manifest may take in the memory of its readers."""

_NUMBER_BYTES = 10  # the longest number, or length, in Avro
_BOUNDS = ("lower_bounds", "upper_bounds")
_NUMBERS = frozenset(
    {"column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "split_offsets", "equality_ids"}
)


def value_bytes(value: Any) -> int:
    """How long a partition value is: a text as UTF-8, binary as it is; 0 for all that has a fixed length."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    return len(value) if isinstance(value, bytes) else 0


def partition_bytes(partition: Iterable[Any]) -> int:
    """How long the text and binary values of a partition are together."""
    return sum(map(value_bytes, partition))


def record_bytes(file: DataFile) -> int:
    """How long the entry of a file is in Avro, about: not less than it is, and exact where that tells."""
    rough = _rough_bytes(file)
    return rough if rough <= ADDED_MAX_BYTES else _plain_bytes(file) + sum(map(_exact_bytes, file.record.values()))


def read_memory_bytes(entry: Entry) -> int:
    """What an entry takes in memory when it is read: its record, its file's and its partition's, and their items."""
    return 3 * RECORD_MEMORY_BYTES + ITEM_MEMORY_BYTES * items_of(entry.file)


def summary_bytes(row: ManifestFile) -> int:
    """How long the bounds of its partition fields are in a row of a manifest list."""
    return sum(len(part.lower or b"") + len(part.upper or b"") for part in row.partitions or ())


def too_long(path: str, size_bytes: int) -> ValidationFailed:
    """The refusal of a file of which a manifest would say too much."""
    return ValidationFailed(
        f"what a manifest says of the file {path} takes {size_bytes} bytes, and at most {ADDED_MAX_BYTES} go into one "
        "record; write shorter bounds, as with write.metadata.metrics.default = truncate(16), or larger row groups",
        rule="limit.record",
        files=(path,),
    )


def in_manifests(entries: Sequence[Entry], most: int) -> Iterator[Sequence[Entry]]:
    """The entries in order, in pieces that fit one manifest each.

    Args:
        most: entries of one manifest.
    """
    start = size_bytes = memory_bytes = 0
    for at, entry in enumerate(entries):
        own_bytes, own_memory_bytes = record_bytes(entry.file), read_memory_bytes(entry)
        size_bytes, memory_bytes = size_bytes + own_bytes, memory_bytes + own_memory_bytes
        full = size_bytes > MANIFEST_MAX_BYTES or memory_bytes > MANIFEST_MEMORY_MAX_BYTES or at - start >= most
        if at > start and full:
            yield entries[start:at]
            start, size_bytes, memory_bytes = at, own_bytes, own_memory_bytes
    if start < len(entries):
        yield entries[start:]


def _plain_bytes(file: DataFile) -> int:
    """Of its partition, and of the numbers around its record."""
    return partition_bytes(file.partition) + _NUMBER_BYTES * (len(file.partition) + 8)


def _rough_bytes(file: DataFile) -> int:
    """With each number at its longest; more than is allowed where it has what is not known here."""
    size = _plain_bytes(file)
    for name, value in file.record.items():
        size += _NUMBER_BYTES
        if isinstance(value, list):
            items: Sequence[Any] = value
            size += 2 * _NUMBER_BYTES * len(items)
            if name in _BOUNDS:
                lengths = [value_bytes(item.get("value")) for item in items if type(item) is dict]
                size += sum(lengths)
                if len(lengths) < len(items):
                    return ADDED_MAX_BYTES + 1
            elif name not in _NUMBERS:
                return ADDED_MAX_BYTES + 1
        elif isinstance(value, str | bytes):
            size += value_bytes(value)
        elif isinstance(value, dict):
            return ADDED_MAX_BYTES + 1
    return size


def _exact_bytes(value: Any) -> int:
    if isinstance(value, str | bytes):
        size = value_bytes(value)
        return 1 + size + _long_bytes(size)
    if isinstance(value, list):
        items: Sequence[Any] = value
        return 2 + _long_bytes(len(items)) + sum([_exact_bytes(item) for item in items])
    if isinstance(value, dict):
        fields: Mapping[Any, Any] = value
        return sum([_exact_bytes(item) for item in fields.values()])
    return _long_bytes(value) if isinstance(value, int) else _NUMBER_BYTES


def _long_bytes(number: int) -> int:
    """In Avro: zigzag, then seven bits a byte."""
    return (number.bit_length() + 7) // 7
