"""Refusals for want of a declaration: counted by table, principal and declaration, within a bound; few are logged."""

from __future__ import annotations

import shlex

import pytest

from icetower.ambient import SystemAmbient
from icetower.errors import MissingDeclaration
from icetower.observe import undeclared
from icetower.observe.events import Event, Events
from icetower.observe.undeclared import Undeclared


class Said(Events):
    def __init__(self) -> None:
        super().__init__(SystemAmbient())
        self.lines: list[dict[str, object]] = []

    def say(self, event: Event, level: int = 0, /, **fields: object) -> None:
        del level
        self.lines.append({"event": event.value, **fields})


def missing(table: str = "shop.sales", declaration: str = "blind-appends") -> MissingDeclaration:
    return MissingDeclaration(table, declaration)


def test_the_first_the_tenth_and_the_hundredth_are_lines() -> None:
    said = Said()
    counts = Undeclared(SystemAmbient(), said)
    for _ in range(250):
        counts.refused("go-writer", missing())
    counts.refused("rust-writer", missing())
    assert [(line["principal"], line["refused"]) for line in said.lines] == [
        ("go-writer", 1), ("go-writer", 10), ("go-writer", 100), ("rust-writer", 1),
    ]  # fmt: skip
    assert said.lines[0] == {
        "event": "undeclared",
        "principal": "go-writer",
        "table": "shop.sales",
        "declaration": "blind-appends",
        "refused": 1,
        "command": "icetower tables set shop.sales --blind-appends",
    }


def test_what_is_shown_is_the_callers_own_and_the_highest_first() -> None:
    counts = Undeclared(SystemAmbient(), Said())
    for principal, declaration, times in (("a", "blind-appends", 2), ("b", "read-scope", 3), ("b", "blind-appends", 1)):
        for _ in range(times):
            counts.refused(principal, missing(declaration=declaration))

    def shown(principal: str | None = None, table: str | None = None, limit: int = 10) -> list[tuple[object, ...]]:
        rows = counts.to_json(principal, table, limit)
        return [(row["principal"], row["declaration"], row["refused"]) for row in rows]

    assert shown() == [("b", "read-scope", 3), ("a", "blind-appends", 2), ("b", "blind-appends", 1)]
    assert shown("a") == [("a", "blind-appends", 2)]
    assert shown(limit=1) == [("b", "read-scope", 3)]
    assert shown(table="shop.other") == []
    assert counts.to_json("b", None, 1)[0]["command"] is None, "a contract gives it"


def test_the_counts_are_bounded_and_the_oldest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undeclared, "KEPT_MAX", 3)
    counts = Undeclared(SystemAmbient(), Said())
    for table in ("a.a", "a.b", "a.c", "a.a", "a.d"):
        counts.refused("writer", missing(table))
    assert sorted(row["table"] for row in counts.to_json(None, None, 10)) == ["a.a", "a.c", "a.d"]


def test_a_command_may_be_pasted_whatever_a_table_is_called() -> None:
    counts = Undeclared(SystemAmbient(), Said())
    counts.refused("writer", missing("shop.x; rm -rf $HOME"))
    command = counts.to_json(None, None, 1)[0]["command"]
    assert shlex.split(command) == ["icetower", "tables", "set", "shop.x; rm -rf $HOME", "--blind-appends"]
