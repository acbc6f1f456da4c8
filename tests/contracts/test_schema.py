"""The schema that editors get: it is the published one, and says of a contract what `load` says, as far as it can."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import event, given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from icetower.contracts.document import dump, load, to_json
from icetower.contracts.schema import FILE_NAME, document_schema, schema_text
from icetower.errors import BadRequest
from tests.contracts.test_contract_model import CONTRACTS, FULL, REFUSED

ROOT = Path(__file__).parent.parent.parent
SCHEMA = Draft7Validator(document_schema())


class Editor(yaml.SafeLoader):
    """YAML as editors read it: of version 1.2, where a date is a text and `yes` a word."""


Editor.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":bool", ":merge"))]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Editor.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(true|false)$"), list("tf"))


def valid(text: str) -> bool:
    return SCHEMA.is_valid(yaml.load(text, Loader=Editor))


def loads(text: str) -> str:
    """Why it doesn't load; empty where it does."""
    try:
        load(text, source="test")
    except BadRequest as error:
        return error.message
    return ""


def test_the_published_file_is_the_schema() -> None:
    assert (ROOT / "docs" / FILE_NAME).read_text() == schema_text()
    Draft7Validator.check_schema(document_schema())


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "contracts").glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_valid(path: Path) -> None:
    assert valid(path.read_text())


def test_every_contract_that_can_be_written_is_valid() -> None:
    assert valid(FULL)


@settings(deadline=None)
@given(CONTRACTS)
def test_what_is_written_is_valid(contract: Any) -> None:
    assert valid(dump(contract))


# What a schema cannot say: of two names, two numbers, two dates; and how long a text is as a whole.
BEYOND = (
    "twice", "holds nothing", "raise 'max_wait'", "add 'checks'", "ten years", "anchor", "tag", "second document",
    "not YAML", "nested deeper", "longer",
)  # fmt: skip


@pytest.mark.parametrize(("text", "line", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_what_load_refuses_is_invalid(text: str, line: int, words: str) -> None:
    del line
    try:
        document = yaml.load(text, Loader=Editor)
    except (yaml.YAMLError, RecursionError):
        return
    assert not SCHEMA.is_valid(document) or any(beyond in words for beyond in BEYOND)


PLACES = st.lists(st.integers(0, 50), min_size=1, max_size=5)
JUNK = st.sampled_from(
    (None, "junk", "", [], {}, ["junk"], {"junk": "x"}, "day(ts)", "a.*", "10m", "0s", "all", "now", True, 7)
)
SHAPES = st.sampled_from(("replace", "remove", "rename", "add", "repeat"))


def mutated(document: Any, places: list[int], shape: str, junk: Any) -> Any:
    """A document with one thing changed, somewhere inside it."""
    whole = copy.deepcopy(document)
    at: Any = whole
    for place in places:
        keys = list(at) if isinstance(at, dict) else range(len(at))
        key = keys[place % len(keys)]
        if isinstance(at[key], dict | list) and at[key] and place is not places[-1]:
            at = at[key]
            continue
        if shape == "replace":
            at[key] = junk
        elif shape == "remove":
            del at[key]
        elif shape == "repeat" and isinstance(at, list):
            at.append(at[key])
        elif shape == "rename" and isinstance(at, dict):
            at[f"{key}x"] = at.pop(key)
        elif shape == "add" and isinstance(at, dict):
            at["junk"] = junk
        break
    return whole


def whole_text(value: Any) -> bool:
    """Whether all scalars are texts, as `load` takes them: an editor would call a number no name."""
    if isinstance(value, dict):
        return all(whole_text(item) for item in value.values())
    if isinstance(value, list):
        return all(whole_text(item) for item in value)
    return value is None or isinstance(value, str)


@settings(deadline=None, max_examples=200)
@given(CONTRACTS, PLACES, SHAPES, JUNK)
def test_the_schema_and_load_agree_on_contracts_with_a_mistake(
    contract: Any, places: list[int], shape: str, junk: Any
) -> None:
    document = mutated(to_json(contract), places, shape, junk)
    text = json.dumps(document, ensure_ascii=False)
    refusal = loads(text)
    event("refused" if refusal else "loaded")
    if refusal:
        assert not SCHEMA.is_valid(document) or any(beyond in refusal for beyond in BEYOND), refusal
    else:
        # What `load` takes for a text, an editor may take for a number.
        assert SCHEMA.is_valid(document) or not whole_text(junk), SCHEMA.iter_errors(document)
