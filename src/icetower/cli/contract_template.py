"""A first contract: the known fields are filled in, and the others are included as comments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml

from icetower.contracts.document import load
from icetower.contracts.fields import Hint, Part, fields_of
from icetower.contracts.model import VERSION, Contract, Rule
from icetower.contracts.schema import FILE_NAME
from icetower.errors import BadRequest, UsageError


@dataclass(frozen=True, slots=True)
class TemplateFields:
    """The fields that the author has given; empty if not given."""

    agent: str
    tables: Sequence[str] = ()
    operations: Sequence[str] = ()
    owner: str = ""
    escalation: str = ""


def template(author: TemplateFields) -> str:
    """The text of the contract. Raises `UsageError` if a given field is invalid in a contract."""
    values = {
        "agent": author.agent,
        "owner": _scalar(author.owner),
        "tables": "\n" + "".join(_entry(table, author.operations) for table in author.tables or ("namespace.table",)),
        "escalation": f"{{after_failures: 5, within: 10m, to: {_scalar(author.escalation)}}}",
    }
    known = {"agent", "tables", *(name for name in ("owner", "escalation") if getattr(author, name))}
    text = f"""\
# yaml-language-server: $schema={FILE_NAME}
# The isolation contract of {author.agent}. It lies beside the agent's code, and is reviewed in the same pull request.
# `icetower contracts check` looks it through, and `icetower contracts apply` puts it in force. What is not granted here
# is refused.
version: {VERSION}
{_lines(Contract, {name: values[name] for name in known})}"""
    try:
        load(text, source=author.agent)
    except BadRequest as error:
        raise UsageError(f"this does not make a valid contract: {error.message}") from error
    return text


def _entry(table: str, operations: Sequence[str]) -> str:
    values = {"table": _scalar(table)}
    if operations:
        values["operations"] = f"[{', '.join(_scalar(operation) for operation in operations)}]"
    first, *others = _lines(Rule, values).splitlines()
    return "".join([f"  - {first}\n", *(f"    {line}\n" for line in others)])


def _lines(part: type[Part], values: Mapping[str, str]) -> str:
    """The fields of a part: those that are given or belong in every contract, and the others as comments."""
    text = ""
    for field in fields_of(part).values():
        hint = field.hint or Hint(values.get(field.name, ""))
        value = values.get(field.name, hint.value)
        if value:
            space, note = "" if value.startswith("\n") else " ", f" # {hint.note}" if hint.note else ""
            lines = f"{field.name}:{space}{value}{note}".rstrip("\n")
            is_on = hint.on or field.name in values
            text += hint.above + (lines if is_on else "# " + lines.replace("\n", "\n# ")) + "\n"
    return text


def _scalar(text: str) -> str:
    """A text as YAML, quoted where it must be."""
    return yaml.safe_dump([text], default_flow_style=True, allow_unicode=True, width=10_000).strip()[1:-1]
