"""`icetower backup` and `icetower restore`: the databases of a tower, while it runs, and back into their places."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.engine import make_url

from icetower.cli.own_tower import SECRET_NAME, config_file
from icetower.cli.terminal import say, warn
from icetower.errors import UsageError

CONTROL, CATALOG = "control.db", "catalog.db"
_BESIDE = ("-wal", "-shm", "-journal")
_WAIT_S = 30.0

Folder = Annotated[Path, typer.Argument(help="Folder of the backup.")]
Config = Annotated[
    Path | None, typer.Option(help="The tower's settings in TOML.  [default: ICETOWER_CONFIG, or ./icetower.toml]")
]
Data = Annotated[Path | None, typer.Option(help="The tower's data directory, where no settings name it.")]


def backup(folder: Folder, config: Config = None, data: Data = None) -> None:
    """Copy the tower's databases and its administrator's token to a new folder. The tower may be running.

    The ledger and the registry come first, then the catalog: what a restored ledger knows is in the restored tables.
    A PostgreSQL catalog and the warehouse are backed up by their own means, after this.

    \b
    Example:
      icetower backup /backups/2026-11-22
    """
    places = _places(config, data)
    if not places.control.exists():
        raise UsageError(f"there is no tower in {places.control.parent}: {CONTROL} is not there; name it with --data")
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError as error:
        raise UsageError(f"{folder} is there already, and stays as it is; name a new folder") from error
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}") from error
    for name, place in places.databases():
        _copy(place, folder / name)
        say(f"{place} is in {folder / name}")
    if places.secret.exists():
        _copy_secret(places.secret, folder / SECRET_NAME)
    _say_what_is_not(places)


def restore(folder: Folder, config: Config = None, data: Data = None) -> None:
    """Put a backup into the places that the settings name. Nothing is overwritten: move what is there away first.

    \b
    Example:
      icetower restore /backups/2026-11-22 --data /var/lib/icetower
    """
    places = _places(config, data)
    if not (folder / CONTROL).exists():
        raise UsageError(f"{folder} holds no backup: {CONTROL} is not there")
    wanted = [(folder / name, place) for name, place in places.databases() if (folder / name).exists()]
    for _, place in wanted:
        for there in (place, *(place.with_name(place.name + end) for end in _BESIDE)):
            if there.exists():
                raise UsageError(f"{there} is there already: stop the tower, move it away, and restore again")
    for source, place in wanted:
        _sound(source)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{place.parent} cannot be made: {error.strerror}") from error
        _copy(source, place)
        say(f"{place} is restored")
    if (folder / SECRET_NAME).exists() and not places.secret.exists():
        _copy_secret(folder / SECRET_NAME, places.secret)
    _say_what_is_not(places)


class _Places:
    """Where a tower's databases are. `catalog` is None for one that is no file."""

    def __init__(self, data: Path, uri: str | None) -> None:
        self.control = data / CONTROL
        self.secret = data / SECRET_NAME
        url = None if uri is None else make_url(uri)
        self.catalog: Path | None = data / CATALOG
        if url is not None:
            is_file = url.get_backend_name() == "sqlite" and url.database
            self.catalog = Path(str(url.database)).absolute() if is_file else None

    def databases(self) -> Iterator[tuple[str, Path]]:
        """In the order in which they are copied."""
        yield CONTROL, self.control
        if self.catalog is not None:
            yield CATALOG, self.catalog


def _places(config: Path | None, data: Path | None) -> _Places:
    from icetower.gateway.settings import load_settings

    settings = load_settings(config or config_file(), data=None if data is None else str(data))
    return _Places(Path(settings.server.data).absolute(), settings.upstream.uri)


def _copy(source: Path, target: Path) -> None:
    """By SQLite's own backup: one consistent state, whoever writes meanwhile. The copy keeps its owner's eyes only."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        uri = f"{source.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=_WAIT_S)) as old, closing(sqlite3.connect(target)) as new:
            old.backup(new)
            # The page that names the journal mode is copied too; a file in rollback mode is all in one piece.
            new.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error as error:
        target.unlink()
        raise UsageError(f"{source} cannot be copied to {target}: {error}") from error


def _sound(file: Path) -> None:
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as copy:
            found = copy.execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.Error as error:
        found = str(error)
    if found != "ok":
        raise UsageError(f"{file} is damaged ({found}); nothing was restored from it: take another backup")


def _copy_secret(source: Path, target: Path) -> None:
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out, source.open("rb") as old:
        shutil.copyfileobj(old, out)


def _say_what_is_not(places: _Places) -> None:
    if places.catalog is None:
        warn("the catalog is no SQLite file: back it up and restore it by its own means (pg_dump, pg_restore)")
    elif not places.catalog.exists():
        warn(f"the catalog's database {places.catalog} is not there")
