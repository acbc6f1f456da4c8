"""Every rule by which something is refused, anywhere in the source, and the next step that goes with it: documented."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path

from icetower import errors
from icetower.admission.refusals import refusal
from icetower.contracts.check import Violation
from icetower.protocol.names import Identifier
from icetower.registry.principals import administrator

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
AT_A_TERMINAL = ("cli", "demo")
"""Rooms whose errors no agent hears of."""


def test_every_rule_leads_to_a_documented_next_step() -> None:
    documented = {step: entries for step, entries in _documented().items() if entries}
    found = _found()
    assert len(found) > 150
    missing = sorted(
        f"{rule}: {step} ({', '.join(sorted(found[rule, step]))})"
        for rule, step in found
        if not any(fnmatchcase(rule, entry) or rule == entry for entry in documented.get(step, ()))
    )
    assert missing == []
    stale = [
        f"{entry}: {step}"
        for step, entries in documented.items()
        for entry in entries
        if not any(s == step and (rule == entry or fnmatchcase(rule, entry)) for rule, s in found)
    ]
    assert stale == []


def test_every_next_step_is_explained() -> None:
    explained = re.findall(r"^\| `(\w+)` \|", PROTOCOL.split("| what to do |")[1].split("\n\n")[0], re.MULTILINE)
    words = set(
        re.findall(r"``(\w+)``", (errors.IcetowerError.__doc__ or "").split("next_step:")[1].split("owner:")[0])
    )
    assert set(explained) == words == {step for _, step in _found()}


def _documented() -> dict[str, list[str]]:
    """By next step, the rules of the table "Where each rule leads"."""
    section = PROTOCOL.split("### Where each rule leads")[1].split("\n#")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    return {step: re.findall(r"`([^`]+)`", rules) for step, rules in rows}


# ----------------------------------------------------------------------------------------------- what the source raises

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Helper:
    """A function that makes an error by a rule that it is given.

    Attributes:
        position: of the rule among its arguments, `self` left out.
        steps: of the errors that it makes: the step, and whether it may be told another.
    """

    position: int
    steps: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])


class Module:
    """One module of the source.

    Attributes:
        texts: what stands at its top, by name; imported ones too.
        calls: each with the function that it is in.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.tree = ast.parse(path.read_text())
        self.texts = _texts_at_the_top(self.tree)
        self.calls = list(_calls(self.tree))

    def take_imports(self, modules: Mapping[str, Module]) -> None:
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                theirs = modules[node.module].texts
                self.texts |= {
                    each.asname or each.name: theirs[each.name] for each in node.names if each.name in theirs
                }

    def values(self, node: ast.expr, function: Function | None) -> list[str]:
        """What a text may be; nothing where it is handed on from elsewhere."""
        if isinstance(node, ast.Constant):
            return [node.value] if isinstance(node.value, str) else []
        if isinstance(node, ast.IfExp):
            return [*self.values(node.body, function), *self.values(node.orelse, function)]
        if isinstance(node, ast.JoinedStr):
            return ["".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)]
        if isinstance(node, ast.Name):
            local = self._assigned(node.id, function) if function is not None else []
            return local or ([self.texts[node.id]] if node.id in self.texts else [])
        return []

    def _assigned(self, name: str, function: Function) -> list[str]:
        """Texts that a function gives to a name of its own, alone or in a row with others."""
        found: list[str] = []
        for node in ast.walk(function):
            for target in node.targets if isinstance(node, ast.Assign) else ():
                assert isinstance(node, ast.Assign)
                row = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                pairs = zip(target.elts, node.value.elts, strict=True) if row else [(target, node.value)]  # type: ignore[attr-defined]
                for one, value in pairs:
                    if isinstance(one, ast.Name) and one.id == name:
                        found += self.values(value, None)
        return found


def _found() -> dict[tuple[str, str], set[str]]:
    """(rule, next step) → the modules that refuse by it. What stands in for a part of a rule is `*`."""
    modules = _modules()
    classes = _error_classes(modules)
    found: dict[tuple[str, str], set[str]] = {}
    for module in modules.values():
        helpers: dict[str, Helper] = {}
        for function, call in module.calls:
            kind, given = classes.get(_name(call)), _keywords(call)
            if kind is None:
                continue
            default_step, default_rule = kind
            told = module.values(given["next_step"], function) if "next_step" in given else []
            steps = told or [default_step]
            position = _parameter(given["rule"], function) if "rule" in given else None
            if position is not None and function is not None:
                helper = helpers.setdefault(function.name, Helper(position))
                helper.steps += [(step, not told and "next_step" in given) for step in steps]
                continue
            rules = module.values(given["rule"], function) if "rule" in given else [default_rule]
            for rule, step in product(rules, steps):
                found.setdefault((rule, step), set()).add(module.name)
        for function, call in module.calls:
            helper, given = helpers.get(_name(call)), _keywords(call)
            if helper is None:
                continue
            node = given.get("rule") or (call.args[helper.position] if len(call.args) > helper.position else None)
            rules = [] if node is None else module.values(node, function)
            told = module.values(given["next_step"], function) if "next_step" in given else []
            for rule, (step, may_be_told) in product(rules, helper.steps):
                for said in (may_be_told and told) or [step]:
                    found.setdefault((rule, said), set()).add(module.name)
        for _, call in module.calls:
            if _name(call) in ("Violation", "Undecided"):  # verdicts, of which `refusal` makes errors
                for rule in module.values(call.args[0], None):
                    error = refusal(Violation(rule, (), "no"), administrator("root"), Identifier.parse("a.b"))
                    found.setdefault((rule, error.next_step), set()).add(module.name)
    return found


def _modules() -> dict[str, Module]:
    found: dict[str, Module] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[1] not in AT_A_TERMINAL and parts[-1] != "errors":
            found[".".join(parts)] = Module(path)
    for module in found.values():
        module.take_imports(found)
    return found


def _error_classes(modules: Mapping[str, Module]) -> dict[str, tuple[str, str]]:
    """Error classes by name, each with its default next step and rule; those that agents may meet."""
    found: dict[str, tuple[str, str]] = {}
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.IcetowerError) and name not in ("ConfigurationError", "UsageError"):
            found[name] = kind.default_next_step, kind.default_rule
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in found]
                found |= {node.name: _own(node, module, found[base]) for base in bases}  # noqa: B035 - of one base
    return found


def _own(node: ast.ClassDef, module: Module, base: tuple[str, str]) -> tuple[str, str]:
    """Next step and rule that a class gives to all of its errors."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and ast.unparse(inner.func) == "super().__init__":
            given = _keywords(inner)
            said = [module.values(given[name], None) if name in given else [] for name in ("next_step", "rule")]
            return said[0][0] if said[0] else base[0], said[1][0] if said[1] else base[1]
    return base


def _texts_at_the_top(tree: ast.Module) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found |= {target.id: node.value.value for target in node.targets if isinstance(target, ast.Name)}
    return found


def _calls(tree: ast.AST, function: Function | None = None) -> Iterator[tuple[Function | None, ast.Call]]:
    for node in ast.iter_child_nodes(tree):
        inner = node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(node, ast.Call):
            yield inner, node
        yield from _calls(node, inner)


def _name(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        of_errors = isinstance(function.value, ast.Name) and function.value.id in ("errors", "self")
        return function.attr if of_errors else ""
    return function.id if isinstance(function, ast.Name) else ""


def _keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


def _parameter(node: ast.expr, function: Function | None) -> int | None:
    """Which argument of a function a name is, `self` left out."""
    if function is None or not isinstance(node, ast.Name):
        return None
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    names = [name for name in names if name != "self"] + [argument.arg for argument in function.args.kwonlyargs]
    return names.index(node.id) if node.id in names else None
