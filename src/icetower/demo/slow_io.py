"""A FileIO for PyIceberg on local files, each call of which takes as long as it would on S3.

The demo and the benchmarks name it by ``py-io-impl = icetower.demo.slow_io.SlowFileIO``: PyIceberg's writers in the
properties of their catalog, the tower in its `[storage]` settings. Property ``latency.profile`` chooses the profile,
``latency.seed`` the seed. Where ``latency.tally`` names a file, one byte is appended to it for each metadata file that
is written, whether or not that file is deleted later. `SlowFileIO.java` is the same for Spark.
"""

from __future__ import annotations

import os
import time
from io import BytesIO
from pathlib import Path
from typing import Any, cast

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from icetower.demo.latency import PROFILES, Latency

_READ_BYTES = 64 * 1024
"""The files of a commit are shorter. What takes 128 KiB or more is mapped and unmapped each time."""

IMPLEMENTATION = "icetower.demo.slow_io.SlowFileIO"


def properties(profile: str, seed: int, tally: Path | None = None) -> dict[str, str]:
    """The properties that choose this FileIO: none without latency, so that everyone uses the usual FileIO."""
    if profile == "none":
        return {}
    chosen = {"py-io-impl": IMPLEMENTATION, "latency.profile": profile, "latency.seed": str(seed)}
    return chosen if tally is None else chosen | {"latency.tally": str(tally)}


def metadata_written(tally: Path) -> int:
    """How many metadata files were written by all that share a tally."""
    return tally.stat().st_size


class _Input(InputFile):
    def __init__(self, location: str, latency: Latency) -> None:
        super().__init__(location)
        self._latency = latency

    def __len__(self) -> int:
        _wait(self._latency.get_s())
        return os.stat(_place(self.location)).st_size

    def exists(self) -> bool:
        _wait(self._latency.get_s())
        return os.path.exists(_place(self.location))

    def open(self, seekable: bool = True) -> InputStream:
        # One GET for the whole file, however it is read: the files of a commit are small.
        _wait(self._latency.get_s())
        return cast(InputStream, BytesIO(_read(_place(self.location))))


class _Sink(BytesIO):
    """Bytes on their way to a PUT, which happens when the stream is closed."""

    def __init__(self, location: str, latency: Latency, flags: int, tally: str | None) -> None:
        super().__init__()
        self._location = location
        self._latency = latency
        self._flags = flags
        self._tally = tally

    def close(self) -> None:
        if self.closed:
            return
        data = self.getvalue()
        super().close()
        _wait(self._latency.put_s(len(data)))
        _write(self._location, data, self._flags)
        if self._tally is not None and not self._location.endswith(".parquet"):
            with open(self._tally, "ab", buffering=0) as tally:
                tally.write(b".")

    def __exit__(self, *_: Any) -> None:
        self.close()


class _Output(OutputFile):
    def __init__(self, location: str, latency: Latency, tally: str | None) -> None:
        super().__init__(location)
        self._latency = latency
        self._tally = tally

    def __len__(self) -> int:
        return len(self.to_input_file())

    def exists(self) -> bool:
        return self.to_input_file().exists()

    def to_input_file(self) -> InputFile:
        return _Input(self.location, self._latency)

    def create(self, overwrite: bool = False) -> OutputStream:
        flags = os.O_TRUNC if overwrite else os.O_EXCL
        return cast(OutputStream, _Sink(_place(self.location), self._latency, flags, self._tally))


class SlowFileIO(FileIO):
    """Local files, each call of which waits first."""

    def __init__(self, properties: dict[str, str] | None = None) -> None:
        super().__init__(properties or {})
        profile = PROFILES[self.properties.get("latency.profile", "none")]
        self._latency = Latency(profile, int(self.properties.get("latency.seed", "0")))
        self._tally = self.properties.get("latency.tally")

    def new_input(self, location: str) -> InputFile:
        return _Input(location, self._latency)

    def new_output(self, location: str) -> OutputFile:
        return _Output(location, self._latency, self._tally)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        _wait(self._latency.get_s())
        os.unlink(_place(location if isinstance(location, str) else location.location))


def _wait(seconds: float) -> None:
    time.sleep(seconds)  # noqa: TID251 - an event's wait costs much more


def _read(place: str) -> bytes:
    """The whole file, in as few calls as possible: between two calls the thread has to wait for the interpreter."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        parts = [os.read(descriptor, _READ_BYTES)]
        while len(parts[-1]) == _READ_BYTES:
            parts.append(os.read(descriptor, _READ_BYTES))
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _write(place: str, data: bytes, flags: int) -> None:
    try:
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        return _write(place, data, flags)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)


def _place(location: str) -> str:
    """The path of a local location: engines write `file:/x`, `file:///x` and `/x`."""
    return "/" + location.removeprefix("file:").lstrip("/")
