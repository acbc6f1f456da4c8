"""One commit turned into what it is in the table: final snapshots on their final parents, and the files they need.

Traps S1 to S4 of a rebased snapshot are met here: sequence numbers, row ids, running totals, and manifest lists that
name what a snapshot adds in manifests of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from icetower.admission.admitted import Admitted
from icetower.errors import CommitConflict, KeyMisused
from icetower.protocol.marks import CLIENT_LIST, KEY, PRINCIPAL, REF
from icetower.table import metadata as table_metadata
from icetower.table.change import COUNTED, Change, own_added_entries, summary_totals
from icetower.table.manifest_writing import assign_first_row_ids, manifest_row, write_manifest, write_manifest_list
from icetower.table.manifests import ManifestFile
from icetower.table.metadata import Metadata
from icetower.table.schemas import columns_by_id

JSON = dict[str, Any]
Lists = Mapping[str, tuple[ManifestFile, ...]]
"""Manifest lists by path."""

CLOCK_SKEW_MS_MAX = 60_000
"""A client's clock may run ahead by this much; beyond it, its snapshots would drag everyone's time along."""


class NeedsList(Exception):
    """A manifest list must be read before the commit can be planned."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class Draft:
    """One member, turned into final snapshots on the table as the planner has it."""

    def __init__(
        self,
        metadata: Metadata | None,
        member: Admitted,
        *,
        rebase: bool,
        lists: Sequence[Lists],
        now_ms: int,
        new_name: Callable[[], str],
    ) -> None:
        self.files: dict[str, bytes] = {}
        self.lists: dict[str, tuple[ManifestFile, ...]] = {}
        self.final_updates: list[JSON] = []
        self._start = metadata
        self._metadata: Metadata = metadata or {}
        self._member = member
        self._rebase = rebase
        self._known = (self.lists, *lists)
        self._now_ms = now_ms
        self._new_name = new_name
        self._changes = {change.snapshot["snapshot-id"]: change for change in member.changes}

    def apply(self) -> Metadata:
        """The table after this member."""
        ref = target_ref(self._member.updates)
        if self._start is not None:
            _check_refs_kept(self._metadata, self._member)
        if self._start is not None and not self._rebase and ref is not None:
            _check_base(self._metadata, self._member, ref)
        parent_id = table_metadata.ref_head(self._metadata, ref) if self._rebase and ref is not None else None
        updates = self.final_updates
        for update in self._member.updates:
            if update["action"] != "add-snapshot":
                updates.append(dict(update))
                continue
            if updates:  # a snapshot is finished on the table as the updates before it leave it: new schema, new format
                self._metadata = self._after(updates)
            change = self._changes[update["snapshot"]["snapshot-id"]]
            snapshot = self._finish(change, parent_id if self._rebase else _parent_id(change.snapshot))
            parent_id = snapshot["snapshot-id"]
            updates.append({**update, "snapshot": snapshot})
        # All at once in the end: a snapshot that a later one of the same commit supersedes has no place in the log.
        return self._after(updates)

    def _after(self, updates: Sequence[JSON]) -> Metadata:
        return table_metadata.apply(self._start, tuple(updates), now_ms=self._now_ms)

    def _finish(self, change: Change, parent_id: int | None) -> JSON:
        metadata = self._metadata
        version: int = metadata["format-version"]
        sent = change.snapshot
        sequence_number: int = metadata["last-sequence-number"] + 1 if version > 1 else 0
        _check_fits(metadata, change)
        final: JSON = dict(sent)
        parent_rows = self._rows_of(parent_id)
        parent = table_metadata.snapshot(metadata, parent_id) if parent_id is not None else None
        verbatim = (
            not self._rebase
            and not change.diff.altered
            and (version == 1 or sent.get("sequence-number") == sequence_number)
            and (version < 3 or (sent.get("first-row-id") == metadata["next-row-id"] and "added-rows" in sent))
        )
        if parent_id is not None:
            final["parent-snapshot-id"] = parent_id
        else:
            final.pop("parent-snapshot-id", None)
        if version > 1:
            final["sequence-number"] = sequence_number
        if self._rebase:
            final["schema-id"] = metadata["current-schema-id"]
        last_ms = max((entry["timestamp-ms"] for entry in metadata.get("snapshot-log", ())[-1:]), default=0)
        now_ms = self._now_ms
        time_ms = now_ms if self._rebase else min(sent["timestamp-ms"], now_ms + CLOCK_SKEW_MS_MAX)
        final["timestamp-ms"] = max(time_ms, last_ms)
        summary = {k: v for k, v in (sent.get("summary") or {}).items() if k not in COUNTED}
        summary |= summary_totals(None if parent is None else parent.get("summary") or {}, change)
        summary[PRINCIPAL] = self._member.principal
        if self._member.key is not None:
            summary[KEY] = self._member.key
            summary[REF] = target_ref(self._member.updates) or ""
        if verbatim:
            self.lists[sent["manifest-list"]] = (*change.diff.added, *change.diff.carried)
        else:
            rows = self._new_rows(change, parent_rows, sequence_number)
            final["manifest-list"], first_row_id, added_rows = self._write_list(
                change, rows, parent_id, sequence_number
            )
            summary[CLIENT_LIST] = sent["manifest-list"]
            if version >= 3:
                final["first-row-id"], final["added-rows"] = first_row_id, added_rows
        final["summary"] = summary
        return final

    def _rows_of(self, snapshot_id: int | None) -> tuple[ManifestFile, ...]:
        if snapshot_id is None:
            return ()
        snapshot = table_metadata.snapshot(self._metadata, snapshot_id)
        if snapshot is None:
            raise CommitConflict(
                f"the parent snapshot {snapshot_id} is not in the table; refresh and write again",
                rule="commit.parent",
                snapshot=snapshot_id,
            )
        path = snapshot["manifest-list"]
        for known in self._known:
            if path in known:
                return known[path]
        raise NeedsList(path)

    def _new_rows(
        self, change: Change, parent_rows: tuple[ManifestFile, ...], sequence_number: int
    ) -> tuple[ManifestFile, ...]:
        """The snapshot's list on its new parent (traps R4, S1, S4).

        The client's manifests are named by path if all that they replace is still there. If not, a merged manifest of
        the client's would bring back what others have removed: then the tower writes its own, from ADDED entries only.
        """
        gone = {row.path for row in change.diff.removed}
        kept = tuple(row for row in parent_rows if row.path not in gone)
        again = {row.path for row in change.diff.added} & {row.path for row in kept}
        if again:  # not 409: its client would clean up what the table lives on (trap A3)
            raise KeyMisused(
                f"manifest {min(again)} is in the table already, by another snapshot; a manifest belongs to one "
                "snapshot: look whether the commit landed, and write new manifests",
                rule="manifest.reused",
                next_step="refresh",
            )
        in_place = len(parent_rows) - len(kept) == len(gone)
        if in_place and not change.names_sibling:
            return (*(_renumbered(row, sequence_number) for row in change.diff.added), *kept)
        if not change.is_pure_append:
            raise CommitConflict(
                "the manifests that this commit rewrote have changed meanwhile; refresh and write again",
                rule="rebase.manifests",
            )
        return (*self._own_manifests(change, sequence_number), *parent_rows)

    def _own_manifests(self, change: Change, sequence_number: int) -> tuple[ManifestFile, ...]:
        rows: list[ManifestFile] = []
        version = self._metadata["format-version"]
        snapshot_id = change.snapshot["snapshot-id"]
        for (spec_id, content), entries in own_added_entries(change).items():
            spec = next(s for s in self._metadata["partition-specs"] if s["spec-id"] == spec_id)
            schema = _schema_of(self._metadata, spec)
            # Data of its own: every entry is ADDED and inherits the snapshot's number and row ids.
            data = write_manifest(
                entries,
                spec_fields=tuple(spec["fields"]),
                spec_id=spec_id,
                schema=schema,
                format_version=version,
                content=content,
                snapshot_id=snapshot_id,
            )
            path = self._path(f"{self._new_name()}-m0.avro")
            self.files[path] = data
            row = manifest_row(
                path,
                data,
                entries,
                spec_fields=tuple(spec["fields"]),
                spec_id=spec_id,
                schema=schema,
                content=content,
                snapshot_id=snapshot_id,
                sequence_number=sequence_number,
            )
            rows.append(row)
        return tuple(rows)

    def _write_list(
        self, change: Change, rows: tuple[ManifestFile, ...], parent_id: int | None, sequence_number: int
    ) -> tuple[str, int | None, int | None]:
        version: int = self._metadata["format-version"]
        first_row_id = added_rows = None
        if version >= 3:
            first_row_id = self._metadata["next-row-id"]
            rows, next_row_id = assign_first_row_ids(rows, first_row_id)
            added_rows = next_row_id - first_row_id
        snapshot_id = change.snapshot["snapshot-id"]
        path = self._path(f"snap-{snapshot_id}-0-{self._new_name()}.avro")
        self.files[path] = write_manifest_list(
            rows,
            format_version=version,
            snapshot_id=snapshot_id,
            parent_id=parent_id,
            sequence_number=sequence_number,
            first_row_id=first_row_id,
        )
        self.lists[path] = rows
        return path, first_row_id, added_rows

    def _path(self, name: str) -> str:
        """Beside the table's metadata files."""
        return table_metadata.metadata_path(self._metadata, 0, "").rpartition("/")[0] + "/" + name


def _renumbered(row: ManifestFile, sequence_number: int) -> ManifestFile:
    """A new manifest under its final sequence number (S1), with row ids still to be assigned (S2)."""
    inherits = row.min_sequence_number == row.sequence_number
    return replace(
        row,
        sequence_number=sequence_number,
        min_sequence_number=sequence_number if inherits else row.min_sequence_number,
        first_row_id=None,
    )


def target_ref(updates: Sequence[Mapping[str, Any]]) -> str | None:
    """The ref that a commit moves to a snapshot of its own, or to any."""
    for update in updates:
        if update["action"] == "set-snapshot-ref":
            return update["ref-name"]
    return None


def _parent_id(snapshot: Mapping[str, Any]) -> int | None:
    parent = snapshot.get("parent-snapshot-id")
    return None if parent in (None, -1) else parent


def _schema_of(metadata: Metadata, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The newest schema that has every source column of a spec; the current one may have dropped some."""
    sources = {field["source-id"] for field in spec["fields"]}
    current = metadata["current-schema-id"]
    newest_first = sorted(metadata["schemas"], key=lambda s: (s["schema-id"] == current, s["schema-id"]), reverse=True)
    for schema in newest_first:
        if sources <= columns_by_id(schema).keys():
            return schema
    return newest_first[0]


def _check_base(metadata: Metadata, member: Admitted, ref: str) -> None:
    """A commit without an assertion on its ref is applied verbatim, unless its base is no ancestor of it (trap R7)."""
    if any(r["type"] == "assert-ref-snapshot-id" and r["ref"] == ref for r in member.requirements):
        return
    if any(u["action"] == "remove-snapshot-ref" and u["ref-name"] == ref for u in member.updates):
        return
    head_id = table_metadata.ref_head(metadata, ref)
    own = {change.snapshot["snapshot-id"] for change in member.changes}
    for change in member.changes:
        parent_id = _parent_id(change.snapshot)
        if parent_id is None or parent_id in own or head_id is None:
            continue
        if not table_metadata.is_ancestor(metadata, parent_id, head_id):
            raise CommitConflict(
                f"the base of the commit, snapshot {parent_id}, is not in the history of {ref}; refresh and write "
                "again",
                rule="commit.base",
                snapshot=head_id,
            )


def _check_refs_kept(metadata: Metadata, member: Admitted) -> None:
    """Removing a snapshot removes the refs at it, and with `main` all content: only where the commit says so itself.

    Whoever expires snapshots has looked at the refs before; one may have been rolled back or tagged since (trap H1).
    """
    removals = [u["snapshot-ids"] for u in member.updates if u["action"] == "remove-snapshots"]
    gone = {snapshot_id for ids in removals for snapshot_id in ids}
    named = {u["ref-name"] for u in member.updates if u["action"] in ("remove-snapshot-ref", "set-snapshot-ref")}
    for name, ref in metadata.get("refs", {}).items() if gone else ():
        if ref["snapshot-id"] in gone and name not in named:
            raise CommitConflict(
                f"the commit removes snapshot {ref['snapshot-id']}, at which {ref['type']} {name} stands; refresh, and "
                "keep the snapshot or remove the ref in the same commit",
                rule="commit.refs",
                snapshot=ref["snapshot-id"],
            )


def _check_fits(metadata: Metadata, change: Change) -> None:
    """What a change names must exist in the head, and its deletes must be of the head's format (trap R8)."""
    specs = {spec["spec-id"] for spec in metadata["partition-specs"]}
    for touched in (*change.added, *change.removed):
        if touched.spec_id not in specs:
            raise CommitConflict(
                f"partition spec {touched.spec_id} of file {touched.file.path} is not in the table; "
                "refresh and write again",
                rule="commit.spec",
            )
        file = touched.file
        old_deletes = file.content == 1 and file.file_format.lower() != "puffin"
        if metadata["format-version"] >= 3 and old_deletes and touched in change.added:
            raise CommitConflict(
                f"Must use DVs for position deletes in V{metadata['format-version']}: {file.path}; "
                "the table was upgraded; refresh and write again",
                rule="commit.delete-format",
            )
