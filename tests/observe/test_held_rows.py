"""Commits that ignored intents: counted by table and principal, within a bound."""

from __future__ import annotations

import pytest

from icetower.ambient import SystemAmbient
from icetower.observe import held_rows
from icetower.observe.held_rows import HOLDERS_MAX, HeldRows


def test_commits_are_counted_by_table_and_principal() -> None:
    counts = HeldRows(SystemAmbient())
    for holder in ("ann", "bob", "ann"):
        counts.ignored("shop.sales", "cy", [holder])
    counts.ignored("shop.sales", "dan", [f"h{n}" for n in range(20)])
    counts.ignored("shop.prices", "cy", ["ann"])
    rows = counts.to_json(None, None, 10)
    assert [(row["table"], row["principal"], row["landed"]) for row in rows] == [
        ("shop.sales", "cy", 3), ("shop.prices", "cy", 1), ("shop.sales", "dan", 1),
    ]  # fmt: skip
    assert rows[0]["holders"] == ["ann", "bob"]
    assert len(rows[2]["holders"]) == HOLDERS_MAX
    assert rows[0]["command"] == "icetower tables set shop.sales --intents required"
    assert [row["table"] for row in counts.to_json("cy", "shop.prices", 10)] == ["shop.prices"]
    assert len(counts.to_json(None, None, 1)) == 1


def test_counts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_rows, "KEPT_MAX", 2)
    counts = HeldRows(SystemAmbient())
    for table in ("a.a", "a.b", "a.a", "a.c"):
        counts.ignored(table, "cy", ["ann"])
    assert {row["table"] for row in counts.to_json(None, None, 10)} == {"a.a", "a.c"}
