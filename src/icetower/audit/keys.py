"""Keys that are live twice, by commits of which the later one had not seen the earlier one.

Two MERGEs that look for the same new key, and each find it nowhere, insert it twice. One after the other, the second
would have met the row of the first. Trino lets it happen where they write to different partitions (trinodb/trino
#31072), and so does a tower that was told that its writers depend on nothing but their own partitions, by `read_scope:
owned`, or on nothing at all. Manifests do not show it, since nobody says what was read; the rows do.

Whether the writers looked for the key is inferred: two who only append, each under a key that ought to be unique, leave
the same. So such a finding is possible, never definite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icetower.audit.commits import BEFORE, Commit, Line, siblings
from icetower.audit.content import Contents, Unreadable
from icetower.audit.findings import Edge, Rule, Verdict
from icetower.audit.integrity import found
from icetower.audit.items import Item
from icetower.audit.live_files import LiveFiles
from icetower.audit.overlaps import Missed
from icetower.audit.wording import called, name, partition_of, shown
from icetower.errors import BadRequest
from icetower.iceberg.expressions import Column
from icetower.protocol.marks import BASE

JSON = Mapping[str, Any]
Key = tuple[Any, ...]

WINDOW_MAX = 128
"""Commits that one may have missed that are looked at, the newest of them."""

FILES_KEPT = 256
"""Files whose keys are at hand."""

SHOWN = 3


def key_columns(asked: Sequence[str], schema: JSON, columns: Mapping[str, Column]) -> tuple[Column, ...]:
    """The columns by which rows are meant to be unique: those asked for, else the table's identifier fields.

    Raises:
        BadRequest: the table has no such column.
    """
    unknown = [each for each in asked if each not in columns or columns[each].nested]
    if unknown:
        raise BadRequest(
            f"the table has no column {unknown[0]!r} that could be part of a key; it has {', '.join(sorted(columns))}",
            rule="audit.key",
        )
    if asked:
        return tuple(columns[each] for each in dict.fromkeys(asked))
    ids: Sequence[int] = schema.get("identifier-field-ids") or ()
    by_id = {column.id: column for column in columns.values() if not column.nested}
    return tuple(by_id[id_] for id_ in ids) if all(id_ in by_id for id_ in ids) else ()


@dataclass
class Keys:
    """Looks at the keys of one commit after the other. `live_files`: after the commit."""

    contents: Contents
    line: Line
    live_files: LiveFiles
    columns: tuple[Column, ...]
    _known: dict[str, frozenset[Key]] = field(default_factory=dict[str, "frozenset[Key]"])

    async def look(self, commit: Commit) -> list[Missed]:
        """The commits that it had not seen, and that have put a key into the table which it has put there, too."""
        newest = commit.reads.newest
        ours = commit.delta.data_added()
        if not self.columns or newest is None or not ours or commit.is_compaction:
            return []
        proven: list[Missed] = []
        try:
            for other in self._unseen(commit, newest):
                theirs = [item for item in other.delta.data_added() if self.live_files.live(item.path) is not None]
                twice = await self._common(ours, theirs)
                if twice is not None:
                    proven.append(self._told(commit, other, *twice))
        except Unreadable as error:
            self.contents.notes[str(error)] = None
        return proven

    def _unseen(self, commit: Commit, newest: int) -> Iterator[Commit]:
        first = max(newest, commit.position - 1 - WINDOW_MAX, BEFORE)
        for other in self.line.between(first, commit.position):
            if not other.is_compaction and not siblings(commit, other):
                yield other

    async def _common(self, ours: Sequence[Item], theirs: Sequence[Item]) -> tuple[Item, Item, frozenset[Key]] | None:
        for item in theirs:
            known = await self._keys(item)
            for own in ours:
                both = known & await self._keys(own) if known else known
                if both:
                    return item, own, both
        return None

    async def _keys(self, item: Item) -> frozenset[Key]:
        """The keys of a data file's live rows. Raises `Unreadable`."""
        if item.path not in self._known:
            while len(self._known) >= FILES_KEPT:
                del self._known[next(iter(self._known))]
            rows = await self.contents.rows(item, [column.id for column in self.columns])
            self._known[item.path] = frozenset(row for row in rows if None not in row)
        return self._known[item.path]

    def _told(self, commit: Commit, other: Commit, theirs: Item, ours: Item, both: frozenset[Key]) -> Missed:
        by = ", ".join(column.name for column in self.columns)
        few = sorted(both, key=repr)[:SHOWN]
        keys = ", ".join(shown(", ".join(map(str, key))) for key in few)
        more = f" and {len(both) - SHOWN} more" if len(both) > SHOWN else ""
        where = [partition_of(item, self.live_files.specs) for item in (theirs, ours)]
        base = commit.summary.get(BASE)
        word = "It says that it had read an older version."
        if base is not None:
            word = (
                f"It was prepared on snapshot {shown(str(base))} and rebased, because somebody has declared that it "
                "depends on nothing that came meanwhile."
            )
        end = "Had either come after the other and looked for the row, there would be one."
        witness = (
            f"{called(other.snapshot)} added {name(theirs.path)} to {where[0]}: in it {by} is {keys}{more}.",
            f"{called(commit.snapshot)} added {name(ours.path)} to {where[1]}: in it, too.",
            f"{word} Neither has seen the row of the other. {end}",
        )
        return Missed(
            found(
                Rule.KEY_TWICE,
                Verdict.POSSIBLE,
                (other.snapshot, commit.snapshot),
                *witness,
                files=(theirs, ours),
            ),
            None,
            Edge("rw", commit.id, other.id),
        )
