"""Changes of tables and namespaces as events for others to follow (`protocol.events`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from icetower.ambient import Ambient
from icetower.commit.engine import Committed
from icetower.ledger.attempts import Outcome
from icetower.ledger.watching import EVENT_CHARACTERS_MAX, Changed
from icetower.protocol.events import Kind, event_of
from icetower.protocol.names import Identifier
from icetower.protocol.updates import Updates
from icetower.service.attempts import Ended

JSON = dict[str, Any]


class Changes:
    """Hears of attempts, and keeps those that changed something.

    Args:
        keep: takes what is to be written to the ledger.
    """

    def __init__(self, keep: Callable[[Changed], None], ambient: Ambient) -> None:
        self._keep = keep
        self._ambient = ambient

    def heard(self, ended: Ended) -> None:
        """An attempt has ended."""
        committed, known = ended.committed, ended.known
        if committed is not None and ended.kept.outcome is not Outcome.REPLAYED and known.identifier is not None:
            operation = _of_commit(known.identifier, committed, known.updates or Updates())
        elif ended.error is None and known.change is not None:
            operation = known.change
        else:
            return
        kept = ended.kept
        event = event_of(
            event_id=self._ambient.uuid7(),
            request_id=kept.request_id or "",
            request_count=known.requests,
            at_ms=kept.at_ms,
            principal=kept.principal,
            contract=kept.contract,
            operation=operation,
            characters_max=EVENT_CHARACTERS_MAX,
            text_of=lambda event: orjson.dumps(event).decode(),
        )
        self._keep(
            Changed(kept.at_ms, operation["operation-type"], _objects(operation), operation.get("table-uuid"), event)
        )


def identified(identifier: Identifier) -> JSON:
    """A `TableIdentifier`."""
    return {"namespace": list(identifier.namespace), "name": identifier.name}


def created(metadata: Any) -> list[JSON]:
    """The updates that make a table what its first metadata file says."""
    found: list[JSON] = [
        {"action": "assign-uuid", "uuid": metadata["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": metadata["format-version"]},
        {"action": "set-location", "location": metadata["location"]},
    ]
    found += [{"action": "add-schema", "schema": schema} for schema in metadata["schemas"]]
    found += [
        {"action": "set-current-schema", "schema-id": metadata["current-schema-id"]},
        *({"action": "add-spec", "spec": spec} for spec in metadata["partition-specs"]),
        {"action": "set-default-spec", "spec-id": metadata["default-spec-id"]},
        *({"action": "add-sort-order", "sort-order": order} for order in metadata["sort-orders"]),
        {"action": "set-default-sort-order", "sort-order-id": metadata["default-sort-order-id"]},
    ]
    if metadata.get("properties"):
        found.append({"action": "set-properties", "updates": dict(metadata["properties"])})
    return found


def _of_commit(identifier: Identifier, committed: Committed, updates: Updates) -> JSON:
    """What has landed: the updates as they were sent, with the snapshots as the table has them."""
    creates = "assign-uuid" in updates.actions
    return {
        "operation-type": (Kind.CREATE_TABLE if creates else Kind.UPDATE_TABLE).value,
        "identifier": identified(identifier),
        "table-uuid": str(committed.head.metadata.get("table-uuid")),
        "updates": [*_final(committed, updates)],
    }


def _final(committed: Committed, updates: Updates) -> Sequence[JSON]:
    head, landed = committed.head, list(committed.snapshots)
    sent = {update["snapshot"]["snapshot-id"] for update in updates.of("add-snapshot")}
    moved = {update.get("snapshot-id") for update in updates.of("set-snapshot-ref")}
    # Of an append by the fast path, the tower has made the snapshot. A branch that is set forward brings none.
    own = [] if moved.intersection(landed) else [i for i in landed if i not in sent]
    found: list[JSON] = [{"action": "add-snapshot", "snapshot": head.snapshots[i]} for i in own if i in head.snapshots]
    for update in updates:
        if update["action"] == "add-snapshot":
            snapshot = head.snapshots.get(update["snapshot"]["snapshot-id"])
            found.append({"action": "add-snapshot", "snapshot": update["snapshot"] if snapshot is None else snapshot})
        elif update["action"] == "set-snapshot-ref" and "snapshot-id" not in update and own:
            found.append({**update, "snapshot-id": own[-1]})
        else:
            found.append(dict(update))
    return found


def _objects(operation: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    named = [operation[key] for key in ("identifier", "source", "destination") if key in operation]
    if named:
        return tuple((*each["namespace"], each["name"]) for each in named)
    return (tuple(operation["namespace"]),)
