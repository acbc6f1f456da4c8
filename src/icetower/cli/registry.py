"""`icetower principals …`, over the control API of a running tower; and the parts that all such commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from icetower.agent import Tower
from icetower.cli.completion import complete_agent
from icetower.cli.own_tower import (
    CONFIG_FILE,
    CONFIG_VARIABLE,
    DEFAULT_URI,
    config_file_above,
    own_tower,
    token_for,
)
from icetower.cli.printing import show
from icetower.cli.terminal import say, warn
from icetower.cli.times import duration_s, time_text
from icetower.contracts.model import ADMINISTRATOR_NAME, VIEWER_NAME
from icetower.errors import IcetowerError, NotAuthenticated, NotFound, UsageError
from icetower.texts import escaped

__all__ = ["DEFAULT_URI", "Json", "Uri", "connect", "own_uri", "principals", "print_rows", "time_text", "token_for"]

principals = typer.Typer(help="Principals: the identities of callers, and their contracts.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def own_uri(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    """Without an address from the user, that of this machine's tower."""
    source = context.get_parameter_source(parameter.name or "")
    if context.resilient_parsing or source is None or source.name != "DEFAULT":
        return value
    found = own_tower().uri
    above = config_file_above()
    if above is not None:
        variable = f"{CONFIG_VARIABLE}={escaped(str(above))}"
        warn(f"this folder has no {CONFIG_FILE}: asking {found}; for the tower of the folder above, set {variable}")
    return found


Uri = Annotated[
    str,
    typer.Option(
        envvar="ICETOWER_URI", callback=own_uri, help=f"The tower's address; by default the one in ./{CONFIG_FILE}."
    ),
]


def connect(uri: str) -> Tower:
    """A client of a tower, with the token that `token_for` finds."""
    return Tower(uri, token_for(uri))


def tell_tower(uri: str, what: str, tell: Callable[[Tower], None]) -> None:
    """Report something to a tower. What a command has done does not hang on it: a failure is a warning.

    Args:
        what: that is reported, for the warning.
    """
    try:
        with connect(uri) as tower:
            tell(tower)
    except (NotFound, NotAuthenticated):  # another catalog, or one whose credential only the session has
        return
    except IcetowerError as error:
        warn(f"the tower did not hear {what}: {error.message}")


Principal = Annotated[str, typer.Argument(help="The principal.", autocompletion=complete_agent)]


class Role(StrEnum):
    """A built-in contract, for people."""

    VIEWER = "viewer"
    ADMINISTRATOR = "administrator"


_CONTRACTS = {Role.VIEWER: VIEWER_NAME, Role.ADMINISTRATOR: ADMINISTRATOR_NAME}


@principals.command("create")
def create_principal(
    name: str,
    contract: Annotated[str | None, typer.Option(help="The contract it is bound to, or `administrator`.")] = None,
    role: Annotated[
        Role | None, typer.Option(help="For a person, instead of a contract. A viewer looks, and changes nothing.")
    ] = None,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Create a principal, and print its secret, which is shown only once.

    The server keeps only a hash of the secret.

    \b
    Example:
      icetower principals create pricing-1 --contract pricing_agent
      icetower principals create dana --role viewer
    """
    if (contract is None) == (role is None):
        raise UsageError("name --contract, for an agent, or --role, for a person; one of them")
    contract = contract or _CONTRACTS[role or Role.VIEWER]
    with connect(uri) as tower:
        secret = tower.create_principal(name, contract)
    say(json.dumps({"name": name, "contract": contract, "secret": secret}) if as_json else secret)


@principals.command("list")
def list_principals(uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """List all principals, including revoked ones.

    \b
    Example:
      icetower principals list
    """
    with connect(uri) as tower:
        rows = tower.principals()
    print_rows(rows, ("name", "contract", "created_ms", "revoked_ms"), as_json)


@principals.command("rotate")
def rotate_principal(
    name: Principal,
    grace: Annotated[
        str, typer.Option(help="How long the old secret and its tokens stay valid, such as 2h or 7d.")
    ] = "0s",
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Give a principal a new secret, which is printed only once.

    The old one ends at once, or after --grace, so that running clients can get the new one first.

    \b
    Example:
      icetower principals rotate pricing-1 --grace 2h
    """
    grace_s = duration_s(grace, "--grace")
    with connect(uri) as tower:
        secret = tower.rotate_principal(name, grace_s=grace_s)
    say(json.dumps({"name": name, "secret": secret}) if as_json else secret)


@principals.command("revoke")
def revoke_principal(name: Principal, uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """End a principal; no other principal is affected.

    \b
    Example:
      icetower principals revoke pricing-1
    """
    with connect(uri) as tower:
        tower.revoke_principal(name)
    say(json.dumps({"name": name, "revoked": True}) if as_json else f"{name} is revoked")


def print_rows(rows: list[dict[str, Any]], columns: tuple[str, ...], as_json: bool) -> None:
    """Print rows as a table, or as JSON."""
    if as_json:
        say(json.dumps(rows))
        return
    table = Table(*(column.removesuffix("_ms").replace("_", " ") for column in columns))
    for row in rows:
        # As text: agents' texts must not be read as markup.
        table.add_row(*(Text(escaped(_cell(column, row[column]))) for column in columns))
    show(table)


def _cell(column: str, value: Any) -> str:
    if value is None:
        return ""
    if column.endswith("_ms"):
        return time_text(value)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
