"""Clients that are not Python's, or have an environment of their own: each a process that performs acts in turn."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.clients.run import CACHE, GO, PYTHON

HERE = Path(__file__).resolve().parent


class Driver:
    """A process that reads an act a line, as JSON, and answers each with ``done`` or ``failed: WHY``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def act(self, **act: object) -> str:
        """How an act ended. Libraries may print other lines before."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(act) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(("done", "failed")):
                return line.strip()
        raise AssertionError(f"the client ended at {act}")

    def does(self, **act: object) -> None:
        """An act that has to succeed."""
        said = self.act(**act)
        assert said == "done", f"{act}: {said}"

    def fails(self, **act: object) -> None:
        """An act that has to fail: how the server answered is in the recording."""
        said = self.act(**act)
        assert said != "done", f"{act} had to fail"


@contextmanager
def driving(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> Generator[Driver]:
    process = subprocess.Popen(
        [str(each) for each in command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    try:
        yield Driver(process)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def go(uri: str) -> list[str | Path]:
    """iceberg-go's driver, built where it has changed."""
    folder = CACHE / "exchanges-go"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "go" / "main.go", folder)
    if not (folder / "go.mod").exists():
        subprocess.run(["go", "mod", "init", "exchanges"], cwd=folder, check=True, capture_output=True)
        subprocess.run(["go", "get", GO], cwd=folder, check=True, capture_output=True)
    subprocess.run(["go", "mod", "tidy"], cwd=folder, check=True, capture_output=True)
    subprocess.run(["go", "build", "-o", "exchanges", "."], cwd=folder, check=True)
    return [folder / "exchanges", uri]


def duckdb(uri: str) -> list[str | Path]:
    """DuckDB's driver, in an environment of its own."""
    python = CACHE / "python" / "bin" / "python"
    uv = str(Path(sys.executable).with_name("uv"))
    version = ["--allow-existing", "--python", sys.executable]
    subprocess.run([uv, "venv", "--quiet", *version, CACHE / "python"], check=True)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *PYTHON], check=True)
    return [python, HERE / "duckdb_driver.py", uri]


def spark(uri: str) -> list[str | Path]:
    """Spark's driver, in this environment."""
    return [sys.executable, HERE / "spark_driver.py", uri]
