"""A contract to begin with: what is known is filled in, and the rest stands beside it as comments."""

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
class Wishes:
    """What its author knows already; empty where nothing was said."""

    agent: str
    tables: Sequence[str] = ()
    operations: Sequence[str] = ()
    owner: str = ""
    escalation: str = ""


def template(wishes: Wishes) -> str:
    """The text of the contract. Raises `UsageError` where a wish is none that a contract can hold."""
    given = {
        "agent": wishes.agent,
        "owner": _scalar(wishes.owner),
        "tables": "\n" + "".join(_entry(table, wishes.operations) for table in wishes.tables or ("namespace.table",)),
        "escalation": f"{{after_failures: 5, within: 10m, to: {_scalar(wishes.escalation)}}}",
    }
    known = {"agent", "tables", *(name for name in ("owner", "escalation") if getattr(wishes, name))}
    text = f"""\
# yaml-language-server: $schema={FILE_NAME}
# The isolation contract of {wishes.agent}. It lies beside the agent's code, and is reviewed in the same pull request.
# `icetower contracts check` looks it through, and `icetower contracts apply` puts it in force. What is not granted here
# is refused.
version: {VERSION}
{_lines(Contract, {name: given[name] for name in known})}"""
    try:
        load(text, source=wishes.agent)
    except BadRequest as error:
        raise UsageError(f"that makes no contract: {error.message}") from error
    return text


def _entry(table: str, operations: Sequence[str]) -> str:
    given = {"table": _scalar(table)}
    if operations:
        given["operations"] = f"[{', '.join(_scalar(operation) for operation in operations)}]"
    first, *others = _lines(Rule, given).splitlines()
    return "".join([f"  - {first}\n", *(f"    {line}\n" for line in others)])


def _lines(part: type[Part], given: Mapping[str, str]) -> str:
    """The fields of a part: those that are given or go with every contract, and others as comments."""
    text = ""
    for field in fields_of(part).values():
        hint = field.hint or Hint(given.get(field.name, ""))
        value = given.get(field.name, hint.value)
        if value:
            space, note = "" if value.startswith("\n") else " ", f" # {hint.note}" if hint.note else ""
            lines = f"{field.name}:{space}{value}{note}".rstrip("\n")
            is_on = hint.on or field.name in given
            text += hint.above + (lines if is_on else "# " + lines.replace("\n", "\n# ")) + "\n"
    return text


def _scalar(text: str) -> str:
    """A text as YAML, quoted where it must be."""
    return yaml.safe_dump([text], default_flow_style=True, allow_unicode=True, width=10_000).strip()[1:-1]
