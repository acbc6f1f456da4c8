"""The catalogs that `icetower init` can put a tower in front of: those that PyIceberg knows, and their tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyiceberg.utils.config import Config
from sqlalchemy import Connection, func, inspect, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from icetower.database import Database, shown_url
from icetower.errors import ConfigurationError
from icetower.upstream.sql import layout_tables

_STORAGE = ("s3.", "gcs.", "adls.", "hdfs.", "oss.", "hf.")
_SHOWN_MAX = 5
POSTGRES = "postgresql+psycopg"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configured catalog.

    Attributes:
        name: its name in PyIceberg's configuration, which is its name in the shared tables too.
        uri: as a SQLAlchemy URL.
        storage: properties for access to its files.
    """

    name: str
    uri: str
    warehouse: str | None = None
    storage: Mapping[str, str] = field(default_factory=dict[str, str])


def configured() -> tuple[list[Candidate], list[str]]:
    """The SQL catalogs of PyIceberg's configuration (file and environment), and the names of its other catalogs."""
    found: list[Candidate] = []
    others: list[str] = []
    catalogs = Config().config.get("catalog")
    for name, given in (catalogs if isinstance(catalogs, dict) else {}).items():
        properties = {key: str(value) for key, value in given.items()} if isinstance(given, dict) else {}
        uri = properties.get("uri", "")
        kind = properties.get("type") or ("sql" if uri.startswith(("sqlite", "postgres")) else "")
        if kind != "sql" or not uri:
            others.append(name)
            continue
        storage = {key: value for key, value in properties.items() if key.startswith(_STORAGE)}
        found.append(Candidate(name, normal_uri(uri), properties.get("warehouse"), storage))
    return found, others


def normal_uri(uri: str) -> str:
    """A SQLAlchemy URL with a driver that a tower has, and an absolute path. Raises `ConfigurationError`."""
    try:
        url = make_url(uri)
    except (ArgumentError, ValueError) as error:
        raise ConfigurationError(
            "the catalog's address cannot be understood; write sqlite:////absolute/path.db or "
            "postgresql+psycopg://user@host/name",
            rule="configuration.database",
        ) from error
    backend = url.get_backend_name()
    if backend == "sqlite" and url.database:
        url = url.set(drivername="sqlite", database=str(Path(url.database).absolute()))
    elif backend == "postgresql":
        url = url.set(drivername=POSTGRES)
    else:
        raise ConfigurationError(
            f"a catalog in {url.get_backend_name()} is not supported; use SQLite or PostgreSQL",
            rule="configuration.database",
        )
    return url.render_as_string(hide_password=False)


def shown(uri: str) -> str:
    """A URL without its passwords."""
    return shown_url(make_url(uri))


def has_password(uri: str) -> bool:
    url = make_url(uri)
    return url.password is not None or any("password" in option.lower() for option in url.query)


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a catalog's database.

    Attributes:
        counts: the number of tables, by catalog.
        names: some tables' names, by catalog.
        locations: the metadata location of one table, by catalog.
    """

    counts: Mapping[str, int]
    names: Mapping[str, list[str]]
    locations: Mapping[str, str]

    def warehouse(self, catalog: str) -> str | None:
        """The warehouse of a catalog, if the location of one of its tables shows it."""
        location, name = self.locations.get(catalog), self.names.get(catalog)
        if location is None or not name:
            return None
        namespace, _, table = name[0].rpartition(".")
        head, metadata, _ = location.rpartition("/metadata/")
        for tail in (f"/{namespace}.db/{table}", f"/{namespace.replace('.', '/')}/{table}"):
            if metadata and head.endswith(tail):
                return head.removesuffix(tail)
        return None


def catalog_missing(uri: str, name: str, found: Contents) -> str | None:
    """A warning if the database only has tables of other catalogs; None if it has none, or some of this one."""
    if not found.counts or name in found.counts:
        return None
    return f"{shown(uri)} has no table of a catalog {name!r}; it has {', '.join(found.counts)}"


def contents_for_serving(uri: str) -> Contents:
    """The contents of the database in `[upstream] uri`; a SQLite file may be missing, since the server creates it.

    Raises `ConfigurationError` if it cannot be read.
    """
    try:
        url = make_url(uri)
    except ArgumentError:
        return Contents({}, {}, {})  # the server refuses it
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        folder = Path(url.database or "").parent
        if url.database and not folder.is_dir():
            raise ConfigurationError(
                f"the catalog's database {shown(uri)} cannot be opened: there is no folder {folder}; correct "
                "[upstream] uri",
                rule="configuration.database",
            )
        return Contents({}, {}, {})
    return contents(uri, setting="[upstream] uri")


def contents(uri: str, *, setting: str = "--uri") -> Contents:
    """The contents of the database, which is only read. Raises `ConfigurationError` if it cannot be.

    Args:
        setting: the option or setting with the address, for messages.
    """
    url = make_url(uri)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        raise ConfigurationError(
            f"there is no file {url.database}; check the path, or create a catalog of Icetower's own with --new",
            rule="configuration.database",
        )
    database = Database(uri)
    try:
        return database.run_now(_contents)
    except SQLAlchemyError as error:
        cause = " ".join(str(getattr(error, "orig", None) or type(error).__name__).split())
        if url.password:
            cause = cause.replace(url.password, "***")
        raise ConfigurationError(
            f"the catalog's database {shown(uri)} cannot be read: {cause}; check the address ({setting}), and that "
            "this user may read it",
            rule="configuration.database",
        ) from error
    finally:
        database.close()


def _contents(connection: Connection) -> Contents:
    tables = layout_tables()
    if not inspect(connection).has_table(tables.name):
        return Contents({}, {}, {})
    catalog = tables.c.catalog_name
    counted = connection.execute(select(catalog, func.count()).group_by(catalog).order_by(catalog)).all()
    names: dict[str, list[str]] = {}
    locations: dict[str, str] = {}
    for name, _ in counted:
        columns = (tables.c.table_namespace, tables.c.table_name, tables.c.metadata_location)
        few = select(*columns).where(catalog == name).order_by(*columns[:2]).limit(_SHOWN_MAX)
        for namespace, table, location in connection.execute(few):
            names.setdefault(name, []).append(f"{namespace}.{table}")
            if location:
                locations.setdefault(name, location)
    return Contents({row[0]: row[1] for row in counted}, names, locations)
