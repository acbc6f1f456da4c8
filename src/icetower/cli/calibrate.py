"""`icetower simulate calibrate`: measures a real catalog and its storage, as a provider for the simulator."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from icetower.ambient import SystemAmbient
from icetower.cli.own_tower import token_for
from icetower.cli.printing import show
from icetower.cli.registry import Json
from icetower.cli.simulate import needed
from icetower.cli.tables import pairs
from icetower.cli.terminal import say, warn
from icetower.errors import UpstreamFailed

if TYPE_CHECKING:
    from icetower_simulator.calibration import Fit

SIZES = (10 * 1024, 100 * 1024, 1024 * 1024)
"""Sizes of the written files in bytes; the smallest is read."""


def calibrate(
    name: Annotated[str, typer.Argument(help="The provider's name.")],
    properties: Annotated[
        list[str], typer.Option("--property", "-p", help="Of PyIceberg's catalog, key=value: type, uri, warehouse, ….")
    ],
    count: Annotated[int, typer.Option(min=20, max=10_000, help="Calls of each kind.")] = 100,
    namespace: Annotated[str, typer.Option(help="The namespace of a temporary table.")] = "icetower_calibration",
    as_json: Json = False,
) -> None:
    """Measure a catalog and its storage for the simulator.

    It writes, reads and deletes files, and commits, in a temporary table.

    Prints a [providers.NAME] section for an experiment's file.

    \b
    Example:
      icetower simulate calibrate mine --property uri=http://127.0.0.1:8181 --property type=rest
    """
    calibration = needed("calibration")
    calibration.require_name(name)
    clock = SystemAmbient()
    reached = _with_token(pairs(properties, "--property"))
    catalog, table, made = _table(reached, namespace, f"t_{clock.uuid4().replace('-', '')}")
    files = [(size, f"{table.location()}/data/{size}-{number}") for size in SIZES for number in range(count)]
    writes: dict[int, list[float]] = {size: [] for size in SIZES}
    try:
        for size, path in files:
            writes[size].append(_timed(clock, lambda path=path, size=size: _write(table.io, path, size)))
        reads = [_timed(clock, lambda path=path: _read(table.io, path)) for size, path in files if size == SIZES[0]]
        identifier = table.name()
        looks = [_timed(clock, lambda: catalog.load_table(identifier)) for _ in range(count)]
        commits = [_timed(clock, lambda number=number: _commit(table, number)) for number in range(count)]
    except Exception as error:  # PyIceberg and its libraries raise exceptions of their own
        raise UpstreamFailed(f"the catalog, or the storage at {table.location()}, failed: {error}") from error
    finally:
        _clean(
            catalog,
            table,
            namespace if made else None,
            [path for _, path in files[: sum(map(len, writes.values())) + 1]],
        )
    fits = {what: calibration.fitted(found) for what, found in (("read", reads), ("look", looks), ("commit", commits))}
    fits |= {f"write {size // 1024} KiB": calibration.fitted(found) for size, found in writes.items()}
    section = calibration.provider_section(name, fits["read"], writes, fits["look"], fits["commit"])
    if as_json:
        percentiles = {
            what: [dict(zip(("fraction", "measured_ms", "fitted_ms"), each, strict=True)) for each in fit.percentiles]
            for what, fit in fits.items()
        }
        say(json.dumps({"percentiles": percentiles, "provider": section.rstrip()}))
        return
    _show(fits)
    say(section.rstrip())


def _with_token(properties: dict[str, str]) -> dict[str, str]:
    """A catalog's properties; for a REST catalog without credentials, with the token that other commands would use."""
    if properties.get("type") != "rest" or properties.keys() & {"token", "credential", "auth", "auth.type"}:
        return properties
    token = token_for(properties.get("uri", ""))
    return properties if token is None else {**properties, "token": token}


def _clean(catalog: Any, table: Any, namespace: str | None, paths: Sequence[str]) -> None:
    """Delete the files and drop the table, also if some were never made; warn of anything that is left.

    Args:
        namespace: to be dropped, too; None: it existed before.
    """
    for path in paths:
        with suppress(Exception):  # the last one may not be there
            table.io.delete(path)
    try:
        catalog.drop_table(table.name())
    except Exception as error:  # noqa: BLE001 - each catalog raises exceptions of its own
        warn(f"the table {'.'.join(table.name())} is left: {error}")
        return
    if namespace is not None:
        try:
            catalog.drop_namespace(namespace)
        except Exception as error:  # noqa: BLE001 - likewise
            warn(f"the namespace {namespace} is left: {error}")


def _table(properties: dict[str, str], namespace: str, name: str) -> tuple[Any, Any, bool]:
    """A catalog, a new table in it, and whether its namespace was made for it."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NamespaceAlreadyExistsError
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    try:
        catalog = load_catalog("calibrated", **properties)
        try:
            catalog.create_namespace(namespace)
            made = True
        except NamespaceAlreadyExistsError:
            made = False
        schema = Schema(NestedField(1, "id", LongType(), required=False))
        return catalog, catalog.create_table((namespace, name), schema), made
    except Exception as error:
        raise UpstreamFailed(f"the catalog cannot be used: {type(error).__name__}: {error}") from error


def _timed(clock: SystemAmbient, work: Callable[[], Any]) -> float:
    began_s = clock.monotonic_s()
    work()
    return (clock.monotonic_s() - began_s) * 1000


def _write(io: Any, path: str, size: int) -> None:
    with io.new_output(path).create() as file:
        file.write(b"\0" * size)


def _read(io: Any, path: str) -> None:
    with io.new_input(path).open() as file:
        file.read()


def _commit(table: Any, number: int) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({"calibration": str(number)})


def _show(fits: dict[str, Fit]) -> None:
    shown = Table(title="milliseconds, measured / fitted", title_justify="left", title_style="bold")
    shown.add_column("")
    for part in next(iter(fits.values())).percentiles:
        shown.add_column(f"P{part[0] * 100:g}", justify="right")
    for what, fit in fits.items():
        shown.add_row(what, *(f"{measured:.3g} / {found:.3g}" for _, measured, found in fit.percentiles))
    show(shown)
