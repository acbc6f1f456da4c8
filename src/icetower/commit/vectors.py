"""Row-level rebase: a commit's deletion vector, and one that others wrote for the same data file, become one. Pure.

Iceberg refuses the second of two vectors for one data file whatever rows they are about (C5 of docs/conflicts.md),
since who reads manifests doesn't see the rows. The tower looks: where the rows that each has deleted since the commit's
base differ, the table gets a vector with both, in a new Puffin file, in place of the one that it has by now. Where they
don't, or one brings rows back, the commit is refused.

Use: `collisions_of` finds the vectors that collide; `unite` makes their unions, for `draft.finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icetower.commit.draft import Replacement
from icetower.errors import CommitConflict, ValidationFailed
from icetower.iceberg import puffin
from icetower.iceberg.change import Change, Touched
from icetower.iceberg.entries import Files, Live
from icetower.iceberg.partitions import partition_key
from icetower.iceberg.puffin import Blob, BlobAt
from icetower.iceberg.records import ADDED, DATA, DELETED, DataFile, Entry, FileKey, is_vector, key_of
from icetower.iceberg.vectors import BLOB_MAX_BYTES, Overlap, Vector, as_blob, blob_of, decode_of, merge

JSON = Mapping[str, Any]

VECTORS_MAX = 1_000
"""A commit that collides with others in more data files is refused: merging them all would keep others waiting."""

BYTES_MAX = 8 * BLOB_MAX_BYTES
"""Likewise for the size of all vectors that have to be read, before the reading begins."""

CREATED_BY = "Icetower"


class NeedsBlobs(Exception):
    """Blobs must be read before vectors can be put together.

    Attributes:
        blobs: each of them.
    """

    def __init__(self, blobs: Iterable[BlobAt]) -> None:
        self.blobs = frozenset(blobs)
        super().__init__(sorted({blob.path for blob in self.blobs}))


@dataclass(frozen=True, slots=True)
class Collision:
    """A data file of which a commit and others have deleted rows, each by a vector.

    Attributes:
        target: path of the data file.
        spec_id, ours: the commit's ADDED entry.
        base: the vector that the commit found and superseded; None where there was none.
        theirs: the vector that the table has by now.
    """

    target: str
    spec_id: int
    ours: Entry
    base: DataFile | None
    theirs: Live

    @property
    def superseded(self) -> FileKey | None:
        """The vector that the commit removes and others have replaced: it is not to be looked for any more."""
        return None if self.base is None else key_of(self.base)


@dataclass(frozen=True, slots=True)
class United:
    """A Puffin file to be written, and the entries that take the place of the commit's own."""

    path: str
    data: bytes
    replacement: Replacement


def collisions_of(change: Change, steps: Sequence[JSON], files: Files) -> tuple[Collision, ...]:
    """The vectors of a change that collide with others, in order of their data files.

    Args:
        steps: the snapshots that landed between the commit's base and the head, oldest first.
        files: manifests, and what each of these snapshots added itself.

    Raises:
        NeedsFile: a manifest or manifest list must be read first.
        ValidationFailed: the change has two vectors for one data file; one of them would be lost.
    """
    ours: dict[str, tuple[int, Entry]] = {}
    for target, vector in _added_vectors(change):
        if target in ours:
            raise ValidationFailed(
                f"the commit adds two deletion vectors for {target}; merge them into one", rule="contract.manifest"
            )
        ours[target] = vector
    if not ours or change.names_sibling:  # what a sibling has written is not there to be merged with yet
        return ()
    now: dict[str, Live] = {}
    for step in steps:
        written = [live for live in _of_deletes(files, step) if _about(live.entry.file) in ours]
        gone = {key_of(live.entry.file) for live in written if live.status == DELETED}
        now = {target: live for target, live in now.items() if key_of(live.entry.file) not in gone}
        now |= {_about(live.entry.file): live for live in written if live.status == ADDED}
    base = {_about(touched.file): touched.file for touched in change.removed if is_vector(touched.file)}
    return tuple(Collision(target, *ours[target], base.get(target), live) for target, live in sorted(now.items()))


def _added_vectors(change: Change) -> Iterator[tuple[str, tuple[int, Entry]]]:
    for row in change.diff.added:
        for entry in change.entries_added.get(row.path, ()):
            if is_vector(entry.file):
                yield _about(entry.file), (row.spec_id, entry)


def _of_deletes(files: Files, step: JSON) -> Iterator[Live]:
    """What a snapshot did to deletion vectors; entries that it only laid out anew are another's."""
    for row in files.own_rows(step):
        if row.content != DATA:
            own = (live for live in files.entries(row) if live.snapshot_id == step["snapshot-id"])
            yield from (live for live in own if is_vector(live.entry.file))


def _about(file: DataFile) -> str:
    return str(file.referenced_data_file)


def among(made: Mapping[str, bytes], read: Mapping[BlobAt, bytes]) -> Callable[[BlobAt], bytes | None]:
    """Where `unite` finds blobs: in the files that a plan makes, which no storage has yet, and in what was read.

    Args:
        made: bytes by path. A group may unite one member's vector with the union that another's has become in it.
    """

    def blob_at(at: BlobAt) -> bytes | None:
        whole = made.get(at.path)
        return read.get(at) if whole is None else whole[at.offset : at.offset + at.length_bytes]

    return blob_at


def unite(collisions: Sequence[Collision], blob_at: Callable[[BlobAt], bytes | None], *, path: str) -> United:
    """One vector for each data file, in one new Puffin file.

    Args:
        blob_at: the bytes of a blob; None where they have not been read yet, none where they cannot be. See `among`.
        path: where the Puffin file will be written.

    Raises:
        NeedsBlobs: blobs must be read first.
        CommitConflict: both have deleted the same rows, or one brings rows back; or they cannot be put together.
        ValidationFailed: the commit's own vector cannot be read.
    """
    wanted = [_places(collision) for collision in collisions]
    _check_limits(wanted)
    read = {blob: blob_at(blob) for at in wanted for blob in at.blobs}
    missing = [blob for blob, data in read.items() if data is None]
    if missing:
        raise NeedsBlobs(missing)
    unions = [_union(at, {blob: data for blob, data in read.items() if data is not None}) for at in wanted]
    pairs = list(zip(collisions, unions, strict=True))
    data, blobs = puffin.write([as_blob(union, collision.target) for collision, union in pairs], created_by=CREATED_BY)
    added = {
        collision.target: (collision.spec_id, _entry(collision, union, blob, path, len(data)))
        for (collision, union), blob in zip(pairs, blobs, strict=True)
    }
    removed = tuple(Touched(m.theirs.entry.file, m.theirs.row.spec_id, m.theirs.sequence_number) for m in collisions)
    return United(path, data, Replacement(added, removed))


@dataclass(frozen=True, slots=True)
class _Places:
    """A collision with the places of its blobs."""

    collision: Collision
    ours: BlobAt
    theirs: BlobAt
    base: BlobAt | None

    @property
    def blobs(self) -> tuple[BlobAt, ...]:
        return (self.ours, self.theirs) if self.base is None else (self.ours, self.theirs, self.base)


def _places(collision: Collision) -> _Places:
    ours, theirs, base = collision.ours.file, collision.theirs.entry.file, collision.base
    specs = (collision.spec_id, collision.theirs.row.spec_id)
    if specs[0] != specs[1] or partition_key(ours.partition) != partition_key(theirs.partition):
        raise _cannot(collision, "they are listed in different partitions")
    if any(file is not None and file.record.get("key_metadata") for file in (ours, theirs, base)):
        raise _cannot(collision, "they are encrypted")
    try:
        own = blob_of(ours)
    except ValueError as error:
        raise ValidationFailed(
            f"the deletion vector for {collision.target} in {ours.path} cannot be read ({error}); write it again",
            rule="vector.readable",
        ) from error
    try:
        return _Places(collision, own, blob_of(theirs), None if base is None else blob_of(base))
    except ValueError as error:
        raise _cannot(collision, str(error)) from error


def _check_limits(wanted: Sequence[_Places]) -> None:
    size = sum({blob: blob.length_bytes for at in wanted for blob in at.blobs}.values())
    if len(wanted) > VECTORS_MAX or size > BYTES_MAX:
        raise CommitConflict(
            f"rows of {len(wanted)} data files, from which the commit deletes rows, were deleted meanwhile; at most "
            f"{VECTORS_MAX} deletion vectors of {BYTES_MAX} bytes are merged; refresh and run the statement again",
            rule="rebase.vectors",
        )


def _union(at: _Places, read: Mapping[BlobAt, bytes]) -> Vector:
    collision = at.collision
    if not read[at.ours]:  # its client may reach where the tower cannot, and validates by itself
        raise _cannot(collision, f"nothing was found at {at.ours.path}")
    ours = decode_of(collision.ours.file, read[at.ours])
    try:
        files = (collision.theirs.entry.file, collision.base)
        theirs, base = (
            None if blob is None or file is None else decode_of(file, read[blob])
            for blob, file in zip((at.theirs, at.base), files, strict=True)
        )
    except ValidationFailed as error:  # not this client's fault, and nothing that it could mend
        raise _cannot(collision, error.message) from error
    assert theirs is not None
    merged = merge(ours, base, theirs)
    if isinstance(merged, Overlap):  # W16, as is `_cannot`
        raise CommitConflict(
            f"the commit conflicts with snapshot {collision.theirs.snapshot_id}: of its deletion vector for "
            f"{collision.target} and the table's, {merged}; refresh and run the statement again",
            rule="conflict.C5",
            snapshot=collision.theirs.snapshot_id,
            files=(collision.target,),
        )
    return merged


def _cannot(collision: Collision, why: str) -> CommitConflict:
    return CommitConflict(
        f"the commit conflicts with snapshot {collision.theirs.snapshot_id}: both delete rows of {collision.target}, "
        f"and their deletion vectors cannot be put together: {why}; refresh and run the statement again",
        rule="conflict.C5",
        snapshot=collision.theirs.snapshot_id,
        files=(collision.target,),
    )


def _entry(collision: Collision, union: Vector, blob: Blob, path: str, size_bytes: int) -> Entry:
    """The union as a manifest names it: as the commit's own entry, with everything that tells where the blob lies."""
    file = collision.ours.file
    fields = {
        "file_path": path,
        "file_format": "PUFFIN",
        "record_count": len(union),
        "file_size_in_bytes": size_bytes,
        "content_offset": blob.offset,
        "content_size_in_bytes": blob.length_bytes,
        "referenced_data_file": collision.target,
    }
    union_file = replace(
        file,
        path=path,
        file_format="PUFFIN",
        partition=collision.theirs.entry.file.partition,
        record_count=len(union),
        size_bytes=size_bytes,
        record={**file.record, **fields},
    )
    return Entry(ADDED, None, None, None, union_file)
