"""A FileIO for PyIceberg on local files that fails now and then: before a call, after it, or half-way through a write.

A tower names it in its `[storage]` settings. Property ``failing.rate`` is the share of calls that fail,
``failing.seed`` where chance begins; each failure is noted in the file ``failing.log``.
"""

from __future__ import annotations

import os
import random
from io import BytesIO
from typing import cast

from pyiceberg.io import FileIO, InputFile, OutputFile, OutputStream

from icetower.demo.slow_io import SlowFileIO

IMPLEMENTATION = "verify.torture.failing_io.FailingFileIO"


def properties(rate: float, seed: int, log: str) -> dict[str, str]:
    """The properties that choose this FileIO."""
    return {
        "py-io-impl": IMPLEMENTATION,
        "failing.rate": f"{rate:g}",
        "failing.seed": str(seed),
        "failing.log": log,
    }


class _Sink(BytesIO):
    """Bytes on their way to a file; at its end some or all are written, and the writer gets an error."""

    def __init__(self, inner: OutputFile, fails: FailingFileIO, *, torn: bool) -> None:
        super().__init__()
        self._inner = inner
        self._fails = fails
        self._torn = torn

    def close(self) -> None:
        if self.closed:
            return
        data = self.getvalue()
        super().close()
        with self._inner.create() as stream:
            stream.write(data[: len(data) // 2] if self._torn else data)
        self._fails.fail("a write that was torn" if self._torn else "a write whose answer was lost")

    def __exit__(self, *_: object) -> None:
        self.close()


class _Output(OutputFile):
    def __init__(self, inner: OutputFile, fails: FailingFileIO, *, torn: bool) -> None:
        super().__init__(inner.location)
        self._inner = inner
        self._fails = fails
        self._torn = torn

    def __len__(self) -> int:
        return len(self._inner)

    def exists(self) -> bool:
        return self._inner.exists()

    def to_input_file(self) -> InputFile:
        return self._inner.to_input_file()

    def create(self, overwrite: bool = False) -> OutputStream:
        del overwrite
        return cast(OutputStream, _Sink(self._inner, self._fails, torn=self._torn))


class FailingFileIO(FileIO):
    """Local files, some calls to which fail."""

    def __init__(self, properties: dict[str, str] | None = None) -> None:
        super().__init__(properties or {})
        self._inner = SlowFileIO(self.properties)
        self._rate = float(self.properties["failing.rate"])
        self._random = random.Random(f"{self.properties['failing.seed']}-{os.getpid()}")
        self._log = self.properties["failing.log"]

    def new_input(self, location: str) -> InputFile:
        if self._random.random() < self._rate:
            self.fail("a read")
        return self._inner.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        inner, dice = self._inner.new_output(location), self._random.random()
        if dice < self._rate / 2:
            self.fail("a write")
        if dice < self._rate:
            return _Output(inner, self, torn=dice > self._rate * 3 / 4)
        return inner

    def delete(self, location: str | InputFile | OutputFile) -> None:
        if self._random.random() < self._rate:
            self.fail("a deletion")
        self._inner.delete(location)

    def fail(self, what: str) -> None:
        """Note it, and raise `OSError`."""
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, f"{what}\n".encode())
        finally:
            os.close(descriptor)
        raise OSError(f"the storage failed: {what}")
