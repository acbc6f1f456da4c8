"""Calls in processes of their own, one a call, of bounded time and memory.

What a caller's files unpack to is known when it has happened: half a megabyte of Parquet may become gigabytes, and a
thread that reads from what never answers is never free again. A process can be ended. It is forked from a server that
has imported what all of them need; that server starts with the first call, so that a tower without such calls has none.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from icetower.errors import BadRequest, IcetowerError

PRELOADED = (
    "icetower.cli",
    "icetower.mcp.taking_back",
    "icetower.mcp.reading",
    "icetower.mcp.writing",
    "icetower.mcp.confined",
    "pyiceberg.expressions.parser",
    "pyiceberg.io.pyarrow",
    "pyiceberg.table.upsert_util",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pyarrow.compute",
)
MEMORY_BYTES = 2 * 1024**3
"""Of address space, beyond what a process begins with."""
ENDS_AFTER_S = 90
"""A process that nobody has ended (its tower was killed) ends by itself."""
_JOIN_S = 10.0

_starting = threading.Lock()
"""Processes are started, and their ends are taken note of, by one thread at a time: `multiprocessing` has it so."""


class Given(Exception):
    """The call was given up: its process was ended, or never started."""


class Failed(Exception):
    """The call has raised what is not for the caller: `str` of it is for the log."""


class Call:
    """One call. `function` and `arguments` are pickled: a module's function, and plain values."""

    def __init__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], *, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        self._work = (function, arguments, memory_bytes)
        self._lock = threading.Lock()
        self._process: ForkServerProcess | None = None
        self._given_up = False
        self.began = False

    def run(self) -> Any:
        """What the function returns; blocks until its process has ended.

        Raises:
            IcetowerError: as the function does.
            BadRequest: it took too much memory.
            Given: it was given up.
            Failed: it raised anything else.
        """
        if self._given_up:
            raise Given
        context = multiprocessing.get_context("forkserver")
        receiving, sending = context.Pipe(duplex=False)
        with receiving:
            with sending, _starting:
                context.set_forkserver_preload([*PRELOADED])
                process = context.Process(target=_serve, args=(sending, *self._work), name="mcp-call", daemon=True)
                self.began = True
                process.start()
            with self._lock:
                self._process = process
                if self._given_up:
                    process.kill()
            try:
                said, answer = receiving.recv()
            except (EOFError, OSError):
                said, answer = "ended", None
            finally:
                self._end(process)
        if self._given_up:
            raise Given
        return _answer(said, answer)

    def give_up(self) -> None:
        """End its process, now or as soon as it has started."""
        with self._lock:
            self._given_up = True
            if self._process is not None:
                self._process.kill()

    def _end(self, process: ForkServerProcess) -> None:
        with self._lock:
            self._process = None
        with _starting:
            process.kill()
            process.join(_JOIN_S)
            if process.exitcode is not None:
                process.close()


def _answer(said: str, answer: Any) -> Any:
    if said == "returned":
        return answer
    if said == "refused":
        raise answer
    if said == "failed":
        raise Failed(answer)
    raise BadRequest(
        f"the call took more memory than it may ({MEMORY_BYTES >> 30} GiB), or a file that it read ended its process: "
        "narrow it by `where`, name fewer `columns`, or send fewer rows",
        rule="mcp.memory",
    )


def _serve(sending: Connection, function: Callable[..., Any], arguments: tuple[Any, ...], memory_bytes: int) -> None:
    """In the process: the function, and its end as a message."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the tower, which ends this
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(ENDS_AFTER_S)
    with suppress(OSError):
        os.dup2(2, 1)  # what a library prints is no message of a server that speaks over standard output
    _bound_memory(memory_bytes)
    try:
        said: tuple[str, Any] = ("returned", function(*arguments))
    except IcetowerError as error:
        said = ("refused", error)
    except MemoryError:
        said = ("memory", None)
    except BaseException as error:  # noqa: BLE001 - it is for the log
        said = ("failed", _told(error))
    with suppress(MemoryError, OSError):
        sending.send(said)
    os._exit(0)  # threads that still read do not keep it


def _told(error: BaseException) -> str:
    """What went wrong and where, the innermost place first: a line of the log is short."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    places = " < ".join(f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in frames)
    return f"{type(error).__name__}: {str(error)[:300]} ({places})"


def _bound_memory(memory_bytes: int) -> None:
    """Where the system can: not on macOS."""
    if not sys.platform.startswith("linux"):
        return
    # Arrow's own allocators reserve address space ahead; the system's takes what is used, and gives it back.
    pa = import_module("pyarrow")
    pa.set_memory_pool(pa.system_memory_pool())
    pa.set_cpu_count(2)
    pa.set_io_thread_count(2)
    with open("/proc/self/statm", encoding="ascii") as file:
        has_bytes = int(file.read().split()[0]) * resource.getpagesize()
    most = has_bytes + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
