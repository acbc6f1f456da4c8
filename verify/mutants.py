"""Code that is changed on purpose while it runs, to see whether a test notices: mutations, and lists of them.

A list is a text. A block begins with a word for what it is about (a rule, an effect, a part) and a function. Under it,
each mutation has a name, the text that the function holds once (-), and what it says instead (+). Lines that stand
further in continue a text, in the function's own indentation; those that begin with # are comments.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from types import CodeType, FunctionType
from typing import Any, TypeVar

M = TypeVar("M", bound="Mutation")


class Stale(Exception):
    """A mutation no longer fits the code, or the list of them is malformed; the message says where."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of the code.

    Attributes:
        rule: what it is about.
        where: the function, as ``module.function`` or ``module.Class.method`` below `package`; in packages within it,
            as ``room/module.function``; elsewhere, as ``icetower/room/module.function``.
        name: what the mutant does.
        old, new: a text that the function holds once, and what it says instead.
    """

    rule: str
    where: str
    name: str
    old: str = ""
    new: str = ""
    package: str = "icetower"

    @contextmanager
    def applied(self) -> Generator[None]:
        """The running code with this change, while the context lasts. Raises `Stale`.

        The function stays the same object with other code, so that everybody who holds it has the mutant.
        """
        function = self.function()
        code, mutant = function.__code__, self._code(function)
        function.__code__ = mutant
        try:
            yield
        finally:
            function.__code__ = code

    def _code(self, function: FunctionType) -> CodeType:
        text = textwrap.dedent(inspect.getsource(function))
        if text.count(self.old) != 1:
            raise Stale(f"{self.name!r}: {self.where} holds {self.old!r} {text.count(self.old)} times, not once")
        tree = ast.parse(text.replace(self.old, self.new))
        definition = tree.body[0]
        assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
        definition.decorator_list.clear()
        module = compile(tree, f"<{self.name}>", "exec")  # with this module's future features, which are the code's
        return next(each for each in module.co_consts if isinstance(each, CodeType))

    def function(self) -> FunctionType:
        """What is mutated. Raises `Stale`."""
        module, *names = self.where.split(".")
        path = module.replace("/", ".")
        found: Any = importlib.import_module(path if path.startswith("icetower.") else f"{self.package}.{path}")
        for name in names:
            found = inspect.getattr_static(found, name, None)
        if isinstance(found, property):
            found = found.fget
        elif isinstance(found, cached_property):
            found = found.func
        else:
            found = inspect.unwrap(found) if callable(found) else found  # a cache is about a function
        if not isinstance(found, FunctionType):
            raise Stale(f"{self.package} has no function {self.where}")
        return found


def parsed(lines: Iterable[str], kind: type[M]) -> tuple[M, ...]:
    """The mutations of a list. Raises `Stale`."""
    found: list[M] = []
    rule = where = part = ""
    for line in (line.rstrip("\n") for line in lines):
        text = line[4:]
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            rule, _, where = line.partition(" ")
        elif line.startswith(("  - ", "  + ")) and found:
            part = "old" if line[2] == "-" else "new"
            found[-1] = replace(found[-1], **{part: text})
        elif line.startswith("    ") and found:
            found[-1] = replace(found[-1], **{part: f"{getattr(found[-1], part)}\n{line[2:]}"})
        elif rule and where:
            found.append(kind(rule, where, line.strip()))
        else:
            raise Stale(f"{line!r} belongs to nothing")
    return tuple(found)
