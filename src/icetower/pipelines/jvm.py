"""Ends the JVM that PySpark starts together with the command that started it, however that ends.

PySpark leaves the JVM running if its own process is interrupted while Spark starts, and does not reveal the JVM's
process before that. So the process is recorded when it is started, in a process group of its own. It is ended when
starting fails, at exit at the latest, and on Linux by the kernel if this process is killed.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

from pyspark import SparkContext, java_gateway

from icetower.pipelines import interrupts

ENDS_WITHIN_S = 10.0
"""How long a JVM may take to delete its temporary files; then it is killed."""
_PR_SET_PDEATHSIG = 1


@contextmanager
def starting() -> Generator[None]:
    """Around code that may start a JVM."""
    started: list[subprocess.Popen[bytes]] = []
    gateway: Any = java_gateway
    launch = gateway.Popen

    def record(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        options["preexec_fn"] = _bound_to_us(options.get("preexec_fn"))
        process: subprocess.Popen[bytes] = launch(command, process_group=0, **options)
        started.append(process)
        interrupts.before_leaving(partial(_end, process, os.getpid()))
        return process

    gateway.Popen = record
    try:
        with interrupts.handler_restored(), _interruptible():
            yield
    except BaseException:
        for process in started:
            _end(process, os.getpid(), signal.SIGKILL)
        if started:
            _forget()
        raise
    finally:
        gateway.Popen = launch
    for process in started:
        atexit.register(_end, process, os.getpid())
    _end_quietly(SparkContext)


@contextmanager
def _interruptible() -> Generator[None]:
    """Make SIGTERM raise an exception, too, unless a handler for it is installed."""
    in_main_thread = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if in_main_thread:
        signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _bound_to_us(before: Callable[[], None] | None) -> Callable[[], None] | None:
    """The function that the new process runs first: it has the kernel end the process with the starting thread."""
    # Another thread than the main one may end before the JVM is to end.
    if not sys.platform.startswith("linux") or threading.current_thread() is not threading.main_thread():
        return before
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return before
    parent = os.getpid()

    def bind() -> None:
        if before is not None:
            before()
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it has ended in between
            os._exit(1)

    return bind


def _end_quietly(context: Any) -> None:
    """Silence PySpark's accumulator server, which takes the end of the JVM for an error and prints a traceback."""
    server: Any = getattr(context._active_spark_context, "_accumulatorServer", None)
    if server is None:
        return
    report = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            report(request, client_address)

    server.handle_error = handle_error


def _forget() -> None:
    """Clear PySpark's state; else the next session would use the ended JVM."""
    context: Any = SparkContext
    context._gateway = context._jvm = context._active_spark_context = None


def _end(process: subprocess.Popen[bytes], owner: int, how: int = signal.SIGTERM) -> None:
    """End a JVM, and the processes that started it.

    Args:
        owner: the process that started it; a fork of that process leaves the JVM alone.
    """
    if os.getpid() != owner or process.poll() is not None:
        return
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    for number in (how, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDS_WITHIN_S)
            return
