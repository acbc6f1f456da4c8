"""Tables written by Iceberg's Java library, for the tests of this directory: see fixtures/regenerate.py."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from icetower.iceberg.change import Change, change_of, diff_lists, manifests_to_read
from icetower.iceberg.manifests import Manifest, ManifestFile, read_manifest, read_manifest_list

JAVA = tuple(f"java_v{version}_{kind}" for kind in ("cow", "mor", "kinds") for version in (2, 3))


class SavedTable:
    """The files of a table, by base name."""

    def __init__(self, files: dict[str, bytes], metadata: dict[str, Any]) -> None:
        self.files = files
        self.metadata = metadata

    def rows(self, snapshot: dict[str, Any]) -> tuple[ManifestFile, ...]:
        return read_manifest_list(self.files[Path(snapshot["manifest-list"]).name])

    def manifest(self, row: ManifestFile) -> Manifest:
        return read_manifest(self.files[Path(row.path).name])

    def changes(self) -> Iterator[tuple[dict[str, Any] | None, Change]]:
        """Parent and change of every snapshot, oldest first."""
        known = {snapshot["snapshot-id"]: snapshot for snapshot in self.metadata["snapshots"]}
        for snapshot in sorted(known.values(), key=lambda s: s.get("sequence-number", s["timestamp-ms"])):
            parent = known.get(snapshot.get("parent-snapshot-id"))
            diff = diff_lists(self.rows(parent) if parent else (), self.rows(snapshot))
            read = {row.path: self.manifest(row) for row in manifests_to_read(diff)}
            yield parent, change_of(snapshot, diff, read)


def java_table(name: str) -> SavedTable:
    with zipfile.ZipFile(Path(__file__).parent / "fixtures" / f"{name}.zip") as archive:
        files = {entry: archive.read(entry) for entry in archive.namelist()}
    return SavedTable(files, json.loads(files.pop("metadata.json")))
