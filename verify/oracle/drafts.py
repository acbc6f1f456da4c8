"""Snapshots in the making, as Iceberg's clients make them, and somebody who writes them.

Manifests that lose an entry are written anew, with the others as EXISTING and a DELETED entry for the one that goes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

from verify.oracle.cases import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY,
    EXISTING,
    HONEST,
    LOCATION,
    POSITIONS,
    Case,
    Entry,
    File,
    Lies,
    Manifest,
    Partition,
    Row,
    Snapshot,
)
from verify.oracle.regions import Grants
from verify.oracle.tables import partition_of

Listed = tuple[Manifest, Entry]


@dataclass(slots=True)
class Open:
    """A manifest in the making."""

    spec: int
    content: int
    entries: list[Entry]
    path: str
    lies: Lies = HONEST


@dataclass(slots=True)
class Draft:
    """A snapshot in the making, on `base`."""

    case: Case
    base: Snapshot | None
    id: int
    number: int
    kept: list[Manifest] = field(default_factory=list[Manifest])
    new: list[Open] = field(default_factory=list[Open])
    operation: str = "append"
    names: Iterator[int] = field(default_factory=count)

    @staticmethod
    def on(case: Case, base: Snapshot | None) -> Draft:
        every = (*case.history, *case.commit)
        snapshot_id = 101 + len(every)
        return Draft(case, base, snapshot_id, len(every) + 1, list(base.manifests) if base else [])

    def path(self, suffix: str = "parquet") -> str:
        return f"{LOCATION}/data/{self.id}-{next(self.names)}.{suffix}"

    def open(self, spec: int, content: int) -> Open:
        made = Open(spec, content, [], f"{LOCATION}/metadata/{self.id}-m{next(self.names)}.avro")
        self.new.append(made)
        return made

    def add(self, files: Iterable[File], number: int | None = None) -> None:
        """New files, one manifest for each spec and content."""
        grouped: defaultdict[tuple[int, int], list[File]] = defaultdict(list)
        for file in files:
            grouped[file.spec, min(file.content, 1)].append(file)
        for (spec, content), some in grouped.items():
            self.open(spec, content).entries += [Entry(ADDED, file, None, number) for file in some]

    def reopen(self, manifest: Manifest) -> Open:
        """A manifest of the base, written anew with all its live entries as EXISTING."""
        self.kept.remove(manifest)
        made = self.open(manifest.spec, manifest.content)
        made.entries += [carried(manifest, entry) for entry in manifest.live()]
        return made

    def remove(self, some: Sequence[Listed]) -> None:
        """Entries of the base, wherever they are."""
        for manifest in list(dict.fromkeys(manifest for manifest, _ in some)):
            if manifest not in self.kept:
                continue
            made = self.reopen(manifest)
            for entry in (carried(manifest, entry) for its, entry in some if its is manifest):
                if entry in made.entries:  # the vector of a file that is named twice is met twice
                    made.entries[made.entries.index(entry)] = replace(entry, status=DELETED, snapshot=self.id)

    def finished(self) -> Snapshot:
        new = (
            Manifest(made.path, made.spec, made.content, tuple(made.entries), self.id, self.number, made.lies)
            for made in self.new
            if made.entries
        )
        parent = None if self.base is None else self.base.id
        return Snapshot(self.id, parent, self.number, (*new, *self.kept), self.operation)


def carried(manifest: Manifest, entry: Entry) -> Entry:
    """An entry as a manifest that is written anew carries it on."""
    snapshot = manifest.snapshot if entry.snapshot is None else entry.snapshot
    return Entry(EXISTING, entry.file, snapshot, manifest.number_of(entry))


@dataclass(slots=True)
class Writer:
    """Somebody who writes to the table, honestly: mostly into what is theirs."""

    rng: Random
    case: Case
    rows: Sequence[Row]
    grants: Grants
    own: float
    """How likely a file is chosen for being in the contract, where there is such a one."""

    def owned(self, file: File) -> bool:
        """Whether all rows of a data file are in the contract, whatever it grants there."""
        return all(any(self.grants.owns(rule, row, file.spec) for rule in self.case.rules) for row in file.rows)

    def pick(self, some: Sequence[Listed]) -> Listed | None:
        """One of several data files, by preference an own one."""
        if not some:
            return None
        if self.rng.random() < self.own:
            owned = [each for each in some if self.owned(each[1].file)]
            if owned:
                return self.rng.choice(owned)
        return self.rng.choice(some)

    def picks(self, some: Sequence[Listed], most: int) -> list[Listed]:
        chosen = [self.pick(some) for _ in range(self.rng.randint(1, most))]
        return [each for at, each in enumerate(chosen) if each is not None and each not in chosen[:at]]

    # ------------------------------------------------------------------------------------------------ data files

    def files(self, draft: Draft, most: int = 3) -> list[File]:
        """New data files, each with rows of one partition."""
        spec = self.spec()
        some = [self.row() for _ in range(self.rng.randint(1, 5))]
        grouped: defaultdict[Partition, list[Row]] = defaultdict(list)
        for row in some:
            grouped[partition_of(self.case.columns, self.case.specs[spec], row)].append(row)
        made = [File(draft.path(), DATA, spec, partition, tuple(its[:3])) for partition, its in list(grouped.items())]
        owned = [file for file in made if self.owned(file)]
        return (owned if owned and self.rng.random() < self.own else made)[:most]

    def spec(self) -> int:
        """The newest spec mostly: clients write with that one."""
        return self.rng.randrange(len(self.case.specs)) if self.rng.random() < 0.35 else len(self.case.specs) - 1

    def row(self) -> Row:
        """One of the table's rows, or one of their values anew."""
        if self.rng.random() < 0.6:
            return self.rng.choice(self.rows)
        return tuple(self.rng.choice(self.rows)[at] for at in range(len(self.case.columns)))

    # ------------------------------------------------------------------------------------------------ delete files

    def positions(self, draft: Draft, target: Listed, place: Listed | None = None) -> File:
        """Position deletes for a data file, by name or in its partition. `place`: a file whose partition they say."""
        file = target[1].file
        label = (place or target)[1].file
        spec, partition = label.spec, label.partition
        some = tuple(sorted(self.rng.sample(range(len(file.rows)), self.rng.randint(1, len(file.rows)))))
        if draft.case.version == 3 and self.rng.random() < 0.85:
            path = draft.path("puffin")
            return File(path, POSITIONS, spec, partition, (), ((file.path, some),), file.path, None, vector=True)
        reference, bounds = self.rng.choice(((file.path, None), (None, file.path), (None, None)))
        return File(draft.path(), POSITIONS, spec, partition, (), ((file.path, some),), reference, bounds)

    def equality(self, draft: Draft, target: Listed) -> File:
        """Equality deletes for the partition of a data file, or for all where a spec has no partition."""
        file = target[1].file
        everywhere = [at for at in range(len(self.case.specs)) if self.case.is_global(at)]
        spec, partition = file.spec, file.partition
        if everywhere and self.rng.random() < 0.3:
            spec = self.rng.choice(everywhere)
            partition = (None,) * len(self.case.specs[spec])
        columns = tuple(sorted(self.rng.sample(range(len(self.case.columns)), 1)))
        values = [tuple(row[at] for at in columns) for row in self.rng.sample(file.rows, 1)]
        return File(draft.path(), EQUALITY, spec, partition, tuple(values), equality=columns)

    def vectors_of(self, draft: Draft, path: str) -> list[Listed]:
        live = draft.base.live(POSITIONS) if draft.base else ()
        return [(manifest, entry) for manifest, entry in live if entry.file.vector and entry.file.reference == path]

    def delete_rows(self, draft: Draft, targets: Sequence[Listed]) -> None:
        """Delete files of some kind for data files; a vector takes the place of the one before."""
        for target in targets:
            if not target[1].file.rows:
                continue
            if self.rng.random() < 0.25:
                draft.add([self.equality(draft, target)])
                continue
            made = self.positions(draft, target)
            if made.vector:
                before = self.vectors_of(draft, target[1].file.path)
                old = {at for _, entry in before for _, its in entry.file.positions for at in its}
                if self.rng.random() < 0.9:
                    every = tuple(sorted(old.union(made.positions[0][1])))
                    made = replace(made, positions=((target[1].file.path, every),))
                if any(manifest not in draft.kept for manifest, _ in before) or self._is_targeted(draft, target):
                    continue
                draft.remove(before)
            draft.add([made])

    @staticmethod
    def _is_targeted(draft: Draft, target: Listed) -> bool:
        """Whether the draft has a vector for a data file already."""
        return any(e.file.vector and e.file.reference == target[1].file.path for m in draft.new for e in m.entries)
