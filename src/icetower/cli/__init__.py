"""The command line: one module for each group of commands."""

from __future__ import annotations

import sys


def main() -> None:
    """The program `icetower`. The bare install has only the SDK; the commands need the extra `server`."""
    try:
        from icetower.cli.app import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("icetower"):
            raise
        sys.stderr.write(f"icetower: the commands need more than the SDK ({error.name}): install icetower[server]\n")
        sys.exit(2)
    run()
