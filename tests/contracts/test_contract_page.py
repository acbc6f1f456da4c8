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


def fields() -> Iterator[tuple[str, Any, bool]]:
    """All fields that a contract may have, as their rows name them; what the schema says of them; whether required."""

    def of(schema: Any, before: str = "") -> Iterator[tuple[str, Any, bool]]:
        for name, field in schema["properties"].items():
            yield f"{before}{name}", field, name in schema.get("required", ())

    entry = CONTRACT["properties"]["tables"]["items"]
    yield from (field for field in of(CONTRACT) if field[1].get("type") not in ("object", "array"))
    yield from of(entry)
    yield from of(entry["properties"]["quotas"], "quotas.")
    for name, clause in CONTRACT["properties"].items():
        if clause.get("type") == "object":
            yield from of(clause, "quotas." if name == "quotas" else "")


CONTRACT = document_schema()
ROWS = dict(re.findall(r"^\| `([a-z_.]+)`[^|]*\| (.*) \|$", PAGE, re.MULTILINE))


@pytest.mark.parametrize(("name", "field", "required"), [*fields()], ids=[name for name, _, _ in fields()])
def test_every_field_has_a_row_with_its_values_and_its_default(name: str, field: Any, required: bool) -> None:
    row = ROWS[name]
    values = ["true", "false"] if field.get("type") == "boolean" else [v for v in field.get("enum", ()) if v != "1"]
    assert row.startswith(", ".join(f"`{value}`" for value in values))
    assert ("| required" in row) is (required and not name.startswith("quotas."))
    if "default" in field:
        default = str(field["default"]).lower()
        assert f"| `{default}`" in row


@pytest.mark.parametrize("name", CONTRACT["properties"])
def test_every_clause_is_explained(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize(
    "word", [*Operation, *KeyWay, "shadow", "scheduler", "mediator", "collector", "serializable", "owned"]
)
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
