"""The properties that a principal alone is given with a table: where it writes, how it retries, how it lays rows out.

Iceberg's clients take such settings from the table's properties. The table itself knows nothing of them, and what
clients send back of them (Java repeats all properties when it replaces a table) is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icetower.admission.locations import own_path
from icetower.contracts.model import FILE_OPERATIONS
from icetower.contracts.write_settings import distribution_of, retries_of
from icetower.iceberg.metadata import DATA_PATH
from icetower.protocol.names import Identifier
from icetower.protocol.updates import Updates
from icetower.registry.principals import Principal

JSON = Mapping[str, Any]

_SETS = ("updates", "updated")


def client_properties(principal: Principal, table: Identifier, metadata: JSON) -> dict[str, str] | None:
    """The properties that a principal alone is given with a table; None: the table's, as they are.

    Its own data path, its contract's `retries` if it states them, and a distribution by partition where neither the
    table's owner nor a sort order says otherwise. In shadow mode, too: enforcing the contract later changes nothing.
    """
    given = created_properties(principal, table, metadata["location"], metadata.get("properties") or {})
    rules = () if principal.administrator else principal.contract.rules_for(table)
    if any(rule.grants(operation) for rule in rules for operation in FILE_OPERATIONS):
        if principal.contract.retries is not None:
            given |= retries_of([principal.contract.retries])
        given |= distribution_of(metadata)
    return given or None


def created_properties(
    principal: Principal, table: Identifier, location: str | None, properties: Mapping[str, str]
) -> dict[str, str]:
    """The same for a table that is being created, whose properties its creator chooses: where it writes, alone."""
    path = None if location is None else own_path(principal, table, location, properties)
    return {} if path is None else {DATA_PATH: path}


def without_client_properties(
    principal: Principal, table: Identifier, metadata: JSON | None, location: str | None, updates: Updates
) -> Updates:
    """The updates of a commit without the properties that the principal alone was given.

    Args:
        metadata: the table as it stands; None where the commit creates it.
        location: of a table being created.
    """
    if all(update["action"] != "set-properties" for update in updates):
        return updates
    if metadata is None:
        given = created_properties(principal, table, location, {})
    else:
        given = client_properties(principal, table, metadata) or {}
    return updates if not given else Updates(_without(update, given) for update in updates)


def _without(update: JSON, given: Mapping[str, str]) -> JSON:
    if update["action"] != "set-properties":
        return update
    return {
        name: {key: text for key, text in value.items() if given.get(key) != text} if name in _SETS else value
        for name, value in update.items()
    }
