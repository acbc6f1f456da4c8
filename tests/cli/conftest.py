from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from icetower.cli import main
from verify.kit.tower_process import TowerProcess


@pytest.fixture
def untouched(tmp_path: Path) -> Iterator[TowerProcess]:
    """A tower without the tables and contracts of other tests."""
    process = TowerProcess(tmp_path / "data")
    yield process
    process.stop()


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The program as a shell would run it in an empty folder: exit status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    for name in ("ICETOWER_URI", "ICETOWER_TOKEN", "ICETOWER_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)

    def program(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["icetower", *words])
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
        said = capsys.readouterr()
        assert "Traceback" not in said.err + said.out
        return status, said.out, said.err

    return program
