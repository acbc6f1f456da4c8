"""One commit turned into what it is in the table: final snapshots on their final parents, and the files they need.

Traps S1 to S4 of a rebased snapshot are met here: sequence numbers, row ids, running totals, and manifest lists that
name what a snapshot adds in manifests of its own; and R4, where manifests have moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from icetower.admission.admitted import Admitted
from icetower.commit.merging import merge_small
from icetower.commit.pieces import Pieces
from icetower.commit.twice import already_there, repeated, reused
from icetower.errors import CommitConflict
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.change import COUNTED, Change, Touched, own_added_entries, summary_totals
from icetower.iceberg.entries import Live, NeedsFiles
from icetower.iceberg.entry_checks import Identity, identity_of
from icetower.iceberg.listing import Listing, assign_row_ids, write_listing
from icetower.iceberg.manifest_writing import manifest_row, write_manifest
from icetower.iceberg.manifests import ADDED, DATA, DELETED, EXISTING, DataFile, Entry, Manifest, ManifestFile
from icetower.iceberg.metadata import Metadata
from icetower.iceberg.pruning import can_contain
from icetower.iceberg.records import referenced_file
from icetower.iceberg.schemas import schema_of
from icetower.protocol.marks import APPLICATION, BASE, CLIENT_LIST, INTENT, INTENT_FENCE, KEY, PRINCIPAL, REF, SEQUENCE
from icetower.protocol.updates import creates
from icetower.publish.copies import numbered
from icetower.rebase.grants import base_lost
from icetower.table.live_paths import live_in
from icetower.table.staged import NewFiles, StagedTable

JSON = dict[str, Any]

CLOCK_SKEW_MS_MAX = 60_000
"""A client's clock may be off by this much: one that runs ahead would drag everyone's time along, and what one that
lags has just committed would look old enough to expire (trap H1)."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Deletion vectors that take the place of a commit's own (row-level rebase).

    Attributes:
        added: by the data file that they are about: the entry to write in the client's place, with its spec id.
        removed: the head's vectors for these files, which go.
    """

    added: Mapping[str, tuple[int, Entry]]
    removed: tuple[Touched, ...]


def finish(
    member: Admitted,
    staged: StagedTable,
    new_files: NewFiles,
    *,
    rebase: bool,
    new_name: Callable[[], str],
    vectors: Mapping[int, Replacement] | None = None,
) -> Pieces[None]:
    """Apply a member's commit to the staged table, within an attempt, in pieces: one for each snapshot.

    Args:
        new_files: of the attempt.
        rebase: put its snapshots on the branch as it stands now; else on the parents that they name.
        new_name: gives a name that was never used, for each new file.
        vectors: by snapshot id, deletion vectors that were merged with what others deleted meanwhile.

    Raises:
        CommitConflict: it does not fit the table as it is now.
        NeedsFile: a manifest list or manifest must be read first.
    """
    return _Finisher(member, staged, new_files, rebase, new_name, vectors or {}).run()


class _Finisher:
    def __init__(
        self,
        member: Admitted,
        staged: StagedTable,
        new_files: NewFiles,
        rebase: bool,
        new_name: Callable[[], str],
        vectors: Mapping[int, Replacement],
    ) -> None:
        self._member = member
        self._staged = staged
        self._new_files = new_files
        self._rebase = rebase
        self._new_name = new_name
        self._vectors = vectors
        self._changes = {change.snapshot.id: change for change in member.changes}
        self._publication = member.publication
        self._numbers = {} if self._publication is None else dict(self._publication.numbers)

    def run(self) -> Pieces[None]:
        staged, member = self._staged, self._member
        ref = member.updates.target_ref
        if len(member.changes) > 1 and (again := repeated(member)):
            raise already_there(again)
        if not creates(member.requirements):
            _check_refs_kept(staged.refs, member)
            if member.judge_again is not None:
                member.judge_again(staged.view)
            if not self._rebase and ref is not None:
                _check_base(staged, member, ref)
        onto = ref if self._publication is None else member.ref  # what is staged moves another branch
        parent_id = staged.ref_head(onto) if self._rebase and onto is not None else None
        updates: list[JSON] = []
        with staged.trying() as look:
            for update in member.updates:
                if update["action"] != "add-snapshot":
                    updates.append(dict(update))
                    continue
                change = self._changes[update["snapshot"]["snapshot-id"]]
                look(updates)  # it is finished on the table as the updates before it leave it: new schema, new format
                if self._rebase:
                    yield from staged.listing(parent_id).packing(staged.format_version)
                snapshot = self._finish(change, parent_id if self._rebase else change.snapshot.parent_id)
                parent_id = snapshot["snapshot-id"]
                updates.append({**update, "snapshot": snapshot})
                later = (number for number in self._numbers if number >= change.snapshot.sequence_number)
                self._numbers |= dict.fromkeys(later, snapshot.get("sequence-number") or 0)
                yield len(change.added) + len(change.removed)
        # What cannot be written back as JSON (a lone surrogate, a number beyond 64 bits) must not reach the file that
        # the whole group shares.
        orjson.dumps(updates)
        staged.apply(updates)

    def _finish(self, change: Change, parent_id: int | None) -> JSON:
        staged, sent = self._staged, change.snapshot
        version = staged.format_version
        number = staged.last_sequence_number + 1 if version > 1 else 0
        _check_fits(staged, change)
        parent_list = staged.listing(parent_id)
        parent = staged.snapshot(parent_id) if parent_id is not None else None
        merged = self._vectors.get(sent["snapshot-id"])
        verbatim = (
            not self._rebase
            and not change.diff.altered
            and (version == 1 or sent.get("sequence-number") == number)
            and (version < 3 or (sent.get("first-row-id") == staged.view["next-row-id"] and "added-rows" in sent))
        )
        final = self._stamped(sent, parent_id, number)
        summary = {k: v for k, v in (sent.get("summary") or {}).items() if k not in COUNTED}
        own: tuple[ManifestFile, ...]
        if verbatim:
            own = change.diff.added
            path = sent["manifest-list"]
            self._new_files.listings[path] = _listing_as_sent(change, parent_list)
        else:
            listing, own, change = self._rows(change, parent_list, number, merged)
            if self._rebase:  # what a staged snapshot carries stays as its client knows it (trap R7)
                # After its removals: a merged manifest has no row ids of its own until the list is written (trap S2).
                listing, laid_out = merged_parent(
                    staged, self._new_files, listing, sent["snapshot-id"], number, self._new_name
                )
                own = (*own, *laid_out)
            path, first_row_id, listing = self._write_list(change, listing, parent_id, number)
            own = tuple(row for row in (listing.get(row.path) for row in own) if row is not None)
            final["manifest-list"] = path
            if self._publication is None:
                summary[CLIENT_LIST] = sent["manifest-list"]
            if first_row_id is not None:
                final["first-row-id"], final["added-rows"] = first_row_id
        self._new_files.own[path] = own
        summary |= summary_totals(None if parent is None else parent.get("summary") or {}, change)
        summary[PRINCIPAL] = self._member.principal
        if self._member.under is not None:
            summary |= {INTENT: self._member.under.id, INTENT_FENCE: str(self._member.under.fence)}
        if self._rebase:  # its writer has read nothing that came later
            parted = self._publication
            base = self._member.changes[0].snapshot.parent_id if parted is None else parted.base
            summary[BASE] = "none" if base is None else str(base)
        if self._member.key is not None:
            summary[KEY] = self._member.key
        if self._member.application is not None:
            application, sequence = self._member.application
            summary |= {APPLICATION: application, SEQUENCE: str(sequence)}
        if KEY in summary or APPLICATION in summary:
            summary[REF] = self._member.ref
        final["summary"] = summary
        return final

    def _stamped(self, sent: Mapping[str, Any], parent_id: int | None, number: int) -> JSON:
        """The snapshot with its final parent, number and time."""
        final: JSON = dict(sent)
        if parent_id is not None:
            final["parent-snapshot-id"] = parent_id
        else:
            final.pop("parent-snapshot-id", None)
        if self._staged.format_version > 1:
            final["sequence-number"] = number
        if self._rebase:
            final["schema-id"] = self._staged.view["current-schema-id"]
        now_ms = self._staged.now_ms
        skewed_ms = min(sent["timestamp-ms"], now_ms + CLOCK_SKEW_MS_MAX)
        time_ms = now_ms if self._rebase else max(skewed_ms, now_ms - CLOCK_SKEW_MS_MAX)
        final["timestamp-ms"] = max(time_ms, self._staged.last_log_ms)
        return final

    # -- the manifest list ----------------------------------------------------------------------------------------

    def _rows(
        self, change: Change, parent: Listing, number: int, merged: Replacement | None
    ) -> tuple[Listing, tuple[ManifestFile, ...], Change]:
        """The snapshot's list on its new parent, the manifests in it that are its own, and what it does by now.

        The client's manifests are named by path if all that they replace is still there. If not, a manifest of the
        client's would bring back what others have removed: then the tower writes its own (trap R4). So it does where
        the client knows the manifest by another number, and would list it by that one later.
        """
        again = [row.path for row in change.diff.added if row.path in parent]
        if again:  # not 409: its client would clean up what the table lives on (trap A3)
            raise reused(min(again))
        apart = change.names_sibling or self._known_otherwise(change, number) or self._publication is not None
        if merged is None and not apart and all(_stands(row, parent) for row in change.diff.removed):
            own = tuple(_renumbered(row, number) for row in change.diff.added)
            return parent.without([row.path for row in change.diff.removed]).prepend(own), own, change
        if not change.added and not change.removed:
            raise CommitConflict(
                "the manifests that this commit lays out anew have changed meanwhile; refresh and rewrite them again",
                rule="rebase.manifests",
            )
        return self._reapplied(change, parent, number, merged)

    def _known_otherwise(self, change: Change, number: int) -> bool:
        """Whether the client has read by another sequence number what the snapshot's list says of its manifests.

        It reads the list of each of its snapshots but the last, to write the next one. PyIceberg keeps what a list
        says of a manifest by the manifest's path, for all commits of its process.
        """
        followed = change.snapshot.id != self._member.changes[-1].snapshot.id
        renumbered = any(row.sequence_number != number for row in change.diff.added)
        return followed and renumbered and bool(change.added or change.removed)

    def _reapplied(
        self, change: Change, parent: Listing, number: int, merged: Replacement | None
    ) -> tuple[Listing, tuple[ManifestFile, ...], Change]:
        """What the change adds in manifests of its own, and what it removes taken out of the head's manifests."""
        if merged is not None:
            change = _with_vectors(change, merged)
        added: list[ManifestFile] = []
        rewritten = dict(change.entries_added)
        # A copy has an id of its own, and so do its manifests.
        apart = self._publication is not None or self._known_otherwise(change, number)
        for row in change.diff.added:
            whole = not apart and (row.existing_files, row.deleted_files) == (0, 0)
            if whole and (merged is None or row.content == DATA):  # the client's own file serves as it is (trap A2)
                rewritten.pop(row.path, None)
                added.append(_renumbered(row, number))
        snapshot_id: int = change.snapshot.id
        ours = own_added_entries(replace(change, entries_added=rewritten))
        if self._publication is not None:
            ours = {place: tuple(numbered(each, self._numbers) for each in some) for place, some in ours.items()}
        for (spec_id, content), entries in ours.items():
            if merged is not None and content != DATA:
                about = merged.added
                entries = tuple(e for e in entries if (e.file.referenced_data_file or "") not in about)
            added += self._written(spec_id, content, entries, snapshot_id, number)
        for spec_id, entries in _by_spec(merged.added.values() if merged else ()).items():
            added += self._written(spec_id, 1, entries, snapshot_id, number)
        replaced, filtered = self._filtered(change, parent, number)
        own = (*added, *filtered)
        return parent.without(replaced).prepend(own), own, change

    def _filtered(
        self, change: Change, parent: Listing, number: int
    ) -> tuple[frozenset[str], tuple[ManifestFile, ...]]:
        """The head's manifests that hold what the change removes, and what is written in their place.

        A file is where the client found it, or in a manifest that has come to the table since. It goes where it is
        named in the same partition, and as often as the client has found it there: another may name it elsewhere.
        """
        wanted: dict[Identity, list[Touched]] = {}
        for touched in change.removed:
            wanted.setdefault(identity_of(touched.file, touched.spec_id), []).append(touched)
        if not wanted:
            return frozenset(), ()
        carried = {row.path for row in change.diff.carried}
        specs = {touched.spec_id for touched in change.removed}
        contents = {min(touched.file.content, 1) for touched in change.removed}
        places = [(touched.spec_id, touched.file.partition) for touched in change.removed]
        files, snapshot_id = self._staged.files, change.snapshot.id
        rows = [
            row
            for row in parent
            if row.path not in carried
            and row.content in contents
            and row.spec_id in specs
            and can_contain(row, self._staged.specs[row.spec_id], places)
        ]
        if missing := files.missing(rows):
            raise NeedsFiles(missing)
        live = {row.path: [each for each in files.entries(row) if each.status != DELETED] for row in rows}
        gone, left = _to_remove(wanted, live)
        replaced: list[str] = []
        written: list[ManifestFile] = []
        for row in rows:
            if at := gone.get(row.path):
                replaced.append(row.path)
                entries = tuple(_filtered_entry(each, n in at) for n, each in enumerate(live[row.path]))
                written += self._written(row.spec_id, row.content, entries, snapshot_id, number)
        dangling = {touched.file.path for touched in change.removed if touched.file.content == DATA}
        for file in left:
            # Deletes of a data file that goes as well are gone with it.
            if file.content != DATA and referenced_file(file) in dangling:
                continue
            # W17 of docs/conflicts.md
            raise CommitConflict(
                f"the file {file.path}, which this commit replaces or removes, is not in the table any more; refresh "
                "and run the statement again",
                rule="conflict.C6",
                files=(file.path,),
            )
        return frozenset(replaced), tuple(written)

    def _written(
        self, spec_id: int, content: int, entries: Sequence[Entry], snapshot_id: int, number: int
    ) -> tuple[ManifestFile, ...]:
        """A manifest of the tower's own, where there is anything to be written: its row."""
        if not entries:
            return ()
        metadata = self._staged.view
        spec = next(s for s in metadata["partition-specs"] if s["spec-id"] == spec_id)
        fields, schema = tuple(spec["fields"]), schema_of(metadata, spec)
        version = self._staged.format_version
        shape: JSON = {"spec_fields": fields, "spec_id": spec_id, "schema": schema, "content": content}
        data = write_manifest(entries, format_version=version, snapshot_id=snapshot_id, **shape)
        path = self._path(f"{self._new_name()}-m0.avro")
        self._new_files.files[path] = data
        if content == DATA:
            self._new_files.live[path] = [entry.file.path for entry in entries if entry.status != DELETED]
        self._new_files.manifests[path] = Manifest(
            tuple(_as_written(entry, snapshot_id) for entry in entries),
            spec_id,
            fields,
            schema,
            content,
            version,
            len(data),
        )
        return (manifest_row(path, data, entries, snapshot_id=snapshot_id, sequence_number=number, **shape),)

    def _write_list(
        self, change: Change, listing: Listing, parent_id: int | None, number: int
    ) -> tuple[str, tuple[int, int] | None, Listing]:
        version = self._staged.format_version
        row_ids: tuple[int, int] | None = None
        first_row_id = None
        if version >= 3:
            first_row_id = self._staged.view["next-row-id"]
            listing, following = assign_row_ids(listing, first_row_id)
            row_ids = first_row_id, following - first_row_id
        snapshot_id: int = change.snapshot.id
        path = self._path(f"snap-{snapshot_id}-0-{self._new_name()}.avro")
        self._new_files.files[path] = write_listing(
            listing,
            format_version=version,
            snapshot_id=snapshot_id,
            parent_id=parent_id,
            sequence_number=number,
            first_row_id=first_row_id,
        )
        self._new_files.listings[path] = listing
        return path, row_ids, listing

    def _path(self, name: str) -> str:
        return beside(self._staged.view, name)


def merged_parent(
    staged: StagedTable,
    new_files: NewFiles,
    listing: Listing,
    snapshot_id: int,
    number: int,
    new_name: Callable[[], str],
) -> tuple[Listing, tuple[ManifestFile, ...]]:
    """The list that a snapshot is put on, with small manifests merged, and the merged manifest (trap S4).

    Once a group, and only what all commits that remove files from it have seen: their removals would have to be done
    again in it.

    Raises:
        NeedsToMerge: manifests must be read first.
    """
    through = staged.merges_through
    if through is None:
        return listing, ()
    merge = merge_small(
        listing,
        staged.files,
        staged.view,
        snapshot_id=snapshot_id,
        sequence_number=number,
        new_path=lambda: beside(staged.view, f"{new_name()}-m0.avro"),
        through=through,
    )
    staged.merges_through = None
    if merge is None:
        return listing, ()
    new_files.files.update(merge.files)
    new_files.manifests.update(merge.manifests)
    new_files.live.update({path: live_in(manifest) for path, manifest in merge.manifests.items()})
    rows = tuple(row for row in (merge.listing.get(path) for path in merge.manifests) if row is not None)
    return merge.listing, rows


def beside(metadata: Metadata, name: str) -> str:
    """A path beside the table's metadata files."""
    return table_metadata.metadata_folder(metadata) + "/" + name


def data_path(metadata: Metadata, name: str) -> str:
    """A path where the table's data files go."""
    folder = (metadata.get("properties") or {}).get("write.data.path") or f"{metadata['location']}/data"
    return f"{folder.rstrip('/')}/{name}"


def _to_remove(
    wanted: Mapping[Identity, Sequence[Touched]], live: Mapping[str, Sequence[Live]]
) -> tuple[dict[str, set[int]], list[DataFile]]:
    """Which of the live entries of manifests go, by position; and the files of which there are too few.

    Where a file is named more often in one partition than the client found it, those go that it has found.
    """
    found: dict[Identity, list[tuple[str, int, int | None]]] = {}
    for path, entries in live.items():
        for at, each in enumerate(entries):
            identity = identity_of(each.entry.file, each.row.spec_id)
            if identity in wanted:
                found.setdefault(identity, []).append((path, at, each.sequence_number))
    gone: dict[str, set[int]] = {}
    left: list[DataFile] = []
    for identity, asked in wanted.items():
        there = found.get(identity, [])
        if len(there) < len(asked):
            left.append(asked[0].file)
            continue
        if len(there) > len(asked):
            numbers = {touched.sequence_number for touched in asked}
            there.sort(key=lambda place: place[2] not in numbers)
        for path, at, _ in there[: len(asked)]:
            gone.setdefault(path, set()).add(at)
    return gone, left


def _filtered_entry(live: Live, is_gone: bool) -> Entry:
    """A live entry as a filtered manifest has it: with its own snapshot, numbers and row ids written out (S1, S2)."""
    return replace(
        live.entry,
        status=DELETED if is_gone else EXISTING,
        snapshot_id=live.snapshot_id,
        sequence_number=live.sequence_number,
        file_sequence_number=live.file_sequence_number,
    )


def _as_written(entry: Entry, snapshot_id: int) -> Entry:
    """An entry as it would be read back from the manifest that `write_manifest` makes of it."""
    if entry.status == EXISTING:
        return entry
    own = replace(entry, snapshot_id=snapshot_id)
    return replace(own, file_sequence_number=None) if entry.status == ADDED else own


def _stands(row: ManifestFile, parent: Listing) -> bool:
    """Whether the head has a manifest as the client has read it.

    After an upgrade to version 3 the next snapshot gives row ids to whatever lacks them: a copy that was written of a
    manifest before that knows nothing of them, and its rows would get new ones (trap S2).
    """
    now = parent.get(row.path)
    return now is not None and now.first_row_id == row.first_row_id


def _with_vectors(change: Change, merged: Replacement) -> Change:
    """The change with merged deletion vectors: what it adds and removes by now."""
    added = [t for t in change.added if (t.file.referenced_data_file or "") not in merged.added]
    added += [replace(change.added[0], file=e.file, spec_id=s, sequence_number=None) for s, e in merged.added.values()]
    removed = [t for t in change.removed if (t.file.referenced_data_file or "") not in merged.added]
    return replace(change, added=tuple(added), removed=(*removed, *merged.removed))


def _by_spec(entries: Iterable[tuple[int, Entry]]) -> dict[int, tuple[Entry, ...]]:
    found: dict[int, tuple[Entry, ...]] = {}
    for spec_id, entry in entries:
        found[spec_id] = (*found.get(spec_id, ()), entry)
    return found


def _listing_as_sent(change: Change, parent: Listing) -> Listing:
    """The client's own list, in runs that it shares with its parent's.

    Row ids that the client has given to manifests which had none (after an upgrade to format 3) are the table's now:
    then its list is taken as it is (S2).
    """
    if any(run.lacks_row_ids for run in parent.runs):
        return Listing.of((*change.diff.added, *change.diff.carried))
    return parent.without({row.path for row in change.diff.removed}).prepend(change.diff.added)


def _renumbered(row: ManifestFile, sequence_number: int) -> ManifestFile:
    """A new manifest under its final sequence number (S1), with row ids still to be assigned (S2)."""
    inherits = row.min_sequence_number == row.sequence_number
    return replace(
        row,
        sequence_number=sequence_number,
        min_sequence_number=sequence_number if inherits else row.min_sequence_number,
        first_row_id=None,
    )


def _check_base(staged: StagedTable, member: Admitted, ref: str) -> None:
    """A commit without an assertion on its ref is applied verbatim, unless its base is no ancestor of it (trap R7)."""
    if any(r["type"] == "assert-ref-snapshot-id" and r["ref"] == ref for r in member.requirements):
        return
    if ref in member.updates.removed_refs:
        return
    head_id = staged.ref_head(ref)
    own = {change.snapshot.id for change in member.changes}
    for change in member.changes:
        parent_id = change.snapshot.parent_id
        if parent_id is None or parent_id in own or head_id is None:
            continue
        if not staged.is_ancestor(parent_id, head_id):
            raise base_lost(parent_id, ref, head_id)


def _check_refs_kept(refs: Mapping[str, Mapping[str, Any]], member: Admitted) -> None:
    """Removing a snapshot removes the refs at it, and with `main` all content: only where the commit says so itself.

    The client that expires snapshots has looked at the refs before; one may have been rolled back or tagged since (H1).
    """
    gone = set(member.updates.removed_snapshots)
    named = member.updates.removed_refs | {ref for ref, _ in member.updates.moves}
    for name, ref in refs.items() if gone else ():
        if ref["snapshot-id"] in gone and name not in named:
            raise CommitConflict(
                f"the commit removes snapshot {ref['snapshot-id']}, at which {ref['type']} {name} stands; refresh, and "
                "keep the snapshot or remove the ref in the same commit",
                rule="commit.refs",
                snapshot=ref["snapshot-id"],
            )


def _check_fits(staged: StagedTable, change: Change) -> None:
    """What a change names must exist in the head; manifests and deletes must be of the head's format (trap R8)."""
    if change.again:  # whether on its branch or not: its rows would be in this snapshot twice
        raise already_there(change.again)
    metadata = staged.view
    sent = change.snapshot
    # Entries that stay say their sequence number themselves, which format version 1 cannot: they would have none.
    repeats = any(row.existing_files != 0 or row.deleted_files != 0 for row in change.diff.added)
    if metadata["format-version"] > 1 and not sent.get("sequence-number") and repeats:
        raise CommitConflict(
            f"Cannot add snapshot with sequence number {sent.get('sequence-number') or 0}: it was written for format "
            f"version 1, and the table was upgraded to {metadata['format-version']}; refresh and write again",
            rule="commit.format",
        )
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
