"""The tables of docs/invariants.md, from `invariants.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

from tools.reference.citations import id_of_test, ids
from tools.reference.pages import code, table
from tools.reference.tests import Test, all_tests

_FILE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, slots=True)
class Invariant:
    """What must hold; the head of `invariants.toml` says what the fields are. `area`: the letter of its id."""

    id: str
    area: str
    holds: str
    why: str
    source: str
    tests: tuple[str, ...]
    not_yet: str = ""


@cache
def read() -> tuple[Invariant, ...]:
    """All of them, in the order of the file."""
    return tuple(
        Invariant(id_, area, **entry | {"tests": tuple(entry["tests"])})
        for area, entries in tomllib.loads(_FILE.read_text()).items()
        for id_, entry in entries.items()
        if id_ != "title"
    )


def cites(test: Test) -> set[str]:
    """The invariants that a test names: in its name, or in its docstring."""
    found = id_of_test(test.function)
    return ids(test.text) | ({found} if found else set())


def held_by(invariant: Invariant) -> list[Test]:
    """The tests that a manifest entry stands for. A module stands for those of its tests that name the id."""
    by_module = {module: list(of) for module, of in groupby(all_tests().values(), lambda test: test.module)}
    found: list[Test] = []
    for name in invariant.tests:
        if "::" in name:
            found += [all_tests()[name]] if name in all_tests() else []
        else:
            found += [test for test in by_module.get(name, ()) if invariant.id in cites(test)]
    return found


def tables() -> dict[str, str]:
    """By area, as docs/invariants.md has them."""
    return {area: table(("id", "what must hold", "why", "source", "tests"), _rows(of)) for area, of in _areas()}


def _areas() -> Iterator[tuple[str, Iterable[Invariant]]]:
    yield from groupby(read(), lambda invariant: invariant.area)


def _rows(invariants: Iterable[Invariant]) -> Iterator[tuple[str, ...]]:
    for each in invariants:
        yield (
            f"`{each.id}`",
            each.holds + (f" *Not yet:* {each.not_yet}" if each.not_yet else ""),
            each.why,
            each.source,
            code(each.tests),
        )
