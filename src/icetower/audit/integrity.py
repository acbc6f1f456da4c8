"""Hard violations: what no commit may do to a table, whatever it has read. Pure.

Each rule is one function of what a snapshot did (`Delta`) and what was live before it (`LiveFiles`). Facts about
Iceberg's formats: specification, "Snapshots", "Manifests", "Sequence Numbers", "Row Lineage", "Deletion Vectors".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.audit.findings import Rule, Verdict, Violation
from icetower.audit.items import Item
from icetower.audit.list_reading import ListStep
from icetower.audit.live_files import Delta, LiveFiles
from icetower.audit.manifest_reading import Body, Read
from icetower.audit.wording import called, listed, name, names, partition_of, rows, shown
from icetower.iceberg.deletes import is_unpartitioned
from icetower.iceberg.records import ADDED, DELETED, EXISTING, ManifestFile
from icetower.protocol.snapshots import Snapshot

JSON = Mapping[str, Any]
FILES_NAMED = 10

# May be filled in while a manifest is carried: row ids after an upgrade, counts that format 1 left out.
_FILLED_LATER = frozenset(
    {"first_row_id", "added_files", "existing_files", "deleted_files", "added_rows", "existing_rows", "deleted_rows"}
)


@dataclass(frozen=True, slots=True)
class Opened:
    """A manifest that a snapshot brought. `read`: None where it could not be read; `why` then says why."""

    row: ManifestFile
    read: Read | None
    why: str = ""


def found(
    rule: Rule,
    verdict: Verdict,
    snapshots: Sequence[JSON],
    *witness: str,
    files: Iterable[Item | str] = (),
) -> Violation:
    """A violation; snapshots in the order of their commits."""
    paths = dict.fromkeys(each if isinstance(each, str) else each.path for each in files)
    ids = tuple(dict.fromkeys(int(snapshot["snapshot-id"]) for snapshot in snapshots))
    sentences = tuple(sentence[:1].upper() + sentence[1:] for sentence in witness)
    return Violation(rule, verdict, ids, sentences, tuple(paths)[:FILES_NAMED])


# ── The chain ────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_chain(snapshot: JSON, parent: JSON | None, step: ListStep | None) -> Iterator[Violation]:
    """A snapshot against its parent, where that is still there, and against what its manifest list says of it."""
    if parent is not None:
        number, before = Snapshot(snapshot).sequence_number, Snapshot(parent).sequence_number
        if number <= before and (number or before):
            yield found(
                Rule.SEQUENCE,
                Verdict.DEFINITE,
                (parent, snapshot),
                f"{called(parent)} has sequence number {before}.",
                f"{called(snapshot)} follows it with sequence number {number}; every commit takes a higher one.",
            )
    if step is None:
        return
    claims = {
        "snapshot-id": str(snapshot["snapshot-id"]),
        "parent-snapshot-id": _said_parent(Snapshot(snapshot).parent_id),
        "sequence-number": str(Snapshot(snapshot).sequence_number),
    }
    for key, expected in claims.items():
        said = step.header.get(key)
        if key == "parent-snapshot-id":
            said = None if said is None else _said_parent(None if said in ("null", "-1", "") else said)
        if said is not None and said != expected:
            rule = Rule.SEQUENCE if key == "sequence-number" else Rule.CHAIN
            yield found(
                rule,
                Verdict.DEFINITE,
                (snapshot,),
                f"The table's metadata gives {called(snapshot)} the {key} {expected}.",
                f"Its manifest list, which was written by its commit, says {key} {shown(said)}: "
                "the metadata was changed since.",
            )


def _said_parent(parent: object) -> str:
    return "none" if parent is None else str(parent)


def check_gap(oldest: JSON, metadata: JSON, stray: Sequence[JSON]) -> Iterator[Violation]:
    """The oldest snapshot of a line whose parent is gone: expired, or taken out of the middle?

    Args:
        stray: snapshots of the metadata that are older and on no line of any branch or tag.
    """
    parent_id = Snapshot(oldest).parent_id
    if parent_id is None:
        return
    log: Sequence[JSON] = metadata.get("snapshot-log") or ()
    if any(entry.get("snapshot-id") == parent_id for entry in log):
        yield found(
            Rule.CHAIN,
            Verdict.DEFINITE,
            (oldest,),
            f"{called(oldest)} names snapshot {parent_id} as its parent, and the table has no such snapshot.",
            f"The table's own log of snapshots still names {parent_id}: whoever expires a snapshot takes it out of the "
            "log as well.",
        )
    elif stray:
        yield found(
            Rule.CHAIN,
            Verdict.POSSIBLE,
            (stray[-1], oldest),
            f"{called(oldest)} names snapshot {parent_id} as its parent, and the table has no such snapshot.",
            f"Older snapshots are there that no branch or tag leads to any more, such as {called(stray[-1])}: expiry "
            "by age begins at the old end. One was expired by its id, or taken out.",
        )


# ── Manifests ────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_rows(snapshot: JSON, step: ListStep, opened: Sequence[Opened]) -> Iterator[Violation]:
    """The rows of a manifest list that are new or changed."""
    number = Snapshot(snapshot).sequence_number
    for each in opened:
        row = each.row
        if each.read is None:
            yield found(
                Rule.MISSING_MANIFEST,
                Verdict.DEFINITE,
                (snapshot,),
                f"{called(snapshot)} names the manifest {name(row.path)}.",
                f"{each.why} What is in it nobody can read; so far {_counted(row)}.",
                files=(row.path,),
            )
            continue
        if row.added_snapshot_id != snapshot["snapshot-id"]:
            yield found(
                Rule.SMUGGLED_FILE,
                Verdict.DEFINITE,
                (snapshot,),
                f"{called(snapshot)} names the manifest {name(row.path)}, which its parent does not name.",
                f"The manifest is listed as added by snapshot {row.added_snapshot_id}: a commit that brings a manifest "
                "adds it itself.",
                files=(row.path,),
            )
        elif row.sequence_number != number:
            yield found(
                Rule.SEQUENCE,
                Verdict.DEFINITE,
                (snapshot,),
                f"{called(snapshot)} has sequence number {number}.",
                f"Its own manifest {name(row.path)} is listed with {row.sequence_number}.",
                files=(row.path,),
            )
        yield from _count_violations(snapshot, each.read.body)
    for path in step.doubled:
        yield found(
            Rule.FILE_TWICE,
            Verdict.DEFINITE,
            (snapshot,),
            f"{called(snapshot)} names the manifest {name(path)} twice: all that is in it is read twice.",
            files=(path,),
        )


def check_altered(snapshot: JSON, altered: Sequence[tuple[ManifestFile, ManifestFile]]) -> Iterator[Violation]:
    """Rows that are carried over and say something else: (was, is)."""
    for was, row in altered:
        differs = [
            field
            for field in ManifestFile.__dataclass_fields__
            if getattr(was, field) != getattr(row, field)
            and not (field in _FILLED_LATER and getattr(was, field) is None)
        ]
        if differs:
            field = differs[0]
            yield found(
                Rule.ALTERED_ENTRY,
                Verdict.DEFINITE,
                (snapshot,),
                f"{called(snapshot)} carries the manifest {name(row.path)} over from its parent.",
                f"Its list says {field.replace('_', ' ')} {shown(getattr(row, field))} of it, and its parent's "
                f"{shown(getattr(was, field))}.",
                files=(row.path,),
            )


def _counted(row: ManifestFile) -> str:
    counts = [
        f"{count} {word}"
        for count, word in ((row.added_files, "added"), (row.existing_files, "older"), (row.deleted_files, "removed"))
        if count
    ]
    return f"the list says that it has {', '.join(counts)} files" if counts else "the list does not say what it holds"


def _count_violations(snapshot: JSON, body: Body) -> Iterator[Violation]:
    row = body.row
    counts = {
        ADDED: ("added", row.added_files, row.added_rows),
        EXISTING: ("existing", row.existing_files, row.existing_rows),
        DELETED: ("deleted", row.deleted_files, row.deleted_rows),
    }
    wrong = [] if row.length_bytes == body.length_bytes else [f"{row.length_bytes} bytes; it has {body.length_bytes}"]
    for status, (word, files, count) in counts.items():
        real_files, real_rows = body.totals.get(status, (0, 0))
        if files is not None and files != real_files:
            wrong.append(f"{files} {word} files; it has {real_files}")
        if count is not None and count != real_rows:
            wrong.append(f"{count} {word} rows; it has {real_rows}")
    if wrong:
        yield found(
            Rule.COUNTS,
            Verdict.DEFINITE,
            (snapshot,),
            f"The list of {called(snapshot)} says of the manifest {name(row.path)}: {wrong[0]}.",
            files=(row.path,),
        )


# ── Entries ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_entries(snapshot: JSON, delta: Delta, live_files: LiveFiles) -> Iterator[Violation]:
    """What came, went and was carried, against what the entries say. `live_files`: before this snapshot."""
    yield from _removed(snapshot, delta, live_files)
    smuggled = [item for item in delta.added if item.status == EXISTING]
    if smuggled and not delta.blind:
        yield found(
            Rule.SMUGGLED_FILE,
            Verdict.DEFINITE,
            (snapshot,),
            f"{called(snapshot)} lists {names(smuggled)} as there before.",
            "Its parent did not have them in any manifest that this one replaces.",
            files=smuggled,
        )
    gone = {item.key for item in delta.removed}
    seen: set[str] = set()
    twice: list[Item] = []
    for item in delta.added:
        # What leaves the table with this commit is no twin of what comes.
        standing_on = len(live_files.files.get(item.key, ())) - sum(each.key == item.key for each in delta.removed)
        if item.key in seen or (item.key not in gone and item.key in live_files.files) or standing_on > 0:
            twice.append(item)
        seen.add(item.key)
    if twice:
        before = live_files.live(twice[0].key)
        was = f"It was live already, since snapshot {before.snapshot_id}." if before else "It is named twice."
        yield found(
            Rule.FILE_TWICE,
            Verdict.DEFINITE,
            (snapshot,),
            f"{called(snapshot)} adds {names(twice)}.",
            f"{was} Whoever reads the table reads its {rows(twice[0].records)} twice.",
            files=twice,
        )
    for was, item in delta.carried:
        differs = _difference(was, item)
        if differs:
            yield found(
                Rule.ALTERED_ENTRY,
                Verdict.DEFINITE,
                (snapshot,),
                f"{called(snapshot)} carries {name(item.path)} over from manifest {name(was.manifest)}.",
                f"It says {differs}.",
                files=(item,),
            )


def _removed(snapshot: JSON, delta: Delta, live_files: LiveFiles) -> Iterator[Violation]:
    counts: dict[str, int] = {}
    for item in delta.tombstones:
        counts[item.key] = counts.get(item.key, 0) + 1
    lost: list[Item] = []
    for item in delta.removed:
        if counts.get(item.key):
            counts[item.key] -= 1
        else:
            lost.append(item)
    if lost and not delta.blind:
        yield found(
            Rule.LOST_FILE,
            Verdict.DEFINITE,
            (snapshot,),
            f"Before {called(snapshot)}, {names(lost)} {'was' if len(lost) == 1 else 'were'} live in "
            f"{name(lost[0].manifest)}, with {rows(sum(item.records for item in lost))}.",
            "The commit leaves that manifest out, and no entry of its own says that it removed "
            f"{'the file' if len(lost) == 1 else 'these files'} or carried {'it' if len(lost) == 1 else 'them'} over.",
            files=lost,
        )
    strange = [item for item in delta.tombstones if counts.get(item.key)]
    if strange and not delta.blind:
        kept = [item for item in strange if item.key in live_files.files]
        what = "They are still live" if kept else "Its parent did not have them live"
        yield found(
            Rule.NOT_LIVE,
            Verdict.DEFINITE,
            (snapshot,),
            f"{called(snapshot)} says that it removed {names(kept or strange)}.",
            f"{what}: what it says it did, it has not done.",
            files=kept or strange,
        )


def _difference(was: Item, item: Item) -> str:
    if was.status == item.status and item.status == ADDED:
        return "that it is added, and it was there before"
    pairs = {
        "added by snapshot": (item.snapshot_id, was.snapshot_id),
        "sequence number": (item.sequence_number, was.sequence_number),
        "file sequence number": (item.file_sequence_number, was.file_sequence_number),
        "rows": (item.records, was.records),
        "partition spec": (item.spec_id, was.spec_id),
        "partition": (item.place[1], was.place[1]),
        "bytes": (item.size_bytes, was.size_bytes),
        "target": (item.target, was.target),
        # Before version 3 there was none, and the new list gives one.
        "first row id": (item.first_row_id if was.first_row_id is not None else None, was.first_row_id),
    }
    return next(
        (f"{word}: {shown(now)}; it was {shown(then)}" for word, (now, then) in pairs.items() if now != then), ""
    )


# ── Delete files ─────────────────────────────────────────────────────────────────────────────────────────────────────


def check_vectors(snapshot: JSON, delta: Delta, live_files: LiveFiles) -> Iterator[Violation]:
    """A data file has one deletion vector at most. `live_files`: before this snapshot."""
    gone = {item.key for item in delta.removed}
    new: dict[str, Item] = {}
    for item in delta.added:
        if not item.is_vector or item.target is None:
            continue
        kept = [other for key, other in live_files.vectors.get(item.target, {}).items() if key not in gone]
        other = kept[0] if kept else new.get(item.target)
        new[item.target] = item
        if other is not None:
            yield found(
                Rule.TWO_VECTORS,
                Verdict.DEFINITE,
                (snapshot,),
                f"{name(item.target)} has a deletion vector of {rows(other.records)}, by snapshot {other.snapshot_id}.",
                f"{called(snapshot)} adds another one of {rows(item.records)}, {name(item.path)}, and keeps that.",
                files=(item.target, other, item),
            )


def check_dropped(snapshot: JSON, delta: Delta, live_files: LiveFiles) -> Iterator[tuple[Violation, Item]]:
    """Delete files that went while data that they apply to stayed, and nothing came in their place; each with the file.

    `live_files`: after this snapshot.
    """
    added = delta.deletes_added()
    taken_back = Snapshot(snapshot).reverts
    for item in delta.deletes_removed():
        if str(item.snapshot_id) in taken_back:
            continue  # it says so: their rows are meant to come back
        named = item.target is not None
        kept = _named_kept(item, added, live_files) if named else _place_kept(snapshot, item, delta, live_files)
        if kept:
            verdict = Verdict.DEFINITE if named else Verdict.POSSIBLE
            yield _dropped(snapshot, item, kept, added, verdict, live_files), item


def _named_kept(item: Item, added: Sequence[Item], live_files: LiveFiles) -> list[Item]:
    """The data file of a vector or of position deletes that name it, where their rows are back in it."""
    assert item.target is not None
    data = live_files.live(item.target)
    if data is None or data.sequence_number > item.sequence_number:
        return []
    new = [each for each in added if each.target == item.target]
    if new:  # what takes its place deletes as many rows at least
        return [data] if max(each.records for each in new) < item.records else []
    if not item.is_vector:
        # Readers ignore position deletes beside a vector; those of a whole partition may stand for it.
        covered = live_files.vectors.get(item.target) or any(
            each.is_loose and each.place == data.place for each in added
        )
        return [] if covered else [data]
    return [data]


def _place_kept(snapshot: JSON, item: Item, delta: Delta, live_files: LiveFiles) -> list[Item]:
    """Data files to which deletes of a partition may still apply."""
    if any(each.place == item.place for each in delta.added if not each.is_data):
        return []
    if item.is_equality:
        return _reached(item, live_files)
    # Whoever takes data away, or has read the deletes, may know that they are about nothing any more.
    if is_compaction(snapshot) or any(each.place == item.place for each in delta.removed if each.is_data):
        return []
    data = live_files.data.get(item.place, {}).values()
    return [each for each in data if each.sequence_number <= item.sequence_number]


def _dropped(
    snapshot: JSON, item: Item, kept: Sequence[Item], added: Sequence[Item], verdict: Verdict, live_files: LiveFiles
) -> Violation:
    new = [each for each in added if each.target is not None and each.target == item.target]
    instead = f"what it adds instead deletes {rows(max(e.records for e in new))} alone" if new else "adds none instead"
    reach = f"of {name(kept[0].path)}" if item.target else f"in {partition_of(item, live_files.specs)}"
    return found(
        Rule.DROPPED_DELETE,
        verdict,
        (snapshot,),
        f"The {item.what} {name(item.path)}, by snapshot {item.snapshot_id}, deletes {rows(item.records)} {reach}.",
        f"{called(snapshot)} removes it, {instead}, and keeps {listed([name(d.path) for d in kept])}"
        f"{'' if verdict is Verdict.DEFINITE else ', to which it may apply'}: its rows are back.",
        files=(item, *kept),
    )


def _reached(item: Item, live_files: LiveFiles) -> list[Item]:
    """Live data files that an equality delete file may delete from, statistics aside."""
    spec = live_files.specs.get(item.spec_id)
    groups = (
        live_files.data.values() if spec is None or is_unpartitioned(spec) else [live_files.data.get(item.place, {})]
    )
    return [data for group in groups for data in group.values() if data.sequence_number < item.sequence_number]


def is_compaction(snapshot: JSON) -> bool:
    """Whether it says that it changes no row."""
    return Snapshot(snapshot).operation == "replace"
