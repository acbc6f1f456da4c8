"""Starts real towers that kill themselves: `icetower serve` in a forked child, with a countdown to SIGKILL.

A test-only process: it imports everything once, then reads one JSON object a line from standard input:
``{"arguments": ["serve", …], "kill": {"at": 7, "when": "after"}}``. It forks a child for each, prints ``started PID``,
lets the child print what the program prints, and at its end prints ``ended STATUS STEPS``.

A step is a write, a deletion, a swap or another change of the catalog, counted in the order in which they begin. The
child is killed right before a step, right after it, or, for a write, with half of the bytes in place. Nothing of this
is in the program itself.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent

STEP_BYTES = 8
CHANGES = ("create_namespace", "update_namespace", "drop_namespace", "create_table", "drop_table", "rename_table")
"""Of the catalog, but for swaps."""


class Countdown:
    """Counts the steps of a tower, and kills it at one of them.

    Args:
        steps: shared memory with the parent, where the count stands when the child is dead.
        kill: at which step, counted from 1, and ``before``, ``after`` or ``torn``; None: never.
    """

    def __init__(self, steps: mmap.mmap, kill: dict[str, Any] | None) -> None:
        self._steps = steps
        self._kill = kill
        self._count = 0

    def begins(self) -> int:
        """A step begins; its number."""
        self._count += 1
        self._steps[:STEP_BYTES] = self._count.to_bytes(STEP_BYTES, "big")
        self.meets(self._count, "before")
        return self._count

    def meets(self, step: int, when: str) -> None:
        """Die, if this is the moment."""
        if self._kill is not None and self._kill["at"] == step and self._kill["when"] == when:
            os.kill(os.getpid(), signal.SIGKILL)

    def tears(self, step: int) -> bool:
        """Whether this write is to be cut in half."""
        return self._kill is not None and self._kill["at"] == step and self._kill["when"] == "torn"


def tear(path: str, data: bytes) -> None:
    """What a store leaves that is not atomic: half of the bytes, under the file's own name."""
    place = Path("/" + path.removeprefix("file:").lstrip("/"))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data[: len(data) // 2])


def arm(countdown: Countdown) -> None:
    """Wrap what a tower does to the world."""
    from icetower.storage.file_io import FileIOStorage
    from icetower.upstream.sql import SqlUpstream

    write, delete, swap = FileIOStorage.write, FileIOStorage.delete, SqlUpstream.swap

    async def counted_write(self: FileIOStorage, path: str, data: bytes) -> None:
        step = countdown.begins()
        if countdown.tears(step):
            tear(path, data)
            countdown.meets(step, "torn")
        await write(self, path, data)
        countdown.meets(step, "after")

    async def counted_delete(self: FileIOStorage, path: str) -> None:
        step = countdown.begins()
        await delete(self, path)
        countdown.meets(step, "after")

    async def counted_delete_many(
        self: FileIOStorage, paths: Iterable[str], *, below: str | None = None
    ) -> tuple[str, ...]:
        del below
        for path in paths:
            await counted_delete(self, path)
        return ()

    async def counted_swap(self: SqlUpstream, swaps: Sequence[Any]) -> None:
        step = countdown.begins()
        await swap(self, swaps)
        countdown.meets(step, "after")

    def counted(change: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def work(*arguments: Any, **more: Any) -> Any:
            step = countdown.begins()
            done = await change(*arguments, **more)
            countdown.meets(step, "after")
            return done

        return work

    for name in CHANGES:
        setattr(SqlUpstream, name, counted(getattr(SqlUpstream, name)))
    FileIOStorage.write = counted_write  # type: ignore[method-assign]
    FileIOStorage.delete = counted_delete  # type: ignore[method-assign]
    FileIOStorage.delete_many = counted_delete_many  # type: ignore[method-assign]
    SqlUpstream.swap = counted_swap  # type: ignore[method-assign]


def serve(order: dict[str, Any], steps: mmap.mmap) -> None:
    """The child: it becomes the program."""
    from icetower.cli.app import main

    arm(Countdown(steps, order.get("kill")))
    sys.argv = ["icetower", *order["arguments"]]
    status = 0
    try:
        main()
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        sys.stdout.flush()
        os._exit(status)


def warm() -> None:
    """Import once what every child needs. Threads would not survive the fork: none is started."""
    for module in ("cli.app", "cli.serve", "gateway.app", "gateway.settings"):
        importlib.import_module(f"icetower.{module}")


def main() -> None:
    """Serve orders until standard input ends."""
    warm()
    steps = mmap.mmap(-1, STEP_BYTES)
    print("warm", flush=True)
    for line in sys.stdin:
        steps[:STEP_BYTES] = bytes(STEP_BYTES)
        pid = os.fork()
        if pid == 0:
            serve(json.loads(line), steps)
        print(f"started {pid}", flush=True)
        _, status = os.waitpid(pid, 0)
        count = int.from_bytes(steps[:STEP_BYTES], "big")
        print(f"ended {os.waitstatus_to_exitcode(status)} {count}", flush=True)


if __name__ == "__main__":
    main()
