"""The operations of Iceberg's API, and the checks that a writer may turn on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from icetower.iceberg.change import Touched
from icetower.iceberg.expressions import FALSE, TRUE, Expression
from icetower.iceberg.records import Entry, ManifestFile


class Kind(StrEnum):
    """The operations of Iceberg's table API that create snapshots."""

    FAST_APPEND = "fast-append"
    APPEND = "append"
    OVERWRITE = "overwrite"
    ROW_DELTA = "row-delta"
    REWRITE = "rewrite"
    REPLACE_PARTITIONS = "replace-partitions"
    DELETE = "delete"
    REWRITE_MANIFESTS = "rewrite-manifests"


class Flag(StrEnum):
    """Checks that a writer may turn on, named after the API's methods."""

    ADDED_FILES_MATCH_FILTER = "added-files-match-filter"
    """`OverwriteFiles.validateAddedFilesMatchOverwriteFilter`."""
    NO_CONFLICTING_DATA = "no-conflicting-data"
    """`validateNoConflictingData`, in `RowDelta` `validateNoConflictingDataFiles`: C1."""
    NO_CONFLICTING_DELETES = "no-conflicting-deletes"
    """`validateNoConflictingDeletes`, in `RowDelta` `validateNoConflictingDeleteFiles`: C2, C3."""
    DELETED_FILES = "deleted-files"
    """`RowDelta.validateDeletedFiles`: C4 also considers snapshots recorded as `delete`, and C6 is on."""
    FILES_EXIST = "files-exist"
    """`DeleteFiles.validateFilesExist`: C6."""
    APPEND_ONLY = "append-only"
    """`ReplacePartitions.validateAppendOnly`."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A file that an operation names to be removed.

    Attributes:
        touched: the file as the writer knows it.
        manifest: the manifest that the writer read it from; None if the writer builds the description itself.
    """

    touched: Touched
    manifest: str | None = None

    @property
    def path(self) -> str:
        return self.touched.file.path


@dataclass(frozen=True, slots=True)
class ManifestRewrite:
    """The request of a `RewriteManifests`.

    Attributes:
        cluster: the key by which entries share a manifest (`clusterBy`): ``partition``, ``file``, or ``all`` for one
            manifest per spec; None to touch only the manifests in `deleted` and `added`.
        only_spec: rewrite manifests of this spec alone (`rewriteIf`).
        deleted: manifests to remove (`deleteManifest`), as the writer saw them.
        added: entries of the manifest that replaces them (`addManifest`), all of them existing files.
    """

    cluster: str | None = None
    only_spec: int | None = None
    deleted: tuple[ManifestFile, ...] = ()
    added: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """One commit as its writer prepared it; it does not change when the table does.

    Attributes:
        kind: the operation of the API.
        added, added_deletes: new files. A delete file's `sequence_number` is None unless it is set on purpose.
        removed, removed_deletes: files named to be removed.
        removed_paths: data files named by path alone (`DeleteFiles.deleteFile(path)`).
        row_filter: removes every file whose rows all match (`overwriteByRowFilter`, `deleteFromRowFilter`).
        start: the snapshot that the writer read (`validateFromSnapshot`); None if it named none.
        conflict_filter: limits what counts as a conflict (`conflictDetectionFilter`).
        flags: the checks that are on.
        references: paths of data files that the added delete files refer to (`validateDataFilesExist`).
        data_sequence_number: given to added data files (`RewriteFiles.dataSequenceNumber`).
        manifests: the rewrite of a `RewriteManifests`.
        branch: the branch that it commits to.
        precise_deletes: a proposal of Vanlightly's that no engine uses yet: a new delete file for one data file
            conflicts only with an operation that touches this data file. See `checks.no_new_delete_files`.
    """

    kind: Kind
    added: tuple[Touched, ...] = ()
    added_deletes: tuple[Touched, ...] = ()
    removed: tuple[Removal, ...] = ()
    removed_deletes: tuple[Removal, ...] = ()
    removed_paths: tuple[str, ...] = ()
    row_filter: Expression | None = None
    start: int | None = None
    conflict_filter: Expression | None = None
    flags: frozenset[Flag] = frozenset()
    references: tuple[str, ...] = ()
    data_sequence_number: int | None = None
    manifests: ManifestRewrite = ManifestRewrite()
    branch: str = "main"
    precise_deletes: bool = False

    def asks(self, flag: Flag) -> bool:
        """Whether this check is turned on."""
        return flag in self.flags

    @property
    def filters_rows(self) -> bool:
        """Whether it removes files by a row filter that can match anything at all."""
        return self.row_filter is not None and self.row_filter != FALSE

    @property
    def removes_data(self) -> bool:
        """Whether it removes data files, by any means."""
        by_partition = self.kind is Kind.REPLACE_PARTITIONS and bool(self.added)
        return bool(self.removed or self.removed_paths) or self.filters_rows or by_partition

    @property
    def data_filter(self) -> Expression:
        """The scope of an overwrite's C1: its conflict filter; else its row filter, if it names no files; else all."""
        if self.conflict_filter is not None:
            return self.conflict_filter
        if self.row_filter is not None and self.filters_rows and not self.removed:
            return self.row_filter
        return TRUE

    @property
    def recorded_as(self) -> str:
        """The operation in the snapshot's summary, which decides what later writers check it for."""
        match self.kind:
            case Kind.FAST_APPEND | Kind.APPEND:
                return "append"
            case Kind.OVERWRITE:
                if self.removes_data:
                    return "overwrite" if self.added else "delete"
                return "append" if self.added else "overwrite"
            case Kind.ROW_DELTA:
                if self.added and not self.added_deletes and not self.removes_data:
                    return "append"
                return "delete" if self.added_deletes and not self.added else "overwrite"
            case Kind.REWRITE | Kind.REWRITE_MANIFESTS:
                return "replace"
            case Kind.REPLACE_PARTITIONS:
                return "overwrite"
            case Kind.DELETE:
                return "delete"


def unique(removals: Iterable[Removal]) -> tuple[Removal, ...]:
    """Each data file once, the first time it is named."""
    found: dict[str, Removal] = {}
    for removal in removals:
        found.setdefault(removal.path, removal)
    return tuple(found.values())
