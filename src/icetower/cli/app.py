"""The program: its commands, and how errors become exit statuses."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from icetower import __version__
from icetower.cli import advise as advise_command
from icetower.cli import audit as audit_command
from icetower.cli import calibrate as calibrate_command
from icetower.cli import contracts, escalations, pipelines, registry, shadow
from icetower.cli import demo as demo_command
from icetower.cli import explain as explain_command
from icetower.cli import grants as grants_command
from icetower.cli import plan as plan_command
from icetower.cli import revert as revert_command
from icetower.cli import serve as serve_command
from icetower.cli import simulate as simulate_command
from icetower.cli import sweep as sweep_command
from icetower.cli.terminal import fail, say
from icetower.errors import ConfigurationError, IcetowerError, UsageError

app = typer.Typer(
    name="icetower",
    help="The control tower for agents that write to Apache Iceberg.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"icetower {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    del version


app.command("serve")(serve_command.serve)
app.command("demo")(demo_command.demo)
app.command("explain")(explain_command.explain)
app.command("audit")(audit_command.audit_table)
app.command("advise")(advise_command.advise_table)
app.command("revert")(revert_command.revert)
app.command("plan")(plan_command.plan)
app.command("mediate")(pipelines.mediate)
app.command("orphans")(pipelines.orphans)
contracts.contracts.command("grants")(grants_command.grants)
contracts.contracts.command("shadow-report")(shadow.shadow_report)
app.add_typer(contracts.contracts, name="contracts")
app.add_typer(registry.principals, name="principals")
simulate_command.simulate.command("sweep")(sweep_command.sweep)
simulate_command.simulate.command("calibrate")(calibrate_command.calibrate)
app.add_typer(simulate_command.simulate, name="simulate")
app.add_typer(escalations.escalations, name="escalations")
app.add_typer(escalations.requests, name="requests")


def main() -> None:
    """Exit status: 0 done, 1 failed or refused, 2 used wrongly."""
    try:
        app()
    except IcetowerError as error:
        fail(error.message)
        sys.exit(2 if isinstance(error, ConfigurationError | UsageError) else 1)
