"""Explains a conflict in plain language: what happened to which file, by which commit, why, and what to do next. Pure.

There is one text for each rule (`_TEXTS`), for a reader who was woken by a failed job and has never heard of manifests.
Iceberg's own text is kept beside it, to be searched for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from icetower.iceberg.change import JSON
from icetower.iceberg.entries import Files
from icetower.iceberg.records import DATA, DELETED
from icetower.iceberg.validation import Conflict

FILES_NAMED_MAX = 3
"""The most files that a sentence names; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of files and snapshots in sentences.

    Attributes:
        snapshots: names by id; a snapshot without one is called ``snapshot 7``.
        paths: names of files by path; a file without one is called by the last part of its path.
    """

    snapshots: Mapping[int, str] = field(default_factory=dict[int, str])
    paths: Mapping[str, str] = field(default_factory=dict[str, str])

    def snapshot(self, snapshot_id: int) -> str:
        return self.snapshots.get(snapshot_id) or f"snapshot {snapshot_id}"

    def file(self, path: str) -> str:
        return self.paths.get(path) or path.rpartition("/")[2]

    def who(self, conflict: Conflict) -> str:
        """The snapshots that caused the conflict, or ``somebody``."""
        return _listed([self.snapshot(each) for each in conflict.snapshots]) or "somebody"

    def files(self, conflict: Conflict) -> str:
        """The files of the conflict, the first few by name."""
        paths = tuple(dict.fromkeys(conflict.paths))
        shown = [self.file(path) for path in paths[:FILES_NAMED_MAX]]
        more = len(paths) - len(shown)
        return _listed([*shown, f"{more} more"] if more else shown) or "a file"


@dataclass(frozen=True, slots=True)
class Explanation:
    """A conflict in plain language.

    Attributes:
        rule: its id.
        what: what happened, in a sentence.
        why: what would go wrong otherwise.
        next: what to do now.
        iceberg: Iceberg's own text; empty if Iceberg has none.
    """

    rule: str
    what: str
    why: str
    next: str
    iceberg: str


def explain(conflict: Conflict, names: Names) -> Explanation:
    """Explain a conflict; a rule without a text of ours is explained by Iceberg's."""
    text = _TEXTS.get(conflict.rule, _UNDESCRIBED)
    blanks = {
        "who": names.who(conflict),
        "files": names.files(conflict),
        "are": "are" if len(set(conflict.paths)) > 1 else "is",
        "by": f", removed by {names.who(conflict)}" if conflict.snapshots else "",
        "said": conflict.message[:1].lower() + conflict.message[1:],
        "rule": conflict.rule,
        "again": "Run the command again: it will read the table as it is now.",
    }
    what, why, following = (" ".join(part.split()).format_map(blanks) for part in text.strip().split("\n\n"))
    return Explanation(conflict.rule, what[:1].upper() + what[1:], why, following, conflict.message)


def removers_of(files: Files, snapshots: Iterable[JSON], paths: Iterable[str]) -> tuple[int, ...]:
    """The snapshots among these that removed any of these data files.

    Raises:
        NeedsFile: a manifest list or manifest must be read first.
    """
    wanted, found = frozenset(paths), list[int]()
    for snapshot in snapshots:
        snapshot_id: int = snapshot["snapshot-id"]
        rows = (row for row in files.rows(snapshot, content=DATA) if row.added_snapshot_id == snapshot_id)
        if any(
            live.status == DELETED and live.snapshot_id == snapshot_id and live.path in wanted
            for row in rows
            if row.deleted_files != 0
            for live in files.entries(row)
        ):
            found.append(snapshot_id)
    return tuple(found)


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


# ── The texts ────────────────────────────────────────────────────────────────────────────────────────────────────────

_UNDESCRIBED = """
Iceberg refuses the commit: {said}

The rule is {rule}; {files} may be concerned.

{again}
"""

# Three paragraphs each: what happened, what would go wrong otherwise, what to do next.
_TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "match-filter": """
            this overwrite adds {files}, and not all of its rows are known to match the overwrite's filter.

            Rows beside the filter would be added without replacing the ones that stand for them.

            Write only rows that the filter covers, or widen the filter. If all rows do match, partition by the column
            or write column statistics, so that it can be seen.
        """,
        "ancestry": """
            the table was set back: {who}, which this commit has read, is no longer in the branch's past.

            The commit was computed from a state that is no longer part of the table's history.

            {again} If the rollback was not planned, find out who rolled the table back.
        """,
        "history": """
            the table's history ends at {who}, and the snapshot that this commit has read does not come right before
            it: snapshots have expired or were rolled back meanwhile, or the writer never named what it has read.

            What happened in between is no longer recorded, so a conflict cannot be ruled out.

            {again} Keep snapshots for longer than the longest job takes (history.expire.max-snapshot-age-ms). A writer
            of your own should call validateFromSnapshot.
        """,
        "C1": """
            {who} added {files} since this commit read the table, and there can be rows in it that the filter matches.

            Serializable means: as if one command had run after the other. This one would have seen those rows.

            {again} If it need not see them, set the isolation level to snapshot
            (write.delete.isolation-level, and .update, .merge). If there can be no such rows, filter by a partition
            column, or cluster the data so that column statistics exclude the file.
        """,
        "C2": """
            {who} removed {files}, which is part of what this commit replaces.

            It replaces rows as it had read them; some of those have been deleted or moved to other files.

            {again}
        """,
        "C3a": """
            {who} deleted rows with {files}, and the rows that this commit changes can be among them.

            A row that was deleted meanwhile would come back with its new value.

            {again} If the deletes were for other rows: position deletes are distinguished by partition only, so put
            the partition columns into the filter and keep writers to partitions of their own.
        """,
        "C3b": """
            {who} deleted rows of {files}, which this commit replaces.

            The replacement was written from the rows before the deletion, and would bring them back.

            {again} If this commit was a compaction, nothing is lost: its next run reads the deletes.
        """,
        "C4": """
            {who} removed {files}, and the new delete files are for rows in it.

            Those rows are in other files now, if they still exist. The deletes would have no effect: deleted rows
            would stay, and updated rows would be in the table twice.

            {again} If compaction keeps getting in the way, compact only partitions without writers.
        """,
        "C5": """
            {who} added a deletion vector ({files}) for a data file for which this commit has one, too.

            A data file has one deletion vector at most. The second would replace the first, and bring back the rows
            that the first had deleted.

            {again} A writer of your own that replaces a vector must call validateFromSnapshot, or the vector that it
            replaces counts as new.
        """,
        "C6": """
            this commit replaces {files}, which {are} no longer in the table{by}.

            Both would have replaced the same rows: these would be read twice, with values that contradict each other.

            {again}
        """,
        "C7": """
            the filter of this delete covers some rows of {files}, but not all of them, as far as partitions and
            statistics show.

            Such a delete removes whole files only.

            Use a command that deletes rows (an engine's DELETE), or a filter along the partitions.
        """,
        "removed-and-referenced": """
            this commit removes {files}, and adds deletes for its rows as well.

            Deletes for a file that the same commit removes have no effect: one of the two is a mistake.

            Correct the writer: leave out the removal or the deletes.
        """,
        "arguments": """
            the operation is not complete: {said}.

            This is a mistake of the writer; other writers have no part in it.

            Correct the writer.
        """,
        "mixed-specs": """
            the replacement adds files of no partition spec, or of several.

            The replaced partitions must be defined by one partition spec.

            Write all files with the table's current partition spec.
        """,
        "delete-format": """
            the table's format version does not allow a delete file such as {files}: version 1 allows none, version 2
            no deletion vectors, version 3 only deletion vectors for positions.

            If the writer was right when it began, somebody has upgraded the table since.

            {again}
        """,
        "append-only": """
            there are files in the partition already, {files} for one, and this commit was to fill empty partitions
            only.

            It would replace what is there.

            Check whether the partition was loaded before. If it is to be replaced, leave out validateAppendOnly.
        """,
        "replaced-records": """
            this compaction adds more rows than it removes.

            Compaction writes the same rows anew; more of them cannot be right.

            Correct the writer: it reads a file twice, or forgets to remove one.
        """,
        "missing-manifest": """
            this commit replaces a manifest that the table no longer has.

            Changes that others have made to it meanwhile would be undone.

            {again}
        """,
        "unknown-spec": """
            somebody has changed the table's partitioning since this commit was prepared, and Iceberg's library does
            not know the new spec in this writer.

            The library fails on it (NullPointerException); nothing was committed.

            {again}
        """,
        "null-pointer": """
            Iceberg's library failed on a missing value while it looked for conflicts.

            That is a defect of the library, not of the commit; nothing was committed.

            {again} If it happens again, look at the values in the filter and at the statistics of the newest files.
        """,
        "lost-number": """
            the table left format version 1 while this commit was being tried, and the manifests that it had written
            before have no sequence numbers.

            Iceberg's library cannot carry them over; nothing was committed.

            {again}
        """,
        "corrupt": """
            delete files in the table contradict each other, or the data file that they refer to.

            The set of deleted rows is not defined: readers may see wrong rows already.

            Stop writing to the table, and look at the files that Iceberg's text names. Rolling back to the snapshot
            before them is the usual way out.
        """,
        "depends": """
            this change is about {files}, and {who} added that.

            It was made from the other one's result, so the two were never prepared concurrently.

            Nothing is wrong: they follow each other. Ask about two changes that were made from the same snapshot.
        """,
    }
)

DESCRIBED = frozenset(_TEXTS)
"""The rules that have a text; ``depends`` is Icetower's own, see `coexist`."""
