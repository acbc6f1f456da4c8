"""Contracts in files: those that are there, and those that were there at a commit of git."""

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
    """A file with a contract. `shown`: its path as it was given, which messages name."""

    shown: str
    text: str


def read_files(paths: Iterable[Path], *, may_be_gone: bool = False) -> list[File]:
    """The files, and those of folders that end like YAML, hidden ones left out.

    Args:
        may_be_gone: what is not there is passed over.

    Raises `UsageError` for what cannot be read.
    """
    found: dict[str, File] = {}
    for path in paths:
        if may_be_gone and not path.exists():
            continue
        inner = _inside(path) if path.is_dir() else [path]
        if not inner and not may_be_gone:
            raise UsageError(f"{path} holds no contract: no file that ends with {' or '.join(SUFFIXES)}")
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
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise UsageError(f"{file} cannot be read: {reason}") from error


def written(files: Iterable[File]) -> tuple[list[Written], list[Finding]]:
    """The contracts in files, and what is wrong with those that are none."""
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
    """As `read_files`, as they were at a commit: those that have gone since are among them.

    Raises `UsageError` where there is no git, no repository or no such commit, or a path lies outside of it.
    """
    top = Path(_git(["rev-parse", "--show-toplevel"], "this is no git repository").rstrip("\n"))
    commit = _git(
        ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{reference}^{{commit}}"],
        f"git knows no commit {reference!r}; in a clone that is shallow, fetch it first",
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
    """A path as git names it; the file itself need not be there."""
    inner = os.path.relpath(os.path.realpath(path.parent) + f"/{path.name}", os.path.realpath(top))
    if inner == ".." or inner.startswith("../"):
        raise UsageError(f"{path} lies outside the git repository {top}")
    return inner


def _git(words: Sequence[str], problem: str) -> str:
    """What git says, without a shell. Raises `UsageError` with the problem where it fails."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(  # noqa: S603
            ["git", *words],  # noqa: S607 - whichever git its user has
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
        raise UsageError(f"{problem}: it is no UTF-8 text") from error
    said = done.stderr.decode(errors="replace").strip()
    raise UsageError(f"{problem}{f' ({said})' if said else ''}")
