"""What a commit wrote over: lost updates, lost deletes, and rows that a compaction brought back. Pure.

What a commit removes, supersedes or points at bounds the version of the table that it has read, and so does what it
ought to have known and did not. A commit that had read a version before its parent, while something in between wrote
the same object, has lost an update; one whose bounds leave no version has read several (read skew).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.audit.commits import BEFORE, Commit, Line, data_in, siblings
from icetower.audit.findings import Edge, Rule, Verdict, Violation
from icetower.audit.integrity import found
from icetower.audit.items import Item
from icetower.audit.live_files import LiveFiles
from icetower.audit.wording import called, name, names, partition_of, rows
from icetower.iceberg.deletes import is_unpartitioned
from icetower.iceberg.expressions import Column
from icetower.iceberg.literals import compare
from icetower.iceberg.metrics import Metrics, metrics_of
from icetower.iceberg.records import ADDED, DataFile

JSON = Mapping[str, Any]
Details = Callable[[Item], DataFile]
"""The whole entry of an item, statistics and all. Raises `NeedsFile` where its manifest must be opened again."""


@dataclass(frozen=True, slots=True)
class Missed:
    """A commit did not know what another had done.

    Attributes:
        newest: the newest version that it can have read, therefore.
        target: the data file from which both have deleted rows, where their delete files tell whether it matters.
    """

    violation: Violation
    newest: int | None
    edge: Edge | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One commit, held against the table.

    Attributes:
        standing: before the commit for `unbalanced`, after it for all else.
        columns: of the table's schema, by field id.
    """

    commit: Commit
    line: Line
    live_files: LiveFiles
    details: Details
    columns: Mapping[int, Column]


def missed(case: Case) -> list[Missed]:
    """All that a commit shows not to have known, but for the rows of a compaction."""
    rules = (_lost_deletes, _doubled_deletes, _doubled_updates, _unseen, _overwritten)
    return [each for rule in rules for each in rule(case)]


def _edge(commit: Commit, other: Commit) -> Edge:
    return Edge("ww", commit.id, other.id)


# ── Deletes of what is gone ──────────────────────────────────────────────────────────────────────────────────────────


def _lost_deletes(case: Case) -> Iterator[Missed]:
    commit, line, after = case.commit, case.line, case.live_files
    if commit.is_compaction or commit.delta.blind or after.unreadable:
        return
    about: dict[int | None, list[tuple[str, Item]]] = {}
    for target, items in commit.targets().items():
        if after.live(target) is None:
            about.setdefault(line.gone.get(target), []).extend((target, item) for item in items)
    for position, pairs in about.items():
        targets, items = [target for target, _ in pairs], [item for _, item in pairs]
        deleted = f"{called(commit.snapshot)} deletes {rows(sum(item.records for item in items))} of it"
        if position is None:
            witness = (f"{deleted} ({name(targets[0])}), and it was not in the table.",)
            yield Missed(_lost(case, (commit,), witness, (*targets, *items)), None)
            continue
        remover = line.commits[position]
        same = remover is commit
        instead = remover.delta.data_added()
        took = f"{called(remover.snapshot)} took {name(targets[0])} out of the table"
        witness = (
            f"{took} and put {names(instead)} there instead." if instead else f"{took}.",
            f"{deleted}, with {names(items)}, {'at once' if same else 'afterwards'}.",
            "So they delete nothing"
            + (": rows that it meant to delete may live on in what came instead." if instead else ".")
            + ("" if same else f" Whoever wrote them had read the table before snapshot {remover.id}."),
        )
        # Both meant these rows gone, and gone they are, unless a later snapshot of the remover's has put them back.
        harmless = remover.only_deletes and commit.only_deletes and not same
        verdict = Verdict.POSSIBLE if harmless else Verdict.DEFINITE
        yield Missed(
            _lost(case, (remover, commit), witness, (*targets, *items), verdict),
            None if same else position - 1,
            None if same else _edge(commit, remover),
        )
    yield from _lost_loose(case)


def _lost_loose(case: Case) -> Iterator[Missed]:
    """Position deletes of a partition that has no data old enough for them."""
    for item in case.commit.delta.added:
        if not item.is_loose:
            continue
        data = case.live_files.data.get(item.place, {}).values()
        if any(each.sequence_number <= item.sequence_number for each in data):
            continue
        where = partition_of(item, case.live_files.specs)
        witness = (
            f"{called(case.commit.snapshot)} deletes {rows(item.records)} of {where}, with {name(item.path)}.",
            "There is no data file in it that is as old: they delete nothing.",
        )
        # Was something put in the place of what they are about, or did others mean it gone as well?
        replaced = bool(case.line.updates.get(item.place)) or not case.commit.only_deletes
        verdict = Verdict.DEFINITE if replaced else Verdict.POSSIBLE
        yield Missed(_lost(case, (case.commit,), witness, (item,), verdict), None)


def _lost(
    case: Case,
    commits: Sequence[Commit],
    witness: tuple[str, ...],
    files: Iterable[Item | str],
    verdict: Verdict = Verdict.DEFINITE,
) -> Violation:
    return found(Rule.LOST_DELETE, verdict, [each.snapshot for each in commits], *witness, files=files)


def _doubled_deletes(case: Case) -> Iterator[Missed]:
    """More rows deleted of a data file than it has: some were deleted twice, by somebody who saw them live."""
    commit, line, after = case.commit, case.line, case.live_files
    if commit.is_compaction:
        return
    for target, items in commit.targets().items():
        data = after.live(target)
        if data is None or not data.is_data or items[0].is_vector or after.vectors.get(target):
            continue
        if line.merged.get(target):  # both may have taken older deletes over: the delete files themselves tell
            continue
        others = [item for item in after.named.get(target, {}).values() if item.snapshot_id != commit.id]
        others = [item for item in others if not commit.only_deletes or line.adds_rows(item.snapshot_id)]
        deleted = sum(item.records for item in (*others, *items))
        if deleted <= data.records or not others:
            continue
        known = all(line.at(item.snapshot_id) != BEFORE for item in others)
        newest = max(line.at(item.snapshot_id) for item in others)
        witness = (
            *(
                f"Snapshot {item.snapshot_id} deletes {rows(item.records)} of {name(target)}, with {name(item.path)}."
                for item in others
            ),
            f"{called(commit.snapshot)} deletes {rows(sum(i.records for i in items))} of it, with {names(items)}.",
            (
                f"It has only {rows(data.records)}: {deleted - data.records} at least were deleted twice. Who deletes "
                "a row has read it as live, so the second had not seen the first's deletes, nor what else it wrote."
            ),
        )
        first = [line.commits[newest]] if newest >= 0 else []
        yield Missed(
            found(
                Rule.LOST_UPDATE,
                Verdict.DEFINITE if known else Verdict.POSSIBLE,
                [*(each.snapshot for each in first), commit.snapshot],
                *witness,
                files=(target, *others, *items),
            ),
            newest - 1 if newest >= 0 else None,
            _edge(commit, first[0]) if first else None,
        )


# ── Replacements of what is gone ─────────────────────────────────────────────────────────────────────────────────────


def _doubled_updates(case: Case) -> Iterator[Missed]:
    """A replacement that replaced nothing, beside what somebody had put in the place of what it was to replace."""
    commit, line, delta = case.commit, case.line, case.commit.delta
    added = delta.data_added()
    if commit.operation != "overwrite" or delta.removed or commit.replaces_partitions or len(added) != len(delta.added):
        return
    for place in dict.fromkeys(item.place for item in added):
        ours = [item for item in added if item.place == place]
        for position in reversed(line.updates.get(place, ())):
            other = line.commits[position]
            if siblings(commit, other):
                continue
            old = [item for item in other.delta.data_removed() if item.place == place]
            new = [i for i in other.delta.data_added() if i.place == place and case.live_files.live(i.key) is not None]
            meeting = next(
                ((c, x, y) for c in ours for x in old for y in new if _meet(case, c, x) and _meet(case, c, y)), None
            )
            if meeting is not None:
                yield _doubled(case, other, *meeting)
                return


def _doubled(case: Case, other: Commit, ours: Item, old: Item, new: Item) -> Missed:
    commit, start = case.commit, case.commit.reads.start
    known = start is not None and start < other.position
    ids = [case.line.commits[p].id for p in range(len(case.line.commits)) if p == start]
    witness = (
        f"{called(other.snapshot)} replaced {name(old.path)} by {name(new.path)}.",
        f"{called(commit.snapshot)} is recorded as an overwrite. It added {name(ours.path)} and removed nothing.",
        (
            f"Its rows lie where those of {name(old.path)} and {name(new.path)} lie, by their columns' least and "
            f"greatest values: it was to replace {name(old.path)}, which was gone, and both replacements are live."
        ),
        f"It says that it had read snapshot {ids[0] if ids else 'none'}, in which {name(old.path)} was live."
        if known
        else "Only an overwrite by a filter that matched nothing would look alike, and such a filter would have "
        f"met {name(new.path)}.",
    )
    verdict = Verdict.DEFINITE if known else Verdict.POSSIBLE
    violation = found(Rule.LOST_UPDATE, verdict, (other.snapshot, commit.snapshot), *witness, files=(old, new, ours))
    return Missed(violation, other.position - 1, _edge(commit, other))


def _meet(case: Case, one: Item, other: Item) -> bool:
    """Whether two data files may hold the same rows, by the bounds of every column that both have."""
    ours, theirs = metrics_of(case.details(one)), metrics_of(case.details(other))
    return all(_ranges_meet(ours, theirs, column) for column in case.columns.values())


def _ranges_meet(ours: Metrics, theirs: Metrics, column: Column) -> bool:
    bounds = (
        ours.lower(column.id, column.type),
        ours.upper(column.id, column.type),
        theirs.lower(column.id, column.type),
        theirs.upper(column.id, column.type),
    )
    lower, upper, least, most = bounds
    if lower is None or upper is None or least is None or most is None:
        return True
    return compare(lower, most, column.type) <= 0 and compare(least, upper, column.type) <= 0


def _unseen(case: Case) -> Iterator[Missed]:
    """Files that went and had come only after what the commit has read: nobody has read what was in them."""
    commit, line = case.commit, case.line
    newest, sure = commit.reads.newest, True
    if newest is None:
        # Who names the files that go has read them; who replaces partitions takes what is there at the last attempt.
        if not commit.retries or not commit.replaces_partitions:
            return
        newest, sure = max(commit.position - 1 - commit.retries, -1), False
    by: dict[int, list[Item]] = {}
    for item in data_in(commit.delta.removed):
        at = line.at(item.snapshot_id)
        if at > newest and at < commit.position and not siblings(line.commits[at], commit):
            by.setdefault(at, []).append(item)
    for at, items in sorted(by.items()):
        other = line.commits[at]
        known = (
            f"It says that it had read {_version(line, newest)}, in which they were not yet."
            if sure
            else f"It was its client's attempt {commit.attempts}: its rows were ready before the last "
            f"{commit.retries} commits landed, so they cannot take the place of those."
        )
        witness = (
            f"{called(other.snapshot)} added {names(items)} ({rows(sum(item.records for item in items))}).",
            (
                f"{called(commit.snapshot)} removed {'it' if len(items) == 1 else 'them'}"
                f"{', replacing partitions' if commit.replaces_partitions else ''}."
            ),
            known,
        )
        verdict = Verdict.DEFINITE if sure else Verdict.POSSIBLE
        violation = found(Rule.LOST_UPDATE, verdict, (other.snapshot, commit.snapshot), *witness, files=items)
        yield Missed(violation, None, _edge(commit, other))


def _version(line: Line, position: int) -> str:
    return f"snapshot {line.commits[position].id}" if position >= 0 else "the table before all that was checked"


def _overwritten(case: Case) -> Iterator[Missed]:
    """Rows that were deleted since the version that a commit says it has read, in what it rewrote or deleted from."""
    commit, line = case.commit, case.line
    newest = commit.reads.newest
    if newest is None or newest >= commit.position - 1:
        return
    removed = {item.path: item for item in commit.delta.data_removed()}
    targets = commit.targets()
    rewrites = bool(commit.delta.data_added()) and not commit.is_compaction
    if not targets and not (removed and rewrites):
        return
    for other in line.between(newest, commit.position):
        if siblings(commit, other) or other.is_compaction:  # which deletes only what was deleted before
            continue
        for target, theirs in other.targets().items():
            if target in removed and rewrites:
                yield _rewritten(case, other, removed[target], theirs, newest)
            ours = [item for item in targets.get(target, ()) if not item.is_vector]
            if ours and not theirs[0].is_vector:
                yield _both_deleted(case, other, target, theirs, ours, newest)


def _rewritten(case: Case, other: Commit, item: Item, theirs: Sequence[Item], newest: int) -> Missed:
    commit = case.commit
    witness = (
        f"{called(other.snapshot)} deletes {rows(sum(each.records for each in theirs))} of {name(item.path)}.",
        f"{called(commit.snapshot)} replaced {name(item.path)} by {names(commit.delta.data_added())}.",
        (
            f"It says that it had read {_version(case.line, newest)}, in which these rows were live: they are in "
            "what it wrote."
        ),
    )
    snapshots = (other.snapshot, commit.snapshot)
    violation = found(Rule.LOST_UPDATE, Verdict.DEFINITE, snapshots, *witness, files=(item, *theirs))
    return Missed(violation, None, _edge(commit, other))


def _both_deleted(
    case: Case, other: Commit, target: str, theirs: Sequence[Item], ours: Sequence[Item], newest: int
) -> Missed:
    commit = case.commit
    witness = (
        f"{called(other.snapshot)} deletes {rows(sum(item.records for item in theirs))} of {name(target)}.",
        f"{called(commit.snapshot)} deletes {rows(sum(item.records for item in ours))} of it.",
        (
            f"It says that it had read {_version(case.line, newest)}, before the other's deletes. Where both are of "
            "the same row, the second has not seen what the first did with it; the delete files themselves tell."
        ),
    )
    snapshots = (other.snapshot, commit.snapshot)
    violation = found(Rule.LOST_UPDATE, Verdict.POSSIBLE, snapshots, *witness, files=(target, *theirs, *ours))
    return Missed(violation, None, _edge(commit, other), target)


# ── The rows of a compaction ─────────────────────────────────────────────────────────────────────────────────────────


def unbalanced(case: Case) -> Iterator[Missed]:
    """A compaction writes as many rows as live in what it takes away. `case.standing`: before the commit."""
    commit, before = case.commit, case.live_files
    stated = {item.key for item in commit.delta.tombstones}  # another rule reports what else was lost
    removed = [item for item in commit.delta.data_removed() if item.key in stated]
    added = [item for item in commit.delta.data_added() if item.status == ADDED]
    if not commit.is_compaction or not removed or commit.delta.blind or before.unreadable:
        return
    had, wrote = sum(item.records for item in removed), sum(item.records for item in added)
    deletes = {item.path: _position_deletes(item, before) for item in removed}
    # Deletes of one file may name the same row: as many rows are gone as the largest says, at least.
    least = sum(max((each.records for each in found_), default=0) for found_ in deletes.values())
    most = sum(min(item.records, sum(each.records for each in deletes[item.path])) for item in removed)
    exact = not any(_wide_deletes(item, before) for item in removed)
    if wrote > had - least:
        yield _came_back(case, removed, added, deletes, had - least)
    elif wrote < had - most and exact:
        witness = (
            f"{called(commit.snapshot)} took {names(removed)} away, in which {rows(had - most)} at least were live.",
            f"It wrote {rows(wrote)} in {names(added) or 'no file'}: {had - most - wrote} are lost.",
        )
        violation = found(Rule.ROW_BALANCE, Verdict.DEFINITE, (commit.snapshot,), *witness, files=(*removed, *added))
        yield Missed(violation, None)


def _came_back(
    case: Case, removed: Sequence[Item], added: Sequence[Item], deletes: Mapping[str, Sequence[Item]], live: int
) -> Missed:
    """The rows that it wrote and that were deleted: which deletes had it not read?"""
    commit, line = case.commit, case.line
    had, wrote = sum(item.records for item in removed), sum(item.records for item in added)
    positions = sorted({line.at(each.snapshot_id) for some in deletes.values() for each in some}, reverse=True)
    since: int | None = None
    for position in positions:
        kept = (
            max((each.records for each in some if line.at(each.snapshot_id) < position), default=0)
            for some in deletes.values()
        )
        if wrote <= had - sum(kept):
            since = position
            break
    other = line.commits[since] if since is not None and since >= 0 else None
    missed_ = [e for some in deletes.values() for e in some if since is None or line.at(e.snapshot_id) >= since]
    first = called(other.snapshot) if other else "A commit before"
    witness = (
        (
            f"{first} deletes {rows(sum(each.records for each in missed_))} of what {called(commit.snapshot)} took "
            f"away, with {names(missed_)}."
        ),
        (
            f"What it took away had {rows(live)} live at most. It wrote {rows(wrote)}, in {names(added)}: "
            f"{wrote - live} that were deleted are back."
        ),
        *((f"It had read the table before snapshot {other.id}.",) if other else ()),
    )
    snapshots = (*((other.snapshot,) if other else ()), commit.snapshot)
    violation = found(Rule.LOST_UPDATE, Verdict.DEFINITE, snapshots, *witness, files=(*removed, *missed_, *added))
    return Missed(
        violation, since - 1 if other and since is not None else None, _edge(commit, other) if other else None
    )


def _position_deletes(data: Item, live_files: LiveFiles) -> list[Item]:
    """Those that name the data file and are not older than it."""
    return [item for item in live_files.deletes_of(data.path) if item.sequence_number >= data.sequence_number]


def _wide_deletes(data: Item, live_files: LiveFiles) -> bool:
    """Whether deletes of an unknown number of rows apply to a data file."""
    spec = live_files.specs.get(data.spec_id)
    everywhere = [
        item
        for place, kept in live_files.equality.items()
        if place[0] not in live_files.specs or is_unpartitioned(live_files.specs[place[0]])
        for item in kept.values()
    ]
    equality = [*live_files.equality.get(data.place, {}).values(), *everywhere]
    loose = live_files.loose.get(data.place, {}).values()
    return (
        spec is None
        or any(item.sequence_number > data.sequence_number for item in equality)
        or any(item.sequence_number >= data.sequence_number for item in loose)
    )


# ── Read skew ────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_skew(case: Case, known: Sequence[Missed]) -> Iterator[Violation]:
    """A commit that can have read no version: it points at what came after something that it did not know."""
    commit, line = case.commit, case.line
    bounded = [each for each in known if each.newest is not None and each.violation.verdict is Verdict.DEFINITE]
    if not bounded:
        return
    newest = min(bounded, key=lambda each: each.newest if each.newest is not None else 0)
    assert newest.newest is not None
    seen = _seen(case)
    if seen is None or seen[0] <= newest.newest:
        return
    at, item = seen
    other = line.commits[at]
    yield found(
        Rule.READ_SKEW,
        Verdict.DEFINITE,
        (line.commits[newest.newest + 1].snapshot, other.snapshot, commit.snapshot),
        f"{called(commit.snapshot)} had not seen what {called(line.commits[newest.newest + 1].snapshot)} did: "
        f"{newest.violation.witness[-1]}",
        f"Yet it {'replaced' if item.is_data else 'deletes rows of'} {name(item.target or item.path)}, which came "
        f"later, with {called(other.snapshot)}.",
        "No version of the table shows it both.",
        files=(item,),
    )


def _seen(case: Case) -> tuple[int, Item] | None:
    """The newest commit of which the commit must have known, with the file by which one sees it."""
    commit, line = case.commit, case.line
    found_: list[tuple[int, Item]] = []
    for target, items in commit.targets().items():
        data = case.live_files.live(target)
        if data is not None and data.snapshot_id != commit.id:
            found_.append((line.at(data.snapshot_id), items[0]))
    if commit.targets() or commit.is_compaction:
        # Whoever works row by row or file by file has read what it takes away; a filter may take what nobody has read.
        found_ += [(line.at(i.snapshot_id), i) for i in commit.delta.data_removed() if i.snapshot_id != commit.id]
    return max(found_, key=lambda pair: pair[0], default=None)
