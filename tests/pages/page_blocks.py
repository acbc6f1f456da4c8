"""Code blocks of the pages, and how each says that it is run.

A block without a note is run as it stands. A note is a comment in the line before it, which readers do not see:

    <!-- run: as COMMANDS -->       a shorter form of the same commands is run instead
    <!-- run: slow -->              run by `make verify-docs` alone, as it stands; takes longer than 20 s
    <!-- run: slow COMMANDS -->     the same, in a shorter form
    <!-- run: in CI -->             its `make` targets are run by .ci/run itself
    <!-- run: in tests/FILE.py -->  a test of its own takes it from the page
    <!-- run: needs NAME -->        cannot be run here; NAME is one of `NEEDS`
    <!-- run: check NAME -->        data; NAME is one of the checks in page_world.py

Blocks of the language `text` are what a command prints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))

NEEDS = frozenset(
    {
        "AWS", "Daft", "Docker", "DuckDB", "Flink", "GitHub", "Go", "Polaris", "Polars", "PostgreSQL", "Rust", "Trino",
        "a TLS proxy", "another machine", "root and systemd", "a registry",
    }
)  # fmt: skip
"""What tests have not got. A block that needs anything else is run."""

LANGUAGES = frozenset(
    {"sh", "python", "toml", "yaml", "json", "sql", "text", "properties", "go", "rust", "ini", "caddy", "dockerfile"}
)
_FENCE = re.compile(r"^( *)```(\S*)\s*$")
_NOTE = re.compile(r"^ *<!-- run: (.+?) -->\s*$")
_KINDS = re.compile(r"(as|slow|in|needs|check)\b *(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code.

    Attributes:
        kind: of its note; empty: it has none.
        more: what the note says beyond its kind.
    """

    page: str
    line: int
    language: str
    text: str
    kind: str = ""
    more: str = ""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page in order. Raises `ValueError` for a note that is none."""
    return blocks_in((ROOT / page).read_text(), page)


def blocks_in(text: str, page: str) -> list[Block]:
    found: list[Block] = []
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        opened = _FENCE.match(lines[number])
        if opened is None:
            number += 1
            continue
        indent, language = opened.groups()
        start = number + 1
        number = start
        while number < len(lines) and lines[number].strip() != "```":
            number += 1
        code = "".join(line.removeprefix(indent) + "\n" for line in lines[start:number])
        kind, more = _note(lines[start - 2] if start >= 2 else "", f"{page}:{start}")
        found.append(Block(page, start, language, code, kind, more))
        number += 1
    return found


def _note(line: str, place: str) -> tuple[str, str]:
    note = _NOTE.match(line)
    if note is None:
        return "", ""
    kind = _KINDS.fullmatch(note[1])
    if kind is None:
        raise ValueError(f"{place}: no such note: {note[1]}")
    return kind[1], kind[2]


def indented_in(text: str) -> list[int]:
    """Lines that begin a block of code by indentation alone, where no language can be given."""
    found: list[int] = []
    fenced, before, opener = False, "", ""
    for number, line in enumerate(text.split("\n"), 1):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and line.startswith("    ") and not before.strip() and not _in_list(opener):
            found.append(number)
        if not line.startswith(" ") and line.strip():
            opener = line
        before = line
    return found


def _in_list(opener: str) -> bool:
    return re.match(r"([-*]|\d+\.) ", opener) is not None
