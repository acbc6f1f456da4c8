"""A line on standard error while something takes long: at a terminal, and nowhere else."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from icetower.cli.terminal import for_machines


def waiting(what: str) -> Progress:
    """A line on the terminal, with the time since it began, until the work ends. With --json there is none."""
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=for_machines() or not sys.stderr.isatty(),
    )
    progress.add_task(what, total=None)
    return progress
