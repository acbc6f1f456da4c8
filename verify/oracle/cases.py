"""What a case is made of: a table with all its rows, a contract, and a commit, as plain values that never change.

A manifest says two things: what it is, and what it is listed as. `Lies` is the difference, and what readers make of it
is up to `reader`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from icetower.contracts.model import Operation

EXISTING, ADDED, DELETED = 0, 1, 2
DATA, POSITIONS, EQUALITY = 0, 1, 2
LOCATION = "file:///warehouse/ns/t"
NULL = "null"

Row = tuple[Any, ...]
"""A value for each of `Case.columns`, in Iceberg's internal form."""

Partition = tuple[Any, ...]


# ------------------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True, slots=True)
class Column:
    """A column by its id. `before`: its name in the first schema; None where it was not in it. `name` None: dropped."""

    id: int
    name: str | None
    kind: str
    before: str | None


@dataclass(frozen=True, slots=True)
class Field:
    """A partition field; `column` is a position in `Case.columns`."""

    id: int
    name: str
    transform: str
    column: int


Spec = tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class File:
    """A data or delete file with what is in it.

    Attributes:
        rows: of a data file; of equality deletes the values of `equality`, which are positions in `Case.columns`.
        positions: what a position delete file deletes, by path; of a file of vectors each of them, its own first.
        reference: `referenced_data_file`.
        bounds: the text that both bounds of the column `file_path` have.
        hides: its statistics say that no row matches any filter.
        counted: the number of rows that its entry tells, where that is not so.
        shorter: its entry says that it ends earlier than it does.
    """

    path: str
    content: int
    spec: int
    partition: Partition
    rows: tuple[Row, ...] = ()
    positions: tuple[tuple[str, tuple[int, ...]], ...] = ()
    reference: str | None = None
    bounds: str | None = None
    vector: bool = False
    equality: tuple[int, ...] = ()
    hides: bool = False
    counted: int | None = None
    shorter: bool = False

    @property
    def records(self) -> int:
        if self.counted is not None:
            return self.counted
        own = self.positions[:1] if self.vector else self.positions
        return len(self.rows) if self.content != POSITIONS else sum(len(at) for _, at in own)

    def target(self) -> str | None:
        """The one data file that a reader applies it to, where its entry says so."""
        return (self.reference or self.bounds) if self.content == POSITIONS else None


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of a manifest. `number`: its data sequence number; None where it inherits the manifest's."""

    status: int
    file: File
    snapshot: int | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Lies:
    """What a manifest list, or a manifest's own header, says that is not so; None where it is honest.

    Attributes:
        bounds: the partitions over which its bounds are computed, instead of those of its entries.
        empty: it is listed as having no live files.
        short: it is listed as shorter than it is.
        unbounded: it is listed without bounds, which is no lie in itself.
        order: the order in which its header names the partition fields.
    """

    spec: int | None = None
    content: int | None = None
    number: int | None = None
    snapshot: int | None = None
    bounds: tuple[Partition, ...] | None = None
    empty: bool = False
    short: bool = False
    unbounded: bool = False
    order: tuple[int, ...] | None = None


HONEST = Lies()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest and its row in a list. `content`: 0 data, 1 deletes; `snapshot`, `number`: who added it, and when."""

    path: str
    spec: int
    content: int
    entries: tuple[Entry, ...]
    snapshot: int
    number: int
    lies: Lies = HONEST

    def number_of(self, entry: Entry) -> int:
        """The data sequence number of an entry, inherited where it has none (specification, "Inheritance")."""
        if entry.number is not None:
            return entry.number
        return self.number if self.lies.number is None else self.lies.number

    def live(self) -> Iterator[Entry]:
        return (entry for entry in self.entries if entry.status != DELETED)


@dataclass(frozen=True, slots=True)
class Snapshot:
    id: int
    parent: int | None
    number: int
    manifests: tuple[Manifest, ...]
    operation: str

    def live(self, content: int | None = None) -> Iterator[tuple[Manifest, Entry]]:
        """Live entries with their manifests; of one content (0, 1 or 2) where it is given."""
        for manifest in self.manifests:
            for entry in manifest.live():
                if content is None or entry.file.content == content:
                    yield manifest, entry


# ---------------------------------------------------------------------------------------------------- the contract


@dataclass(frozen=True, slots=True)
class Term:
    """A partition field's name (`transform` None), or a transform (as in metadata) of the column `name`."""

    name: str
    transform: str | None = None

    def __str__(self) -> str:
        if self.transform is None:
            return self.name
        kind, _, width = self.transform.rstrip("]").partition("[")
        return f"{kind}({width}, {self.name})" if width else f"{kind}({self.name})"


@dataclass(frozen=True, slots=True)
class Extent:
    """Texts as in a contract: a list (`values`, None stands for null), or a half-open range."""

    values: tuple[str | None, ...] | None = None
    start: str | None = None
    end: str | None = None


Region = tuple[tuple[Term, Extent], ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of a contract; `regions` None: all partitions."""

    operations: frozenset[Operation]
    regions: tuple[Region, ...] | None
    excluded: tuple[Region, ...] = ()
    prove: bool = False


# -------------------------------------------------------------------------------------------------------- the case


@dataclass(frozen=True, slots=True)
class Case:
    """A table, a contract and a commit.

    Attributes:
        history: the table's snapshots, the head last; none: it is empty.
        commit: the snapshots that are sent, each on the one before.
        asserted: where the commit asserts that `main` stands.
        appended: files that are sent by the fast path instead of a commit.
        kind: what an honest client would call it.
        forged: how it lies.
    """

    number: int
    version: int
    columns: tuple[Column, ...]
    specs: tuple[Spec, ...]
    history: tuple[Snapshot, ...]
    rules: tuple[Rule, ...]
    now_ms: int
    commit: tuple[Snapshot, ...] = ()
    asserted: int | None = None
    appended: tuple[File, ...] = ()
    kind: str = ""
    forged: tuple[str, ...] = ()

    @property
    def head(self) -> Snapshot | None:
        return self.history[-1] if self.history else None

    @property
    def proves(self) -> bool:
        """Whether the contract asks for proof of where new data files lie."""
        return any(rule.prove for rule in self.rules)

    def snapshot(self, snapshot_id: int | None) -> Snapshot | None:
        return next((each for each in (*self.history, *self.commit) if each.id == snapshot_id), None)

    def is_global(self, spec: int) -> bool:
        """Whether files of a spec belong to no partition: it has no field, or none that is left (version 1)."""
        return spec < len(self.specs) and all(each.transform == "void" for each in self.specs[spec])


def paths_in(snapshots: Iterable[Snapshot]) -> list[str]:
    """The paths of all data files, each once."""
    return list(dict.fromkeys(e.file.path for s in snapshots for m in s.manifests for e in m.entries))
