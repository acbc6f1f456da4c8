"""No regular expression of the server takes a time that grows with the square of a text.

Two repeats next to each other that match the same character are what does it: where the rest does not fit, every way to
part the text between them is tried, on the event loop, while nobody is answered. One megabyte takes a quarter of an
hour. So this reads all patterns of the server, and looks for such neighbours.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from re import _constants as kinds  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import icetower

MANY = 1_000
LETTERS = " \t\n0abcdxyz_.-+*/\\()[]{}<>@:,;=\"'#$%é"
APART = ("icetower.cli", "icetower.demo", "icetower.pipelines", "icetower.spark")
"""What reads nothing of strangers within the server."""


def patterns() -> Iterator[tuple[str, str]]:
    """Those of modules by their names, and those within functions by their lines."""
    for found in pkgutil.walk_packages(icetower.__path__, "icetower."):
        if found.name.startswith(APART) or ".migrations" in found.name:
            continue
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                yield f"{found.name}.{name}", value.pattern
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name("re")), args=[ast.Constant(str(text)), *_]):
                    yield f"{found.name}:{node.lineno}", text
                case _:
                    pass


def takes(nodes: Any, letter: str) -> bool:
    """Whether some letter of what these nodes match, the first one that may be, is this one."""
    for kind, value in nodes:
        if kind is kinds.LITERAL:
            return value == ord(letter)
        if kind is kinds.NOT_LITERAL:
            return value != ord(letter)
        if kind is kinds.ANY:
            return letter != "\n"
        if kind is kinds.IN:
            return re.fullmatch(parser_text(value), letter) is not None
        if kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT):
            if takes(value[2], letter):
                return True
            if value[0]:
                return False
        elif kind is kinds.SUBPATTERN:
            if takes(value[3], letter):
                return True
            if not may_be_empty(value[3]):
                return False
        elif kind is kinds.BRANCH:
            if any(takes(branch, letter) for branch in value[1]):
                return True
            if not any(map(may_be_empty, value[1])):
                return False
    return False


def parser_text(items: Sequence[tuple[Any, Any]]) -> str:
    """A set of characters as a pattern again."""
    names = {
        kinds.CATEGORY_DIGIT: r"\d", kinds.CATEGORY_NOT_DIGIT: r"\D", kinds.CATEGORY_SPACE: r"\s",
        kinds.CATEGORY_NOT_SPACE: r"\S", kinds.CATEGORY_WORD: r"\w", kinds.CATEGORY_NOT_WORD: r"\W",
    }  # fmt: skip
    inside = ""
    for kind, value in items:
        if kind is kinds.NEGATE:
            inside += "^"
        elif kind is kinds.LITERAL:
            inside += re.escape(chr(value))
        elif kind is kinds.RANGE:
            inside += f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
        else:
            inside += names[value]
    return f"[{inside}]"


def may_be_empty(nodes: Any) -> bool:
    for kind, value in nodes:
        if kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT):
            if value[0] and not may_be_empty(value[2]):
                return False
        elif kind is kinds.SUBPATTERN:
            if not may_be_empty(value[3]):
                return False
        elif kind is kinds.BRANCH:
            if not any(map(may_be_empty, value[1])):
                return False
        elif kind not in (kinds.AT, kinds.ASSERT, kinds.ASSERT_NOT):
            return False
    return True


def flat(nodes: Any) -> list[tuple[Any, Any]]:
    """Groups that must be there are no bounds between repeats."""
    found: list[tuple[Any, Any]] = []
    for kind, value in nodes:
        if kind is kinds.SUBPATTERN:
            found += flat(value[3])
        else:
            found.append((kind, value))
    return found


def quadratic(nodes: Any) -> str | None:
    """A letter that two repeats in a row both take, with nothing between them that must be there."""
    nodes = flat(nodes)
    for at, (kind, value) in enumerate(nodes):
        if kind is kinds.BRANCH:
            inner = next((found for each in value[1] if (found := quadratic(each))), None)
            if inner is not None:
                return inner
        if kind not in (kinds.MAX_REPEAT, kinds.MIN_REPEAT):
            continue
        inner = quadratic(value[2])
        if inner is not None:
            return inner
        if value[1] < MANY:
            continue
        for other, after in nodes[at + 1 :]:
            many = other in (kinds.MAX_REPEAT, kinds.MIN_REPEAT) and after[1] >= MANY
            if many:
                both = next((each for each in LETTERS if takes(value[2], each) and takes(after[2], each)), None)
                if both is not None:
                    return both
            if not may_be_empty([(other, after)]):
                break
    return None


@pytest.mark.parametrize(
    "pattern", [r"(\w+)\[\s*([0-9]*)\s*\]", r"(\d+\.?\d*|\.\d+)", r"\s*x?\s*y", r"([a-c]+)([b-d]*)e", r"(?:a*b?a*)c"]
)
def test_what_it_looks_for_is_found(pattern: str) -> None:
    assert quadratic(parser.parse(pattern)) is not None


@pytest.mark.parametrize(
    "pattern", [r"\w+\[\s*(?:[0-9]+\s*)?\]", r"\d+(\.\d*)?", r"\s*x\s*y", r"a{1,9}a*b", r"[ab]+c*"]
)
def test_what_is_none_is_not(pattern: str) -> None:
    assert quadratic(parser.parse(pattern)) is None


def test_no_pattern_of_the_server_takes_the_square_of_a_text() -> None:
    found = dict(patterns())
    assert len(found) > 40
    assert {name: text for name, text in found.items() if quadratic(parser.parse(text)) is not None} == {}
