"""The rules by which something is refused, as data: `rules.toml`, read.

Clients and agents go by an error's rule, status and `next_step`, so these are part of the protocol. The table says of
each rule which statuses and next steps it may have, and what it means. docs/protocol.md is made from it (`make
reference`), and a test holds every place of the source that refuses to it. Nothing reads it while requests are served.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """One way in which a rule refuses.

    Attributes:
        condition: when it is this way, where the rule has several; empty if it needs no words.
    """

    status: int
    next_step: str
    condition: str = ""

    @staticmethod
    def parse(text: str) -> Refusal:
        """`403 ask_owner about another's sink`: status, next step, condition."""
        status, next_step, *condition = text.split(" ", 2)
        return Refusal(int(status), next_step, "".join(condition))


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: `id` is what an error carries, `section` the table of docs/protocol.md, `meaning` a cell of Markdown."""

    id: str
    section: str
    refusals: tuple[Refusal, ...]
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    """Everything that `rules.toml` holds.

    Attributes:
        statuses: when a status is answered, by one status or several.
        next_steps: what the caller does next, by the name that errors carry.
        rules: by id, in the order of the file.
    """

    statuses: Mapping[str, str]
    next_steps: Mapping[str, str]
    rules: Mapping[str, Rule]


@cache
def table() -> Table:
    """The table, read once.

    Raises:
        ValueError: a rule stands in it twice.
    """
    read: dict[str, Any] = tomllib.loads(resources.files("icetower").joinpath("rules.toml").read_text("utf-8"))
    statuses, next_steps = read.pop("statuses"), read.pop("next_steps")
    rules: dict[str, Rule] = {}
    for section, entries in read.items():
        for id_, entry in entries.items():
            if id_ in rules:
                raise ValueError(f"rules.toml has {id_} twice, in {rules[id_].section} and in {section}")
            rules[id_] = Rule(id_, section, tuple(map(Refusal.parse, entry["refusals"])), entry["meaning"])
    return Table(statuses, next_steps, rules)
