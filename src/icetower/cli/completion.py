"""Names that a shell completes from the tower, if it answers at once; a shell asks at every press of the tab key."""

from __future__ import annotations

import os
from collections.abc import Callable

from icetower.agent import Tower
from icetower.cli.own_tower import URI_VARIABLE, own_tower, token_for
from icetower.errors import IcetowerError
from icetower.texts import acting_character

TIMEOUT_S = 1.0
NAMES_MAX = 200


def complete_agent(incomplete: str) -> list[str]:
    """Names of principals; of an agent its own."""
    return _names(lambda tower: [each["name"] for each in tower.principals()], incomplete)


def complete_contract(incomplete: str) -> list[str]:
    """Names of contracts."""
    return _names(lambda tower: [each["name"] for each in tower.contracts()], incomplete)


def complete_table(incomplete: str) -> list[str]:
    """Names of tables in the newest attempts: cheaper than a walk through the catalog."""
    return _names(lambda tower: [each["table"] for each in tower.commits(limit=NAMES_MAX)], incomplete)


def _names(ask: Callable[[Tower], list[str]], incomplete: str) -> list[str]:
    """Some names that begin so; none where the tower does not answer: completion never prints an error."""
    try:
        uri = os.environ.get(URI_VARIABLE) or own_tower().uri
        with Tower(uri, token_for(uri, within_s=TIMEOUT_S), timeout_s=TIMEOUT_S) as tower:
            found = ask(tower)
    except (IcetowerError, OSError, KeyError, TypeError):
        return []
    matching = {each for each in found if each.startswith(incomplete) and acting_character(each) is None}
    return sorted(matching)[:NAMES_MAX]
