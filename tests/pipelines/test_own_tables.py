"""Which columns of a table that a job writes are missing, and why."""

from __future__ import annotations

from typing import Any

import pytest

from icetower.errors import BadRequest
from icetower.pipelines.own_tables import lacking, renamed

COLUMNS = "id BIGINT, at TIMESTAMP, names ARRAY<STRING>, tries INT"
LISTED = {"type": "list", "element-id": 9, "element": "string", "element-required": False}
ID, AT, NAMES, TRIES = (1, "id", "long"), (2, "at", "timestamptz"), (3, "names", LISTED), (4, "tries", "int")


def table(*schemas: tuple[tuple[int, str, Any], ...]) -> dict[str, Any]:
    """The last schema is the current one."""
    made = [
        {"schema-id": i, "fields": [{"id": number, "name": name, "type": kind} for number, name, kind in fields]}
        for i, fields in enumerate(schemas)
    ]
    return {"schemas": made, "current-schema-id": len(made) - 1}


def test_a_column_that_was_never_there_is_one_of_a_later_version() -> None:
    assert lacking(table((ID, AT, NAMES, TRIES)), "s.t", COLUMNS) == []
    assert lacking(table((ID, AT)), "s.t", COLUMNS) == ["names ARRAY<STRING>", "tries INT"]
    assert lacking(table((TRIES, (7, "more", "string"), NAMES, AT, ID)), "s.t", COLUMNS) == []
    assert lacking(table((ID, AT, NAMES, (4, "tries", "long"))), "s.t", COLUMNS) == []  # wider


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ((ID, AT, NAMES, (4, "retries", "int")), "RENAME COLUMN retries TO tries"),
        ((ID, AT, NAMES), "lost its column tries.*ADD COLUMN tries INT"),
        ((ID, AT, NAMES, (5, "tries", "string")), "tries of type STRING, and needs INT"),
        (((1, "id", "int"), AT, NAMES, TRIES), "id of type INT, and needs BIGINT"),
        ((ID, (2, "at", "long"), NAMES, TRIES), "needs TIMESTAMP"),
    ],
)
def test_a_column_that_was_changed_is_told_with_the_way_back(now: Any, told: str) -> None:
    with pytest.raises(BadRequest, match=told) as refused:
        lacking(table((ID, AT, NAMES, TRIES), now), "s.t", COLUMNS)
    assert refused.value.rule == "system.columns"


def test_a_column_is_known_by_its_id() -> None:
    changed = table((ID, TRIES), (ID, (4, "k", "int")))
    assert renamed(changed, "tries") == "k"
    assert renamed(changed, "at") is None
    assert renamed(table((ID, TRIES), (ID,)), "tries") is None
    with pytest.raises(BadRequest, match="lost"):  # its id is a dropped column's
        lacking(table((ID, TRIES), (ID, (5, "k", "int"))), "s.t", "id BIGINT, tries INT")
