"""The tests of this repository by name: `test_rebase::test_r2_deletion_vectors`, whatever folder they lie in."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent.parent / "tests"


@dataclass(frozen=True, slots=True)
class Test:
    """A test function, or a module of tests where `function` is empty. `text`: its docstring."""

    module: str
    function: str
    text: str

    @property
    def node(self) -> str:
        """As tables name it."""
        return f"{self.module}::{self.function}" if self.function else self.module


@cache
def all_tests() -> dict[str, Test]:
    """Every module of tests and every test, by node."""
    found: dict[str, Test] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
        named = [(each.name, each) for each in functions if each.name.startswith("test_")]
        for name, node in [("", tree), *named]:
            test = Test(path.stem, name, ast.get_docstring(node) or "")
            found[test.node] = test
    return found


def node_exists(node: str) -> bool:
    """Whether there is a test, or a module of tests, of that name."""
    return node in all_tests()
