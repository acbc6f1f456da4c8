"""Snapshots that are published other than by a fast-forward, under ids of their own: one by one, or as one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from icetower.admission.admitted import Admitted, Publication
from icetower.errors import CommitConflict
from icetower.iceberg.change import Change, ListDiff, Touched
from icetower.iceberg.entry_checks import Identity, identity_of
from icetower.iceberg.records import DATA, EQUALITY_DELETES, Entry, ManifestFile
from icetower.protocol.marks import AUTHOR, PUBLISHED_BRANCH, PUBLISHED_OF, PUBLISHED_WAP, SOURCE_SNAPSHOT
from icetower.protocol.snapshots import Snapshot

JSON = dict[str, Any]

ORIGINS_MAX = 1_000
"""So many snapshots one stands for at most: its summary names them."""

WAP_ID = "wap.id"
"""Iceberg's own: the write-audit-publish id of a staged snapshot."""


def copies_of(
    member: Admitted, new_id: Callable[[], int], authors: Mapping[int, str], origins: Mapping[int, frozenset[int]]
) -> tuple[Change, ...]:
    """The changes of a publication as they go on its branch.

    One that changes no file is left out: the next copy, or the last one, stands for it, too.

    Args:
        authors: who made the snapshots, by their ids.
        origins: what they stand for, by their ids (`comparison.origins_of`).

    Raises:
        CommitConflict: ``publish.squash``, they cannot be one snapshot.
    """
    publication = member.publication
    assert publication is not None
    changes: list[tuple[Change, list[int]]] = []
    others: list[int] = []
    for change in member.changes:
        others += sorted(origins[change.snapshot.id])
        if change.added or change.removed:
            changes.append((change, others))
            others = []
    if not changes:
        return ()
    changes[-1][1].extend(others)
    if publication.squash and len(changes) > 1:
        made_by = [authors.get(change.snapshot.id) for change, _ in changes]
        everybody = {name for names in made_by if names is not None for name in names.split(",")}
        authors = {} if None in made_by else {changes[-1][0].snapshot.id: ",".join(sorted(everybody))}
        changes = [(squashed([change for change, _ in changes]), [each for _, some in changes for each in some])]
    if not (changes[0][0].added or changes[0][0].removed):
        return ()
    return tuple(_copy(change, some, publication, new_id(), member.principal, authors) for change, some in changes)


def _copy(
    change: Change,
    origins: Sequence[int],
    publication: Publication,
    new_id: int,
    principal: str,
    authors: Mapping[int, str],
) -> Change:
    source = change.snapshot
    if len(origins) > ORIGINS_MAX:
        raise CommitConflict(
            f"one snapshot would stand for {len(origins)} of branch {publication.branch}, and {ORIGINS_MAX} are the "
            "most; publish them one by one (keep: each), or in parts",
            rule="publish.squash",
            snapshot=source.id,
            next_step="fix_request",
        )
    summary: JSON = {
        **{name: said for name, said in source.summary.items() if name != AUTHOR},
        SOURCE_SNAPSHOT: str(source.id),
        PUBLISHED_BRANCH: publication.branch,
        PUBLISHED_OF: ",".join(map(str, origins)),
    }
    if WAP_ID in summary:
        summary[PUBLISHED_WAP] = summary[WAP_ID]
    author = authors.get(source.id)
    if author is not None and author != principal:
        summary[AUTHOR] = author
    return replace(change, snapshot=Snapshot({**source, "snapshot-id": new_id, "summary": summary}))


def numbered(entry: Entry, numbers: Mapping[int, int]) -> Entry:
    """An added entry that names a sequence number of its branch, with that which the snapshot has by now."""
    number = entry.sequence_number
    return replace(entry, sequence_number=numbers[number]) if number is not None and number in numbers else entry


def squashed(changes: Sequence[Change]) -> Change:
    """Several changes as one: the files that they add and remove together. It goes by the last of them.

    Raises:
        CommitConflict: an equality delete among them reaches data that they add, which it would not in one snapshot.
    """
    _check_equality(changes)
    added: dict[Identity, Touched] = {}
    removed: list[Touched] = []
    entries: dict[str, list[Entry]] = {}
    for change in changes:
        removed += [touched for touched in change.removed if added.pop(_identity(touched), None) is None]
        for touched in change.added:
            added[_identity(touched)] = touched
    first = changes[0].snapshot.sequence_number
    for row, entry in _entries(changes):
        if identity_of(entry.file, row.spec_id) in added:
            entries.setdefault(row.path, []).append(replace(entry, sequence_number=_not_from(first, entry)))
    last = changes[-1]
    rows = tuple(row for change in changes for row in change.diff.added if row.path in entries)
    kept = [frozenset(row.path for row in change.diff.carried) for change in changes]
    carried = tuple(row for row in changes[0].diff.carried if all(row.path in paths for paths in kept))
    gone = {touched.file.path for touched in removed}
    taken = {path: found for change in changes for path, found in change.entries_removed.items()}
    return replace(
        last,
        snapshot=Snapshot({**last.snapshot, "summary": _summary(changes, added.values(), removed)}),
        diff=ListDiff(rows, (), carried, ()),
        added=tuple(added.values()),
        removed=tuple(removed),
        entries_added={path: tuple(found) for path, found in entries.items()},
        entries_removed={p: tuple(e for e in found if e.file.path in gone) for p, found in taken.items()},
    )


def _identity(touched: Touched) -> Identity:
    return identity_of(touched.file, touched.spec_id)


def _entries(changes: Sequence[Change]) -> Iterator[tuple[ManifestFile, Entry]]:
    for change in changes:
        for row in change.diff.added:
            for entry in change.entries_added.get(row.path, ()):
                yield row, entry


def _not_from(first: int, entry: Entry) -> int | None:
    """The sequence number that an added entry names, unless it is one of the snapshots that become one."""
    number = entry.sequence_number
    return None if number is not None and first and number >= first else number


def _check_equality(changes: Sequence[Change]) -> None:
    """Within one snapshot, an equality delete does not reach the data that comes with it, or is numbered as it is."""
    first = changes[0].snapshot.sequence_number
    moved = any(entry.sequence_number is not None and _not_from(first, entry) is None for _, entry in _entries(changes))
    data = moved
    for change in changes:
        contents = {touched.file.content for touched in change.added}
        if data and EQUALITY_DELETES in contents:
            raise CommitConflict(
                f"snapshot {change.snapshot.id} deletes rows by equality, also of files that snapshots before it on "
                "the branch have added; in one snapshot it would not. Publish them one by one (keep: each)",
                rule="publish.squash",
                snapshot=change.snapshot.id,
                next_step="fix_request",
            )
        data = data or DATA in contents


def _summary(changes: Sequence[Change], added: Collection[Touched], removed: Sequence[Touched]) -> JSON:
    """What one snapshot says in place of several: what all of them say alike, and its own operation."""
    first, *others = [dict(change.snapshot.summary) for change in changes]
    alike = {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
    adds_data = any(touched.file.content == DATA for touched in added)
    adds_deletes = any(touched.file.content != DATA for touched in added)
    if all(change.snapshot.operation == "replace" for change in changes):
        operation = "replace"
    elif adds_data and not adds_deletes and not removed:
        operation = "append"
    elif (adds_deletes or removed) and not adds_data:
        operation = "delete"
    else:
        operation = "overwrite"
    return {**alike, "operation": operation}
