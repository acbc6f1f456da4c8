"""How long what a write brings may make the records of manifests: asked of everybody, whichever way it comes.

limit.record    a partition, or what a manifest says of one file, is too long

One record that is longer than readers take would keep everybody from the table. What a table has already goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from icetower.admission.facts import Facts
from icetower.errors import ValidationFailed
from icetower.iceberg.change import Change, Header
from icetower.iceberg.partitions import PartitionSpec, partition_key, spec_of
from icetower.iceberg.record_sizes import (
    ADDED_MAX_BYTES,
    PARTITION_MAX_BYTES,
    PARTITION_VALUE_MAX_BYTES,
    ROW_TEXTS_MAX_BYTES,
    partition_bytes,
    record_bytes,
    summary_bytes,
    too_long,
    value_bytes,
)

if TYPE_CHECKING:
    from icetower.admission.appends import AppendFacts
    from icetower.admission.rows import SentRows


def check_row_sizes(sent: SentRows) -> None:
    """The partitions of rows."""
    for part in sent.batch.parts:
        number = 1 if part.numbers is None else part.numbers[0]
        _check_partition(part.spec, part.partition, f"row {number}")


def check_append_sizes(facts: AppendFacts) -> None:
    """The partitions of files that are named; what their statistics take is looked at with their footers."""
    for claim in facts.claims:
        _check_partition(claim.spec, claim.partition, f"the file {claim.path}", (claim.path,))


def check_commit_sizes(facts: Facts) -> None:
    """The files that a commit adds, and what its manifest lists say of its manifests."""
    specs: dict[int, PartitionSpec] = {}
    for change in facts.changes:
        # A file may take the place of one that is there, however long its partition is.
        before = {(gone.spec_id, partition_key(gone.file.partition)) for gone in change.removed}
        for touched in change.added:
            file = touched.file
            if partition_bytes(file.partition) > PARTITION_VALUE_MAX_BYTES:
                spec = specs.setdefault(touched.spec_id, spec_of(facts.after, touched.spec_id))
                if (touched.spec_id, partition_key(file.partition)) not in before:
                    _check_partition(spec, file.partition, f"the file {file.path}", (file.path,))
            size_bytes = record_bytes(file)
            if size_bytes > ADDED_MAX_BYTES:
                raise too_long(file.path, size_bytes)
        for header in change.headers:
            _check_row(header, change)


def _check_partition(spec: PartitionSpec, partition: Sequence[Any], of: str, files: tuple[str, ...] = ()) -> None:
    total_bytes = partition_bytes(partition)
    if total_bytes <= PARTITION_VALUE_MAX_BYTES:
        return
    for field, value in zip(spec.fields, partition, strict=False):
        size_bytes = value_bytes(value)
        if size_bytes > PARTITION_VALUE_MAX_BYTES:
            raise ValidationFailed(
                f"the partition field {field.name} of {of} has a value of {size_bytes} bytes, and at most "
                f"{PARTITION_VALUE_MAX_BYTES} are taken; write a shorter one into {field.source_name}, or partition "
                "the table by truncate or bucket of it",
                rule="limit.record",
                files=files,
            )
    if total_bytes > PARTITION_MAX_BYTES:
        raise ValidationFailed(
            f"the partition of {of} has values of {total_bytes} bytes together, and at most {PARTITION_MAX_BYTES} are "
            "taken; write shorter ones, or partition the table by fewer columns",
            rule="limit.record",
            files=files,
        )


def _check_row(header: Header, change: Change) -> None:
    row = header.row
    text_bytes = len(row.path.encode("utf-8", "surrogatepass")) + len(row.key_metadata or b"")
    if text_bytes > ROW_TEXTS_MAX_BYTES:
        raise ValidationFailed(
            f"the manifest list has {text_bytes} bytes of path and key metadata for one manifest, and at most "
            f"{ROW_TEXTS_MAX_BYTES} are taken; write shorter ones",
            rule="limit.record",
        )
    bounds_bytes = summary_bytes(row)
    if bounds_bytes <= 2 * PARTITION_MAX_BYTES:
        return
    # As long as the values that it holds, which may have been there before.
    partitions = [*header.partitions, *(gone.file.partition for gone in change.removed)]
    fields = len(row.partitions or ())
    longest = [max((value_bytes(each[at]) for each in partitions if at < len(each)), default=0) for at in range(fields)]
    if bounds_bytes > 2 * sum(longest):
        raise ValidationFailed(
            f"the manifest {row.path} is listed with bounds of {bounds_bytes} bytes, and its partitions have at most "
            f"{2 * sum(longest)}; write its row anew, with the least and the greatest value of each partition field",
            rule="limit.record",
        )
