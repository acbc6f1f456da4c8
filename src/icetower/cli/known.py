"""Resolves names that users type: the principals of an agent's name, and whether a tower has a table.

An agent's name is a principal's, as in logs and snapshots, or a contract's (`agent:` in its file), which binds one or
more principals. An unknown name must not be reported as "nothing happened".
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass

from icetower.agent import Tower
from icetower.cli.lake import Lake
from icetower.cli.own_tower import token_for
from icetower.cli.terminal import warn
from icetower.counting import series
from icetower.errors import BadRequest, Forbidden, IcetowerError, NoSuchTable, NotFound
from icetower.protocol.names import Identifier


@dataclass(frozen=True, slots=True)
class Named:
    """The principals of an agent's name.

    Attributes:
        principals: the principals that its commits are recorded under; empty if the caller may see none of them.
        doubt: why the name is unknown; None for a known one.
    """

    principals: tuple[str, ...]
    doubt: str | None = None


def named(tower: Tower, name: str) -> Named:
    """The principals of a name. Raises the `IcetowerError` of a catalog that cannot be queried."""
    try:
        records = tower.principals()
    except Forbidden:
        return _named_to_agents(tower, name)
    principals = {str(each["name"]): str(each["contract"]) for each in records}
    bound = tuple(sorted(each for each, contract in principals.items() if contract == name))
    if name in principals:
        if others := [each for each in bound if each != name]:
            warn(f"{name} is a principal, and also a contract that binds {series(others)}: the principal is used")
        return Named((name,))
    if bound:
        return Named(bound)
    contracts = {str(each["name"]) for each in tower.contracts()}
    if name in contracts:
        return Named((name,), f"contract {name} binds no principal")
    return Named((name,), f"there is no principal and no contract {name}{_near(name, principals.keys() | contracts)}")


def _named_to_agents(tower: Tower, name: str) -> Named:
    me = tower.me()
    own = str(me["principal"])
    if name in (own, me["contract"]):
        return Named((own,))
    return Named((), f"only administrators see the principals and attempts of others, and the token is {own}'s")


def _near(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]}?" if near else "; icetower principals list shows all"


def require_agent(name: str, who: Named) -> None:
    """Raises `NotFound` for an unknown name; the caller has found nothing under it."""
    if who.doubt is not None:
        raise NotFound(f"nothing of {name} was found: {who.doubt}", rule="principal.exists")


def require_table(tower: Tower, uri: str, table: str) -> None:
    """Raises `NoSuchTable` for a table that neither the log nor the catalog has.

    Args:
        table: the name as typed; the caller has found nothing about it.
    """
    if tower.commits(limit=1, table=table):
        return
    from icetower.cli.contract_tables import Routes

    try:
        identifier = Identifier.parse(table)
        with Routes(uri, token_for(uri)) as routes:
            Lake(routes).load(identifier)
    except (NotFound, BadRequest) as error:
        raise NoSuchTable(
            f"there is no table {table}, and the log has no attempt to write to one; name it as namespace.table"
        ) from error
    except IcetowerError:
        return  # such as a table that the caller may not read, and whose existence it may not learn
