"""Many appends by the fast path folded into one snapshot (trap H2). Pure.

`fold` is what the planner calls for the appends of a group that go to one branch, whether they bring files or rows:
one manifest a partition spec, one manifest list, one group file, one snapshot. Which appends are replays, or too stale
to go in, is decided before.

Traps met here: the manifests hold ADDED entries of this snapshot and nothing else (S4), their sequence numbers and row
ids are the snapshot's own (S1, S2), the running totals are the parent's and what was verified (S3), and the group file
says whose each data file is and under which key (K1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.admission.admitted import AdmittedAppend
from icetower.commit.twice import NAMED_MAX
from icetower.errors import CommitConflict, KeyMisused
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.change import Change, ListDiff, Touched, summary_totals
from icetower.iceberg.listing import Listing, assign_row_ids, write_listing
from icetower.iceberg.manifest_writing import row_of, write_manifest
from icetower.iceberg.manifests import ADDED, DATA, Entry, ManifestFile
from icetower.iceberg.metadata import Metadata
from icetower.iceberg.partitions import spec_of
from icetower.iceberg.record_sizes import in_manifests
from icetower.iceberg.schemas import read_as, schema_of
from icetower.protocol.marks import AUTHOR, GROUP_FILE, GROUP_SIZE, REF
from icetower.protocol.names import Identifier
from icetower.protocol.snapshots import Snapshot
from icetower.rows.encoding import NewFile
from icetower.table.groups import Group, GroupedAppend, Span, group_file_name, key_records, write_group
from icetower.table.keys import KeyRecord

JSON = dict[str, Any]

AUTHORS_MAX = 16
"""So many principals a group's summary names; its group file names all."""

ENTRIES_PER_MANIFEST_MAX = 10_000
"""A group with more files of one spec gets several manifests: about where Iceberg's own writers begin a new one."""


@dataclass(frozen=True, slots=True)
class Folded:
    """One snapshot for all appends of a group to one branch.

    Attributes:
        snapshot: as it goes into the metadata (JSON).
        updates: `add-snapshot` and `set-snapshot-ref`, for `iceberg.metadata.apply`.
        files: what to write before the swap: manifests, manifest list and group file, by path.
        lists: the new manifest list, by its path.
        keys: what the snapshot stands for from now on: one record for each append with a key or a number.
        live: by manifest, the data files that it names.
    """

    snapshot: JSON
    updates: tuple[JSON, ...]
    files: Mapping[str, bytes]
    lists: Mapping[str, Listing]
    keys: tuple[KeyRecord, ...]
    live: Mapping[str, Sequence[str]]


def fold(
    appends: Sequence[AdmittedAppend],
    *,
    metadata: Metadata,
    parent: Mapping[str, Any] | None,
    listing: Listing,
    snapshot_id: int,
    sequence_number: int,
    now_ms: int,
    new_name: Callable[[], str],
    encoded: Sequence[NewFile] = (),
) -> Folded:
    """One snapshot for `appends`, which all go to one branch.

    Each of them must have passed `why_not`, and none may be a replay.

    Args:
        appends: in queue order, at least one.
        encoded: the files that were made for those of them that bring rows; positions in them are those in `appends`.
        metadata: the table as the members of the group before them leave it.
        parent: the branch's head (JSON); None for a branch that has none yet.
        listing: the parent's manifest list; empty without a parent.
        snapshot_id: of the new snapshot.
        sequence_number: the table's next one; ignored in format version 1.
        now_ms: the server's clock.
        new_name: gives a name that was never used, for each new file.
    """
    version: int = metadata["format-version"]
    number = sequence_number if version > 1 else 0
    folder = table_metadata.metadata_folder(metadata)
    files: dict[str, bytes] = {new.file.path: new.data for new in encoded}
    live: dict[str, Sequence[str]] = {}
    added = [touched for append in appends for touched in append.files]
    added += [Touched(new.file, new.spec_id, None) for new in encoded]
    rows = _manifests(added, metadata, snapshot_id, number, lambda name: f"{folder}/{name}", new_name, files, live)
    new_listing = listing.prepend(rows)
    first_row_id: int | None = None
    row_ids: JSON = {}
    if version >= 3:
        first = first_row_id = int(metadata["next-row-id"])
        new_listing, next_row_id = assign_row_ids(new_listing, first)
        row_ids = {"first-row-id": first, "added-rows": next_row_id - first}
    parent_id = None if parent is None else int(parent["snapshot-id"])
    list_path = f"{folder}/snap-{snapshot_id}-0-{new_name()}.avro"
    files[list_path] = write_listing(
        new_listing,
        format_version=version,
        snapshot_id=snapshot_id,
        parent_id=parent_id,
        sequence_number=number,
        first_row_id=first_row_id,
    )
    group = _group(appends, encoded, metadata, snapshot_id)
    group_path = f"{folder}/{group_file_name(snapshot_id, new_name())}"
    files[group_path] = write_group(group)
    last_ms = max((entry["timestamp-ms"] for entry in metadata.get("snapshot-log", ())[-1:]), default=0)
    snapshot: JSON = {
        "snapshot-id": snapshot_id,
        **({} if parent_id is None else {"parent-snapshot-id": parent_id}),
        **({"sequence-number": number} if version > 1 else {}),
        "timestamp-ms": max(now_ms, last_ms),
        "manifest-list": list_path,
        "summary": {
            "operation": "append",
            **_totals(added, parent),
            GROUP_FILE: group_path,
            GROUP_SIZE: str(len(appends)),
            **_authors(appends),
            REF: appends[0].ref,
        },
        "schema-id": metadata["current-schema-id"],
        **row_ids,
    }
    updates = ({"action": "add-snapshot", "snapshot": snapshot}, _moved(metadata, appends[0].ref, snapshot_id))
    return Folded(snapshot, updates, files, {list_path: new_listing}, key_records(group), live)


def _authors(appends: Sequence[AdmittedAppend]) -> Mapping[str, str]:
    """All whose appends these are, for those who cannot read the group file; of very many, nobody."""
    names = sorted({append.principal for append in appends})
    return {AUTHOR: ",".join(names)} if len(names) <= AUTHORS_MAX else {}


def why_not(append: AdmittedAppend, metadata: Metadata) -> CommitConflict | None:
    """Why an append cannot go into the table as it stands now, though it was admitted; None if it can (trap R8).

    All of these are 409: the same request, sent again, is judged on the table as it is by then.
    """
    if append.table_uuid is not None and append.table_uuid != metadata.get("table-uuid"):
        return another_table(append.identifier)
    refs: Mapping[str, Any] = metadata.get("refs") or {}
    ref = refs.get(append.ref)
    if (ref is None and append.ref != table_metadata.MAIN) or (ref is not None and ref.get("type") != "branch"):
        return CommitConflict(
            f"{append.identifier} has no branch {append.ref} any more; create it, and send the append again",
            rule="append.branch",
        )
    if append.read_as is not None and append.read_as != read_as(metadata):
        return CommitConflict(
            f"the schema of {append.identifier} has changed since the files of the append were judged by it, and they "
            "may not fit any more; send the append again",
            rule="append.schema",
        )
    known = {spec["spec-id"] for spec in metadata["partition-specs"]}
    for part in () if append.rows is None else append.rows.parts:
        if part.spec.spec_id not in known:
            return CommitConflict(
                f"partition spec {part.spec.spec_id} of the rows is not in the table any more; send them again",
                rule="commit.spec",
            )
    for touched in append.files:
        if touched.spec_id not in known:
            return CommitConflict(
                f"partition spec {touched.spec_id} of file {touched.file.path} is not in the table any more; write the "
                "file under the table's current spec, and send it again",
                rule="commit.spec",
            )
    return None


def another_table(identifier: Identifier) -> CommitConflict:
    """The refusal of a commit that was admitted to a table of this name that is not there any more."""
    return CommitConflict(
        f"{identifier} was dropped and created again, or renamed, while the commit was under way; look at the table "
        "and write again",
        rule="requirement.assert-table-uuid",
    )


def by_ref(appends: Sequence[AdmittedAppend]) -> list[list[AdmittedAppend]]:
    """Appends by their branches, in queue order each."""
    found: dict[str, list[AdmittedAppend]] = {}
    for append in appends:
        found.setdefault(append.ref, []).append(append)
    return list(found.values())


def once_each(
    able: Sequence[AdmittedAppend],
) -> tuple[
    list[AdmittedAppend], list[tuple[AdmittedAppend, KeyMisused | None]], list[tuple[AdmittedAppend, KeyMisused]]
]:
    """The appends of a group that go in, those that are sent once more meanwhile, and those that are refused.

    Who sends again joins the first, and gets its answer (trap A3). Only what goes in may answer for another: an append
    that is refused leaves its key and its number free. One whose files all come with another append of its principal
    joins that one, too, and has with it what would refuse it.
    """
    going: list[AdmittedAppend] = []
    later: list[tuple[AdmittedAppend, KeyMisused | None]] = []
    refused: list[tuple[AdmittedAppend, KeyMisused]] = []
    files: dict[str, str] = {}
    keys: set[tuple[str, str]] = set()
    numbers: dict[tuple[str, str], int] = {}
    for append in able:
        own_key = (append.principal, append.key or "")
        name, number = append.application or ("", 0)
        same = append.key is not None and own_key in keys
        if same or (append.application is not None and number <= numbers.get((append.principal, name), -1)):
            later.append((append, None))
            continue
        paths = [touched.file.path for touched in append.files]
        again = [path for path in paths if path in files]
        if again:
            error = being_appended(append, again)
            if len(again) < len(paths) or any(files[path] != append.principal for path in again):
                refused.append((append, error))
                continue
            later.append((append, error))
        else:
            going.append(append)
            files |= dict.fromkeys(paths, append.principal)
        if append.key is not None:
            keys.add(own_key)
        if append.application is not None:
            numbers[append.principal, name] = number
    return going, later, refused


def being_appended(append: AdmittedAppend, paths: Sequence[str]) -> KeyMisused:
    """The refusal of an append that cannot join a group which has taken some of its files.

    A client that has lost its key and sends the same files again would have their rows read twice.
    """
    return KeyMisused(
        f"the file {paths[0]} is being appended to {append.identifier} by another request at this moment; do not "
        "delete it, look whether it is in the table before sending it again, and send retries under the key of the "
        "first attempt",
        rule="append.live",
        files=tuple(paths[:NAMED_MAX]),
        next_step="none",
    )


def _moved(metadata: Metadata, ref: str, snapshot_id: int) -> JSON:
    """The branch at its new head; what is set for its retention stays."""
    refs: Mapping[str, Any] = metadata.get("refs") or {}
    return {
        **refs.get(ref, {}),
        "action": "set-snapshot-ref",
        "ref-name": ref,
        "type": "branch",
        "snapshot-id": snapshot_id,
    }


def _manifests(
    added: Sequence[Touched],
    metadata: Metadata,
    snapshot_id: int,
    sequence_number: int,
    path_of: Callable[[str], str],
    new_name: Callable[[], str],
    files: dict[str, bytes],
    live: dict[str, Sequence[str]],
) -> list[ManifestFile]:
    """One manifest for each spec used, in the order of first use. Fills `files` with bytes, and `live` with paths."""
    by_spec: dict[int, list[Entry]] = {}
    for touched in added:
        by_spec.setdefault(touched.spec_id, []).append(Entry(ADDED, None, None, None, touched.file))
    rows: list[ManifestFile] = []
    for spec_id, entries in by_spec.items():
        spec = next(spec for spec in metadata["partition-specs"] if spec["spec-id"] == spec_id)
        kinds = [field.result_type for field in spec_of(metadata, spec_id).fields]
        for some in in_manifests(entries, ENTRIES_PER_MANIFEST_MAX):
            data = write_manifest(
                some,
                spec_fields=tuple(spec["fields"]),
                spec_id=spec_id,
                schema=schema_of(metadata, spec),
                format_version=metadata["format-version"],
                content=DATA,
                snapshot_id=snapshot_id,
            )
            path = path_of(f"{new_name()}-m{len(rows)}.avro")
            files[path] = data
            live[path] = [entry.file.path for entry in some]
            row = row_of(
                path,
                len(data),
                some,
                kinds=kinds,
                spec_id=spec_id,
                content=DATA,
                snapshot_id=snapshot_id,
                sequence_number=sequence_number,
            )
            rows.append(row)
    return rows


def _totals(added: Sequence[Touched], parent: Mapping[str, Any] | None) -> dict[str, str]:
    change = Change(Snapshot({}), ListDiff((), (), (), ()), tuple(added), (), {}, {}, (), names_sibling=False)
    partitions = {(touched.spec_id, touched.file.partition) for touched in added}
    # Where there is a parent without a summary, nothing is known of what came before.
    totals = summary_totals(None if parent is None else parent.get("summary") or {}, change)
    return {"changed-partition-count": str(len(partitions)), **totals}


def _group(
    appends: Sequence[AdmittedAppend], encoded: Sequence[NewFile], metadata: Metadata, snapshot_id: int
) -> Group:
    shares: dict[int, dict[str, tuple[Span, ...]]] = {}
    for new in encoded:
        for position, spans in new.owners.items():
            shares.setdefault(position, {})[new.file.path] = spans
    return Group(
        table_uuid=str(metadata.get("table-uuid")),
        ref=appends[0].ref,
        snapshot_id=snapshot_id,
        appends=tuple(
            GroupedAppend(
                append.principal,
                append.key,
                append.application,
                append.fingerprint,
                tuple(touched.file.path for touched in append.files),
                shares.get(position, {}),
            )
            for position, append in enumerate(appends)
        ),
    )
