"""`icetower demo`: the main job on real data."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from icetower.cli.terminal import say
from icetower.errors import UsageError

LOG_COLUMNS = 140


class StorageLatency(StrEnum):
    S3 = "s3"
    NONE = "none"


def demo(
    days: Annotated[int, typer.Option(min=1, help="Days of 2017 to replay; 365 is everything.")] = 14,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object last; the rest on stderr.")] = False,
    keep: Annotated[Path | None, typer.Option(help="Keep everything in this directory, which must be empty.")] = None,
    seed: Annotated[int, typer.Option(help="Goes into the agents' idempotency keys.")] = 2017,
    latency: Annotated[
        StorageLatency, typer.Option("--storage-latency", help="Of every file, on both sides: S3's, or none added.")
    ] = StorageLatency.S3,
    look: Annotated[
        bool, typer.Option("--look", help="Leave the tower up at the end, for a look at what happened, until Ctrl-C.")
    ] = False,
) -> None:
    """Run the main job on real data, without and with Icetower, and reconcile every row.

    Ten agents, with PyIceberg and PySpark, write real grocery transactions: first straight to a SQL catalog, then
    through a tower. The two runs are compared, and each row that went through the tower is compared with the source.

    Exit status 1 if a row is lost or doubled, or a promise was not kept.

    \b
    Example:
      icetower demo --days 14
      icetower demo --days 2 --look
    """
    from icetower.demo.report import Findings, show, to_json
    from icetower.demo.run import run_demo
    from icetower.demo.serving import Serving, leave_up

    console = Console(stderr=as_json)
    if not console.is_terminal:  # a log has no width of its own
        console = Console(stderr=as_json, width=LOG_COLUMNS)
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="icetower-demo-")))
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"--keep {folder} is not empty; name a new directory")

        def told(findings: Findings, serving: Serving) -> None:
            show(findings, console)
            if as_json:
                say(json.dumps(to_json(findings)))
            if look:
                leave_up(serving, console)

        findings = run_demo(folder.resolve(), days=days, seed=seed, latency=latency, console=console, told=told)
    if not findings.good:
        raise typer.Exit(1)
