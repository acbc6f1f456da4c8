"""Where invariants are cited: in comments, in docstrings, and in the names of tests (`test_k2_…`).

An id stands bare in the text: `(trap K2)`, `traps S1 to S4`. In backticks or quotes it is another name, such as the
interleaving `K2` of `icetower explain`; and S3 is the storage service, but after "trap".
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CODE = ("src", "tests", "tools", "verify", "bench")

_ID = re.compile(r"(?<![\w`'\"./=-])([RSAKHL])([1-9]\d?)(?![\w`'\"/=-])(?: to \1([1-9]\d?)(?!\w))?")
_S3 = re.compile(r"\b[Tt]raps? (?:[RSAKHL]\d+(?:, | and | to ))*S3\b")
_TEST = re.compile(r"test_(?:trap_)?([rsakhl][1-9]\d?)_")
_DEFINED = re.compile(rf"\bdef {_TEST.pattern}")


def ids(text: str) -> set[str]:
    """The invariants that a comment or docstring cites."""
    found: set[str] = {"S3"} if _S3.search(" ".join(text.split())) else set()
    for letter, first, last in _ID.findall(text):
        cited = {f"{letter}{number}" for number in range(int(first), int(last or first) + 1)}
        found |= cited - {"S3"} if len(cited) == 1 else cited
    return found


def id_of_test(function: str) -> str | None:
    """The invariant that a test has in its name."""
    match = _TEST.match(function)
    return match[1].upper() if match else None


def cited(folders: Iterable[str] = CODE) -> Iterator[tuple[str, Path]]:
    """Each invariant that is cited in the code, with the file."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text()
            if not _ID.search(source) and not _DEFINED.search(source):
                continue
            for text in _texts(source):
                for id_ in ids(text):
                    yield id_, path


def _texts(source: str) -> Iterator[str]:
    comments: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.append(token.string.lstrip("# "))
        elif token.type not in (tokenize.NL, tokenize.NEWLINE) and comments:
            yield " ".join(comments)
            comments = []
    yield " ".join(comments)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (found := id_of_test(node.name)):
            yield f"trap {found}"
