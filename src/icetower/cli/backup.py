"""`icetower backup` and `icetower restore`: copy the databases of a running tower, and put a copy back."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.engine import make_url

from icetower.cli.own_tower import SECRET_NAME, config_file
from icetower.cli.progress import waiting
from icetower.cli.registry import Json
from icetower.cli.terminal import say, warn
from icetower.errors import UsageError

CONTROL, CATALOG = "control.db", "catalog.db"
_COMPANIONS = ("-wal", "-shm", "-journal")
_WAIT_S = 30.0

Folder = Annotated[Path, typer.Argument(help="Folder of the backup.")]
Config = Annotated[
    Path | None, typer.Option(help="The tower's settings in TOML.  [default: ICETOWER_CONFIG, or ./icetower.toml]")
]
Data = Annotated[Path | None, typer.Option(help="The tower's data directory, if the settings do not name it.")]


def backup(folder: Folder, config: Config = None, data: Data = None, as_json: Json = False) -> None:
    """Copy the tower's databases and its administrator's token to a new folder. The tower may be running.

    The ledger and the registry are copied first, then the catalog: commits in a restored ledger are in the restored
    tables. Back up a PostgreSQL catalog and the warehouse by their own means, after this.

    \b
    Example:
      icetower backup /backups/2026-11-22
    """
    places = _places(config, data)
    if not places.control.exists():
        raise UsageError(f"there is no tower in {places.control.parent}: it has no {CONTROL}; name it with --data")
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError as error:
        raise UsageError(f"{folder} exists already, and was not changed; name a new folder") from error
    except OSError as error:
        raise UsageError(f"{folder} cannot be created: {error.strerror}") from error
    done: list[dict[str, str]] = []
    try:
        with waiting("copying"):
            for name, place in places.databases():
                _copy(place, folder / name)
                done.append({"from": str(place), "to": str(folder / name)})
            if places.secret.exists():
                _copy_secret(places.secret, folder / SECRET_NAME)
    except BaseException:  # Ctrl-C, too: half a backup must not be taken for one
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _report(done, "{from} is in {to}", as_json=as_json)
    _warn_about_catalog(places)


def restore(folder: Folder, config: Config = None, data: Data = None, as_json: Json = False) -> None:
    """Restore a backup to the paths in the settings. Nothing is overwritten: move existing files away first.

    \b
    Example:
      icetower restore /backups/2026-11-22 --data /var/lib/icetower
    """
    places = _places(config, data)
    if not (folder / CONTROL).exists():
        raise UsageError(f"{folder} is not a backup: it has no {CONTROL}")
    present = [(folder / name, place) for name, place in places.databases() if (folder / name).exists()]
    for _, place in present:
        for there in (place, *(place.with_name(place.name + end) for end in _COMPANIONS)):
            if there.exists():
                raise UsageError(f"{there} exists already: stop the tower, move the file away, and restore again")
    for source, _ in present:
        _require_intact(source)
    done: list[dict[str, str]] = []
    try:
        with waiting("restoring"):
            for source, place in present:
                try:
                    place.parent.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise UsageError(f"{place.parent} cannot be created: {error.strerror}") from error
                _copy(source, place)
                done.append({"from": str(source), "to": str(place)})
            if (folder / SECRET_NAME).exists() and not places.secret.exists():
                _copy_secret(folder / SECRET_NAME, places.secret)
    except BaseException:  # Ctrl-C, too: the next try starts afresh
        for each in done:
            Path(each["to"]).unlink(missing_ok=True)
        raise
    _report(done, "{to} is restored", as_json=as_json)
    _warn_about_catalog(places)


def _report(done: Sequence[Mapping[str, str]], line: str, *, as_json: bool) -> None:
    """Print which files were copied."""
    if as_json:
        say(json.dumps({"files": done}))
        return
    for each in done:
        say(line.format(**each))


class _Places:
    """The paths of a tower's databases. `catalog` is None if it is not a file."""

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
    """Copy by SQLite's own backup: one consistent state despite concurrent writes. Only the owner can read the copy."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        uri = f"{source.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=_WAIT_S)) as old, closing(sqlite3.connect(target)) as new:
            old.backup(new)
            # The page with the journal mode is copied, too; a file in rollback mode is a single file.
            new.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error as error:
        target.unlink()
        raise UsageError(f"{source} cannot be copied to {target}: {error}") from error
    except BaseException:  # such as Ctrl-C
        target.unlink()
        raise


def _require_intact(file: Path) -> None:
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


def _warn_about_catalog(places: _Places) -> None:
    if places.catalog is None:
        warn("the catalog is not a SQLite file: back it up and restore it by its own means (pg_dump, pg_restore)")
    elif not places.catalog.exists():
        warn(f"the catalog's database {places.catalog} does not exist")
