"""What messages tell people to run is there: commands of `icetower`, and options of theirs. Read from the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from icetower.cli.app import app

SOURCE = Path(__file__).parent.parent / "src"
ROOT: Any = get_command(app)

JOBS = {"wal_": "mediate", "collector": "collect", "dedup": "dedup", "cleanup": "orphans", "orphans": "orphans"}
"""How modules of `pipelines` begin, and the command that runs them: their messages may name its options alone."""
OF_SPARK_SUBMIT = {"--packages"}
OF_GIT = {"--end-of-options", "--full-tree", "--name-only", "--quiet", "--show-toplevel", "--verify"}

_COMMAND = re.compile(r"\bicetower((?: (?:[a-z][a-z-]*|…|[A-Z]+|--[a-z-]+))+)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_DECLARED = re.compile(r"(--[a-z-]+)(/--[a-z-]+)?")
"""A text that is nothing else declares an option, or is an argument."""


def texts() -> Iterator[tuple[Path, str]]:
    """Every text in the source that is not a docstring, `…` for parts that are filled in, and its module."""
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        skipped = parts | alone
        for node in ast.walk(tree):
            if id(node) in skipped:
                continue
            if isinstance(node, ast.JoinedStr):
                yield path, "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path, node.value


def options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def every_option(command: Any) -> set[str]:
    inner = getattr(command, "commands", {}).values()
    return options(command).union(*(every_option(each) for each in inner))


TEXTS = [(path, text) for path, text in texts() if ":root {" not in text and not _DECLARED.fullmatch(text)]
COMMANDS = [(path, found) for path, text in TEXTS for found in _COMMAND.findall(text)]
OPTIONS = [(path, found) for path, text in TEXTS for found in _OPTION.findall(text)]


@pytest.mark.parametrize(("path", "words"), COMMANDS, ids=lambda each: getattr(each, "stem", each))
def test_a_command_that_a_message_names_is_there(path: Path, words: str) -> None:
    del path
    command, rest = ROOT, words.split()
    while rest and hasattr(command, "commands") and rest[0] != "…":
        assert rest[0] in command.commands, f"icetower{words}"
        command = command.commands[rest.pop(0)]
    assert {word for word in rest if word.startswith("--")} <= every_option(command) | {"--help"}, f"icetower{words}"


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=lambda each: getattr(each, "stem", each))
def test_an_option_that_a_message_names_is_there(path: Path, option: str) -> None:
    job = next((name for start, name in JOBS.items() if path.stem.startswith(start)), None)
    if path.parent.name == "pipelines" and job is not None:
        assert option in options(ROOT.commands[job])
    else:
        others = {"contract_files": OF_GIT, "session": OF_SPARK_SUBMIT, "app": {"--help"}}.get(path.stem, set[str]())
        assert option in every_option(ROOT) | others


def test_messages_are_found() -> None:
    assert len(COMMANDS) > 15
    assert len(OPTIONS) > 60
    reread = [path.stem for path, option in OPTIONS if option == "--reread"]
    assert reread.count("wal_plan") == 2, "what is to be done about wal.expired and wal.append-only"
