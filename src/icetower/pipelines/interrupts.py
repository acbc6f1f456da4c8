"""Ctrl-C and SIGTERM while a job runs on Spark: one line, exit status 130 or 143, and no JVM is left. Without PySpark.

PySpark installs its own handler, which asks the JVM to cancel its jobs, over the connection on which the interrupted
call still waits for its answer. That ends in tracebacks and an arbitrary exit status. This module ends the JVM and this
process instead. Jobs commit in one step, so an unfinished one leaves only unreferenced files behind.
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

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = "\r\x1b[2K\x1b[?25h"
_before_exit: list[Callable[[], None]] = []


def before_leaving(end: Callable[[], None]) -> None:
    """Register `end`, which must not raise, to be called before a signal ends this process."""
    _before_exit.append(end)


@contextmanager
def ended_by_interrupts(message: str, line: Callable[[str, int], str] = "icetower: {}".format) -> Generator[None]:
    """While this is entered, a signal ends the process with `message` on standard error.

    Args:
        line: writes it, for an exit status.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        _leave(line(message, 128 + number), 128 + number)

    in_main_thread = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, leave) for number in SIGNALS} if in_main_thread else {}
    try:
        yield
    except KeyboardInterrupt:  # from another handler, such as PySpark's while it starts
        leave(signal.SIGINT, None)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def handler_restored() -> Generator[None]:
    """Around code that installs its own handler: afterwards, restore the previous one."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if in_main_thread and before is not None and before not in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(signal.SIGINT, before)


def _leave(message: str, status: int) -> NoReturn:
    if threading.current_thread() is threading.main_thread():
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)  # once is enough
    shown = _SHOW_CURSOR if sys.stderr.isatty() else ""  # a progress bar may have hidden it
    # A thread that waits for the JVM, or a finalizer that calls it, would print a traceback once it is gone.
    with suppress(OSError):
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 until the process ends
    for end in _before_exit:
        end()
    with suppress(OSError):
        os.write(2, f"{shown}{message}\n".encode())
    os._exit(status)
