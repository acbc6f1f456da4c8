"""The table of the server's own rules in docs/conflicts.md, from `server_rules.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tools.reference.pages import code, table

_FILE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, slots=True)
class ServerRule:
    """A rule of the server; the head of `server_rules.toml` says what its fields are."""

    id: str
    module: str
    refuses: str
    stands_for: tuple[str, ...]
    wire: str
    stricter: str
    admits: tuple[str, ...]
    tests: tuple[str, ...]


EXCEPTIONS: dict[str, str] = tomllib.loads(_FILE.read_text())["exceptions"]
"""By name, the number of the exception in ARCHITECTURE.md, "Never weaker than Iceberg"."""


@cache
def read() -> tuple[ServerRule, ...]:
    """All rules, in the order of the file."""
    entries = tomllib.loads(_FILE.read_text())
    return tuple(_rule(id_, entry) for id_, entry in entries.items() if id_ != "exceptions")


def _rule(id_: str, entry: Mapping[str, Any]) -> ServerRule:
    fields: dict[str, Any] = {name: tuple(of) if isinstance(of, list) else of for name, of in entry.items()}
    return ServerRule(id_, **fields)


def tables() -> dict[str, str]:
    """As docs/conflicts.md has them."""
    rows = [
        (
            f"`{rule.id}`",
            rule.refuses,
            code(rule.stands_for),
            rule.stricter,
            ", ".join(f"{EXCEPTIONS[name]} `{name}`" for name in rule.admits),
            code(rule.tests),
        )
        for rule in read()
    ]
    head = ("rule", "the commit, and what was written meanwhile", "stands for", "stricter", "admits more by", "held by")
    return {"server_rules": table(head, rows)}
