"""Finds the table that a command names: by a metadata file, in a REST catalog, or in any catalog of PyIceberg's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchIdentifierError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.utils.config import Config
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from icetower.agent.causes import cause_of
from icetower.ambient import from_environment
from icetower.cli.own_tower import DEFAULT_URI, token_for
from icetower.cli.registry import own_uri
from icetower.cli.snapshots import Place, place_in_catalog, place_of_metadata
from icetower.errors import ConfigurationError, IcetowerError, NoSuchTable, UpstreamFailed, UsageError
from icetower.storage.file_io import FileIOStorage
from icetower.storage.port import ON_OWN_ACCOUNT
from icetower.table.client_properties import is_code

CatalogName = Annotated[
    str,
    typer.Option(
        envvar="ICETOWER_URI",
        callback=own_uri,
        help="An Iceberg REST catalog, such as a tower, by its URI; or one of PyIceberg's configuration, by its name.",
    ),
]
Properties = Annotated[
    list[str] | None,
    typer.Option("--property", help="Of a PyIceberg catalog: key=value (type=sql, uri=…); may be repeated."),
]
StorageOptions = Annotated[
    list[str] | None, typer.Option("--storage", help="Storage property, key=value (s3.endpoint=…); may be repeated.")
]
Copied = Annotated[
    bool, typer.Option("--copied", help="The metadata folder is a copy: look for manifests in it, by name.")
]
_METADATA_FILE = re.compile(r"\.metadata\.json(\.gz)?$|\.json$|\.gz\.metadata\.json$")


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Several ``key=value``; ``key=env:NAME`` takes the value from the environment, where no other user sees it.

    Raises `UsageError`, which doesn't show the value: it may be a secret.
    """
    found: dict[str, str] = {}
    for each in texts:
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise UsageError(f"{option} has a property without `=` (it may be a secret, and is not shown): key=value")
        found[key] = from_environment(value)
    return found


async def place_of(
    table: str, catalog: str, properties: Sequence[str] | None, storage: Sequence[str] | None, *, copied: bool = False
) -> Place:
    """A table's metadata, and access to its files.

    Args:
        table: ``namespace.table`` of a catalog, or the path or URI of a metadata file.

    Raises:
        UsageError: the arguments contradict each other.
        NoSuchTable, NotAuthenticated, Unavailable, UpstreamFailed, BadRequest: by the catalog or the file.
    """
    reached = pairs(storage or (), "--storage")
    given_properties = pairs(properties or (), "--property")
    if _METADATA_FILE.search(table):
        return await place_of_metadata(table, reached, copied=copied)
    if copied:
        raise UsageError("--copied is for a metadata file; leave it out for a table of a catalog")
    if given_properties or not re.match(r"https?://", catalog):
        location, known = _in_pyiceberg(table, DEFAULT_NAME if _is_uri(catalog) else catalog, given_properties)
        return await place_of_metadata(location, {**known, **reached}, copied=False)
    return place_in_catalog(catalog, table, token_for(catalog), reached)


DEFAULT_CATALOG = DEFAULT_URI
DEFAULT_NAME = "default"


def _is_uri(catalog: str) -> bool:
    return "://" in catalog


def _in_pyiceberg(table: str, catalog: str, properties: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The metadata file of a table of a PyIceberg catalog, and the catalog's storage properties."""
    _require_files(catalog, properties)
    try:
        # The catalog is only read: its own tables are not created if they are missing.
        opened = load_catalog(catalog, **{"init_catalog_tables": "false", **properties})
    except Exception as error:
        # Every catalog has exceptions of its own, and their texts may quote credentials.
        raise ConfigurationError(
            f"PyIceberg cannot open the catalog {catalog!r} ({_cause(error)}): give its URI, or its properties "
            "(--property type=… --property uri=…), or configure it in .pyiceberg.yaml"
        ) from error
    _choose_no_code(opened)
    try:
        loaded = opened.load_table(table)
    except (NoSuchTableError, NoSuchNamespaceError, NoSuchIdentifierError) as error:
        raise NoSuchTable(
            f"the catalog {catalog!r} has no table {table}; write namespace.table as in the catalog",
            rule="table.exists",
        ) from error
    except IcetowerError:
        raise
    except Exception as error:
        raise UpstreamFailed(
            f"the catalog {catalog!r} does not load {table} ({_cause(error)}): check that the catalog can be reached; "
            "a metadata file can be named instead",
            rule="upstream",
        ) from error
    io: dict[str, Any] = dict(loaded.io.properties)
    known = {key: str(value) for key, value in {**opened.properties, **io}.items()}
    # A catalog may configure access to its storage, but not the Python code that is loaded for it.
    return loaded.metadata_location, {key: value for key, value in known.items() if not is_code(key)}


def _choose_no_code(opened: Catalog) -> None:
    """Ignore code names in a table's properties and in a REST catalog's answers when files are opened (trap S8)."""
    load = opened._load_file_io  # pyright: ignore[reportPrivateUsage]  # every catalog's only way to a table's files

    def harmless(properties: Mapping[str, Any] | None = None, location: str | None = None) -> FileIO:
        return load({name: value for name, value in (properties or {}).items() if not is_code(name)}, location)

    opened._load_file_io = harmless  # pyright: ignore[reportPrivateUsage]


def _require_files(catalog: str, properties: Mapping[str, str]) -> None:
    """Raises `ConfigurationError` for a SQLite database that does not exist: opening it would create an empty one."""
    try:
        configured = Config().get_catalog_config(catalog)
    except Exception:  # noqa: BLE001 - an invalid configuration is reported when the catalog is opened
        configured = None
    uri = str({**(configured or {}), **properties}.get("uri", ""))
    if not uri.startswith("sqlite:"):
        return
    try:
        database = make_url(uri).database or ""
    except ArgumentError:
        return
    if database not in ("", ":memory:") and not database.startswith("file:") and not Path(database).is_file():
        raise ConfigurationError(
            f"the catalog {catalog!r} has no database {database}: check its uri", rule="configuration.database"
        )


def _cause(error: BaseException) -> str:
    """Why a catalog failed, without the exception's text, which may quote credentials."""
    if type(error).__module__.startswith(("requests", "urllib3", "socket", "ssl")) or isinstance(error, OSError):
        return cause_of(error)
    if isinstance(error, DBAPIError):
        return str(error.orig).splitlines()[0]
    return type(error).__name__


class PlacedFiles:
    """The files of a table, read through its storage; in a copied folder by their names alone."""

    def __init__(self, place: Place) -> None:
        self._files = FileIOStorage(place.storage)
        self._folder = place.folder

    def _at(self, path: str) -> str:
        return path if self._folder is None else f"{self._folder}/{path.rpartition('/')[2]}"

    async def read(self, path: str) -> bytes:
        return await self._files.read(self._at(path), ON_OWN_ACCOUNT)

    async def read_many(self, paths: Sequence[str]) -> list[bytes | None]:
        return await self._files.read_many([*map(self._at, paths)], ON_OWN_ACCOUNT)

    async def read_range(self, path: str, offset: int, length_bytes: int) -> bytes:
        return await self._files.read_range(self._at(path), offset, length_bytes)

    async def exists(self, path: str) -> bool:
        return await self._files.exists(self._at(path))

    async def close(self) -> None:
        await self._files.close()
