"""Trap A8: whatever a path leads to is looked at before it is read, and no more is read than the caller asks for."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from icetower.errors import BadRequest, ValidationFailed
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.metadata import OBJECT_BYTES, OBJECTS_FREE
from icetower.storage.file_io import FileIOStorage
from icetower.storage.local_files import LocalDoor
from icetower.storage.port import MANIFEST, Bound

MIB = 1024 * 1024
ARROW = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}


def directory(path: Path) -> None:
    path.mkdir()


def link_to_zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_a_file(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"somebody else's")
    path.symlink_to(other)


def link_to_nothing(path: Path) -> None:
    path.symlink_to("/nowhere")


def unix_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    ("verb", "properties"),
    [("read", {}), ("read_range", {}), ("size", {}), ("read", ARROW), ("read_range", ARROW)],
)
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (directory, "a directory"),
        (link_to_zero, "a symbolic link"),
        (link_to_a_file, "a symbolic link"),
        (link_to_nothing, "a symbolic link"),
        (os.mkfifo, "a FIFO"),
        (unix_socket, "a socket"),
    ],
)
def test_only_regular_files_are_read(
    tmp_path: Path, make: Callable[[Any], None], kind: str, verb: str, properties: dict[str, str]
) -> None:
    make(tmp_path / "f")
    storage = FileIOStorage(properties)
    arguments: dict[str, tuple[Any, ...]] = {"read": (MANIFEST,), "read_range": (0, 4), "size": ()}
    with pytest.raises(ValidationFailed, match=kind) as refused:
        asyncio.run(getattr(storage, verb)(f"{tmp_path}/f", *arguments[verb]))
    assert refused.value.rule == "file.kind"


class Exchanging(PyArrowFileIO):
    """Whoever may write to a file's folder has put a FIFO in its place just before it is opened."""

    def new_input(self, location: str) -> PyArrowFile:
        place = Path(self.properties["exchanged"])
        place.unlink()
        os.mkfifo(place)
        return super().new_input(location)


@pytest.mark.parametrize(("verb", "arguments"), [("read", (MANIFEST,)), ("read_range", (0, 4))])
def test_another_library_opens_the_file_that_was_looked_at(tmp_path: Path, verb: str, arguments: tuple[Any]) -> None:
    (tmp_path / "f").write_bytes(b"data")
    exchanging = {"py-io-impl": f"{__name__}.Exchanging", "exchanged": f"{tmp_path}/f"}
    storage = FileIOStorage(exchanging, timeout_s=10)
    assert asyncio.run(getattr(storage, verb)(f"{tmp_path}/f", *arguments)) == b"data"


class Leading(PyArrowFileIO):
    """Just before a file is written or deleted, its folder is exchanged for a link to another one."""

    def _exchange(self) -> None:
        folder = Path(self.properties["exchanged"])
        folder.rename(folder.with_name("was"))
        folder.symlink_to("theirs")

    def new_output(self, location: str) -> PyArrowFile:
        self._exchange()
        return super().new_output(location)

    def delete(self, location: Any) -> None:
        self._exchange()
        super().delete(location)


@pytest.mark.parametrize("verb", ["write", "delete"])
def test_another_library_stays_in_the_folder_that_was_looked_at(tmp_path: Path, verb: str) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
        if verb == "delete":
            (tmp_path / name / "f").write_bytes(b"data")
    storage = FileIOStorage({"py-io-impl": f"{__name__}.Leading", "exchanged": f"{tmp_path}/mine"})
    asyncio.run(getattr(storage, verb)(f"{tmp_path}/mine/f", *([b"data"] if verb == "write" else [])))
    assert ((tmp_path / "was" / "f").exists(), (tmp_path / "theirs" / "f").exists()) == (
        (True, False) if verb == "write" else (False, True)
    )


def test_a_link_to_a_folder_on_the_way_is_followed(tmp_path: Path) -> None:
    (tmp_path / "mounted").mkdir()
    (tmp_path / "warehouse").symlink_to(tmp_path / "mounted")
    storage = FileIOStorage()

    async def story() -> bytes:
        await storage.write(f"{tmp_path}/warehouse/f", b"data")
        return await storage.read(f"{tmp_path}/mounted/f", MANIFEST)

    assert asyncio.run(story()) == b"data"


def make_anothers(link: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a link belong to a user that is neither root nor the one that this runs as."""
    if os.geteuid() == 0:
        os.lchown(link, 4711, 4711)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)


@pytest.mark.parametrize("properties", [{}, ARROW], ids=["plain", "arrow"])
@pytest.mark.parametrize("verb", ["read", "read_range"])
@pytest.mark.parametrize("target", ["{}/theirs", "../theirs", "../hop", "./../theirs/."])
def test_another_users_link_to_a_folder_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, verb: str, properties: dict[str, str]
) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
    (tmp_path / "theirs" / "f").write_bytes(b"secret")
    (tmp_path / "hop").symlink_to("theirs")
    link = tmp_path / "mine" / "sub"
    link.symlink_to(target.format(tmp_path))
    storage = FileIOStorage(properties)
    read = getattr(storage, verb)
    arguments: tuple[Any, ...] = (MANIFEST,) if verb == "read" else (0, 6)
    assert asyncio.run(read(f"{tmp_path}/mine/sub/f", *arguments)) == b"secret"  # the machine's own links are followed
    make_anothers(link, monkeypatch)
    with pytest.raises(ValidationFailed, match="a link of another user's") as refused:
        asyncio.run(read(f"{tmp_path}/mine/sub/f", *arguments))
    assert refused.value.rule == "file.kind"


@pytest.mark.parametrize("properties", [{}, ARROW], ids=["plain", "arrow"])
@pytest.mark.parametrize("way", ["sub", "sub/deeper", "sub/new/deeper"])
def test_nothing_is_written_or_deleted_through_another_users_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, properties: dict[str, str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "theirs" / "deeper").mkdir(parents=True)
    for name in ("f", "deeper/f"):
        (tmp_path / "theirs" / name).write_bytes(b"precious")
    (tmp_path / "mine" / "sub").symlink_to(tmp_path / "theirs")
    make_anothers(tmp_path / "mine" / "sub", monkeypatch)
    storage = FileIOStorage(properties)

    async def story() -> None:
        with pytest.raises(ValidationFailed, match="a link of another user's"):
            await storage.write(f"{tmp_path}/mine/{way}/new", b"data")
        folder = f"{tmp_path}/mine/{way}"
        if way != "sub/new/deeper":
            with pytest.raises(ValidationFailed, match="a link of another user's"):
                await storage.delete(f"{folder}/f")
            assert await storage.delete_many([f"{folder}/f"]) == (f"{folder}/f",)
            assert await storage.delete_many([f"{folder}/f"], below=folder) == (f"{folder}/f",)

    asyncio.run(story())
    left = sorted(path.relative_to(tmp_path).as_posix() for path in (tmp_path / "theirs").rglob("*"))
    assert left == ["theirs/deeper", "theirs/deeper/f", "theirs/f"]
    assert list((tmp_path / "mine").iterdir()) == [tmp_path / "mine" / "sub"]


def test_a_link_under_the_name_that_a_file_has_while_it_is_written_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_bytes(b"precious")
    (tmp_path / f".f.{os.getpid()}-{threading.get_native_id()}.tmp").symlink_to("theirs")
    LocalDoor().write(f"{tmp_path}/f", b"data")
    assert (tmp_path / "theirs").read_bytes() == b"precious"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["f", "theirs"]


def test_a_link_that_is_there_for_the_opening_alone_gives_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mine/sub", "theirs"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("mine/sub", "theirs"):
        (tmp_path / name / "f").write_bytes(name.encode())
    opening = os.open

    def swapped(path: str, *arguments: Any, **given: Any) -> int:
        return opening(path.replace("mine/sub", "theirs"), *arguments, **given)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(ValidationFailed, match="replaced while it was opened") as refused:
        asyncio.run(FileIOStorage().read(f"{tmp_path}/mine/sub/f", MANIFEST))
    assert refused.value.rule == "file.kind"


@pytest.mark.parametrize("properties", [{}, ARROW], ids=["plain", "arrow"])
def test_what_is_longer_than_its_bound_is_not_read(tmp_path: Path, properties: dict[str, str]) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(3 << 30)
    (tmp_path / "fits").write_bytes(b"12345678")
    storage = FileIOStorage(properties)
    tracemalloc.start()
    for path, bound in (("sparse", MANIFEST.at_most(2 * MIB)), ("fits", Bound("manifest", 7))):
        with pytest.raises(ValidationFailed, match=f"the manifest {tmp_path}/{path} has") as refused:
            asyncio.run(storage.read(f"{tmp_path}/{path}", bound))
        assert refused.value.rule == "limit.file"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * MIB
    assert asyncio.run(storage.read(f"{tmp_path}/fits", Bound("manifest", 8))) == b"12345678"


def test_a_file_that_is_no_longer_than_it_says(tmp_path: Path) -> None:
    with pytest.raises(ValidationFailed) as refused:
        asyncio.run(FileIOStorage().read("/proc/self/status", MANIFEST))
    assert refused.value.rule == "limit.file"
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 40)
    assert asyncio.run(FileIOStorage().read_range(f"{tmp_path}/sparse", 1 << 39, 4)) == bytes(4)
    assert asyncio.run(FileIOStorage().read_range(f"{tmp_path}/sparse", 1 << 40, 4)) == b""


def test_reads_that_hang_leave_the_servers_own_writes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from threading import Event

    release = Event()
    monkeypatch.setattr(LocalDoor, "read", lambda *_: release.wait())

    async def story() -> None:
        storage = FileIOStorage(threads=2)
        hanging = [asyncio.ensure_future(storage.read(f"{tmp_path}/{n}", MANIFEST)) for n in range(8)]
        await storage.write(f"{tmp_path}/own", b"metadata")
        assert not any(read.done() for read in hanging)
        release.set()
        await asyncio.gather(*hanging)

    asyncio.run(story())
    assert (tmp_path / "own").read_bytes() == b"metadata"


def test_metadata_that_unpacks_to_more_than_is_read_is_not_unpacked() -> None:
    bomb = gzip.compress(b" " * (64 * MIB))
    tracemalloc.start()
    for data in (bomb, gzip.compress(b"{") + bomb, bomb[:-9]):
        with pytest.raises(BadRequest) as refused:
            table_metadata.parse(data, most_bytes=MIB)
        assert refused.value.rule in ("limit.file", "metadata")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * MIB


def test_json_that_would_take_much_memory_is_not_parsed() -> None:
    many = OBJECTS_FREE + 2 * MIB // OBJECT_BYTES
    for junk in (b"[]", b"{}"):
        with pytest.raises(BadRequest) as refused:
            table_metadata.parse(b"[" + b",".join([junk] * many) + b"]")
        assert refused.value.rule == "limit.file"
    with pytest.raises(BadRequest, match="not JSON"):
        table_metadata.parse(b"[" * 100 + b"]" * 99)
    nested: Any = {}
    for _ in range(200):
        nested = {"a": nested}
    with pytest.raises(BadRequest):
        table_metadata.parse(orjson.dumps(nested))
    with pytest.raises(BadRequest, match="cannot be written again"):
        table_metadata.parse(b'{"a":' * 400 + b"1" + b"}" * 400)


def test_several_gzip_members_are_one_file() -> None:
    text = orjson.dumps({"format-version": 9})
    with pytest.raises(BadRequest, match="version"):
        table_metadata.parse(gzip.compress(text[:5]) + gzip.compress(text[5:]))


@pytest.mark.parametrize("properties", [{}, ARROW], ids=["plain", "arrow"])
def test_what_lies_behind_a_link_is_not_deleted_with_the_table_that_names_it(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    """A purge by an agent that may put links into its own folder went through them to others' files."""
    table, other = tmp_path / "table", tmp_path / "other"
    for name in ("table/data/day=1/own", "table/data/aside", "other/precious"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (table / "data/link").symlink_to(other)
    (table / "data/file").symlink_to(other / "precious")
    named = [f"file://{table}/data/{name}" for name in ("day=1/own", "link/precious", "file", "link/../aside", "gone")]

    storage = FileIOStorage(properties)
    failed = asyncio.run(storage.delete_many([*named, f"{other}/precious"], below=f"file://{table}"))
    assert set(failed) == {named[1], named[3], f"{other}/precious"}
    assert (other / "precious").exists()
    assert (table / "data/aside").exists()
    assert not (table / "data/day=1/own").exists()
    assert not (table / "data/file").is_symlink()
    assert asyncio.run(storage.delete_many([f"{tmp_path}/nowhere/f"], below=f"{tmp_path}/nowhere")) == ()


def test_a_file_without_a_link_on_its_way_is_not_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"data")
    looked: list[str] = []
    lstat = os.lstat
    monkeypatch.setattr(os, "lstat", lambda path, **given: looked.append(str(path)) or lstat(path, **given))
    assert asyncio.run(FileIOStorage().read(f"{tmp_path}/f", MANIFEST)) == b"data"
    assert looked == []
