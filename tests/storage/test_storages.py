"""The storages that are offered, each through the whole behaviour suite, and what is particular to one."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest
from pyiceberg.io import load_file_io

import icetower.storage.file_io as storage_module
from icetower.errors import AlreadyExists, BadRequest, NotFound, UpstreamFailed
from icetower.storage.file_io import FileIOStorage
from tests.s3_server import s3_server
from tests.storage.behaviour_storage import StorageBehaviour

SECRET = "wJalrXUtnFEMI-a-secret"


@pytest.fixture(scope="session")
def s3_properties() -> Iterator[dict[str, str]]:
    with s3_server(SECRET) as properties:
        yield properties


@pytest.fixture
def bucket(s3_properties: Mapping[str, str], request: pytest.FixtureRequest) -> Iterator[str]:
    client = boto3.client(
        "s3",
        endpoint_url=s3_properties["s3.endpoint"],
        aws_access_key_id="test",
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    name = f"bucket-{abs(hash(request.node.nodeid))}"
    client.create_bucket(Bucket=name)
    yield name
    client.close()


class _Closing:
    @pytest.fixture
    def storage(self, properties: dict[str, str]) -> Iterator[FileIOStorage]:
        storage = FileIOStorage(properties)
        yield storage
        asyncio.run(storage.close())

    async def test_many_are_read_in_the_order_of_their_names(self, storage: FileIOStorage, root: str) -> None:
        for number in range(9):
            await storage.write(f"{root}/{number}", b"%d" % number)
        names = [*range(9), "missing", *range(8, -1, -1)]
        expected = [None if isinstance(name, str) else b"%d" % name for name in names]
        assert await storage.read_many([f"{root}/{name}" for name in names]) == expected
        assert await storage.read_many([]) == []
        with pytest.raises(BadRequest, match="nowhere"):
            await storage.read_many([f"{root}/1", "nowhere:/f", f"{root}/2"])


@pytest.fixture
def properties() -> dict[str, str]:
    return {}


class TestLocal(_Closing, StorageBehaviour):
    @pytest.fixture(params=["file://{}", "file:{}", "file://localhost{}", "{}"])
    def root(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        return request.param.format(tmp_path)


class TestLocalThroughAFileIO(_Closing, StorageBehaviour):
    """Where the owner asks for a FileIO, local files go through it, too."""

    @pytest.fixture
    def properties(self) -> dict[str, str]:
        return {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}"

    def test_it_is_the_one_that_was_asked_for(self, storage: FileIOStorage, root: str) -> None:
        assert type(storage._door("file", root)._io).__name__ == "FsspecFileIO"


class TestS3(_Closing, StorageBehaviour):
    """Through s3fs, with conditional writes."""

    @pytest.fixture
    def properties(self, s3_properties: dict[str, str]) -> dict[str, str]:
        return s3_properties

    @pytest.fixture
    def root(self, bucket: str) -> str:
        return f"s3://{bucket}/wh"

    async def test_of_concurrent_writers_one_creates(self, storage: FileIOStorage, root: str) -> None:
        results = await asyncio.gather(
            *(storage.write(f"{root}/f", f"writer {n}".encode()) for n in range(8)), return_exceptions=True
        )
        assert sorted(type(result).__name__ for result in results) == ["AlreadyExists"] * 7 + ["NoneType"]
        assert await storage.read(f"{root}/f") == f"writer {results.index(None)}".encode()

    async def test_pyiceberg_reads_what_we_write(
        self, storage: FileIOStorage, root: str, properties: dict[str, str]
    ) -> None:
        await storage.write(f"{root}/f", b"data")
        assert load_file_io(properties, root).new_input(f"{root}/f").open().read() == b"data"

    async def test_every_thread_gets_a_connection(
        self, storage: FileIOStorage, root: str, properties: dict[str, str]
    ) -> None:
        await storage.write(f"{root}/f", b"data")
        file_system = getattr(storage._door("s3", root), "_file_system", None)
        if "py-io-impl" not in properties:
            assert file_system._s3.meta.config.max_pool_connections == storage_module.THREADS

    async def test_a_missing_bucket_is_no_missing_file_to_a_writer(self, storage: FileIOStorage) -> None:
        with pytest.raises(UpstreamFailed, match="s3://no-such-bucket/f"):
            await storage.write("s3://no-such-bucket/f", b"data")
        with pytest.raises(NotFound):
            await storage.read("s3://no-such-bucket/f")


class TestS3ThroughArrow(TestS3):
    """As for a FileIO of the owner's choice; it looks before it creates, so of concurrent writers several may."""

    @pytest.fixture
    def properties(self, s3_properties: dict[str, str]) -> dict[str, str]:
        return {**s3_properties, "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}

    async def test_of_concurrent_writers_one_creates(self, storage: FileIOStorage, root: str) -> None:
        await storage.write(f"{root}/f", b"first")
        with pytest.raises(AlreadyExists):
            await storage.write(f"{root}/f", b"second")


class TestS3WithoutConditionalWrites(TestS3):
    """A store that answers NotImplemented to If-None-Match."""

    @pytest.fixture(autouse=True)
    def _older_store(self, storage: FileIOStorage, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
        door: Any = storage._door("s3", root)

        def refuse(*_: Any, **__: Any) -> None:
            error = OSError(errno.EIO, "translated")
            error.response = {"Error": {"Code": "NotImplemented"}}  # type: ignore[attr-defined]
            raise error

        monkeypatch.setattr(door._file_system, "pipe_file", refuse)

    async def test_of_concurrent_writers_one_creates(self, storage: FileIOStorage, root: str) -> None:
        await storage.write(f"{root}/f", b"first")
        with pytest.raises(AlreadyExists):
            await storage.write(f"{root}/f", b"second")


class TestFailures:
    def test_an_endpoint_that_is_not_there_fails_without_its_keys(self) -> None:
        properties = {
            "s3.endpoint": "http://127.0.0.1:9",
            "s3.access-key-id": "AKIA-known",
            "s3.secret-access-key": SECRET,
            "s3.region": "us-east-1",
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        }

        async def work() -> str:
            storage = FileIOStorage(properties, timeout_s=0.2)
            with pytest.raises(UpstreamFailed) as failed:
                await storage.read("s3://user:hush@bucket/f")
            await storage.close()
            return failed.value.message

        message = asyncio.run(work())
        assert "s3://bucket/f" in message
        assert not any(secret in message for secret in (SECRET, "AKIA-known", "hush"))

    @pytest.fixture
    def hanging(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileIOStorage]:
        """Nothing is ever read in it, and nobody waits for long."""
        release = threading.Event()
        monkeypatch.setattr(storage_module.LocalDoor, "read", lambda *_: release.wait())
        storage = FileIOStorage(threads=2, timeout_s=0.05)
        yield storage
        asyncio.run(storage.close())
        release.set()

    def test_a_storage_that_hangs_is_given_up(self, tmp_path: Path, hanging: FileIOStorage) -> None:
        with pytest.raises(UpstreamFailed, match=f"{tmp_path}/f"):
            asyncio.run(hanging.read(f"{tmp_path}/f"))

    def test_one_of_many_that_hangs_is_given_up_too(self, tmp_path: Path, hanging: FileIOStorage) -> None:
        with pytest.raises(UpstreamFailed, match=f"3 files in time .limit 0.1 s., among them {tmp_path}/f"):
            asyncio.run(hanging.read_many([f"{tmp_path}/f{number}" for number in range(3)]))

    def test_of_many_the_one_that_fails_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(UpstreamFailed, match=r"file/below \(ENOTDIR\)"):
            asyncio.run(FileIOStorage().read_many([f"{tmp_path}/file", f"{tmp_path}/file/below"]))

    def test_a_failure_names_the_path_and_the_kind(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(UpstreamFailed, match=r"file/below \(ENOTDIR\)"):
            asyncio.run(FileIOStorage().write(f"{tmp_path}/file/below", b""))


class TestLocalWrites:
    def test_a_crash_halfway_leaves_no_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(UpstreamFailed, match="ENOSPC"):
                asyncio.run(FileIOStorage().write(f"{tmp_path}/f", b"data"))
        assert os.listdir(tmp_path) == []
        asyncio.run(FileIOStorage().write(f"{tmp_path}/f", b"data"))
        assert os.listdir(tmp_path) == ["f"]

    def test_the_name_appears_only_once_the_bytes_are_flushed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: list[str] = []
        for name in ("fsync", "link"):
            real: Callable[..., Any] = getattr(os, name)
            monkeypatch.setattr(os, name, lambda *a, real=real, name=name, **k: (steps.append(name), real(*a, **k))[1])
        asyncio.run(FileIOStorage().write(f"{tmp_path}/f", b"data"))
        assert steps == ["fsync", "link", "fsync"]

    def test_without_hard_links_a_file_is_still_never_replaced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
        asyncio.run(FileIOStorage().write(f"{tmp_path}/f", b"first"))
        with pytest.raises(AlreadyExists):
            asyncio.run(FileIOStorage().write(f"{tmp_path}/f", b"other"))
        assert (tmp_path / "f").read_bytes() == b"first"
        assert os.listdir(tmp_path) == ["f"]

    def test_others_may_read_as_the_umask_says(self, tmp_path: Path) -> None:
        before = os.umask(0o027)
        try:
            asyncio.run(FileIOStorage().write(f"{tmp_path}/f", b"data"))
        finally:
            os.umask(before)
        assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640
