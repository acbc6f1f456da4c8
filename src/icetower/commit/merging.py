"""Small manifests become larger ones, a bounded number of entries a group. Pure (trap S4).

Every commit leaves a manifest of its own, and every manifest list names them all: without merging, lists, and the
planning of every reader, grow with the number of commits. The merged manifest belongs to the snapshot in whose list it
first stands.

**What is left alone.** Readers find what a snapshot added as ADDED entries in manifests whose `added_snapshot_id` is
that snapshot. A merged manifest has EXISTING entries only, with snapshot, sequence numbers and row ids written out; so
nothing in it looks new, and older snapshots' own lists name what they always did. It is made of manifests that every
base in flight has already (`through`). Manifests of deletes stay: a merged one would look new to checks that go by
manifest (a false C3a), and cost a rebase. Iceberg's own properties are kept to: `commit.manifest-merge.enabled`,
`commit.manifest.min-count-to-merge`, `commit.manifest.target-size-bytes`.

**What it costs.** Manifests are put into tiers by their live entries: 1 to 9, 10 to 99, 100 to 999. A tier is merged
when it has as many manifests as the property says, 10 at the least, the oldest first, until `ENTRIES_MAX` entries are
together. So what comes out is in a higher tier, or has more than half of `ENTRIES_MAX`; manifests like that are
full and never touched again. An entry is therefore rewritten once a tier at most, three times in all (with Iceberg's
default of 100 manifests, twice), and a group of commits never rewrites more than `ENTRIES_MAX` entries however large
the table is. The price is a list with up to that many manifests of each tier in it, beside the full ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icetower.errors import ValidationFailed
from icetower.iceberg.entries import Files, Live, NeedsFiles
from icetower.iceberg.listing import Listing
from icetower.iceberg.manifest_writing import manifest_row, write_manifest
from icetower.iceberg.manifests import DATA, EXISTING, Entry, Manifest, ManifestFile
from icetower.iceberg.metadata import Metadata
from icetower.iceberg.record_sizes import (
    MANIFEST_MAX_BYTES,
    MANIFEST_MEMORY_MAX_BYTES,
    read_memory_bytes,
    record_bytes,
)
from icetower.iceberg.schemas import schema_of

ENTRIES_MAX = 2_000
"""So many entries a merge rewrites at most. It takes about a tenth of a second."""

MANIFESTS_MAX = 512
"""So many manifests a merge replaces at most: they may have to be read first."""

_FAN_MIN = 10
_TARGET_SIZE = "commit.manifest.target-size-bytes"
_MIN_COUNT = "commit.manifest.min-count-to-merge"
_ENABLED = "commit.manifest-merge.enabled"
_TARGET_SIZE_BYTES, _MIN_COUNT_DEFAULT = 8 * 1024 * 1024, 100


@dataclass(frozen=True, slots=True)
class Merge:
    """A manifest list after small manifests were merged.

    Attributes:
        listing: the list, the merged manifest first. Its row ids are still to be assigned.
        files: what to write before the swap, by path.
        manifests: the merged manifest, by its path.
        replaced: paths of those that went into it, and of those that held nothing alive.
    """

    listing: Listing
    files: Mapping[str, bytes]
    manifests: Mapping[str, Manifest]
    replaced: frozenset[str]


class NeedsToMerge(NeedsFiles):
    """Manifests that are to be merged must be read first. Nothing that is planned before they are can be kept."""


def merge_small(
    listing: Listing,
    files: Files,
    metadata: Metadata,
    *,
    snapshot_id: int,
    sequence_number: int,
    new_path: Callable[[], str],
    through: int,
) -> Merge | None:
    """Merge one tier of one spec, where there is one that is full; None where there is none.

    It never fails a commit: what cannot be merged, stays.

    Args:
        listing: the list of the new snapshot's parent, or the new list.
        files: for the manifests.
        metadata: the table as it is. Tables of format version 1 are left to their clients.
        snapshot_id: of the snapshot whose list this becomes.
        sequence_number: of that snapshot.
        new_path: gives the path of a new manifest.
        through: the highest sequence number that every base in flight has; nothing newer is touched.

    Raises:
        NeedsToMerge: manifests must be read first; at most `MANIFESTS_MAX`.
    """
    properties = metadata.get("properties") or {}
    if metadata["format-version"] < 2 or str(properties.get(_ENABLED, "true")).lower() == "false":
        return None
    fan = max(_FAN_MIN, _number(properties.get(_MIN_COUNT), _MIN_COUNT_DEFAULT))
    target_bytes = _number(properties.get(_TARGET_SIZE), _TARGET_SIZE_BYTES)
    if len(listing) < fan:
        return None
    small = [
        row
        for row in listing
        if row.content == DATA
        and row.sequence_number <= through
        and row.length_bytes < target_bytes
        and row.key_metadata is None
        and (count := _live(row)) is not None
        and count <= ENTRIES_MAX // 2
    ]
    chosen = _chosen(small, fan, target_bytes)
    if chosen is None:
        return None
    if missing := files.missing(row for row in chosen if _live(row)):
        raise NeedsToMerge(missing)
    return _merged(listing, chosen, files, metadata, snapshot_id, sequence_number, new_path)


def _live(row: ManifestFile) -> int | None:
    """How many entries of a manifest are alive, by its row; None where the row doesn't say."""
    if row.added_files is None or row.existing_files is None:
        return None
    return row.added_files + row.existing_files


def _chosen(small: Sequence[ManifestFile], fan: int, target_bytes: int) -> list[ManifestFile] | None:
    """The oldest manifests of the lowest tier that is full, as many as are merged at once."""
    tiers: dict[tuple[int, int], list[ManifestFile]] = {}
    for row in small:
        tiers.setdefault((len(str(max(_live(row) or 0, 1))), row.spec_id), []).append(row)
    for _, rows in sorted(tiers.items()):
        if len(rows) < fan:
            continue
        rows.sort(key=lambda row: row.sequence_number)
        chosen: list[ManifestFile] = []
        entries = size_bytes = 0
        for row in rows[:MANIFESTS_MAX]:
            entries += _live(row) or 0
            size_bytes += row.length_bytes
            if entries > ENTRIES_MAX or size_bytes > target_bytes:
                break
            chosen.append(row)
        if len(chosen) > 1:
            return chosen
    return None


def _merged(
    listing: Listing,
    chosen: Iterable[ManifestFile],
    files: Files,
    metadata: Metadata,
    snapshot_id: int,
    sequence_number: int,
    new_path: Callable[[], str],
) -> Merge | None:
    spec_id, version = next(iter(chosen)).spec_id, metadata["format-version"]
    spec = next((s for s in metadata["partition-specs"] if s["spec-id"] == spec_id), None)
    if spec is None:
        return None
    fields: tuple[Mapping[str, Any], ...] = tuple(spec["fields"])
    schema = schema_of(metadata, spec)
    field_ids = [field["field-id"] for field in fields]
    replaced: set[str] = set()
    entries: list[Entry] = []
    size_bytes = memory_bytes = 0
    for row in chosen:
        if not _live(row):
            replaced.add(row.path)
            continue
        if [field["field-id"] for field in files.manifests[row.path].spec_fields] != field_ids:
            continue  # another writer's idea of the spec: its partitions would be read as other fields'
        live = list(files.live(row))
        if any(each.sequence_number is None for each in live):
            continue  # its entries have lost what they should say: not for us to make good
        size_bytes += sum(record_bytes(each.entry.file) for each in live)
        memory_bytes += sum(read_memory_bytes(each.entry) for each in live)
        if size_bytes > MANIFEST_MAX_BYTES or memory_bytes > MANIFEST_MEMORY_MAX_BYTES:
            break  # its readers would not take it
        replaced.add(row.path)
        entries += map(_existing, live)
    left = listing.without(replaced)
    if len(replaced) < 2 or len(left) + len(replaced) != len(listing):  # a manifest that is listed twice counts twice
        return None
    if not entries:
        return Merge(left, {}, {}, frozenset(replaced))
    shape: dict[str, Any] = {"spec_fields": fields, "spec_id": spec_id, "schema": schema, "content": DATA}
    try:
        data = write_manifest(entries, format_version=version, snapshot_id=snapshot_id, **shape)
        path = new_path()
        row = manifest_row(path, data, entries, snapshot_id=snapshot_id, sequence_number=sequence_number, **shape)
    except ValidationFailed:
        return None
    manifest = Manifest(tuple(entries), spec_id, fields, schema, DATA, version, len(data))
    return Merge(left.prepend([row]), {path: data}, {path: manifest}, frozenset(replaced))


def _existing(live: Live) -> Entry:
    """A live entry with all that it inherits written out."""
    return replace(
        live.entry,
        status=EXISTING,
        snapshot_id=live.snapshot_id,
        sequence_number=live.sequence_number,
        file_sequence_number=live.file_sequence_number,
    )


def _number(value: object, default: int) -> int:
    """A property's number; the default where it is none, as a bad property must not stop commits."""
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else default
