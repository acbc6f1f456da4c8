"""The schemas of Iceberg's open proposal for events, written after apache/iceberg, pull request 12584, commit ee335c43.

`QueryEventsResponse`, `Event` and the operations of a catalog without views; of `TableUpdate` what all updates share.
The proposal lets further properties be; here none but those that begin with `x-` may be, so that a misspelt name fails.
"""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

UUID = {"type": "string", "pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}
NAMESPACE = {"type": "array", "items": {"type": "string"}, "minItems": 1}
IDENTIFIER = {
    "type": "object",
    "required": ["namespace", "name"],
    "properties": {"namespace": NAMESPACE, "name": {"type": "string"}},
    "additionalProperties": False,
}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
NAMES = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
UPDATES = {"type": "array", "items": {"type": "object", "required": ["action"]}}


def _operation(kind: str, required: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["operation-type", *required],
        "properties": {"operation-type": {"const": kind}, **required, **more},
        "patternProperties": {"^x-": {}},
        "additionalProperties": False,
    }


TABLE = {"identifier": IDENTIFIER, "table-uuid": UUID}
OPERATIONS = [
    _operation("create-table", {**TABLE, "updates": UPDATES}),
    _operation("register-table", TABLE, updates=UPDATES),
    _operation("drop-table", TABLE, purge={"type": "boolean"}),
    _operation("update-table", {**TABLE, "updates": UPDATES}, requirements={"type": "array"}),
    _operation("rename-table", {"table-uuid": UUID, "source": IDENTIFIER, "destination": IDENTIFIER}),
    _operation("create-namespace", {"namespace": NAMESPACE}, properties=TEXTS),
    _operation(
        "update-namespace-properties", {"namespace": NAMESPACE, "updated": NAMES, "removed": NAMES}, missing=NAMES
    ),
    _operation("drop-namespace", {"namespace": NAMESPACE}),
]
EVENT = {
    "type": "object",
    "required": ["event-id", "request-id", "request-event-count", "timestamp-ms", "operation"],
    "properties": {
        "event-id": {"type": "string", "minLength": 1},
        "request-id": {"type": "string", "minLength": 1},
        "request-event-count": {"type": "integer", "minimum": 1},
        "timestamp-ms": {"type": "integer", "minimum": 1},
        "actor": {"type": "object", "properties": {"id": {"type": "string"}}, "additionalProperties": True},
        "operation": {"oneOf": OPERATIONS},
    },
    "additionalProperties": False,
}
RESPONSE = {
    "type": "object",
    "required": ["continuation-token", "events"],
    "properties": {"continuation-token": {"type": "string"}, "events": {"type": "array", "items": EVENT}},
    "additionalProperties": False,
}


def check(response: object) -> None:
    """Raises `ValidationError` where an answer is not as the proposal has it."""
    Draft202012Validator(RESPONSE).validate(response)
