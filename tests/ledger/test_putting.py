"""Rows put into a table many at a time, and read out as one text, are what they are one by one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import BigInteger, Column, Connection, LargeBinary, MetaData, Table, Text, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import psycopg

from icetower.database import open_engine, read_at_once
from icetower.ledger.putting import ROWS_MAX, VALUES_MAX, Put

metadata = MetaData()
things = Table(
    "things",
    metadata,
    Column("id", BigInteger().with_variant(sqlite.INTEGER, "sqlite"), primary_key=True),
    Column("name", Text),
    Column("number", BigInteger),
    Column("hash", LargeBinary),
)
TEXTS = st.none() | st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.none() | st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(name="connection")
def _connection() -> Iterator[Connection]:
    engine = open_engine("sqlite://")
    metadata.create_all(engine)
    with engine.connect() as opened:
        yield opened
    engine.dispose()


@given(st.lists(st.tuples(TEXTS, NUMBERS), max_size=20))
def test_what_is_read_at_once_is_what_was_written(rows: list[tuple[str | None, int | None]]) -> None:
    engine = open_engine("sqlite://")
    with engine.begin() as connection:
        metadata.create_all(connection)
        for name, number in rows:
            connection.execute(insert(things).values(name=name, number=number))
        query = select(things.c.name, things.c.number).order_by(things.c.id.desc())
        assert [tuple(row) for row in read_at_once(connection, query)] == rows[::-1]
        assert [tuple(row) for row in read_at_once(connection, query.limit(3))] == rows[::-1][:3]
    engine.dispose()


@pytest.mark.parametrize("count", [0, 1, 2, 3, ROWS_MAX - 1, ROWS_MAX, ROWS_MAX + 1, 3 * ROWS_MAX + 5])
def test_any_number_of_rows_goes_in_in_order(connection: Connection, count: int) -> None:
    put = Put.of(insert(things).inline(), connection.dialect, ["name", "hash"])
    put.rows(
        connection, [{"name": f"row {number}", "hash": bytes([number % 256]), "other": 1} for number in range(count)]
    )
    found = connection.execute(select(things.c.id, things.c.name, things.c.hash).order_by(things.c.id)).all()
    assert [tuple(row) for row in found] == [
        (number + 1, f"row {number}", bytes([number % 256])) for number in range(count)
    ]


def test_a_row_that_comes_twice_in_one_statement_meets_itself(connection: Connection) -> None:
    statement = sqlite.insert(things)
    larger = things.c.number + statement.excluded.number
    put = Put.of(
        statement.on_conflict_do_update(index_elements=["id"], set_={"number": larger}),
        connection.dialect,
        ["id", "number"],
    )
    put.rows(connection, [{"id": 1, "number": 5}, {"id": 2, "number": 1}, {"id": 1, "number": 7}])
    put.rows(connection, [{"id": 1, "number": 100}])
    assert connection.execute(select(things.c.id, things.c.number).order_by(things.c.id)).all() == [(1, 112), (2, 1)]


def test_a_wide_row_goes_in_by_statements_that_any_sqlite_takes() -> None:
    wide = Table("wide", MetaData(), *(Column(f"c{number}", BigInteger) for number in range(25)))
    engine = open_engine("sqlite://")
    asked: list[int] = []
    with engine.connect() as connection:
        wide.metadata.create_all(connection)

        def spy(statement: str, parameters: tuple[int, ...]) -> None:
            asked.append(len(parameters))
            real(statement, parameters)

        real = connection.exec_driver_sql
        connection.exec_driver_sql = spy  # type: ignore[method-assign, assignment]
        put = Put.of(insert(wide), connection.dialect, [column.name for column in wide.c])
        put.rows(connection, [{column.name: 1 for column in wide.c}] * 100)
    engine.dispose()
    assert sum(asked) == 2500
    assert max(asked) <= VALUES_MAX


def test_postgresql_takes_rows_by_name_as_many_as_there_are() -> None:
    put = Put.of(postgresql.insert(things), psycopg.dialect(), ["name"])
    assert put.names is None
    assert "%(name)s" in put.statement
