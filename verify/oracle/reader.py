"""What a table's reader gets of a snapshot, row by row. Written from the specification ("Scan Planning").

Several readers are asked. One reads everything. Another asks for the very rows of each file by a filter, and passes
over what bounds and statistics say cannot match: what lies there is lost to it. A third goes by what is inside of
position delete files and vectors alone, wherever they are listed and whatever they refer to: PyIceberg gathers the
delete files of all that it scans, and applies each to whatever data files it names.

Where readers refuse a table, all rows are lost: two deletion vectors for a data file, or one that is older than it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from verify.oracle.cases import ADDED, DATA, EXISTING, POSITIONS, Case, Entry, File, Manifest, Partition, Row, Snapshot

Seen = tuple[str, int, Row, int, Partition]
"""A row as it is read: path, position, values, and the spec and partition that its file is listed in."""


@dataclass(frozen=True, slots=True)
class _Live:
    file: File
    spec: int
    partition: Partition
    number: int


class Unreadable(Exception):
    """Readers refuse the table."""


@dataclass(frozen=True, slots=True)
class Reader:
    """How somebody reads."""

    filtered: bool = False
    by_contents: bool = False


PLAIN = Reader()


def visible(case: Case, snapshot: Snapshot | None, reader: Reader = PLAIN) -> Counter[Seen]:
    """Every row that a reader gets, as often as it gets it."""
    if snapshot is None:
        return Counter()
    try:
        return Counter(_rows(case, snapshot.manifests, reader))
    except Unreadable:
        return Counter()


def _readers(*snapshots: Snapshot | None) -> Iterator[Reader]:
    """The readers to which these snapshots may look different."""
    yield PLAIN
    manifests = [manifest for snapshot in snapshots if snapshot is not None for manifest in snapshot.manifests]
    files = [entry.file for manifest in manifests for entry in manifest.entries]
    if any(manifest.lies.bounds is not None for manifest in manifests) or any(file.hides for file in files):
        yield Reader(filtered=True)
    if any({path for path, _ in file.positions} - {file.target()} for file in files):
        yield Reader(by_contents=True)


def _rows(case: Case, manifests: Sequence[Manifest], reader: Reader) -> Iterator[Seen]:
    live = [each for manifest in manifests for each in _read(case, manifest, reader)]
    deletes = _Deletes(case, [each for each in live if each.file.content != DATA], reader)
    for data in live:
        if data.file.content == DATA:
            gone = deletes.positions(data)
            erased = deletes.equalities(data)
            for at, row in enumerate(data.file.rows):
                if at not in gone and not any(_matches(file, row) for file in erased):
                    yield data.file.path, at, row, data.spec, data.partition


def _read(case: Case, manifest: Manifest, reader: Reader) -> Iterator[_Live]:
    """The live entries of a manifest for whoever goes by its row in the list."""
    lies = manifest.lies
    content = manifest.content if lies.content is None else lies.content
    if lies.empty or lies.short:
        return
    for entry in manifest.entries:
        if entry.status not in (EXISTING, ADDED) or min(entry.file.content, 1) != content:
            continue
        spec, partition = _place(case, manifest, entry)
        if reader.filtered and (entry.file.hides or _passed_over(lies.bounds, partition)):
            continue
        yield _Live(entry.file, spec, partition, manifest.number_of(entry))


def _place(case: Case, manifest: Manifest, entry: Entry) -> tuple[int, Partition]:
    """Spec and partition of an entry: readers find the fields of the listed spec in the manifest by their ids."""
    listed = manifest.spec if manifest.lies.spec is None else manifest.lies.spec
    if listed == manifest.spec or max(listed, manifest.spec) >= len(case.specs):
        return listed, entry.file.partition
    written = {field.id: value for field, value in zip(case.specs[manifest.spec], entry.file.partition, strict=True)}
    return listed, tuple(written.get(field.id) for field in case.specs[listed])


def _passed_over(bounds: tuple[Partition, ...] | None, partition: Partition) -> bool:
    """Whether bounds over other partitions leave this one out."""
    if bounds is None:
        return False
    for at, value in enumerate(partition):
        others = [other[at] for other in bounds]
        known = [other for other in others if other is not None]
        if value is None:
            if len(known) == len(others):
                return True
        elif not known or value < min(known) or value > max(known):
            return True
    return False


class _Deletes:
    """The live delete files, by what they apply to."""

    def __init__(self, case: Case, live: Iterable[_Live], reader: Reader) -> None:
        self._vectors: dict[str, _Live] = {}
        self._by_path: defaultdict[str, list[_Live]] = defaultdict(list)
        self._by_place: defaultdict[tuple[int, Partition], list[_Live]] = defaultdict(list)
        self._equalities: defaultdict[tuple[int, Partition], list[_Live]] = defaultdict(list)
        self._global: list[_Live] = []
        self._named: defaultdict[str, set[int]] | None = defaultdict(set) if reader.by_contents else None
        for each in live:
            target = each.file.target()
            place = (each.spec, each.partition)
            if each.file.content != POSITIONS:
                (self._global if case.is_global(each.spec) else self._equalities[place]).append(each)
            elif self._named is not None:
                for path, positions in each.file.positions:
                    self._named[path].update(positions)
            elif target is None:
                self._by_place[place].append(each)
            elif not each.file.vector:
                self._by_path[target].append(each)
            elif target in self._vectors:
                raise Unreadable(f"two vectors for {target}")
            else:
                self._vectors[target] = each

    def positions(self, data: _Live) -> frozenset[int]:
        if self._named is not None:
            return frozenset(self._named[data.file.path])
        vector = self._vectors.get(data.file.path)
        if vector is not None:  # what else there is for this file is in it
            if vector.number < data.number:
                raise Unreadable(f"the vector for {data.file.path} is older than the file")
            return frozenset(_positions_of(vector.file, data.file.path))
        found = (*self._by_path[data.file.path], *self._by_place[data.spec, data.partition])
        return frozenset(
            at for each in found if each.number >= data.number for at in _positions_of(each.file, data.file.path)
        )

    def equalities(self, data: _Live) -> list[File]:
        found = (*self._global, *self._equalities[data.spec, data.partition])
        return [each.file for each in found if each.number > data.number]


def _positions_of(file: File, path: str) -> Iterator[int]:
    for target, positions in file.positions:
        if target == path:
            yield from positions


def _matches(equality: File, row: Row) -> bool:
    """Whether an equality delete file deletes a row; null equals null."""
    values: Any = tuple(row[column] for column in equality.equality)
    return values in equality.rows


@dataclass(frozen=True, slots=True)
class Effect:
    """The rows that a commit gives a reader, and takes away."""

    gained: tuple[Seen, ...]
    lost: tuple[Seen, ...]


def effect(case: Case, before: Snapshot | None, after: Snapshot) -> Effect:
    """What `after` changes for readers of `before`, whoever they are."""
    gained: dict[Seen, None] = {}
    lost: dict[Seen, None] = {}
    for reader in _readers(before, after):
        was, now = visible(case, before, reader), visible(case, after, reader)
        gained |= dict.fromkeys(now - was)
        lost |= dict.fromkeys(was - now)
    return Effect(tuple(gained), tuple(lost))
