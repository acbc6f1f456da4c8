"""`icetower mcp`: the server over standard input and output, for one caller of one tower."""

from __future__ import annotations

import logging
from typing import Any

import anyio

from icetower.ambient import Ambient
from icetower.mcp.caller import Caller
from icetower.mcp.server import build
from icetower.mcp.workers import Workers


def serve(caller: Caller, ambient: Ambient) -> None:
    """Serve until the client closes standard input."""

    def caller_of(request: Any) -> Caller:
        del request
        return caller

    logging.getLogger("mcp").setLevel(logging.ERROR)  # standard error is shown to people, if to anybody
    workers = Workers()
    try:
        anyio.run(build(caller_of, ambient, workers).run_stdio_async)
    finally:
        workers.close()
