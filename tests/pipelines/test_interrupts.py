"""Ctrl-C at any stage of a job: one line, status 130; and the end of the JVM prints no trace. Without a JVM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.accumulators import AccumulatorTCPServer, UpdateRequestHandler

from icetower.pipelines import jvm

STAGES = {
    "before Spark starts": "wait()",
    "while Spark starts": """
with jvm.starting():
    signal.signal(signal.SIGINT, of_pyspark)
    wait()
""",
    "while a job runs": """
with jvm.starting():
    signal.signal(signal.SIGINT, of_pyspark)
try:
    wait()
finally:
    raise RuntimeError("asked of a JVM whose answer is another's")
""",
    "while a thread of its own waits for the JVM": """
ended = threading.Event()

def ask():
    ended.wait()
    raise RuntimeError("the JVM is gone")

asks = threading.Thread(target=ask)
asks.start()
before_leaving(ended.set)
before_leaving(asks.join)
wait()
""",
}
JOB = """
import signal, subprocess, sys, threading
from icetower.pipelines import jvm
from icetower.pipelines.interrupts import before_leaving, ended_by_interrupts

def of_pyspark(number, frame):
    raise KeyboardInterrupt

def wait():
    print("there", flush=True)
    sys.stdin.read()

before_leaving(lambda: print("ended", flush=True))
with ended_by_interrupts("interrupted; as planned"):
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("stage", STAGES)
def test_a_signal_is_one_line_and_its_status(stage: str, number: int, status: int) -> None:
    body = "".join(f"    {line}\n" for line in STAGES[stage].strip().splitlines())
    process = subprocess.Popen(
        [sys.executable, "-c", JOB + body],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    process.send_signal(number)
    out, said = process.communicate(timeout=60)
    assert (process.returncode, out, said) == (status, "ended\n", "icetower: interrupted; as planned\n")


class Server(AccumulatorTCPServer):
    """PySpark's, which says when it has done with a caller."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), UpdateRequestHandler, "token")
        self.done = threading.Event()

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.done.set()


@pytest.mark.parametrize(("sent", "trace"), [(b"token" + bytes(4), False), (b"guess", True)])
def test_the_end_of_the_jvm_prints_no_trace(capfd: pytest.CaptureFixture[str], sent: bytes, trace: bool) -> None:
    """The JVM closes its connection for accumulators before PySpark ends their server. Other errors are shown."""
    server = Server()
    jvm._end_quietly(SimpleNamespace(_active_spark_context=SimpleNamespace(_accumulatorServer=server)))  # pyright: ignore[reportPrivateUsage]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with socket.create_connection(server.server_address[:2]) as of_the_jvm:
            of_the_jvm.sendall(sent)
            if not trace:
                assert of_the_jvm.recv(1) == b"\x01"
        assert server.done.wait(60)
    finally:
        server.shutdown()
        thread.join()
    assert ("Traceback" in capfd.readouterr().err) == trace
