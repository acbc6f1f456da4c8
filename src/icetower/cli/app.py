"""The program: its commands, and how errors become exit statuses."""

from __future__ import annotations

import os
import sys
from collections import UserDict
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from icetower import __version__
from icetower.cli.own_tower import where_tokens_come_from
from icetower.cli.terminal import fail, say
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
    "commits": "commits:commits",
    "bypasses": "commits:bypasses",
    "forget": "commits:forget",
    "tables": "declarations:tables",
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
    "escalations": "escalations:escalations",
    "requests": "escalations:requests",
}
"""Name → the module in this package, and its function or group of commands."""


TRACEBACK = "ICETOWER_TRACEBACK"
"""The variable that makes unexpected errors print their traceback."""


class _Commands(UserDict[str, Any]):
    """Commands of a group by name. Each is imported when it is used: importing all takes a second."""

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
    """Exit status: 0 done; 1 failed or refused; 2 wrong usage; 3, of some commands: something was found."""
    try:
        app()
    except NotAuthenticated as error:
        fail(f"{error.message}; {where_tokens_come_from()}")
        sys.exit(1)
    except IcetowerError as error:
        fail(error.message)
        sys.exit(2 if isinstance(error, ConfigurationError | UsageError) else 1)
    except BrokenPipeError:  # the reader of the output has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        about = "" if error.filename is None else f"{error.filename}: "
        fail(f"{about}{(error.strerror or str(error)).lower()}; check that it exists and may be read and written")
        sys.exit(1)
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        first = (str(error).strip().splitlines() or [""])[0]
        fail(f"an error of Icetower's own: {type(error).__name__}: {first}; {TRACEBACK}=1 shows its traceback")
        sys.exit(1)
