"""Ctrl-C while a job runs on Spark: one line, exit status 130, and no JVM is left. Without PySpark.

PySpark takes the signal for itself, and asks the JVM to cancel its jobs, over the connection on which the interrupted
call still waits for its answer. What follows is told in tracebacks and ends in any status. Here nothing is asked of the
JVM any more: it is ended, and so is this process. Jobs commit in one step, so what they had begun leaves nothing
behind but files that nothing refers to.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

STATUS = 128 + signal.SIGINT
_SHOW_CURSOR = "\r\x1b[2K\x1b[?25h"
_at_the_end: list[Callable[[], None]] = []


def before_leaving(end: Callable[[], None]) -> None:
    """Have `end` called, without an exception of its own, before an interrupt ends this process."""
    _at_the_end.append(end)


@contextmanager
def ended_by_interrupts(message: str) -> Generator[None]:
    """While this is entered, an interrupt ends the process with `message` on standard error."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        _leave(message)

    ours = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if ours:
        signal.signal(signal.SIGINT, leave)
    try:
        yield
    except KeyboardInterrupt:  # by the handler of somebody else, such as PySpark's while it starts
        _leave(message)
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)


@contextmanager
def kept() -> Generator[None]:
    """Around what takes the signal for itself: a handler that stood before stands afterwards."""
    ours = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if ours and before is not None and before not in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(signal.SIGINT, before)


def _leave(message: str) -> NoReturn:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough
    shown = _SHOW_CURSOR if sys.stderr.isatty() else ""  # it was hidden by a line that shows progress
    with suppress(OSError):
        os.write(2, f"{shown}icetower: {message}\n".encode())
    for end in _at_the_end:
        end()
    # Whatever waits for the JVM, in this thread or another, would only tell that it has gone.
    os._exit(STATUS)
