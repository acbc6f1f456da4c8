"""A storage in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from icetower.errors import IcetowerError, NotFound
from icetower.storage.port import ANY_FILE, Bound

Failing = Callable[[str], IcetowerError | None]


def _works(_: str) -> None:
    return None


class MemoryStorage:
    """Files by path. A path is written once, as towers and clients do.

    Attributes:
        files: what is there.
        later: files that are made when they are read first.
        fail_read, fail_write: the error that an access to a path raises, if any.
        reads: how often each path was read, as a whole or in part.
        ranges: the reads of parts, in their order: path, offset, length in bytes.
    """

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        self.files: dict[str, bytes] = dict(files or {})
        self.later: dict[str, Callable[[], bytes]] = {}
        self.fail_read: Failing = _works
        self.fail_write: Failing = _works
        self.reads: Counter[str] = Counter()
        self.ranges: list[tuple[str, int, int]] = []

    def find(self, path: str) -> bytes | None:
        """The bytes at a path; None where there are none."""
        if path in self.later:
            self.files[path] = self.later.pop(path)()
        return self.files.get(path)

    def _take(self, path: str) -> bytes:
        self.reads[path] += 1
        error = self.fail_read(path)
        if error is not None:
            raise error
        data = self.find(path)
        if data is None:
            raise NotFound(f"{path} is not there", rule="file.exists")
        return data

    async def read(self, path: str, bound: Bound = ANY_FILE) -> bytes:
        return self._take(path)

    async def read_many(self, paths: Sequence[str]) -> list[bytes | None]:
        self.reads.update(path for path in paths if self.find(path) is not None)
        return [self.find(path) for path in paths]

    async def read_range(self, path: str, offset: int, length_bytes: int) -> bytes:
        self.ranges.append((path, offset, length_bytes))
        return self._take(path)[offset : offset + length_bytes]

    async def write(self, path: str, data: bytes) -> None:
        error = self.fail_write(path)
        if error is not None:
            raise error
        assert path not in self.files, f"{path} was written twice"
        self.files[path] = data

    async def delete(self, path: str) -> None:
        self.files.pop(path, None)

    async def delete_many(self, paths: Iterable[str], *, below: str | None = None) -> tuple[str, ...]:
        for path in paths:
            self.files.pop(path, None)
        return ()

    async def exists(self, path: str) -> bool:
        return path in self.files or path in self.later

    async def size(self, path: str) -> int:
        return len(self._take(path))
