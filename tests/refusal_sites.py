"""Every place of the source that refuses: read from its syntax, and resolved to rule, status and next step.

An error's rule and next step are constants, a choice between constants, or a name that stands for one. Some functions
make errors by a rule that their caller passes (`Maker`): then each of its callers is such a place.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

from icetower import errors
from icetower.admission.refusals import refusal
from icetower.contracts.check import Violation
from icetower.protocol.names import Identifier
from icetower.registry.principals import administrator

SOURCE = Path(__file__).resolve().parent.parent / "src"
AT_A_TERMINAL = ("cli", "demo")
"""Packages whose errors are for people at a terminal. No agent receives them."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = tuple[Function | None, ast.ClassDef | None]


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of errors: its status, and the rule and the next step that it has by itself."""

    status: int
    rule: str
    next_step: str


@dataclass(frozen=True, slots=True)
class Site:
    """A refusal. A part of the rule that is only known when it is raised is `*`."""

    rule: str
    status: int
    next_step: str


@dataclass(frozen=True, slots=True)
class Maker:
    """A function that makes an error by a rule that it is passed.

    Attributes:
        position: of the rule among its arguments, `self` left out.
        takes_step: whether its caller may pass another next step, too.
    """

    position: int
    status: int
    next_step: str
    takes_step: bool


@cache
def sites() -> dict[Site, set[str]]:
    """Each refusal, with the modules that make it."""
    modules = {name: ast.parse(path.read_text()) for name, path in _paths()}
    constants = {name: _constants(tree) for name, tree in modules.items()}
    kinds = _kinds(modules)
    found: dict[Site, set[str]] = {}
    for name, tree in modules.items():
        for site in _sites(tree, constants[name] | _imported(tree, constants), kinds):
            found.setdefault(site, set()).add(name)
    return found


def _paths() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[1] not in AT_A_TERMINAL and parts[-1] != "errors":
            yield ".".join(parts), path


def _kinds(modules: Mapping[str, ast.Module]) -> dict[str, Kind]:
    """Classes of errors by name; those that agents may meet."""
    found = {
        name: Kind(kind.status, kind.default_rule, kind.default_next_step)
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.IcetowerError) and name not in ("ConfigurationError", "UsageError")
    }
    derived = [node for tree in modules.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for node in derived:
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in found:
                found[node.name] = found[base.id]
    return found


def _sites(tree: ast.Module, constants: Mapping[str, str], kinds: Mapping[str, Kind]) -> Iterator[Site]:
    calls = list(_calls(tree))
    makers: dict[str, list[Maker]] = {}
    complete = {of.name for (_, of), call in calls if of is not None and ast.unparse(call.func) == "super().__init__"}
    for scope, call in calls:
        kind = kinds.get(_name(call, scope))
        if kind is None or _name(call, (None, None)) in complete:
            continue
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        steps = _values(given["next_step"], scope, constants) if "next_step" in given else []
        position = _position(given.get("rule"), scope)
        if position is None:
            rules = _values(given["rule"], scope, constants) if "rule" in given else [kind.rule]
            yield from (Site(rule, kind.status, step) for rule, step in product(rules, steps or [kind.next_step]))
        else:
            assert scope[0] is not None
            makers.setdefault(scope[0].name, []).extend(
                Maker(position, kind.status, step, "next_step" in given and not steps)
                for step in steps or [kind.next_step]
            )
    for scope, call in calls:
        name, given = _name(call, scope), {keyword.arg: keyword.value for keyword in call.keywords}
        if name in ("Violation", "Undecided"):  # verdicts, from which `refusal` makes errors
            for rule in _values(call.args[0], scope, constants):
                for over in (False, True) if "over" in given else (False,):
                    verdict = Violation(rule, (), "no", over=over)
                    error = refusal(verdict, administrator("root"), Identifier.parse("a.b"))
                    yield Site(rule, error.status, error.next_step)
        if name == "Reason":  # why a commit is not rebased, of which `rebase` makes errors
            stale = errors.CommitConflict
            for rule in _values(call.args[0], scope, constants):
                yield Site(rule, stale.status, stale.default_next_step)
        for maker in makers.get(name, ()):
            node = given.get("rule") or (call.args[maker.position] if len(call.args) > maker.position else None)
            rules = [] if node is None else _values(node, scope, constants)
            passed = _values(given["next_step"], scope, constants) if maker.takes_step and "next_step" in given else []
            yield from (Site(rule, maker.status, step) for rule, step in product(rules, passed or [maker.next_step]))


def _values(node: ast.expr, scope: Scope, constants: Mapping[str, str]) -> list[str]:
    """The texts that an expression may be; none where it comes from elsewhere, such as another error's rule."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.IfExp():
            return [*_values(node.body, scope, constants), *_values(node.orelse, scope, constants)]
        case ast.JoinedStr():
            return ["".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)]
        case ast.Name(id=name):
            function = scope[0]
            local = [] if function is None else list(_assigned(name, function, constants))
            return local or ([constants[name]] if name in constants else [])
        case _:
            return []


def _assigned(name: str, function: Function, constants: Mapping[str, str]) -> Iterator[str]:
    """The texts that a function assigns to a name of its own, alone or beside others."""
    for node in ast.walk(function):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            for one, value in pairs:
                if isinstance(one, ast.Name) and one.id == name:
                    yield from _values(value, (None, None), constants)


def _position(node: ast.expr | None, scope: Scope) -> int | None:
    """Which parameter of its function a rule is, `self` left out; None where it is none."""
    if scope[0] is None or not isinstance(node, ast.Name):
        return None
    arguments = scope[0].args
    names = [
        each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs) if each.arg != "self"
    ]
    return names.index(node.id) if node.id in names else None


def _constants(tree: ast.Module) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found |= {target.id: node.value.value for target in node.targets if isinstance(target, ast.Name)}
    return found


def _imported(tree: ast.Module, constants: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            theirs = constants.get(node.module or "", {})
            found |= {each.asname or each.name: theirs[each.name] for each in node.names if each.name in theirs}
    return found


def _calls(node: ast.AST, scope: Scope = (None, None)) -> Iterator[tuple[Scope, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        function, owner = scope
        if isinstance(child, Function):
            function = child
        elif isinstance(child, ast.ClassDef):
            owner = child
        elif isinstance(child, ast.Call):
            yield scope, child
        yield from _calls(child, (function, owner))


def _name(call: ast.Call, scope: Scope) -> str:
    """The function or class that is called, as this module names it; of `super().__init__`, the class it is in."""
    match call.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="errors" | "self"), attr=name):
            return name
        case ast.Attribute(attr="__init__") if scope[1] is not None and ast.unparse(call.func) == "super().__init__":
            return scope[1].name
        case _:
            return ""
