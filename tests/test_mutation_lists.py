"""Every mutation of every list in the repository still fits the code. Hunting them takes long; this takes seconds."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from verify import mutants
from verify.oracle.mutations import CAUGHT
from verify.torture.mutations import MUTATIONS as OF_THE_ENGINE
from verify.torture.mutations import Mutation as OfTheEngine

ROOT = Path(__file__).parent.parent
LISTS = {path.parent.name: path for path in ROOT.glob("*/*/mutations.txt")}
"""Lists of changed texts (`mutants`), by the tool that hunts them. The engine's are patches, written in Python."""


def of_list(tool: str) -> tuple[mutants.Mutation, ...]:
    """The mutations that a tool hunts."""
    return importlib.import_module(f"verify.{tool}.mutations").MUTATIONS


def test_all_lists_are_known() -> None:
    assert set(LISTS) == {"differential", "oracle"}
    assert {path.parent.name for path in ROOT.glob("*/*/mutations.py")} == {*LISTS, "torture"}


@pytest.mark.parametrize("tool", LISTS)
def test_a_list_is_hunted_as_a_whole(tool: str) -> None:
    named = mutants.parsed(LISTS[tool].read_text().splitlines(), mutants.Mutation)
    assert [each.name for each in named] == [each.name for each in of_list(tool)]
    assert len({each.name for each in named}) == len(named) > 40


@pytest.mark.parametrize(
    "mutation", [each for tool in LISTS for each in of_list(tool)], ids=lambda each: f"{each.where}: {each.name}"
)
def test_a_mutation_fits_and_leaves_the_code_as_it_was(mutation: mutants.Mutation) -> None:
    function = mutation.function()
    before = function.__code__
    with mutation.applied():
        assert function.__code__ is not before
        assert function.__code__.co_code != before.co_code or function.__code__.co_consts != before.co_consts
        assert function.__code__.co_varnames[: before.co_argcount] == before.co_varnames[: before.co_argcount]
    assert function.__code__ is before


@pytest.mark.parametrize("mutation", OF_THE_ENGINE, ids=lambda mutation: mutation.name)
def test_a_patch_fits_and_leaves_the_code_as_it_was(mutation: OfTheEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is patched exists, is another thing meanwhile, and is called as before."""
    patched: dict[tuple[Any, str], Any] = {}
    multiple: Callable[..., AbstractContextManager[Any]] = mock.patch.multiple

    def noted(owner: Any, **changes: Any) -> AbstractContextManager[Any]:
        patched.update({(owner, name): inspect.getattr_static(owner, name) for name in changes})
        return multiple(owner, **changes)

    monkeypatch.setattr(mock.patch, "multiple", noted)
    with mutation.patch():
        assert patched
        for (owner, name), before in patched.items():
            mutant = inspect.getattr_static(owner, name)
            assert mutant is not before, name
            if callable(before):
                _check_call(before, mutant)
    for (owner, name), before in patched.items():
        assert inspect.getattr_static(owner, name) is before, name


def _check_call(before: Callable[..., Any], mutant: Callable[..., Any]) -> None:
    """A mutant takes the arguments that the function takes. Raises `TypeError`."""
    parameters = inspect.signature(before).parameters.values()
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    inspect.signature(mutant).bind(
        *(None for each in parameters if each.kind in plain),
        **{each.name: None for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY},
    )
    assert inspect.iscoroutinefunction(mutant) == inspect.iscoroutinefunction(before)


def test_the_case_that_caught_each_mutation_of_the_gate_is_known() -> None:
    assert set(json.loads(CAUGHT.read_text())) == {each.name for each in of_list("oracle")}
