"""The `sql` upstream: a compare-and-swap of our own on the tables that Iceberg's JDBC catalogs share.

Java's `JdbcCatalog` (schema V1) and PyIceberg's `SqlCatalog` keep a catalog in two tables, ``iceberg_tables`` and
``iceberg_namespace_properties``. The same rows are read and written here, so that a catalog of theirs works unchanged
and stays open to them. A row whose ``iceberg_type`` is TABLE or null is a table; a VIEW only occupies its name.

What the layout leaves open is settled as both libraries do it: levels of a namespace are joined with dots, a namespace
exists if it has a property or anything in it, and the property ``exists`` = ``true`` marks one that was created; like
Java's, it is reserved and not shown. Prefixes are compared by length instead of with LIKE: nothing to escape, and
SQLite's LIKE takes ``Sales`` and ``sales`` for one.

Source: core/src/main/java/org/apache/iceberg/jdbc/JdbcUtil.java, pyiceberg/catalog/sql.py (0.12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    MetaData,
    String,
    Table,
    and_,
    func,
    inspect,
    or_,
    select,
    text,
)
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from icetower.database import Database, Together
from icetower.errors import (
    AlreadyExists,
    BadRequest,
    CommitStateUnknown,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    UpstreamFailed,
)
from icetower.protocol.names import Identifier, Namespace
from icetower.protocol.sizes import check_properties
from icetower.upstream.port import PropertiesUpdate, Swap, SwapLost, SwapUnknown

T = TypeVar("T")

NAME_LENGTH_MAX = 255
VALUE_LENGTH_MAX = 1000
MARKER = "exists"
SETTLED_S = 5
"""How long a look at a head waits for whoever has locked its row, where the database's other waits have no end."""
PLACES_AT_ONCE = 50
"""Parts of locations in one query: databases take only so many parameters."""

_layout = MetaData()

_tables = Table(
    "iceberg_tables",
    _layout,
    Column("catalog_name", String(NAME_LENGTH_MAX), primary_key=True),
    Column("table_namespace", String(NAME_LENGTH_MAX), primary_key=True),
    Column("table_name", String(NAME_LENGTH_MAX), primary_key=True),
    Column("metadata_location", String(VALUE_LENGTH_MAX)),
    Column("previous_metadata_location", String(VALUE_LENGTH_MAX)),
    Column("iceberg_type", String(5)),
)

_properties = Table(
    "iceberg_namespace_properties",
    _layout,
    Column("catalog_name", String(NAME_LENGTH_MAX), primary_key=True),
    Column("namespace", String(NAME_LENGTH_MAX), primary_key=True),
    Column("property_key", String(NAME_LENGTH_MAX), primary_key=True),
    Column("property_value", String(VALUE_LENGTH_MAX)),
)


def layout_tables() -> Table:
    """The table of tables, for who only looks into a catalog's database."""
    return _tables


_is_table = or_(_tables.c.iceberg_type == "TABLE", _tables.c.iceberg_type.is_(None))


class SqlUpstream:
    """A catalog in a SQL database, by its name in the column ``catalog_name``.

    Creates the two tables where they are missing and adds the column ``iceberg_type`` to an old layout (V0), which
    both libraries go on reading. The database stays the caller's, who closes it.

    Raises:
        UpstreamFailed: the database cannot be reached, or the tables cannot be made.
    """

    atomic_multi_table = True

    def __init__(self, database: Database, catalog_name: str) -> None:
        _check(catalog_name, NAME_LENGTH_MAX, "the name of the catalog")
        self._database = database
        self._catalog = catalog_name
        self._locations = Together(self._read_locations)
        self._places = Together(self._read_places)
        self._settled: dict[Identifier, Together[Identifier, str | None]] = {}
        try:
            _prepare(database)
        except SQLAlchemyError as error:
            raise _failed("open the catalog's tables", error) from error

    async def list_namespaces(self, parent: Namespace = ()) -> list[Namespace]:
        prefix = f"{_joined(parent)}." if parent else ""

        def work(connection: Connection) -> list[Namespace]:
            if parent:
                self._require_namespace(connection, parent)
            found = self._namespaces_under(connection, prefix)
            return sorted({(*parent, name[len(prefix) :].split(".", 1)[0]) for name in found})

        return await self._read(work, "list namespaces")

    async def create_namespace(self, namespace: Namespace, properties: Mapping[str, str]) -> None:
        name = _joined(namespace)
        _check_properties(properties)

        def work(connection: Connection) -> None:
            if self._namespace_exists(connection, name):
                raise AlreadyExists(f"Namespace already exists: {name}")
            try:
                self._set_properties(connection, name, {**properties, MARKER: "true"})
            except IntegrityError as error:
                raise AlreadyExists(f"Namespace already exists: {name}") from error

        await self._write(work, f"create namespace {name}")

    async def namespace_exists(self, namespace: Namespace) -> bool:
        name = _joined(namespace)
        return await self._read(lambda connection: self._namespace_exists(connection, name), "look up a namespace")

    async def namespace_properties(self, namespace: Namespace) -> dict[str, str]:
        def work(connection: Connection) -> dict[str, str]:
            self._require_namespace(connection, namespace)
            return self._properties_of(connection, _joined(namespace))

        properties = await self._read(work, "read the properties of a namespace")
        properties.pop(MARKER, None)
        return properties

    async def update_namespace(
        self, namespace: Namespace, removals: Iterable[str], updates: Mapping[str, str]
    ) -> PropertiesUpdate:
        name, removals = _joined(namespace), set(removals)
        _check_properties(updates)
        if both := sorted(removals & updates.keys()):
            raise BadRequest(f"a property cannot be both set and removed: {', '.join(both)}", rule="request.properties")

        def work(connection: Connection) -> PropertiesUpdate:
            self._require_namespace(connection, namespace, "update")
            before = self._properties_of(connection, name)
            removed = sorted((removals & before.keys()) - {MARKER})
            if left := len((before.keys() | updates.keys()) - set(removed)) if updates.keys() - before.keys() else 0:
                check_properties(left, f"the namespace {name} would have")
            gone = [key for key in (*removed, *updates) if key in before]
            if gone:
                connection.execute(
                    _properties.delete().where(self._is_namespace(name), _properties.c.property_key.in_(gone))
                )
            # PyIceberg leaves the marker out where there are other properties; without it the last one removed
            # would take the namespace along.
            marker = {} if MARKER in before else {MARKER: "true"}
            self._set_properties(connection, name, {**updates, **marker})
            return PropertiesUpdate(sorted(updates), removed, sorted(removals - set(removed)))

        return await self._write(work, f"update namespace {name}")

    async def drop_namespace(self, namespace: Namespace) -> None:
        name = _joined(namespace)

        def work(connection: Connection) -> None:
            if not self._namespace_exists(connection, name):
                raise NoSuchNamespace(f"Namespace does not exist: {name}")
            # Deleted first, checked after: whoever creates a table here holds its rows (`_require_namespace`), so
            # that the check sees that table. Raising undoes the deletion.
            connection.execute(_properties.delete().where(self._is_namespace(name)))
            if self._namespace_exists(connection, name):
                raise NamespaceNotEmpty(
                    f"Namespace {name} is not empty: drop its tables, views and namespaces first",
                )

        await self._write(work, f"drop namespace {name}")

    async def list_tables(self, namespace: Namespace) -> list[Identifier]:
        name = _joined(namespace)
        query = select(_tables.c.table_name).where(
            _tables.c.catalog_name == self._catalog, _tables.c.table_namespace == name, _is_table
        )

        def work(connection: Connection) -> list[Identifier]:
            self._require_namespace(connection, namespace)
            return [Identifier(namespace, table) for table in sorted(connection.execute(query).scalars())]

        return await self._read(work, "list tables")

    async def all_tables(self, limit: int) -> list[Identifier]:
        names = _tables.c.table_namespace, _tables.c.table_name
        query = select(*names).where(_tables.c.catalog_name == self._catalog, _is_table).order_by(*names).limit(limit)

        def work(connection: Connection) -> list[Identifier]:
            rows = connection.execute(query)
            return sorted(Identifier(tuple(namespace.split(".")), table) for namespace, table in rows)

        return await self._read(work, "list all tables")

    async def location(self, identifier: Identifier) -> str:
        _check_identifier(identifier)
        found = await self._locations.ask(identifier)
        if found is None:
            raise _no_such_table(identifier)
        return found

    async def settled_location(self, identifier: Identifier) -> str:
        # Together for each table alone: one whose row stays locked must not hold up the others.
        _check_identifier(identifier)
        together = self._settled.setdefault(identifier, Together(self._read_settled))
        try:
            found = await together.ask(identifier)
        finally:
            if together.idle:
                self._settled.pop(identifier, None)
        if found is None:
            raise _no_such_table(identifier)
        return found

    async def tables_at(self, part: str) -> list[Identifier]:
        # Every row is read for it. So all who ask share one such reading, however many they are, and there is one at
        # a time: readers are left for everybody's heads.
        return await self._places.ask(part)

    async def _read_places(self, parts: Sequence[str]) -> dict[str, list[Identifier]]:
        location = _tables.c.metadata_location

        def work(connection: Connection) -> dict[str, list[Identifier]]:
            found: dict[str, list[Identifier]] = {part: [] for part in parts}
            for start in range(0, len(parts), PLACES_AT_ONCE):
                some = parts[start : start + PLACES_AT_ONCE]
                # Other catalogs of the database too: they share its storage.
                for row in connection.execute(
                    _tables.select().where(or_(*(location.contains(part, autoescape=True) for part in some)))
                ):
                    identifier = Identifier(tuple(row.table_namespace.split(".")), row.table_name)
                    for part in some:  # SQLite's LIKE takes small letters and capitals for the same
                        if part.lower() in row.metadata_location.lower():
                            found[part].append(identifier)
            return {part: sorted(tables) for part, tables in found.items()}

        return await self._read(work, "look for the tables of a place")

    async def _read_locations(self, identifiers: Sequence[Identifier]) -> dict[Identifier, str | None]:
        def work(connection: Connection) -> dict[Identifier, str | None]:
            return {identifier: self._head(connection, identifier) for identifier in identifiers}

        shown = ", ".join(map(str, identifiers[:3]))
        return await self._read(work, f"read the head of {shown}", alone=len(identifiers) == 1)

    async def _read_settled(self, identifiers: Sequence[Identifier]) -> dict[Identifier, str | None]:
        """A swap has locked its row before COMMIT is sent. Whoever gets the lock after it sees its end: it has landed,
        or is undone since its server, or the connection to it, is gone.

        SQLite undoes a transaction with its process. There is nothing to wait for there, and whoever locks the whole
        file for long, as for a copy, must not turn refusals into unknown outcomes (trap A4).
        """
        if self._database.is_sqlite:
            return await self._read_locations(identifiers)

        def work(connection: Connection) -> dict[Identifier, str | None]:
            if connection.dialect.name == "postgresql":
                connection.execute(text(f"SET LOCAL lock_timeout = '{SETTLED_S}s'"))
            return {identifier: self._head(connection, identifier, hold=True) for identifier in identifiers}

        # With the threads of writes: those of reads are for everybody's heads.
        return await self._write(work, f"wait for the swaps of {identifiers[0]}", unknown=UpstreamFailed)

    async def create_table(self, identifier: Identifier, metadata_location: str) -> None:
        _check_identifier(identifier)
        _check(metadata_location, VALUE_LENGTH_MAX, "the metadata location")

        def work(connection: Connection) -> None:
            self._require_namespace(connection, identifier.namespace, "share")
            self._require_free(connection, identifier)
            row = {**self._key(identifier), "metadata_location": metadata_location, "iceberg_type": "TABLE"}
            try:
                connection.execute(_tables.insert().values(row))
            except IntegrityError as error:
                raise _taken(identifier) from error

        await self._write(work, f"create table {identifier}")

    async def drop_table(self, identifier: Identifier, expected: str | None = None) -> None:
        _check_identifier(identifier)

        def work(connection: Connection) -> None:
            statement = _tables.delete().where(self._is_row(identifier), _is_table)
            if expected is not None:
                statement = statement.where(_tables.c.metadata_location == expected)
            if connection.execute(statement).rowcount == 1:
                return
            found = self._head(connection, identifier)
            if found is None:
                raise _no_such_table(identifier)
            raise SwapLost(identifier, found)

        await self._write(work, f"drop table {identifier}")

    async def rename_table(self, source: Identifier, target: Identifier) -> None:
        _check_identifier(source)
        _check_identifier(target)

        def work(connection: Connection) -> None:
            if self._head(connection, source) is None:
                raise _no_such_table(source)
            if source == target:
                return
            self._require_namespace(connection, target.namespace, "share")
            self._require_free(connection, target)
            statement = _tables.update().where(self._is_row(source), _is_table).values(self._key(target))
            try:
                moved = connection.execute(statement).rowcount
            except IntegrityError as error:
                raise _taken(target) from error
            if moved != 1:
                raise _no_such_table(source)

        await self._write(work, f"rename table {source} to {target}")

    async def swap(self, swaps: Sequence[Swap]) -> None:
        # One order for everybody: two transactions over the same tables cannot wait for each other in a circle.
        ordered = sorted(swaps, key=lambda swap: swap.identifier)
        for swap in ordered:
            _check_identifier(swap.identifier)
            _check(swap.new, VALUE_LENGTH_MAX, "the metadata location")
        if len({swap.identifier for swap in ordered}) != len(ordered):
            raise BadRequest("a transaction names each table once", rule="request.tables")

        def work(connection: Connection) -> None:
            for swap in ordered:
                statement = (
                    _tables.update()
                    .where(self._is_row(swap.identifier), _is_table, _tables.c.metadata_location == swap.expected)
                    .values(metadata_location=swap.new, previous_metadata_location=swap.expected)
                )
                if connection.execute(statement).rowcount != 1:
                    raise SwapLost(swap.identifier, self._head(connection, swap.identifier))

        if ordered:
            names = ", ".join(str(swap.identifier) for swap in ordered)
            await self._write(work, f"swap the head of {names}", unknown=SwapUnknown)

    async def close(self) -> None:
        """Nothing to close: the database is the caller's."""

    # -- transactions

    async def _read(self, work: Callable[[Connection], T], what: str, *, alone: bool = False) -> T:
        try:
            return await self._database.run(work, alone=alone)
        except SQLAlchemyError as error:
            raise _failed(what, error) from error

    async def _write(
        self, work: Callable[[Connection], T], what: str, unknown: Callable[[str], Exception] = CommitStateUnknown
    ) -> T:
        """One transaction that holds the write lock. An error before COMMIT is sure to have changed nothing; after
        that the database may have done it and only its answer was lost."""
        reached_commit = False

        def until_commit(connection: Connection) -> T:
            nonlocal reached_commit
            result = work(connection)
            reached_commit = True
            return result

        try:
            return await self._database.run(until_commit, write=True)
        except SQLAlchemyError as error:
            if reached_commit:
                raise unknown(f"the catalog's database gave no certain answer when asked to {what}") from error
            raise _failed(what, error) from error

    # -- rows

    def _key(self, identifier: Identifier) -> dict[str, str]:
        return {
            "catalog_name": self._catalog,
            "table_namespace": ".".join(identifier.namespace),
            "table_name": identifier.name,
        }

    def _is_row(self, identifier: Identifier) -> ColumnElement[bool]:
        return and_(*(_tables.c[column] == value for column, value in self._key(identifier).items()))

    def _is_namespace(self, name: str) -> ColumnElement[bool]:
        return and_(_properties.c.catalog_name == self._catalog, _properties.c.namespace == name)

    def _head(self, connection: Connection, identifier: Identifier, *, hold: bool = False) -> str | None:
        """The head of a table. `hold`: its row is locked, shared, until the end, where rows can be."""
        query = _tables.select().with_only_columns(_tables.c.metadata_location)
        query = query.where(self._is_row(identifier), _is_table)
        return connection.scalar(query.with_for_update(read=True) if hold else query)

    def _require_free(self, connection: Connection, identifier: Identifier) -> None:
        row = connection.execute(_tables.select().where(self._is_row(identifier))).first()
        if row is not None:
            raise _taken(identifier, "View" if row.iceberg_type == "VIEW" else "Table")

    def _require_namespace(
        self, connection: Connection, namespace: Namespace, hold: Literal["", "share", "update"] = ""
    ) -> None:
        """Raise unless it exists. Where rows can be locked (not SQLite, whose writers wait for each other anyway),
        `hold` keeps its own until the end: shared against being dropped under a new table, or for an update."""
        name = _joined(namespace)
        rows = _properties.select().where(self._is_namespace(name))
        if hold:
            rows = rows.with_for_update(read=hold == "share")
        if connection.execute(rows).first() is None and not self._namespace_exists(connection, name):
            raise NoSuchNamespace(f"Namespace does not exist: {name}")

    def _namespace_exists(self, connection: Connection, name: str) -> bool:
        prefix = f"{name}."
        for table, column in ((_properties, _properties.c.namespace), (_tables, _tables.c.table_namespace)):
            inside = or_(column == name, func.substr(column, 1, len(prefix)) == prefix)
            query = table.select().where(table.c.catalog_name == self._catalog, inside).limit(1)
            if connection.execute(query).first() is not None:
                return True
        return False

    def _namespaces_under(self, connection: Connection, prefix: str) -> set[str]:
        found: set[str] = set()
        for table, column in ((_properties, _properties.c.namespace), (_tables, _tables.c.table_namespace)):
            query = table.select().with_only_columns(column).distinct().where(table.c.catalog_name == self._catalog)
            if prefix:
                query = query.where(func.substr(column, 1, len(prefix)) == prefix)
            found.update(connection.scalars(query))
        # Java keeps tables without a namespace under the empty name, which no REST path can spell.
        return found - {""}

    def _properties_of(self, connection: Connection, name: str) -> dict[str, str]:
        rows = connection.execute(_properties.select().where(self._is_namespace(name)))
        return {row.property_key: row.property_value or "" for row in rows}

    def _set_properties(self, connection: Connection, name: str, properties: Mapping[str, str]) -> None:
        """Add rows for properties that are not there."""
        rows = [
            {"catalog_name": self._catalog, "namespace": name, "property_key": key, "property_value": value}
            for key, value in properties.items()
        ]
        if rows:
            connection.execute(_properties.insert(), rows)


def _prepare(database: Database) -> None:
    if database.run_now(_is_ready):
        return
    try:
        database.run_now(_make_ready, write=True)
    except SQLAlchemyError:
        # Another process may have done the same meanwhile.
        if not database.run_now(_is_ready):
            raise


def _is_ready(connection: Connection) -> bool:
    layout = inspect(connection)
    return all(layout.has_table(table.name) for table in _layout.sorted_tables) and _has_type_column(connection)


def _has_type_column(connection: Connection) -> bool:
    return any(column["name"] == "iceberg_type" for column in inspect(connection).get_columns(_tables.name))


def _make_ready(connection: Connection) -> None:
    _layout.create_all(connection)
    if not _has_type_column(connection):
        connection.execute(text("ALTER TABLE iceberg_tables ADD COLUMN iceberg_type VARCHAR(5)"))


def _joined(namespace: Namespace) -> str:
    """The namespace as the layout spells it. Raises `BadRequest` for what it would spell like something else."""
    if not namespace:
        raise BadRequest("the empty namespace holds no tables: name at least one level", rule="request.namespace")
    for level in namespace:
        _check(level, NAME_LENGTH_MAX, "a level of a namespace")
        if "." in level:
            raise BadRequest(
                f"a level of a namespace cannot contain a dot: a SQL catalog joins levels with dots: {level!r}",
                rule="request.namespace",
            )
    name = ".".join(namespace)
    _check(name, NAME_LENGTH_MAX, "a namespace")
    return name


def _check_identifier(identifier: Identifier) -> None:
    _joined(identifier.namespace)
    _check(identifier.name, NAME_LENGTH_MAX, "the name of a table")


def _check_properties(properties: Mapping[str, str]) -> None:
    if MARKER in properties:
        raise BadRequest(
            f"the namespace property {MARKER!r} is reserved: choose another name", rule="request.properties"
        )
    for key, value in properties.items():
        _check(key, NAME_LENGTH_MAX, "the name of a namespace property")
        _check(value, VALUE_LENGTH_MAX, f"the namespace property {key!r}", may_be_empty=True)


def _check(value: str, length_max: int, what: str, *, may_be_empty: bool = False) -> None:
    if not value and not may_be_empty:
        raise BadRequest(f"{what} cannot be empty", rule="request.name")
    if len(value) > length_max:
        raise BadRequest(
            f"{what} is {len(value)} characters long, and a SQL catalog holds {length_max}: {value[:60]!r}…",
            rule="request.length",
        )
    if "\x00" in value:
        raise BadRequest(f"{what} contains a NUL character: {value!r}", rule="request.name")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # a driver's refusal would fail everybody whose question is asked with this one
        raise BadRequest(f"{what} contains half of a character: {value!r}", rule="request.name") from error


def _taken(identifier: Identifier, kind: str = "Table") -> AlreadyExists:
    return AlreadyExists(f"{kind} already exists: {identifier}")


def _no_such_table(identifier: Identifier) -> NoSuchTable:
    return NoSuchTable(f"Table does not exist: {identifier}")


def _failed(what: str, error: SQLAlchemyError) -> UpstreamFailed:
    # Only the kind of the driver's error: its text may quote the statement, its values and the connection.
    kind = type(getattr(error, "orig", None) or error).__name__
    return UpstreamFailed(
        f"the catalog's database failed ({kind}) when asked to {what}; nothing was changed: try again"
    )
