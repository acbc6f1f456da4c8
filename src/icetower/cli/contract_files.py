"""Contracts in files: the current ones, and those of a git commit."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from icetower.contracts.findings import Finding, Written, of_syntax
from icetower.errors import BadRequest, UsageError

SUFFIXES = (".yaml", ".yml")
GIT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class File:
    """A file with a contract. `shown`: its path in messages, as the user wrote it."""

    shown: str
    text: str


def read_files(paths: Iterable[Path], *, may_be_gone: bool = False) -> list[File]:
    """The files, and the YAML files in folders, without hidden ones.

    Args:
        may_be_gone: skip paths that do not exist.

    Raises `UsageError` for a file that cannot be read.
    """
    found: dict[str, File] = {}
    for path in paths:
        if may_be_gone and not path.exists():
            continue
        inner = _inside(path) if path.is_dir() else [path]
        if not inner and not may_be_gone:
            raise UsageError(f"{path} has no contract: no file name in it ends with {' or '.join(SUFFIXES)}")
        for file in inner:
            found.setdefault(str(file), File(str(file), _read(file)))
    return list(found.values())


def _inside(folder: Path) -> list[Path]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return sorted(file for file in files if _is_contract(str(file.relative_to(folder))))


def _is_contract(name: str) -> bool:
    parts = name.split("/")
    return name.endswith(SUFFIXES) and not any(part.startswith(".") for part in parts)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{file} cannot be read: {reason}") from error


def written(files: Iterable[File]) -> tuple[list[Written], list[Finding]]:
    """The contracts in files, and the findings about files that are not contracts."""
    contracts: list[Written] = []
    findings: list[Finding] = []
    for file in files:
        try:
            contracts.append(Written.read(file.text, file.shown))
        except BadRequest as error:
            findings.append(of_syntax(error, file.shown))
    return contracts, findings


# -- git ---------------------------------------------------------------------------------------------------------------


def files_at(reference: str, paths: Sequence[Path]) -> list[File]:
    """Like `read_files`, at a git commit: files that were deleted since are included.

    Raises `UsageError` if there is no git, no repository or no such commit, or a path is outside the repository.
    """
    top = Path(_git(["rev-parse", "--show-toplevel"], "this is not a git repository").rstrip("\n"))
    commit = _git(
        ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{reference}^{{commit}}"],
        f"git knows no commit {reference!r}; in a shallow clone, fetch it first",
    ).strip()
    found: dict[str, File] = {}
    for path in paths:
        inner = _within(path, top)
        under = [] if inner == "." else ["--", inner]
        listed = _git(["ls-tree", "-r", "-z", "--name-only", "--full-tree", commit, *under], "git cannot list it")
        for name in filter(None, listed.split("\0")):
            if name == inner or _is_contract(os.path.relpath(name, inner)):
                shown = os.path.relpath(top / name)
                text = _git(["cat-file", "blob", f"{commit}:{name}"], f"git cannot show {name}")
                found.setdefault(shown, File(shown, text))
    return list(found.values())


def _within(path: Path, top: Path) -> str:
    """A path relative to the repository; the file itself need not exist."""
    inner = os.path.relpath(os.path.realpath(path.parent) + f"/{path.name}", os.path.realpath(top))
    if inner == ".." or inner.startswith("../"):
        raise UsageError(f"{path} is outside the git repository {top}")
    return inner


def _git(words: Sequence[str], problem: str) -> str:
    """Git's output, without a shell. Raises `UsageError` with the problem if git fails."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(  # noqa: S603
            ["git", *words],  # noqa: S607 - the git on the user's path
            capture_output=True,
            check=False,
            env=environment,
            timeout=GIT_TIMEOUT_S,
        )
        if done.returncode == 0:
            return done.stdout.decode()
    except OSError as error:
        raise UsageError(f"git cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"git took longer than {GIT_TIMEOUT_S:g} s for `git {words[0]}`") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{problem}: it is not UTF-8 text") from error
    said = done.stderr.decode(errors="replace").strip()
    raise UsageError(f"{problem}{f' ({said})' if said else ''}")
