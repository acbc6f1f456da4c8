"""Rewrites manifests: the same entries in new manifests. Readers see no change.

Source: Apache Iceberg 1.12, `BaseRewriteManifests`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any

from icetower.iceberg.entries import Files
from icetower.iceberg.partitions import partition_key
from icetower.iceberg.records import DATA, EXISTING, Entry, ManifestFile
from icetower.iceberg.validation import Conflict
from icetower_client_model.attempt import Attempt
from icetower_client_model.filtering import Note, Refused, Vet, Write, entry_as
from icetower_client_model.operations import ManifestRewrite

MANIFEST_LENGTH_BYTES = 4096
"""The length of a manifest in the model; real ones with few entries are about as long."""


class Layout:
    """One writer's rewrite of manifests, over all its attempts.

    If every manifest that it has read is still in the head, a retry keeps the manifests that it wrote; else it starts
    again. It always works on the table's current snapshot.

    Args:
        asked: the requested rewrite.
        target_bytes: the length at which a manifest is full.
        spec_ids: the table's partition specs when the writer began; it does not see later ones.
    """

    def __init__(self, asked: ManifestRewrite, target_bytes: int, spec_ids: Container[int]) -> None:
        self._asked = asked
        self._target_bytes = target_bytes
        self._spec_ids = spec_ids
        self._rewritten: dict[str, ManifestFile] = {}
        self._new: tuple[ManifestFile, ...] = ()
        self._added: ManifestFile | None = None
        self._order: dict[tuple[Any, int], int] = {}  # of the clusters, as they were first met in any attempt

    def prepare(self, write: Write, *, copied: bool) -> None:
        """Write the manifest to be added. The writer does so before it commits, in the table's format at that time.

        Args:
            copied: whether Iceberg copies it, as it must in format 1 without `snapshot-id-inheritance`.
        """
        if self._asked.deleted:
            entries = self._asked.added
            if copied:  # from the writer's manifest, in which format 1 keeps no sequence numbers
                entries = tuple(replace(entry, sequence_number=None, file_sequence_number=None) for entry in entries)
            self._added = write(entries, self._asked.deleted[0].spec_id, DATA)

    def apply(self, attempt: Attempt, files: Files, write: Write, vet: Vet, note: Note) -> tuple[ManifestFile, ...]:
        """The head's manifests after the rewrite, new ones first.

        Raises:
            Refused: a manifest to be deleted does not exist any more, or one is of a later partition spec.
            NeedsFile: a manifest list or manifest must be read first.
        """
        asked, head = self._asked, attempt.head
        current = head.snapshots.get(head.metadata.get("current-snapshot-id") or -1)
        if current is None:
            raise Refused(Conflict("arguments", "NullPointerException", "an empty table has no manifests to rewrite"))
        rows = files.rows(current)
        present = {row.path for row in rows}
        for row in asked.deleted:
            if row.path not in present:
                said = f"Deleted manifest {row.path} could not be found in the latest snapshot {current['snapshot-id']}"
                raise Refused(Conflict("missing-manifest", "ValidationException", said, (row.path,)))
        if asked.cluster is not None and (not self._rewritten or not present.issuperset(self._rewritten)):
            self._rewrite(files, rows, write, vet, note)
        elif self._rewritten:
            note("rewrite-reused")
        gone = {*self._rewritten, *(row.path for row in asked.deleted)}
        added = () if self._added is None else (self._added,)
        return (*self._new, *added, *(row for row in rows if row.path not in gone))

    def _rewrite(self, files: Files, rows: Sequence[ManifestFile], write: Write, vet: Vet, note: Note) -> None:
        note("manifests-rewritten")
        deleted = {row.path for row in self._asked.deleted}
        self._rewritten = {row.path: row for row in rows if row.path not in deleted and self._takes(row)}
        # A manifest is full once it is as long as the target; the model only has targets that one entry fills.
        full_at = 1 if self._target_bytes < MANIFEST_LENGTH_BYTES else None
        written: list[ManifestFile] = []
        groups: dict[tuple[Any, int], list[Entry]] = {}
        for row in self._rewritten.values():
            for live in files.live(row):
                if row.spec_id not in self._spec_ids:
                    said = f"partition spec {row.spec_id} of manifest {row.path} came after the writer began"
                    raise Refused(Conflict("unknown-spec", "NullPointerException", said))
                file = live.entry.file
                keys: dict[str | None, Any] = {"partition": partition_key(file.partition), "file": file.path}
                cluster = (keys.get(self._asked.cluster), row.spec_id)
                self._order.setdefault(cluster, len(self._order))
                if len(groups.get(cluster, ())) == full_at:
                    written.append(write(groups.pop(cluster), row.spec_id, DATA))
                groups.setdefault(cluster, []).append(vet(entry_as(live, EXISTING)))
        in_order = sorted(groups, key=lambda cluster: self._order[cluster])
        self._new = (*written, *(write(groups[cluster], cluster[1], DATA) for cluster in in_order))

    def _takes(self, row: ManifestFile) -> bool:
        return row.content == DATA and self._asked.only_spec in (None, row.spec_id)
