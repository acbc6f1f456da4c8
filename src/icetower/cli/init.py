"""`icetower init`: writes the configuration of a tower in front of an existing catalog."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from icetower.cli.found_catalogs import (
    Candidate,
    Contents,
    catalog_missing,
    configured,
    contents,
    has_password,
    normal_uri,
    shown,
)
from icetower.cli.own_tower import CONFIG_FILE, CONFIG_VARIABLE, SECRET_NAME, address
from icetower.cli.registry import Json
from icetower.cli.tables import pairs
from icetower.cli.terminal import at_terminal, say, warn
from icetower.errors import UsageError
from icetower.texts import escaped

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The catalog that the tower will stand in front of; without a `candidate`, one of Icetower's own."""

    candidate: Candidate | None
    contents: Contents | None = None


def init(
    catalog: Annotated[
        str | None, typer.Option(help="Name of the catalog, in PyIceberg's configuration or in the database.")
    ] = None,
    uri: Annotated[
        str | None,
        typer.Option(
            help="Database of the catalog: sqlite:////path/catalog.db or postgresql+psycopg://user@host/name."
        ),
    ] = None,
    warehouse: Annotated[
        str | None, typer.Option(help="The location for new tables, such as s3://bucket/warehouse.")
    ] = None,
    storage: Annotated[
        list[str] | None, typer.Option(help="Storage property, key=value (s3.endpoint=…); may be repeated.")
    ] = None,
    new: Annotated[
        bool, typer.Option("--new", help="Instead of an existing catalog: an empty one in the data directory.")
    ] = False,
    data: Annotated[Path, typer.Option(help="Data directory of the tower.")] = Path(".icetower"),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8181,
    config: Annotated[Path, typer.Option(help="File to write.")] = Path(CONFIG_FILE),
    as_json: Json = False,
) -> None:
    """Write the configuration of a tower in front of an existing catalog. Nothing is overwritten.

    Without --uri it looks for a SQL catalog in PyIceberg's configuration (.pyiceberg.yaml, PYICEBERG_CATALOG__…). At a
    terminal it asks for what it cannot find.

    \b
    Example:
      icetower init --catalog prod
      icetower init --uri sqlite:////data/catalog.db
    """
    if new and (uri or catalog):
        raise UsageError("--new creates an empty catalog; leave out --uri and --catalog, or --new")
    if config.exists():
        raise UsageError(f"{config} exists already, and was not changed; choose another file with --config")
    chosen = _Chosen(None) if new else _choose(catalog, uri)
    given = pairs(storage or (), "--storage")
    text, secret = _written(chosen, warehouse, given, data.absolute(), host, port)
    _write(config, text)
    if as_json:
        candidate = chosen.candidate
        say(
            json.dumps(
                {
                    "config": str(config.absolute()),
                    "catalog": None if candidate is None else candidate.name,
                    "uri": address(host, port),
                    "data": str(data.absolute()),
                    "token_file": str(data.absolute() / SECRET_NAME),
                    "has_secrets": secret,
                }
            )
        )
        return
    _report(chosen, config, data.absolute(), address(host, port), secret=secret)


def _choose(name: str | None, uri: str | None) -> _Chosen:
    candidate = _named(name, uri) if uri is not None else _configured(name)
    if candidate is None:
        return _Chosen(None)
    found = contents(candidate.uri)
    if not candidate.name:
        if len(found.counts) != 1:
            there = ", ".join(found.counts) or "none yet"
            raise UsageError(f"--catalog is needed: the name of the catalog in {shown(candidate.uri)} ({there})")
        candidate = replace(candidate, name=next(iter(found.counts)))
    elif (warning := catalog_missing(candidate.uri, candidate.name, found)) is not None:
        warn(warning)
    return _Chosen(candidate, found)


def _named(name: str | None, uri: str) -> Candidate:
    return Candidate(name or "", normal_uri(uri))


def _configured(name: str | None) -> Candidate | None:
    """The catalog of PyIceberg's configuration, or the one chosen at the terminal; None: one of Icetower's own."""
    found, others = configured()
    if name is not None:
        chosen = [each for each in found if each.name == name]
        if not chosen:
            raise UsageError(_not_there(name, found, others))
        return chosen[0]
    if len(found) == 1 and not at_terminal():
        return found[0]
    if not at_terminal():
        raise UsageError(
            f"PyIceberg's configuration has several SQL catalogs ({', '.join(each.name for each in found)}): choose "
            "with --catalog"
            if found
            else "PyIceberg's configuration has no SQL catalog: give --uri and --catalog, or --new for an empty one"
        )
    return _ask_catalog(found)


def _ask_catalog(found: list[Candidate]) -> Candidate | None:
    for number, each in enumerate(found, 1):
        say(f"  {number}  {each.name}: {shown(each.uri)}")
    say("  or the database of another catalog (sqlite:////path/catalog.db, postgresql+psycopg://user@host/name)")
    say("  or `new` for an empty catalog here")
    answer: str = typer.prompt("Which catalog", default="1" if found else "new")
    if answer == "new":
        return None
    if answer.isdecimal() and 1 <= int(answer) <= len(found):
        return found[int(answer) - 1]
    return _named(typer.prompt("Its name in that database"), answer)


def _not_there(name: str, found: list[Candidate], others: list[str]) -> str:
    if name in others:
        return (
            f"the catalog {name!r} of PyIceberg's configuration is not a SQL catalog: a tower stands in front of "
            "SQLite and PostgreSQL catalogs. Give the address of such a database with --uri"
        )
    known = ", ".join(each.name for each in found) or "none"
    return (
        f"PyIceberg's configuration has no catalog {name!r} (SQL catalogs there: {known}); give its address with --uri"
    )


def _written(
    chosen: _Chosen, warehouse: str | None, storage: Mapping[str, str], data: Path, host: str, port: int
) -> tuple[str, bool]:
    """The configuration, and whether a secret is in it."""
    server: dict[str, str | int] = {"data": str(data)}
    if host != "127.0.0.1":
        server["host"] = host
    if port != 8181:
        server["port"] = port
    lines = ["# Written by `icetower init`. docs/operations.md lists every setting.", *_section("server", server)]
    candidate = chosen.candidate
    reached = {**({} if candidate is None else candidate.storage), **storage}
    if candidate is not None:
        place = warehouse or candidate.warehouse or _warehouse_or_ask(chosen)
        lines += _section(
            "upstream", {"uri": candidate.uri, "catalog": candidate.name, "warehouse": _as_location(place)}
        )
    elif warehouse is not None:
        lines += _section("upstream", {"warehouse": _as_location(warehouse)})
    if reached:
        lines += _section("storage", dict(reached))
    secret = bool(reached) or (candidate is not None and has_password(candidate.uri))
    return "\n".join(lines) + "\n", secret


def _warehouse_or_ask(chosen: _Chosen) -> str:
    assert chosen.candidate is not None
    known = None if chosen.contents is None else chosen.contents.warehouse(chosen.candidate.name)
    if known is not None:
        return known
    if not at_terminal():
        raise UsageError(
            "--warehouse is needed: the location for new tables, such as s3://bucket/warehouse or /data/warehouse"
        )
    return typer.prompt("Location for new tables (s3://bucket/warehouse, or a folder)")


def _as_location(place: str) -> str:
    """A folder as a URI; not quoted, since Iceberg's readers use the characters of a location literally."""
    return place.rstrip("/") if _SCHEME.match(place) else f"file://{Path(place).absolute()}"


def _section(name: str, values: Mapping[str, str | int]) -> list[str]:
    return ["", f"[{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in values.items())]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: str | int) -> str:
    # JSON's strings are TOML's, except for this one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _write(path: Path, text: str) -> None:
    try:
        # It may have a password: readable by its owner only.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def _report(chosen: _Chosen, config: Path, data: Path, uri: str, *, secret: bool) -> None:
    if chosen.candidate is None:
        say(f"{config} is written: a new, empty catalog in {data}")
    else:
        found = chosen.contents
        count = 0 if found is None else found.counts.get(chosen.candidate.name, 0)
        names = [] if found is None else found.names.get(chosen.candidate.name, [])
        some = f": {escaped(', '.join(names))}{', …' if count > len(names) else ''}" if names else ""
        say(f"{config} is written: catalog {chosen.candidate.name} in {shown(chosen.candidate.uri)}")
        say(f"  tables    {count}{some}")
    if secret:
        say(f"  secrets   {config} holds settings of your storage or database, and only you can read it")
    say(f"  address   {uri}")
    say(f"  token     {data / SECRET_NAME}, written by the first start; commands in this folder find it there")
    say(f"  next      icetower serve{'' if config == Path(CONFIG_FILE) else f' --config {config}'}")
    if config != Path(CONFIG_FILE):
        say(f"            export {CONFIG_VARIABLE}={config.absolute()}, for the other commands")
