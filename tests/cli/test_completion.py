"""Completion in the shell: it installs for bash and zsh, and completes commands, options, and names from the tower."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.test_every_command import refused_port
from verify.kit.tower_process import TowerProcess, command


def completed(line: str, **environment: str) -> list[str]:
    """What bash's completion is answered for the last part of a command line."""
    words = line.split(" ")
    given = {"_ICETOWER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        command(), env={**os.environ, **given, **environment}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == "", done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_installs(tmp_path: Path, shell: str) -> None:
    """`--install-completion SHELL`: the shell of this test is none that can be found out."""
    home = {"HOME": str(tmp_path), "ZDOTDIR": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        command("--install-completion", shell), env={**os.environ, **home}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    scripts = [path for path in tmp_path.rglob("*") if path.is_file() and "_ICETOWER_COMPLETE" in path.read_text()]
    assert scripts, list(tmp_path.rglob("*"))
    configuration = (tmp_path / {"bash": ".bashrc", "zsh": ".zshrc"}[shell]).read_text()
    assert str(scripts[0]) in configuration or ".zfunc" in configuration
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(scripts[0])], check=True)


def test_bash_completes_by_the_installed_script(tmp_path: Path) -> None:
    shown = subprocess.run(
        command("--show-completion", "bash"),
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    folder = Path(command()[0]).parent
    asking = 'COMP_WORDS=(icetower esc) COMP_CWORD=1; _icetower_completion icetower; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", f"{shown.stdout}\n{asking}"],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["escalations"]


def test_commands_and_options_are_completed() -> None:
    assert completed("icetower sup") == ["support-bundle"]
    assert set(completed("icetower alerts ")) == {"list", "silence", "unsilence"}
    assert "--follow" in completed("icetower commits --f")


def test_names_are_completed_from_the_tower(untouched: TowerProcess) -> None:
    untouched.principal("shop-1", "owner: a@example.com\ntables: [{table: shop.*, operations: [append]}]\n")
    with untouched.client() as admin:
        admin.post("/v1/namespaces", json={"namespace": ["shop"]}).raise_for_status()
    reach = {"ICETOWER_URI": untouched.uri, "ICETOWER_TOKEN": untouched.secret}
    assert completed("icetower agents show sh", **reach) == ["shop-1"]
    assert completed("icetower contracts show sh", **reach) == ["shop-1"]
    assert completed("icetower tables show sh", **reach) == ["shop"]
    assert completed("icetower commits --agent sh", **reach) == ["shop-1"]
    assert completed("icetower agents show sh", **reach | {"ICETOWER_TOKEN": "wrong"}) == []


def test_a_tower_that_does_not_answer_is_no_error(tmp_path: Path) -> None:
    assert completed("icetower agents show sh", ICETOWER_URI=f"http://127.0.0.1:{refused_port()}") == []
    (tmp_path / "icetower.toml").write_text("nothing = = here")
    assert completed("icetower agents show sh", ICETOWER_CONFIG=str(tmp_path / "icetower.toml")) == []
