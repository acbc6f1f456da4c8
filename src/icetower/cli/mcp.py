"""`icetower mcp`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from icetower.ambient import SystemAmbient
from icetower.cli.own_tower import TOKEN_VARIABLE
from icetower.cli.registry import DEFAULT_URI, Uri, token_for
from icetower.cli.tables import StorageOptions, pairs
from icetower.errors import UsageError


def mcp(
    uri: Uri = DEFAULT_URI,
    read_only: Annotated[bool, typer.Option("--read-only", help="Offer only the tools that change nothing.")] = False,
    administrator: Annotated[
        bool,
        typer.Option("--administrator", help="Without ICETOWER_TOKEN, act as the administrator of a tower found here."),
    ] = False,
    storage: StorageOptions = None,
) -> None:
    """Serve tools for agents over the Model Context Protocol (MCP), on standard input and output.

    An MCP client starts it. It acts with the credential in ICETOWER_TOKEN, under that principal's contract. A running
    tower offers the same tools over HTTP at /mcp.

    \b
    Example:
      ICETOWER_TOKEN=SECRET icetower mcp --uri http://127.0.0.1:8181 --read-only
    """
    if not administrator and not os.environ.get(TOKEN_VARIABLE):
        raise UsageError(
            f"{TOKEN_VARIABLE} has no credential: give the model that of a principal under a contract (`icetower "
            "principals create`), or let it act as the administrator with --administrator"
        )
    try:
        from icetower.mcp.caller import Caller
        from icetower.mcp.stdio import serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("icetower"):
            raise
        raise UsageError(f"this command needs more ({error.name}): install icetower[server,mcp]") from error
    serve(Caller(uri, token_for(uri), read_only, pairs(storage or [], "--storage")), SystemAmbient())
