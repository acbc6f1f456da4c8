"""What other users of the machine see of a Spark job, and what is left of one that is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from icetower.errors import ConfigurationError
from icetower.pipelines.session import spark_session

SECRET = "hush-4711"
WITHIN_S = 120.0
JOB = """
import os, sys
from icetower.pipelines.session import spark_session
print("starting", flush=True)
secret = os.environ["HUSH"]
spark = spark_session(
    sys.argv[1],
    catalog_uri=f"http://me:{secret}@127.0.0.1:9",
    token=secret,
    catalog={"type": "hadoop", "warehouse": sys.argv[2], "s3.secret-access-key": secret},
    settings={
        "spark.sql.catalog.other.credential": f"a:{secret}",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": sys.argv[2],
    },
)
assert spark.conf.get("spark.sql.catalog.tower.token") == secret
spark.range(3).count()
print("counted", flush=True)
sys.stdin.read()
spark.stop()
"""
SUBMIT = """#!/bin/sh
# In place of Spark's own: it starts a process of its own, too, and takes for ever.
sh -c 'sleep 1000; :' "$@" &
wait
"""


class Job:
    """A process with a Spark session, known by the name of its application."""

    def __init__(self, name: str, folder: Path, spark_home: Path | None) -> None:
        self.name = name
        self.events = folder / "events"
        self.events.mkdir()
        self.output = folder / "output"
        environment = {**os.environ, "HUSH": SECRET}
        if spark_home is not None:
            environment["SPARK_HOME"] = str(spark_home)
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", JOB, name, str(self.events)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def others(self) -> dict[int, str]:
        """The command lines of the processes that have to do with it, but for its own."""
        found: dict[int, str] = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != self.process.pid:
                try:
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:  # it has ended meanwhile
                    continue
                if self.name in line:
                    found[int(folder.name)] = line
        return found

    def until(self, holds: Callable[[], bool]) -> None:
        end_s = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < end_s, (self.others(), self.output.read_text())
            time.sleep(0.02)

    def says(self, word: str) -> Callable[[], bool]:
        def said() -> bool:
            assert self.process.poll() is None, self.output.read_text()
            return word in self.output.read_text().split()

        return said

    def end(self) -> int:
        self.process.communicate()  # the end of its input, too
        return self.process.returncode


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    started: list[Job] = []

    def start(spark_home: Path | None = None) -> Job:
        started.append(Job(f"job-{os.getpid()}-{tmp_path.name}", tmp_path, spark_home))
        return started[-1]

    yield start
    for job in started:
        for process in job.others():
            os.kill(process, signal.SIGKILL)
        job.process.kill()
        job.end()


@pytest.fixture
def slow_spark(tmp_path: Path) -> Path:
    """A Spark whose JVM never is ready."""
    submit = tmp_path / "spark" / "bin" / "spark-submit"
    submit.parent.mkdir(parents=True)
    submit.write_text(SUBMIT)
    submit.chmod(0o755)
    return tmp_path / "spark"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_what_starts_ends_with_its_command_and_shows_no_secret(
    start: Callable[..., Job], slow_spark: Path, number: signal.Signals
) -> None:
    job = start(slow_spark)
    job.until(lambda: len(job.others()) == 2)  # Spark's own, and what that has started
    assert [line for line in job.others().values() if SECRET in line] == []
    job.process.send_signal(number)
    assert job.end() in (-number, 128 + number)
    job.until(lambda: not job.others())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other kernels end nobody's children")
def test_what_starts_ends_where_its_command_is_killed(start: Callable[..., Job], slow_spark: Path) -> None:
    job = start(slow_spark)
    job.until(lambda: len(job.others()) == 2)
    first = min(job.others())
    job.process.kill()
    job.end()
    job.until(lambda: first not in job.others())


def test_nobody_reads_a_secret_of_a_job_and_nothing_outlives_it(start: Callable[..., Job]) -> None:
    job = start()
    job.until(job.says("counted"))
    lines = job.others().values()
    assert any("java" in line for line in lines)
    assert [line for line in lines if SECRET in line] == []
    assert (job.end(), job.others()) == (0, {})
    logged = [path for path in job.events.rglob("*") if path.is_file()]
    assert any(b"modifiedConfigs" in path.read_bytes() for path in logged)
    assert [path for path in (*logged, job.output) if SECRET.encode() in path.read_bytes()] == []


def test_a_secret_among_sparks_own_settings_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"spark\.hadoop\.fs\.s3a\.secret\.key would be on"):
        spark_session("x", settings={"spark.hadoop.fs.s3a.secret.key": SECRET})
