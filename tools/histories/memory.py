"""Files in memory, read as an audit reads storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from icetower.errors import NotFound
from icetower.table.head import HeadState


class MemoryFiles:
    """Files by path; `reads` counts how often each was read."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.reads: dict[str, int] = {}

    async def read(self, path: str) -> bytes:
        self.reads[path] = self.reads.get(path, 0) + 1
        if path not in self.files:
            raise NotFound(f"File does not exist: {path}", rule="file.exists")
        return self.files[path]

    async def read_range(self, path: str, offset: int, length_bytes: int) -> bytes:
        return (await self.read(path))[offset : offset + length_bytes]

    async def exists(self, path: str) -> bool:
        return path in self.files


@dataclass
class Table:
    """A table in memory. `outcome`: what made it, where that says more."""

    head: HeadState
    files: MemoryFiles
    outcome: Mapping[str, Any] = field(default_factory=dict[str, Any])
