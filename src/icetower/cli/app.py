"""The program: its commands, and how errors become exit statuses."""

from __future__ import annotations

import os
import sys
from collections import UserDict
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from icetower import __version__
from icetower.cli.own_tower import where_tokens_come_from
from icetower.cli.summaries import SUMMARIES
from icetower.cli.terminal import DONE, FAILED, INTERRUPTED, USED_WRONGLY, fail, say
from icetower.errors import ConfigurationError, IcetowerError, NotAuthenticated, UsageError

COMMANDS = {
    "init": "init:init",
    "serve": "serve:serve",
    "backup": "backup:backup",
    "restore": "backup:restore",
    "demo": "demo:demo",
    "pipeline": "pipeline:pipeline",
    "explain": "explain:explain",
    "audit": "audit:audit_table",
    "audits": "audits:audits",
    "advise": "advise:advise_table",
    "revert": "revert:revert",
    "status": "status:status",
    "top": "top:top",
    "agents": "agents:agents",
    "alerts": "alerts:alerts",
    "doctor": "doctor:doctor",
    "support-bundle": "support_bundle:support_bundle",
    "commits": "commits:commits",
    "bypasses": "commits:bypasses",
    "forget": "commits:forget",
    "send": "send:send",
    "landed": "landings:landed",
    "fence": "landings:fence",
    "publish": "publishing:publish",
    "branches": "branches:branches",
    "report-check": "publishing:report_check",
    "tables": "declarations:tables",
    "tables list": "table_list:list_tables",
    "plan": "plan:plan",
    "mediate": "mediate:mediate",
    "collect": "collect:collect",
    "dedup": "dedup:dedup",
    "maintain": "maintain:maintain",
    "orphans": "orphans:orphans",
    "export": "export:export",
    "contracts": "contracts:contracts",
    "contracts grants": "grants:grants",
    "contracts shadow-report": "shadow:shadow_report",
    "principals": "registry:principals",
    "simulate": "simulate:simulate",
    "simulate sweep": "sweep:sweep",
    "simulate calibrate": "calibrate:calibrate",
    "mcp": "mcp:mcp",
    "leases": "leases:leases",
    "slots": "slots:slots",
    "escalations": "escalations:escalations",
    "requests": "escalations:requests",
}
"""Name → the module in this package, and its function or group of commands."""


_Misread: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""What Typer raises where it cannot read the command line. It does not export the class."""

TRACEBACK = "ICETOWER_TRACEBACK"
"""The variable that makes unexpected errors print their traceback."""


class _Commands(UserDict[str, Any]):
    """Commands of a group by name. Each is imported when it is used: importing all takes seconds."""

    def __getitem__(self, key: str) -> Any:
        found = self.data[key]
        return _command(found) if isinstance(found, str) else found


class _Group(TyperGroup):
    """The program itself: the commands with one-word names."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands({name: name for name in COMMANDS if " " not in name})

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, without importing a command: a shell asks for them at every press of the tab key."""
        del ctx
        return list(self.commands.keys())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """What is shown of a command in the help and by a shell, likewise; None: there is none."""
        del ctx
        return TyperCommand(cmd_name, help=SUMMARIES[cmd_name]) if cmd_name in self.commands else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that a line names, which is imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, self.commands[name] if command is not None and name is not None else command, rest


def _command(name: str) -> Any:
    module, _, called = COMMANDS[name].partition(":")
    found = getattr(import_module(f"icetower.cli.{module}"), called)
    word = name.rpartition(" ")[2]
    holder = typer.Typer(add_completion=False, rich_markup_mode=None)
    holder.callback()(_nothing)  # makes a group even of a single command
    if not isinstance(found, typer.Typer):
        holder.command(word)(found)
        return _group(holder).commands[word]
    holder.add_typer(found, name=word)
    group = _group(holder).commands[word]
    assert isinstance(group, TyperGroup)
    rest = {longer.removeprefix(f"{name} "): longer for longer in COMMANDS if longer.startswith(f"{name} ")}
    group.commands = _Commands({**group.commands, **rest})
    return group


def _group(holder: typer.Typer) -> TyperGroup:
    made = get_command(holder)
    assert isinstance(made, TyperGroup)
    return made


def _nothing() -> None: ...


app = typer.Typer(
    name="icetower",
    cls=_Group,
    help="The control tower for agents that write to Apache Iceberg.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # in help, brackets are text: [providers.NAME]
)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"icetower {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


def main() -> None:
    """Run the program. docs/commands.md lists the exit statuses."""
    try:
        # Not standalone: Typer's own messages would not be JSON, and would not read like the others.
        status = app(standalone_mode=False)
    except BrokenPipeError:  # the reader of the output has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except Exception as error:
        if os.environ.get(TRACEBACK) and not isinstance(error, IcetowerError | OSError | typer.Abort | _Misread):
            raise
        sys.exit(_report(error))
    if status == INTERRUPTED:
        fail("interrupted; what was done before stays, and the command can be run again", INTERRUPTED)
    sys.exit(status if isinstance(status, int) else DONE)


def _report(error: Exception) -> int:
    """Say what went wrong, in one paragraph. The exit status."""
    if isinstance(error, _Misread):
        return _misread(error)
    status = USED_WRONGLY if isinstance(error, ConfigurationError | UsageError) else FAILED
    if isinstance(error, NotAuthenticated):
        fail(f"{error.message}; {_where_tokens_come_from()}", status, error)
    elif isinstance(error, IcetowerError):
        fail(error.message, status, error)
    elif isinstance(error, typer.Abort):  # a question got no answer
        fail("a question was not answered; nothing was done. `--help` lists the options that answer it", status)
    elif isinstance(error, OSError):
        about = "" if error.filename is None else f"{error.filename}: "
        cause = (error.strerror or str(error)).lower()
        fail(f"{about}{cause}; check that it exists and may be read and written", status)
    else:
        first = (str(error).strip().splitlines() or [""])[0]
        fail(f"an error of Icetower's own: {type(error).__name__}: {first}; {TRACEBACK}=1 shows its traceback", status)
    return status


def _misread(error: Any) -> int:
    """Say what is wrong with the options or arguments. The exit status."""
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
        error.show()
        return USED_WRONGLY
    text = str(error.format_message()).strip().rstrip(".")
    named = text[:1].lower() + text[1:]
    program = "icetower" if error.ctx is None else error.ctx.command_path
    fail(f"{named}; `{program} --help` shows how it is used", USED_WRONGLY, UsageError(named))
    return USED_WRONGLY


def _where_tokens_come_from() -> str:
    try:
        return where_tokens_come_from()
    except IcetowerError as error:  # the configuration cannot be read
        return error.message
