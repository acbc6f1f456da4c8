"""`icetower serve`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from icetower.ambient import SystemAmbient
from icetower.cli.own_tower import CONFIG_FILE, CONFIG_VARIABLE, SECRET_NAME, config_file
from icetower.cli.terminal import say, warn


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes any free one.  [default: 8181]")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Directory of the embedded catalog, the control database and the warehouse."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help=f"Settings in TOML; options override them.  [default: {CONFIG_VARIABLE}, or ./{CONFIG_FILE}]"
        ),
    ] = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Admit callers without credentials as administrators. Loopback only.")
    ] = False,
    log_format: Annotated[
        str | None, typer.Option(help="Format of log lines: logfmt or json.  [default: logfmt]")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="The lowest level that is logged: info, warning or error.  [default: warning]")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object when it serves; --log-format is of the log.")
    ] = False,
) -> None:
    """Serve the Iceberg REST catalog.

    Without a configuration it serves an embedded catalog in ./.icetower, on port 8181. `icetower init` writes a
    configuration for an existing catalog. The first start writes the administrator's secret to admin.token in the data
    directory.

    \b
    Example:
      icetower serve --config icetower.toml
      icetower serve --port 0 --data /var/lib/icetower --log-format json
    """
    from icetower.cli.found_catalogs import catalog_missing, contents_for_serving
    from icetower.gateway.app import serve as run
    from icetower.gateway.settings import load_settings
    from icetower.observe.events import configure_logging

    settings = load_settings(
        config or config_file(),
        host=host,
        port=port,
        data=None if data is None else str(data),
        log_format=log_format,
        log_level=log_level,
    )
    configure_logging(settings.server.log_format, settings.server.log_level)
    if (uri := settings.upstream.uri) is not None:  # checked before the data directory is created
        warning = catalog_missing(uri, settings.upstream.catalog, contents_for_serving(uri))
        if warning is not None:
            warn(f"{warning} (see [upstream] catalog)")
    if open_:
        warn("--open: everybody who can reach this machine's loopback is an administrator")
    place = Path(settings.server.data).absolute()
    first = not (place / SECRET_NAME).exists()

    def ready(uri: str) -> None:
        if as_json:
            token_file = str(place / SECRET_NAME)
            say(json.dumps({"serving": uri, "data": str(place), "token_file": token_file, "first_start": first}))
            return
        say(f"icetower: serving {uri} (data in {settings.server.data})")
        if first:
            say(f"icetower: the administrator's token is in {place / SECRET_NAME}")
            say("icetower: next, in another terminal: icetower contracts init AGENT --table NAMESPACE.TABLE")

    run(settings, SystemAmbient(), open_to_all=open_, ready=ready)
