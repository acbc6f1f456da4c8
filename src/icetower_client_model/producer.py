"""A writer with its operation: each attempt validates the operation against the head and creates a snapshot to swap in.

A writer keeps state between attempts: files found by its filters, and manifests that it filtered, merged or wrote. A
retry can therefore end differently from a fresh attempt, and the model keeps the same state.

Source: Apache Iceberg 1.12, `SnapshotProducer.apply`, `MergingSnapshotProducer.apply`, `ManifestMergeManager`.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icetower.errors import ValidationFailed
from icetower.iceberg.change import Touched
from icetower.iceberg.deletes import is_unpartitioned, vector_text
from icetower.iceberg.entries import UNASSIGNED, Files
from icetower.iceberg.expressions import TRUE
from icetower.iceberg.manifest_writing import assign_first_row_ids, row_of
from icetower.iceberg.records import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY_DELETES,
    EXISTING,
    DataFile,
    Entry,
    FileKey,
    Manifest,
    ManifestFile,
    is_vector,
    key_of,
)
from icetower.iceberg.validation import Conflict
from icetower.table.head import HeadState
from icetower_client_model.attempt import DELETES, Attempt, Clear, conflict_of
from icetower_client_model.checks import MixedSpecs, judge, single_spec
from icetower_client_model.filtering import Filter, Note, Refused, entry_as
from icetower_client_model.history import branch_head
from icetower_client_model.layout import MANIFEST_LENGTH_BYTES, Layout
from icetower_client_model.operations import Flag, Kind, Operation

EFFECTS = (
    "retry",
    "filtered",
    "dangling-dv",
    "old-delete-dropped",
    "trusted-references",
    "filter-cache-hit",
    "manifest-merged",
    "merge-cache-hit",
    "manifests-rewritten",
    "rewrite-reused",
)
"""Effects that applying can have besides adding and removing the named files."""

_TARGET_SIZE_BYTES = 8 * 1024 * 1024
_MIN_COUNT_TO_MERGE = 100


@dataclass(frozen=True, slots=True)
class Draft:
    """A snapshot ready to be swapped in: its metadata, its manifest list, its new manifests."""

    snapshot: Mapping[str, Any]
    rows: tuple[ManifestFile, ...]
    manifests: Mapping[str, Manifest]
    branch: str


def delete_format_problem(file_format: int, touched: Touched) -> Conflict | None:
    """A conflict if the table's format version does not allow a new delete file of this kind."""
    file = touched.file
    said = None
    if file_format == 1:
        said = "Deletes are supported in V2 and above"
    elif file.content != EQUALITY_DELETES and is_vector(file) != (file_format >= 3):
        said = (
            f"Must not use DVs for position deletes in V2: {vector_text(file)}"
            if file_format == 2
            else f"Must use DVs for position deletes in V{file_format}: {file.path}"
        )
    return None if said is None else Conflict("delete-format", "IllegalArgumentException", said, (file.path,))


class Producer:
    """One writer, from its start.

    Args:
        base: the table when the writer began; the writer keeps its properties and partition specs.
        new_path: returns a new path for a manifest at each call.

    Raises:
        Refused: the operation cannot be prepared on this table.
    """

    def __init__(self, operation: Operation, snapshot_id: int, base: HeadState, new_path: Callable[[], str]) -> None:
        self.operation = operation
        self.snapshot_id = snapshot_id
        self.attempts = 0
        self._new_path = new_path
        self._manifests: dict[str, Manifest] = {}
        self._format = base.format_version
        self._kinds = _kinds(base)
        properties: Mapping[str, str] = base.metadata.get("properties") or {}
        self._merges = properties.get("commit.manifest-merge.enabled", "true").lower() == "true"
        self._min_count = _whole(properties, "commit.manifest.min-count-to-merge", _MIN_COUNT_TO_MERGE)
        self._target_bytes = _whole(properties, "commit.manifest.target-size-bytes", _TARGET_SIZE_BYTES)
        self._listed: dict[str, ManifestFile] = {}
        self._layout = Layout(operation.manifests, self._target_bytes, base.specs)
        self._merged: dict[tuple[str, ...], ManifestFile] = {}
        self._new_data: tuple[ManifestFile, ...] | None = None
        self._new_deletes: tuple[ManifestFile, ...] | None = None
        self._data = Filter(DATA, base.specs, self._write, self._vet)
        self._deletes = Filter(DELETES, base.specs, self._write, self._vet)
        self._prepare(operation, base)
        inherits = properties.get("compatibility.snapshot-id-inheritance.enabled", "false").lower() == "true"
        self._layout.prepare(self._write, copied=self._format == 1 and not inherits)

    def _prepare(self, operation: Operation, base: HeadState) -> None:
        filters = (self._data, self._deletes)
        if operation.row_filter is not None:
            for each in filters:
                each.by_rows(operation.row_filter)
        for removal in operation.removed:
            self._data.by_file(removal)
        for removal in operation.removed_deletes:
            self._deletes.by_file(removal)
        for path in operation.removed_paths:
            self._data.by_path(path)
        if operation.kind is Kind.REPLACE_PARTITIONS:
            for touched in operation.added:
                for each in filters:
                    each.by_partition(touched.spec_id, touched.file.partition)
        _check_added(operation, base)
        checked = operation.asks(Flag.NO_CONFLICTING_DATA) or operation.asks(Flag.NO_CONFLICTING_DELETES)
        if operation.kind is Kind.REWRITE or (operation.kind is Kind.OVERWRITE and checked):
            self._fail_missing()
        if operation.asks(Flag.APPEND_ONLY):
            for each in filters:
                each.fail_any = True

    def _fail_missing(self) -> None:
        self._data.fail_missing = self._deletes.fail_missing = True

    def attempt(
        self,
        head: HeadState,
        files: Files,
        *,
        list_path: str,
        now_ms: int,
        observe: Callable[[str, Clear | Conflict], None] | None = None,
        note: Note = lambda _: None,
    ) -> Draft | Conflict:
        """Validate against the head and create the snapshot; or return the conflict.

        Args:
            list_path: the path of the manifest list.
            now_ms: wall clock, for the snapshot.
            observe: called with every rule that was checked, and its verdict.
            note: called with every effect (`EFFECTS`).

        Raises:
            NeedsFile: a manifest list or manifest must be read first.
        """
        self.attempts += 1
        if self.attempts > 1:
            note("retry")
        parent = branch_head(head, self.operation.branch)
        attempt = Attempt(self.operation, head, files, parent)
        conflict = judge(attempt, observe)
        if conflict is not None:
            return conflict
        self._turn_on_missing(parent)
        own = Files(files.lists, ChainMap(self._manifests, dict(files.manifests)))
        try:
            rows = self._apply(attempt, own, note)
        except Refused as refused:
            conflict = refused.conflict
        except ValidationFailed as failed:
            found = conflict_of(failed)
            if found is None:
                raise
            conflict = found
        else:
            return self._draft(head, parent, rows, list_path, now_ms)
        if observe is not None:
            observe(conflict.rule, conflict)
        return conflict

    def _turn_on_missing(self, parent: Mapping[str, Any] | None) -> None:
        asks = self.operation.asks
        if asks(Flag.FILES_EXIST) or (asks(Flag.DELETED_FILES) and parent is not None):
            self._fail_missing()

    # ── Applying ──

    def _apply(self, attempt: Attempt, files: Files, note: Note) -> tuple[ManifestFile, ...]:
        operation, parent = attempt.operation, attempt.parent
        self._format = attempt.head.format_version
        self._kinds = _kinds(attempt.head)
        if operation.kind is Kind.REWRITE_MANIFESTS:
            return self._layout.apply(attempt, files, self._write, self._vet, note)
        if operation.kind is Kind.FAST_APPEND:
            return (*self._data_manifests(), *(files.rows(parent) if parent is not None else ()))
        if operation.kind is Kind.REPLACE_PARTITIONS:
            try:
                spec_id = single_spec(operation)
            except MixedSpecs as mixed:
                raise Refused(Conflict("mixed-specs", "IllegalStateException", str(mixed))) from mixed
            if is_unpartitioned(attempt.specs[spec_id]):  # replaces everything; earlier attempts' finds are forgotten
                self._data.by_rows(TRUE)
                self._deletes.by_rows(TRUE)
        for touched in operation.added_deletes:
            problem = None if is_vector(touched.file) else delete_format_problem(self._format, touched)
            if problem is not None:  # buffered for an earlier format version of the table
                raise Refused(problem)
        data = files.rows(parent, content=DATA) if parent is not None else ()
        deletes = files.rows(parent, content=DELETES) if parent is not None else ()
        data = self._data.apply(attempt, files, data, note)
        last: int = attempt.head.metadata.get("last-sequence-number") or 0
        known = (row.min_sequence_number for row in data if row.min_sequence_number != UNASSIGNED)
        self._deletes.oldest_data = min((last, *known))
        self._deletes.gone_data = self._data.removed_paths
        deletes = self._deletes.apply(attempt, files, deletes, note)
        new_data, new_deletes = self._data_manifests(), self._delete_manifests()
        self._data.check_specs(data)
        self._deletes.check_specs(deletes)
        merged = self._merge((*new_data, *self._kept(data)), files, note)
        merged += self._merge((*new_deletes, *self._kept(deletes)), files, note)
        if operation.kind is Kind.REWRITE:
            self._check_replaced_records(data)
        return merged

    def _kept(self, rows: Iterable[ManifestFile]) -> tuple[ManifestFile, ...]:
        """The manifests with live files, and those that this commit wrote."""
        return tuple(
            row
            for row in rows
            if row.added_files != 0 or row.existing_files != 0 or row.added_snapshot_id == self.snapshot_id
        )

    def _check_replaced_records(self, data: Iterable[ManifestFile]) -> None:
        added = sum(record_count for record_count in self._added_records().values())
        results = (self._data.removed_from(row) for row in data)
        replaced = sum(result.records for result in results if result is not None)
        if added > replaced:
            said = f"Invalid REPLACE operation: {added} added records > {replaced} replaced records"
            raise Refused(Conflict("replaced-records", "IllegalArgumentException", said))

    def _added_records(self) -> dict[str, int]:
        return {touched.file.path: touched.file.record_count for touched in self.operation.added}

    def _data_manifests(self) -> tuple[ManifestFile, ...]:
        """The manifests of the added data files, one for each spec, written at the first attempt and kept."""
        if self._new_data is None:
            number = self.operation.data_sequence_number
            by_spec: dict[int, dict[FileKey, Entry]] = {}
            for touched in self.operation.added:
                entry = self._added_entry(touched, number)
                by_spec.setdefault(touched.spec_id, {}).setdefault(key_of(touched.file), entry)
            self._new_data = self._write_groups(by_spec, DATA)
        return self._new_data

    def _delete_manifests(self) -> tuple[ManifestFile, ...]:
        """The manifests of the added delete files likewise, deletion vectors before others."""
        if self._new_deletes is None:
            by_spec: dict[int, dict[tuple[Any, ...], Entry]] = {}
            for touched in sorted(self.operation.added_deletes, key=lambda each: not is_vector(each.file)):
                entry = self._added_entry(touched, touched.sequence_number)
                by_spec.setdefault(touched.spec_id, {}).setdefault(_added_key(touched.file), entry)
            self._new_deletes = self._write_groups(by_spec, DELETES)
        return self._new_deletes

    def _added_entry(self, touched: Touched, number: int | None) -> Entry:
        return Entry(ADDED, self.snapshot_id, number, None, replace(touched.file, first_row_id=None))

    def _write_groups(self, by_spec: Mapping[int, Mapping[Any, Entry]], content: int) -> tuple[ManifestFile, ...]:
        return tuple(self._write(by_spec[spec_id].values(), spec_id, content) for spec_id in sorted(by_spec))

    def _write(self, entries: Iterable[Entry], spec_id: int, content: int) -> ManifestFile:
        entries = tuple(self._vet(entry) for entry in entries)
        path = self._new_path()
        written = tuple(self._as_written(entry) for entry in entries)
        self._manifests[path] = Manifest(written, spec_id, (), {}, content, self._format)
        return row_of(
            path,
            MANIFEST_LENGTH_BYTES,
            entries,
            kinds=self._kinds[spec_id],
            spec_id=spec_id,
            content=content,
            snapshot_id=self.snapshot_id,
            sequence_number=UNASSIGNED,
        )

    def _vet(self, entry: Entry) -> Entry:
        if self._format > 1 and entry.status != ADDED and entry.sequence_number is None:
            # From a manifest that this writer wrote in format 1, which keeps no sequence numbers.
            own = entry.status == DELETED or entry.snapshot_id == self.snapshot_id
            text = (
                "Only entries with status ADDED can have null sequence number"
                if own
                else f"Found unassigned sequence number for an entry from snapshot: {entry.snapshot_id}"
            )
            text = f"java.lang.IllegalStateException: {text}"
            raise Refused(Conflict("lost-number", "AppendWriteException", text, (entry.file.path,)))
        return entry

    def _as_written(self, entry: Entry) -> Entry:
        if entry.status == DELETED:
            entry = replace(entry, snapshot_id=self.snapshot_id)
        if self._format < 3 and entry.file.first_row_id is not None:
            entry = replace(entry, file=replace(entry.file, first_row_id=None))
        return entry if self._format > 1 else replace(entry, sequence_number=None, file_sequence_number=None)

    # ── Merging ──

    def _merge(self, rows: Sequence[ManifestFile], files: Files, note: Note) -> tuple[ManifestFile, ...]:
        if not self._merges or not rows:
            return tuple(rows)
        by_spec: dict[int, list[ManifestFile]] = {}
        for row in rows:
            by_spec.setdefault(row.spec_id, []).append(row)
        merged: list[ManifestFile] = []
        for spec_id in sorted(by_spec, reverse=True):
            for group in bins(by_spec[spec_id], self._target_bytes):
                # The group with the newest manifest waits until it has enough manifests; older groups don't.
                if len(group) == 1 or (rows[0] in group and len(group) < self._min_count):
                    merged += group
                else:
                    merged.append(self._merge_group(group, files, note))
        return tuple(merged)

    def _merge_group(self, group: Sequence[ManifestFile], files: Files, note: Note) -> ManifestFile:
        key = tuple(row.path for row in group)
        if key in self._merged:
            note("merge-cache-hit")
            return self._merged[key]
        note("manifest-merged")
        entries: list[Entry] = []
        for row in group:
            for live in files.entries(row):
                ours = live.snapshot_id == self.snapshot_id
                if live.status == DELETED:
                    if ours:  # deletions of earlier snapshots are in their own manifests
                        entries.append(self._vet(entry_as(live, DELETED)))
                elif live.status == ADDED and ours:
                    entries.append(live.entry)
                else:
                    entries.append(self._vet(entry_as(live, EXISTING)))
        self._merged[key] = self._write(entries, group[0].spec_id, group[0].content)
        return self._merged[key]

    # ── The snapshot ──

    def _draft(
        self,
        head: HeadState,
        parent: Mapping[str, Any] | None,
        rows: Sequence[ManifestFile],
        list_path: str,
        now_ms: int,
    ) -> Draft:
        metadata = head.metadata
        version = head.format_version
        number: int = (metadata.get("last-sequence-number") or 0) + 1 if version > 1 else 0
        snapshot: dict[str, Any] = {
            "snapshot-id": self.snapshot_id,
            "timestamp-ms": now_ms,
            "manifest-list": list_path,
            "summary": {"operation": self.operation.recorded_as},
            "schema-id": metadata.get("current-schema-id", 0),
        }
        if parent is not None:
            snapshot["parent-snapshot-id"] = parent["snapshot-id"]
        if version > 1:
            snapshot["sequence-number"] = number
        # The list's row of a manifest is kept from the first attempt that found it, with its row ids.
        final = tuple(_numbered(self._listed.setdefault(row.path, row), number) for row in rows)
        if version > 2:
            first: int = metadata["next-row-id"]
            final, following = assign_first_row_ids(final, first)
            snapshot |= {"first-row-id": first, "added-rows": following - first}
        named = {row.path for row in final}
        new = {path: manifest for path, manifest in self._manifests.items() if path in named}
        return Draft(snapshot, final, new, self.operation.branch)


def _check_added(operation: Operation, base: HeadState) -> None:
    about: set[str | None] = set()
    for touched in operation.added_deletes:
        if is_vector(touched.file) and touched.file.referenced_data_file in about:
            raise ValidationFailed(
                f"it adds two deletion vectors for {touched.file.referenced_data_file}: Iceberg reads and merges "
                "them, which metadata alone does not allow; merge them first",
                rule="operation.vectors",
            )
        about |= {touched.file.referenced_data_file} if is_vector(touched.file) else set()
    for touched in (*operation.added, *operation.added_deletes):
        if touched.file.content != DATA and (problem := delete_format_problem(base.format_version, touched)):
            raise Refused(problem)
        if touched.spec_id not in base.specs:
            noun = "data" if touched.file.content == DATA else "delete"
            said = f"Cannot find partition spec {touched.spec_id} for {noun} file: {touched.file.path}"
            raise Refused(Conflict("arguments", "IllegalArgumentException", said, (touched.file.path,)))


def _whole(properties: Mapping[str, str], name: str, default: int) -> int:
    """A table property that must be a whole number, as Iceberg reads it. Raises `ValidationFailed`."""
    text = properties.get(name, default)
    try:
        return int(text)
    except ValueError as error:
        raise ValidationFailed(
            f"table property {name} is {text!r}, not a whole number: correct it with ALTER TABLE",
            rule="table.property",
        ) from error


def _added_key(file: DataFile) -> tuple[Any, ...]:
    """The identity of an added delete file; that of a deletion vector is its data file."""
    return ("vector", file.referenced_data_file) if is_vector(file) else key_of(file)


def _kinds(head: HeadState) -> Mapping[int, tuple[str, ...]]:
    """Result types of the partition fields, by spec."""
    return {spec_id: tuple(part.result_type for part in spec.fields) for spec_id, spec in head.specs.items()}


def _numbered(row: ManifestFile, number: int) -> ManifestFile:
    """A row as in its manifest list: unassigned sequence numbers become the snapshot's."""
    own = number if row.sequence_number == UNASSIGNED else row.sequence_number
    least = number if row.min_sequence_number == UNASSIGNED or number == 0 else row.min_sequence_number
    return replace(row, sequence_number=own, min_sequence_number=least)


def bins(rows: Sequence[ManifestFile], target_bytes: int) -> list[list[ManifestFile]]:
    """Manifests in groups of at most `target_bytes`, filled from the end, in order (Iceberg's `BinPacking.packEnd`)."""
    groups: list[list[ManifestFile]] = []
    weight = 0
    for row in reversed(rows):
        if not groups or weight + row.length_bytes > target_bytes:
            groups.append([])
            weight = 0
        groups[-1].append(row)
        weight += row.length_bytes
    return [list(reversed(group)) for group in reversed(groups)]
