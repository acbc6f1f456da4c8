"""What every storage must do: tests of an adapter subclass `StorageBehaviour` and add fixtures `storage` and `root`."""

from __future__ import annotations

import asyncio

import pytest

from icetower.errors import AlreadyExists, BadRequest, NotFound
from icetower.storage.port import Storage


@pytest.mark.anyio
class StorageBehaviour:
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.mark.parametrize("name", ["f", "a/b/c.avro", "day=2017-01-02/hour=00%3A00/ü ÿ+.bin"])
    @pytest.mark.parametrize("data", [b"", b"\x00\xffbytes", b"x" * 6_000_000], ids=["empty", "small", "large"])
    async def test_what_is_written_is_read(self, storage: Storage, root: str, name: str, data: bytes) -> None:
        path = f"{root}/{name}"
        assert not await storage.exists(path)
        await storage.write(path, data)
        assert await storage.read(path) == data
        assert await storage.size(path) == len(data)
        assert await storage.exists(path)

    @pytest.mark.parametrize(
        ("offset", "length_bytes", "expected"),
        [
            (0, 10, b"0123456789"),
            (4, 3, b"456"),
            (7, 3, b"789"),
            (7, 4, b"789"),
            (9, 1, b"9"),
            (10, 5, b""),
            (99, 5, b""),
        ],
    )
    async def test_a_range_ends_where_the_file_does(
        self, storage: Storage, root: str, offset: int, length_bytes: int, expected: bytes
    ) -> None:
        """So one request reads a file's end and tells whether the file is as long as somebody says."""
        await storage.write(f"{root}/f", b"0123456789")
        assert await storage.read_range(f"{root}/f", offset, length_bytes) == expected

    async def test_a_file_is_never_replaced(self, storage: Storage, root: str) -> None:
        path = f"{root}/f"
        await storage.write(path, b"first")
        with pytest.raises(AlreadyExists, match="f"):
            await storage.write(path, b"other")
        assert await storage.read(path) == b"first"

    async def test_writing_the_same_bytes_again_is_done_already(self, storage: Storage, root: str) -> None:
        await storage.write(f"{root}/f", b"first")
        await storage.write(f"{root}/f", b"first")
        assert await storage.read(f"{root}/f") == b"first"

    async def test_a_missing_file_is_named(self, storage: Storage, root: str) -> None:
        path = f"{root}/not/there"
        for question in (storage.read(path), storage.read_range(path, 0, 8), storage.size(path)):
            with pytest.raises(NotFound) as missing:
                await question
            assert path in missing.value.message
        assert not await storage.exists(path)

    async def test_deleting_is_repeatable(self, storage: Storage, root: str) -> None:
        path = f"{root}/f"
        await storage.write(path, b"data")
        await storage.delete(path)
        await storage.delete(path)
        assert not await storage.exists(path)
        with pytest.raises(NotFound):
            await storage.read(path)
        await storage.write(path, b"again")
        assert await storage.read(path) == b"again"

    async def test_many_are_deleted_and_the_failures_named(self, storage: Storage, root: str) -> None:
        paths = [f"{root}/many/{n}" for n in range(40)]
        await asyncio.gather(*(storage.write(path, b"data") for path in paths))
        bad = ["unknown://x/1", "relative"]
        assert await storage.delete_many([*paths[:20], *bad, *paths[20:], f"{root}/never/was"]) == tuple(bad)
        assert not any([await storage.exists(path) for path in paths])

    @pytest.mark.parametrize(
        "path", ["", "relative/f", "unknown://bucket/f", "file:relative", "file://host/f", "/a\x00b"]
    )
    async def test_a_path_that_is_none_is_refused(self, storage: Storage, path: str) -> None:
        for question in (storage.read(path), storage.write(path, b""), storage.exists(path), storage.delete(path)):
            with pytest.raises(BadRequest):
                await question
