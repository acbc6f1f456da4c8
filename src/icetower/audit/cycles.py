"""Cycles of reads and writes: what no order of the commits explains. Pure.

A commit that has not seen what another wrote where it read comes before that other one, in any order that explains
what it did, though it landed after it (a read-write edge). One such edge is no violation. A way back from the other one
is: a row that both wrote, or reads of the other that miss what this one wrote.

Sources: Adya, "Weak Consistency", 1999 (G-single, G2); Elle, arXiv 2003.10554, for the shape of the witnesses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from icetower.audit.commits import Commit, Line, siblings
from icetower.audit.findings import Edge, Rule, Verdict, Violation
from icetower.audit.integrity import found
from icetower.audit.items import Item
from icetower.audit.live_files import LiveFiles
from icetower.audit.overlaps import Details
from icetower.audit.wording import called, name, shown
from icetower.errors import ValidationFailed
from icetower.iceberg.expressions import Column, Expression, text
from icetower.iceberg.pruning import Pruner
from icetower.iceberg.validation import Level
from icetower.protocol.marks import READ_SNAPSHOT

WINDOW_MAX = 128
"""Commits between what was read and where it landed that are looked at, the newest of them."""

LENGTH_MAX = 5
"""Commits of a cycle."""

_REFERENCE = re.compile(r'ref\(name="([^"]*)"\)')


@dataclass(frozen=True, slots=True)
class Step:
    """One edge, with the file that shows it. ``rw``: `of` missed what `to` wrote; ``ww``: `to` wrote over what `of`
    wrote; ``wr``: `to` has read what `of` wrote."""

    kind: str
    of: Commit
    to: Commit
    file: Item


@dataclass
class Cycles:
    """Looks for cycles through one commit after the other.

    Args:
        level: under snapshot isolation, cycles of read-write edges alone are no violation.
        columns: of the table's schema, by name.
    """

    line: Line
    live_files: LiveFiles
    details: Details
    columns: Mapping[str, Column]
    level: Level = Level.SERIALIZABLE
    _pruners: dict[tuple[int, int], Pruner] = field(default_factory=dict[tuple[int, int], Pruner])
    _touched: dict[tuple[int, int], Item | None] = field(default_factory=dict[tuple[int, int], "Item | None"])

    def through(self, commit: Commit) -> tuple[Violation, tuple[Edge, ...]] | None:
        """The shortest cycle that a commit closes. Raises `NeedsFile`."""
        start = commit.reads.start
        if start is None or commit.reads.filter is None or start >= commit.position - 1:
            return None
        first = max(start, commit.position - 1 - WINDOW_MAX)
        window = self.line.between(first, commit.position)
        for other in reversed(window):
            missed = self._missed(commit, other)
            back = None if missed is None else self._way(other, commit, window)
            if missed is None or back is None:
                continue
            steps = (missed, *back)
            if self.level is Level.SERIALIZABLE or any(step.kind == "ww" for step in steps):
                return _told(steps), tuple(Edge(step.kind, step.of.id, step.to.id) for step in steps)
        return None

    def _way(self, begin: Commit, end: Commit, window: Sequence[Commit]) -> list[Step] | None:
        """The shortest way from one commit to another, over those in the window."""
        ways: dict[int, list[Step]] = {begin.position: []}
        reached = [begin]
        for _ in range(LENGTH_MAX - 1):
            further: list[Commit] = []
            for at in reached:
                step = self._edge(at, end)
                if step is not None:
                    return [*ways[at.position], step]
                for other in window:
                    if other.position not in ways:
                        step = self._edge(at, other)
                        if step is not None:
                            ways[other.position] = [*ways[at.position], step]
                            further.append(other)
            reached = further
        return None

    def _edge(self, one: Commit, other: Commit) -> Step | None:
        """Why one commit comes before the other in any order that explains both."""
        if siblings(one, other):
            return None
        missed = self._missed(one, other)
        if missed is not None or one.position > other.position:
            return missed
        over = _wrote_over(one, other)
        if over is not None:
            return over
        reads = other.reads
        if (
            reads.start is not None
            and reads.start >= one.position
            and reads.filter is not None
            and not other.is_compaction
        ):
            touched = self.touched(one, reads.filter)
            if touched is not None:
                return Step("wr", one, other, touched)
        return None

    def _missed(self, one: Commit, other: Commit) -> Step | None:
        """What `other` wrote where `one` has read, without seeing it."""
        reads = one.reads
        if reads.filter is None or reads.blind or one.is_compaction or siblings(one, other):
            return None
        saw = reads.start is not None and reads.start >= other.position
        unknown = reads.start is None and other.position < one.position
        if saw or unknown:
            return None
        touched = self.touched(other, reads.filter)
        return None if touched is None else Step("rw", one, other, touched)

    def touched(self, commit: Commit, expression: Expression) -> Item | None:
        """A file by which a commit changed what a filter may match; compaction changes no row."""
        if commit.is_compaction:
            return None
        key = (commit.position, id(expression))
        if key not in self._touched:
            items = (*commit.delta.added, *commit.delta.removed)
            self._touched[key] = next((item for item in items if self._matches(item, expression)), None)
        return self._touched[key]

    def _matches(self, item: Item, expression: Expression) -> bool:
        about = item
        if not item.is_data:
            if item.is_equality:
                return self._in_partition(item, expression)
            data = self.data_file(item.target)
            if data is None:
                return self._in_partition(item, expression)
            about = data
        if not self._in_partition(about, expression):
            return False
        try:
            return self._pruner(about, expression).rows_might_match(self.details(about))
        except ValidationFailed:  # a column of the filter is gone since: nothing can be ruled out by it
            return True

    def _in_partition(self, item: Item, expression: Expression) -> bool:
        if item.spec_id not in self.live_files.specs:
            return True
        if item.is_equality and not self.live_files.specs[item.spec_id].fields:
            return True
        try:
            return self._pruner(item, expression).partition_might_match(item.partition)
        except ValidationFailed:
            return True

    def _pruner(self, item: Item, expression: Expression) -> Pruner:
        key = (item.spec_id, id(expression))
        if key not in self._pruners:
            self._pruners[key] = Pruner(expression, self.live_files.specs[item.spec_id], self.columns)
        return self._pruners[key]

    def data_file(self, path: str | None) -> Item | None:
        """A data file of the line, live or gone."""
        if path is None:
            return None
        live = self.live_files.live(path)
        if live is not None:
            return live
        at = self.line.gone.get(path)
        if at is None:
            return None
        return next((item for item in self.line.commits[at].delta.removed if item.path == path), None)


def _wrote_over(one: Commit, other: Commit) -> Step | None:
    """A file of the earlier commit that the later one removed, superseded, or deleted rows of."""
    ours = {item.path: item for item in one.delta.added}
    for item in other.delta.removed:
        if item.path in ours and item.snapshot_id == one.id:
            return Step("ww", one, other, item)
    for target in other.targets():
        if target in ours:
            return Step("ww", one, other, ours[target])
    return None


def _told(steps: tuple[Step, ...]) -> Violation:
    witness: list[str] = []
    for step in steps:
        of, to, file = called(step.of.snapshot), called(step.to.snapshot), name(step.file.path)
        if step.kind == "rw":
            assert step.of.reads.filter is not None
            did = "removed" if step.file in step.to.delta.removed else "added"
            witness.append(
                f"{of} has read where {_plain(step.of.reads.filter)}{_version(step.of)}. It has not seen {file}, which "
                f"{to} {did}, and which may hold such rows: it comes before that."
            )
        elif step.kind == "ww":
            witness.append(f"{to} wrote over {file} of {of}: it comes after that.")
        else:
            witness.append(f"{to} has read {file} of {of}: it comes after that.")
    witness.append("Each comes before the next, and the last before the first: no order of them explains the table.")
    commits = sorted({step.of.position: step.of for step in steps}.items())
    levels = {commit.reads.level for _, commit in commits}
    if levels == {Level.SNAPSHOT} and all(step.kind == "rw" for step in steps):
        witness.append("All of them asked for snapshot isolation, which lets this happen.")
    return found(
        Rule.WRITE_SKEW,
        Verdict.DEFINITE,
        [commit.snapshot for _, commit in commits],
        *witness,
        files=[step.file for step in steps],
    )


def _plain(expression: Expression) -> str:
    """A filter as people write it: Iceberg's own text calls each column ``ref(name="…")``."""
    return shown(_REFERENCE.sub(r"\1", text(expression)))


def _version(commit: Commit) -> str:
    said = commit.summary.get(READ_SNAPSHOT)
    return "" if said is None else f", in snapshot {shown(said)}"
