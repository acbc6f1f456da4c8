"""A divergence, made small: delta debugging over a case.

`shrink` repeats passes, from coarse to fine, until none of them finds anything more to take away: whole writers, steps,
nesting, parts of operations, files, statistics, properties, specs, values. Each candidate is tried with `diverges`,
and kept if it still does. The order of the passes and candidates is fixed, so the result depends on nothing else.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

Case = dict[str, Any]
Step = dict[str, Any]
Path = tuple[Any, ...]

TRIES_MAX = 3000
"""How many candidates are tried before the best case so far is returned."""


def shrink(case: Case, diverges: Callable[[Case], bool], tries_max: int = TRIES_MAX) -> Case:
    """The smallest case found that still diverges. `diverges` must be False for cases that make no sense."""
    return _Shrinker(diverges, tries_max).run(copy.deepcopy(case))


class _Enough(Exception):
    """The tries are used up."""


class _Shrinker:
    def __init__(self, diverges: Callable[[Case], bool], tries_max: int) -> None:
        self.diverges = diverges
        self.tries_left = tries_max
        self.tried: set[str] = set()

    def run(self, case: Case) -> Case:
        self.best = case
        try:
            shrunk = True
            while shrunk:
                shrunk = False
                for candidates in PASSES:
                    shrunk |= self._pass(candidates)
        except _Enough:
            pass
        return self.best

    def _pass(self, candidates: Callable[[Case], Iterator[Case]]) -> bool:
        """Go through the candidates until none diverges; begin again after each that does."""
        shrunk = False
        while any(self._keeps(candidate) for candidate in candidates(self.best)):
            shrunk = True
        return shrunk

    def _keeps(self, candidate: Case) -> bool:
        text = json.dumps(candidate, sort_keys=True)
        if text in self.tried:
            return False
        self.tried.add(text)
        if not self.tries_left:
            raise _Enough
        self.tries_left -= 1
        if not self.diverges(copy.deepcopy(candidate)):
            return False
        self.best = candidate
        return True


# --- steps ---------------------------------------------------------------------------------------------------------


def _steps(case: Case) -> Iterator[tuple[list[Step], int]]:
    """Every step as (list that it is in, index), nested ones after those that hold them."""

    def within(steps: list[Step]) -> Iterator[tuple[list[Step], int]]:
        for index, step in enumerate(steps):
            yield steps, index
            for slot in step.get("between", ()):
                yield from within(slot)

    yield from within(case["steps"])


def _count(case: Case) -> int:
    return sum(1 for _ in _steps(case))


def _changed(case: Case, number: int, change: Callable[[list[Step], int], None]) -> Case:
    """A copy of the case in which step `number` was changed."""
    out = copy.deepcopy(case)
    steps, index = list(_steps(out))[number]
    change(steps, index)
    return out


def _without_writer(steps: list[Step], which: int) -> list[Step]:
    """Without all that a writer does; what happened between its attempts is kept, one after another."""
    out: list[Step] = []
    for step in steps:
        nested = [inner for slot in step.get("between", ()) for inner in _without_writer(slot, which)]
        if step.get("id") == which:
            out += [inner for inner in nested if inner["do"] != "fail"]
        elif "between" in step:
            out.append(step | {"between": [_without_writer(slot, which) for slot in step["between"]]})
        else:
            out.append(step)
    return out


def _writers(case: Case) -> Iterator[Case]:
    """Without one writer, the last first: the earlier ones made what it works on."""
    ids = dict.fromkeys(steps[index]["id"] for steps, index in _steps(case) if "id" in steps[index])
    for which in reversed(ids):
        yield copy.deepcopy(case) | {"steps": _without_writer(copy.deepcopy(case["steps"]), which)}


def _single_steps(case: Case) -> Iterator[Case]:
    """Without one step."""
    for number in reversed(range(_count(case))):
        yield _changed(case, number, _without_step)


def _without_step(steps: list[Step], index: int) -> None:
    del steps[index]


def _nesting(case: Case) -> Iterator[Case]:
    """With fewer slots, with what is nested done before, or with `begin` moved next to its `commit`."""
    flat = list(_steps(case))
    for number, (steps, index) in enumerate(flat):
        step = steps[index]
        for slot in reversed(range(len(step.get("between", ())))):
            yield _changed(case, number, lambda inside, at, slot=slot: inside[at]["between"].__delitem__(slot))
        if "between" in step:
            yield _changed(case, number, _hoist)
        if step["do"] == "commit":
            yield _changed(case, number, _without_between)
        if step["do"] == "begin":
            out = copy.deepcopy(case)
            if _joined(out["steps"], step["id"]):
                yield out


def _hoist(steps: list[Step], index: int) -> None:
    between = steps[index].pop("between")
    steps[index:index] = [inner for slot in between for inner in slot if inner["do"] != "fail"]


def _without_between(steps: list[Step], index: int) -> None:
    steps[index].pop("between", None)


def _joined(steps: list[Step], which: int) -> bool:
    """Make one `write` of a writer's `begin` and its `commit` in the same list, if nothing is nested in it."""
    for index, step in enumerate(steps):
        if step["do"] == "begin" and step["id"] == which:
            for later in range(index + 1, len(steps)):
                commit = steps[later]
                if commit["do"] == "commit" and commit["id"] == which and not commit.get("between"):
                    steps[later] = {"do": "write", "id": which, "op": step["op"]}
                    del steps[index]
                    return True
            return False
        if any(_joined(slot, which) for slot in step.get("between", ())):
            return True
    return False


# --- parts ---------------------------------------------------------------------------------------------------------


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _without(case: Case, path: Path) -> Case:
    out = copy.deepcopy(case)
    del _at(out, path[:-1])[path[-1]]
    return out


def _with(case: Case, path: Path, value: Any) -> Case:
    out = copy.deepcopy(case)
    _at(out, path[:-1])[path[-1]] = copy.deepcopy(value)
    return out


def _operations(case: Case) -> Iterator[Path]:
    """The path of every operation."""

    def within(steps: list[Step], path: Path) -> Iterator[Path]:
        for index, step in enumerate(steps):
            if "op" in step:
                yield (*path, index, "op")
            for slot, inner in enumerate(step.get("between", ())):
                yield from within(inner, (*path, index, "between", slot))

    yield from within(case["steps"], ("steps",))


def _parts(case: Case) -> Iterator[Case]:
    """Operations without one of their parts, or without one item of it."""
    for path in _operations(case):
        for key, value in _at(case, path).items():
            if key == "kind":
                continue
            yield _without(case, (*path, key))
            if isinstance(value, list):
                for index in reversed(range(len(value))):
                    yield _without(case, (*path, key, index))
                    if isinstance(value[index], dict):
                        yield _with(case, (*path, key, index), value[index]["file"])


def _filters(case: Case) -> Iterator[Case]:
    """Operations with simpler filters: true, or one branch of what is there."""
    for path in _operations(case):
        for key in ("filter", "conflict_filter"):
            if key in _at(case, path):
                yield from (_with(case, (*path, key), simpler) for simpler in _simpler(_at(case, (*path, key))))


def _simpler(expression: Any) -> Iterator[Any]:
    if isinstance(expression, bool):
        return
    yield True
    for part in ("left", "right", "child"):
        if part in expression:
            yield expression[part]
            for inner in _simpler(expression[part]):
                yield expression | {part: inner}
    if len(expression.get("values", ())) > 1:
        for value in expression["values"]:
            yield {"type": {"in": "eq", "not-in": "not-eq"}[expression["type"]], "term": expression["term"]} | {
                "value": value
            }


# --- files, properties, specs --------------------------------------------------------------------------------------


def _named(case: Case) -> set[str]:
    """Every file that a step or another file names."""
    out: set[str] = set()

    def collect(value: Any) -> None:
        if isinstance(value, str):
            out.add(value)
        elif isinstance(value, dict):
            for item in value.values():
                collect(item)
        elif isinstance(value, list):
            for item in value:
                collect(item)

    collect(case["steps"])
    while True:
        before = len(out)
        for name in sorted(out & set(case["files"])):
            collect(case["files"][name].get("references"))
            collect(case["files"][name].get("path_bounds"))
        if len(out) == before:
            return out


def _unused_files(case: Case) -> Iterator[Case]:
    """Without the files that nothing names."""
    named = _named(case)
    if any(name not in named for name in case["files"]):
        yield case | {"files": {name: file for name, file in case["files"].items() if name in named}}


def _files(case: Case) -> Iterator[Case]:
    """Files without statistics or other optional parts, with one record."""
    for name, file in case["files"].items():
        for key in ("metrics", "references", "path_bounds", "sequence_number", "path", "size"):
            if key in file and not (key == "references" and file["content"] == "dv"):
                yield _without(case, ("files", name, key))
        for part in file.get("metrics", {}):
            yield _without(case, ("files", name, "metrics", part))
        if file["records"] > 1:
            yield _with(case, ("files", name, "records"), 1)


def _statistics(case: Case) -> Iterator[Case]:
    """Files that say less of one column."""
    for name, file in case["files"].items():
        columns = dict.fromkeys(column for part in file.get("metrics", {}).values() for column in part)
        for column in columns:
            out = copy.deepcopy(case)
            metrics = out["files"][name]["metrics"]
            for part in metrics.values():
                part.pop(column, None)
            yield out
        for part, of in file.get("metrics", {}).items():
            for column in of:
                yield _without(case, ("files", name, "metrics", part, column))


def _properties(case: Case) -> Iterator[Case]:
    """Without one property."""
    for key in case.get("properties", {}):
        yield _without(case, ("properties", key))


def _specs(case: Case) -> Iterator[Case]:
    """A spec with one field less, in all its files; without the last spec, if no file has it and no step names it."""
    for number, spec in enumerate(case["specs"]):
        for index in range(len(spec)):
            out = _without(case, ("specs", number, index))
            if out["specs"].count(out["specs"][number]) > 1:
                continue  # Iceberg would take two equal specs as one
            for file in out["files"].values():
                if file.get("spec", 0) == number and len(file.get("partition", ())) > index:
                    del file["partition"][index]
            yield out
    last = len(case["specs"]) - 1
    used = {file.get("spec", 0) for file in case["files"].values()}
    used |= {steps[index].get("spec", 0) for steps, index in _steps(case)}
    if last and last not in used:
        yield _without(case, ("specs", last))


def _formats(case: Case) -> Iterator[Case]:
    """A table of a lower format, or of the format to which a step upgrades it."""
    for lower in range(1, case["format"]):
        yield case | {"format": lower}
    for number, (steps, index) in enumerate(list(_steps(case))):
        if steps[index]["do"] == "upgrade":
            yield _changed(case, number, _without_step) | {"format": steps[index]["format"]}


def _values(case: Case) -> Iterator[Case]:
    """Partition values that are null or like another file's."""
    for name, file in case["files"].items():
        for index, value in enumerate(file.get("partition", ())):
            others = [
                other["partition"][index]
                for other in case["files"].values()
                if other.get("spec", 0) == file.get("spec", 0) and len(other.get("partition", ())) > index
            ]
            if others and others[0] != value:
                yield _with(case, ("files", name, "partition", index), others[0])


PASSES: tuple[Callable[[Case], Iterator[Case]], ...] = (
    _writers, _single_steps, _nesting, _unused_files, _parts, _filters, _files, _statistics, _properties, _specs,
    _formats, _values, _unused_files,
)  # fmt: skip
"""What is tried, in this order, from coarse to fine."""
