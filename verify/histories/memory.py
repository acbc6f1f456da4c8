"""Files in memory, read as an audit reads storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import orjson

from icetower.errors import NotFound
from icetower.storage.port import ANY_FILE, Bound
from icetower.table.head import HeadState


class MemoryFiles:
    """Files by path, and those of this machine where a path says so; `reads` counts how often each was read."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.reads: dict[str, int] = {}

    async def read(self, path: str, bound: Bound = ANY_FILE) -> bytes:
        self.reads[path] = self.reads.get(path, 0) + 1
        if path.startswith("file:///"):
            return _local(path)
        if path not in self.files:
            raise NotFound(f"File does not exist: {path}", rule="file.exists")
        return self.files[path]

    async def read_many(self, paths: Sequence[str]) -> list[bytes | None]:
        return [await self.read(path) if path in self.files or path.startswith("file:///") else None for path in paths]

    async def read_range(self, path: str, offset: int, length_bytes: int) -> bytes:
        return (await self.read(path))[offset : offset + length_bytes]

    async def exists(self, path: str) -> bool:
        return path in self.files


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
