"""docs/contracts.md says all that contracts can say, every finding and every command; and its examples are some."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from icetower.cli.app import app
from icetower.contracts import review
from icetower.contracts.document import load
from icetower.contracts.findings import RULES, Severity, Written
from icetower.contracts.model import KeyWay, Operation
from icetower.contracts.schema import document_schema

PAGE = (Path(__file__).parent.parent.parent / "docs" / "contracts.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def fields(schema: Any) -> Iterator[str]:
    """The names of all fields that a contract may have, at any depth."""
    if isinstance(schema, dict):
        yield from schema.get("properties") or ()
        for part in schema.values():
            yield from fields(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from fields(part)


@pytest.mark.parametrize("name", sorted({*fields(document_schema())} - {"from", "to"}))
def test_every_field_is_explained(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("word", [*Operation, *KeyWay, "shadow", "scheduler", "mediator", "serializable", "owned"])
def test_every_value_is_explained(word: str) -> None:
    assert f"`{word}`" in PAGE


@pytest.mark.parametrize("rule", RULES)
def test_every_finding_is_explained(rule: str) -> None:
    assert f"| `{rule}` | " in PAGE


def test_no_finding_is_made_up() -> None:
    section = PAGE[PAGE.index("### What `check` finds") : PAGE.index("## In a pull request")]
    assert set(re.findall(r"^\| `([a-z.]+)` \|", section, re.MULTILINE)) == set(RULES)


def test_every_command_is_there() -> None:
    group: Any = typer.main.get_command(app)
    for name in group.commands["contracts"].commands:
        assert f"`icetower contracts {name}" in PAGE, name


def test_the_whole_example_is_a_contract_without_a_fault() -> None:
    whole = Written.read(EXAMPLES[0], "docs/contracts.md")
    found = [finding for finding in review.one(whole, now_ms=0) if finding.severity is not Severity.NOTE]
    assert found == []
    said = yaml.safe_load(EXAMPLES[0])
    assert set(said) == set(document_schema()["properties"])


def test_the_example_of_regions_is_one() -> None:
    entry = "".join(f"  {line}\n" for line in EXAMPLES[1].splitlines())
    contract = load(f"version: 1\nagent: a\ntables:\n- table: a.b\n  operations: [append]\n{entry}", source="page")
    assert [len(contract.tables[0].partitions or ()), len(contract.tables[0].excluded)] == [2, 1]
