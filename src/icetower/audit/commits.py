"""A branch as a line of commits: what each wrote, and what it is known to have read. Pure.

Positions count along the line from 0, the oldest commit that is looked at; `BEFORE` stands for all that was there when
the line begins.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icetower.audit.items import Item
from icetower.audit.live_files import Delta
from icetower.errors import ValidationFailed
from icetower.iceberg.deletes import Place
from icetower.iceberg.expressions import Expression, from_json
from icetower.iceberg.validation import Level
from icetower.protocol.marks import BASE, BLIND_APPENDS, CLIENT_LIST, FILTER, GROUP_FILE, ISOLATION, KEY, READ_SNAPSHOT
from icetower.protocol.snapshots import Snapshot
from icetower.rebase.blindness import known_blind

JSON = Mapping[str, Any]
BEFORE = -1
UPDATES_KEPT = 64
"""Of each partition, the newest commits that replaced files in it."""

FILTER_CHARACTERS_MAX = 65_536
_ATTEMPT = re.compile(r"(?:^|/)snap-\d+-(\d{1,6})-[^/]+\.avro$")
_LEVELS = {level.value: level for level in (Level.SNAPSHOT, Level.SERIALIZABLE)}


@dataclass(frozen=True, slots=True)
class Reads:
    """What a commit is known to have read.

    Attributes:
        start: the version of the table, by position, that its writer says it has read; None where nobody says.
        base: the version on which it was prepared, as the tower found it; its writer has read no newer one.
        filter: what was read of it; None where nobody says.
        level: the isolation that its writer asked for.
        blind: it has read nothing.
        lost: why a version that somebody names cannot be made out.
    """

    start: int | None = None
    base: int | None = None
    filter: Expression | None = None
    level: Level | None = None
    blind: bool = False
    lost: str = ""

    @property
    def newest(self) -> int | None:
        """The newest version that it can have read, by somebody's word."""
        return self.base if self.start is None else self.start


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of the line.

    Attributes:
        attempts: how often its client had tried, as far as the name of its manifest list tells; 0 where it doesn't.
    """

    position: int
    snapshot: JSON
    reads: Reads
    delta: Delta
    attempts: int = 0

    @property
    def id(self) -> int:
        return self.snapshot["snapshot-id"]

    @property
    def operation(self) -> str:
        return Snapshot(self.snapshot).operation or ""

    @property
    def summary(self) -> Mapping[str, Any]:
        return self.snapshot.get("summary") or {}

    @property
    def key(self) -> str | None:
        """Snapshots of one commit have one idempotency key."""
        return self.summary.get(KEY)

    @property
    def replaces_partitions(self) -> bool:
        return str(self.summary.get("replace-partitions")).lower() == "true"

    @property
    def is_compaction(self) -> bool:
        """Whether it says that it changes no row."""
        return self.operation == "replace"

    @property
    def only_deletes(self) -> bool:
        """Whether it adds no row: of two such commits that delete the same row, neither has undone the other."""
        return not self.delta.data_added()

    @property
    def retries(self) -> int:
        """How many swaps it is known to have lost."""
        return max(self.attempts - 1, 0)

    def targets(self) -> dict[str, list[Item]]:
        """The data files of which it deletes rows by position, with the delete files."""
        about: dict[str, list[Item]] = {}
        for item in self.delta.added:
            if not item.is_data and item.target is not None:
                about.setdefault(item.target, []).append(item)
        return about


@dataclass
class Line:
    """The commits of a branch, in order.

    Attributes:
        positions: by snapshot id.
        gone: data files that left, with the position of the commit that removed them.
        updates: by partition, the newest commits that took data files out of it and put others in.
        merged: by data file, position delete files of it that left, each with the position of the commit that removed
            it: whoever deletes further rows may put one file with all of them in their place.
    """

    positions: dict[int, int] = field(default_factory=dict[int, int])
    commits: list[Commit] = field(default_factory=list[Commit])
    gone: dict[str, int] = field(default_factory=dict[str, int])
    updates: dict[Place, deque[int]] = field(default_factory=dict[Place, "deque[int]"])
    merged: dict[str, list[tuple[Item, int]]] = field(default_factory=dict[str, "list[tuple[Item, int]]"])

    def add(self, commit: Commit) -> None:
        """The next commit."""
        self.positions[commit.id] = commit.position
        self.commits.append(commit)
        removed = commit.delta.data_removed()
        for item in removed:
            self.gone[item.path] = commit.position
        for place in {item.place for item in removed} & {item.place for item in commit.delta.data_added()}:
            self.updates.setdefault(place, deque(maxlen=UPDATES_KEPT)).append(commit.position)
        for item in commit.delta.deletes_removed():
            if item.target is not None and not item.is_vector:
                self.merged.setdefault(item.target, []).append((item, commit.position))

    def at(self, snapshot_id: int) -> int:
        """The position of a snapshot; `BEFORE` for one that is not on the line."""
        return self.positions.get(snapshot_id, BEFORE)

    def adds_rows(self, snapshot_id: int) -> bool:
        """Whether a commit has added rows, or what it did is unknown."""
        at = self.at(snapshot_id)
        return at == BEFORE or not self.commits[at].only_deletes

    def between(self, after: int, until: int) -> Sequence[Commit]:
        """The commits after one position and before another."""
        return self.commits[after + 1 : until]


def reads_of(snapshot: JSON, properties: Mapping[str, str], line: Mapping[int, int], oldest: JSON) -> Reads:
    """What the summary of a snapshot says of what was read.

    Args:
        properties: of the table.
        line: the positions of its ancestors.
        oldest: the first snapshot of the line.
    """
    summary: Mapping[str, Any] = snapshot.get("summary") or {}
    declared = str(properties.get(BLIND_APPENDS, "")).lower() == "true"
    # Appends of the fast path have no reader behind them.
    blind = GROUP_FILE in summary or known_blind(summary, declared=declared)
    lost: list[str] = []

    def position(word: str) -> int | None:
        said = summary.get(word)
        if said is None:
            return None
        if str(said) == "none":
            return BEFORE
        try:
            found = line.get(int(said))
        except ValueError:
            found = None
        if found is None and str(said) == str(oldest.get("parent-snapshot-id")):
            return BEFORE
        if found is None:
            lost.append(f"it names snapshot {str(said)[:40]} as {word}, which is not among its ancestors here")
        return found

    start, base = position(READ_SNAPSHOT), position(BASE)
    level = _LEVELS.get(str(summary.get(ISOLATION, "")).lower())
    return Reads(start, base, _filter(summary.get(FILTER), lost), level, blind, "; ".join(lost))


def _filter(text: Any, lost: list[str]) -> Expression | None:
    if text is None:
        return None
    try:
        if not isinstance(text, str) or len(text) > FILTER_CHARACTERS_MAX:
            raise ValueError("it is no text, or too long")
        return from_json(json.loads(text))
    except (ValueError, RecursionError, ValidationFailed) as error:
        lost.append(f"its {FILTER} cannot be read ({str(error)[:100]})")
        return None


def attempts_of(snapshot: JSON) -> int:
    """How often its client tried: Iceberg's Java library counts attempts in the name of the manifest list."""
    summary: Mapping[str, Any] = snapshot.get("summary") or {}
    path = summary.get(CLIENT_LIST) or snapshot.get("manifest-list") or ""
    found = _ATTEMPT.search(str(path))
    return int(found[1]) if found else 0


def siblings(one: Commit, other: Commit) -> bool:
    """Whether two snapshots are of one commit: clients such as PyIceberg write several."""
    return one.key is not None and one.key == other.key


def data_in(items: Iterable[Item]) -> Iterator[Item]:
    return (item for item in items if item.is_data)
