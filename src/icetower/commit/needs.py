"""What a plan lacks: it says so, everything is read side by side, and it is called again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from icetower.admission.admitted import AdmittedAppend
from icetower.commit.twice import NeedsGroups, NeedsPaths
from icetower.commit.vectors import NeedsBlobs
from icetower.iceberg.entries import NeedsFile, NeedsFiles
from icetower.iceberg.manifests import DataFile, ManifestFile
from icetower.iceberg.puffin import BlobAt

Encoding = tuple[int, ...]
"""Stands for some appends with rows, in their order, for as long as their group is planned."""


def encoding_of(appends: Sequence[AdmittedAppend]) -> Encoding:
    """By what the files of their rows are known."""
    return tuple(map(id, appends))


@dataclass(frozen=True, slots=True)
class Needs:
    """What must be read before a group can be planned: see `Sources`. False where there is nothing."""

    lists: frozenset[str] = frozenset()
    manifests: frozenset[str] = frozenset()
    blobs: frozenset[BlobAt] = frozenset()
    targets: tuple[DataFile, ...] = ()
    paths: tuple[tuple[str, ManifestFile], ...] = ()
    """Manifests whose live paths are asked for, each with its branch."""
    lately: tuple[tuple[str, ManifestFile], ...] = ()
    """The same of those that came lately, for commits, which go on where they cannot be read."""
    groups: frozenset[str] = frozenset()
    rows: tuple[tuple[AdmittedAppend, ...], ...] = ()
    """Appends whose rows must be made into files, together."""

    def __bool__(self) -> bool:
        return bool(len(self))

    def __len__(self) -> int:
        fields = (self.lists, self.manifests, self.blobs, self.targets, self.paths, self.lately, self.groups, self.rows)
        return sum(map(len, fields))


class NeedsTargets(Exception):
    """Position delete files must be read first, which don't say which data files they are about (trap R6)."""

    def __init__(self, files: Iterable[DataFile]) -> None:
        self.files = tuple(files)
        super().__init__([file.path for file in self.files])


class NeedsEncoding(Exception):
    """The rows of some appends must be made into files first."""

    def __init__(self, appends: Iterable[AdmittedAppend]) -> None:
        self.appends = tuple(appends)
        super().__init__(len(self.appends))


Lacking = NeedsFile | NeedsFiles | NeedsBlobs | NeedsTargets | NeedsPaths | NeedsGroups | NeedsEncoding
LACKING = (NeedsFile, NeedsFiles, NeedsBlobs, NeedsTargets, NeedsPaths, NeedsGroups, NeedsEncoding)


def needs_of(lacking: Sequence[Lacking]) -> Needs:
    files = [need for each in lacking if isinstance(each, NeedsFiles) for need in each.needs]
    files += [each for each in lacking if isinstance(each, NeedsFile)]
    paths = [each for each in lacking if isinstance(each, NeedsPaths)]
    return Needs(
        frozenset(need.path for need in files if need.is_list),
        frozenset(need.path for need in files if not need.is_list),
        frozenset(blob for each in lacking if isinstance(each, NeedsBlobs) for blob in each.blobs),
        tuple({f.path: f for each in lacking if isinstance(each, NeedsTargets) for f in each.files}.values()),
        tuple((each.ref, row) for each in paths if not each.lately for row in each.rows),
        tuple({row.path: (each.ref, row) for each in paths if each.lately for row in each.rows}.values()),
        frozenset(path for each in lacking if isinstance(each, NeedsGroups) for path in each.paths),
        tuple(each.appends for each in lacking if isinstance(each, NeedsEncoding)),
    )
