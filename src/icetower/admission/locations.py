"""Where a principal's data files go (trap A6): a place of its own under the table's, so that a file says whose it is.

The table itself doesn't know: each principal is told another `write.data.path` with the table, and Iceberg's clients
write there by themselves. What they send back of it (Java repeats all properties when it replaces a table) is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icetower.contracts.model import FILE_OPERATIONS
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal

JSON = Mapping[str, Any]

DATA_PATH = "write.data.path"
DATA_PATHS = (DATA_PATH, "write.object-storage.path", "write.folder-storage.path")
"""Properties that say where data files go; the first that is set counts, as in Iceberg's `LocationProviders`."""

_SETS = ("updates", "updated")


def own_path(principal: Principal, table: Identifier, location: str, properties: Mapping[str, str]) -> str | None:
    """The directory for a principal's own files of a table; None where it may write anywhere under the table.

    Args:
        location, properties: the table's own.
    """
    contract = principal.contract
    if principal.administrator or contract.shadow:
        return None
    writing = [
        rule for rule in contract.rules_for(table) if any(rule.grants(operation) for operation in FILE_OPERATIONS)
    ]
    if not any(rule.own_location for rule in writing):
        return None
    shared = next((properties[name] for name in DATA_PATHS if properties.get(name)), f"{location.rstrip('/')}/data")
    return f"{shared.rstrip('/')}/{principal.name}"


def told(principal: Principal, table: Identifier, metadata: JSON) -> dict[str, str] | None:
    """The properties that a principal alone is told with a table; None: the table's, as they are."""
    path = own_path(principal, table, metadata["location"], metadata.get("properties") or {})
    return None if path is None else {DATA_PATH: path}


def without_told(
    principal: Principal, table: Identifier, metadata: JSON | None, location: str | None, updates: Sequence[JSON]
) -> tuple[JSON, ...]:
    """The updates of a commit without what the principal alone was told.

    Args:
        metadata: the table as it stands; None where the commit creates it.
        location: of a table being created.
    """
    where = location if metadata is None else metadata["location"]
    properties: Mapping[str, str] = {} if metadata is None else metadata.get("properties") or {}
    path = None if where is None else own_path(principal, table, where, properties)
    return tuple(updates) if path is None else tuple(_without(update, path) for update in updates)


def _without(update: JSON, path: str) -> JSON:
    if update["action"] != "set-properties":
        return update
    return {
        name: {key: text for key, text in value.items() if (key, text) != (DATA_PATH, path)} if name in _SETS else value
        for name, value in update.items()
    }
