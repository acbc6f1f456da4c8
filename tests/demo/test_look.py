"""`--look`: the tower of a run stays up, with its address on the terminal, until Ctrl-C."""

from __future__ import annotations

import io
import os
import signal
import threading
from pathlib import Path

import pytest
from rich.console import Console

from icetower.demo.serving import Serving, leave_up


class Terminal(io.StringIO):
    """Sends a signal to this process as soon as a text was written."""

    def __init__(self, text: str, number: signal.Signals) -> None:
        super().__init__()
        self._text = text
        self._number = number

    def write(self, text: str) -> int:
        if self._text in text:
            threading.Timer(0.05, os.kill, (os.getpid(), self._number)).start()
        return super().write(text)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_address_is_said_and_a_signal_ends_it(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    terminal = Terminal("Ctrl-C", number)
    serving = Serving("http://127.0.0.1:8181", "ict_secret", Path("/tmp/a folder/tower/admin.token"))
    leave_up(serving, Console(file=terminal, width=40))
    shown = terminal.getvalue().splitlines()
    assert shown[0] == "The tower of this run is up: http://127.0.0.1:8181"
    assert shown[1].endswith("/tmp/a folder/tower/admin.token")
    assert "ict_secret" not in terminal.getvalue()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
