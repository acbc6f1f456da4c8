"""The commands that start Spark: no secret on a command line, and nothing left behind. Without a JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from verify.kit.tower_process import SCHEMA, TowerProcess, command

SUBMIT = "#!/bin/sh\nsleep 1000\n"
WITHIN_S = 120.0
COMMANDS = {
    "orphans": ("orphans", "{namespace}.t", "--dry-run"),
    "mediate": ("mediate", "--wal", "{namespace}.wal", "--target", "{namespace}.t"),
}


def processes(session: int) -> dict[int, str]:
    """The command lines of a session's processes."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, *fields = (folder / "stat").read_text().rpartition(")")[2].split()
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:  # it has ended meanwhile
                continue
            if int(fields[2]) == session and state != "Z":
                found[int(folder.name)] = line
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_starts_spark_shows_no_secret_and_leaves_nothing(
    tower: TowerProcess, namespace: str, tmp_path: Path, name: str
) -> None:
    with tower.client() as http:
        http.post(f"/v1/namespaces/{namespace}/tables", json={"name": "t", "schema": SCHEMA}).raise_for_status()
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(SUBMIT)
    submit.chmod(0o755)
    words = [word.format(namespace=namespace) for word in COMMANDS[name]]
    environment = {**os.environ, "SPARK_HOME": str(tmp_path), "ICETOWER_TOKEN": tower.secret}
    process = subprocess.Popen(
        command(*words, "--uri", tower.uri),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        end_s = time.monotonic() + WITHIN_S
        while not any("spark-submit" in line for line in processes(process.pid).values()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end_s
            time.sleep(0.05)
        assert [line for line in processes(process.pid).values() if tower.secret in line] == []
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WITHIN_S)
        assert process.returncode == 130
        (line,) = said.decode().splitlines()
        assert line.startswith("icetower: interrupted; ")
        while processes(process.pid):
            assert time.monotonic() < end_s, processes(process.pid)
            time.sleep(0.05)
    finally:
        for each in processes(process.pid):
            os.kill(each, signal.SIGKILL)
        process.wait()
