"""How a commit removes files from the head's manifests, and the rules that are checked there: C6 and C7.

A `Filter` belongs to one writer and outlives its attempts, as Iceberg's does: it remembers what an attempt found, and a
retry that meets the same manifest again uses that. That is why an overwrite by filter whose file is gone commits if the
file was gone before the first attempt, and fails if it was removed between two attempts.

Source: Apache Iceberg 1.12, `ManifestFilterManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote_plus

from icetower.iceberg.deletes import Place, is_unpartitioned, place_key
from icetower.iceberg.entries import Files, Live
from icetower.iceberg.expressions import FALSE, Expression, either, text
from icetower.iceberg.partitions import PartitionSpec, human_value
from icetower.iceberg.pruning import can_contain
from icetower.iceberg.records import DATA, DELETED, EXISTING, DataFile, Entry, FileKey, ManifestFile, is_vector, key_of
from icetower.iceberg.validation import Conflict
from icetower_client_model.attempt import Attempt
from icetower_client_model.operations import Removal

Write = Callable[[Iterable[Entry], int, int], ManifestFile]
"""Writes entries as a manifest of (spec id, content); its row has no sequence number yet."""
Vet = Callable[[Entry], Entry]
"""Returns an entry that can be written; raises `Refused` for one that cannot. Called in the order of writing."""
Note = Callable[[str], None]
"""Called with every effect of applying (`producer.EFFECTS`)."""


class Refused(Exception):
    """Applying found a conflict."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__(conflict.message)
        self.conflict = conflict


@dataclass(frozen=True, slots=True)
class Removed:
    """The files that filtering removed from one manifest, each once."""

    files: Mapping[FileKey, DataFile]

    @property
    def records(self) -> int:
        return sum(file.record_count for file in self.files.values())


class Filter:
    """Removes files of one content (0 data, 1 deletes) from manifests, over all attempts of one writer.

    Args:
        specs: the table's partition specs when the writer began; it does not see later ones.
    """

    def __init__(self, content: int, specs: Mapping[int, PartitionSpec], write: Write, vet: Vet) -> None:
        self._content = content
        self._specs = specs
        self._write = write
        self._vet = vet
        self._files: dict[FileKey, DataFile] = {}
        self._file_places: dict[Place, Place] = {}
        self._paths: dict[str, None] = {}
        self._dropped: dict[Place, Place] = {}
        self._expression: Expression = FALSE
        self._named_manifests: set[str] = set()
        self._all_name_manifests = True
        self._cache: dict[str, ManifestFile] = {}
        self._results: dict[str, Removed] = {}
        self.fail_missing = False
        self.fail_any = False
        self.oldest_data = 0
        """The smallest sequence number of live data: older delete files have no effect any more."""
        self.gone_data: frozenset[str] = frozenset()
        """Paths of data files that the commit removes: their deletion vectors are removed with them."""

    # ── What to remove ──

    def by_file(self, removal: Removal) -> None:
        """Remove this file."""
        self._forget()
        touched = removal.touched
        self._check_spec(touched.spec_id, f"file {removal.path}")
        if removal.manifest is None:
            self._all_name_manifests = False
        else:
            self._named_manifests.add(removal.manifest)
        self._files.setdefault(key_of(touched.file), touched.file)
        # Iceberg's file builder drops the tuple of a spec with only void fields, so no manifest seems to hold it.
        # In a set of partitions such a tuple equals the true one: the first is kept.
        described = removal.manifest is None and is_unpartitioned(self._specs[touched.spec_id])
        partition = touched.file.partition
        place = (touched.spec_id, () if described else partition)
        self._file_places.setdefault(place_key((touched.spec_id, partition)), place)

    def by_path(self, path: str) -> None:
        """Remove the data file at this path."""
        self._forget()
        self._all_name_manifests = False
        self._paths[path] = None

    def by_rows(self, expression: Expression) -> None:
        """Remove every file whose rows all match; a data file in which only some match is a conflict (C7)."""
        self._forget()
        self._all_name_manifests = False
        self._expression = either(self._expression, expression)

    def by_partition(self, spec_id: int, partition: tuple[Any, ...]) -> None:
        """Remove every file of a partition."""
        self._forget()
        self._all_name_manifests = False
        self._check_spec(spec_id, "an added file")
        self._dropped[place_key((spec_id, partition))] = (spec_id, partition)

    def _forget(self) -> None:
        self._cache.clear()
        self._results.clear()

    @property
    def removed_paths(self) -> frozenset[str]:
        """Paths of the files to be removed: the named ones, and those found by filter in any attempt so far."""
        return frozenset(file.path for file in self._files.values())

    # ── Removing ──

    def apply(
        self, attempt: Attempt, files: Files, rows: Sequence[ManifestFile], note: Note
    ) -> tuple[ManifestFile, ...]:
        """The manifests without the files to be removed; manifests without such files unchanged.

        Raises:
            Refused: C6, C7, or a file in a partition from which none may be removed.
            NeedsFile: a manifest must be read first.
        """
        if not rows:
            self._check_all_found(())
            return ()
        trusted = self._all_name_manifests and bool(self._named_manifests)
        trusted = trusted and self._named_manifests <= {row.path for row in rows}
        if trusted:
            note("trusted-references")
        filtered = tuple(self._filter(attempt, files, row, trusted, note) for row in rows)
        found = self._found(filtered)
        for key, file in found.items():
            self._files.setdefault(key, file)
        self._check_all_found(filtered)
        return filtered

    def removed_from(self, row: ManifestFile) -> Removed | None:
        """The files that were removed from a filtered manifest; None if it is unchanged."""
        return self._results.get(row.path)

    def _found(self, filtered: Iterable[ManifestFile]) -> dict[FileKey, DataFile]:
        results = (self._results.get(row.path) for row in filtered)
        return {key: file for result in results if result is not None for key, file in result.files.items()}

    def _check_all_found(self, filtered: Iterable[ManifestFile]) -> None:
        """C6: every file to be removed was found."""
        if not self.fail_missing:
            return
        found = self._found(filtered)
        missing = [file.path for key, file in self._files.items() if key not in found]
        if not missing:
            paths = {file.path for file in found.values()}
            missing = [path for path in self._paths if path not in paths]
        if missing:
            said = f"Missing required files to delete: {','.join(missing)}"
            raise Refused(Conflict("C6", "ValidationException", said, tuple(missing)))

    def _filter(self, attempt: Attempt, files: Files, row: ManifestFile, trusted: bool, note: Note) -> ManifestFile:
        if row.path in self._cache:
            note("filter-cache-hit")
            return self._cache[row.path]
        filtered = row
        if self._can_hold_removed(attempt, row, trusted) and self._holds_removed(attempt, files, row):
            filtered = self._without_removed(attempt, files, row, note)
            note("filtered")
        self._cache[row.path] = filtered
        return filtered

    def _can_hold_removed(self, attempt: Attempt, row: ManifestFile, trusted: bool) -> bool:
        if row.added_files == 0 and row.existing_files == 0:
            return False
        if trusted:
            return row.path in self._named_manifests
        if self._paths:
            return True
        # The order matters: if files are named, deletion vectors of removed data are not searched elsewhere.
        if self._files:
            if can_contain(row, self._spec(row), self._file_places.values()):
                return True
        elif self.gone_data:
            return True
        if self._expression != FALSE:
            self._spec(row)
            if attempt.pruner(self._expression, row.spec_id).manifest_might_match(row):
                return True
        return bool(self._dropped) and can_contain(row, self._spec(row), self._dropped.values())

    def _spec(self, row: ManifestFile) -> PartitionSpec:
        self._check_spec(row.spec_id, f"manifest {row.path}")
        return self._specs[row.spec_id]

    def _check_spec(self, spec_id: int, what: str) -> None:
        if spec_id not in self._specs:
            said = f"the table did not have partition spec {spec_id} of {what} when the writer began"
            raise Refused(Conflict("unknown-spec", "NullPointerException", said))

    def _holds_removed(self, attempt: Attempt, files: Files, row: ManifestFile) -> bool:
        if row.path in self._named_manifests:
            return True
        for live in files.live(row):
            if self._is_removed(attempt, live):
                if self.fail_any:
                    partition = _partition_path(attempt.specs[row.spec_id], live.entry.file.partition)
                    said = f"Cannot commit file that conflicts with existing partition: {partition}"
                    raise Refused(Conflict("append-only", "ValidationException", said, (live.path,)))
                return True
        return False

    def _is_removed(self, attempt: Attempt, live: Live) -> bool:
        file = live.entry.file
        if (
            file.path in self._paths
            or key_of(file) in self._files
            or (self._dropped and place_key((live.row.spec_id, file.partition)) in self._dropped)
            or self._is_old(live)
            or self._is_dangling(file)
        ):
            return True
        if self._expression == FALSE:
            return False
        pruner = attempt.pruner(self._expression, live.row.spec_id)
        if not pruner.residual_might_match(file):
            return False
        if pruner.residual_must_match(file):
            return True
        if self._content == DATA:  # a delete file of which only some rows match stays
            said = (
                f"Cannot delete file where some, but not all, rows match filter {text(self._expression)}: {file.path}"
            )
            raise Refused(Conflict("C7", "ValidationException", said, (file.path,), (live.snapshot_id,)))
        return False

    def _is_old(self, live: Live) -> bool:
        return self._content != DATA and 0 < (live.sequence_number or 0) < self.oldest_data

    def _is_dangling(self, file: DataFile) -> bool:
        return self._content != DATA and is_vector(file) and file.referenced_data_file in self.gone_data

    def _without_removed(self, attempt: Attempt, files: Files, row: ManifestFile, note: Note) -> ManifestFile:
        removed: dict[FileKey, DataFile] = {}
        entries: list[Entry] = []
        for live in files.live(row):
            if not self._is_removed(attempt, live):
                entries.append(self._vet(entry_as(live, EXISTING)))
                continue
            entries.append(self._vet(entry_as(live, DELETED)))
            removed.setdefault(key_of(live.entry.file), live.entry.file)
            if self._is_dangling(live.entry.file):
                note("dangling-dv")
            elif self._is_old(live):
                note("old-delete-dropped")
        filtered = self._write(entries, row.spec_id, row.content)
        # A manifest that a scan named is rewritten even if none of its files is removed: its entries are checked later.
        self._results[filtered.path] = Removed(removed)
        return filtered

    def check_specs(self, filtered: Iterable[ManifestFile]) -> None:
        """Iceberg's summary names the partition of every removed file, and fails on an unknown partition spec."""
        for row in filtered:
            result = self._results.get(row.path)
            if result is not None and result.files:
                self._spec(row)


def entry_as(live: Live, status: int) -> Entry:
    """An entry rewritten with another status, with the sequence numbers of its file."""
    return replace(
        live.entry,
        status=status,
        snapshot_id=live.snapshot_id,
        sequence_number=live.sequence_number,
        file_sequence_number=live.file_sequence_number,
    )


def _partition_path(spec: PartitionSpec, partition: tuple[Any, ...]) -> str:
    pairs = zip(spec.fields, partition, strict=True)
    return "/".join(f"{quote_plus(part.name)}={quote_plus(human_value(part, value))}" for part, value in pairs)
