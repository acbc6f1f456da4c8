"""Files in memory, read as an audit reads storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import orjson

from icetower.table.head import HeadState
from verify.kit.storage import MemoryStorage


class MemoryFiles(MemoryStorage):
    """Files by path, and those of this machine where a path says so."""

    def find(self, path: str) -> bytes | None:
        return _local(path) if path.startswith("file:///") else super().find(path)


def _local(path: str) -> bytes:
    return Path(url2pathname(urlsplit(path).path)).read_bytes()


@dataclass
class Table:
    """A table in memory. `outcome`: what made it, where that says more."""

    head: HeadState
    files: MemoryFiles
    outcome: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def spill(self, folder: Path) -> Path:
        """The metadata folder as it would be copied from storage; its metadata file."""
        folder.mkdir(parents=True, exist_ok=True)
        for path, data in self.files.files.items():
            (folder / path.rpartition("/")[2]).write_bytes(data)
        file = folder / "v1.metadata.json"
        file.write_bytes(orjson.dumps(self.head.metadata))
        return file
